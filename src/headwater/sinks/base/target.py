"""The target interface: what every kind of sink implements, and what it may rely on.

Rows of a view are written to a target in one form, the *stored form*: `stored_form` converts rows of the view to
it, `apply` writes it, `contents` returns it. Comparisons and checksums are over stored rows alone, so that a target which
keeps less than the view has (text for numbers, one score of a row) is compared by what it does keep, and a value that
another program wrote there need not be readable as the view's type.

A target has a *checkpoint*: the tick of its contents. It is stored in the target itself and advances in
one step with the contents: after a crash both or neither are there. A target that cannot do that says so in its docstring.

The loop that calls a target is in `applier`; a target is called by one thread at a time.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import orjson
import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import CheckpointConflictError as CheckpointConflictError
from headwater.core.errors import RowsRefusedError as RowsRefusedError
from headwater.core.errors import SinkError as SinkError
from headwater.core.errors import TargetDownError as TargetDownError
from headwater.core.positions import Token
from headwater.operators.zset.delta import empty_rows

Mode = Literal["upsert", "append", "changelog"]
"""How a target takes changes. 'upsert': rows are replaced and deleted by key. 'append': rows are only added, from a view
that only grows. 'changelog': every change is added as a record with `_weight` and `_tick`."""

WEIGHT = pa.field("_weight", pa.int64(), nullable=False)
TICK = pa.field("_tick", pa.int64(), nullable=False)


@dataclass(frozen=True)
class TargetShape:
    """What a sink writes: the name of the sink, the name and the columns of the view, and the columns by which rows are
    upserted; () unless the mode is 'upsert'."""

    sink: str
    view: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    mode: Mode = "upsert"


@dataclass(frozen=True)
class SinkCheckpoint:
    """The position of a target in the ticks of its view.

    `history` identifies the history of the view that the tick belongs to: changes of two histories cannot be combined.
    `checksum` and `rows` describe the contents of the target, in the stored form (`checksums`). `rejected` are the rows of
    the view that the target rejected and that were diverted: opaque to the target. Unless `whole`, a change that could not
    be written in one step was not completed: the contents belong to no tick, and are compared with the view before anything
    else is written. `id` is the id of the tick: the same number with another id is a tick of another history. It is '' for a
    tick without an id, and in a checkpoint stored by an earlier version.
    """

    tick: int
    history: str
    checksum: int
    rows: int = 0
    rejected: bytes = b""
    whole: bool = True
    id: str = ""

    @property
    def token(self) -> Token:
        """The number and the id of the tick."""
        return Token(self.tick, self.id)

    def text(self) -> str:
        """Return the checkpoint as JSON text, for targets that store it as one value."""
        plain: dict[str, Any] = {
            "tick": self.tick,
            "history": self.history,
            "checksum": f"{self.checksum:016x}",
            "rows": self.rows,
        }
        if self.rejected:
            plain["withheld"] = base64.b64encode(self.rejected).decode("ascii")
        if not self.whole:
            plain["whole"] = False
        if self.id:
            plain["id"] = self.id
        return orjson.dumps(plain).decode("ascii")

    @staticmethod
    def parse(text: str | bytes) -> SinkCheckpoint | None:
        """Return the checkpoint from a text written by `text`; None for a text of another program."""
        try:
            plain = orjson.loads(text)
            return SinkCheckpoint(
                tick=int(plain["tick"]),
                history=str(plain["history"]),
                checksum=int(plain["checksum"], 16),
                rows=int(plain["rows"]),
                rejected=base64.b64decode(plain.get("withheld", "")),
                whole=bool(plain.get("whole", True)),
                id=str(plain.get("id", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def under_way(self) -> SinkCheckpoint:
        """Return the checkpoint that a target which writes in several steps stores before the first step."""
        return replace(self, whole=False)


@dataclass(frozen=True, eq=False)
class TargetChange:
    """A change to apply to a target, in the stored form.

    In mode 'upsert': first `deletes`, the key columns (`Target.key`) of deleted rows, then `upserts`, whole rows. No key is
    twice in either, and none is in both. A key in `deletes` need not exist, one in `upserts` may. In the other modes
    `records` are added: stored rows, in mode 'changelog' followed by `_weight` and `_tick`, where ticks ascend. Unused
    fields have no rows.

    If rejected rows are retried, `letters` has the dead-letter serial of each of `upserts` (or `records`); the serial is the
    same however often a row is retried.
    """

    deletes: pa.RecordBatch
    upserts: pa.RecordBatch
    records: pa.RecordBatch
    letters: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.deletes.num_rows + self.upserts.num_rows + self.records.num_rows)

    @staticmethod
    def of_keys(deletes: pa.RecordBatch, upserts: pa.RecordBatch) -> TargetChange:
        """Return a change for mode 'upsert'."""
        return TargetChange(deletes, upserts, empty_rows(upserts.schema))

    @staticmethod
    def of_records(records: pa.RecordBatch) -> TargetChange:
        """Return a change for the modes 'append' and 'changelog'."""
        return TargetChange(empty_rows(records.schema), empty_rows(records.schema), records)


@dataclass(frozen=True)
class RefusedRow:
    """A row that the target rejects: its index in `upserts` (or `records`), and the reason in the target's words."""

    index: int
    reason: str


