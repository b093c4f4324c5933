"""Errors of sources, by the names that this station has for them."""

from headwater.errors import PublicationError as PublicationError
from headwater.errors import SlotError as SlotError
from headwater.errors import SourceError as SourceError
from headwater.errors import SourceRefusedError as SourceRefusedError
from headwater.errors import SourceUnreachableError as SourceUnreachableError
from headwater.errors import TableStoppedError as TableStoppedError
from headwater.errors import WalBudgetError as WalBudgetError
