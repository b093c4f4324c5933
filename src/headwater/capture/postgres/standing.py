"""What the parts of a session share: where the source stands, whichever connection it is on, and what it works with on this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headwater.capture.postgres.connection import Connection
from headwater.capture.postgres.guard import SlotHealth
from headwater.capture.postgres.options import PostgresOptions
from headwater.capture.postgres.setup import Captured
from headwater.capture.postgres.tables import History, Tables
from headwater.capture.source import Position
from headwater.errors import SourceError


class SessionEndedError(SourceError):
    """Something on the server is not as it was: another session begins, by itself."""

    retryable = True


@dataclass
class Standing:
    """What a source has handed over, and what it was told to do."""

    source: str = ""
    position: Position | None = None
    sequence: int = -1
    durable: int = -1
    state: str = "not started"
    health: SlotHealth | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """By table without a key: what its topic may lack for ever, and what to do about it."""
    orders: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """Requests for snapshots, True or False to pause or go on with them, and names of tables to be taken up again."""

    def stream(self, besides: str = "") -> None:
        """It reads the stream, and does something besides."""
        self.state = ", and ".join(filter(None, ["streaming", besides, *self.missing.values()]))

    def miss(self, table: Captured, when: str) -> None:
        """Rows of a table without a key cannot be had again: they could not be told from those that its topic has."""
        self.missing[str(table)] = (
            f"lacking what was inserted into {table} {when}: it has no key, and rows of it cannot be told apart "
            f"(DROP TOPIC {table.topic} and ALTER SOURCE {self.source} RESTART copy all of it, "
            f"ALTER SOURCE {self.source} RESTART {table} leaves it as it is)"
        )


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
