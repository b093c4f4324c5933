"""Reads a partition: frames of Arrow segments and row groups of sealed ones, as batches with their metadata columns.

Reads only committed records in the requested range; checks every byte before it is decoded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog.conform import adapt, op_names
from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError
from headwater.core.storage import File, Storage
from headwater.log.embedded.journal import frames
from headwater.log.embedded.journal.frames import DamagedFrameError, FrameHeader
from headwater.log.embedded.journal.journal_state import Segment
from headwater.log.embedded.segments.sealed_segments import SealedReader, corrupt, integers
from headwater.log.watermarks import event_times, row_watermarks, watermark_array

READ_BYTES = 4 << 20
PEEK_BYTES = 16 << 10
"""Size of the first read: enough for a header, so that seeking does not read bodies."""
BATCH_ROWS = 65_536
BATCH_BYTES = 128 << 20
"""Frames, and parts of row groups, are joined up to this size: a text column of one batch holds at most 2 GiB."""
TIMESTAMP = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class FrameRows:
    """A decoded frame with its header, cut to the requested offsets."""

    header: FrameHeader
    batch: pa.RecordBatch
    first: int
    whole: pa.RecordBatch | None = None
    """The uncut batch, if `batch` is only a part of it."""


@dataclass
class _Pending:
    """Small frames to be joined into one batch."""

    pieces: list[FrameRows] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0

    def has_room(self, piece: FrameRows) -> bool:
        """Whether a frame fits into the same batch as the pending ones."""
        rows, size = self.rows + piece.batch.num_rows, self.bytes + piece.header.body
        return not self.rows or (rows <= BATCH_ROWS and size <= BATCH_BYTES)

    def add(self, piece: FrameRows) -> None:
        """Add a frame after the pending ones."""
        self.pieces.append(piece)
        self.rows += piece.batch.num_rows
        self.bytes += piece.header.body


@dataclass
class _Open:
    """An open Arrow segment. Accessed under the reader's lock, except for the reads themselves."""

    file: File
    schema: pa.Schema
    readers: int = 0
    is_retired: bool = False

    def retire(self) -> None:
        """Close the file as soon as no read is in progress."""
        self.is_retired = True
        self.close_if_done()

    def close_if_done(self) -> None:
        if self.is_retired and not self.readers:
            self.file.close()


