"""Variances, covariances and related functions computed relative to a value of the group, for plans that Spark runs over
rows.

Spark computes them relative to a running mean. Where values are large compared to their distances, as times in microseconds
are, most digits of the distances are lost, and which ones depends on the order of rows; near the largest double, a distance
may be infinite in one order and finite in another. Here the argument is replaced by half its distance from the least value
of its group, which a window below computes; this changes the functions by a constant factor at most. The remaining rounding
error is about 1e-13 for a million rows. Where the true value is 0 the result is rounding error only, so rows are sorted by
the arguments, which makes the rounding independent of the original order. The operators keep sums of squares with enough
digits to avoid rounding (`operators.aggregate.aggregate_functions`).
"""

from __future__ import annotations

from collections.abc import Callable

from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    children_of,
    identity,
    items,
    kind,
    kinds_in,
    module,
    option,
    output_of,
)

_SPREADS = frozenset({"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"})
_FACTORS = {
    "CovSample": 4,
    "CovPopulation": 4,
    "RegrSXX": 4,
    "RegrSYY": 4,
    "RegrSXY": 4,
    "RegrReplacement": 4,
    **dict.fromkeys(("Corr", "RegrR2", "RegrSlope", "Skewness", "Kurtosis"), 1),
}
"""Factor by which the value of a function exceeds the result over halved distances."""
_KINDS = {*_SPREADS, *_FACTORS, "RegrIntercept"}
_SESSION = "spark.sessionWindow"


def has_moments(node: Jvm) -> bool:
    """Whether a plan node computes moments from rows."""
    return bool(kinds_in(items(node.expressions())) & _KINDS)


