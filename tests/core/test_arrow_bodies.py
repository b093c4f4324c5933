"""Arrow streams of clients: valid ones are read as Arrow reads them; claims beyond the bounds, lies and damage are refused."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headwater.core import arrow_bodies
from headwater.core.arrow_bodies import StreamBounds, StreamError, StreamTooLargeError, read_stream

BOUNDS = StreamBounds(rows_max=1_000, bytes_max=1 << 20)
EVERY_TYPE = pa.table(
    {
        "n": [1, None, 3],
        "text": ["a", None, "ccc"],
        "raw": [b"\x00", b"", None],
        "real": [0.5, None, -1.0],
        "flag": [True, False, None],
        "nothing": pa.nulls(3),
        "at": pa.array([datetime(2026, 1, 31, tzinfo=UTC), None, None], pa.timestamp("us", "Europe/Vienna")),
        "day": pa.array([1, 2, None], pa.date32()),
        "price": [Decimal("1.50"), None, Decimal("-2.00")],
        "code": pa.array([b"ab", b"cd", None], pa.binary(2)),
        "list": [[1, 2], [], None],
        "large": pa.array([["x"], None, []], pa.large_list(pa.large_string())),
        "pair": pa.array([[1, 2], [3, 4], None], pa.list_(pa.int8(), 2)),
        "struct": [{"a": 1, "b": ["x"]}, None, {"a": None, "b": []}],
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[[]], [], None], pa.list_(pa.list_(pa.string()))),
        "chosen": pa.array(["x", "y", "x"]).dictionary_encode(),
    }
)


def body(
    batches: Sequence[pa.RecordBatch] | pa.Table, schema: pa.Schema | None = None, **options: Any
) -> bytes:
    """A stream of batches."""
    given = batches.to_batches() if isinstance(batches, pa.Table) else list(batches)
    out = pa.BufferOutputStream()
    write = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(
        out, schema or (batches if isinstance(batches, pa.Table) else given[0]).schema, options=write
    ) as writer:
        for batch in given:
            writer.write_batch(batch)
    return bytes(out.getvalue())


def of(kind: pa.DataType, values: Sequence[Any] = ()) -> bytes:
    """A stream of one column."""
    return body(pa.table({"c": pa.array(list(values), kind)}))


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type_is_read_as_it_was_written(compression: str | None) -> None:
    table, size = read_stream(body(EVERY_TYPE, compression=compression), BOUNDS)
    assert table.equals(EVERY_TYPE)
    assert size > 0


def test_batches_are_read_in_order_and_empty_ones_left_out() -> None:
    parts = [pa.record_batch({"n": list(range(at, at + count))}) for at, count in ((0, 3), (3, 1))]
    empty = parts[0].slice(0, 0)
    table, _ = read_stream(body([empty, parts[0], empty, parts[1]]), BOUNDS)
    assert table.column("n").to_pylist() == [0, 1, 2, 3]
    assert table.column("n").num_chunks == 2


def test_a_stream_without_batches_has_its_columns() -> None:
    table, size = read_stream(body([], pa.schema([("n", pa.int64())])), BOUNDS)
    assert (table.schema, table.num_rows, size) == (pa.schema([("n", pa.int64())]), 0, 0)


def test_a_large_schema_is_read_too() -> None:
    schema = pa.schema([(f"column_{n:05d}", pa.int64()) for n in range(500)])
    stream = body([], schema)
    assert len(stream) > arrow_bodies.SCHEMA_BYTES_REMEMBERED
    assert read_stream(stream, BOUNDS)[0].schema == schema


def test_rows_beyond_the_bound_are_refused() -> None:
    stream = of(pa.int64(), range(11))
    assert read_stream(stream, StreamBounds(11, 1 << 20))[0].num_rows == 11
    with pytest.raises(StreamTooLargeError):
        read_stream(stream, StreamBounds(10, 1 << 20))


def test_rows_without_buffers_have_a_size() -> None:
    stream = body(pa.table({"c": pa.nulls(900)}))
    assert len(stream) < 900
    with pytest.raises(StreamTooLargeError):
        read_stream(stream, StreamBounds(1_000, 900 * arrow_bodies.VALUE_BYTES - 1))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_decompresses_to_more_than_the_bound_is_refused(compression: str) -> None:
    stream = body(pa.table({"c": ["x" * 100_000]}), compression=compression)
    assert len(stream) < 10_000
    assert read_stream(stream, StreamBounds(10, 200_000))[0].num_rows == 1
    with pytest.raises(StreamTooLargeError):
        read_stream(stream, StreamBounds(10, 100_000))


def test_many_batches_and_many_columns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_bodies, "BATCHES_MAX", 3)
    batch = pa.record_batch({"few": [1]})
    assert read_stream(body([batch] * 3), BOUNDS)[0].num_rows == 3
    with pytest.raises(StreamTooLargeError):
        read_stream(body([batch] * 4), BOUNDS)
    monkeypatch.setattr(arrow_bodies, "PARTS_MAX", 3)
    assert read_stream(body([], pa.schema([(f"three{n}", pa.int64()) for n in range(3)])), BOUNDS)
    with pytest.raises(StreamTooLargeError):
        read_stream(body([], pa.schema([(f"four{n}", pa.int64()) for n in range(4)])), BOUNDS)


def test_long_names_and_metadata_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_bodies, "NAMES_BYTES_MAX", 1_000)
    plain = pa.schema([("c", pa.int64())])
    for schema in (
        pa.schema([("c" * 1_001, pa.int64())]),
        plain.with_metadata({"about": "x" * 1_000}),
        pa.schema([plain.field(0).with_metadata({"about": "x" * 1_000})]),
        pa.schema([("c", pa.timestamp("us", "x" * 1_000))]),
    ):
        with pytest.raises(StreamTooLargeError):
            read_stream(body([], schema), BOUNDS)


@pytest.mark.parametrize(
    "kind",
    [
        pa.time64("us"),
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.struct([]),
        pa.list_(pa.int64(), 0),
        pa.binary(0),
        pa.struct([("a", pa.int64()), ("a", pa.string())]),
        pa.list_(pa.struct([("a", pa.time32("s"))])),
        pa.map_(pa.string(), pa.duration("s")),
        pa.dictionary(pa.int32(), pa.date32()),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.string_view(),
    ],
)
def test_a_type_that_no_topic_needs_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(StreamError):
        read_stream(body([], pa.schema([("c", kind)])), BOUNDS)


def test_types_that_are_nested_too_deeply_are_refused() -> None:
    def nested(depth: int) -> pa.DataType:
        kind = pa.int64()
        for _ in range(depth):
            kind = pa.list_(kind)
        return kind

    assert read_stream(of(nested(arrow_bodies.DEPTH_MAX - 1)), BOUNDS)
    with pytest.raises(StreamError):
        read_stream(of(nested(arrow_bodies.DEPTH_MAX)), BOUNDS)


@pytest.mark.parametrize("names", [["a", "a"], [""], ["a", ""]])
def test_columns_have_names_of_their_own(names: list[str]) -> None:
    with pytest.raises(StreamError):
        read_stream(body([], pa.schema([(name, pa.int64()) for name in names])), BOUNDS)


def test_a_dictionary_that_grows_is_refused_and_one_that_is_replaced_is_read() -> None:
    batches = [
        pa.record_batch({"c": pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(values))})
        for values in (["a"], ["a", "b"])
    ]
    assert read_stream(body(batches), BOUNDS)[0].num_rows == 2
    with pytest.raises(StreamError):
        read_stream(body(batches, emit_dictionary_deltas=True), BOUNDS)


def test_a_body_is_one_whole_stream() -> None:
    stream = of(pa.int64(), [1])
    schema_bytes = 8 + int.from_bytes(stream[4:8], "little")
    for wrong in (
        b"",
        stream[:4],
        stream[8:],
        stream[schema_bytes:],
        stream[:schema_bytes] + stream,
        stream + b"x",
        stream + stream,
        b"PAR1" + stream,
        b"\0" * 16,
    ):
        with pytest.raises(StreamError):
            read_stream(wrong, BOUNDS)


def test_a_stream_that_breaks_off_is_refused_or_whole_but_for_its_end() -> None:
    """Its end mark may be missing: a message that is cut never goes unnoticed."""
    stream = body(pa.table({"n": [1, 2], "text": ["a", "b"]}))
    for end in range(len(stream)):
        try:
            table, _ = read_stream(stream[:end], BOUNDS)
        except StreamError:
            continue
        assert table.to_pylist() in ([], [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]), end


def test_damage_is_an_error_of_the_stream_or_another_value() -> None:
    """No damaged byte crashes Arrow, takes memory without a bound, or raises anything but StreamError."""
    chance = random.Random(7)
    streams = [body(EVERY_TYPE, compression=compression) for compression in (None, "zstd")]
    refused = 0
    for number in range(1_500):
        damaged = bytearray(streams[number % 2])
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 127, 128, 255])
        try:
            table, _ = read_stream(bytes(damaged), BOUNDS)
        except StreamError:
            refused += 1
        else:
            assert table.num_rows <= BOUNDS.rows_max
    assert refused > 100
