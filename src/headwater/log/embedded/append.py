"""The append path: encode outside the lock; under the lock check, stamp and write; then flush.

All work whose cost grows with the number of rows and that does not depend on other writers is done before the lock is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import adapt
from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError, UsageError
from headwater.core.group_commit import GroupCommit, Request
from headwater.core.parallel import side_by_side
from headwater.core.positions import Receipt, Token
from headwater.core.storage import File
from headwater.log.backpressure import segment_rows
from headwater.log.device_clocks import DeviceChange
from headwater.log.embedded.commit import Core, Ticket, VoidedError
from headwater.log.embedded.journal import frames
from headwater.log.embedded.journal.commit_outcome import nothing_written
from headwater.log.embedded.journal.frames import Frame
from headwater.log.embedded.journal.journal_file import Record
from headwater.log.embedded.journal.journal_state import JournalState, PartitionState, TopicState
from headwater.log.embedded.journal.open_segments import OPEN_FILES_MAX
from headwater.log.embedded.key_counts import KeyCounts
from headwater.log.embedded.known_devices import DeviceClocks
from headwater.log.embedded.preconditions import (
    check_behind,
    check_incarnations,
    check_moves,
    check_offsets,
    check_producer,
)
from headwater.log.protocol import Append, CursorMove, Producer
from headwater.log.repeated_appends import RowSum, Sums, sums_of
from headwater.log.routing import needs_ends, route
from headwater.log.topic_names import no_topic, with_canonical_topics
from headwater.log.watermarks import event_times, watermark_after
from headwater.privacy.column_encryption import encrypt_columns
from headwater.privacy.subject_keys import SubjectKeys

FRAME_ROWS_MAX = 131_072
FRAME_BYTES_MAX = 8 << 20


@dataclass
class TopicRows:
    """Rows of one topic in an append, prepared as far as possible outside the lock."""

    name: str
    id: int
    definition: TopicDefinition
    given: list[pa.RecordBatch]
    """The rows as they were passed to the append."""
    batches: list[pa.RecordBatch]
    """The rows as they are stored: with the present columns, private columns encrypted."""
    frames: dict[int, list[Frame]] | None
    """Encoded frames by partition; None if the partition or the content depends on what others have written."""
    fresh: dict[int, dict[Any, int]] = field(default_factory=dict)
    """Versioned topics: record counts per key, by partition, once the rows are committed."""
    clocks: dict[int, DeviceChange] = field(default_factory=dict)
    """Topics with device clocks: changes of the device state, by partition, once the rows are committed."""
    total: RowSum | None = None
    """Sum of the rows, if the producer asks for repeats to be compared."""


@dataclass(frozen=True)
class _Placed:
    """Stamped frames of one partition and their file; `record` is the partition's part of the journal record."""

    record: dict[str, Any]
    frames: list[Frame]
    file: File

    def write(self) -> None:
        """Write the frames to the file."""
        at: int = self.record["b"][0]
        for frame in self.frames:
            for piece in frame.pieces():
                self.file.write_at(at, piece)
                at += len(piece)


class AppendRequest(Request):
    """An append that is prepared and queued; `done` once it is as durable as it requires."""

    def __init__(self, append: Append, rows: list[TopicRows]) -> None:
        super().__init__()
        self.append = append
        self.rows = rows
        self.receipt = Receipt({})
        self.ticket: Ticket | None = None
        self.sync = False
        self.gather = False


@dataclass
class StagedFrames:
    """Frames in a staged file that a commit adopts as a segment; `frames` are (byte position, frame)."""

    name: str
    size: int
    prefix_checksum: str
    frames: list[tuple[int, Frame]] = field(default_factory=list)

    @property
    def span(self) -> int:
        """Number of offsets that the frames take."""
        return sum(f.span for _, f in self.frames)


