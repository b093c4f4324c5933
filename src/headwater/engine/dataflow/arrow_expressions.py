"""Translation of the few expressions whose meaning on Arrow is provably that of Spark, to save the call to the JVM.

Translated are: columns, literals, null tests, boolean logic, CASE; comparisons of integers, doubles, dates, timestamps,
strings, booleans and decimals of one type; checked arithmetic of integers, arithmetic of doubles; widening casts; the
expressions from which Spark builds time windows; and the expressions that Spark puts around the buffers of its sums and
averages. Every other function is left to Spark.

Both sides of AND and OR, and all branches of a CASE, are evaluated for all rows. If a checked operation fails there,
Spark evaluates the whole expression again and reports the error, or finds that there is none.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.spark.catalyst import Jvm, children_of, identity, kind

Native = Callable[[pa.RecordBatch, int], pa.Array]

FAILURES = (pa.ArrowInvalid, pa.ArrowNotImplementedError)
"""Errors that a native expression may raise; the expression is then evaluated by Spark instead."""

DISABLED = "HEADWATER_NATIVE_OFF"
"""Environment variable that leaves every expression to Spark if it is set; the tests run both ways."""

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "EqualTo": pc.equal,
    "LessThan": pc.less,
    "LessThanOrEqual": pc.less_equal,
    "GreaterThan": pc.greater,
    "GreaterThanOrEqual": pc.greater_equal,
}
_ARITHMETIC: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "Add": (pc.add_checked, pc.add),
    "Subtract": (pc.subtract_checked, pc.subtract),
    "Multiply": (pc.multiply_checked, pc.multiply),
}
_ON_DOUBLES: dict[str, Callable[[Any, Any], Any]] = {
    # NaN equals itself and is greater than everything else
    "EqualTo": lambda a, b: pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b))),
    "LessThan": lambda a, b: pc.or_(pc.less(a, b), pc.and_not(pc.is_nan(b), pc.is_nan(a))),
    "LessThanOrEqual": lambda a, b: pc.or_(pc.less_equal(a, b), pc.is_nan(b)),
    "GreaterThan": lambda a, b: pc.or_(pc.greater(a, b), pc.and_not(pc.is_nan(a), pc.is_nan(b))),
    "GreaterThanOrEqual": lambda a, b: pc.or_(pc.greater_equal(a, b), pc.is_nan(a)),
}
_INTEGERS = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_TIMES = {"timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us")}
_COMPARABLE = {*_INTEGERS, *_TIMES, "date", "boolean", "string"}
_LITERALS: dict[str, pa.DataType] = {
    **_INTEGERS,
    "boolean": pa.bool_(),
    "string": pa.string(),
    "double": pa.float64(),
}


def native(expression: Jvm, attributes: Sequence[Jvm], result: pa.DataType) -> Native | None:
    """Return a function that evaluates the expression over rows, or None if Spark must evaluate it.

    The function may raise one of `FAILURES`. The caller must then evaluate the expression with Spark, which may find no error.
    """
    if os.environ.get(DISABLED):
        return None
    translation = _Translation({identity(a): i for i, a in enumerate(attributes)})
    made = translation.node(expression)
    if made is None:
        return None
    shared = translation.shared

    def whole(rows: pa.RecordBatch, count: int) -> pa.Array:
        value = made.of(_Rows(rows, count, shared))
        if isinstance(value, pa.Scalar):
            return pa.nulls(count, result) if not value.is_valid else pa.repeat(value.cast(result), count)
        return value

    return whole


def may_fail(e: Jvm) -> bool:
    """Whether a native expression may raise one of `FAILURES`."""
    checked = (
        *_ARITHMETIC,
        "MakeDecimal",
        "If",
        "CaseWhen",
        "SubtractTimestamps",
        "TimestampAddInterval",
        "Sequence",
    )
    return kind(e) in checked or any(may_fail(c) for c in children_of(e))


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows that an expression is evaluated for, with the values so far of the subexpressions that occur more than once."""

    rows: pa.RecordBatch
    count: int
    shared: frozenset[int]
    known: dict[int, Any] = field(default_factory=dict)


