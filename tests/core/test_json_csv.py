"""Values of every type as JSON and as fields of CSV: what is written is read back as the same, and what is no value is refused."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headwater.core.errors import BadRowError
from headwater.core.json_csv import (
    InputRows,
    as_json,
    decoded,
    distinct,
    has_decimal,
    json_decoder,
    json_encoder,
    packed,
    read_json,
    text_decoder,
    unpacked,
)
from tests.raising import raises

NOON = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
TIMES = pa.timestamp("us", "UTC")
PERSON = pa.struct([("born", pa.date32()), ("name", pa.string()), ("balance", pa.decimal128(10, 2))])


@pytest.mark.parametrize(
    ("kind", "value", "written"),
    [
        (pa.int64(), 2**53 + 1, 2**53 + 1),
        (pa.string(), "a", "a"),
        (pa.bool_(), True, True),
        (pa.float64(), 0.25, 0.25),
        (pa.float64(), math.inf, "inf"),
        (pa.float64(), -math.inf, "-inf"),
        (TIMES, NOON, "2026-01-31T12:00:00.000001Z"),
        (pa.date32(), date(2026, 1, 31), "2026-01-31"),
        (pa.decimal128(10, 2), Decimal("12.50"), "12.50"),
        (pa.binary(), b"\x00\xff", "AP8="),
        (pa.list_(pa.date32()), [date(2026, 1, 31), None], ["2026-01-31", None]),
        (pa.list_(pa.int64()), [1, None], [1, None]),
        (
            PERSON,
            {"born": date(2026, 1, 31), "name": None, "balance": Decimal("-1.00")},
            {"born": "2026-01-31", "name": None, "balance": "-1.00"},
        ),
        (pa.map_(pa.string(), pa.binary()), [("a", b"\xff"), ("b", None)], {"a": "/w==", "b": None}),
        (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)], [["a", 1], ["a", 2]]),
        (pa.map_(pa.date32(), pa.int64()), [(date(2026, 1, 31), 1)], [["2026-01-31", 1]]),
        (pa.list_(PERSON), [None, {"balance": Decimal("0.10")}], [None, {"balance": "0.10"}]),
    ],
)
def test_what_is_written_to_json_is_read_back(kind: pa.DataType, value: Any, written: Any) -> None:
    encode, decode = json_encoder(kind), json_decoder(kind)
    plain = value if encode is None else encode(value)
    assert plain == written
    read = read_json(orjson.dumps(plain), exact=has_decimal(kind))
    assert (read if decode is None else decode(read)) == value


def test_nan_is_written_as_text() -> None:
    encode, decode = json_encoder(pa.float64()), json_decoder(pa.float64())
    assert encode is not None
    assert decode is not None
    assert encode(math.nan) == "nan"
    assert math.isnan(decode("nan"))


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.string(), "", ""),
        (pa.int64(), "-7", -7),
        (pa.float64(), "1e3", 1000.0),
        (pa.float64(), "-Infinity", -math.inf),
        (pa.bool_(), "Yes", True),
        (pa.bool_(), "0", False),
        (pa.decimal128(10, 2), "12.5", Decimal("12.5")),
        (TIMES, "2026-01-31T12:00:00.000001Z", NOON),
        (pa.date32(), "2026-01-31", date(2026, 1, 31)),
        (pa.binary(), "AP8=", b"\x00\xff"),
        (pa.list_(pa.decimal128(4, 2)), "[0.10, null]", [Decimal("0.10"), None]),
        (pa.list_(pa.string()), '["a"]', ["a"]),
        (PERSON, '{"born": "2026-01-31"}', {"born": date(2026, 1, 31)}),
        (pa.map_(pa.int64(), pa.string()), '{"7": "a"}', [(7, "a")]),
        (pa.map_(pa.int64(), pa.string()), '[[7, "a"], [8, null]]', [(7, "a"), (8, None)]),
    ],
)
def test_a_field_of_csv_is_read(kind: pa.DataType, text: str, value: Any) -> None:
    assert text_decoder(kind)(text) == value


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (TIMES, 1_700_000_000),
        (TIMES, "yesterday"),
        (pa.date32(), "2026-02-30"),
        (pa.decimal128(10, 2), "1_000"),
        (pa.decimal128(10, 2), "dozen"),
        (pa.decimal128(10, 2), True),
        (pa.decimal128(10, 2), [1]),
        (pa.decimal128(10, 2), "NaN"),
        (pa.decimal128(10, 2), Decimal("1e400")),
        (pa.float64(), "1.5"),
        (pa.binary(), "not base64"),
        (PERSON, {"surname": "a"}),
        (pa.map_(pa.int64(), pa.int64()), {"seven": 1}),
        (pa.map_(pa.int64(), pa.int64()), 7),
    ],
)
def test_a_value_of_json_that_cannot_be_read_is_an_error_of_its_row(kind: pa.DataType, value: Any) -> None:
    decode, rows = json_decoder(kind), InputRows("t", "line {}", "nothing was written")
    assert decode is not None
    with raises(BadRowError, topic="t", column="c", row=3, value=value) as caught:
        decoded(decode, value, pa.field("c", kind), rows, 3)
    assert caught.value.detail == "nothing was written"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), "1_000"),
        (pa.int64(), "1.5"),
        (pa.float64(), "1_0.5"),
        (pa.bool_(), "maybe"),
        (pa.list_(pa.int64()), "[1"),
        (pa.list_(pa.decimal128(4, 2)), "[1e99999999999999999999]"),
    ],
)
def test_a_field_of_csv_that_cannot_be_read_is_a_value_error(kind: pa.DataType, text: str) -> None:
    with pytest.raises(ValueError):
        text_decoder(kind)(text)


def test_json_that_is_nested_too_deeply_is_a_value_error() -> None:
    for exact in (True, False):
        with pytest.raises(ValueError):
            read_json("[" * 100_000, exact=exact)


def test_values_of_another_kind_are_left_to_the_column() -> None:
    """A list where a struct belongs is no error of the decoder: the topic's columns are checked after it."""
    for kind in (pa.list_(pa.date32()), PERSON):
        decode = json_decoder(kind)
        assert decode is not None
        assert decode("text") == "text"
    numbers = json_decoder(pa.float64())
    assert numbers is not None
    assert [numbers(value) for value in (1, Decimal("0.5"), True)] == [1.0, 0.5, True]


def test_decimals_are_found_at_any_depth() -> None:
    assert has_decimal(pa.list_(PERSON))
    assert has_decimal(pa.map_(pa.string(), pa.decimal128(4, 2)))
    assert not has_decimal(pa.struct([("a", pa.list_(pa.float64()))]))


def test_a_name_that_is_there_twice_gets_a_number() -> None:
    assert distinct(["n", "n", "n_2", "n"]) == ["n", "n_2", "n_2_2", "n_3"]


def test_a_row_for_display() -> None:
    row = {"at": NOON, "price": Decimal("1.50"), "raw": b"\xff", 7: None}
    assert orjson.loads(as_json(row)) == {
        "at": "2026-01-31T12:00:00.000001+00:00",
        "price": "1.50",
        "raw": "/w==",
        "7": None,
    }


def test_a_packed_row_is_unpacked_the_same() -> None:
    row = pa.RecordBatch.from_pylist([{"a": 1, "b": [b"x"]}])
    assert unpacked(packed(row)).to_pylist() == row.to_pylist()
