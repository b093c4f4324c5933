"""Rows of every form become one batch, or are refused with the topic, the row, the column, the value and why."""

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.conform import OPS, adapt, chunks, conform, is_stream, op_names
from headwater.catalog.definitions import TopicDefinition, add_column, define_topic, widen_column
from headwater.core.errors import BadRowError, UsageError
from headwater.core.types import TIMESTAMP, parse_type
from tests.raising import raises


def of(kind: str, *, nullable: bool = True) -> TopicDefinition:
    """A topic with one column of a type, beside a number."""
    return define_topic(
        "t", pa.schema([pa.field("n", pa.int64()), pa.field("v", parse_type(kind), nullable)])
    )


def refusal(rows: Any, topic: TopicDefinition) -> BadRowError:
    with raises(BadRowError, topic=topic.name) as caught:
        conform(rows, topic)
    error = caught.value
    assert isinstance(error, BadRowError)
    assert isinstance(error.row, int)
    return error


# ---------------------------------------------------------------------- dicts


def test_dicts_become_the_topics_columns() -> None:
    batch = conform([{"v": "a", "n": 1}, {"n": 2}, {}], of("STRING"))
    assert batch.schema == of("STRING").storage_schema
    assert batch.to_pylist() == [{"n": 1, "v": "a"}, {"n": 2, "v": None}, {"n": None, "v": None}]


def test_no_rows_are_an_empty_batch() -> None:
    assert conform([], of("STRING")).num_rows == 0
    assert conform([], of("STRING")).schema == of("STRING").storage_schema


BAD: list[tuple[str, Any]] = [
    ("BOOLEAN", 1),
    ("TINYINT", 128),
    ("INT", 2**31),
    ("INT", True),
    ("INT", "5"),
    ("INT", 1.5),
    ("INT", np.float32(1.5)),
    ("INT", Decimal("1.5")),
    ("BIGINT", 2.0),
    ("BIGINT", 2**63),
    ("BIGINT", True),
    ("BIGINT", math.nan),
    ("FLOAT", 1e300),
    ("DOUBLE", True),
    ("DOUBLE", np.bool_(True)),
    ("DOUBLE", "1.5"),
    ("DOUBLE", 2**60 + 1),
    ("DECIMAL(5,2)", Decimal("1.234")),
    ("DECIMAL(5,2)", Decimal("12345")),
    ("DECIMAL(5,2)", 1.5),
    ("STRING", 5),
    ("STRING", b"bytes"),
    ("STRING", "\ud800"),
    ("BINARY", "text"),
    ("DATE", "2026-03-01"),
    ("DATE", datetime(2026, 3, 1, 12)),
    ("DATE", 5),
    ("TIMESTAMP", "2026-03-01"),
    ("TIMESTAMP", 1_700_000_000),
    ("TIMESTAMP", date(2026, 3, 1)),
    ("ARRAY<INT>", 5),
    ("ARRAY<INT>", [1, "x"]),
    ("MAP<STRING,INT>", {"a": "x"}),
    ("MAP<STRING,INT>", {1: 1}),
    ("STRUCT<x: INT>", {"x": "a"}),
    ("STRUCT<x: INT>", {"x": 1, "unknown": 2}),
    ("ARRAY<STRUCT<x: INT>>", [{"x": 1}, {"y": 1}]),
    ("STRUCT<x: INT>", 5),
    # Arrow alone would take each of these as another value
    ("INT", np.timedelta64(5, "s")),
    ("DATE", np.int64(5)),
    ("DATE", 3.7),
    ("TIMESTAMP", 3.7),
    ("TIMESTAMP", Decimal(3)),
    ("TIMESTAMP", pd.Timestamp("2026-03-01 00:00:00.000000001")),
    ("TIMESTAMP", np.datetime64("2026-03-01T00:00:00.000000001")),
    ("DATE", np.datetime64("2026-03-01T12:00")),
    ("DATE", np.datetime64("20000-01-01")),
    ("ARRAY<INT>", [1.9]),
    ("ARRAY<INT>", np.array([1.5])),
    ("ARRAY<INT>", [True]),
    ("ARRAY<INT>", {1}),
    ("ARRAY<INT>", b"abc"),
    ("ARRAY<STRING>", "abc"),
    ("ARRAY<STRING>", [b"a"]),
    ("ARRAY<BINARY>", ["a"]),
    ("ARRAY<FLOAT>", [1e300]),
    ("ARRAY<DATE>", [datetime(2026, 3, 1, 12)]),
    ("ARRAY<TIMESTAMP>", [3.7]),
    ("ARRAY<ARRAY<INT>>", [[1], [1.5]]),
    ("MAP<STRING,BIGINT>", {"k": 2.7}),
    ("MAP<BIGINT,STRING>", {2.7: "k"}),
    ("MAP<STRING,FLOAT>", {"k": 1e300}),
    ("MAP<STRING,INT>", {None: 1}),
    ("MAP<STRING,INT>", [("a", 1, 2)]),
    ("STRUCT<x: INT>", {"x": 3.99}),
    ("STRUCT<x: INT>", (1,)),
    ("STRUCT<x: DATE>", {"x": datetime(2026, 3, 1, 12)}),
    ("STRUCT<x: DATE>", {"x": 5}),
    ("STRUCT<x: TIMESTAMP>", {"x": 5}),
    ("STRUCT<x: TIMESTAMP>", {"x": pd.Timestamp("2026-03-01 00:00:00.000000001")}),
    ("STRUCT<x: ARRAY<MAP<STRING,FLOAT>>>", {"x": [{"a": 1.0}, {"a": 1e300}]}),
]


