"""Turning segments into sealed ones: the same records at the same offsets, or fewer, with every watermark kept.

Reads one row group at a time, so memory is bounded whatever the size of a segment. Commits nothing: the caller swaps
the new segment in with one record of the journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog import TopicDefinition
from headwater.log.embedded.sealed import (
    ROW_GROUP_ROWS,
    integers,
    sealed_schema,
    write_sealed,
    write_steps,
)
from headwater.log.embedded.segments import FrameRows, SegmentReader, frame_watermarks
from headwater.log.embedded.state import Segment
from headwater.storage import Storage

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass
class _Watermarks:
    """Where the watermark rises, and at which offsets a record stays: what is in neither column becomes a step."""

    rises: list[Integers] = field(default_factory=list)
    levels: list[Integers] = field(default_factory=list)
    kept: list[Integers] = field(default_factory=list)

    def rise(self, offsets: Integers, before: Integers, after: Integers) -> None:
        """Note where it rises."""
        higher = after > before
        self.rises.append(offsets[higher])
        self.levels.append(after[higher])

    def steps(self, end: int) -> tuple[Integers, Integers]:
        """Rises that no kept record shows: those whose next offset has no record."""
        if not self.rises:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        offsets, levels = np.concatenate(self.rises), np.concatenate(self.levels)
        kept = np.concatenate(self.kept) if self.kept else np.empty(0, np.int64)
        following = offsets + 1
        if len(kept):
            place = np.minimum(np.searchsorted(kept, following), len(kept) - 1)
            shown = kept[place] == following
        else:
            shown = np.zeros(len(offsets), dtype=bool)
        hidden = ~shown & (following != end)
        return offsets[hidden], levels[hidden]


class Rewriter:
    """Writes sealed segments from others."""

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
        """One sealed segment `name` in place of neighbours, with the records that `keep` marks (all if None)."""
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
        written = write_sealed(self._storage, name, sealed_schema(topic.storage_schema), tables, about)
        offsets, levels = marks.steps(last.end)
        if len(offsets):
            write_steps(self._storage, name, offsets, levels)
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
        rows = 0
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
                if rows >= ROW_GROUP_ROWS:
                    yield pa.Table.from_batches(waiting)
                    waiting, rows = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)

    def _note(self, segment: Segment, topic: TopicDefinition, marks: _Watermarks) -> None:
        """Collect where the watermark rises within a segment."""
        if segment.kind == "arrow":
            self._note_frames(segment, topic, marks)
            return
        offsets, before = self._columns(segment)
        after = np.append(before[1:], segment.w1) if len(offsets) else before
        known = offsets + 1 == np.append(offsets[1:], segment.end) if len(offsets) else offsets == 0
        steps, levels = self._reader.sealed.steps(segment)
        risen = known & (after > before)
        joined = np.concatenate([offsets[risen], steps])
        order = np.argsort(joined, kind="stable")
        marks.rises.append(joined[order])
        marks.levels.append(np.concatenate([after[risen], levels])[order])

    def _columns(self, segment: Segment) -> tuple[Integers, Integers]:
        tables = list(self._reader.sealed.read(segment, segment.first, segment.end, ["_offset", "_watermark"]))
        if not tables:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        table = pa.concat_tables(tables)
        return integers(table.column("_offset")), integers(table.column("_watermark"))

    def _note_frames(self, segment: Segment, topic: TopicDefinition, marks: _Watermarks) -> None:
        for _, header in self._reader.headers(segment, segment.first):
            if header.w1 <= header.w0:
                continue
            if header.kind == "mark":
                span = np.array([header.first]), np.array([header.w0]), np.array([header.w1])
                marks.rise(*span)
                continue
            rows: FrameRows = next(self._reader.frames(segment, header.first, header.end))
            before = frame_watermarks(rows, topic)
            offsets = np.arange(header.first, header.end)
            marks.rise(offsets, before, np.append(before[1:], header.w1))