_Values = Callable[[_Rows], Any]


@dataclass(frozen=True, eq=False)
class _Node:
    """A subexpression; equal subexpressions have the same number."""

    act: _Values
    number: int

    def of(self, rows: _Rows) -> Any:
        """Return the value for each row, or a scalar if the value is the same for all rows."""
        if self.number not in rows.shared:
            return self.act(rows)
        if self.number not in rows.known:
            rows.known[self.number] = self.act(rows)
        return rows.known[self.number]

    def column(self, rows: _Rows) -> pa.Array:
        """Return the value for each row, as an array."""
        value = self.of(rows)
        return pa.repeat(value, rows.count) if isinstance(value, pa.Scalar) else value


class _Translation:
    """The translation of one expression tree; `places` has the column index of each attribute ID."""

    def __init__(self, places: dict[int, int]) -> None:
        self._places = places
        self._numbers: dict[Hashable, int] = {}
        self._met: Counter[int] = Counter()

    @property
    def shared(self) -> frozenset[int]:
        """The numbers of the subexpressions that occur more than once."""
        return frozenset(number for number, times in self._met.items() if times > 1)

    def node(self, e: Jvm) -> _Node | None:
        """Return the translation of a subexpression, or None if Spark must evaluate it or any subexpression below it."""
        name = kind(e)
        if name == "AttributeReference":
            place = self._places.get(identity(e))
            return None if place is None else self._leaf((name, place), lambda rows: rows.rows.column(place))
        if name == "Literal":
            scalar = _literal(e)
            return None if scalar is None else self._leaf((name, repr(scalar)), lambda rows: scalar)
        translate = _TRANSLATIONS.get(name)
        if translate is None:
            return None
        children: list[_Node] = []
        for child in children_of(e):
            made = self.node(child)
            if made is None:
                return None
            children.append(made)
        act = translate(e, *children)
        if act is None:
            return None
        which = e.ordinal() if name == "GetStructField" else None  # else type and children identify it
        number = self._number((name, e.dataType().simpleString(), which, *(c.number for c in children)))
        self._met[number] += 1
        return _Node(act, number)

    def _leaf(self, what: Hashable, act: _Values) -> _Node:
        return _Node(act, self._number(what))

    def _number(self, what: Hashable) -> int:
        return self._numbers.setdefault(what, len(self._numbers))


def _is_null(e: Jvm, child: _Node) -> _Values:
    return lambda rows: pc.is_null(child.of(rows))


def _is_not_null(e: Jvm, child: _Node) -> _Values:
    return lambda rows: pc.is_valid(child.of(rows))


def _not(e: Jvm, child: _Node) -> _Values:
    return lambda rows: pc.invert(child.of(rows))


def _and(e: Jvm, left: _Node, right: _Node) -> _Values:
    return lambda rows: pc.and_kleene(left.of(rows), right.of(rows))


def _or(e: Jvm, left: _Node, right: _Node) -> _Values:
    return lambda rows: pc.or_kleene(left.of(rows), right.of(rows))


def _comparison(e: Jvm, left: _Node, right: _Node) -> _Values | None:
    a, b = _types(e)
    if a != b or not (a in _COMPARABLE or a == "double" or a.startswith("decimal(")):
        return None
    compare = (_ON_DOUBLES if a == "double" else _COMPARISONS)[kind(e)]
    return lambda rows: compare(left.of(rows), right.of(rows))


def _in(e: Jvm, value: _Node, *among: _Node) -> _Values | None:
    types = _types(e)
    if types[0] not in _COMPARABLE or len(set(types)) > 1:
        return None
    literals = [_literal(c) if kind(c) == "Literal" else None for c in children_of(e)[1:]]
    if any(scalar is None or not scalar.is_valid for scalar in literals):
        return None
    chosen = pa.array(literals)

    def found(rows: _Rows) -> pa.Array:
        column = value.column(rows)
        inside = pc.is_in(column, value_set=chosen)
        return pc.if_else(pc.is_valid(column), inside, None) if column.null_count else inside

    return found


