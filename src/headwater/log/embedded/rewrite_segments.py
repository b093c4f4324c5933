"""Rewrites segments as sealed ones: the same records at the same offsets, or fewer, with every watermark preserved.

Reads one row group at a time, so memory is bounded for any size of segment. Commits nothing: the caller swaps the new segment
in with one record of the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import HeadwaterError
from headwater.core.storage import Storage
from headwater.log.embedded.journal.journal_state import Segment
from headwater.log.embedded.segments.sealed_segments import (
    ROW_GROUP_BYTES,
    ROW_GROUP_ROWS,
    integers,
    sealed_schema,
    steps_name,
    write_sealed,
    write_steps,
)
from headwater.log.embedded.segments.segment_reader import FrameRows, SegmentReader, frame_watermarks

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass
class _Watermarks:
    """The watermark of the rewritten segments as points (offset, watermark there), and the offsets of the kept records.

    Between two points the watermark does not change. A point at the offset of a kept record is in that record's column; the
    others become the steps of the new segment.
    """

    offsets: list[Integers] = field(default_factory=list)
    levels: list[Integers] = field(default_factory=list)
    kept: list[Integers] = field(default_factory=list)

    def add(self, offsets: Integers, levels: Integers) -> None:
        """Add points, in order."""
        self.offsets.append(offsets)
        self.levels.append(levels)

    def steps(self, before: int, end: int) -> tuple[Integers, Integers]:
        """Return the points at which the watermark rises, at offsets below `end` without a kept record."""
        offsets = np.concatenate([np.empty(0, np.int64), *self.offsets])
        levels = np.concatenate([np.empty(0, np.int64), *self.levels])
        risen = levels > np.maximum.accumulate(np.concatenate(([before], levels)))[:-1]
        kept = np.concatenate([np.empty(0, np.int64), *self.kept])
        hidden = risen & ~np.isin(offsets, kept) & (offsets < end)
        return offsets[hidden], levels[hidden]


class Rewriter:
    """Writes sealed segments from other segments."""

    def __init__(self, storage: Storage, reader: SegmentReader) -> None:
        self._storage = storage
        self._reader = reader

    def rewrite(
        self,
        name: str,
        topic: TopicDefinition,
        partition: int,
        sources: Sequence[Segment],
        keep: Sequence[Mask] | None = None,
    ) -> Segment:
        """Write one sealed segment `name` from adjacent segments, with the records that `keep` marks (all if None)."""
        first, last = sources[0], sources[-1]
        marks = _Watermarks()
        tables = self._tables(topic, sources, keep, marks)
        about = {
            "topic": topic.name,
            "partition": partition,
            "first": first.first,
            "end": last.end,
            "watermark_before": first.w0,
            "watermark_after": last.w1,
        }
        try:
            written = write_sealed(self._storage, name, sealed_schema(topic.storage_schema), tables, about)
            offsets, levels = marks.steps(first.w0, last.end)
            if len(offsets):
                write_steps(self._storage, name, offsets, levels)
        except Exception:  # repeated failures must not fill the disk with unreferenced files
            with contextlib.suppress(HeadwaterError):
                self._storage.remove(name)
                self._storage.remove(steps_name(name))
            raise
        return Segment(
            name=name,
            kind="parquet",
            first=first.first,
            end=last.end,
            rows=written.rows,
            size=written.size,
            schema_version=topic.schema_version,
            seq0=first.seq0,
            seq1=last.seq1,
            at0=first.at0,
            at1=last.at1,
            w0=first.w0,
            w1=last.w1,
            tmax=max(s.tmax for s in sources),
            closed=True,
            checksums=written.checksums,
            steps=bool(len(offsets)),
        )

    def _tables(
        self,
        topic: TopicDefinition,
        sources: Sequence[Segment],
        keep: Sequence[Mask] | None,
        marks: _Watermarks,
    ) -> Iterator[pa.Table]:
        columns = [*topic.storage_schema.names, "_offset", "_appended_at", "_watermark", "_sequence"]
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for number, segment in enumerate(sources):
            self._note(segment, topic, marks)
            seen = 0
            for batch in self._reader.read(segment, topic, segment.first, segment.end, columns):
                if keep is not None:
                    mask = keep[number][seen : seen + batch.num_rows]
                    seen += batch.num_rows
                    batch = batch if mask.all() else batch.filter(pa.array(mask))
                if batch.num_rows:
                    marks.kept.append(np.asarray(batch.column("_offset").to_numpy()))
                    waiting.append(batch)
                    rows += batch.num_rows
                    size += batch.nbytes
                if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
                    yield pa.Table.from_batches(waiting)
                    waiting, rows, size = [], 0, 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _note(self, segment: Segment, topic: TopicDefinition, marks: _Watermarks) -> None:
        """Collect the watermark points of a segment."""
        if segment.kind == "arrow":
            self._note_frames(segment, topic, marks)
            return
        offsets, before = self._columns(segment)
        steps, levels = self._reader.sealed.steps(segment)
        places = np.concatenate([offsets, steps, [segment.end]])
        order = np.argsort(places, kind="stable")
        marks.add(places[order], np.concatenate([before, levels, [segment.w1]])[order])

    def _columns(self, segment: Segment) -> tuple[Integers, Integers]:
        tables = list(
            self._reader.sealed.read(segment, segment.first, segment.end, ["_offset", "_watermark"])
        )
        if not tables:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        table = pa.concat_tables(tables)
        return integers(table.column("_offset")), integers(table.column("_watermark"))

    def _note_frames(self, segment: Segment, topic: TopicDefinition, marks: _Watermarks) -> None:
        for _, header in self._reader.headers(segment, segment.first):
            if header.w1 <= header.w0:
                continue
            after = np.array([header.w1])
            if header.kind != "mark" and topic.time is not None:
                rows: FrameRows = next(self._reader.frames(segment, header.first, header.end))
                after = np.append(frame_watermarks(rows, topic)[1:], header.w1)
            marks.add(np.arange(header.end - len(after), header.end) + 1, after)
