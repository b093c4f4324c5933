"""What the parts of a session share: where the source stands, whichever connection it is on, and what it works with on this one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from headwater.core.errors import SourceError
from headwater.sources.base import Position
from headwater.sources.postgres.rows.captured_tables import Tables, TopicHistory
from headwater.sources.postgres.rows.table_identity import TableIdentity
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.options import PostgresOptions
from headwater.sources.postgres.server.publications import Captured
from headwater.sources.postgres.server.slot_monitor import SlotHealth

STREAMING = "streaming"


class SessionEndedError(SourceError):
    """Something on the server is not as it was: another session begins, by itself."""

    retryable = True


@dataclass
class SessionState:
    """What a source has handed over, and what it was told to do."""

    source: str = ""
    generation: int = 0
    """How often the source was begun anew, also under a name that another source had."""
    position: Position | None = None
    sequence: int = -1
    durable: int = -1
    state: str = "not started"
    health: SlotHealth | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """By table without a key: what its topic may lack for ever, and what to do about it."""
    streaming: bool = True
    """Whether the server sends large transactions before they are committed."""
    notes: dict[str, str] = field(default_factory=dict)
    """By subject: what the state says besides, for as long as this process reads."""
    _besides: str = ""
    orders: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """Requests for snapshots, True or False to pause or go on with them, and names of tables to be taken up again."""

    @property
    def taken(self) -> int:
        """Up to where the log has everything."""
        return max(self.sequence, self.durable)

    def take_up_later(self, table: str) -> None:
        """Have the next session take a table up again, whatever has become of it."""
        position = dict(self.position or {})
        position["stopped"] = sorted({*position.get("stopped", ()), table})
        position["gaps"] = {name: why for name, why in position.get("gaps", {}).items() if name != table}
        self.position = position

    def stream(self, besides: str = "") -> None:
        """It reads the stream, and does something besides."""
        self._besides = besides
        self.state = ", and ".join(
            filter(None, [STREAMING, besides, *self.missing.values(), *self.notes.values()])
        )

    def note(self, subject: str, text: str | None) -> None:
        """Have the state say something besides, from now on, or no longer."""
        if self.notes.get(subject) == text:
            return
        if text is None:
            del self.notes[subject]
        else:
            self.notes[subject] = text
        if self.state.startswith(STREAMING):
            self.stream(self._besides)

    @property
    def began_before(self) -> bool:
        """Whether topics may have what this source has brought before its position."""
        return self.generation > 0 or self.sequence >= 0

    def miss(self, table: Captured, when: str) -> None:
        """Note rows of a table without a key, or of an outbox, that cannot be had again: they could not be told from those that the topics
        have."""
        if table.is_outbox:
            self.missing[str(table)] = (
                f"lacking events that were written to outbox {table} {when}: those that lie there are not copied, for the topics may have them "
                f"(INSERT those that are lacking again, ALTER SOURCE {self.source} RESTART {table} leaves it as it is)"
            )
            return
        self.missing[str(table)] = (
            f"lacking what was inserted into {table} {when}: it has no key, and rows of it cannot be told apart "
            f"(DROP TOPIC {table.topic} and ALTER SOURCE {self.source} RESTART copy all of it, "
            f"ALTER SOURCE {self.source} RESTART {table} leaves it as it is)"
        )


@dataclass
class SessionContext:
    """What a session works with."""

    source: str
    options: PostgresOptions
    history: TopicHistory
    tables: Tables
    standing: SessionState
    folder: Path
    connection: Connection
    publications: list[str] = field(default_factory=list)
    filters: dict[str, str] = field(default_factory=dict)
    """By table: the condition that the publication puts on its rows."""
    identities: dict[str, TableIdentity] = field(default_factory=dict)
    """By table: its identity as it was compared last, which the next position says."""

    def attached(self, table: str) -> dict[int, int]:
        """The partitions of a table, as they were when it was compared last, by oid: the transaction that attached each."""
        known = self.identities.get(table)
        return {} if known is None else {oid: part.attached for oid, part in known.parts.items()}