@dataclass(frozen=True)
class Since:
    """A deletion: the first tick of which a view has nothing of the deleted data, the time of the request, and the time at
    which the target was reconciled."""

    tick: int
    deleted_at: Microseconds
    level_at: Microseconds


@dataclass(frozen=True)
class TargetPast:
    """The replaced data that a target itself retains. `gone_at` is the time since which no such data is left, None while
    some is. `detail` names the data, and the statement that removes it."""

    gone_at: Microseconds | None
    detail: str


class Target(Protocol):
    """The place in an external system that one sink writes.

    Any method except `stored_form` and `key` may raise TargetDownError (the target is unavailable; the loop retries, and reads the
    checkpoint first) and SinkError (an operator has to act; the sink stops and reports the error). After TargetDownError the
    next call reconnects. Nothing connects before `prepare`, which may be called again.

    Optional abilities are protocols of their own, which callers test with `isinstance`: `Placed`, `Freezing`, `Delivering`
    and `PastKeeping` below, `Versioned` in `blue_green`, `Guarded` in `circuit_breaker`.
    """

    guarantee: ClassVar[str]
    """Delivery guarantee of the kind, a sentence for EXPLAIN: 'exactly once: ...' or 'at least once: ...'."""

    @property
    def key(self) -> tuple[str, ...]:
        """Columns of stored rows that identify a row; () unless the mode is 'upsert'. Available after `prepare`."""
        ...

    def prepare(self, shape: TargetShape) -> None:
        """Create missing objects (a table, an index, ...) and check existing ones; idempotent. SinkError names the problem
        and the statement that fixes it. The shape is first given in this call."""
        ...

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the view in the stored form, in which `contents` returns them: as many, in the same order, each
        made from its row alone. Equal keys must become equal keys, and different keys different ones. In the modes 'append'
        and 'changelog' they are the rows of the view themselves. Accesses no external system."""
        ...

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint; None if there is none, because nothing was applied yet or the checkpoint was removed."""
        ...

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Apply the change and store `after`, in one step. CheckpointConflictError if the stored checkpoint is not `before`:
        another process applied a change, or a backup was restored. RowsRefusedError if the target rejects some rows; then
        nothing was applied. An empty change only advances the checkpoint. After TargetDownError the change was applied
        either completely or not at all."""
        ...

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the contents as stored rows, in any order and any number of batches; in mode 'changelog' with `_weight`."""
        ...

    def close(self) -> None:
        """Close connections. Idempotent; no method is called afterwards."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A target whose checkpoint is stored apart from its contents, in a row of another table or under another key."""

    @property
    def place(self) -> str:
        """A text that identifies the location and the form of the rows: a sink that is created again with another location
        does not resume from the checkpoint of the former sink."""
        ...


@runtime_checkable
class Freezing(Protocol):
    """A target that can be read as of one point in time while others write."""

    def frozen(self) -> AbstractContextManager[None]:
        """Return a context in which checkpoint and contents are of one point in time."""
        ...


@runtime_checkable
class Delivering(Protocol):
    """A target that can neither store its checkpoint nor be read."""

    def last_delivered(self) -> Token | None:
        """Return the tick that was delivered last, as far as it is recorded apart from the checkpoint. If it is a tick of
        another history, the target is sent all rows."""
        ...


@runtime_checkable
class PastKeeping(Protocol):
    """A target that retains data it has replaced, and can report on it."""

    def past(self, since: Since) -> TargetPast:
        """Return what the target retains from before a deletion."""
        ...
