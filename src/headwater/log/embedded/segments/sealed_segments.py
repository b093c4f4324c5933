"""Sealed segments: plain Parquet files, with offset, append time, commit and watermark as columns.

A sealed file holds the topic's columns, then `_op` (keyed topics), `_version` (versioned topics), `_offset`, `_appended_at`,
`_watermark` and `_sequence`, ordered by `_offset`. Where records were removed, or a punctuation was, `<name>.steps` (Parquet
too: `_offset`, `_watermark`) contains the offsets from which the watermark was higher. Checksums of the footer and of every row
group are kept in the log's state and checked before bytes are decoded.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from headwater.core.errors import CorruptionError
from headwater.core.storage import SequentialWriter, Storage
from headwater.log.embedded.journal.journal_state import Segment
from headwater.log.watermarks import NONE

METADATA_FIELDS = (
    pa.field("_offset", pa.int64(), nullable=False),
    pa.field("_appended_at", pa.timestamp("us", "UTC"), nullable=False),
    pa.field("_watermark", pa.timestamp("us", "UTC")),
    pa.field("_sequence", pa.int64(), nullable=False),
)
ROW_GROUP_ROWS = 65_536
ROW_GROUP_BYTES = 128 << 20
"""A row group ends at this number of rows, or at about this size."""
DICTIONARY_SAMPLE = 8_192
DICTIONARY_SHARE = 0.25
"""A column of text gets a dictionary if at most this share of a sample's values is distinct."""
FORMAT = 1

Integers = npt.NDArray[np.int64]


def sealed_schema(storage_schema: pa.Schema) -> pa.Schema:
    """Return the columns of a sealed file for records of a given schema; `_op` is text in it."""
    fields = [pa.field("_op", pa.string()) if f.name == "_op" else f for f in storage_schema]
    return pa.schema([*fields, *METADATA_FIELDS])


@dataclass
class Written:
    """Size and checksums of a finished sealed file, for the log's state."""

    rows: int
    size: int
    checksums: list[str]


def write_sealed(
    storage: Storage, name: str, schema: pa.Schema, tables: Iterable[pa.Table], about: dict[str, Any]
) -> Written:
    """Write and sync a Parquet file of `tables`: one row group per table, or several of at most ROW_GROUP_ROWS rows."""
    with contextlib.closing(storage.open(name, create=True)) as file:
        file.truncate(0)
        sink = pa.PythonFile(SequentialWriter(file), mode="w")
        schema = schema.with_metadata({"headwater": orjson.dumps({"format": FORMAT, **about})})
        pieces = (table.cast(schema) for table in tables)
        sample = next(pieces, schema.empty_table())
        rows = 0
        with pq.ParquetWriter(sink, schema, **_writer_options(sample)) as writer:
            for table in itertools.chain([sample], pieces):
                if table.num_rows:
                    rows += table.num_rows
                    writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        sink.flush()
        file.sync()
        size = file.size()
    with OpenedSealed(storage.path(name)) as opened:
        return Written(rows, size, opened.checksums())


def _writer_options(sample: pa.Table) -> dict[str, Any]:
    """Return writer options that encode numbers and times as deltas, repetitive text as a dictionary: small, and fast to
    read."""
    deltas, dictionary = {}, []
    for field in sample.schema:
        kind = field.type
        if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date(kind):
            deltas[field.name] = "DELTA_BINARY_PACKED"
        elif (pa.types.is_string(kind) or pa.types.is_binary(kind)) and _repeats(sample.column(field.name)):
            dictionary.append(field.name)
    return {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": dictionary,
        "column_encoding": deltas,
        "write_page_checksum": True,
        "write_statistics": True,
        "version": "2.6",
    }


def _repeats(column: pa.ChunkedArray) -> bool:
    start = column.slice(0, DICTIONARY_SAMPLE)
    return bool(len(start) and pc.count_distinct(start).as_py() <= len(start) * DICTIONARY_SHARE)


