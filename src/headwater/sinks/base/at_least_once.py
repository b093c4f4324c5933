"""Delivery to receivers that store no checkpoint and cannot be read: changes are sent in pieces, each with an idempotency
key.

The checkpoint is kept on our side (`CheckpointKeeper`), in the log, and so goes back in time if an older copy of the
workspace is restored; the last delivered tick is therefore recorded next to the workspace too (`last_delivered`). The
checkpoint is stored after the receiver has accepted everything: after a crash in between, or a lost answer, pieces are
delivered again. The key of a piece is `<sink>:<history>:<tick>:<piece>:<digest of its rows>`, where a tick that has an id is
`<tick>-<id>`. Equal keys are equal pieces, so a receiver that remembers the keys it has seen processes everything once. A
rejected row that is retried is a piece of its own, with the key `<sink>:letter:<letter>:<digest of the row>`, at whatever
tick and with whatever other rows it is retried.

Such a target is given one tick at a time (`one_tick_at_a_time`), so that a delivery which was interrupted is repeated
unchanged. If changes cannot be followed tick by tick (at first, after the checkpoint was lost, when the view was rebuilt)
the receiver is sent all rows, as a *snapshot*: a row that is not in it no longer exists.
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
from headwater.sinks.base.last_delivered import LastDelivered
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
    """Durable storage for the checkpoint of a target that cannot store it itself: one small text."""

    def read(self) -> str | None:
        """Return the stored text, or None."""
        ...

    def write(self, text: str) -> None:
        """Replace the text that was read last, in one step; CheckpointConflictError if the stored text has changed since."""
        ...

    def last_delivered(self) -> Token | None:
        """Return the tick that was delivered last, or was about to be, as recorded outside the log; None if unknown."""
        ...

    def hand(self, tick: Token) -> None:
        """Record that a tick is about to be delivered."""
        ...


class LogKeeper:
    """Keeps a checkpoint in the log, as the note of the producer `sink:<name>`. `of` identifies the receiver: a sink that is
    declared again for another receiver starts without a checkpoint."""

    def __init__(self, log: Log, sink: str, *, of: str, workspace: Path | None = None) -> None:
        """`workspace` is the folder next to which the last delivered tick is recorded; with None nothing is recorded."""
        self._log = log
        self._name = f"sink:{sink}"
        self._of = hashlib.blake2b(of.encode(), digest_size=8).hexdigest()
        self._file = None if workspace is None else LastDelivered(workspace, log.identity, sink, self._of)
        self._last_delivered: Token | None = None
        self._next = (0, 0)
        """Sequence and epoch with which the next note replaces the one read last."""

    def read(self) -> str | None:
        """See `CheckpointKeeper`."""
        self._log.settle()
        known = self._log.producer(self._name)
        self._next = (0, 0) if known is None else (known.sequence + 1, known.epoch)
        return self._checkpoint_in(known)

    def write(self, text: str) -> None:
        """See `CheckpointKeeper`."""
        sequence, epoch = self._next
        with contextlib.suppress(AlreadyWrittenError):
            self._note({"of": self._of, "stand": text}, sequence, epoch)
        # If another process has used the sequence first, the log has returned that receipt and written
        # nothing.
        if (found := self.read()) != text:
            raise CheckpointConflictError(
                "another process applied changes of the sink at the same time",
                found=None if found is None else SinkCheckpoint.parse(found),
            )

    def last_delivered(self) -> Token | None:
        """See `CheckpointKeeper`."""
        return None if self._file is None else self._file.tick()

    def hand(self, tick: Token) -> None:
        """See `CheckpointKeeper`."""
        if self._file is not None and tick != self._last_delivered:
            self._file.write(tick)
            self._last_delivered = tick

    def forget(self) -> None:
        """Clear the checkpoint of a dropped sink, so that a new sink of the same name starts without one."""
        self.read()
        self._note({}, *self._next)

    def _note(self, note: dict[str, str], sequence: int, epoch: int) -> None:
        self._log.append(Append({}, Producer(self._name, sequence, epoch, note, exact=False)))

    def _checkpoint_in(self, known: ProducerInfo | None) -> str | None:
        note = None if known is None else known.note
        return None if note is None or note.get("of") != self._of else str(note["stand"])


@dataclass(frozen=True, eq=False)
class ChangePiece:
    """A part of a change, with its number among `count` parts. In mode 'upsert' `deletes` (key columns) come before `rows`;
    in the other modes `rows` are records. `first` is the index of its first row in the upserts or records of the change.
    `begins` marks the first piece of a snapshot: earlier contents no longer exist. `letter` marks one row that was rejected
    before and is retried."""

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
        """Split a piece of more than one row in two, to find out which of its rows are rejected."""
        half = self.rows.num_rows // 2
        one = replace(self, rows=self.rows.slice(0, half))
        nothing, rest = self.deletes.slice(0, 0), self.rows.slice(half)
        return one, replace(self, deletes=nothing, rows=rest, first=self.first + half, begins=False)

    def key(self, sink: str, after: SinkCheckpoint) -> str:
        """Return the idempotency key, unique to this piece."""
        if self.letter is not None:
            return f"{sink}:letter:{self.letter}"
        digest = (tally(self.deletes).checksum * 31 + tally(self.rows).checksum) % (1 << 64)
        return f"{sink}:{after.history}:{after.token}:{self.number}:{digest:016x}"


Give = Callable[[ChangePiece, str], list[RefusedRow]]
"""Callable that delivers a piece under a key and returns the rejected rows, by their indices in the change. May raise
TargetDownError."""


class Deliveries:
    """The logic shared by targets that store no checkpoint. A piece has at most `piece_rows` rows, except that with
    `whole_snapshots` a snapshot is one piece."""

    def __init__(self, keeper: CheckpointKeeper, piece_rows: int, *, whole_snapshots: bool = False) -> None:
        self._keeper = keeper
        self._piece_rows = piece_rows
        self._whole_snapshots = whole_snapshots
        self._taken: set[str] = set()
        self._compared = False
        self.shape: TargetShape | None = None

    def prepare(self, shape: TargetShape) -> None:
        """Set the shape; SinkError if the mode is 'upsert' and there is no key."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(
                f"sink {shape.sink!r} needs a key, or mode = 'changelog'", sink=shape.sink, reason="no-key"
            )
        self.shape = shape

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint as the keeper stored it."""
        self._compared = False
        text = self._keeper.read()
        return None if text is None else SinkCheckpoint.parse(text)

    def last_delivered(self) -> Token | None:
        """Return the tick that was delivered last, as far as it is recorded apart from the checkpoint."""
        return self._keeper.last_delivered()

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Return nothing, since the receiver cannot be read. The change computed from this has all rows of the view, and is
        delivered as a snapshot."""
        self._compared = True
        return iter(())

    def apply(
        self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint, give: Give
    ) -> None:
        """Deliver a change piece by piece, then store the checkpoint. Pieces that were accepted in an interrupted attempt of
        this process are not delivered again, except those of snapshots."""
        shape, snapshot = self.shape, self._compared
        assert shape is not None
        found = self.checkpoint()
        if found != before:
            raise CheckpointConflictError(
                f"the checkpoint of sink {shape.sink!r} was changed by another process",
                found=found,
                sink=shape.sink,
            )
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
            self._compared = snapshot  # the change that replaces this one is a snapshot too
            raise RowsRefusedError(f"the target rejected {len(refused)} rows", refused=refused)
        self._keeper.write(after.text())
        self._taken.clear()

    def _pieces(self, change: TargetChange, shape: TargetShape, snapshot: bool) -> list[ChangePiece]:
        """Return a change in pieces: at least one for a snapshot, none for an empty change."""
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
    """Return the digest of retried rows without `_tick`, which is the tick of the attempt."""
    names = [name for name in rows.schema.names if name != TICK.name]
    return f"{tally(rows.select(names)).checksum:016x}"


def one_tick_at_a_time(feed: SinkFeed) -> SinkFeed:
    """Return a feed whose `changes` covers one tick, not several ticks to be applied as one change."""
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
