"""What a log promises, whichever backend keeps it. The contract suite in `headwater.testing.contract` holds it.

A log is a set of topics; a topic has a fixed number of partitions; a partition is a sequence of records at rising
offsets. Every change is one *commit*: an append to any number of partitions (with cursors moved in it, if asked), a
punctuation, a topic created or altered, an entry of the catalog put or dropped. Commits are atomic, in one order, and
numbered: a later one has a higher number. Readers see whole commits only.

Names of topics ignore case. A method that takes one finds the topic that is spelled just so, or else the only one that
differs by case alone; what it returns has the name as it was declared.

Not promised: an order between records of different partitions other than "of an earlier commit"; that offsets have no
gaps (compaction, excision and punctuation leave some).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.core.faults import Faults, described
from headwater.core.positions import Receipt
from headwater.core.trusted_clock import TrustedClock
from headwater.privacy.subject_keys import SubjectKeys

TimeAxis = Literal["appended", "event"]
"""Which time a seek goes by: append time, or the running maximum of event time."""


@dataclass(frozen=True)
class Producer:
    """Who appends, for idempotence: a sequence that rises, an epoch that fences older ones."""

    name: str
    sequence: int
    epoch: int = 0
    note: Mapping[str, Any] | None = field(default=None, compare=False)
    """Plain JSON that the log keeps with the sequence, in the same commit: where the producer stands by its own reckoning."""
    exact: bool = field(default=True, compare=False)
    """Whether a repeat of the sequence must have the same rows, in any order: SequenceReusedError otherwise. False where whoever
    appends may come to other rows when it does its work again, and is answered with the first receipt all the same."""


@dataclass(frozen=True)
class ProducerInfo:
    """What the log knows of a producer that has appended."""

    sequence: int
    """The last that was written."""
    epoch: int
    note: Mapping[str, Any] | None
    """The last that was given; it may be of an earlier sequence."""


@dataclass(frozen=True)
class CursorMove:
    """A cursor's new positions. `member` must still own the partitions it moves, else FencedError."""

    topic: str
    cursor: str
    positions: Mapping[int, int]
    member: str | None = None
    lost: int = 0
    """Rows that were skipped because retention had removed them, to be added to the cursor's count."""


@dataclass(frozen=True)
class Append:
    """One atomic append. `batches` are conformed (`headwater.catalog.conform.conform`); `expect` is per topic."""

    batches: Mapping[str, Sequence[pa.RecordBatch]]
    producer: Producer | None = None
    expect: Mapping[str, int | Mapping[Any, int]] = field(default_factory=dict)
    moves: tuple[CursorMove, ...] = ()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """topic -> `TopicDefinition.incarnation` that its rows were conformed to; TopicNotFoundError if it is another now."""
    relaxed: bool = False
    """It is visible when the call returns, and as durable as its topics ask only with the next commit that is."""


@dataclass(frozen=True)
class PartitionInfo:
    """The bounds of a partition that readers see now."""

    first: int
    """The first offset that retention has not removed."""
    end: int
    rows: int
    """Records that are kept, which is fewer than end - first where compaction or punctuation left gaps."""
    size_bytes: int
    segments: int
    watermark: Microseconds | None
    """At `end`: the highest event time so far less the lateness, or the highest punctuation."""
    last_appended_at: Microseconds | None
    oldest_appended_at: Microseconds | None
    ahead: int = 0
    """Rows so far ahead of their append time (`max_ahead`) that they did not raise the watermark."""
    heard_at: Microseconds = 0
    """When it was last heard of: the time of its last record or declared punctuation, at first that of the topic's
    creation. What silence alone wrote does not count."""
    compacted_to: int = 0
    """Below this offset compaction may have removed records that later ones replaced: what the topic held at a position
    before it can no longer be told."""
    oldest_bytes: int = 0
    """The size of the first segment, which retention removes next."""


@dataclass(frozen=True)
class Promise:
    """What is known of a producer of a topic `WITH (watermark = 'producers')`."""

    moment: Microseconds | None
    """It sends nothing older from now on; None if it has appended and promised nothing yet, which holds the watermark."""
    heard_at: Microseconds
    """The time of its last promise or append."""


@dataclass(frozen=True)
class CursorInfo:
    """A named consumer position as it is stored."""

    topic: str
    name: str
    positions: Mapping[int, int]
    hold: bool
    lost: int
    committed_at: Microseconds | None
    history: tuple[tuple[Microseconds, int], ...] = ()
    """The latest commits as (time, sum of positions): what a forecast goes by."""


@dataclass(frozen=True)
class GroupInfo:
    """Who of a group reads what."""

    topic: str
    name: str
    generation: int
    members: tuple[str, ...]
    owners: Mapping[int, str]
    """partition -> the member that may read and commit it now."""
    wanted: Mapping[int, str]
    """partition -> the member that is to have it; where it differs from the owner, the owner is to release it."""