class OpenedSealed:
    """An open sealed file, mapped into memory."""

    def __init__(self, path: str) -> None:
        self._map = pa.memory_map(path)
        self.data = memoryview(self._map.read_buffer())
        self.file = pq.ParquetFile(pa.BufferReader(pa.py_buffer(self.data)))
        self.checked: set[int] = set()
        groups = [self.file.metadata.row_group(i) for i in range(self.file.metadata.num_row_groups)]
        self.bounds: dict[str, tuple[Integers, Integers]] = {}
        names = self.file.schema_arrow.names
        for column in ("_offset", "_appended_at", "_watermark"):
            if column in names:
                place = _leaf_place(self.file, column)
                self.bounds[column] = _bounds([g.column(place).statistics for g in groups])
        self.groups = len(groups)

    def __enter__(self) -> OpenedSealed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the mapping is released once nothing refers to it."""
        self.file.close()

    def footer(self) -> memoryview:
        """Return the bytes of the footer, with its length and magic."""
        return footer_of(self.data)

    def group_bytes(self, group: int) -> memoryview:
        """Return the bytes of one row group."""
        meta = self.file.metadata.row_group(group)
        columns = [meta.column(i) for i in range(meta.num_columns)]
        starts = [c.dictionary_page_offset or c.data_page_offset for c in columns]
        starts = [min(s, c.data_page_offset) for s, c in zip(starts, columns, strict=True)]
        stops = [s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)]
        return self.data[min(starts) : max(stops)]

    def checksums(self) -> list[str]:
        """Return the checksums of the footer and of each row group."""
        parts = [self.footer(), *(self.group_bytes(i) for i in range(self.groups))]
        return [xxhash.xxh3_64_hexdigest(p) for p in parts]


def footer_of(data: memoryview) -> memoryview:
    """Return the footer of a Parquet file, found by the length that the file states; empty if that length is impossible."""
    if len(data) < 12:
        return data[:0]
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-(length + 8) :] if length + 12 <= len(data) else data[:0]


def _leaf_place(file: pq.ParquetFile, column: str) -> int:
    schema = file.metadata.schema
    return next(i for i in range(len(schema)) if schema.column(i).path == column)


def _bounds(statistics: list[Any]) -> tuple[Integers, Integers]:
    ends: tuple[list[int], list[int]] = ([], [])
    for stat in statistics:
        there = stat is not None and stat.has_min_max
        ends[0].append(stat.min_raw if there else NONE)
        ends[1].append(stat.max_raw if there else NONE)
    return np.array(ends[0], dtype=np.int64), np.array(ends[1], dtype=np.int64)


class SealedReader:
    """Reads sealed segments, checks every byte range before decoding it, and keeps recent files open."""

    def __init__(self, storage: Storage, open_max: int = 64) -> None:
        self._storage = storage
        self._open: OrderedDict[str, OpenedSealed] = OrderedDict()
        self._open_max = open_max

    def forget(self, names: Iterable[str]) -> None:
        """Close files that were removed."""
        for name in names:
            self._open.pop(name, None)

    def close(self) -> None:
        """Close all files."""
        self._open.clear()

    def opened(self, segment: Segment) -> OpenedSealed:
        """Return the open file of a segment, with its footer checked."""
        found = self._open.get(segment.name)
        if found is None:
            if self._storage.size(segment.name) != segment.size:
                raise corrupt(segment, 0, "its length differs from what was written")
            with pa.memory_map(self._storage.path(segment.name)) as mapped:
                data = memoryview(mapped.read_buffer())
                footer, magic = footer_of(data), bytes(data[:4])
                digest = xxhash.xxh3_64_hexdigest(footer)
            if not segment.checksums or digest != segment.checksums[0]:
                raise corrupt(
                    segment, segment.size - len(footer), "the checksum of its footer does not match"
                )
            if magic != b"PAR1":
                raise corrupt(segment, 0, "it does not begin with the magic bytes of Parquet")
            found = OpenedSealed(self._storage.path(segment.name))
            self._open[segment.name] = found
            while len(self._open) > self._open_max:
                self._open.popitem(last=False)
        self._open.move_to_end(segment.name)
        return found

    def group(self, segment: Segment, number: int, columns: list[str]) -> pa.Table:
        """Return columns of a row group after checking its checksum."""
        opened = self.opened(segment)
        if number not in opened.checked:
            data = opened.group_bytes(number)
            if xxhash.xxh3_64_hexdigest(data) != segment.checksums[number + 1]:
                first, last = (int(b[number]) for b in opened.bounds["_offset"])
                at = len(opened.data) - len(opened.data[_start_of(data, opened.data) :])
                raise corrupt(
                    segment, at, f"the checksum of offsets {first} to {last} does not match", last + 1
                )
            opened.checked.add(number)
        return opened.file.read_row_group(number, columns=columns)

    def read(self, segment: Segment, start: int, end: int, columns: list[str]) -> Iterator[pa.Table]:
        """Yield rows with start <= offset < end, one table per row group; `_offset` is read even if it is not in `columns`."""
        opened = self.opened(segment)
        lows, highs = opened.bounds["_offset"]
        needed = columns if "_offset" in columns else [*columns, "_offset"]
        present = [c for c in needed if c in opened.file.schema_arrow.names]
        for number in range(int(np.searchsorted(highs, start)), opened.groups):
            if lows[number] >= end:
                return
            table = self.group(segment, number, present)
            if lows[number] < start or highs[number] >= end:
                offsets = table.column("_offset").to_numpy()
                low, high = np.searchsorted(offsets, [start, end])
                table = table.slice(int(low), int(high - low))
            if table.num_rows:
                yield table

    def verify(self, segment: Segment) -> None:
        """Check every row group and the steps, including those that were checked before; CorruptionError if a checksum
        fails."""
        self.forget([segment.name])
        opened = self.opened(segment)
        for number in range(opened.groups):
            self.group(segment, number, ["_offset"])
        self.steps(segment)

    def first_row(self, segment: Segment, column: str, at_least: int) -> tuple[int, int] | None:
        """Return (offset, value) of the first row whose `column` (ascending; `_appended_at` or `_offset`) is >= `at_least`."""
        opened = self.opened(segment)
        number = int(np.searchsorted(opened.bounds[column][1], at_least))
        if number >= opened.groups:
            return None
        table = self.group(segment, number, ["_offset"] if column == "_offset" else ["_offset", column])
        values = integers(table.column(column))
        place = int(np.searchsorted(values, at_least))
        return int(table.column("_offset")[place].as_py()), int(values[place])

    def first_event(self, segment: Segment, column: str, at_least: int) -> int | None:
        """Return the offset of the first row whose event time is >= `at_least`; row groups are skipped by their statistics."""
        opened = self.opened(segment)
        if column not in opened.bounds:
            groups = (opened.file.metadata.row_group(i) for i in range(opened.groups))
            place = _leaf_place(opened.file, column)
            opened.bounds[column] = _bounds([g.column(place).statistics for g in groups])
        for number in np.flatnonzero(opened.bounds[column][1] >= at_least):
            table = self.group(segment, int(number), ["_offset", column])
            hits = np.flatnonzero(integers(table.column(column)) >= at_least)
            if len(hits):
                return int(table.column("_offset")[int(hits[0])].as_py())
        return None

    def steps(self, segment: Segment) -> tuple[Integers, Integers]:
        """Return (offsets, watermarks from there on) of watermark rises at offsets without a record."""
        if not segment.steps:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        data = self._storage.read(steps_name(segment.name))
        try:
            payload, digest = data[:-8], struct.unpack("<Q", data[-8:])[0]
            if xxhash.xxh3_64_intdigest(payload) != digest:
                raise pa.ArrowInvalid("checksum")
            table = pq.read_table(pa.BufferReader(payload))
        except (pa.ArrowException, struct.error, OSError):
            named = dataclasses.replace(segment, name=steps_name(segment.name))
            raise corrupt(named, 0, "its checksum does not match") from None
        return integers(table.column("_offset")), integers(table.column("_watermark"))


def write_steps(storage: Storage, name: str, offsets: Integers, watermarks: Integers) -> None:
    """Write the steps file of a sealed file, with a checksum at the end."""
    table = pa.table({"_offset": offsets, "_watermark": watermarks})
    sink = pa.BufferOutputStream()
    pq.write_table(
        table, sink, compression="zstd", use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"
    )
    payload = bytes(sink.getvalue())
    storage.write_atomic(steps_name(name), payload + struct.pack("<Q", xxhash.xxh3_64_intdigest(payload)))


def steps_name(name: str) -> str:
    """Return the name of a sealed file's steps file."""
    return f"{name}.steps"