@pytest.mark.parametrize(("kind", "value"), BAD)
def test_a_value_that_does_not_fit_is_named(kind: str, value: Any) -> None:
    error = refusal([{"n": 0}, {"n": 1, "v": None}, {"n": 2, "v": value}, {"n": 3}], of(kind))
    assert (error.row, error.column) == (2, "v")
    assert error.value is value
    assert error.expected == kind


GOOD: list[tuple[str, Any, Any]] = [
    ("BIGINT", np.int64(5), 5),
    ("DOUBLE", 3, 3.0),
    ("FLOAT", math.inf, math.inf),
    ("DECIMAL(5,2)", 7, Decimal("7.00")),
    ("DECIMAL(5,2)", Decimal("1.5"), Decimal("1.50")),
    ("BINARY", bytearray(b"x"), b"x"),
    ("TIMESTAMP", datetime(2026, 3, 1, 12), datetime(2026, 3, 1, 12, tzinfo=UTC)),
    (
        "TIMESTAMP",
        datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 3, 1, 10, tzinfo=UTC),
    ),
    ("MAP<STRING,INT>", {"a": 1}, [("a", 1)]),
    ("STRUCT<x: INT, y: INT>", {"x": 1}, {"x": 1, "y": None}),
    ("ARRAY<INT>", (1, 2), [1, 2]),
    ("INT", np.int64(5), 5),
    ("TINYINT", np.uint8(5), 5),
    ("DATE", np.datetime64("2026-03-01"), date(2026, 3, 1)),
    ("DATE", np.datetime64("2026-03-01T00:00:00"), date(2026, 3, 1)),
    ("DATE", np.datetime64("NaT", "D"), None),
    ("TIMESTAMP", np.datetime64("2026-03-01T12"), datetime(2026, 3, 1, 12, tzinfo=UTC)),
    ("TIMESTAMP", np.datetime64("2026-03-01T12:00:00.000001000"), datetime(2026, 3, 1, 12, 0, 0, 1, UTC)),
    ("TIMESTAMP", np.datetime64("NaT", "us"), None),
    ("TIMESTAMP", pd.Timestamp("2026-03-01 12:00:00.000001"), datetime(2026, 3, 1, 12, 0, 0, 1, UTC)),
    (
        "ARRAY<TIMESTAMP>",
        [np.datetime64("2026-03-01T12"), None],
        [datetime(2026, 3, 1, 12, tzinfo=UTC), None],
    ),
    ("ARRAY<INT>", np.array([1, 2]), [1, 2]),
    ("ARRAY<INT>", pd.Series([1, 2]), [1, 2]),
    ("ARRAY<FLOAT>", [1, math.inf, None], [1.0, math.inf, None]),
    ("ARRAY<ARRAY<INT>>", [[1], None, []], [[1], None, []]),
    ("MAP<STRING,INT>", [("a", 1), ("b", None)], [("a", 1), ("b", None)]),
    ("MAP<STRING,STRUCT<x: INT>>", {"a": {}, "b": None}, [("a", {"x": None}), ("b", None)]),
    ("STRUCT<s: STRUCT<x: INT>>", {"s": {}}, {"s": {"x": None}}),
]


