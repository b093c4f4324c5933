"""The interface of a log backend, and its guarantees. The contract suite in `headwater.testing.contract` tests them.

A log is a set of topics; a topic has a fixed number of partitions; a partition is a sequence of records at rising offsets.
Every change is one *commit*: an append to any number of partitions (with cursors moved in it, if asked), a punctuation, a topic
created or altered, an entry of the catalog put or dropped. Commits are atomic and totally ordered, and their numbers rise in
that order. Readers see whole commits only.

Names of topics ignore case. A method that takes a name finds the topic with exactly that spelling, or else the only topic whose
name differs by case alone; results have the name as it was declared.

Not guaranteed: an order between records of different partitions, except that records of an earlier commit come first; that
offsets have no gaps (compaction, excision and punctuation leave some).
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
"""The time that a seek uses: append time, or the running maximum of event time."""


@dataclass(frozen=True)
class Producer:
    """An idempotent producer: its name, a rising sequence, and an epoch that fences instances of a lower epoch."""

    name: str
    sequence: int
    epoch: int = 0
    note: Mapping[str, Any] | None = field(default=None, compare=False)
    """Plain JSON that the log stores with the sequence, in the same commit: the producer's own record of its progress."""
    exact: bool = field(default=True, compare=False)
    """Whether a repeated sequence must have the same rows, in any order; otherwise SequenceReusedError. False if the producer
    may compute other rows when it repeats its work: it then gets the first receipt all the same."""


@dataclass(frozen=True)
class ProducerInfo:
    """State of a producer that has appended."""

    sequence: int
    """The last sequence that was written."""
    epoch: int
    note: Mapping[str, Any] | None
    """The last note that was given; it may belong to an earlier sequence than the last."""


@dataclass(frozen=True)
class CursorMove:
    """New positions of a cursor. FencedError unless `member`, if given, still owns the partitions moved."""

    topic: str
    cursor: str
    positions: Mapping[int, int]
    member: str | None = None
    lost: int = 0
    """Rows that were skipped because retention had removed them; they are added to the cursor's count."""


@dataclass(frozen=True)
class Append:
    """One atomic append. `batches` are conformed (`headwater.catalog.conform.conform`); `expect` is per topic."""

    batches: Mapping[str, Sequence[pa.RecordBatch]]
    producer: Producer | None = None
    expect: Mapping[str, int | Mapping[Any, int]] = field(default_factory=dict)
    moves: tuple[CursorMove, ...] = ()
    incarnations: Mapping[str, int] = field(default_factory=dict)
    """topic -> `TopicDefinition.incarnation` that its rows were conformed to; TopicNotFoundError if the topic has another
    now."""
    relaxed: bool = False
    """Whether the call may return before the append is durable. The rows are then visible on return, and become as durable as
    their topics require with the next commit that is not relaxed."""


@dataclass(frozen=True)
class PartitionInfo:
    """Bounds of a partition, as readers see them now."""

    first: int
    """The first offset that retention has not removed."""
    end: int
    rows: int
    """Number of records kept, which is less than end - first where compaction or punctuation left gaps."""
    size_bytes: int
    segments: int
    watermark: Microseconds | None
    """Watermark at `end`: the highest event time so far less the lateness, or the highest punctuation."""
    last_appended_at: Microseconds | None
    oldest_appended_at: Microseconds | None
    ahead: int = 0
    """Rows so far ahead of their append time (`max_ahead`) that they did not raise the watermark."""
    heard_at: Microseconds = 0
    """Time of the last activity: of the last record or declared punctuation, initially of the topic's creation. Punctuations
    that were written because the partition was idle do not count."""
    compacted_to: int = 0
    """Offset below which compaction may have removed records that later ones replaced: the topic's content at a position below
    it can no longer be reconstructed."""
    oldest_bytes: int = 0
    """Size of the first segment, which retention removes next."""


@dataclass(frozen=True)
class ProducerWatermark:
    """Watermark of one producer of a topic `WITH (watermark = 'producers')`."""

    moment: Microseconds | None
    """The producer sends no older event times from now on. None if it has appended and sent no watermark yet, which holds the
    watermark of the topic."""
    heard_at: Microseconds
    """Time of the producer's last watermark or append."""


@dataclass(frozen=True)
class CursorInfo:
    """A named consumer position, as stored."""

    topic: str
    name: str
    positions: Mapping[int, int]
    hold: bool
    lost: int
    committed_at: Microseconds | None
    history: tuple[tuple[Microseconds, int], ...] = ()
    """The latest commits as (time, sum of positions), from which the forecast computes the cursor's rate."""


@dataclass(frozen=True)
class GroupInfo:
    """Members of a consumer group, and the assignment of partitions to them."""

    topic: str
    name: str
    generation: int
    members: tuple[str, ...]
    owners: Mapping[int, str]
    """partition -> the member that may read and commit it now."""
    wanted: Mapping[int, str]
    """partition -> the member that it is assigned to; if that is not the owner, the owner has to release it."""


