"""Functions that Spark lacks, expressed with Spark's functions: `cumulate_window` and `corrected_time`.

`cumulate_window(at, step, size)` returns the windows that contain `at` and grow by `step` up to `size`: for a row at 10:07,
in steps of five minutes up to an hour, [10:00, 10:10), [10:00, 10:15) and so on to [10:00, 11:00). Full windows start at
multiples of the size since 1970 in UTC. In the parsed plan the call becomes a hopping window whose slide is the size and
whose start is the step: it can be used wherever `window` can, and Spark resolves its names and types. In the analysed plan
these windows, recognized by a mark around their time, are replaced by cumulative ones: a list of ends, exploded to a row
per end. The column has the metadata of a time window (`TIME_WINDOW`), since the row's time alone determines it. Hopping
windows are also rewritten to such a list, so that an aggregate over either kind needs no row per window of a row (window
pre-aggregation).

`corrected_time(occurred_at, sent_at, received_at)` is `occurred_at + (received_at - sent_at)`: the time of an event by the
receiver's clock, where the sender's clock is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    find,
    identity,
    items,
    kind,
    module,
    option,
    output_of,
)
from headwater.sql.ordered_aggregates import SparkQuery, spark_query

TIME_WINDOW = "spark.timeWindow"
"""Metadata key of a column that is a window determined by the row's time: tumbling, hopping or cumulative."""

_CUMULATE, _CORRECTED = "cumulate_window", "corrected_time"
_TAKES = {_CUMULATE: "a time, a step and a size", _CORRECTED: "occurred_at, sent_at and received_at"}
_USES = {
    _CUMULATE: "cumulate_window(at, '5 minutes', '1 hour')",
    _CORRECTED: "corrected_time(occurred_at, sent_at, received_at)",
}
_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
_DAY = 86_400_000_000


def with_own_functions(catalyst: Catalyst, plan: Jvm, text: str, refuse: Refuse) -> Jvm:
    """Return a parsed plan in which Headwater's functions are replaced by Spark's; `text` is the SQL of the query.

    A function that the workspace has declared under one of these names takes precedence.
    """
    named = {name for name in (_CUMULATE, _CORRECTED) if name in text.lower()}
    named = {name for name in named if not catalyst.session.catalog().functionExists(name)}
    if not named:
        return plan
    # the queries of WITH are not part of the tree until they are substituted
    plan = module(catalyst.jvm.org.apache.spark.sql.catalyst.analysis, "CTESubstitution").apply(plan)
    return rewritten_plan(catalyst, plan, _Parsed(catalyst, named, text, refuse).changed)


def cumulated(catalyst: Catalyst, plan: Jvm, text: str) -> Jvm:
    """Return an analysed plan in which overlapping windows, hopping or cumulative, are generated from a list of their ends."""
    return rewritten_plan(catalyst, plan, _Analysed(catalyst).changed) if "window" in text.lower() else plan


def ending_after(catalyst: Catalyst, plan: Jvm, window: Jvm, limit: Jvm) -> Jvm | None:
    """Drop, from a column of cumulative windows, those that end at or before a limit in microseconds; a NULL limit drops
    none.

    Rows without remaining windows are dropped. Return None if the column has no such windows.
    """
    return _ending_after(catalyst, plan, {identity(window)}, limit)


def _ending_after(catalyst: Catalyst, plan: Jvm, columns: set[int], limit: Jvm) -> Jvm | None:
    """`columns` are the columns that the windows are computed from."""
    if kind(plan) == "Generate" and identity(plan.generatorOutput().head()) in columns:
        return _Analysed(catalyst).shortened(plan, limit)
    if kind(plan) == "Project":
        made = [e for e in items(plan.projectList()) if identity(e) in columns]
        columns = {identity(a) for e in made for a in items(e.references().toSeq())}
    if kind(plan) not in ("Project", "Generate", "Filter", "SubqueryAlias", "View", "Sort"):
        return None
    below = _ending_after(catalyst, plan.child(), columns, limit)
    return None if below is None else plan.withNewChildren(catalyst.seq([below]))


def rewritten_plan(catalyst: Catalyst, plan: Jvm, change: Callable[[Jvm], Jvm]) -> Jvm:
    """Return a plan in which `change` was applied to every node bottom-up, including nodes in subqueries."""
    children = children_of(plan)
    changed = [rewritten_plan(catalyst, child, change) for child in children]
    if any(a is not b for a, b in zip(children, changed, strict=True)):
        plan = plan.withNewChildren(catalyst.seq(changed))
    return change(exchanged_subqueries(catalyst, plan, lambda below: rewritten_plan(catalyst, below, change)))