@pytest.mark.parametrize(("kind", "value", "held"), GOOD)
def test_values_are_converted_where_none_is_lost(kind: str, value: Any, held: Any) -> None:
    assert conform([{"v": value}], of(kind)).column("v").to_pylist() == [held]


def test_an_unknown_column_is_named() -> None:
    error = refusal([{"n": 1}, {"n": 2, "colour": "red"}], of("STRING"))
    assert (error.row, error.column, error.value) == (1, "colour", "red")
    assert error.expected == "a column of the topic"


@pytest.mark.parametrize("row", [5, "text", None, ["n"], b"bytes"])
def test_a_row_that_is_no_mapping_is_named(row: Any) -> None:
    error = refusal([{"n": 1}, row], of("STRING"))
    assert (error.row, error.value) == (1, row)


@pytest.mark.parametrize("rows", ["text", b"bytes", 5, None, {"n": 1}])
def test_what_are_no_rows_is_a_usage_error(rows: Any) -> None:
    reason = "not-a-list" if isinstance(rows, dict) else "unsupported-rows"
    with raises(UsageError, topic="t", reason=reason):
        conform(rows, of("STRING"))


def test_rows_may_come_from_any_iterable() -> None:
    assert conform(({"n": n} for n in range(3)), of("STRING")).column("n").to_pylist() == [0, 1, 2]


# ---------------------------------------------------------------------- NOT NULL


def test_a_missing_value_of_a_required_column_is_named() -> None:
    error = refusal([{"n": 1, "v": "a"}, {"n": 2}], of("STRING", nullable=False))
    assert (error.row, error.column, error.value, error.expected) == (1, "v", None, "STRING NOT NULL")


def test_an_event_time_is_required() -> None:
    topic = define_topic("t", pa.schema([pa.field("at", TIMESTAMP)]), time="at")
    error = refusal([{"at": datetime(2026, 1, 1)}, {}], topic)
    assert (error.row, error.column, error.expected) == (1, "at", "the event time")


NESTED: list[tuple[str, Any, Any, str]] = [
    ("STRUCT<x: INT NOT NULL>", {"x": 1}, {"x": None}, "v.x"),
    ("STRUCT<s: STRUCT<x: INT NOT NULL>>", {"s": None}, {"s": {}}, "v.s.x"),
    ("ARRAY<STRUCT<x: INT NOT NULL>>", [{"x": 1}, {"x": 2}, None], [{"x": 1}, {"x": None}], "v[].x"),
    ("ARRAY<ARRAY<STRUCT<x: INT NOT NULL>>>", [[], [{"x": 1}] * 4], [[], [{"x": 1}, {}]], "v[][].x"),
    (
        "MAP<STRING,STRUCT<x: INT NOT NULL>>",
        {"a": {"x": 1}, "b": {"x": 2}},
        {"a": {"x": 1}, "b": {}},
        "v{}.x",
    ),
    ("MAP<STRING,ARRAY<STRUCT<x: INT NOT NULL>>>", {"a": [{"x": 1}]}, {"a": [{}]}, "v{}[].x"),
    ("STRUCT<a: ARRAY<STRUCT<x: INT NOT NULL>>>", {"a": [{"x": 1}] * 3}, {"a": [{}]}, "v.a[].x"),
]


@pytest.mark.parametrize("through_arrow", [False, True])
@pytest.mark.parametrize(("kind", "good", "bad", "path"), NESTED)
def test_a_null_inside_a_nested_value_is_named_by_its_row(
    kind: str, good: Any, bad: Any, path: str, through_arrow: bool
) -> None:
    rows: Any = [{"v": good}, {"v": None}, {"v": good}, {"v": bad}, {"v": good}]
    if through_arrow:
        rows = pa.table({"v": pa.array([row["v"] for row in rows], parse_type(kind))})
        rows = pa.concat_tables([rows.slice(0, 2), rows.slice(2)])
    error = refusal(rows, of(kind))
    assert (error.row, error.column, error.value, error.expected) == (3, path, None, "INT NOT NULL")


