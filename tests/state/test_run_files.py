"""Runs come back from disk as they were, without a copy, and damage is noticed."""

import dataclasses
import decimal
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import CorruptionError
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run, arrange, split
from headwater.state.run_files import ALIGNMENT, check, decode, encode, encode_shared
from headwater.state.run_refs import RunRef
from tests.raising import raises

FILE = "000000000001-1-a.runs"


def on_disk(run: Run, start: int = 0) -> tuple[pa.Buffer, RunRef]:
    segment = encode(run, (3, 5))
    data = bytes(start) + b"".join(bytes(part) for part in segment.parts)
    return pa.py_buffer(data + bytes(segment.padding)), segment.at(FILE, start)


def same(one: Run, other: Run) -> bool:
    return (
        one.hashes.tolist() == other.hashes.tolist()
        and one.weights.tolist() == other.weights.tolist()
        and one.rows.equals(other.rows, check_metadata=True)
        and one.rows.schema.names == other.rows.schema.names
    )


def mixed(rows: int = 5) -> Run:
    """Names that repeat, are empty, or are those of the columns beside them; nested types; nulls."""
    struct = pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])
    columns = [
        pa.array([None, *range(1, rows)], pa.int64()),
        pa.array([f"é{n}" if n % 2 else None for n in range(rows)]),
        pa.array([decimal.Decimal(n) / 4 for n in range(rows)], pa.decimal128(12, 2)),
        pa.array([{"x": n, "y": ["a"] * (n % 3)} for n in range(rows)], struct),
        pa.array([[("k", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
        pa.array([n % 2 == 0 for n in range(rows)]),
        pa.array(range(rows), pa.timestamp("us", "UTC")),
        pa.nulls(rows),
    ]
    names = ["a", "a", "", "_hash", "_weight", "_tick", "b", ""]
    fields = [pa.field(name, column.type) for name, column in zip(names, columns, strict=True)]
    batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata={"view": "v"}))
    return arrange(Delta(batch, np.arange(1, rows + 1)), [0])


def test_a_run_comes_back_with_its_names_types_and_nulls() -> None:
    run = mixed()
    file, ref = on_disk(run, 128)
    check(file, ref)
    assert same(decode(file, ref), run)
    assert (ref.rows, ref.ticks, ref.low, ref.high) == (
        5,
        (3, 5),
        int(run.hashes[0]),
        int(run.hashes[-1]) + 1,
    )


def test_columns_are_views_into_the_file() -> None:
    file, ref = on_disk(mixed(1_000), 64)
    run = decode(file, ref)
    inside = range(file.address, file.address + file.size)
    assert run.hashes.ctypes.data in inside
    assert run.weights.ctypes.data in inside
    assert not run.hashes.flags.writeable
    assert run.hashes.ctypes.data % 8 == 0
    addresses = [buffer.address for column in run.rows.columns for buffer in column.buffers() if buffer]
    assert all(address in inside and (address - file.address) % 8 == 0 for address in addresses)
    assert ref.offset % ALIGNMENT == 0


def test_the_stream_is_plain_arrow() -> None:
    file, ref = on_disk(mixed(), 64)
    with pa.ipc.open_stream(file.slice(ref.offset, ref.length)) as stream:
        (batch,) = list(stream)
    assert batch.schema.names[:2] == ["_hash", "_weight"]
    assert batch.num_rows == 5


def test_an_empty_run_comes_back() -> None:
    run = split(mixed(), 0, 0)
    file, ref = on_disk(run)
    assert same(decode(file, ref), run)
    assert (ref.rows, ref.low, ref.high) == (0, 0, 0)
    assert RunRef.from_json(orjson.loads(ref.json)) == ref


def test_a_run_without_columns_keeps_its_number_of_rows() -> None:
    run = Run(np.zeros(2, np.uint64), pa.RecordBatch.from_arrays([], names=[]), np.array([3, 4]))
    back = decode(*on_disk(run))
    assert (back.rows.num_rows, back.rows.num_columns, back.weights.tolist()) == (2, 0, [3, 4])


def test_the_highest_hash_fits() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([1])], names=["n"])
    run = Run(np.array([2**64 - 1], np.uint64), rows, np.array([1]))
    file, ref = on_disk(run)
    assert ref.high == 2**64
    assert RunRef.from_json(orjson.loads(ref.json)) == ref
    assert same(decode(file, ref), run)


