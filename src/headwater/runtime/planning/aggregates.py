"""Aggregate nodes of a plan, as operators: by mergeable functions where all are, else by whole groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import (
    Jvm,
    Numbers,
    children_of,
    items,
    kind,
    kinds_in,
    module,
    option,
    output_of,
    readable,
)
from headwater.runtime.planning.handles import Evaluation, Lowered
from headwater.runtime.planning.sessions import SessionReader
from headwater.runtime.planning.sketching import SKETCHED, sketch_of, sketched_argument
from headwater.runtime.planning.ties import by_parts

_MOMENTS = {"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"}
_FUNCTIONS = {
    "Count": "count",
    "Sum": "sum",
    "Average": "avg",
    "Min": "min",
    "Max": "max",
    "First": "max",  # the optimizer's own, of the one row there is; a user's was refused before
    "MinBy": "min_by",
    "MaxBy": "max_by",
    **dict.fromkeys(_MOMENTS, "moments"),
    **dict.fromkeys(SKETCHED, "sketch"),
}


class AggregateReader(SessionReader):
    """Reads GROUP BY."""

    lacks_sketches = False
    """Whether an approximate function was met of which no sketch can be kept."""
    sketched: dict[int, tuple[g.Node, dict[int, g.Function]]]
    """By the identity of an aggregate, it and its columns that are answers of sketches."""

    def _aggregate(self, plan: Jvm) -> Lowered:
        plan = self._without_pivots(plan)
        found = option(self._planning("PhysicalAggregation").unapply(plan))
        if found is None:
            self._refuse(plan, "this aggregate has no incremental form")
        grouping, aggregates, results = items(found._1()), items(found._2()), items(found._3())
        child = self.lower(found._4())
        session = self._session_in(plan, grouping)
        if session is not None and child.node.append_only and self._all_combine(aggregates):
            below, functions = self._arguments(child, grouping, aggregates)
            return self._finished(below, grouping, aggregates, functions, results, session)
        if session is not None:
            child = self._with_sessions(child, grouping, session)
            plan, grouping = self._unmarked(plan, grouping, session)
        if not all(self._mergeable(a, child) for a in aggregates):
            self.lacks_sketches |= any(kind(a.aggregateFunction()) in SKETCHED for a in aggregates)
            if any(e.containsPattern(self._scalar) for e in items(plan.expressions())):
                return self._regrouped_with_scalars(plan, child, grouping, aggregates, results)
            return self._regrouped(plan, child, grouping)
        plain = [a for a in aggregates if not a.isDistinct()]
        distinct = [a for a in aggregates if a.isDistinct()]
        if distinct:
            below, functions = self._with_distinct(child, grouping, plain, distinct)
            ordered_aggregates = [*plain, *distinct]
        else:
            below, functions = self._arguments(child, grouping, plain)
            ordered_aggregates = plain
        return self._finished(below, grouping, ordered_aggregates, functions, results)

    def _without_pivots(self, plan: Jvm) -> Jvm:
        """PIVOT puts values that were aggregated before, one for each value of a column, side by side.

        There is one row to take each from, so that the greatest is the one.
        """
        c, e = self._c, self._c.expressions

        def change(found: Jvm) -> Jvm | None:
            if kind(found) != "AggregateExpression" or kind(found.aggregateFunction()) != "PivotFirst":
                return None
            pivot = found.aggregateFunction()
            column, value = pivot.pivotColumn(), pivot.valueColumn()
            sql = c.jvm.org.apache.spark.sql
            listed = sql.catalyst.util.GenericArrayData(pivot.pivotColumnValues())
            # as one literal: taken one by one, their types would not come back as they were
            values = e.Literal(listed, sql.types.ArrayType(column.dataType(), True))
            chosen = [
                e.If(
                    e.EqualNullSafe(column, e.GetArrayItem(values, self._literal(i), False)),
                    value,
                    self._null(value.dataType()),
                )
                for i in range(pivot.pivotColumnValues().size())
            ]
            return e.CreateArray(c.seq(e.aggregate.Max(one).toAggregateExpression() for one in chosen), False)

        if "PivotFirst" not in kinds_in(items(plan.aggregateExpressions())):
            return plan
        outputs = [c.rewritten(o, change) for o in items(plan.aggregateExpressions())]
        return plan.copy(plan.groupingExpressions(), c.seq(outputs), plan.child(), c.none())

    def _arguments(
        self, child: Lowered, grouping: Sequence[Jvm], aggregates: Sequence[Jvm]
    ) -> tuple[Lowered, tuple[g.Function, ...]]:
        """The input with the keys first, then the arguments and filters of the functions, each once."""
        columns = [self._named(e) for e in grouping]
        numbers, first = Numbers(), len(columns)

        def place(e: Jvm) -> int:
            place = first + numbers.of(e)
            if place == len(columns):
                columns.append(self._named(e))
            return place

        functions = tuple(
            self._function(a, [place(e) for e in self._args(a)], place, child.node.append_only)
            for a in aggregates
        )
        return self._projected(child, columns), functions

    def _with_distinct(
        self, child: Lowered, grouping: Sequence[Jvm], plain: Sequence[Jvm], distinct: Sequence[Jvm]
    ) -> tuple[Lowered, tuple[g.Function, ...]]:
        """Aggregates over distinct values: one branch of all rows, one of the distinct rows of each set of arguments,
        told apart by a tag; a function reads the rows of its branch.
        """
        c = self._c
        groups: dict[tuple[tuple[int, ...], int | None], list[Jvm]] = {}
        numbers = Numbers()
        for a in distinct:
            chosen = option(a.filter())
            key = tuple(sorted(numbers.of(e) for e in self._args(a)))
            groups.setdefault((key, None if chosen is None else numbers.of(chosen)), []).append(a)
        all_rows, functions = self._arguments(child, grouping, plain)
        keys = [self._named(e) for e in grouping]
        branches: list[tuple[Lowered, list[Jvm]]] = [(all_rows, all_rows.attributes[len(keys) :])]
        members: list[tuple[Jvm, int, list[int]]] = []
        for number, group in enumerate(groups.values(), 1):
            chosen = option(group[0].filter())
            source = child
            if chosen is not None:
                source, (chosen,) = self._scalars(child, [chosen])
                kept = g.Filter(self._expression(chosen, source.attributes))
                source = self._mapped(source, kept, source.attributes)
            arguments = self._args(group[0])
            below = self._projected(source, [*keys, *(self._named(e) for e in arguments)])
            width = len(below.attributes)
            unique = Lowered(
                g.Aggregate(below.node, width, (), self._c.arrow_schema(below.attributes)), below.attributes
            )
            branches.append((unique, unique.attributes[len(keys) :]))
            given = [numbers.of(e) for e in arguments]
            for a in group:
                members.append((a, number, [given.index(numbers.of(e)) for e in self._args(a)]))
        # every branch gets the columns of all, null where they are not its own, and one flag per branch
        flags = len(branches)
        starts: list[int] = []
        widths = [len(b[1]) for b in branches]
        at = len(keys)
        for width in widths:
            starts.append(at)
            at += width
        total = at
        tagged = []
        for number, (branch, own) in enumerate(branches):
            columns = list(branch.attributes[: len(keys)])
            for other, (_, theirs) in enumerate(branches):
                columns += (
                    own if other == number else [c.alias(self._null(a.dataType()), a.name()) for a in theirs]
                )
            columns += [c.alias(self._literal(f == number), f"branch_{f}") for f in range(flags)]
            named = [e if kind(e) == "Alias" else c.alias(e, e.name()) for e in columns]
            tagged.append(self._projected(branch, named))
        attributes = tagged[0].attributes
        union = Lowered(g.Union(tuple(t.node for t in tagged), c.arrow_schema(attributes)), attributes)
        moved = [self._in_branch(f, total) for f in functions]
        shown = tuple(
            g.Function(
                self._kind_of(a),
                self._text(a),
                tuple(starts[number] + i for i in arguments),
                total + number,
                ordered=self._kind_of(a) in ("min", "max", "min_by", "max_by"),
                sketch=self._sketch(a),
            )
            for a, number, arguments in members
        )
        # _finished pairs functions with aggregates by position: distinct ones follow in the order of `distinct`
        order = [next(i for i, m in enumerate(members) if m[0] is a) for a in distinct]
        return union, (*moved, *(shown[i] for i in order))

    def _in_branch(self, function: g.Function, tag: int) -> g.Function:
        """A function of the branch of all rows. One with a filter of its own is false elsewhere: it is null there."""
        chosen = function.filter if function.filter is not None else tag
        return replace(function, filter=chosen)

    def _function(self, a: Jvm, args: list[int], place: Any, append_only: bool) -> g.Function:
        chosen = option(a.filter())
        name = self._kind_of(a)
        return g.Function(
            name,
            self._text(a),
            tuple(args),
            None if chosen is None else place(chosen),
            ordered=name in ("min", "max", "min_by", "max_by") and not append_only,
            sketch=self._sketch(a),
        )

    def _sketch(self, a: Jvm) -> Any:
        function = a.aggregateFunction()
        return sketch_of(self._c, function) if kind(function) in SKETCHED else None

    def _args(self, a: Jvm) -> list[Jvm]:
        function = a.aggregateFunction()
        args = children_of(function)
        if kind(function) == "Count":
            return [e for e in args if e.nullable()]  # what is never null is always counted
        if kind(function) in ("Sum", "Average", "First"):
            return args[:1]
        if kind(function) in SKETCHED:
            return [sketched_argument(self._c, function)]
        return by_parts(function) or args

    def _text(self, a: Jvm) -> str:
        if (parts := by_parts(a.aggregateFunction())) is None:
            text = readable(a)
            return f"{text.replace(', 0, 0)', ')')} in a sketch" if self._kind_of(a) == "sketch" else text
        as_written = a.aggregateFunction().withNewChildren(self._c.seq(parts))
        text = readable(a.copy(as_written, a.mode(), a.isDistinct(), a.filter(), a.resultId()))
        return f"{text}, of equal ones the greatest" if self._kind_of(a) == "max_by" else text

    def _kind_of(self, a: Jvm) -> str:
        return _FUNCTIONS[kind(a.aggregateFunction())]

    def _all_combine(self, aggregates: Sequence[Jvm]) -> bool:
        """Whether what each keeps of two groups of rows can be put together."""
        return all(
            (self._mergeable(a) or self._sketch(a) is not None) and not a.isDistinct() for a in aggregates
        )

    def _mergeable(self, a: Jvm, over: Lowered | None = None) -> bool:
        """Whether a function is kept by what can be merged; some only `over` an input that takes nothing back."""
        function = a.aggregateFunction()
        name = kind(function)
        if name == "ApproxTopK" and a.isDistinct():  # every value is there once
            return False
        if name in SKETCHED:
            return over is not None and over.node.append_only and self._sketch(a) is not None
        if name not in _FUNCTIONS:
            return False
        if a.isDistinct() and name not in ("Count", "Sum", "Average", "Min", "Max"):
            return False
        if name in ("Sum", "Average"):
            argument = self._c.arrow_type(function.children().head().dataType())
            mode = function.evalContext().evalMode() if name == "Sum" else function.evalMode()
            if mode.toString() == "TRY" and not pa.types.is_floating(argument):
                return False  # NULL where it is too large, which the kernel refuses
            return bool(
                pa.types.is_integer(argument)
                or pa.types.is_floating(argument)
                or pa.types.is_decimal(argument)
            )
        if name in ("Min", "Max", "MinBy", "MaxBy", "First"):
            parts = by_parts(function) or children_of(function)
            return all(not pa.types.is_nested(self._c.arrow_type(e.dataType())) for e in parts)
        return True

    def _finished(
        self,
        below: Lowered,
        grouping: Sequence[Jvm],
        aggregates: Sequence[Jvm],
        functions: Sequence[g.Function],
        results: Sequence[Jvm],
        session: int | None = None,
    ) -> Lowered:
        """The operator, and above it Spark's own computation of the results from the functions' buffers.

        `session` is the key that is a session window, if rows still have their own intervals in it.
        """
        c = self._c
        keys = [e.toAttribute() for e in grouping]
        buffers: list[Jvm] = []
        finals: list[Jvm] = []
        sketched: dict[int, g.Function] = {}
        for own_function, a in zip(functions, aggregates, strict=True):
            function = a.aggregateFunction()
            if kind(function) in SKETCHED:  # the kernel answers itself
                sketched[len(keys) + len(buffers)] = own_function
                answer = a.resultAttribute().withName("answer")  # its own has numbers of this process in it
                buffers.append(answer)
                finals.append(answer)
                continue
            own = items(function.aggBufferAttributes())
            if kind(function) in ("MinBy", "MaxBy", "First"):
                own = own[:1]
            buffers += own
            finals.append(c.alias(function.evaluateExpression(), "result", like=a.resultAttribute()))
        attributes = [*keys, *buffers]
        schema = c.arrow_schema(attributes)
        node: g.Node = g.Aggregate(below.node, len(keys), tuple(functions), schema)
        if session is not None:
            node = g.SessionAggregate(below.node, len(keys), session, tuple(functions), schema)
        if sketched:
            self.sketched[id(node)] = node, sketched
        leaf = module(c.plans, "LocalRelation").apply(c.seq(attributes))
        stacked = c.plans.Project(c.seq(results), c.plans.Project(c.seq([*keys, *finals]), leaf))
        collapsed = c.rule("CollapseProject").apply(stacked)
        return self._over(self._projects(collapsed), Lowered(node, attributes))

    def _projects(self, plan: Jvm) -> list[Jvm]:
        found = []
        while kind(plan) == "Project":
            found.append(plan)
            plan = plan.child()
        return found

    def _regrouped(self, plan: Jvm, child: Lowered, grouping: Sequence[Jvm]) -> Lowered:
        """Any other aggregate: Spark computes it again for the groups that a change touches."""
        child = self._counted(child)
        below, key = self._keyed(child, [e.child() if kind(e) == "Alias" else e for e in grouping])
        attributes = output_of(plan)
        node = g.Regroup(
            below.node,
            key,
            readable(plan).splitlines()[0],
            Evaluation(plan, tuple(child.attributes)),
            self._c.arrow_schema(attributes),
            whole=not key,
        )
        return Lowered(node, attributes)

    def _regrouped_with_scalars(
        self,
        plan: Jvm,
        child: Lowered,
        grouping: Sequence[Jvm],
        aggregates: Sequence[Jvm],
        results: Sequence[Jvm],
    ) -> Lowered:
        """The same with subqueries: those inside functions are columns of the input, those around them come after."""
        c = self._c
        child, changed = self._scalars(child, [*grouping, *aggregates])
        keys, functions = changed[: len(grouping)], changed[len(grouping) :]
        bare = [e.child() if kind(e) == "Alias" else e for e in keys]
        shown = [*keys, *(c.alias(a, "result", like=a.resultAttribute()) for a in functions)]
        inner = plan.copy(c.seq(bare), c.seq(shown), plan.child(), c.none())
        return self._projected(self._regrouped(inner, child, keys), results)