@pytest.mark.parametrize(("kind", "good", "bad", "path"), NESTED)
def test_slices_are_checked_for_what_they_show(kind: str, good: Any, bad: Any, path: str) -> None:
    table = pa.table({"v": pa.array([bad, good, None, good, bad], parse_type(kind))})
    assert conform(table.slice(1, 3), of(kind)).num_rows == 3


# ---------------------------------------------------------------------- keyed topics

CUSTOMERS = define_topic(
    "customers",
    pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string(), False), pa.field("at", TIMESTAMP)]),
    key=("id",),
    time="at",
)


def test_ops_are_codes_and_upsert_by_default() -> None:
    now = datetime(2026, 1, 1)
    rows = [{"id": 1, "name": "a", "at": now, "_op": op} for op in [None, *OPS]]
    codes = conform(rows, CUSTOMERS, captured=True).column("_op")
    assert codes.to_pylist() == [0, 0, 1, 2, 3, 4]
    assert op_names(codes).to_pylist() == ["upsert", *OPS]


def test_a_tombstone_needs_its_key_and_nothing_else() -> None:
    assert conform([{"id": 1, "_op": "delete"}], CUSTOMERS).num_rows == 1
    error = refusal([{"id": 1, "_op": "delete"}, {"_op": "delete"}], CUSTOMERS)
    assert (error.row, error.column) == (1, "id")


def test_a_living_row_beside_a_tombstone_needs_everything() -> None:
    error = refusal([{"id": 1, "_op": "delete"}, {"id": 2, "at": datetime(2026, 1, 1)}], CUSTOMERS)
    assert (error.row, error.column) == (1, "name")


def test_an_unknown_op_is_named() -> None:
    error = refusal([{"id": 1, "_op": "delete"}, {"id": 1, "_op": "destroy"}], CUSTOMERS)
    assert (error.row, error.column, error.value) == (1, "_op", "destroy")


@pytest.mark.parametrize("op", ["insert", "update", "snapshot"])
def test_what_happened_in_a_database_is_said_by_captured_rows_alone(op: str) -> None:
    rows = [
        {"id": n, "name": "a", "at": datetime(2026, 1, 1), "_op": o} for n, o in enumerate(["upsert", op])
    ]
    batch = conform(rows, CUSTOMERS, captured=True)
    assert conform(batch, CUSTOMERS, captured=True) == batch
    for given_rows in (rows, pa.Table.from_pylist(rows), batch):
        error = refusal(given_rows, CUSTOMERS)
        assert (error.row, error.column, error.value, error.expected) == (
            1,
            "_op",
            op,
            "one of upsert, delete",
        )


@pytest.mark.parametrize("code", [-1, 5, None])
def test_a_code_of_no_op_is_refused(code: int | None) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"id": 1, "name": "a", "at": datetime(2026, 1, 1), "_op": code}], CUSTOMERS.row_schema
    )
    with raises(BadRowError, row=0, column="_op"):
        conform(batch, CUSTOMERS, captured=True)


@pytest.mark.parametrize("op", [5, ["delete"], np.array([1, 2])])
def test_an_op_is_a_text(op: Any) -> None:
    assert refusal([{"id": 1, "_op": op}], CUSTOMERS).column == "_op"


def test_a_topic_without_key_has_no_op() -> None:
    assert refusal([{"n": 1, "_op": "delete"}], of("STRING")).column == "_op"


# ---------------------------------------------------------------------- Arrow and frames


def arrow(values: Any, kind: pa.DataType) -> pa.Table:
    return pa.table({"v": pa.array(values, kind)})