def exchanged_subqueries(catalyst: Catalyst, plan: Jvm, change: Callable[[Jvm], Jvm]) -> Jvm:
    """Return a plan node with `change` applied to the plans of its subqueries."""
    plans = catalyst.jvm.org.apache.spark.sql.catalyst.trees.TreePattern.PLAN_EXPRESSION()
    holders = [e for e in items(plan.expressions()) if e.containsPattern(plans)]
    subqueries = [s for e in holders for s in _subqueries_of(e)]
    return exchanged(catalyst, plan, [(s, s.withNewPlan(change(s.plan()))) for s in subqueries])


def exchanged(catalyst: Catalyst, plan: Jvm, pairs: list[tuple[Jvm, Jvm]]) -> Jvm:
    """Return a plan node with some of its expressions replaced."""
    if not pairs:
        return plan
    changes = catalyst.jvm.java.util.HashMap()
    for old, new in pairs:
        changes.put(old, new)
    # a Scala Map is a PartialFunction, which is the type that the transform methods take
    return plan.transformExpressionsDown(
        catalyst.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
    )


def _subqueries_of(expression: Jvm) -> list[Jvm]:
    """Return the outermost subqueries of an expression."""
    if kind(expression) in _SUBQUERIES:
        return [expression]
    return [found for child in children_of(expression) for found in _subqueries_of(child)]


class _Parsed:
    """Replaces calls of Headwater's functions in a parsed plan by Spark's functions."""

    def __init__(self, catalyst: Catalyst, named: set[str], text: str, refuse: Refuse) -> None:
        self._c = catalyst
        self._origin = module(catalyst.jvm.org.apache.spark.sql.catalyst.trees, "CurrentOrigin")
        self._named = named
        self._text = text
        self._read: SparkQuery = spark_query(text)
        self._refuse = refuse

    def changed(self, plan: Jvm) -> Jvm:
        """Return a node with its calls replaced; unnamed columns get an explicit alias, so that they keep the name of the
        original call."""
        pairs = [pair for e in items(plan.expressions()) for pair in self._pairs(e)]
        if kind(plan) == "Aggregate":
            pairs += self._by_name(plan)
        return exchanged(self._c, plan, pairs)

    def _pairs(self, expression: Jvm) -> list[tuple[Jvm, Jvm]]:
        pairs = [pair for child in children_of(expression) for pair in self._pairs(child)]
        if self._is_call(expression):
            make = self._window if self._name(expression) == _CUMULATE else self._corrected
            pairs.append((expression, self._at_position(expression, partial(make, expression))))
        elif kind(expression) == "UnresolvedAlias" and pairs:
            pairs.append(
                (expression, self._c.alias(expression.child(), self._column_name(expression.child())))
            )
        return pairs

    def _by_name(self, aggregate: Jvm) -> list[tuple[Jvm, Jvm]]:
        """Resolve SELECT cumulate_window.start ... GROUP BY cumulate_window(...): the name refers to the window, as
        `window` does for Spark's windows."""
        calls = (find(e, self._is_window) for e in items(aggregate.groupingExpressions()))
        call = next((c for c in calls if c is not None), None)
        if call is None:
            return []
        names = [n for e in items(aggregate.aggregateExpressions()) for n in self._window_names(e)]
        return [(name, self._at_position(call, partial(self._fields, call, name))) for name in names]

    def _fields(self, call: Jvm, name: Jvm) -> Jvm:
        """Return the window, or a field of it, as a column of that name."""
        first, *names = items(name.nameParts())
        value = self._window(call)
        extract = self._c.jvm.org.apache.spark.sql.catalyst.analysis.UnresolvedExtractValue
        for part in names:
            value = extract(value, self._literal(part))
        return self._c.alias(value, names[-1] if names else first)

    def _at_position(self, call: Jvm, make: Callable[[], Jvm]) -> Jvm:
        """Call `make` with the SQL position of a call set, so that Spark's errors refer to it."""
        self._origin.set(call.origin())
        try:
            return make()
        finally:
            self._origin.reset()

    def _window(self, call: Jvm) -> Jvm:
        time, step, size = self._arguments(call)
        each, whole = self._duration(call, step, "step"), self._duration(call, size, "size")
        if whole % each:
            self._refuse(
                call,
                "the size of a cumulative window must be a multiple of its step",
                hint=f"change the step or the size: {_USES[_CUMULATE]}",
                reason="cumulate-size",
            )
        if whole == each:
            return self._called(call, "window", [time, self._literal(whole)])
        marked = self._c.expressions.KnownNullable(time)
        return self._called(call, "window", [marked, *map(self._literal, (2 * whole, whole, each))])

    def _corrected(self, call: Jvm) -> Jvm:
        occurred, sent, received = self._arguments(call)
        e = self._c.expressions
        return e.Add(occurred, e.Subtract(received, sent))

    def _arguments(self, call: Jvm) -> list[Jvm]:
        name = self._name(call)
        arguments = items(call.arguments())
        if len(arguments) != 3:
            message = f"{name} takes {_TAKES[name]}, not {len(arguments)} arguments"
            self._refuse(call, message, hint=_USES[name], reason="argument-count", function=name)
        return arguments

    def _duration(self, call: Jvm, expression: Jvm, which: str) -> int:
        """Return the microseconds of a literal interval; days have 24 hours, as in `window`."""
        micros = _microseconds(self._c, expression)
        if micros is None or micros <= 0:
            self._refuse(
                expression if _is_placed(expression) else call,
                f"the {which} of a cumulative window must be a constant interval greater than zero, of days or smaller units",
                hint=f"write '5 minutes' or INTERVAL '5' MINUTE: {_USES[_CUMULATE]}",
                reason=f"cumulate-{which}",
            )
        return micros

    def _called(self, call: Jvm, name: str, arguments: list[Jvm]) -> Jvm:
        return call.copy(
            self._c.seq([name]),
            self._c.seq(arguments),
            call.isDistinct(),
            call.filter(),
            call.ignoreNulls(),
            call.orderingWithinGroup(),
            call.isInternal(),
        )

    def _column_name(self, expression: Jvm) -> str:
        """Return the name of an unnamed column: `cumulate_window`, or the SQL text."""
        if self._is_window(expression):
            return _CUMULATE
        origin = expression.origin()
        start, stop = option(origin.startIndex()), option(origin.stopIndex())
        if start is None or stop is None:
            return str(expression.toString())
        return self._text[self._read.original(start) : self._read.original(stop + 1)]

    def _is_call(self, expression: Jvm) -> bool:
        return kind(expression) == "UnresolvedFunction" and self._name(expression) in self._named

    def _is_window(self, expression: Jvm) -> bool:
        return self._is_call(expression) and self._name(expression) == _CUMULATE

    def _window_names(self, expression: Jvm) -> list[Jvm]:
        """Return the column references in an expression that name the function's window or a field of it."""
        if kind(expression) == "UnresolvedAttribute":
            return [expression] if items(expression.nameParts())[0].lower() == _CUMULATE else []
        return [name for child in children_of(expression) for name in self._window_names(child)]

    def _name(self, call: Jvm) -> str:
        parts = items(call.nameParts())
        return str(parts[0]).lower() if len(parts) == 1 else ""

    def _literal(self, value: str | int) -> Jvm:
        return module(self._c.expressions, "Literal").apply(value)