@dataclass(frozen=True)
class Entry:
    """A named document of the catalog: what a view, a source or a sink is declared to be."""

    kind: str
    name: str
    document: dict[str, Any]
    """Plain JSON. It belongs to the log: not to be changed in place."""
    sequence: int
    """The number of the commit that put it."""
    created_at: Microseconds
    """The time of that commit."""


@dataclass(frozen=True)
class Finding:
    """Something that verification found wrong, in words and with its place."""

    file: str
    byte: int | None
    topic: str | None
    partition: int | None
    message: str


@dataclass(frozen=True)
class HeldRecords:
    """Records of a topic that retention would remove by now, and the view that they are kept for."""

    topic: str
    view: str
    status: str
    """'stopped' or 'backfilling'; 'private' where the view itself is fine, and needs every record all the same."""
    reason: str | None
    """Why it is so, where that is known."""
    hint: str
    """What to do about it."""


@dataclass(frozen=True)
class FailedWork:
    """A piece of maintenance that failed, such as the sealing of one partition, and why."""

    work: str
    reason: str
    hint: str | None = None

    @classmethod
    def of(cls, work: str, error: Exception, hint: str | None = None) -> FailedWork:
        """The failure as an error tells it. `hint` wins over the error's own."""
        reason, hint = described(error, hint)
        return cls(work, reason, hint)


@dataclass(frozen=True)
class MaintenanceReport:
    """What a maintenance step did, and what it could not do yet."""

    sealed: int = 0
    segments_removed: int = 0
    rows_removed: int = 0
    rows_compacted: int = 0
    bytes_freed: int = 0
    seconds: float = 0.0
    waiting: tuple[HeldRecords, ...] = ()
    """Of a workspace: what stays for the sake of views that have stopped, or have yet to read it."""
    failed: tuple[FailedWork, ...] = ()
    """Pieces of work that failed. The others were done; each of these is also a fault of the workspace until it succeeds."""