def test_a_slice_of_a_run_takes_the_room_of_the_slice() -> None:
    run = mixed(10_000)
    part = split(run, int(run.hashes[10]), int(run.hashes[20]))
    file, ref = on_disk(part)
    assert same(decode(file, ref), part)
    assert file.size < 10_000


def test_dictionary_columns_are_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array(["a"]).dictionary_encode()], names=["d"])
    with pytest.raises(TypeError):
        encode(Run(np.zeros(1, np.uint64), rows, np.ones(1, np.int64)), (1, 1))


@given(st.data())
def test_every_flipped_bit_is_noticed(data: st.DataObject) -> None:
    file, ref = on_disk(mixed(), 64)
    damaged = bytearray(file.to_pybytes())
    at = data.draw(st.integers(64, ref.end - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))

    def read() -> None:
        check(pa.py_buffer(damaged), ref)
        decode(pa.py_buffer(damaged), ref)

    with raises(CorruptionError, file=f"state/runs/{FILE}") as caught:
        read()
    assert caught.value.offset in (64, 128)


def test_damage_to_what_describes_the_columns_is_noticed_without_reading_the_values() -> None:
    file, ref = on_disk(mixed(), 0)
    for at in (0, 20, 64, 200, 600):
        damaged = bytearray(file.to_pybytes())
        damaged[at] ^= 1
        with raises(CorruptionError, file=f"state/runs/{FILE}", offset=0):
            decode(pa.py_buffer(damaged), ref)


@pytest.mark.parametrize("size", [0, 1, 64, 500])
def test_a_file_that_ends_early_is_noticed(size: int, tmp_path: Path) -> None:
    file, ref = on_disk(mixed())
    with raises(CorruptionError, offset=size):
        decode(file.slice(0, size), ref)
    with raises(CorruptionError, offset=size):
        check(file.slice(0, size), ref)


def together(runs: list[Run]) -> tuple[pa.Buffer, list[RunRef]]:
    segment = encode_shared(runs, [(3, 5)] * len(runs))
    data = b"".join(bytes(part) for part in segment.parts)
    return pa.py_buffer(data + bytes(segment.padding)), segment.parts_at(FILE, 0, runs, [(3, 5)] * len(runs))


@given(st.lists(st.integers(2, 9), min_size=2, max_size=5))
def test_runs_that_share_a_stream_come_back_each_by_itself(sizes: list[int]) -> None:
    runs = [mixed(size) for size in sizes]
    file, refs = together(runs)
    for run, ref in zip(runs, refs, strict=True):
        check(file, ref)
        assert same(decode(file, ref), run)
        assert (ref.rows, ref.low, ref.high) == (len(run), int(run.hashes[0]), int(run.hashes[-1]) + 1)
        assert RunRef.from_json(orjson.loads(ref.json)) == ref
    assert len({(ref.offset, ref.length, ref.checksum) for ref in refs}) == 1
    assert sum(ref.size for ref in refs) <= refs[0].length
    assert sum(ref.bytes for ref in refs) <= encode_shared(runs, [(3, 5)] * len(runs)).bytes


def test_a_shared_stream_with_other_rows_than_it_should_have_is_damage() -> None:
    file, (_, ref) = together([mixed(3), mixed(4)])
    with raises(CorruptionError, file=f"state/runs/{FILE}"):
        decode(file, dataclasses.replace(ref, shared=8))
    with raises(CorruptionError, file=f"state/runs/{FILE}"):
        decode(file, dataclasses.replace(ref, first=4))


def test_a_run_with_a_stream_of_its_own_is_written_as_in_format_1() -> None:
    _, ref = on_disk(mixed())
    assert len(orjson.loads(ref.json)) == 10
