"""Changes handed to somebody who keeps no position for us, and whose contents nobody can read: in pieces, each with a key
that says whether it is the same again.

The stand is kept on our side (`CheckpointKeeper`), in the log, and goes back with it where an older copy of the workspace is put back:
what was handed over last is remembered beside the workspace too (`remembered`). It is stored after everything was taken: a crash in between, or an answer that was
lost, means that pieces are handed over again. The key of a piece is `<sink>:<history>:<tick>:<piece>:<digest of its rows>`, where a tick that has an id is `<tick>-<id>`:
equal keys are equal pieces, and whoever remembers the keys that he has seen does everything once. A row that was refused and is
tried again is a piece of its own, `<sink>:letter:<letter>:<digest of the row>`, at whichever tick and beside whichever others
that is done.

Such a target takes one tick at a time (`one_tick_at_a_time`), so that what was handed over by an attempt that broke off is
handed over again as it was. Where ticks cannot be followed (at first, after the position was lost, when the view was
built anew) it is given all rows, as a *snapshot*: what is not in it is gone.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import pyarrow as pa

from headwater.core.errors import AlreadyWrittenError
from headwater.core.positions import Token
from headwater.log.protocol import Append, Log, Producer, ProducerInfo
from headwater.sinks.base.checksums import tally
from headwater.sinks.base.last_delivered import Remembered
from headwater.sinks.base.target import (
    TICK,
    CheckpointConflictError,
    RefusedRow,
    RowsRefusedError,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetShape,
)
from headwater.sinks.base.view_feed import SinkFeed, TickChanges


class CheckpointKeeper(Protocol):
    """Where the stand of a target is kept that cannot keep it itself: one small text, stored durably."""

    def read(self) -> str | None:
        """The text; None if there is none."""
        ...

    def write(self, text: str) -> None:
        """Put a text in the place of the one that was read last, in one step; CheckpointConflictError if it is not there any more."""
        ...

    def handed(self) -> Token | None:
        """The tick that was handed over last, or was about to be, as it is remembered elsewhere; None if that is not known."""
        ...

    def hand(self, tick: Token) -> None:
        """A tick is about to be handed over."""
        ...


class LogKeeper:
    """Keeps a stand in the log, as the note of the producer `sink:<name>`; `of` says of whom, so that a sink that was declared
    anew for somebody else begins anew."""

    def __init__(self, log: Log, sink: str, *, of: str, workspace: Path | None = None) -> None:
        """`workspace` is the folder beside which is remembered what was handed over last."""
        self._log = log
        self._name = f"sink:{sink}"
        self._of = hashlib.blake2b(of.encode(), digest_size=8).hexdigest()
        self._beside = None if workspace is None else Remembered(workspace, log.identity, sink, self._of)
        self._handed: Token | None = None
        self._next = (0, 0)
        """The sequence and the epoch of what is written in the place of what was read."""

    def read(self) -> str | None:
        """See `CheckpointKeeper`."""
        self._log.settle()
        known = self._log.producer(self._name)
        self._next = (0, 0) if known is None else (known.sequence + 1, known.epoch)
        return self._stand_in(known)

    def write(self, text: str) -> None:
        """See `CheckpointKeeper`."""
        sequence, epoch = self._next
        with contextlib.suppress(AlreadyWrittenError):
            self._note({"of": self._of, "stand": text}, sequence, epoch)
        # If another process has used the sequence first, the log has answered with its receipt, and written nothing.
        if (found := self.read()) != text:
            raise CheckpointConflictError(
                "another process has applied changes of the sink at the same time",
                found=None if found is None else SinkCheckpoint.parse(found),
            )

    def handed(self) -> Token | None:
        """See `CheckpointKeeper`."""
        return None if self._beside is None else self._beside.tick()

    def hand(self, tick: Token) -> None:
        """See `CheckpointKeeper`."""
        if self._beside is not None and tick != self._handed:
            self._beside.write(tick)
            self._handed = tick

    def forget(self) -> None:
        """The sink is dropped: one of its name begins anew."""
        self.read()
        self._note({}, *self._next)

    def _note(self, note: dict[str, str], sequence: int, epoch: int) -> None:
        self._log.append(Append({}, Producer(self._name, sequence, epoch, note, exact=False)))

    def _stand_in(self, known: ProducerInfo | None) -> str | None:
        note = None if known is None else known.note
        return None if note is None or note.get("of") != self._of else str(note["stand"])


@dataclass(frozen=True, eq=False)
class ChangePiece:
    """A part of a change, with its number among `count`. In mode 'upsert' `deletes` (key columns) come before `rows`; else
    `rows` are records. `first` is the place of its first row in the change's upserts or records. With `begins` it is the first
    of a snapshot: what was there before is gone. With `letter` it is one row that was refused before."""

    number: int
    count: int
    deletes: pa.RecordBatch
    rows: pa.RecordBatch
    first: int
    snapshot: bool
    begins: bool
    letter: str | None = None

    def __len__(self) -> int:
        return int(self.deletes.num_rows + self.rows.num_rows)

    def parts(self) -> tuple[ChangePiece, ChangePiece]:
        """Two pieces that are this one, to find out which rows of it are refused. It has more than one row."""
        half = self.rows.num_rows // 2
        one = replace(self, rows=self.rows.slice(0, half))
        nothing, rest = self.deletes.slice(0, 0), self.rows.slice(half)
        return one, replace(self, deletes=nothing, rows=rest, first=self.first + half, begins=False)

    def key(self, sink: str, after: SinkCheckpoint) -> str:
        """What tells it from every other piece."""
        if self.letter is not None:
            return f"{sink}:letter:{self.letter}"
        digest = (tally(self.deletes).checksum * 31 + tally(self.rows).checksum) % (1 << 64)
        return f"{sink}:{after.history}:{after.token}:{self.number}:{digest:016x}"


Give = Callable[[ChangePiece, str], list[RefusedRow]]
"""Hands over a piece under a key; gives the rows that were refused, by their places in the change. May raise TargetDownError."""


class Deliveries:
    """What targets without a position of their own have in common. `piece_rows` are the rows of a piece, those of a snapshot
    excepted where that is to be one piece (`whole_snapshots`)."""

    def __init__(self, keeper: CheckpointKeeper, piece_rows: int, *, whole_snapshots: bool = False) -> None:
        self._keeper = keeper
        self._piece_rows = piece_rows
        self._whole_snapshots = whole_snapshots
        self._taken: set[str] = set()
        self._compared = False
        self.shape: TargetShape | None = None

    def prepare(self, shape: TargetShape) -> None:
        """Take the shape."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(f"sink {shape.sink!r} needs a key, or mode = 'changelog'", sink=shape.sink)
        self.shape = shape

    def stand(self) -> SinkCheckpoint | None:
        """As it was kept."""
        self._compared = False
        text = self._keeper.read()
        return None if text is None else SinkCheckpoint.parse(text)

    def handed(self) -> Token | None:
        """The tick that was handed over last, as far as that is remembered apart from the stand."""
        return self._keeper.handed()

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Nobody can say: nothing. The change that makes the view of nothing is all there is: a snapshot."""
        self._compared = True
        return iter(())

    def apply(
        self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint, give: Give
    ) -> None:
        """Hand over a change piece by piece, and keep the stand. Pieces that were taken by an attempt of this process that
        broke off are not handed over again."""
        shape, snapshot = self.shape, self._compared
        assert shape is not None
        found = self.stand()
        if found != before:
            raise CheckpointConflictError(f"sink {shape.sink!r} is not where it was left", found=found)
        if snapshot or len(change):
            self._keeper.hand(after.token)
        refused: list[RefusedRow] = []
        for piece in self._pieces(change, shape, snapshot):
            key = piece.key(shape.sink, after)
            if snapshot or key not in self._taken:
                said = give(piece, key)
                refused += said
                if not said:
                    self._taken.add(key)
        if refused:
            self._compared = snapshot  # what comes instead is one too
            raise RowsRefusedError(f"{len(refused)} rows were refused", refused=refused)
        self._keeper.write(after.text())
        self._taken.clear()

    def _pieces(self, change: TargetChange, shape: TargetShape, snapshot: bool) -> list[ChangePiece]:
        """A change in pieces: a snapshot is at least one, other changes none if there is nothing in them."""
        rows = change.upserts if shape.mode == "upsert" else change.records
        deletes = change.deletes if shape.mode == "upsert" else rows.slice(0, 0)
        total = deletes.num_rows + rows.num_rows
        size = max(total, 1) if snapshot and self._whole_snapshots else self._piece_rows
        if change.letters:
            size = 1
        count = -(-total // size) or int(snapshot)
        pieces = []
        alike: Counter[str] = Counter()
        for number in range(count):
            start, end = number * size, min((number + 1) * size, total)
            split = min(max(deletes.num_rows, start), end)
            first = max(start - deletes.num_rows, 0)
            gone, come = deletes.slice(start, split - start), rows.slice(first, end - split)
            letter = None
            if change.letters and come.num_rows:
                same = f"{change.letters[first]}:{_digest(come)}"
                alike[same] += 1
                letter = same if alike[same] == 1 else f"{same}:{alike[same]}"
            begins = snapshot and number == 0
            pieces.append(ChangePiece(number, count, gone, come, first, snapshot, begins, letter))
        return pieces


def _digest(rows: pa.RecordBatch) -> str:
    """Of rows that are tried again: the tick of a record is that of the attempt."""
    names = [name for name in rows.schema.names if name != TICK.name]
    return f"{tally(rows.select(names)).checksum:016x}"


def one_tick_at_a_time(feed: SinkFeed) -> SinkFeed:
    """A feed that gives the changes of one tick, where another would give those of several to be taken as one."""
    one: Any = _OneTick(feed)
    return cast(SinkFeed, one)


class _OneTick:
    def __init__(self, feed: SinkFeed) -> None:
        self._feed = feed

    def changes(self, since: Token, history: str) -> TickChanges:
        advance = self._feed.changes(since, history)
        if not advance.ticks:
            return advance
        return TickChanges(advance.ticks[:1], advance.ticks[0][0], advance.ids[0], advance.ids[:1])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)
