"""Values in an order: ranges over integers of 64 bits hold where the comparison of the values does, exactly."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import UsageError
from headwater.operators.percolator import query_reference
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import parse
from headwater.operators.percolator.query_nodes import (
    Clauses,
    Everything,
    Node,
    ParsedQuery,
    RangeQuery,
    Term,
)
from tests.raising import raises

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("small", pa.int8()),
        ("x", pa.float64()),
        ("half", pa.float32()),
        ("price", pa.decimal128(18, 3)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("wall", pa.timestamp("us")),
        ("title", pa.string()),
        ("country", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("raw", pa.binary()),
    ]
)
FIELDS = Fields.of(SCHEMA, text=["title"])
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b,
    "<": lambda a, b: a < b,
    "=": lambda a, b: a == b,
}

numbers = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-5, 5)
bounds = (
    st.decimals(allow_nan=False, allow_infinity=False) | st.decimals(-5, 5, places=2) | numbers.map(Decimal)
)
floats = st.floats() | st.sampled_from([0.0, -0.0, 0.1, 1.5, math.inf, -math.inf, math.nan, 5e-324])


def meets(node: Node, row: dict[str, Any]) -> bool:
    table = pa.Table.from_pylist([row], schema=SCHEMA)
    return (
        query_reference.match(ParsedQuery("", node), next(iter(query_reference.documents_of(FIELDS, table))))
        is not None
    )


@given(numbers, bounds, st.sampled_from(sorted(SIGNS)))
def test_integers_are_compared_exactly(value: int, bound: Decimal, sign: str) -> None:
    assert meets(parse(f"n:{sign}{bound}", FIELDS).node, {"n": value}) == SIGNS[sign](value, bound)


@given(floats, bounds | floats.filter(math.isfinite).map(Decimal), st.sampled_from(sorted(SIGNS)))
def test_floats_are_compared_exactly_and_nan_is_the_greatest(value: float, bound: Decimal, sign: str) -> None:
    exact: Any = value if math.isinf(value) else None if math.isnan(value) else Fraction(value)
    holds = sign in (">", ">=") if exact is None else SIGNS[sign](exact, Fraction(bound))
    assert meets(parse(f"x:{sign}{bound}", FIELDS).node, {"x": value}) == holds


@given(st.decimals(-(10**14), 10**14, places=3), bounds, st.sampled_from(sorted(SIGNS)))
def test_decimals_are_compared_exactly(value: Decimal, bound: Decimal, sign: str) -> None:
    assert meets(parse(f"price:{sign}{bound}", FIELDS).node, {"price": value}) == SIGNS[sign](value, bound)


@given(st.datetimes(), st.datetimes(), st.sampled_from(sorted(SIGNS)))
def test_instants_are_compared_exactly(value: dt.datetime, bound: dt.datetime, sign: str) -> None:
    text = f"wall:{sign}{bound.isoformat(timespec='microseconds')}"
    assert meets(parse(text, FIELDS).node, {"wall": value}) == SIGNS[sign](value, bound)


@given(st.dates(), st.dates(), st.sampled_from(sorted(SIGNS)))
def test_days_are_compared_exactly(value: dt.date, bound: dt.date, sign: str) -> None:
    assert meets(parse(f"day:{sign}{bound.isoformat()}", FIELDS).node, {"day": value}) == SIGNS[sign](
        value, bound
    )


@given(numbers, st.none() | numbers, st.none() | numbers, st.booleans(), st.booleans())
def test_what_a_predicate_needs_holds_where_it_does(
    value: int, low: int | None, high: int | None, low_in: bool, high_in: bool
) -> None:
    node = FIELDS.between("n", low, high, low_in=low_in, high_in=high_in)
    above = low is None or value > low or (low_in and value == low)
    below = high is None or value < high or (high_in and value == high)
    assert meets(node, {"n": value}) == (above and below)
    assert meets(FIELDS.equals("n", value), {"n": value})


@pytest.mark.parametrize(
    ("column", "value", "node"),
    [
        ("country", "DE", Term("country", "DE")),
        ("title", "Spark Streams", Clauses(must=(Term("title", "spark"), Term("title", "streams")))),
        ("title", "...", Everything()),
        ("tags", "a", Everything()),
        ("raw", b"a", Everything()),
        ("n", None, Everything()),
        ("n", "5", Everything()),
        ("small", True, Everything()),
        ("n", 2.5, RangeQuery("n", (1 << 63) - 1, -(1 << 63))),
        ("price", Decimal("1.5"), RangeQuery("price", 1500, 1500)),
        ("day", dt.date(1970, 1, 2), RangeQuery("day", 1, 1)),
        ("day", dt.datetime(1970, 1, 2), Everything()),
        ("at", dt.datetime(1970, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))), RangeQuery("at", 0, 0)),
        ("wall", dt.datetime(1970, 1, 1, microsecond=7), RangeQuery("wall", 7, 7)),
    ],
)
def test_what_equality_needs(column: str, value: Any, node: Node) -> None:
    assert FIELDS.equals(column, value) == node


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 0.1, 1e308])
def test_every_float_equals_itself(value: float) -> None:
    assert meets(FIELDS.equals("x", value), {"x": value})
    assert meets(FIELDS.between("x", value), {"x": math.nan})


def test_what_is_no_text_is_refused() -> None:
    with raises(UsageError, column="n"):
        Fields.of(SCHEMA, text=["n"])
    with raises(UsageError, field="raw"):
        Fields.of(SCHEMA, default=["raw"])
