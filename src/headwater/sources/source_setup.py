"""Inputs from which a source is created: its declaration, and its state in the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headwater.log.protocol import ProducerInfo
from headwater.sources.log_lookup import Lookups


@dataclass(frozen=True)
class SourceSetup:
    """Inputs from which a source is created. The class of each kind picks what it needs in its class method `declared`."""

    name: str
    options: Mapping[str, Any]
    """Options of WITH, with references to environment variables resolved."""
    generation: int
    """Number of times that the source was restarted from scratch."""
    lookups: Lookups
    producer: Callable[[], ProducerInfo | None]
    """Returns the producer state of this source in the log; None before its first commit."""
    folder: Path
    """Folder for temporary data that does not fit in memory."""