def _arithmetic(e: Jvm, left: _Node, right: _Node) -> _Values | None:
    a, b = _types(e)
    checked, plain = _ARITHMETIC[kind(e)]
    if a != b or (a != "double" and not (a in _INTEGERS and _mode(e) == "ANSI")):
        return None
    act = plain if a == "double" else checked
    return lambda rows: act(left.of(rows), right.of(rows))


def _remainder(e: Jvm, left: _Node, right: _Node) -> _Values | None:
    a, b = _types(e)
    divisor = children_of(e)[1]
    if a != b or a not in _INTEGERS or kind(divisor) != "Literal" or not (divisor.value() or 0) > 0:
        return None
    by = divisor.value()

    def remainder(rows: _Rows) -> pa.Array:
        value = left.column(rows)
        filled = pc.fill_null(value, 0).to_numpy(zero_copy_only=False)
        # fmod keeps the sign of the dividend, as Java does
        return pa.array(np.fmod(filled, np.asarray(by, filled.dtype)), mask=_null_mask(value))

    return remainder


def _divide(e: Jvm, left: _Node, right: _Node) -> _Values | None:
    """Translate only the division at the end of averages, where division by zero is NULL."""
    if _types(e) != ["double", "double"] or _mode(e) != "LEGACY":
        return None

    def divide(rows: _Rows) -> Any:
        divisor = right.of(rows)
        safe = pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
        return pc.divide(left.of(rows), safe)

    return divide


def _cast(e: Jvm, child: _Node) -> _Values | None:
    (source,) = _types(e)
    target = e.dataType().simpleString()
    if source == target and source in _TIMES:
        return child.of
    order = list(_INTEGERS)
    if source in order and target in order and order.index(source) <= order.index(target):
        return lambda rows: pc.cast(child.of(rows), _INTEGERS[target])
    if target == "double" and source in order:
        return lambda rows: pc.cast(child.of(rows), pa.float64(), safe=False)
    return None


def _case_when(e: Jvm, *parts: _Node) -> _Values:
    pairs = list(zip(parts[::2], parts[1::2], strict=False))

    def choose(rows: _Rows) -> Any:
        value = parts[-1].of(rows) if len(parts) % 2 else None
        for condition, then in reversed(pairs):
            chosen, taken = pc.fill_null(condition.of(rows), False), then.of(rows)
            value = pc.if_else(chosen, taken, pa.scalar(None, taken.type) if value is None else value)
        return value

    return choose


def _converted_time(e: Jvm, child: _Node) -> _Values | None:
    target = {**_TIMES, **_INTEGERS}[e.dataType().simpleString()]
    return lambda rows: pc.cast(child.of(rows), target)


def _subtract_timestamps(e: Jvm, left: _Node, right: _Node) -> _Values | None:
    a, b = _types(e)
    if a != b or a not in _TIMES or e.legacyInterval():
        return None
    return lambda rows: pc.subtract_checked(left.of(rows), right.of(rows))


def _add_interval(e: Jvm, time: _Node, interval: _Node) -> _Values | None:
    a, b = _types(e)
    if a not in _TIMES or b != "interval day to second":  # days have 24 hours, because times are UTC
        return None
    return lambda rows: pc.add_checked(time.of(rows), interval.of(rows))


def _sequence(e: Jvm, first: _Node, last: _Node, *step: _Node) -> _Values | None:
    """Translate only an ascending sequence whose step is a positive literal."""
    by = children_of(e)[-1]
    if _types(e) != ["bigint"] * 3 or kind(by) != "Literal" or not (by.value() or 0) > 0:
        return None

    def listed(rows: _Rows) -> pa.Array:
        low, high = first.column(rows), last.column(rows)
        absent = pc.or_(pc.is_null(low), pc.is_null(high)).to_numpy(zero_copy_only=False)
        starts, ends = (pc.fill_null(c, 0).to_numpy(zero_copy_only=False) for c in (low, high))
        lengths = np.where(absent, 0, (ends - starts) // by.value() + 1)
        if (lengths < 0).any() or (starts > ends)[~absent].any() or lengths.sum() >= 2**31:
            raise pa.ArrowInvalid("a sequence goes the other way, or is too long")
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        steps = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        values = np.repeat(starts, lengths) + steps * by.value()
        mask = pa.array(absent) if absent.any() else None
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values), mask=mask)

    return listed