@dataclass(frozen=True)
class _Hops:
    """Hopping windows; with `is_marked`, they represent cumulative windows with steps of `begin` up to `slide`."""

    time: Jvm
    is_marked: bool
    begin: int
    slide: int
    size: int


class _Analysed:
    """Replaces hopping windows by lists of ends, and marked ones by cumulative windows."""

    def __init__(self, catalyst: Catalyst) -> None:
        self._c = catalyst
        self._long = module(catalyst.jvm.org.apache.spark.sql.types, "LongType")
        self._scala = catalyst.jvm.scala

    def changed(self, plan: Jvm) -> Jvm:
        """Rewrite Filter(time is not NULL, or within the window, Expand(one window per slide)); return any other node
        unchanged.

        The replacement explodes a list of ends, whose plan has the same size for three windows or a thousand.
        """
        if kind(plan) != "Filter" or kind(plan.child()) != "Expand":
            return plan
        expand = plan.child()
        window = expand.output().head()
        if not window.metadata().contains(TIME_WINDOW):
            return plan
        c, e = self._c, self._c.expressions
        hops = self._hops(expand.projections().head().head())
        columns = items(expand.child().output())
        below = c.plans.Filter(e.IsNotNull(hops.time), expand.child())
        number = e.PreciseTimestampConversion(hops.time, hops.time.dataType(), self._long)
        end = c.alias(number, "end").toAttribute()
        if hops.is_marked:
            step, size = hops.begin, hops.slide
            begun = c.alias(self._last_multiple(number, size), "start")
            below = c.plans.Project(c.seq([*columns, begun]), below)
            start = begun.toAttribute()
            first = self._plus(self._last_multiple(number, step), step)
            last = self._plus(start, size)
        else:
            step, size = hops.slide, hops.size
            start = self._plus(end, -size)
            since = self._plus(number, -hops.begin)
            last = self._plus(self._last_multiple(since, step), hops.begin + size)
            earlier = self._last_multiple(self._plus(since, -size), step)
            first = self._plus(earlier, hops.begin + size + step)
        ends = e.Sequence(first, last, self._some(self._number(step)), c.none())
        none = c.seq([])
        exploded = c.plans.Generate(e.Explode(ends), none, False, c.none(), c.seq([end]), below)
        made = self._window(start, end, hops.time.dataType())
        named = e.Alias(made, window.name(), window.exprId(), none, self._some(window.metadata()), none)
        return c.plans.Project(c.seq([named, *columns]), exploded)

    def _hops(self, window: Jvm) -> _Hops:
        """Return the parameters of a hopping window, read from its newest window as Spark writes it."""
        rest = find(window, lambda e: kind(e) == "Remainder")  # (time - begin) % slide
        end = children_of(window)[3].child().child()  # start + size
        time = rest.left().left().child()
        is_marked = kind(time) == "KnownNullable"
        return _Hops(
            time.child() if is_marked else time,
            is_marked,
            rest.left().right().value(),
            rest.right().value(),
            end.right().value(),
        )

    def shortened(self, exploded: Jvm, limit: Jvm) -> Jvm:
        """Return an exploded list of ends that starts at the first end after a limit."""
        c, e = self._c, self._c.expressions
        first, last, step = items(exploded.generator().child().children())
        # ends need not be multiples of the step: steps are counted from the first end
        missed = self._last_multiple(e.Subtract(limit, first), step.value())
        after = e.Add(e.Add(first, missed), step)
        begin = c.alias(e.If(e.GreaterThan(after, first), after, first), "first")
        child = exploded.child()
        begun = c.plans.Project(c.seq([*output_of(child), begin]), child)
        some = c.plans.Filter(e.LessThanOrEqual(begin.toAttribute(), last), begun)
        ends = e.Sequence(begin.toAttribute(), last, self._some(step), c.none())
        shown = exploded.generatorOutput()
        return c.plans.Generate(e.Explode(ends), c.seq([]), False, c.none(), shown, some)

    def _last_multiple(self, number: Jvm, length: int) -> Jvm:
        """Return the last multiple of `length` microseconds; in the form of Spark's windows, which Arrow can evaluate."""
        e = self._c.expressions
        zero, whole = self._number(0), self._number(length)
        rest = e.Remainder(number, whole)
        before_1970 = self._scala.Tuple2(e.LessThan(rest, zero), e.Add(rest, whole))
        since = e.CaseWhen(self._c.seq([before_1970]), self._some(rest))
        return e.Subtract(number, since)

    def _window(self, start: Jvm, end: Jvm, data_type: Jvm) -> Jvm:
        e = self._c.expressions
        fields: list[Any] = []
        for name, value in (("start", start), ("end", end)):
            shown = e.PreciseTimestampConversion(value, self._long, data_type)
            fields += [module(e, "Literal").apply(name), e.KnownNullable(shown)]
        return e.CreateNamedStruct(self._c.seq(fields))

    def _plus(self, number: Jvm, more: int) -> Jvm:
        return self._c.expressions.Add(number, self._number(more))

    def _some(self, value: Jvm) -> Jvm:
        return module(self._scala, "Some").apply(value)

    def _number(self, value: int) -> Jvm:
        """Return a 64-bit literal; a small Python int would become a 32-bit one."""
        return self._c.session.sessionState().sqlParser().parseExpression(f"{value}L")


def _microseconds(catalyst: Catalyst, expression: Jvm) -> int | None:
    """Return the length of a literal interval in microseconds; None if it is no literal interval or has months."""
    from py4j.java_gateway import get_field
    from pyspark.errors import PySparkException

    if kind(expression) != "Literal" or expression.value() is None:
        return None
    if (name := expression.dataType().simpleString()) != "string":
        months = "month" in name or "year" in name
        return None if months or not name.startswith("interval ") else int(expression.value())
    intervals = module(catalyst.jvm.org.apache.spark.sql.catalyst.util, "IntervalUtils")
    try:
        interval = intervals.fromIntervalString(expression.value().toString())
    except PySparkException:
        return None
    if get_field(interval, "months"):
        return None
    return int(get_field(interval, "days")) * _DAY + int(get_field(interval, "microseconds"))


def _is_placed(expression: Jvm) -> bool:
    return bool(expression.origin().startIndex().isDefined())