class Appender:
    """Executes the appends to a workspace."""

    def __init__(self, core: Core, versions: KeyCounts, clocks: DeviceClocks, keys: SubjectKeys) -> None:
        self._core = core
        self._journal = core.journal
        self._keys = keys
        self._versions = versions
        self._clocks = clocks
        self._group_commit = GroupCommit(self._append_group)

    def append(self, append: Append) -> Receipt:
        """See `Log.append`."""
        append = self._with_canonical_topics(append)
        rows = [
            self._prepare(name, list(batches), append.producer) for name, batches in append.batches.items()
        ]
        if (
            not append.moves
            and append.producer is None
            and not any(b.num_rows for r in rows for b in r.batches)
        ):
            return Receipt({})
        request = AppendRequest(append, rows)
        while not request.done:
            self._group_commit.submit(request)
            if not request.done:  # a fence voided the commit: prepare and append again
                rows = [self._prepare(r.name, r.given, append.producer) for r in rows]
                request = AppendRequest(append, rows)
        return request.receipt

    def _append_group(self, requests: Sequence[AppendRequest]) -> None:
        """Commit the appends of several threads, each as its own commit, under one lock and with one sync."""
        try:
            with nothing_written(), self._core.exclusive() as state:
                for request in requests:
                    try:
                        with nothing_written():
                            self._append_one(state, request)
                    except (HeadwaterError, pa.ArrowException) as error:
                        request.error = error
                self._core.checkpoint_if_due()
            self._flush(requests)
        except KeyboardInterrupt:
            self._flush(requests)  # the written appends of other threads must become visible
            raise
        except VoidedError:
            for request in requests:
                request.done = request.ticket is not None and self._core.flusher.counted(request.ticket)
            return
        for request in requests:
            request.done = request.error is None

    def _flush(self, requests: Sequence[AppendRequest]) -> None:
        written = [r for r in requests if r.ticket is not None]
        if written:
            last = max(r.ticket for r in written if r.ticket is not None)
            sync, gather = any(r.sync for r in written), all(r.gather for r in written)
            self._core.flusher.flush(last, sync=sync, gather=gather)

    def _append_one(self, state: JournalState, request: AppendRequest) -> None:
        append = request.append
        known = check_producer(state, append.producer, self._sums(request.rows))
        if known is not None:
            request.receipt, request.ticket, request.sync = known, self._answer(state, append.producer), True
        else:
            check_incarnations(state, append.incarnations)
            rows = {r.name: sum(b.num_rows for b in r.batches) for r in request.rows}
            check_behind(state, rows, append.moves)
            written = self._write(state, append, request.rows)
            request.receipt, request.ticket, request.sync, request.gather = written

    def commit_staged(
        self, staged: Mapping[tuple[str, int], StagedFrames], append: Append, totals: Sequence[RowSum] = ()
    ) -> Receipt:
        """Make staged files visible as segments, in one commit; a repeated sequence returns its first receipt.

        `totals` are the sums of the rows, if repeats are to be compared.
        """
        append = with_canonical_topics(append, self._journal.state.topics)
        sums = sums_of(totals, self._keys) if totals else None
        while True:
            try:
                with nothing_written(), self._core.exclusive() as state:
                    known = check_producer(state, append.producer, sums)
                    if known is not None:
                        receipt, ticket, sync = known, self._answer(state, append.producer), True
                    else:
                        check_incarnations(state, append.incarnations)
                        rows: dict[str, int] = {}
                        for (name, _), file in staged.items():
                            rows[name] = rows.get(name, 0) + sum(frame.rows for _, frame in file.frames)
                        check_behind(state, rows, append.moves)
                        check_moves(state, append.moves)
                        receipt, ticket, sync = self._adopt(state, staged, append, sums)
                if ticket is not None:
                    self._core.flusher.flush(ticket, sync=sync)
                return receipt
            except VoidedError:
                continue

    def _answer(self, state: JournalState, producer: Producer | None) -> Ticket | None:
        """Return the ticket to flush before a repeat is answered, because the first attempt may have died before its own flush.

        A repeat by a newer epoch writes no rows, but commits the epoch, which fences the older ones.
        """
        if producer is None or producer.epoch <= state.producers[producer.name].epoch:
            return self._core.tail()
        seq, at = self._journal.next_stamp()
        return self._core.commit(
            {"k": "epoch", "seq": seq, "at": at, "sync": True, "name": producer.name, "epoch": producer.epoch}
        )

    def punctuate(
        self, topic: TopicState, moments: Mapping[int, int], said: dict[str, Any] | None = None
    ) -> tuple[Ticket, bool]:
        """Under the lock: commit a punctuation in each partition given; `said` is its declaration, if any (see
        `punctuation`)."""
        seq, at = self._journal.next_stamp()
        placed = []
        for number, moment in sorted(moments.items()):
            group = [punctuation_frame(topic.definition, moment, said)]
            placed.append(self._place_part(topic, number, group, (seq, at, len(moments)), inline=True))
            placed[-1].write()
        sync, _ = durability_of([topic.definition], self._core)
        record = {"k": "append", "seq": seq, "at": at, "sync": sync, "parts": [p.record for p in placed]}
        if said is not None:
            record["said"] = said
        ticket = self._core.commit(record, b"".join(f.to_bytes() for p in placed for f in p.frames))
        self._core.checkpoint_if_due()
        return ticket, sync

    # --- before the lock -----------------------------------------------------------------------------------------

    def _with_canonical_topics(self, append: Append) -> Append:
        """Return the append with its topics spelled as declared; TopicNotFoundError if it has rows for a missing topic."""
        if any(name not in self._journal.state.topics for name in append.batches):
            self._journal.refresh()
        append = with_canonical_topics(append, self._journal.state.topics)
        for name in append.batches:
            if name not in self._journal.state.topics:
                raise no_topic(name, self._journal.state.topics)
        return append

    def _prepare(self, name: str, batches: list[pa.RecordBatch], producer: Producer | None) -> TopicRows:
        topic = self._journal.state.topics[name]
        definition = topic.definition
        total = RowSum(topic.id, definition) if producer is not None and producer.exact else None
        given, batches = batches, [self.stored(b, definition, total) for b in batches]
        prepared: dict[int, list[Frame]] | None = None
        if not needs_ends(definition) and definition.versioned_by is None and definition.clock is None:
            routed = [part for batch in batches for part in route(batch, definition, {}).items()]
            prepared = _encoded(routed, definition, _plain(producer))
        return TopicRows(name, topic.id, definition, given, batches, prepared, total=total)

    def stored(
        self, rows: pa.RecordBatch, definition: TopicDefinition, total: RowSum | None = None
    ) -> pa.RecordBatch:
        """Return conformed rows as they are stored: with the present columns, private columns encrypted. Adds them to
        `total`."""
        plain = adapt(rows, definition.row_schema)
        stored = encrypt_columns(plain, definition, self._keys)
        if total is not None:
            total.add(plain, stored, self._keys)
        return stored

    def _sums(self, rows: Sequence[TopicRows]) -> Sums | None:
        """Return the sums of an append; None if its producer does not ask for them."""
        totals = [r.total for r in rows if r.total is not None]
        return sums_of(totals, self._keys) if len(totals) == len(rows) else None

    # --- under the lock --------------------------------------------------------------------------------------------

    def _write(
        self, state: JournalState, append: Append, rows: list[TopicRows]
    ) -> tuple[Receipt, Ticket | None, bool, bool]:
        rows = [self._current(state, r, append.producer) for r in rows]
        check_moves(state, append.moves)
        seq, at = self._journal.next_stamp()
        for topic_rows in rows:
            self._complete(state, topic_rows, _plain(append.producer), at)
        self._check_expect(state, append.expect, rows)
        if not append.moves and append.producer is None and not any(r.frames for r in rows):
            return Receipt({}), None, False, False
        total = sum(f.total_bytes for r in rows for fs in (r.frames or {}).values() for f in fs)
        inline = total <= self._core.settings.inline_bytes_max
        count = sum(len(r.frames or {}) for r in rows)
        groups = [
            (state.topics[topic_rows.name], partition, group)
            for topic_rows in rows
            for partition, group in sorted((topic_rows.frames or {}).items())
        ]
        placed: list[_Placed] = []
        for begin in range(0, len(groups), OPEN_FILES_MAX // 2):  # files stay open until they are written
            some = groups[begin : begin + OPEN_FILES_MAX // 2]
            placed += [self._place_part(*group, (seq, at, count), inline) for group in some]
            side_by_side(_Placed.write, placed[begin:], size=total)
        parts = [part.record for part in placed]
        blobs = [frame.to_bytes() for part in placed for frame in part.frames] if inline else []
        sync, gather = durability_of([state.topics[r.name].definition for r in rows], self._core)
        if append.relaxed:
            sync = gather = False
        record = {"k": "append", "seq": seq, "at": at, "sync": sync, "parts": parts}
        record |= _producer_fields(append, self._sums(rows))
        ticket = self._core.commit(record, b"".join(blobs))
        for topic_rows in rows:
            self._versions.advance(state.topics[topic_rows.name], topic_rows.fresh)
            self._clocks.advance(state.topics[topic_rows.name], topic_rows.clocks)
        return receipt_of(state, parts, record), ticket, sync, gather

    def _current(self, state: JournalState, rows: TopicRows, producer: Producer | None) -> TopicRows:
        """Return the rows under the active definition, prepared again if it has changed since they were prepared."""
        topic = state.topics.get(rows.name)
        if topic is None:
            raise no_topic(rows.name, state.topics)
        if topic.id == rows.id and topic.definition.schema_version == rows.definition.schema_version:
            rows.definition = topic.definition
            return rows
        return self._prepare(rows.name, rows.given, producer)

    def _complete(
        self, state: JournalState, rows: TopicRows, producer: dict[str, Any] | None, at: int
    ) -> None:
        """Route and encode rows that could only be encoded under the lock; `at` is the time of the commit."""
        if rows.frames is not None:
            return
        definition = rows.definition
        ends = {p: s.end for p, s in enumerate(state.topics[rows.name].partitions)}
        routed: dict[int, list[pa.RecordBatch]] = {}
        for batch in rows.batches:
            for partition, part in route(batch, definition, ends).items():
                routed.setdefault(partition, []).append(part)
                ends[partition] += part.num_rows
        if definition.clock is not None:
            routed, rows.clocks = self._clocks.correct(state.topics[rows.name], routed, at)
        if definition.versioned_by is not None:
            routed, rows.fresh = self._versions.number(state.topics[rows.name], routed)
        parts = [(partition, part) for partition, parts in routed.items() for part in parts]
        rows.frames = _encoded(parts, definition, producer)

    def _place_part(
        self, topic: TopicState, number: int, group: list[Frame], commit: tuple[int, int, int], inline: bool
    ) -> _Placed:
        """Stamp the frames of a partition, and determine the file and position that they are written to."""
        partition = topic.partitions[number]
        first = partition.end
        last, ahead = stamp_frames(group, partition, topic.definition, commit)
        name, start, new = self._place(topic, number, partition, commit[0])
        file = self._core.segments.writable(name, 0 if new else start)
        if new:
            file.truncate(0)
            file.write_at(0, frames.segment_prefix(topic.definition.storage_schema))
        end = start + sum(f.total_bytes for f in group)
        part: dict[str, Any] = {
            "t": topic.id,
            "p": number,
            "s": name,
            "b": [start, end],
            "o": [first, first + sum(f.span for f in group)],
            "r": sum(f.rows for f in group),
            "w": [partition.watermark, last],
            "m": max(f.latest for f in group),
        }
        if ahead:
            part["a"] = ahead
        if inline:
            part["i"] = end - start
        if new:
            part["new"], part["x"] = True, frames.prefix_checksum(topic.definition.storage_schema)
        return _Placed(part, group, file)

    def _place(
        self, topic: TopicState, number: int, partition: PartitionState, seq: int
    ) -> tuple[str, int, bool]:
        """Return the segment, byte position and newness of the next frame's place: the active segment, or a new one if that is
        full or has an older schema."""
        active = partition.active
        rows_max = segment_rows(topic.definition)
        full = active is not None and (
            active.size >= self._core.settings.segment_bytes_max
            or (rows_max is not None and active.rows >= rows_max)
        )
        if active is not None and not full and active.schema_version == topic.definition.schema_version:
            return active.name, active.size, False
        return (
            segment_name(topic, number, partition.end, self._journal.number, seq),
            len(frames.segment_prefix(topic.definition.storage_schema)),
            True,
        )

    def _check_expect(
        self, state: JournalState, expect: Mapping[str, int | Mapping[Any, int]], rows: list[TopicRows]
    ) -> None:
        by_name = {r.name: r for r in rows}
        for name, wanted in expect.items():
            topic = state.topics.get(name)
            if topic is None:
                raise no_topic(name, state.topics)
            if topic.definition.versioned_by is not None and isinstance(wanted, Mapping):
                self._versions.check(topic, wanted)
                continue
            given = wanted
            if not isinstance(wanted, Mapping):
                touched = sorted(by_name[name].frames or {}) if name in by_name else []
                if len(touched) != 1:
                    raise UsageError(
                        f"expect={wanted} needs rows for one partition of topic {name!r}, but they go to {len(touched)}",
                        hint="write expect={partition: offset}",
                        topic=name,
                        partitions=len(touched),
                    )
                wanted = {touched[0]: wanted}
            check_offsets(name, wanted, {p: s.end for p, s in enumerate(topic.partitions)}, given)

    def _adopt(
        self,
        state: JournalState,
        staged: Mapping[tuple[str, int], StagedFrames],
        append: Append,
        sums: Sums | None,
    ) -> tuple[Receipt, Ticket, bool]:
        seq, at = self._journal.next_stamp()
        parts = []
        names = sorted({name for name, _ in staged})
        for name in names:
            if name not in state.topics:
                raise no_topic(name, state.topics)
        self._check_staged_expect(state, append.expect, staged)
        for (name, number), file in sorted(staged.items()):
            topic = state.topics[name]
            partition = topic.partitions[number]
            first = partition.end
            group = [frame for _, frame in file.frames]
            last, ahead = stamp_frames(group, partition, topic.definition, (seq, at, len(staged)))
            place = segment_name(topic, number, first, self._journal.number, seq)
            self._restamp(file)
            self._core.storage.make_dirs(place.rpartition("/")[0])
            self._core.storage.rename(file.name, place)
            file.name = place
            self._core.storage.sync_dir(place.rpartition("/")[0])
            part = {
                "t": topic.id,
                "p": number,
                "s": place,
                "b": [file.frames[0][0], file.size],
                "o": [first, first + file.span],
                "r": sum(f.rows for f in group),
                "w": [partition.watermark, last],
                "m": max(f.latest for f in group),
                "closed": True,
                "x": file.prefix_checksum,
            }
            parts.append({**part, "a": ahead} if ahead else part)
        sync, _ = durability_of([state.topics[n].definition for n in names], self._core)
        record: dict[str, Any] = {"k": "append", "seq": seq, "at": at, "sync": sync, "parts": parts}
        record |= _producer_fields(append, sums)
        ticket = self._core.commit(record)
        return receipt_of(state, parts, record), ticket, sync

    def _check_staged_expect(
        self,
        state: JournalState,
        expect: Mapping[str, int | Mapping[Any, int]],
        staged: Mapping[tuple[str, int], StagedFrames],
    ) -> None:
        rows = [
            TopicRows(
                n,
                state.topics[n].id,
                state.topics[n].definition,
                [],
                [],
                {p: [] for t, p in staged if t == n},
            )
            for n in {name for name, _ in staged}
        ]
        self._check_expect(state, expect, rows)

    def _restamp(self, staged: StagedFrames) -> None:
        """Write the stamped headers into a staged file and sync it."""
        file = self._core.storage.open(staged.name)
        try:
            for byte, frame in staged.frames:
                file.write_at(byte, frame.head)
            file.sync()
        finally:
            file.close()


def _encoded(
    routed: Sequence[tuple[int, pa.RecordBatch]], topic: TopicDefinition, producer: dict[str, Any] | None
) -> dict[int, list[Frame]]:
    """Return the frames of the rows, by partition."""
    groups = side_by_side(
        lambda part: list(encode_rows(part[1], topic, producer)),
        routed,
        size=sum(rows.nbytes for _, rows in routed),
    )
    found: dict[int, list[Frame]] = {}
    for (partition, _), group in zip(routed, groups, strict=True):
        found.setdefault(partition, []).extend(group)
    return found


def encode_rows(
    batch: pa.RecordBatch, topic: TopicDefinition, producer: dict[str, Any] | None
) -> Iterator[Frame]:
    """Yield frames of bounded size over a batch, with the event times that stamping needs."""
    step = FRAME_ROWS_MAX
    if batch.num_rows and batch.nbytes > FRAME_BYTES_MAX:
        step = max(1, min(step, batch.num_rows * FRAME_BYTES_MAX // batch.nbytes))
    for start in range(0, batch.num_rows, step):
        piece = batch.slice(start, step)
        frame = frames.encode(piece, producer=producer)
        frame.times = event_times(piece, topic)
        yield frame


def stamp_frames(
    group: Sequence[Frame], partition: PartitionState, topic: TopicDefinition, commit: tuple[int, int, int]
) -> tuple[int, int]:
    """Set offsets, commit and watermarks of frames; return the watermark after them and the number of rows too far ahead."""
    seq, at, parts = commit
    offset, level, total_ahead = partition.end, partition.watermark, 0
    for frame in group:
        before, ahead = level, 0
        if frame.punctuation is not None:
            level = max(level, frame.punctuation)
        elif frame.times is not None:
            level, ahead = watermark_after(frame.times, before, at, topic)
        frame.stamp(first=offset, seq=seq, at=at, w0=before, w1=level, ahead=ahead, parts=parts)
        offset += frame.span
        total_ahead += ahead
    return level, total_ahead


def segment_name(topic: TopicState, partition: int, first: int, journal: int, seq: int) -> str:
    """Return a segment name that is never reused, not even by a writer that lost the lock."""
    return f"{topic.folder}/{partition}/{first:020d}-{journal}-{seq}.arrow"


def durability_of(definitions: Sequence[TopicDefinition], core: Core) -> tuple[bool, bool]:
    """Return whether a commit must be synced, and whether it may wait for a group commit: the strictest topic decides."""
    kinds = {d.durability or core.settings.durability for d in definitions} or {core.settings.durability}
    return kinds != {"os"}, "fsync" not in kinds and "group" in kinds


def receipt_of(state: JournalState, parts: Sequence[dict[str, Any]], record: Record) -> Receipt:
    """Return the receipt for the parts of a commit whose record was written."""
    positions: dict[str, dict[int, tuple[int, int]]] = {}
    for part in parts:
        name = state.ids[part["t"]].definition.name
        positions.setdefault(name, {})[part["p"]] = (part["o"][0], part["o"][1])
    return Receipt(positions, Token(record["seq"], record["tag"]))


def move_json(move: CursorMove) -> dict[str, Any]:
    """Return a cursor's move in the form of the journal."""
    return {
        "topic": move.topic,
        "cursor": move.cursor,
        "positions": {str(p): o for p, o in move.positions.items()},
        "lost": move.lost,
    }


def producer_json(producer: Producer) -> list[Any]:
    """Return a producer in the form of the journal: its name, epoch and sequence, and its note if there is one."""
    noted = [] if producer.note is None else [dict(producer.note)]
    return [producer.name, producer.epoch, producer.sequence, *noted]


def _producer_fields(append: Append, sums: Sums | None) -> dict[str, Any]:
    """Return the fields of a record that describe the producer of an append, and the cursors that it moves."""
    said: dict[str, Any] = {}
    if append.producer is not None:
        said["producer"] = producer_json(append.producer)
        if append.producer.exact and sums is not None:
            said["sums"] = sums
    if append.moves:
        said["moves"] = [move_json(m) for m in append.moves]
    return said


def _plain(producer: Producer | None) -> dict[str, Any] | None:
    if producer is None:
        return None
    return {"producer": producer.name, "epoch": producer.epoch, "sequence": producer.sequence}


def punctuation_frame(definition: TopicDefinition, moment: int, said: dict[str, Any] | None) -> Frame:
    """Return a frame without rows that raises the watermark to `moment`."""
    empty = pa.RecordBatch.from_pylist([], schema=definition.storage_schema)
    frame = frames.encode(empty, punctuation=True, said=said)
    frame.punctuation = moment
    return frame
