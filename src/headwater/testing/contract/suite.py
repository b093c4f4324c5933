"""All subjects of the contract in one class."""

from __future__ import annotations

from headwater.testing.contract.appending import AppendingContract
from headwater.testing.contract.backlog import BacklogContract
from headwater.testing.contract.catalog import CatalogContract
from headwater.testing.contract.cursors import CursorContract
from headwater.testing.contract.cutting import CuttingContract
from headwater.testing.contract.deleting import DeletingContract
from headwater.testing.contract.devices import DeviceContract
from headwater.testing.contract.expecting import ExpectingContract
from headwater.testing.contract.groups import GroupContract
from headwater.testing.contract.names import NameContract
from headwater.testing.contract.producing import ProducingContract
from headwater.testing.contract.promising import PromisingContract
from headwater.testing.contract.reading import ReadingContract
from headwater.testing.contract.staging import StagingContract
from headwater.testing.contract.time import TimeContract
from headwater.testing.contract.topics import TopicContract
from headwater.testing.contract.types import TypeContract
from headwater.testing.contract.upkeep import UpkeepContract
from headwater.testing.contract.waiting import WaitingContract


class LogContract(
    TopicContract,
    NameContract,
    CatalogContract,
    TypeContract,
    AppendingContract,
    BacklogContract,
    ExpectingContract,
    ProducingContract,
    StagingContract,
    ReadingContract,
    TimeContract,
    PromisingContract,
    DeviceContract,
    WaitingContract,
    CuttingContract,
    CursorContract,
    GroupContract,
    UpkeepContract,
    DeletingContract,
):
    """Subclass it as `class TestMyLog(LogContract)`, with `make_log` and, where there is a disk, `reopen`.

    Every test has a log of its own in `self.log`, under the manual clock `self.clock`.
    """