ARROW: list[tuple[str, pa.Table, list[Any]]] = [
    ("BIGINT", arrow([1, None], pa.int8()), [1, None]),
    ("BIGINT", arrow([1], pa.uint64()), [1]),
    ("TINYINT", arrow([1], pa.int64()), [1]),
    ("DOUBLE", arrow([1], pa.int32()), [1.0]),
    ("DOUBLE", arrow([0.5], pa.float32()), [0.5]),
    ("DECIMAL(10,2)", arrow([7], pa.int32()), [Decimal("7.00")]),
    ("DECIMAL(10,2)", arrow([Decimal("1.5")], pa.decimal256(20, 1)), [Decimal("1.50")]),
    ("STRING", arrow(["a"], pa.large_string()), ["a"]),
    ("STRING", arrow(["a"], pa.string_view()), ["a"]),
    ("STRING", pa.table({"v": pa.array(["a", "b", "a"]).dictionary_encode()}), ["a", "b", "a"]),
    ("BINARY", arrow([b"ab"], pa.binary(2)), [b"ab"]),
    ("DATE", arrow([date(2026, 3, 1)], pa.date64()), [date(2026, 3, 1)]),
    (
        "TIMESTAMP",
        arrow([datetime(2026, 3, 1, 12)], pa.timestamp("s")),
        [datetime(2026, 3, 1, 12, tzinfo=UTC)],
    ),
    (
        "TIMESTAMP",
        arrow([1_000_000_000_001_000], pa.timestamp("ns")),
        [datetime(1970, 1, 12, 13, 46, 40, 1, UTC)],
    ),
    (
        "TIMESTAMP",
        arrow([datetime(2026, 3, 1, 12, tzinfo=UTC)], pa.timestamp("ms", tz="Europe/Berlin")),
        [datetime(2026, 3, 1, 12, tzinfo=UTC)],
    ),
    ("ARRAY<INT>", arrow([[1], None], pa.large_list(pa.int64())), [[1], None]),
    ("ARRAY<FLOAT>", arrow([[0.5, math.inf], None], pa.list_(pa.float64())), [[0.5, math.inf], None]),
    (
        "MAP<STRING,FLOAT>",
        arrow([[("a", 0.5)], None], pa.map_(pa.string(), pa.float64())),
        [[("a", 0.5)], None],
    ),
    ("MAP<INT,INT>", arrow([[(1, 2)], None], pa.map_(pa.int64(), pa.int64())), [[(1, 2)], None]),
    ("STRUCT<x: INT>", arrow([{"x": 1}, None], pa.struct([("x", pa.int64())])), [{"x": 1}, None]),
    ("ARRAY<INT>", arrow([None], pa.list_(pa.null())), [None]),
    ("INT", arrow([None, None], pa.null()), [None, None]),
]


@pytest.mark.parametrize(("kind", "table", "held"), ARROW)
def test_arrow_of_other_widths_is_taken(kind: str, table: pa.Table, held: list[Any]) -> None:
    for rows in (table, table.to_batches()[0], table.to_reader()):
        batch = conform(rows, of(kind))
        assert batch.schema == of(kind).storage_schema
        assert batch.column("v").to_pylist() == held


BAD_ARROW: list[tuple[str, pa.Table, Any]] = [
    ("TINYINT", arrow([1, None, 128], pa.int64()), 128),
    ("BIGINT", arrow([1, None, 2**64 - 1], pa.uint64()), 2**64 - 1),
    ("FLOAT", arrow([1, math.inf, 1e300], pa.float64()), 1e300),
    ("DOUBLE", arrow([1, None, 2**60 + 1], pa.int64()), 2**60 + 1),
    ("DECIMAL(5,2)", arrow([None, 1, Decimal("1.234")], pa.decimal128(10, 3)), Decimal("1.234")),
    ("DECIMAL(10,2)", arrow([None, 7, 10**9], pa.int64()), 10**9),
    ("TIMESTAMP", arrow([1_000, None, 1_001], pa.timestamp("ns")), 1_001),
]