class Log(Protocol):
    """A durable, typed, partitioned log."""

    faults: Faults
    """The errors of background work on this workspace."""
    clock: TrustedClock
    """The time of the workspace, for whatever is done by it."""

    @property
    def keys(self) -> SubjectKeys:
        """The keys to private columns: where one is destroyed readers see NULL, and `_forgotten`."""
        ...

    @property
    def identity(self) -> str:
        """Tells this workspace from every other, also from one that takes its place later."""
        ...

    def topics(self) -> Mapping[str, TopicDefinition]:
        """Every topic, by name (found in any case), as of the last commit that is visible."""
        ...

    def topic(self, name: str) -> TopicDefinition:
        """One topic as of the last commit that is visible; TopicNotFoundError."""
        ...

    def create_topic(self, definition: TopicDefinition) -> None:
        """TopicExistsError if there is one of that name, in any case, or a view."""
        ...

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """Replace a definition; ConflictError if it is no longer `old`."""
        ...

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """Put a new topic in the place of `old`, of the same name, in one commit; ConflictError if that is no longer
        what is there, or it has records or cursors.
        """
        ...

    def drop_topic(self, name: str) -> None:
        """Remove a topic with its records, cursors and groups."""
        ...

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """The entries of the catalog of one kind, by name (found in any case), as of the last commit that is visible."""
        ...

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """Store a document, plain JSON, under a name, in one commit; durable as the workspace asks when it returns.

        `expect` is the sequence of the entry that it replaces (which may be spelled in another case), None if there is
        to be none; ConflictError otherwise. Views share their names with topics: TopicExistsError if one has it.
        """
        ...

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """Remove an entry, in one commit; ConflictError if there is none, or not the one whose sequence is expected."""
        ...

    def sequence(self) -> int:
        """The number of the last commit that is visible; 0 before the first."""
        ...

    def commit_id(self, sequence: int) -> str | None:
        """The random id of a commit: another commit of the same number, in a copy of the workspace that has gone on by itself, has
        another one. '' if no commit of this number is visible; None if its id is not known: there were none when it was
        written, or it is no longer kept."""
        ...

    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool:
        """Block until a commit after `sequence`, of whatever kind, is visible; False at the timeout. Does not poll."""
        ...

    def append(self, append: Append) -> Receipt:
        """Commit and return once it is as durable as its topics ask. Raises, in this order of checks:
        FencedError (older epoch), AlreadyWrittenError, ConflictError; a known sequence returns its first receipt, unless it
        comes with other rows (SequenceReusedError, which is a ConflictError).
        """
        ...

    def producer(self, name: str) -> ProducerInfo | None:
        """A producer that has appended, as of the last commit that is visible, or None."""
        ...

    def settle(self) -> None:
        """Make visible whatever was written by now. A process that died may have left a commit that it had not published yet;
        the next one to be written would bring it to light. Who goes on from where another has stopped asks for it first."""
        ...

    def punctuate(
        self,
        topic: str,
        moments: Mapping[int, Microseconds],
        *,
        silent_at: Mapping[int, int] | None = None,
    ) -> None:
        """Raise the watermark of each partition given; takes one offset in each, which readers skip.

        `silent_at` says that these partitions were found silent, with the ends that they had then: one that has grown
        since, or whose watermark is as high already, is left alone, and the others are as silent as before.
        """
        ...

    def promise(self, topic: str, producer: str, moment: Microseconds) -> None:
        """The producer sends nothing older from now on: one commit, which makes it known if it is new, and in which
        every partition gets the minimum over the known producers' promises, if that is higher than its watermark.
        A promise below an earlier one of the same producer is only a sign of life. UsageError unless the topic is
        `WITH (watermark = 'producers')`.
        """
        ...

    def retire(self, topic: str, producer: str, *, silent_since: Microseconds | None = None) -> bool:
        """The producer is no longer one: it is left out of the minimum, which may rise, in the same commit. With
        `silent_since` only if nothing was heard of it after that. False if it is not known, or was heard of.
        """
        ...

    def promises(self, topic: str) -> Mapping[str, Promise]:
        """The known producers of a topic `WITH (watermark = 'producers')`, by name; none on another topic."""
        ...

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """The bounds of every partition, all from one commit."""
        ...

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """End offsets of several topics, by the names given, all from one commit: a cut that splits no append."""
        ...

    def cut(self, topics: Sequence[str]) -> tuple[int, Mapping[str, Mapping[int, int]]]:
        """The number of the last visible commit, and `ends` at just that commit."""
        ...

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Records with start <= offset < end, in order, in batches: the topic's columns as they are declared now,
        then `_offset`, `_appended_at`, `_watermark`, `_sequence`, on keyed topics `_op` (text) and on versioned ones
        `_version`; or just `columns`, in that order. GapError if `start` was removed; CorruptionError, with
        `next_offset` to go on from, at damaged bytes.
        """
        ...

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """appended: the offset of the first record whose append time is >= moment; `end` if there is none.
        event: the offset of the first record whose event time is >= moment; `end` if there is none. UsageError on
        topics without event time.
        """
        ...

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """The partition's watermark at an offset: a function of the records before it."""
        ...

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """The append time of the first record at or after an offset; None past the end."""
        ...

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """Block until a partition has grown beyond `ends`; False at the timeout. Does not poll."""
        ...

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """A cursor as stored, or None."""
        ...

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """All cursors, of one topic or of all."""
        ...

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """Store a cursor; one that is there keeps its positions and takes the new `hold`."""
        ...

    def drop_cursor(self, topic: str, name: str) -> None:
        """Forget a cursor and, with it, a group of that name."""
        ...

    def move_cursor(self, move: CursorMove) -> None:
        """Store new positions durably; FencedError if `move.member` no longer owns a partition it moves."""
        ...

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """A group's state, or None."""
        ...

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """Join, or say that this member is alive; members silent for longer than their timeout lose their
        partitions, and partitions are shared out again. Cheap when nothing changed.
        """
        ...

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """Give up partitions that are wanted by another member."""
        ...

    def leave(self, topic: str, group: str, member: str) -> None:
        """Leave a group and give up its partitions at once."""
        ...

    def sync(self) -> None:
        """Return once every visible commit is durable, also those that no topic asks to sync (`durability = 'os'`). Whatever is
        stored durably outside the log, and is worthless without the commits that it was made from, is stored after this call.
        Costs a look at one small file where nothing is left to sync."""
        ...

    def stage(self, producer: Producer | None = None) -> Stage:
        """Begin an atomic append that may be larger than memory. `producer` is the one that `commit` will name, where that is
        known: its rows are then added up on the way, so that a repeat with other rows is refused. Without it a repeat is answered,
        whatever its rows are."""
        ...

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """Seal, apply retention and compact. `force` includes what is active and below the usual thresholds."""
        ...

    def excise(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> int:
        """Remove the records at these offsets, by partition, for good; how many were there. Their offsets stay gaps, and
        watermarks and the bounds of partitions are as they were. Crashed anywhere, each record is there or is not, and
        the same again completes it. UsageError on an event-sourced topic.
        """
        ...

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """Read everything and check it: yields findings, and between them the number of bytes checked so far."""
        ...

    def close(self) -> None:
        """Release every handle. Committed appends need no close to be there."""
        ...


class Stage(Protocol):
    """An atomic append in the making: invisible until committed, gone if aborted or if the process dies."""

    def add(self, topic: str, batch: pa.RecordBatch, incarnation: int | None = None) -> None:
        """Take in conformed rows; large ones go to disk. `incarnation` as for `Append`."""
        ...

    def commit(
        self,
        *,
        producer: Producer | None = None,
        expect: Mapping[str, int | Mapping[Any, int]] | None = None,
        moves: tuple[CursorMove, ...] = (),
    ) -> Receipt:
        """Make all of it visible at once, with the checks of `Log.append`."""
        ...

    def abort(self) -> None:
        """Forget it."""
        ...
