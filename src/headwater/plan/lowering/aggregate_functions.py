"""Aggregate functions of a plan, as functions that can be merged, and their results from what these keep.

A function keeps the buffer that Spark's own has; Spark computes the result from it, by a projection above the operator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from headwater.operators import graph as g
from headwater.operators.aggregate.sketches import Sketch
from headwater.plan.lowering.linear_steps import named, projected, projected_by
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.sketch_nodes import SKETCHED, sketch_of, sketched_argument
from headwater.plan.relations.relations import Lowered
from headwater.plan.rewrite.ties import by_parts
from headwater.spark.catalyst import Jvm, Numbers, children_of, items, kind, module, option, readable

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
_ORDERED = ("min", "max", "min_by", "max_by")
_ONE_BUFFER = ("MinBy", "MaxBy", "First")
"""Functions whose first buffer is the value; what Spark keeps besides it the kernel has in its own way."""


class AggregateParts(NamedTuple):
    """An aggregate node, as Spark's planner takes it apart."""

    keys: Sequence[Jvm]
    aggregates: Sequence[Jvm]
    results: Sequence[Jvm]
    """The output columns, computed from the keys and the aggregates."""
    below: Jvm


def grouping_of(context: LoweringContext, plan: Jvm) -> AggregateParts | None:
    """The parts of an aggregate node; None of one that Spark does not run as an aggregate."""
    found = option(context.extractor("PhysicalAggregation").unapply(plan))
    if found is None:
        return None
    return AggregateParts(items(found._1()), items(found._2()), items(found._3()), found._4())


def is_users(a: Jvm) -> bool:
    """Whether an aggregate is a function of a user's."""
    return kind(a.aggregateFunction()) == "PythonUDAF"


def arguments_of(context: LoweringContext, a: Jvm) -> list[Jvm]:
    """The expressions that a function takes of each row."""
    function = a.aggregateFunction()
    args = children_of(function)
    if kind(function) == "Count":
        return [e for e in args if e.nullable()]  # what is never null is always counted
    if kind(function) in ("Sum", "Average", "First"):
        return args[:1]
    if kind(function) in SKETCHED:
        return [sketched_argument(context.catalyst, function)]
    return by_parts(function) or args


def mergeable_function(
    context: LoweringContext, a: Jvm, args: Sequence[int], where: int | None, *, append_only: bool
) -> g.MergeableFunction:
    """A function over the columns `args` of the rows for which the column `where` is true."""
    name = kind_of(a)
    return g.MergeableFunction(
        name,
        text_of(context, a),
        tuple(args),
        where,
        ordered=name in _ORDERED and not append_only,
        sketch=sketch_in(context, a),
    )


def with_arguments(
    context: LoweringContext, child: Lowered, keys: Sequence[Jvm], aggregates: Sequence[Jvm]
) -> tuple[Lowered, tuple[g.MergeableFunction, ...]]:
    """The input with the keys first, then the arguments and filters of the functions, each once; and the functions."""
    columns = [named(context, e) for e in keys]
    numbers, first = Numbers(), len(columns)

    def place(e: Jvm) -> int:
        place = first + numbers.of(e)
        if place == len(columns):
            columns.append(named(context, e))
        return place

    def function(a: Jvm) -> g.MergeableFunction:
        args, chosen = [place(e) for e in arguments_of(context, a)], option(a.filter())
        where = None if chosen is None else place(chosen)
        return mergeable_function(context, a, args, where, append_only=child.node.append_only)

    functions = tuple(map(function, aggregates))
    return projected(context, child, columns), functions


def text_of(context: LoweringContext, a: Jvm) -> str:
    """A function as the graph names it."""
    if (parts := by_parts(a.aggregateFunction())) is None:
        text = readable(a)
        return f"{text.replace(', 0, 0)', ')')} in a sketch" if kind_of(a) == "sketch" else text
    as_written = a.aggregateFunction().withNewChildren(context.catalyst.seq(parts))
    text = readable(a.copy(as_written, a.mode(), a.isDistinct(), a.filter(), a.resultId()))
    return f"{text}, of equal ones the greatest" if kind_of(a) == "max_by" else text


def kind_of(a: Jvm) -> str:
    """The name of the kernel of a function."""
    return "custom" if is_users(a) else _FUNCTIONS[kind(a.aggregateFunction())]


def sketch_in(context: LoweringContext, a: Jvm) -> Sketch | None:
    """The sketch that a function keeps, if it keeps one."""
    function = a.aggregateFunction()
    return sketch_of(context.catalyst, function) if kind(function) in SKETCHED else None


def are_combinable(context: LoweringContext, aggregates: Sequence[Jvm]) -> bool:
    """Whether what each keeps of two groups of rows can be put together."""
    return all(
        (is_mergeable(context, a) or sketch_in(context, a) is not None) and not a.isDistinct()
        for a in aggregates
    )


def is_mergeable(context: LoweringContext, a: Jvm, over: Lowered | None = None) -> bool:
    """Whether a function is kept by what can be merged; some only `over` an input that takes nothing back."""
    function = a.aggregateFunction()
    name = kind(function)
    if name == "ApproxTopK" and a.isDistinct():  # every value is there once
        return False
    if name in SKETCHED:
        return over is not None and over.node.append_only and sketch_in(context, a) is not None
    if name not in _FUNCTIONS:
        return False
    if a.isDistinct() and name not in ("Count", "Sum", "Average", "Min", "Max"):
        return False
    if name in ("Sum", "Average"):
        argument = context.catalyst.arrow_type(function.children().head().dataType())
        mode = function.evalContext().evalMode() if name == "Sum" else function.evalMode()
        if mode.toString() == "TRY" and not pa.types.is_floating(argument):
            return False  # NULL where it is too large, which the kernel refuses
        return bool(
            pa.types.is_integer(argument) or pa.types.is_floating(argument) or pa.types.is_decimal(argument)
        )
    if name in ("Min", "Max", "MinBy", "MaxBy", "First"):
        parts = by_parts(function) or children_of(function)
        return all(not pa.types.is_nested(context.catalyst.arrow_type(e.dataType())) for e in parts)
    return True


def buffers_of(a: Jvm) -> list[Jvm]:
    """What Spark's own function keeps, of which the kernel keeps the same."""
    function = a.aggregateFunction()
    own = items(function.aggBufferAttributes())
    return own[:1] if kind(function) in _ONE_BUFFER else own


def result_of(context: LoweringContext, a: Jvm) -> Jvm:
    """The result of a function from its buffers, under the name by which expressions above know it."""
    value = a.aggregateFunction().evaluateExpression()
    return context.catalyst.alias(value, "result", like=a.resultAttribute())


def with_results(
    context: LoweringContext, aggregate: Lowered, values: Sequence[Jvm], results: Sequence[Jvm]
) -> Lowered:
    """The output columns of a node above its operator: Spark's own computation of the results from the buffers.

    `values` are the keys and the results of the functions.
    """
    c = context.catalyst
    leaf = module(c.plans, "LocalRelation").apply(c.seq(aggregate.attributes))
    stacked = c.plans.Project(c.seq(results), c.plans.Project(c.seq(values), leaf))
    plan = c.rule("CollapseProject").apply(stacked)
    projects = []
    while kind(plan) == "Project":
        projects.append(plan)
        plan = plan.child()
    return projected_by(context, projects, aggregate)
