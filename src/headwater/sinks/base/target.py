"""The contract of a follower's target: what every kind of sink implements, and what it may count on.

A view's rows are brought to a target in one form, the *held* form: `held` makes it of the view's rows, `apply` writes it,
`contents` gives it back. Comparing and checksums are over held rows alone, so that a target which keeps less than a view
has (text for numbers, one score of a row) is compared by what it does keep, and a value that somebody else wrote there need
not be readable as the view's type.

A target has a *stand*: which tick its contents are of. It is stored in the target itself, and moves in one step with the
contents: both or none of them are there after a crash. Where a target cannot do that, it says so in its docstring.
The loop that calls all this is in `applying`; a target is called by one thread at a time.
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
"""How a target takes changes. 'upsert': rows by key, replaced and deleted. 'append': rows that only come, from a view that
only grows. 'changelog': every change as a record with `_weight` and `_tick`."""

WEIGHT = pa.field("_weight", pa.int64(), nullable=False)
TICK = pa.field("_tick", pa.int64(), nullable=False)


@dataclass(frozen=True)
class TargetShape:
    """What is followed, and how: the sink's name, the view's name and columns, and the key that rows are upserted by, as
    names of columns; () unless the mode is 'upsert'."""

    sink: str
    view: str
    schema: pa.Schema
    key: tuple[str, ...] = ()
    mode: Mode = "upsert"


@dataclass(frozen=True)
class SinkCheckpoint:
    """Where a target stands.

    `history` says which history of the view the tick is of: ticks of two histories do not add up. `checksum` and `rows` are
    of what the target holds, in the held form (`checksums`). `withheld` are rows of the view that the target refused
    and that were diverted: opaque to the target. Unless `whole`, a change that could not be written in one step was
    under way: what is there is of no tick, and it is compared with the view before anything else is written. `id` is the
    tick's own: the same number with another id is a tick of another history. It is '' for a tick that has none, and in a stand
    that an earlier version has stored.
    """

    tick: int
    history: str
    checksum: int
    rows: int = 0
    withheld: bytes = b""
    whole: bool = True
    id: str = ""

    @property
    def token(self) -> Token:
        """What names the tick."""
        return Token(self.tick, self.id)

    def text(self) -> str:
        """The stand as text (JSON), for targets that keep it in one place."""
        plain: dict[str, Any] = {
            "tick": self.tick,
            "history": self.history,
            "checksum": f"{self.checksum:016x}",
            "rows": self.rows,
        }
        if self.withheld:
            plain["withheld"] = base64.b64encode(self.withheld).decode("ascii")
        if not self.whole:
            plain["whole"] = False
        if self.id:
            plain["id"] = self.id
        return orjson.dumps(plain).decode("ascii")

    @staticmethod
    def parse(text: str | bytes) -> SinkCheckpoint | None:
        """The stand that a text of `text` says; None if it says none, because somebody else wrote it."""
        try:
            plain = orjson.loads(text)
            return SinkCheckpoint(
                tick=int(plain["tick"]),
                history=str(plain["history"]),
                checksum=int(plain["checksum"], 16),
                rows=int(plain["rows"]),
                withheld=base64.b64decode(plain.get("withheld", "")),
                whole=bool(plain.get("whole", True)),
                id=str(plain.get("id", "")),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def under_way(self) -> SinkCheckpoint:
        """What a target that writes in several steps stores before the first one."""
        return replace(self, whole=False)


@dataclass(frozen=True, eq=False)
class TargetChange:
    """What is to be done to a target, in the held form.

    In mode 'upsert': first `deletes`, the key columns (`Target.key`) of rows that are gone, then `upserts`, whole rows; no
    key is twice in either, and none is in both. A key in `deletes` need not be there, one in `upserts` may be. In the other
    modes `records` are to be added: held rows, and in mode 'changelog' with `_weight` and `_tick` behind them, where
    ticks rise. What is not used has no rows.

    Where rows are tried again that were refused before, `letters` has the letter that told of each of `upserts` (or
    `records`); the same one however often they are tried.
    """

    deletes: pa.RecordBatch
    upserts: pa.RecordBatch
    records: pa.RecordBatch
    letters: tuple[int, ...] = ()

    def __len__(self) -> int:
        return int(self.deletes.num_rows + self.upserts.num_rows + self.records.num_rows)

    @staticmethod
    def of_keys(deletes: pa.RecordBatch, upserts: pa.RecordBatch) -> TargetChange:
        """A change for mode 'upsert'."""
        return TargetChange(deletes, upserts, empty_rows(upserts.schema))

    @staticmethod
    def of_records(records: pa.RecordBatch) -> TargetChange:
        """A change for the other modes."""
        return TargetChange(empty_rows(records.schema), empty_rows(records.schema), records)


@dataclass(frozen=True)
class RefusedRow:
    """A row that the target does not take: its place in `upserts` (or `records`), and why, in the target's words."""

    index: int
    reason: str


