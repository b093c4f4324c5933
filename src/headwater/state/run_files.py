"""The file format of a run: a header of 64 bytes, then a plain Arrow IPC stream of one record batch. `writer` writes files.

Several small runs with the same columns can share a batch, one after the other: writing it takes hardly longer than one run.

Columns are identified by position: `_hash`, `_weight`, then the row's own columns, whose names may repeat, be empty, or
equal those two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import xxhash

from headwater.core.errors import CorruptionError
from headwater.core.storage import Bytes
from headwater.operators.zset.delta import concat_rows
from headwater.operators.zset.runs import Run
from headwater.state.run_refs import RunRef
from headwater.state.state_files import RUNS

ALIGNMENT = 64
"""Alignment in bytes of headers and of streams within a file."""

_MAGIC = b"HWR1"
_HEADER = struct.Struct("<4sIQQQQQQQ")
_MASK = 2**64 - 1
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_HASH = pa.field("_hash", pa.uint64(), nullable=False)
_WEIGHT = pa.field("_weight", pa.int64(), nullable=False)


@dataclass(frozen=True)
class RunFile:
    """An encoded run: `parts` are written in sequence, and the stream is all of them but the first."""

    parts: tuple[Bytes, ...]
    length: int
    rows: int
    low: int
    high: int
    ticks: tuple[int, int]
    checksum: str
    bytes: int

    @property
    def padding(self) -> int:
        """Number of zero bytes after the run, up to the possible start of the next one."""
        return -(_HEADER.size + self.length) % ALIGNMENT

    @property
    def size(self) -> int:
        """Size in bytes, including the header and the padding."""
        return _HEADER.size + self.length + self.padding

    def at(self, file: str, start: int) -> RunRef:
        """Return the reference to the run, given the file and the offset at which it is written."""
        return RunRef(
            file,
            start + _HEADER.size,
            self.length,
            self.rows,
            self.low,
            self.high,
            self.ticks,
            self.checksum,
            self.bytes,
        )

    def parts_at(
        self, file: str, start: int, runs: Sequence[Run], ticks: Sequence[tuple[int, int]]
    ) -> list[RunRef]:
        """Return the references to the runs that share the stream, in their order; `ticks` has the tick range of each."""
        found, first = [], 0
        for run, own in zip(runs, ticks, strict=True):
            low, high = _bounds(run)
            found.append(
                RunRef.quickly(
                    file=file,
                    offset=start + _HEADER.size,
                    length=self.length,
                    rows=len(run),
                    low=low,
                    high=high,
                    ticks=own,
                    checksum=self.checksum,
                    bytes=self.bytes * len(run) // self.rows,
                    first=first,
                    shared=self.rows,
                )
            )
            first += len(run)
        return found


def encode_shared(runs: Sequence[Run], ticks: Sequence[tuple[int, int]]) -> RunFile:
    """Encode several non-empty runs with the same columns as one stream; `ticks` has the tick range of each."""
    whole = Run(
        np.concatenate([run.hashes for run in runs]),
        concat_rows([run.rows for run in runs], runs[0].rows.schema),
        np.concatenate([run.weights for run in runs]),
    )
    bounds = [_bounds(run) for run in runs]
    every = min(first for first, _ in ticks), max(last for _, last in ticks)
    return _encoded(whole, every, min(low for low, _ in bounds), max(high for _, high in bounds))


def encode(run: Run, ticks: tuple[int, int]) -> RunFile:
    """Encode a run, copying its columns once. Raises TypeError for dictionary-encoded columns."""
    return _encoded(run, ticks, *_bounds(run))


def _bounds(run: Run) -> tuple[int, int]:
    return (int(run.hashes[0]), int(run.hashes[-1]) + 1) if len(run) else (0, 0)


def _encoded(run: Run, ticks: tuple[int, int], low: int, high: int) -> RunFile:
    batch = _as_batch(run)
    schema, body = batch.schema.serialize().to_pybytes(), memoryview(batch.serialize())
    _refuse_dictionaries(schema)
    head = len(schema) + _message_head(body)
    length = len(schema) + len(body) + len(_END_OF_STREAM)
    whole = xxhash.xxh3_64(schema)
    whole.update(body)
    whole.update(_END_OF_STREAM)
    fields = (length, len(run), low, (high - 1) & _MASK, *ticks)
    top = schema + bytes(body[: head - len(schema)])
    checksum = xxhash.xxh3_64_intdigest(_HEADER.pack(_MAGIC, head, 0, *fields) + top)
    header = _HEADER.pack(_MAGIC, head, checksum, *fields)
    parts = (header, schema, body, _END_OF_STREAM)
    return RunFile(parts, length, len(run), low, high, ticks, whole.hexdigest(), length - head)


def decode(file: pa.Buffer, ref: RunRef) -> Run:
    """Return a run as views into the bytes of its file.

    The length and the checksum of the column descriptions are verified, the values are not: `check` verifies them.
    """
    _refuse_if_short(file, ref)
    start = ref.offset - _HEADER.size
    magic, head, checksum, length, *fields = _HEADER.unpack(file.slice(start, _HEADER.size).to_pybytes())
    if magic != _MAGIC or length != ref.length or head > ref.length:
        raise _damaged(ref, start, "no run begins here")
    top = file.slice(ref.offset, head).to_pybytes()
    if xxhash.xxh3_64_intdigest(_HEADER.pack(magic, head, 0, length, *fields) + top) != checksum:
        raise _damaged(ref, start, "the checksum of the run's header does not match")
    # Faster than opening a stream: most runs have a schema that is already in the cache.
    schema = top[: _message_head(memoryview(top))]
    batch = pa.ipc.read_record_batch(file.slice(ref.offset + len(schema)), _schema(schema))
    if ref.shared:
        if batch.num_rows != ref.shared or ref.first + ref.rows > ref.shared:
            raise _damaged(ref, start, "the shared stream does not have the rows of the run")
        batch = batch.slice(ref.first, ref.rows)
    return Run(
        batch.column(0).to_numpy(),
        batch.select(range(2, batch.num_columns)),
        batch.column(1).to_numpy(),
    )


def check(file: pa.Buffer, ref: RunRef) -> None:
    """Read all bytes of a run and verify its checksum."""
    if file.size < ref.end:
        raise _damaged(ref, file.size, f"the file ends at byte {file.size}, the run at byte {ref.end}")
    if xxhash.xxh3_64_hexdigest(file.slice(ref.offset, ref.length)) != ref.checksum:
        raise _damaged(ref, ref.offset, f"the checksum of the run up to byte {ref.end} does not match")


def _as_batch(run: Run) -> pa.RecordBatch:
    hashes = pa.array(np.ascontiguousarray(run.hashes, dtype=np.uint64))
    weights = pa.array(np.ascontiguousarray(run.weights, dtype=np.int64))
    if not run.rows.num_columns:  # such a batch may not have a row count
        return pa.RecordBatch.from_arrays([hashes, weights], schema=pa.schema([_HASH, _WEIGHT]))
    return run.rows.add_column(0, _WEIGHT, weights).add_column(0, _HASH, hashes)


def _message_head(message: memoryview) -> int:
    """Return the number of bytes of an Arrow message before its body."""
    return 8 + int.from_bytes(message[4:8], "little")


@lru_cache(maxsize=1024)
def _refuse_dictionaries(message: bytes) -> None:
    """Check a schema; cached, because most runs share their schema with earlier ones."""
    for field in _schema(message):
        if pa.types.is_dictionary(field.type):
            raise TypeError(f"column {field.name!r} is dictionary-encoded: cast it to its values first")


@lru_cache(maxsize=1024)
def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def _refuse_if_short(file: pa.Buffer, ref: RunRef) -> None:
    if file.size < ref.end:
        detail = f"the file ends at byte {file.size}, the run at byte {ref.end}"
        raise _damaged(ref, file.size, detail)


def _damaged(ref: RunRef, byte: int, detail: str) -> CorruptionError:
    name = f"{RUNS}/{ref.file}"
    return CorruptionError(
        f"{name} is damaged at byte {byte}",
        detail=detail,
        hint="`headwater rebuild` rebuilds the views from the log",
        file=name,
        offset=byte,
    )
