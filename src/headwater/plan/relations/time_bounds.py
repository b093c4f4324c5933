"""Time bounds in conditions: how far apart the event times of the two sides of a join can be, and how far a frame extends."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from headwater.spark.catalyst import Jvm, children_of, find, identity, kind

_COMPARISONS = {
    "GreaterThanOrEqual": (1, 0),
    "GreaterThan": (1, 1),
    "LessThanOrEqual": (-1, 0),
    "LessThan": (-1, 1),
    "EqualTo": (0, 0),
}
"""The direction in which a comparison bounds its left side (0: both), and the extra distance that a strict comparison
implies."""
_WRAPPERS = ("Cast", "DatetimeSub", "KnownNotNull", "KnownNullable")
_OF_ALL_ROWS = ("NTile", "PercentRank", "CumeDist")
"""Window functions that depend on the whole partition, whatever the frame."""
Defined = Mapping[str, Jvm]
"""The expressions that common-expression references in a condition stand for, by reference ID."""


@dataclass(frozen=True)
class TimeRange:
    """The range least <= time of the right side - time of the left side <= most, in microseconds; None is unbounded."""

    left: Jvm
    right: Jvm
    least: int | None
    most: int | None

    @property
    def is_closed(self) -> bool:
        """Whether the range is bounded in both directions."""
        return self.least is not None and self.most is not None


class TimeBounds:
    """Reads time bounds from conditions of analysed plans."""

    def of(self, condition: Jvm, left: Collection[int], right: Collection[int]) -> TimeRange | None:
        """Return the bounds that a condition puts on the distance of two times, one of each side; of the first two that it
        compares."""
        found: TimeRange | None = None
        for term, defined in terms(condition, {}):
            compared = _compared(term, defined)
            if compared is None:
                continue
            (one, more), (other, least_more), sign, strict = compared
            if identity(one) in left and identity(other) in right:
                # left + more >= right + least_more, or <=
                sides, difference, sign = (one, other), more - least_more, -sign
            elif identity(one) in right and identity(other) in left:
                sides, difference = (other, one), least_more - more
            else:
                continue
            if found is None:
                found = TimeRange(*sides, None, None)
            if identity(found.left) != identity(sides[0]) or identity(found.right) != identity(sides[1]):
                continue
            least, most = found.least, found.most
            if sign >= 0:
                bound = difference + strict
                least = bound if least is None else max(least, bound)
            if sign <= 0:
                bound = difference - strict
                most = bound if most is None else min(most, bound)
            found = TimeRange(*sides, least, most)
        return found

    def equal(self, condition: Jvm) -> list[tuple[int, int]]:
        """Return the pairs of columns that a condition requires to be equal, by their expression IDs."""
        found = []
        for term, _ in terms(condition, {}):
            if kind(term) in ("EqualTo", "EqualNullSafe"):
                sides = children_of(term)
                if all(kind(side) == "AttributeReference" for side in sides):
                    found.append((identity(sides[0]), identity(sides[1])))
        return found

    def behind(self, named: Jvm) -> int | None:
        """Return how far a window function looks back from its row, in microseconds; None for a row frame or an unbounded
        frame."""
        frame = _frame(named)
        if frame is None or kind(frame.frameType()) == "RowFrame":
            return None
        lower = frame.lower()
        if kind(lower) == "CurrentRow":
            return 0
        span = None if kind(lower) == "UnboundedPreceding" else span_of(lower)
        return None if span is None else max(-span, 0)

    def ahead(self, named: Jvm) -> int | None:
        """Return how far a window function looks ahead, in microseconds; None if by rows or unbounded."""
        frame = _frame(named)
        if frame is None:
            return None
        upper = frame.upper()
        if kind(upper) == "CurrentRow":
            return 0
        if kind(upper) == "UnboundedFollowing":
            return None
        if kind(frame.frameType()) == "RowFrame":
            return 0 if int(upper.eval(None)) <= 0 else None
        return span_of(upper)


def _frame(named: Jvm) -> Jvm | None:
    window = find(named, lambda e: kind(e) == "WindowExpression")
    frame = window.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame" or kind(window.windowFunction()) in _OF_ALL_ROWS:
        return None
    return frame


def terms(condition: Jvm, defined: Defined) -> Iterator[tuple[Jvm, Defined]]:
    """Yield the operands of a condition's top-level ANDs, each with the definitions of the references in it."""
    name = kind(condition)
    if name == "And":
        for child in children_of(condition):
            yield from terms(child, defined)
    elif name == "Between":
        yield from terms(children_of(condition)[0], defined)
    elif name == "With":
        child, *definitions = children_of(condition)
        known = {d.id().toString(): d.child() for d in definitions}
        yield from terms(child, {**defined, **known})
    else:
        yield condition, defined


def _compared(term: Jvm, defined: Defined) -> tuple[tuple[Jvm, int], tuple[Jvm, int], int, int] | None:
    if kind(term) not in _COMPARISONS:
        return None
    one, other = (_meant(side, defined) for side in children_of(term))
    sign, strict = _COMPARISONS[kind(term)]
    if kind(one) == "SubtractTimestamps" and (span := span_of(other)) is not None:
        first, second = (base_and_offset(e, defined) for e in children_of(one))
        if first is None or second is None:
            return None
        return first, (second[0], second[1] + span), sign, strict
    left, right = base_and_offset(one, defined), base_and_offset(other, defined)
    return None if left is None or right is None else (left, right, sign, strict)


def _meant(expression: Jvm, defined: Defined) -> Jvm:
    """Resolve a common-expression reference, and remove a cast that only changes the units of an interval."""
    if kind(expression) == "CommonExpressionRef":
        found = defined.get(expression.id().toString())
        return expression if found is None else _meant(found, defined)
    is_interval = expression.dataType().typeName().startswith("interval")
    if kind(expression) == "Cast" and is_interval and expression.dataType().typeName().endswith("second"):
        return _meant(expression.child(), defined)
    return expression


def base_and_offset(expression: Jvm, defined: Defined) -> tuple[Jvm, int] | None:
    """Return a column and the constant interval added to it, in microseconds; None for any other expression."""
    name = kind(expression)
    if name == "AttributeReference":
        return expression, 0
    if name == "CommonExpressionRef":
        found = defined.get(expression.id().toString())
        return None if found is None else base_and_offset(found, defined)
    if name in _WRAPPERS:
        child = children_of(expression)[0]
        return base_and_offset(child, defined) if child.dataType().typeName() == "timestamp" else None
    if name == "TimestampAddInterval":
        start, interval = children_of(expression)
        begun, span = base_and_offset(start, defined), span_of(interval)
        return None if begun is None or span is None else (begun[0], begun[1] + span)
    return None


def windowed(expression: Jvm) -> Jvm | None:
    """Return the expression that the start of a time window is computed from, a column or not; None if it reads no time."""
    found = find(expression, _is_of_time)
    time = None if found is None else found.child()
    while time is not None and kind(time) in _WRAPPERS and _is_time(children_of(time)[0]):
        time = children_of(time)[0]
    return time


def _is_of_time(expression: Jvm) -> bool:
    return kind(expression) == "PreciseTimestampConversion" and _is_time(expression.child())


def _is_time(expression: Jvm) -> bool:
    return bool(expression.dataType().typeName() == "timestamp")


def span_of(expression: Jvm) -> int | None:
    """Return a constant interval of days, hours, minutes and seconds, in microseconds; None for any other expression."""
    name = expression.dataType().typeName()
    if not name.startswith("interval") or not expression.foldable():
        return None
    value = expression.eval(None)
    return value if isinstance(value, int) and "month" not in name and "year" not in name else None