@dataclass(frozen=True)
class Since:
    """A deletion: the tick from which on a view has nothing of what was deleted, when that was asked for, and when the target was
    brought level."""

    tick: int
    deleted_at: Microseconds
    level_at: Microseconds


@dataclass(frozen=True)
class TargetPast:
    """What a target itself keeps of its past: since when nothing, None while something is left. `detail` says what, and the statement
    that removes it."""

    gone_at: Microseconds | None
    detail: str


class Target(Protocol):
    """One follower's place outside.

    Any method but `held` and `key` may raise TargetDownError (nobody is there now; the loop tries again, and asks for the
    stand first) and SinkError (a person has to do something; the sink stops and tells it). After TargetDownError the next
    call connects anew. Nothing connects before `prepare`, which may be called again.

    What a target may be able to do besides is in protocols of its own, which callers ask for with `isinstance`: `Placed`,
    `Freezing`, `Delivering` and `PastKeeping` below, `Versioned` in `blue_green`, `Guarded` in `circuit_breaker`.
    """

    guarantee: ClassVar[str]
    """What is promised of this kind, in a sentence for EXPLAIN: 'exactly once: ...' or 'at least once: ...'."""

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of held rows that identify one; () unless the mode is 'upsert'. Known once prepared."""
        ...

    def prepare(self, shape: TargetShape) -> None:
        """Make what is missing (a table, an index, ...) and check what is there; idempotent. SinkError names what is wrong
        and the statement that mends it. The first call that is given the shape."""
        ...

    def held(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows of the view in the form in which `contents` gives them: as many, in the same order, each made of its row
        alone. Equal keys must become equal keys, and different ones different ones. In the modes 'append' and 'changelog'
        they are the view's rows themselves. Touches nothing outside."""
        ...

    def stand(self) -> SinkCheckpoint | None:
        """Where it stands; None if that is not known: nothing was applied yet, or somebody removed it."""
        ...

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Do the change and store `after`, in one step. CheckpointConflictError if the stored stand is not `before`: somebody else
        applied, or put back a backup. RowsRefusedError if it does not take some rows: then nothing was done. The change
        may be empty: then only the stand moves. After TargetDownError it may have been done or not, wholly."""
        ...

    def contents(self) -> Iterator[pa.RecordBatch]:
        """What is there, as held rows, in any order and any number of batches; in mode 'changelog' with `_weight`."""
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent; nothing is called afterwards."""
        ...


@runtime_checkable
class Placed(Protocol):
    """A target whose position does not lie within its place: it is a row of another table, or another key."""

    @property
    def place(self) -> str:
        """A text that tells the place and the form of its rows from others: a sink that is made anew with another one does not
        go on from where the old one was."""
        ...


@runtime_checkable
class Freezing(Protocol):
    """A target that can be read as of one moment while others write."""

    def frozen(self) -> AbstractContextManager[None]:
        """While in it, the stand and the contents are of one moment."""
        ...


@runtime_checkable
class Delivering(Protocol):
    """A target that cannot keep its stand itself, and cannot be asked what it has."""

    def handed(self) -> Token | None:
        """The tick that it was given last, as far as that is known apart from the stand. Where it is a tick of another history,
        the target is given all rows."""
        ...


@runtime_checkable
class PastKeeping(Protocol):
    """A target that keeps something of what it has replaced, and can be asked about it."""

    def past(self, since: Since) -> TargetPast:
        """What it keeps of its past since a deletion."""
        ...