def _named_struct(e: Jvm, *parts: _Node) -> _Values | None:
    literals = children_of(e)[::2]
    if any(kind(c) != "Literal" for c in literals):
        return None
    names = [c.value().toString() for c in literals]
    return lambda rows: pa.StructArray.from_arrays([p.column(rows) for p in parts[1::2]], names=names)


def _struct_field(e: Jvm, child: _Node) -> _Values:
    place = e.ordinal()
    return lambda rows: pc.struct_field(child.column(rows), [place])


def _sum_in_range(e: Jvm, child: _Node) -> _Values | None:
    # the aggregation kernel already rejects sums that do not fit
    return child.of if children_of(e)[0].dataType().equals(e.dataType()) else None


def _as_it_is(e: Jvm, child: _Node) -> _Values:
    return child.of


def _unscaled_value(e: Jvm, child: _Node) -> _Values:
    def unscaled(rows: _Rows) -> pa.Array:
        value = child.column(rows)
        words = np.frombuffer(value.buffers()[1], dtype="<i8")[2 * value.offset :: 2][: len(value)]
        return pa.array(words, mask=_null_mask(value))

    return unscaled


def _make_decimal(e: Jvm, child: _Node) -> _Values | None:
    if e.dataType().precision() > 18:
        return None
    target = pa.decimal128(e.dataType().precision(), e.dataType().scale())
    bound = 10 ** e.dataType().precision()

    def decimal(rows: _Rows) -> pa.Array:
        value = child.column(rows)
        words = np.empty((len(value), 2), dtype="<i8")
        words[:, 0] = pc.fill_null(value, 0).to_numpy(zero_copy_only=False)
        words[:, 1] = words[:, 0] >> 63
        if (np.abs(words[:, 0].astype(np.float64)) >= bound).any():
            raise pa.ArrowInvalid("the decimal has too many digits")
        valid = None
        if value.null_count:
            valid = pa.py_buffer(np.packbits(~_null_mask(value), bitorder="little"))
        return pa.Array.from_buffers(target, len(value), [valid, pa.py_buffer(words)])

    return decimal


_TRANSLATIONS: dict[str, Callable[..., _Values | None]] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    **dict.fromkeys(_ARITHMETIC, _arithmetic),
    "IsNull": _is_null,
    "IsNotNull": _is_not_null,
    "Not": _not,
    "And": _and,
    "Or": _or,
    "In": _in,
    "Remainder": _remainder,
    "Divide": _divide,
    "Cast": _cast,
    "If": _case_when,
    "CaseWhen": _case_when,
    "PreciseTimestampConversion": _converted_time,
    "SubtractTimestamps": _subtract_timestamps,
    "TimestampAddInterval": _add_interval,
    "Sequence": _sequence,
    "CreateNamedStruct": _named_struct,
    "GetStructField": _struct_field,
    "CheckOverflowInSum": _sum_in_range,
    "KnownNotNull": _as_it_is,
    "KnownNullable": _as_it_is,
    "UnscaledValue": _unscaled_value,
    "MakeDecimal": _make_decimal,
}
"""By the name of Spark's expression class: a function that takes the expression and its translated children, and
returns the evaluator, or None if Spark must evaluate the expression."""


def _types(e: Jvm) -> list[str]:
    return [str(c.dataType().simpleString()) for c in children_of(e)]


def _mode(e: Jvm) -> str:
    return str(e.evalMode().toString())


def _null_mask(value: pa.Array) -> Any:
    return value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None


def _literal(e: Jvm) -> pa.Scalar | None:
    type_name = e.dataType().simpleString()
    if type_name not in _LITERALS:
        return None
    value = e.value()
    if value is not None and type_name == "string":
        value = value.toString()
    return pa.scalar(value, _LITERALS[type_name])
