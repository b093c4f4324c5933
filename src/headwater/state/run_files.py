"""A run as bytes: a header of 64 bytes, then a plain Arrow IPC stream of one record batch. Files are in `writer`.

Several small runs of the same columns can lie in one batch, one after the other: that takes hardly longer than one of them.

Columns are kept by position: `_hash`, `_weight`, then the row's own, whose names may repeat, be empty, or be those two.
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
"""Headers begin at multiples of this many bytes of a file, and so do streams."""

_MAGIC = b"HWR1"
_HEADER = struct.Struct("<4sIQQQQQQQ")
_MASK = 2**64 - 1
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_HASH = pa.field("_hash", pa.uint64(), nullable=False)
_WEIGHT = pa.field("_weight", pa.int64(), nullable=False)


@dataclass(frozen=True)
class RunFile:
    """A run made ready to be written: `parts` follow each other, and the stream is all but the first of them."""

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
        """Zeros that follow it, up to where the next may begin."""
        return -(_HEADER.size + self.length) % ALIGNMENT

    @property
    def size(self) -> int:
        """Bytes with the header and the padding."""
        return _HEADER.size + self.length + self.padding

    def at(self, file: str, start: int) -> RunRef:
        """The reference to it, if it is written to that place."""
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
        """The references to the runs that share it, in their order; `ticks` are those of each."""
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


def encode_together(runs: Sequence[Run], ticks: Sequence[tuple[int, int]]) -> RunFile:
    """The bytes that several runs share. They have the same columns, and none is empty; `ticks` are those of each."""
    whole = Run(
        np.concatenate([run.hashes for run in runs]),
        concat_rows([run.rows for run in runs], runs[0].rows.schema),
        np.concatenate([run.weights for run in runs]),
    )
    bounds = [_bounds(run) for run in runs]
    every = min(first for first, _ in ticks), max(last for _, last in ticks)
    return _encoded(whole, every, min(low for low, _ in bounds), max(high for _, high in bounds))


def encode(run: Run, ticks: tuple[int, int]) -> RunFile:
    """The bytes of a run, with one copy of its columns. Dictionary-encoded columns are refused."""
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
    """The run, as views into the file's bytes. Checked: that the bytes are there, and all that describes the columns.

    Not checked: the values; that is `check`.
    """
    _refuse_if_short(file, ref)
    start = ref.offset - _HEADER.size
    magic, head, checksum, length, *fields = _HEADER.unpack(file.slice(start, _HEADER.size).to_pybytes())
    if magic != _MAGIC or length != ref.length or head > ref.length:
        raise _damaged(ref, start, "there is no run where one should begin")
    top = file.slice(ref.offset, head).to_pybytes()
    if xxhash.xxh3_64_intdigest(_HEADER.pack(magic, head, 0, length, *fields) + top) != checksum:
        raise _damaged(ref, start, "the checksum of a run's description does not hold")
    # Faster than to open a stream: most runs have the schema of one that was seen before.
    schema = top[: _message_head(memoryview(top))]
    batch = pa.ipc.read_record_batch(file.slice(ref.offset + len(schema)), _schema(schema))
    if ref.shared:
        if batch.num_rows != ref.shared or ref.first + ref.rows > ref.shared:
            raise _damaged(ref, start, "it does not have the rows that it should share with others")
        batch = batch.slice(ref.first, ref.rows)
    return Run(
        batch.column(0).to_numpy(),
        batch.select(range(2, batch.num_columns)),
        batch.column(1).to_numpy(),
    )


def check(file: pa.Buffer, ref: RunRef) -> None:
    """Read all of a run's bytes and hold them against its checksum."""
    if file.size < ref.end:
        raise _damaged(ref, file.size, f"it ends at byte {file.size}, and a run should end at byte {ref.end}")
    if xxhash.xxh3_64_hexdigest(file.slice(ref.offset, ref.length)) != ref.checksum:
        raise _damaged(
            ref, ref.offset, f"the checksum of the run up to byte {ref.end} of the file does not hold"
        )


def _as_batch(run: Run) -> pa.RecordBatch:
    hashes = pa.array(np.ascontiguousarray(run.hashes, dtype=np.uint64))
    weights = pa.array(np.ascontiguousarray(run.weights, dtype=np.int64))
    if not run.rows.num_columns:  # such a batch may not know its number of rows
        return pa.RecordBatch.from_arrays([hashes, weights], schema=pa.schema([_HASH, _WEIGHT]))
    return run.rows.add_column(0, _WEIGHT, weights).add_column(0, _HASH, hashes)


def _message_head(message: memoryview) -> int:
    """Bytes of an Arrow message ahead of its body."""
    return 8 + int.from_bytes(message[4:8], "little")


@lru_cache(maxsize=1024)
def _refuse_dictionaries(message: bytes) -> None:
    """Looks at a schema once: most runs have that of one that was seen before."""
    for field in _schema(message):
        if pa.types.is_dictionary(field.type):
            raise TypeError(f"column {field.name!r} is dictionary-encoded: cast it to its values first")


@lru_cache(maxsize=1024)
def _schema(message: bytes) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(message))


def _refuse_if_short(file: pa.Buffer, ref: RunRef) -> None:
    if file.size < ref.end:
        detail = f"it ends at byte {file.size}, and a run should end at byte {ref.end}"
        raise _damaged(ref, file.size, detail)


def _damaged(ref: RunRef, byte: int, detail: str) -> CorruptionError:
    name = f"{RUNS}/{ref.file}"
    return CorruptionError(
        f"{name} is damaged at byte {byte}",
        detail=detail,
        hint="`headwater rebuild` makes the views anew from the log",
        file=name,
        offset=byte,
    )