@dataclass(frozen=True)
class Entry:
    """A named document of the catalog: the declaration of a view, a source or a sink."""

    kind: str
    name: str
    document: dict[str, Any]
    """Plain JSON, owned by the log: callers must not change it in place."""
    sequence: int
    """Number of the commit that stored the entry."""
    created_at: Microseconds
    """Time of that commit."""


@dataclass(frozen=True)
class Finding:
    """A defect found by verification, described in words and with its location."""

    file: str
    byte: int | None
    topic: str | None
    partition: int | None
    message: str


@dataclass(frozen=True)
class HeldRecords:
    """Records of a topic that retention would have removed by now, and the view that they are kept for."""

    topic: str
    view: str
    status: str
    """'stopped' or 'backfilling'; 'private' if the view itself works, and needs every record nevertheless."""
    reason: str | None
    """Reason for the status, if known."""
    hint: str
    """Suggested remedy."""


@dataclass(frozen=True)
class FailedWork:
    """A maintenance task that failed, such as sealing one partition, and the reason."""

    work: str
    reason: str
    hint: str | None = None

    @classmethod
    def of(cls, work: str, error: Exception, hint: str | None = None) -> FailedWork:
        """Return the failure described by an error. `hint` takes precedence over the error's own."""
        reason, hint = described(error, hint)
        return cls(work, reason, hint)


@dataclass(frozen=True)
class MaintenanceReport:
    """Results of a maintenance run, and what it could not do yet."""

    sealed: int = 0
    segments_removed: int = 0
    rows_removed: int = 0
    rows_compacted: int = 0
    bytes_freed: int = 0
    seconds: float = 0.0
    waiting: tuple[HeldRecords, ...] = ()
    """Records kept for views that have stopped, or have yet to read them. Only set for a whole workspace."""
    failed: tuple[FailedWork, ...] = ()
    """Tasks that failed. The other tasks were done; each failure is also a fault of the workspace until the task succeeds."""


