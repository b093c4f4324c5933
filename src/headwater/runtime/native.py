"""The few expressions whose meaning on Arrow is provably Spark's, evaluated there and so without a trip to the JVM.

Columns, literals, null tests, boolean logic; comparisons of integers, dates, timestamps, strings, booleans and decimals
of one type; checked arithmetic of integers, arithmetic of doubles; widening casts; and what Spark puts around the
buffers of its sums and averages. Comparisons of floats are left to Spark (NaN is greater than everything there), and so
is every other function. Where a checked operation fails, Spark evaluates the expression again and says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.runtime.planning.catalyst import Jvm, identity, items, kind

Native = Callable[[pa.RecordBatch, int], pa.Array]
_Node = Callable[[pa.RecordBatch, int], Any]

DISABLED = "HEADWATER_NATIVE_OFF"
"""Set to leave every expression to Spark: the tests run both ways."""

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
_INTEGERS = {"tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_COMPARABLE = {*_INTEGERS, "date", "timestamp", "timestamp_ntz", "boolean", "string"}
_LITERALS: dict[str, pa.DataType] = {
    **_INTEGERS,
    "boolean": pa.bool_(),
    "string": pa.string(),
    "double": pa.float64(),
}


def native(expression: Jvm, attributes: Sequence[Jvm], result: pa.DataType) -> Native | None:
    """The expression as a function of rows, or None if it is Spark's to evaluate.

    The function may raise pa.ArrowInvalid, where Spark would raise an error too.
    """
    if os.environ.get(DISABLED):
        return None
    made = _Translation({identity(a): i for i, a in enumerate(attributes)}).node(expression)
    if made is None:
        return None

    def whole(rows: pa.RecordBatch, count: int) -> pa.Array:
        value = made(rows, count)
        if isinstance(value, pa.Scalar):
            return pa.nulls(count, result) if not value.is_valid else pa.repeat(value.cast(result), count)
        return value

    return whole


class _Translation:
    """One expression tree, by the places of the columns that it reads."""

    def __init__(self, places: dict[int, int]) -> None:
        self._places = places

    def node(self, e: Jvm) -> _Node | None:
        """The function of a node, or None if it or anything below it is Spark's."""
        name = kind(e)
        if name == "AttributeReference":
            place = self._places.get(identity(e))
            return None if place is None else lambda rows, count: rows.column(place)
        if name == "Literal":
            return _literal(e)
        make = getattr(self, f"_{name.lower()}", None)
        if make is None and name in _COMPARISONS:
            make = self._comparison
        if make is None and name in _ARITHMETIC:
            make = self._arithmetic
        if make is None:
            return None
        children = [self.node(c) for c in items(e.children())]
        if any(c is None for c in children):
            return None
        made: _Node | None = make(e, *children)
        return made

    def _isnull(self, e: Jvm, child: _Node) -> _Node:
        return lambda rows, count: pc.is_null(child(rows, count))

    def _isnotnull(self, e: Jvm, child: _Node) -> _Node:
        return lambda rows, count: pc.is_valid(child(rows, count))

    def _not(self, e: Jvm, child: _Node) -> _Node:
        return lambda rows, count: pc.invert(child(rows, count))

    def _and(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        return _logic(pc.and_kleene, e, left, right)

    def _or(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        return _logic(pc.or_kleene, e, left, right)

    def _comparison(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        a, b = _types(e)
        if a != b or not (a in _COMPARABLE or a.startswith("decimal(")):
            return None
        compare = _COMPARISONS[kind(e)]
        return lambda rows, count: compare(left(rows, count), right(rows, count))

    def _arithmetic(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        a, b = _types(e)
        checked, plain = _ARITHMETIC[kind(e)]
        if a != b or (a != "double" and not (a in _INTEGERS and _mode(e) == "ANSI")):
            return None
        act = plain if a == "double" else checked
        return lambda rows, count: act(left(rows, count), right(rows, count))

    def _remainder(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        a, b = _types(e)
        divisor = items(e.children())[1]
        if a != b or a not in _INTEGERS or kind(divisor) != "Literal" or not (divisor.value() or 0) > 0:
            return None
        by = divisor.value()

        def remainder(rows: pa.RecordBatch, count: int) -> pa.Array:
            value = left(rows, count)
            if isinstance(value, pa.Scalar):
                value = pa.repeat(value, count)
            filled = pc.fill_null(value, 0).to_numpy(zero_copy_only=False)
            # fmod keeps the sign of the dividend, as Java does
            return pa.array(np.fmod(filled, np.asarray(by, filled.dtype)), mask=_null_mask(value))

        return remainder

    def _divide(self, e: Jvm, left: _Node, right: _Node) -> _Node | None:
        """Only the division that averages end in: NULL by zero."""
        if _types(e) != ["double", "double"] or _mode(e) != "LEGACY":
            return None

        def divide(rows: pa.RecordBatch, count: int) -> Any:
            divisor = right(rows, count)
            safe = pc.if_else(pc.equal(divisor, 0.0), pa.scalar(None, pa.float64()), divisor)
            return pc.divide(left(rows, count), safe)

        return divide

    def _cast(self, e: Jvm, child: _Node) -> _Node | None:
        (source,) = _types(e)
        target = e.dataType().simpleString()
        order = list(_INTEGERS)
        if source in order and target in order and order.index(source) <= order.index(target):
            return lambda rows, count: pc.cast(child(rows, count), _INTEGERS[target])
        if target == "double" and source in order:
            return lambda rows, count: pc.cast(child(rows, count), pa.float64(), safe=False)
        return None

    def _if(self, e: Jvm, condition: _Node, then: _Node, otherwise: _Node) -> _Node | None:
        if not all(_harmless(c) for c in items(e.children())[1:]):
            return None  # the branch that is not taken must not be evaluated

        def choose(rows: pa.RecordBatch, count: int) -> Any:
            chosen = pc.fill_null(condition(rows, count), False)
            return pc.if_else(chosen, then(rows, count), otherwise(rows, count))

        return choose

    def _checkoverflowinsum(self, e: Jvm, child: _Node) -> _Node | None:
        # the kernel refuses sums that do not fit
        return child if items(e.children())[0].dataType().equals(e.dataType()) else None

    def _knownnotnull(self, e: Jvm, child: _Node) -> _Node:
        return child

    def _unscaledvalue(self, e: Jvm, child: _Node) -> _Node:
        def unscaled(rows: pa.RecordBatch, count: int) -> pa.Array:
            value = child(rows, count)
            if isinstance(value, pa.Scalar):
                value = pa.repeat(value, count)
            words = np.frombuffer(value.buffers()[1], dtype="<i8")[2 * value.offset :: 2][: len(value)]
            return pa.array(words, mask=_null_mask(value))

        return unscaled

    def _makedecimal(self, e: Jvm, child: _Node) -> _Node | None:
        if e.dataType().precision() > 18:
            return None
        target = pa.decimal128(e.dataType().precision(), e.dataType().scale())
        bound = 10 ** e.dataType().precision()

        def decimal(rows: pa.RecordBatch, count: int) -> pa.Array:
            value = child(rows, count)
            if isinstance(value, pa.Scalar):
                value = pa.repeat(value, count)
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


def _types(e: Jvm) -> list[str]:
    return [str(c.dataType().simpleString()) for c in items(e.children())]


def _mode(e: Jvm) -> str:
    return str(e.evalMode().toString())


def _harmless(e: Jvm) -> bool:
    """Whether it cannot fail: a column or a constant, perhaps within the guard of a sum."""
    if kind(e) == "CheckOverflowInSum":
        return _harmless(items(e.children())[0])
    return kind(e) in ("AttributeReference", "Literal")


def _logic(act: Callable[[Any, Any], Any], e: Jvm, left: _Node, right: _Node) -> _Node | None:
    """AND and OR evaluate the right side only where the left does not decide; so it must not be able to fail."""
    if find_checked(items(e.children())[1]):
        return None
    return lambda rows, count: act(left(rows, count), right(rows, count))


def find_checked(e: Jvm) -> bool:
    """Whether an expression has arithmetic in it that can fail."""
    return kind(e) in (*_ARITHMETIC, "MakeDecimal") or any(find_checked(c) for c in items(e.children()))


def _null_mask(value: pa.Array) -> Any:
    return value.is_null().to_numpy(zero_copy_only=False) if value.null_count else None


def _literal(e: Jvm) -> _Node | None:
    type_name = e.dataType().simpleString()
    if type_name not in _LITERALS:
        return None
    value = e.value()
    if value is not None and type_name == "string":
        value = value.toString()
    scalar = pa.scalar(value, _LITERALS[type_name])
    return lambda rows, count: scalar
