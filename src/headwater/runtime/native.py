"""The few expressions whose meaning on Arrow is provably Spark's, evaluated there and so without a trip to the JVM.

Literals, null tests, boolean logic, and comparisons of integers, dates, timestamps, strings, booleans and decimals of
one type. Floats are left to Spark (NaN compares greater than everything there), and so is every function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.runtime.planning.catalyst import Jvm, identity, items, kind

Native = Callable[[pa.RecordBatch, int], pa.Array]

DISABLED = "HEADWATER_NATIVE_OFF"
"""Set to leave every expression to Spark: the tests run both ways."""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}


def native(expression: Jvm, attributes: Sequence[Jvm], result: pa.DataType) -> Native | None:
    """The expression as a function of rows, or None if it is Spark's to evaluate."""
    if os.environ.get(DISABLED):
        return None
    places = {identity(a): i for i, a in enumerate(attributes)}
    made = _node(expression, places)
    if made is None:
        return None

    def whole(rows: pa.RecordBatch, count: int) -> pa.Array:
        value = made(rows, count)
        if isinstance(value, pa.Scalar):
            value = pa.nulls(count, result) if not value.is_valid else pa.repeat(value.cast(result), count)
        return value

    return whole


def _node(e: Jvm, places: dict[int, int]) -> Callable[[pa.RecordBatch, int], Any] | None:
    name = kind(e)
    if name == "AttributeReference":
        place = places.get(identity(e))
        return None if place is None else lambda rows, count: rows.column(place)
    if name == "Literal":
        return _literal(e)
    if name not in _COMPARISONS and name not in ("IsNull", "IsNotNull", "And", "Or", "Not"):
        return None
    children = [_node(c, places) for c in items(e.children())]
    if any(c is None for c in children):
        return None
    first = children[0]
    assert first is not None
    if name == "IsNull":
        return lambda rows, count: pc.is_null(first(rows, count))
    if name == "IsNotNull":
        return lambda rows, count: pc.is_valid(first(rows, count))
    if name == "Not":
        return lambda rows, count: pc.invert(first(rows, count))
    second = children[1]
    assert second is not None
    if name in ("And", "Or"):
        logic = pc.and_kleene if name == "And" else pc.or_kleene
        return lambda rows, count: logic(first(rows, count), second(rows, count))
    if not _comparable(e):
        return None
    compare = _COMPARISONS[name]
    return lambda rows, count: compare(first(rows, count), second(rows, count))


def _comparable(e: Jvm) -> bool:
    left, right = (c.dataType().simpleString() for c in items(e.children()))
    simple = left in (
        "tinyint",
        "smallint",
        "int",
        "bigint",
        "date",
        "timestamp",
        "timestamp_ntz",
        "boolean",
        "string",
    )
    return bool(left == right and (simple or left.startswith("decimal(")))


def _literal(e: Jvm) -> Callable[[pa.RecordBatch, int], Any] | None:
    type_name = e.dataType().simpleString()
    types: dict[str, pa.DataType] = {
        "tinyint": pa.int8(),
        "smallint": pa.int16(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "string": pa.string(),
    }
    if type_name not in types:
        return None
    value = e.value()
    if value is not None and type_name == "string":
        value = value.toString()
    scalar = pa.scalar(value, types[type_name])
    return lambda rows, count: scalar
