"""Spark SQL's type names and Arrow's types, exact both ways."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import SchemaError
from headwater.core.types import TIMESTAMP, format_type, normalize_schema, normalize_type, parse_type, quote
from tests.raising import raises

numbers = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()]
simple = st.sampled_from(
    [pa.bool_(), *numbers, pa.string(), pa.binary(), pa.date32(), TIMESTAMP, pa.timestamp("us")]
)
decimals = st.integers(1, 38).flatmap(lambda p: st.builds(pa.decimal128, st.just(p), st.integers(0, p)))
field_names = st.text(min_size=1, max_size=8)


def structs(inner: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(pa.field, field_names, inner, st.booleans())
    return st.lists(fields, min_size=1, max_size=3, unique_by=lambda f: f.name).map(pa.struct)


kinds = st.recursive(
    simple | decimals,
    lambda inner: inner.map(pa.list_) | st.builds(pa.map_, simple, inner) | structs(inner),
    max_leaves=6,
)


@given(kinds)
def test_a_type_is_read_back_from_its_name(kind: pa.DataType) -> None:
    assert parse_type(format_type(kind)) == kind


@given(kinds)
def test_types_that_a_topic_holds_are_their_own_normal_form(kind: pa.DataType) -> None:
    normal = normalize_type(kind)
    assert normalize_type(normal) == normal
    assert "TIMESTAMP_NTZ" in format_type(kind) or normal == kind


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("bigint", pa.int64()),
        (" INT ", pa.int32()),
        ("long", pa.int64()),
        ("numeric(5)", pa.decimal128(5, 0)),
        ("DECIMAL", pa.decimal128(10, 0)),
        ("decimal( 10 , 2 )", pa.decimal128(10, 2)),
        ("TIMESTAMP", TIMESTAMP),
        ("timestamp_ntz", pa.timestamp("us")),
        ("ARRAY<ARRAY<STRING>>", pa.list_(pa.list_(pa.string()))),
        ("map<string,int>", pa.map_(pa.string(), pa.int32())),
        (
            "STRUCT<a: INT NOT NULL, `b c` STRING>",
            pa.struct([pa.field("a", pa.int32(), False), ("b c", pa.string())]),
        ),
        ("STRUCT<`a``b`: INT>", pa.struct([("a`b", pa.int32())])),
    ],
)
def test_types_are_read_as_spark_writes_them(text: str, kind: pa.DataType) -> None:
    assert parse_type(text) == kind


@pytest.mark.parametrize(
    "text",
    [
        "",
        "VARCHAR(10)",
        "INTERVAL",
        "DECIMAL(39)",
        "DECIMAL(0)",
        "DECIMAL(5,6)",
        "DECIMAL(a)",
        "DECIMAL(5",
        "ARRAY",
        "ARRAY<",
        "ARRAY<INT",
        "MAP<INT>",
        "INT INT",
        "STRUCT<a>",
        "STRUCT<a: INT NOT>",
        "INT;",
        "UNSIGNED",
    ],
)
def test_what_is_no_type_is_refused(text: str) -> None:
    with raises(SchemaError, type=text):
        parse_type(text)


@pytest.mark.parametrize(
    "kind", [pa.struct([]), pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.uint8(), pa.time32("s")]
)
def test_types_without_an_exact_name_have_none(kind: pa.DataType) -> None:
    with raises(SchemaError, type=str(kind)):
        format_type(kind)


@pytest.mark.parametrize(
    ("given_kind", "held"),
    [
        (pa.large_string(), pa.string()),
        (pa.string_view(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.binary()),
        (pa.dictionary(pa.int32(), pa.large_string()), pa.string()),
        (pa.date64(), pa.date32()),
        (pa.timestamp("ns"), TIMESTAMP),
        (pa.timestamp("us"), TIMESTAMP),
        (pa.timestamp("ms", tz="Europe/Berlin"), TIMESTAMP),
        (pa.decimal256(20, 2), pa.decimal128(20, 2)),
        (pa.large_list(pa.large_string()), pa.list_(pa.string())),
        (pa.list_(pa.int8(), 3), pa.list_(pa.int8())),
        (pa.map_(pa.large_string(), pa.date64()), pa.map_(pa.string(), pa.date32())),
        (
            pa.struct([pa.field("a", pa.large_string(), False)]),
            pa.struct([pa.field("a", pa.string(), False)]),
        ),
    ],
)
def test_arrow_types_are_held_in_one_form(given_kind: pa.DataType, held: pa.DataType) -> None:
    assert normalize_type(given_kind) == held


@pytest.mark.parametrize(
    "kind", [pa.uint64(), pa.duration("s"), pa.decimal256(50, 2), pa.month_day_nano_interval()]
)
def test_a_schema_with_another_type_names_the_column(kind: pa.DataType) -> None:
    with raises(SchemaError, column="x", type=str(kind)):
        normalize_schema(pa.schema([("fine", pa.int64()), ("x", kind)]))


def test_names_are_quoted_where_sql_needs_it() -> None:
    assert [quote(name) for name in ("a", "_b1", "a b", "1a", "a`b", "größe", "a\n")] == [
        "a",
        "_b1",
        "`a b`",
        "`1a`",
        "`a``b`",
        "`größe`",
        "`a\n`",
    ]