def integers(column: pa.ChunkedArray) -> Integers:
    """Return a column of integers or timestamps as int64, with null as the lowest value."""
    merged = column.combine_chunks()
    if isinstance(merged, pa.ChunkedArray):
        merged = pa.concat_arrays(merged.chunks) if merged.num_chunks else pa.array([], merged.type)
    if pa.types.is_timestamp(merged.type):
        merged = merged.view(pa.int64())
    return np.asarray(merged.fill_null(NONE).to_numpy(zero_copy_only=False), dtype=np.int64)


def _start_of(part: memoryview, whole: memoryview) -> int:
    """Return the position of a slice in the mapping that it was taken from."""
    return int(np.frombuffer(part, np.uint8).ctypes.data - np.frombuffer(whole, np.uint8).ctypes.data)


def corrupt(segment: Segment, byte: int, what: str, next_offset: int | None = None) -> CorruptionError:
    """Return the error for a damaged segment, with the offset to continue from."""
    onward = segment.end if next_offset is None else next_offset
    return CorruptionError(
        f"{segment.name} is damaged at byte {byte}: {what}",
        detail=f"no record of the damaged part was returned; the rest of the partition is readable from offset {onward}",
        hint="restore the file from a backup, or continue reading from that offset; `headwater verify` lists all damage",
        file=segment.name,
        offset=byte,
        next_offset=onward,
    )
