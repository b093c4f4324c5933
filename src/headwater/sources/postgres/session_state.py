"""State shared by the parts of a session: the progress of the source, which outlives connections, and the objects of one
connection."""

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
    """Error after a change on the server that requires a new session. The source starts one automatically."""

    retryable = True


@dataclass
class SessionState:
    """Progress of a source, and the requests to it; shared by its consecutive sessions."""

    source: str = ""
    generation: int = 0
    """Number of times that the source was restarted from scratch, counting earlier sources of the same name."""
    position: Position | None = None
    sequence: int = -1
    durable: int = -1
    state: str = "not started"
    health: SlotHealth | None = None
    missing: dict[str, str] = field(default_factory=dict)
    """By table without a key, or outbox: the rows that its topics may lack permanently, and the remedy."""
    streaming: bool = True
    """Whether the server sends large transactions before they are committed."""
    notes: dict[str, str] = field(default_factory=dict)
    """By subject: a text that is added to `state` while this process reads."""
    _besides: str = ""
    orders: SimpleQueue[Any] = field(default_factory=SimpleQueue)
    """Requests for snapshots; True or False to pause or continue snapshots; and names of tables to be resumed."""

    @property
    def taken(self) -> int:
        """Sequence up to which the log has everything, by the last commit that was yielded or acknowledged."""
        return max(self.sequence, self.durable)

    def resume_later(self, table: str) -> None:
        """Mark a table as stopped, without a gap, in the position, so that the next session resumes it."""
        position = dict(self.position or {})
        position["stopped"] = sorted({*position.get("stopped", ()), table})
        position["gaps"] = {name: why for name, why in position.get("gaps", {}).items() if name != table}
        self.position = position

    def stream(self, besides: str = "") -> None:
        """Set `state` to streaming, with the activity `besides`, the missing rows and the notes."""
        self._besides = besides
        self.state = ", and ".join(
            filter(None, [STREAMING, besides, *self.missing.values(), *self.notes.values()])
        )

    def note(self, subject: str, text: str | None) -> None:
        """Add a text to `state` under a subject, or remove it if `text` is None."""
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
        """Whether topics may have rows that the source captured before its current position or restart."""
        return self.generation > 0 or self.sequence >= 0

    def miss(self, table: Captured, when: str) -> None:
        """Record that rows of a table without a key, or of an outbox, are missing. They cannot be copied again, because copied
        rows could not be distinguished from rows that the topics have already."""
        if table.is_outbox:
            self.missing[str(table)] = (
                f"missing events that were written to outbox {table} {when}: the rows of the outbox are not copied, because the topics may "
                f"have them already (INSERT the missing events again, or accept the gap with ALTER SOURCE {self.source} RESTART {table})"
            )
            return
        self.missing[str(table)] = (
            f"missing rows that were inserted into {table} {when}: it has no key by which rows could be compared "
            f"(DROP TOPIC {table.topic} and ALTER SOURCE {self.source} RESTART copy the whole table, "
            f"ALTER SOURCE {self.source} RESTART {table} accepts the gap)"
        )


@dataclass
class SessionContext:
    """Objects that the parts of one session share."""

    source: str
    options: PostgresOptions
    history: TopicHistory
    tables: Tables
    progress: SessionState
    folder: Path
    connection: Connection
    publications: list[str] = field(default_factory=list)
    filters: dict[str, str] = field(default_factory=dict)
    """Row filters of the publications, by table."""
    identities: dict[str, TableIdentity] = field(default_factory=dict)
    """Identities of the tables at their last comparison, which the next position stores, by table."""

    def attached(self, table: str) -> dict[int, int]:
        """Return the partitions that a table had at its last comparison: by oid, the transaction that attached each."""
        known = self.identities.get(table)
        return {} if known is None else {oid: part.attached for oid, part in known.parts.items()}