class SegmentReader:
    """Reads the segments of a workspace; safe to use from several threads."""

    def __init__(self, storage: Storage, open_max: int = 64) -> None:
        self._storage = storage
        self.sealed = SealedReader(storage, open_max)
        self._files: OrderedDict[str, _Open] = OrderedDict()
        self._open_max = open_max
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close every file."""
        with self._lock:
            for found in self._files.values():
                found.retire()
            self._files.clear()
            self.sealed.close()

    def disown(self) -> None:
        """Close the handles that a forked child inherited from its parent, whichever thread holds the lock."""
        for found in self._files.values():
            found.file.close()

    def forget(self, names: Sequence[str]) -> None:
        """Close files that were removed."""
        with self._lock:
            self.sealed.forget(names)
            for name in names:
                if found := self._files.pop(name, None):
                    found.retire()

    def _arrow(self, segment: Segment) -> _Open:
        """Return an open Arrow segment."""
        with self._lock:
            found = self._files.get(segment.name)
            if found is None:
                file = self._storage.open(segment.name, read_only=True)
                start = segment.index[0][1] if segment.index else segment.size
                prefix = file.read_at(0, start)
                if not frames.is_prefix(prefix, next(iter(segment.checksums), None)):
                    file.close()
                    raise corrupt(segment, 0, "its schema differs from what was written")
                schema = pa.ipc.read_schema(pa.py_buffer(prefix))
                found = self._files[segment.name] = _Open(file, schema)
                while len(self._files) > self._open_max:
                    self._files.popitem(last=False)[1].retire()
            self._files.move_to_end(segment.name)
            return found

    # --- frames --------------------------------------------------------------------------------------------------

    def headers(self, segment: Segment, offset: int) -> Iterator[tuple[int, FrameHeader]]:
        """Yield (byte, header) of every frame, starting at the frame that contains `offset`, without reading bodies."""
        for byte, header, _ in self._walk(segment, offset, bodies=False):
            yield byte, header

    def rebuilt_index(self, segment: Segment) -> list[list[int]]:
        """Return the index of an Arrow segment computed from its frames, with one entry per frame. The stored index is a subset
        of it."""
        schema = self._arrow(segment).schema
        start = len(frames.segment_prefix(schema))
        whole = dataclasses.replace(segment, index=[[segment.first, start, 0, 0, 0]])
        return [[h.first, byte, h.seq, h.at, h.w0] for byte, h in self.headers(whole, segment.first)]

    def frames(self, segment: Segment, start: int, end: int) -> Iterator[FrameRows]:
        """Yield the frames with records in [start, end), each cut to that range."""
        schema = self._arrow(segment).schema
        for byte, header, data in self._walk(segment, start, bodies=True, end=end):
            if header.kind == "mark":
                continue
            try:
                frames.check_body(header, data[header.head_bytes :])
            except DamagedFrameError as error:
                raise corrupt(segment, byte, str(error), header.end) from None
            batch = frames.decode(data, 0, header, schema)
            low, high = max(0, start - header.first), min(header.rows, end - header.first)
            if low or high < header.rows:
                yield FrameRows(header, batch.slice(low, high - low), header.first + low, whole=batch)
            else:
                yield FrameRows(header, batch, header.first)

    def _walk(
        self, segment: Segment, start: int, *, bodies: bool, end: int | None = None
    ) -> Iterator[tuple[int, FrameHeader, memoryview]]:
        """Yield the frames that end after `start`, with their bytes if `bodies`; damage before `start` is skipped."""
        entry = segment.index_at(start) or (segment.index[0] if segment.index else None)
        if entry is None:
            return
        at, data, base, ahead = entry[1], memoryview(b""), entry[1], PEEK_BYTES
        while at < segment.size:
            data, base, header = self._header(segment, at, data, base, ahead)
            if header is None:
                at = self._resync(segment, at, start)
                continue
            if end is not None and header.first >= end:
                return
            if header.end > start:
                stop = at + header.total_bytes
                if bodies and stop > base + len(data):
                    ahead = min(ahead * 4, READ_BYTES)  # a scan reads further ahead the longer it goes on
                    data, base = self._bytes(segment, at, max(ahead, header.total_bytes)), at
                yield at, header, data[at - base : stop - base]
            at += header.total_bytes

    def _bytes(self, segment: Segment, at: int, size: int) -> memoryview:
        with self._lock:
            found = self._arrow(segment)
            found.readers += 1
        try:
            return memoryview(found.file.read_at(at, min(size, segment.size - at)))
        finally:
            with self._lock:
                found.readers -= 1
                found.close_if_done()

    def _header(
        self, segment: Segment, at: int, data: memoryview, base: int, ahead: int
    ) -> tuple[memoryview, int, FrameHeader | None]:
        known = frames.header_length(data, at - base) if at - base < len(data) else 0
        if not known or at + known > base + len(data):
            data, base = self._bytes(segment, at, max(ahead, known)), at
            if (known := frames.header_length(data)) > len(data):
                data = self._bytes(segment, at, known)
        try:
            return data, base, frames.parse_header(data, at - base)
        except DamagedFrameError:
            return data, base, None

    def _resync(self, segment: Segment, at: int, start: int) -> int:
        """Return the byte of the next whole frame after damage at `at`; CorruptionError if records from `start` on are lost."""
        data = bytes(self._bytes(segment, at, segment.size - at))
        byte = data.find(frames.CONTINUATION, 8)
        while byte >= 0:
            if frames.header_length(memoryview(data), byte):
                with contextlib.suppress(DamagedFrameError):
                    header = frames.parse_header(memoryview(data), byte)
                    if header.first > start:
                        raise corrupt(
                            segment, at, "the checksum of a frame's header does not match", header.first
                        )
                    return at + byte
            byte = data.find(frames.CONTINUATION, byte + 1)
        raise corrupt(segment, at, "the checksum of a frame's header does not match")

    # --- batches -------------------------------------------------------------------------------------------------

    def read(
        self, segment: Segment, topic: TopicDefinition, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records in [start, end) as batches of `columns`."""
        if segment.kind == "arrow":
            yield from self._read_arrow(segment, topic, start, end, columns)
            return
        for table in self._sealed_tables(segment, start, end, list(columns)):
            yield from _sealed_batches(table, topic, columns)

    def _sealed_tables(
        self, segment: Segment, start: int, end: int, columns: list[str]
    ) -> Iterator[pa.Table]:
        source = self.sealed.read(segment, start, end, columns)
        while True:
            with self._lock:
                table = next(source, None)
            if table is None:
                return
            yield table

    def _read_arrow(
        self, segment: Segment, topic: TopicDefinition, start: int, end: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        pending = _Pending()
        damage: Exception | None = None
        try:
            for piece in self.frames(segment, start, end):
                if not pending.has_room(piece):
                    yield _gather(pending.pieces, topic, columns)
                    pending = _Pending()
                pending.add(piece)
        except (
            HeadwaterError,
            OSError,
        ) as error:  # records before the damage are still returned
            damage = error
        if pending.rows:
            yield _gather(pending.pieces, topic, columns)
        if damage is not None:
            raise damage

    # --- positions -----------------------------------------------------------------------------------------------

    def offset_at_time(self, segment: Segment, moment: int) -> int | None:
        """Return the first offset with a record appended at `moment` or later; None if this segment has none."""
        if segment.kind == "parquet":
            with self._lock:
                found = self.sealed.first_row(segment, "_appended_at", moment)
            return None if found is None else found[0]
        below = [e for e in segment.index if e[3] < moment]
        start = below[-1][0] if below else segment.first
        for _, header in self.headers(segment, start):
            if header.at >= moment and header.kind != "mark":
                return header.first
        return None

    def offset_at_event(self, segment: Segment, topic: TopicDefinition, moment: int) -> int | None:
        """Return the first offset with an event time of `moment` or later; None if this segment has none."""
        if segment.kind == "parquet":
            with self._lock:
                return self.sealed.first_event(segment, topic.time or "", moment)
        for _, header in self.headers(segment, self._before_event(segment, topic, moment)):
            if header.tmax >= moment:
                rows = next(self.frames(segment, header.first, header.end))
                times = event_times(rows.batch, topic)
                return header.first + int(np.argmax(times >= moment)) if times is not None else None
        return None

    def _before_event(self, segment: Segment, topic: TopicDefinition, moment: int) -> int:
        """Return an offset before which no event time is >= `moment`: from the index, if every row raises the watermark."""
        if topic.max_ahead_us is not None or topic.watermark == "producers":
            return segment.first
        below = [e[0] for e in segment.index if e[4] + topic.lateness_us < moment]
        return below[-1] if below else segment.first

    def appended_at(self, segment: Segment, offset: int) -> int | None:
        """Return the append time of the first record at or after an offset; None if this segment has none."""
        if segment.kind == "parquet":
            for table in self._sealed_tables(segment, offset, segment.end, ["_appended_at"]):
                return int(integers(table.column("_appended_at"))[0])
            return None
        return next((h.at for _, h in self.headers(segment, offset) if h.kind != "mark"), None)

    def watermark(self, segment: Segment, topic: TopicDefinition, offset: int) -> int:
        """Return the watermark at an offset inside a segment, after everything before it."""
        if offset <= segment.first:
            return segment.w0
        if segment.kind == "parquet":
            return self._sealed_watermark(segment, offset)
        for frame in self.headers(segment, offset - 1):
            header = frame[1]
            if header.end <= offset or header.kind == "mark" or topic.time is None:
                return header.w1 if header.end <= offset else header.w0
            rows = next(self.frames(segment, header.first, header.end))
            return int(frame_watermarks(rows, topic)[offset - header.first])
        return segment.w1

    def _sealed_watermark(self, segment: Segment, offset: int) -> int:
        """Return the highest of the segment's initial watermark, the last record's and the last step's at or before the
        offset."""
        if offset >= segment.end:
            return segment.w1
        with self._lock:
            steps, after = self.sealed.steps(segment)
            opened = self.sealed.opened(segment)
            number = int(np.searchsorted(opened.bounds["_offset"][0], offset, side="right")) - 1
            table = self.sealed.group(segment, number, ["_offset", "_watermark"]) if number >= 0 else None
        level = segment.w0
        if place := int(np.searchsorted(steps, offset, side="right")):
            level = max(level, int(after[place - 1]))
        if table is not None:
            place = int(np.searchsorted(integers(table.column("_offset")), offset, side="right")) - 1
            level = max(level, int(integers(table.column("_watermark"))[place]))
        return level


def frame_watermarks(rows: FrameRows, topic: TopicDefinition) -> npt.NDArray[np.int64]:
    """Return the watermark before each row of a whole frame."""
    header = rows.header
    times = event_times(rows.batch, topic) if topic.time is not None else None
    if times is None:
        return np.full(rows.batch.num_rows, header.w0, dtype=np.int64)
    if rows.batch.num_rows != header.rows:
        raise AssertionError("watermarks need the whole frame")
    return row_watermarks(times, header.w0, header.at, topic)[0]


def metadata_column(name: str, pieces: Sequence[FrameRows], topic: TopicDefinition) -> pa.Array:
    """Return a metadata column over joined frames."""
    counts = [p.batch.num_rows for p in pieces]
    if name == "_offset":
        starts = np.repeat([p.first for p in pieces], counts)
        within = np.arange(sum(counts)) - np.repeat(np.cumsum([0, *counts[:-1]]), counts)
        return pa.array(starts + within, pa.int64())
    if name == "_appended_at":
        return pa.array(np.repeat([p.header.at for p in pieces], counts), pa.int64()).view(TIMESTAMP)
    if name == "_sequence":
        return pa.array(np.repeat([p.header.seq for p in pieces], counts), pa.int64())
    return watermark_array(np.concatenate([_cut_watermarks(p, topic) for p in pieces]))


def _cut_watermarks(piece: FrameRows, topic: TopicDefinition) -> npt.NDArray[np.int64]:
    if piece.whole is None:
        return frame_watermarks(piece, topic)
    low = piece.first - piece.header.first
    return frame_watermarks(FrameRows(piece.header, piece.whole, piece.header.first), topic)[
        low : low + piece.batch.num_rows
    ]


def _gather(pieces: Sequence[FrameRows], topic: TopicDefinition, columns: Sequence[str]) -> pa.RecordBatch:
    """Join frames of one segment into one batch of `columns`, in the topic's present schema."""
    schema = topic.storage_schema
    own = [c for c in columns if c in schema.names]
    batches = [p.batch.select([c for c in own if c in p.batch.schema.names]) for p in pieces]
    batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
    batch = adapt(batch, pa.schema([schema.field(c) for c in own]), pieces_rows(pieces))
    return _arrange(batch, lambda name: metadata_column(name, pieces, topic), columns)


def pieces_rows(pieces: Sequence[FrameRows]) -> int:
    """Return the number of rows in joined frames."""
    return sum(p.batch.num_rows for p in pieces)


def _sealed_batches(
    table: pa.Table, topic: TopicDefinition, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Split a row group into batches of bounded size: into one batch if its rows have the usual size."""
    schema = topic.storage_schema
    own = [c for c in columns if c in schema.names]
    wanted = pa.schema([pa.field("_op", pa.string()) if c == "_op" else schema.field(c) for c in own])
    step = max(1, table.num_rows * BATCH_BYTES // max(table.nbytes, BATCH_BYTES))
    for start in range(0, table.num_rows, step):
        # If few rows are much larger than the others, even a slice may exceed the capacity of one chunk.
        for batch in table.slice(start, step).combine_chunks().to_batches():
            present = batch.select([c for c in own if c in table.column_names])
            yield _arrange(adapt(present, wanted, batch.num_rows), batch.column, columns)


def _arrange(
    batch: pa.RecordBatch, hidden: Callable[[str], pa.Array], columns: Sequence[str]
) -> pa.RecordBatch:
    arrays, fields = [], []
    for name in columns:
        if name in batch.schema.names:
            array = batch.column(name)
            if name == "_op" and not pa.types.is_string(array.type):
                array = op_names(array)
        else:
            array = hidden(name)
        arrays.append(array)
        fields.append(pa.field(name, array.type))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