@pytest.mark.parametrize(("kind", "table", "value"), BAD_ARROW)
def test_an_arrow_value_that_does_not_fit_is_named(kind: str, table: pa.Table, value: Any) -> None:
    error = refusal(pa.concat_tables([table.slice(0, 1), table.slice(1)]), of(kind))
    assert (error.row, error.column, error.expected) == (2, "v", kind)
    assert error.value == value or kind == "TIMESTAMP"


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        ("STRING", arrow([1], pa.int64())),
        ("INT", arrow(["1"], pa.string())),
        ("INT", arrow([1.0], pa.float64())),
        ("INT", arrow([True], pa.bool_())),
        ("STRING", arrow([b"a"], pa.binary())),
        ("TIMESTAMP", arrow([1], pa.int64())),
        ("TIMESTAMP", arrow([date(2026, 1, 1)], pa.date32())),
        ("DATE", arrow([datetime(2026, 1, 1)], pa.timestamp("us"))),
        ("ARRAY<INT>", arrow([["1"]], pa.list_(pa.string()))),
        ("ARRAY<STRING>", arrow([[1]], pa.list_(pa.int64()))),
        ("STRUCT<x: STRING>", arrow([{"x": 1}], pa.struct([("x", pa.int64())]))),
        ("STRUCT<x: INT>", arrow([{"x": 1, "y": 2}], pa.struct([("x", pa.int32()), ("y", pa.int32())]))),
        ("MAP<STRING,INT>", arrow([[("a", "1")]], pa.map_(pa.string(), pa.string()))),
    ],
)
def test_arrow_of_another_kind_is_never_parsed_or_printed(kind: str, table: pa.Table) -> None:
    error = refusal(table, of(kind))
    assert (error.row, error.column) == (0, "v")


@pytest.mark.parametrize(
    ("kind", "held", "value"),
    [
        ("ARRAY<FLOAT>", pa.list_(pa.float64()), [1.0, 1e300]),
        ("ARRAY<FLOAT>", pa.large_list(pa.float64()), [1e300]),
        ("ARRAY<FLOAT>", pa.list_(pa.float64(), 1), [1e300]),
        ("MAP<STRING,FLOAT>", pa.map_(pa.string(), pa.float64()), [("a", 1e300)]),
        (
            "STRUCT<x: FLOAT, y: INT>",
            pa.struct([("y", pa.int32()), ("x", pa.float64())]),
            {"y": 1, "x": 1e300},
        ),
        ("STRUCT<x: ARRAY<FLOAT>>", pa.struct([("x", pa.list_(pa.float64()))]), {"x": [1e300]}),
    ],
)
def test_a_number_too_large_inside_an_arrow_value_is_named(kind: str, held: pa.DataType, value: Any) -> None:
    table = pa.table({"v": pa.array([value, None, value], held)})
    error = refusal(table, of(kind))
    assert (error.row, error.column, error.value) == (0, "v", value)
    assert conform(table.slice(1, 1), of(kind)).num_rows == 1  # what a slice does not show is not checked


NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 2], "int32").tobytes()), pa.py_buffer(b"a\xff")]
)


@pytest.mark.parametrize("column", ["v", "_op", "unknown"])
def test_text_that_is_not_utf8_is_named(column: str) -> None:
    topic = define_topic("t", pa.schema([("id", pa.int64()), ("v", pa.string())]), key=("id",))
    table = pa.table({"id": [1, 2], column: NOT_UTF8}).slice(1)
    for rows in (table, table.combine_chunks().to_batches()[0]):
        error = refusal(rows, topic)
        assert (error.row, error.column, error.value) == (0, column, b"\xff")


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.list_(pa.string())])
def test_text_that_is_not_utf8_is_named_in_other_forms(kind: pa.DataType) -> None:
    nested = pa.types.is_list(kind)
    array = pa.ListArray.from_arrays([0, 1, 2], NOT_UTF8) if nested else NOT_UTF8.cast(kind)
    error = refusal(pa.table({"v": array}), of("ARRAY<STRING>" if nested else "STRING"))
    assert (error.row, error.column) == (1, "v")


def test_a_table_without_rows_must_fit_too() -> None:
    with raises(UsageError, column="v", expected="STRING", actual="int64"):
        conform(pa.table({"v": pa.array([], pa.int64())}), of("STRING"))
    with raises(UsageError, column="colour", reason="unknown-column"):
        conform(pa.table({"colour": pa.array([], pa.int64())}), of("STRING"))
    assert len(list(chunks(pa.table({"colour": pa.array([], pa.int64())})))) == 1  # and so is seen by conform
    for rows in (
        pa.table({"v": pa.array([], pa.large_string())}),
        pa.table({"v": pa.nulls(0)}),
        pa.table({}),
    ):
        assert conform(rows, of("STRING")).num_rows == 0