class Centred:
    """An aggregate or window node of a plan with its moments computed relative to values of the groups."""

    def __init__(self, catalyst: Catalyst, node: Jvm) -> None:
        self._c = catalyst
        self._anchors: list[tuple[Jvm, Jvm]] = []
        """Least values of arguments, and the columns that hold them."""
        self._order: list[Jvm] = []
        """Sort order of the rows within a group."""
        self._shown: list[Jvm] | None = None
        self._groups: list[Jvm] = []
        self._keys = 0
        self._firsts: list[tuple[list[Jvm], list[Jvm], Jvm]] = []
        """Row numbers among equal rows, each with its partitioning and order."""
        self.node = self._changed(node)

    def over(self, child: Jvm, node: Jvm | None = None) -> Jvm:
        """Return the node, or a rewritten form of it, over its child."""
        c = self._c
        for alike, order, number in self._firsts:
            child = c.plans.Window(c.seq([number]), c.seq(alike), c.seq(order), child, c.none())
        if self._anchors:
            child = self._anchored(child)
        plan = (node or self.node).withNewChildren(c.seq([child]))
        return plan if self._shown is None else c.plans.Project(c.seq(self._shown), plan)

    def _anchored(self, child: Jvm) -> Jvm:
        """Return the child with columns of least values, and with its rows sorted for the node above."""
        c, e = self._c, self._c.expressions
        whole = e.SpecifiedWindowFrame(
            module(e, "RowFrame"), module(e, "UnboundedPreceding"), module(e, "UnboundedFollowing")
        )
        groups, order = c.seq(self._groups), c.seq(self._order)
        spec = e.WindowSpecDefinition(groups, order, whole)
        found = [
            c.alias(e.WindowExpression(least, spec), str(like.name()), like=like)
            for least, like in self._anchors
        ]
        return c.plans.Window(c.seq(found), groups, order, child, c.none())

    def _sorted(self, by: Jvm) -> Jvm:
        e = self._c.expressions
        return e.SortOrder(by, module(e, "Ascending"), module(e, "NullsFirst"), self._c.seq([]))

    def _changed(self, node: Jvm) -> Jvm:
        c = self._c
        if kind(node) not in ("Aggregate", "Window") or not has_moments(node):
            return node
        if kind(node) == "Aggregate":
            keys = [e.child() if kind(e) == "Alias" else e for e in items(node.groupingExpressions())]
            # sessions are only formed by the aggregate itself: the least value is that of all sessions of the key
            self._groups, self._keys = [e for e in keys if not _is_session(e)], len(keys)
            self._order = [self._sorted(e) for e in keys if _is_session(e)]

            def in_groups(e: Jvm) -> Jvm | None:
                return self._centred(e, lambda a: a) if kind(e) == "AggregateExpression" else None

            shown = [c.rewritten(e, in_groups) for e in items(node.aggregateExpressions())]
            return node.copy(node.groupingExpressions(), c.seq(shown), node.child(), node.hint())
        self._groups, self._order = items(node.partitionSpec()), items(node.orderSpec())

        def in_windows(e: Jvm) -> Jvm | None:
            if kind(e) != "WindowExpression" or kind(e.windowFunction()) != "AggregateExpression":
                return None
            spec = e.windowSpec()
            is_slid = _slides(spec.frameSpecification())
            return self._centred(
                e.windowFunction(), lambda a: c.expressions.WindowExpression(a, spec), is_slid=is_slid
            )

        shown = [c.rewritten(e, in_windows) for e in items(node.windowExpressions())]
        if self._anchors:
            self._shown = [
                *output_of(node.child()),
                *(e.toAttribute() for e in items(node.windowExpressions())),
            ]
        return node.copy(c.seq(shown), node.partitionSpec(), node.orderSpec(), node.child(), node.hint())

    def _centred(self, a: Jvm, over: Callable[[Jvm], Jvm], *, is_slid: bool = False) -> Jvm | None:
        """Return the replacement of a function; `over` wraps an aggregate, such as in a window, whose frame slides if
        `is_slid`."""
        e, function = self._c.expressions, a.aggregateFunction()
        name, values = kind(function), children_of(function)
        if name not in _KINDS or any(v.dataType().typeName() != "double" for v in values):
            return None
        is_distinct, condition = a.isDistinct(), option(a.filter())
        if is_distinct and len(self._groups) < self._keys:
            return None  # the values of a single session are not known here
        if is_slid or name not in _SPREADS:
            self._order += map(self._sorted, values)
        least = [self._least(values, place, condition) for place in range(len(values))]
        if is_distinct:
            condition = self._first(values, condition)
        rows = a.filter() if condition is None else module(self._c.jvm.scala, "Some").apply(condition)
        # Where a frame slides, a view recomputes only the rows near a change, whose least value differs between changes:
        # the value is kept unchanged there, in an expression that makes the rows sorted.
        form = "CASE WHEN _a IS NOT NULL THEN _x END" if is_slid else "_x * 0.5D - _a * 0.5D"
        given = [self._c.written(form, {"_x": v, "_a": x}) for v, x in zip(values, least, strict=True)]

        def called(made: Jvm) -> Jvm:
            return over(made.toAggregateExpression(False, rows))

        if is_slid:
            return called(function.withNewChildren(self._c.seq(given)))
        if name in _SPREADS:
            spread = called(e.aggregate.VariancePop(given[0], True))
            count = self._c.written(
                "CAST(_n AS DOUBLE)", {"_n": called(e.aggregate.Count(self._c.seq(given)))}
            )
            places = [identity(b) for b in items(function.aggBufferAttributes())]
            squares = self._c.written("_v * _n * 4D", {"_v": spread, "_n": count})
            buffers = {places[0]: count, places[2]: squares}
            final = function.evaluateExpression()
            return self._c.rewritten(
                final, lambda x: buffers.get(identity(x)) if kind(x) == "AttributeReference" else None
            )
        found = called(function.withNewChildren(self._c.seq(given)))
        if name == "RegrIntercept":
            slope = called(e.aggregate.RegrSlope(*given))
            y, x = (called(e.aggregate.Max(each)) for each in least)
            return self._c.written("2D * _i + _y - _s * _x", {"_i": found, "_y": y, "_s": slope, "_x": x})
        factor = _FACTORS[name]
        return found if factor == 1 else self._c.written(f"_r * {factor}D", {"_r": found})

    def _first(self, values: list[Jvm], condition: Jvm | None) -> Jvm:
        """Return whether a row is the first of the participating rows of its group with the same arguments.

        Equal values have equal distances, but different values may round to equal distances: DISTINCT applies to the
        values.
        """
        c, e = self._c, self._c.expressions
        alike = [*self._groups, *([] if condition is None else [condition]), *values]
        order = [self._sorted(values[0])]
        upto = e.SpecifiedWindowFrame(
            module(e, "RowFrame"), module(e, "UnboundedPreceding"), module(e, "CurrentRow")
        )
        spec = e.WindowSpecDefinition(c.seq(alike), c.seq(order), upto)
        number = c.alias(e.WindowExpression(e.RowNumber(), spec), f"number {len(self._firsts)}")
        self._firsts.append((alike, order, number))
        first = e.EqualTo(number.toAttribute(), module(e, "Literal").apply(1))
        return first if condition is None else e.And(first, condition)

    def _least(self, values: list[Jvm], place: int, condition: Jvm | None) -> Jvm:
        """Return the least value of an argument among the participating rows of a row's group."""
        c, e = self._c, self._c.expressions
        value = values[place]
        for other in (*values[:place], *values[place + 1 :]):
            value = self._c.written("CASE WHEN _o IS NOT NULL THEN _x END", {"_o": other, "_x": value})
        if condition is not None:
            value = self._c.written("CASE WHEN _f THEN _x END", {"_f": condition, "_x": value})
        anchor = c.alias(value, f"least {len(self._anchors)}").toAttribute().withNullability(True)
        self._anchors.append((e.aggregate.Min(value).toAggregateExpression(), anchor))
        return anchor


def _slides(frame: Jvm) -> bool:
    """Whether a frame is a RANGE with both ends bounded."""
    if kind(frame) != "SpecifiedWindowFrame" or kind(frame.frameType()) != "RangeFrame":
        return False
    return not any(kind(end).startswith("Unbounded") for end in (frame.lower(), frame.upper()))


def _is_session(e: Jvm) -> bool:
    return kind(e) == "AttributeReference" and bool(e.metadata().contains(_SESSION))
