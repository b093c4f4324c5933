"""What the parts of a session share: where the source stands, whichever connection it is on, and what it works with on this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headwater.capture.postgres.connection import Connection
from headwater.capture.postgres.guard import SlotHealth
from headwater.capture.postgres.options import PostgresOptions
from headwater.capture.postgres.tables import History, Tables
from headwater.capture.source import Position


@dataclass
class Standing:
    """What a source has handed over, and what it was told to do."""

    position: Position | None = None
    sequence: int = -1
    durable: int = -1
    state: str = "not started"
    health: SlotHealth | None = None
    orders: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """Requests for snapshots, True or False to pause or go on with them, and names of tables to be taken up again."""


@dataclass
class Connected:
    """What a session works with."""

    source: str
    options: PostgresOptions
    history: History
    tables: Tables
    standing: Standing
    folder: Path
    connection: Connection
    publications: list[str] = field(default_factory=list)
    filters: dict[str, str] = field(default_factory=dict)
    """By table: the condition that the publication puts on its rows."""
