"""What a source is made of: its declaration, and what the log knows of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.log.protocol import ProducerInfo
from headwater.sources.log_lookup import Lookups


@dataclass(frozen=True)
class SourceSetup:
    """What a source is made of. The class of a kind takes what it needs of it in its class method `declared`."""

    name: str
    options: Mapping[str, Any]
    """What WITH says, with what stands in the environment looked up."""
    generation: int
    """How often a source of this name was begun anew."""
    lookups: Lookups
    standing: Callable[[], ProducerInfo | None]
    """What the log has of this source."""
    folder: Path
    """For what does not fit in memory."""