def test_a_frame_with_a_column_of_mixed_types_is_a_usage_error() -> None:
    with raises(UsageError, reason="not-convertible"):
        conform(pd.DataFrame({"n": [1, 2], "v": [1, "a"]}), of("STRING"))


def test_an_unknown_arrow_column_is_named() -> None:
    error = refusal(pa.table({"n": [1], "colour": ["red"]}), of("STRING"))
    assert (error.column, error.value) == ("colour", "red")


def test_an_arrow_column_that_is_there_twice_is_a_usage_error() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["n", "n"])
    with raises(UsageError, column="n", reason="duplicate-column"):
        conform(table, of("STRING"))


FRAME = {"n": [1, 2], "v": ["a", None]}


@pytest.mark.parametrize(
    "frame", [pd.DataFrame(FRAME), pd.DataFrame(FRAME, index=["x", "y"]), pl.DataFrame(FRAME)]
)
def test_frames_are_taken(frame: Any) -> None:
    assert conform(frame, of("STRING")).to_pylist() == [{"n": 1, "v": "a"}, {"n": 2, "v": None}]


def test_frames_with_times_categories_and_lists_are_taken() -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 5)
    held = at.replace(tzinfo=UTC)
    assert conform(pd.DataFrame({"v": pd.to_datetime([at])}), of("TIMESTAMP")).column("v").to_pylist() == [
        held
    ]
    assert conform(pl.DataFrame({"v": [at]}), of("TIMESTAMP")).column("v").to_pylist() == [held]
    category = pd.DataFrame({"v": pd.Categorical(["a", "b", "a"])})
    assert conform(category, of("STRING")).column("v").to_pylist() == ["a", "b", "a"]
    assert conform(pl.DataFrame({"v": [[1], [2, 3]]}), of("ARRAY<INT>")).column("v").to_pylist() == [
        [1],
        [2, 3],
    ]


def test_a_bad_value_in_a_frame_is_named_by_its_row() -> None:
    for frame in (pd.DataFrame({"v": [1, 2, 300]}), pl.DataFrame({"v": [1, 2, 300]})):
        error = refusal(frame, of("TINYINT"))
        assert (error.row, error.column, error.value) == (2, "v", 300)


values = st.none() | st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.fixed_dictionaries({"n": values, "v": st.none() | st.text()})))
def test_dicts_and_arrow_give_the_same_batch(rows: list[dict[str, Any]]) -> None:
    topic = of("STRING")
    assert conform(rows, topic) == conform(pa.Table.from_pylist(rows, topic.schema), topic)


# ---------------------------------------------------------------------- evolution and pieces


def test_batches_of_an_earlier_schema_are_adapted() -> None:
    old = of("INT")
    new = add_column(widen_column(old, "v", pa.int64()), pa.field("more", pa.list_(pa.string())))
    batch = adapt(conform([{"n": 1, "v": 2}], old), new.storage_schema)
    assert batch.schema == new.storage_schema
    assert batch.to_pylist() == [{"n": 1, "v": 2, "more": None}]


def test_rows_are_cut_into_pieces_of_a_size() -> None:
    rows = [{"n": n} for n in range(10)]
    for given_rows in (rows, iter(rows), pa.Table.from_pylist(rows), pl.DataFrame(rows)):
        pieces = [conform(piece, of("STRING")).column("n").to_pylist() for piece in chunks(given_rows, 4)]
        assert pieces == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_only_iterators_are_streams() -> None:
    assert is_stream(iter([{"n": 1}]))
    assert is_stream(pa.table({"n": [1]}).to_reader())
    for rows in ([{"n": 1}], pa.table({"n": [1]}), pl.DataFrame({"n": [1]})):
        assert not is_stream(rows)


def test_a_null_below_a_null_struct_is_no_null_of_its_own() -> None:
    kind = parse_type("STRUCT<x: INT NOT NULL, y: STRING>")
    column = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32()), pa.array(["a", None])],
        fields=[kind.field(0), kind.field(1)],
        mask=pa.array([False, True]),
    )
    topic = define_topic("t", pa.schema([pa.field("s", kind)]))
    batch = conform(pa.table({"s": column}), topic)
    assert batch.column("s").to_pylist() == [{"x": 1, "y": "a"}, None]
    assert batch.column("s").field(0).null_count == 0