class Log(Protocol):
    """A durable, typed, partitioned log."""

    faults: Faults
    """Errors of background work on this workspace."""
    clock: TrustedClock
    """Clock of the workspace, used for everything that is done in it."""

    @property
    def keys(self) -> SubjectKeys:
        """Keys to private columns: where a key is destroyed, readers see NULL, and `_forgotten`."""
        ...

    @property
    def identity(self) -> str:
        """An identifier that distinguishes this workspace from every other, also from a later one in the same place."""
        ...

    def topics(self) -> Mapping[str, TopicDefinition]:
        """Return every topic, by name (found in any case), as of the last visible commit."""
        ...

    def topic(self, name: str) -> TopicDefinition:
        """Return one topic as of the last visible commit; TopicNotFoundError."""
        ...

    def create_topic(self, definition: TopicDefinition) -> None:
        """Create a topic; TopicExistsError if a topic or a view has its name, in any case."""
        ...

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """Replace a definition; ConflictError if it is no longer `old`."""
        ...

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """Replace `old` by a new topic of the same name, in one commit; ConflictError if `old` is no longer the current
        definition, or has records or cursors."""
        ...

    def drop_topic(self, name: str) -> None:
        """Remove a topic with its records, cursors and groups."""
        ...

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """Return the catalog entries of one kind, by name (found in any case), as of the last visible commit."""
        ...

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """Store a document, plain JSON, under a name, in one commit; it is as durable as the workspace requires on return.

        `expect` is the sequence of the entry that it replaces (whose name may differ in case), None if there must be none;
        ConflictError otherwise. Views and topics share one namespace: TopicExistsError if a topic has the name of a view.
        """
        ...

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """Remove an entry, in one commit; ConflictError if it does not exist, or has another sequence than expected."""
        ...

    def sequence(self) -> int:
        """Return the number of the last visible commit; 0 before the first."""
        ...

    def commit_id(self, sequence: int) -> str | None:
        """Return the random id of a commit. If a copy of the workspace has continued on its own, its commit of the same number
        has another id. '' if no commit of this number is visible; None if its id is not known: commits had no ids when it was
        written, or the id is no longer kept."""
        ...

    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool:
        """Block until a commit of any kind after `sequence` is visible; return False at the timeout. Does not poll."""
        ...

    def append(self, append: Append) -> Receipt:
        """Commit, and return once the append is as durable as its topics require. Raises, in this order of checks: FencedError
        (older epoch), AlreadyWrittenError, ConflictError. A sequence that was already written returns its first receipt, unless
        it comes with other rows (SequenceReusedError, which is a ConflictError)."""
        ...

    def producer(self, name: str) -> ProducerInfo | None:
        """Return a producer that has appended, as of the last visible commit, or None."""
        ...

    def settle(self) -> None:
        """Make everything visible that has been written so far. A process that died may have written a commit without
        publishing it; the next commit written would make it visible. A process that takes over the work of another calls this
        first."""
        ...

    def punctuate(
        self,
        topic: str,
        moments: Mapping[int, Microseconds],
        *,
        idle_at: Mapping[int, int] | None = None,
    ) -> None:
        """Raise the watermark of the given partitions. A punctuation takes one offset in its partition, which readers skip.

        With `idle_at`, the partitions were found idle at these end offsets: a partition that has grown since, or whose
        watermark is already as high, is skipped, and the punctuation does not count as activity of the others.
        """
        ...

    def declare_watermark(self, topic: str, producer: str, moment: Microseconds) -> None:
        """Declare that the producer sends nothing older than `moment` from now on. In one commit, a new producer is added, and
        every partition gets the minimum over the producers' watermarks, if that is higher than its own watermark. A moment
        below an earlier one of the same producer only counts as activity. UsageError unless the topic is `WITH (watermark =
        'producers')`."""
        ...

    def retire(self, topic: str, producer: str, *, idle_since: Microseconds | None = None) -> bool:
        """Remove a producer from the minimum, which may rise, in the same commit. With `idle_since`, only if the producer has
        not been active after that time. Return False if there is no such producer, or it was active."""
        ...

    def producer_watermarks(self, topic: str) -> Mapping[str, ProducerWatermark]:
        """Return the producers of a topic `WITH (watermark = 'producers')`, by name; empty for other topics."""
        ...

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """Return the bounds of every partition, all as of one commit."""
        ...

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """Return the end offsets of several topics, by the names given, all as of one commit: a cut that splits no append."""
        ...

    def cut(self, topics: Sequence[str]) -> tuple[int, Mapping[str, Mapping[int, int]]]:
        """Return the number of the last visible commit, and the result of `ends` as of that commit."""
        ...

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return the records with start <= offset < end, in order, in batches: the topic's columns as they are declared now,
        then `_offset`, `_appended_at`, `_watermark`, `_sequence`, on keyed topics `_op` (text) and on versioned ones
        `_version`; or only `columns`, in that order. GapError if `start` was removed; CorruptionError, with `next_offset` to
        continue from, at damaged bytes."""
        ...

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """Return the offset of the first record whose append time ('appended') or event time ('event') is >= moment; `end` if
        there is none. UsageError for event time on a topic without event time."""
        ...

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """Return the partition's watermark at an offset: a function of the records before it."""
        ...

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """Return the append time of the first record at or after an offset; None past the end."""
        ...

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """Block until a partition has grown beyond `ends`; return False at the timeout. Does not poll."""
        ...

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """Return a cursor as stored, or None."""
        ...

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """Return the cursors of a topic, or of every topic if `topic` is None."""
        ...

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """Store a cursor; an existing cursor keeps its positions and takes the new `hold`."""
        ...

    def drop_cursor(self, topic: str, name: str) -> None:
        """Delete a cursor and the group of the same name."""
        ...

    def move_cursor(self, move: CursorMove) -> None:
        """Store new positions durably; FencedError if `move.member` no longer owns a partition it moves."""
        ...

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """Return the state of a group, or None."""
        ...

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """Join the group, or report that this member is alive. Members without a beat for longer than their timeout lose their
        partitions, which are then reassigned. Cheap if nothing changed."""
        ...

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """Release partitions that are assigned to another member."""
        ...

    def leave(self, topic: str, group: str, member: str) -> None:
        """Leave a group and release its partitions at once."""
        ...

    def sync(self) -> None:
        """Return once every visible commit is durable, also those of topics that do not ask for a sync (`durability = 'os'`).

        Call this before durably storing anything outside the log that is useless without the commits it was computed from.
        Costs a read of one small file if there is nothing to sync.
        """
        ...

    def stage(self, producer: Producer | None = None) -> Stage:
        """Begin an atomic append that may be larger than memory.

        `producer` is the producer that `commit` will name, if already known: the checksum of its rows is then computed on the
        way, so that a repeat with other rows is rejected. Without it, a repeat returns the first receipt whatever its rows are.
        """
        ...

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """Seal, apply retention and compact. `force` includes active segments and those below the usual thresholds."""
        ...

    def excise(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> int:
        """Remove the records at these offsets, by partition, permanently, and return how many there were. Their offsets stay
        gaps; watermarks and the bounds of partitions do not change. After a crash at any point each record is either there or
        not, and repeating the call completes it. UsageError on an event-sourced topic."""
        ...

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """Read and check everything: yields findings, and between them the number of bytes checked so far."""
        ...

    def close(self) -> None:
        """Release every handle. Committed appends do not depend on it."""
        ...


class Stage(Protocol):
    """An atomic append in progress: invisible until committed, discarded if aborted or if the process dies."""

    def add(self, topic: str, batch: pa.RecordBatch, incarnation: int | None = None) -> None:
        """Add conformed rows; large ones go to disk. `incarnation` as in `Append`."""
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
        """Discard the stage."""
        ...
