"""Aggregate functions of a plan as mergeable functions, and their results from their buffers.

A function keeps the same buffer as Spark's function; Spark computes the result from it, in a projection above the operator.
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
    "First": "max",  # only the optimizer's, over a single row: the planner rejects first() in queries
    "MinBy": "min_by",
    "MaxBy": "max_by",
    **dict.fromkeys(_MOMENTS, "moments"),
    **dict.fromkeys(SKETCHED, "sketch"),
}
_ORDERED = ("min", "max", "min_by", "max_by")
_ONE_BUFFER = ("MinBy", "MaxBy", "First")
"""Functions whose first buffer is the value; the kernel represents Spark's remaining buffers in its own way."""


class AggregateParts(NamedTuple):
    """The parts of an aggregate node, as extracted by Spark's planner."""

    keys: Sequence[Jvm]
    aggregates: Sequence[Jvm]
    results: Sequence[Jvm]
    """The output columns, computed from the keys and the aggregates."""
    below: Jvm


def grouping_of(context: LoweringContext, plan: Jvm) -> AggregateParts | None:
    """Return the parts of an aggregate node; None if Spark does not run the node as an aggregate."""
    found = option(context.extractor("PhysicalAggregation").unapply(plan))
    if found is None:
        return None
    return AggregateParts(items(found._1()), items(found._2()), items(found._3()), found._4())


def is_users(a: Jvm) -> bool:
    """Whether an aggregate is a user-defined function."""
    return kind(a.aggregateFunction()) == "PythonUDAF"


def arguments_of(context: LoweringContext, a: Jvm) -> list[Jvm]:
    """Return the expressions that a function evaluates on each row."""
    function = a.aggregateFunction()
    args = children_of(function)
    if kind(function) == "Count":
        return [e for e in args if e.nullable()]  # a value that is never NULL is always counted
    if kind(function) in ("Sum", "Average", "First"):
        return args[:1]
    if kind(function) in SKETCHED:
        return [sketched_argument(context.catalyst, function)]
    return by_parts(function) or args


def mergeable_function(
    context: LoweringContext, a: Jvm, args: Sequence[int], where: int | None, *, append_only: bool
) -> g.MergeableFunction:
    """Return a mergeable function over the columns `args` of the rows for which the column `where` is true."""
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
    """Return the input projected to the keys, then the distinct arguments and filters of the functions; and the functions."""
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
    """Return the text by which the graph identifies a function."""
    if (parts := by_parts(a.aggregateFunction())) is None:
        text = readable(a)
        return f"{text.replace(', 0, 0)', ')')} in a sketch" if kind_of(a) == "sketch" else text
    as_written = a.aggregateFunction().withNewChildren(context.catalyst.seq(parts))
    text = readable(a.copy(as_written, a.mode(), a.isDistinct(), a.filter(), a.resultId()))
    return f"{text}, of equal ones the greatest" if kind_of(a) == "max_by" else text


def kind_of(a: Jvm) -> str:
    """Return the name of the kernel of a function."""
    return "custom" if is_users(a) else _FUNCTIONS[kind(a.aggregateFunction())]


def sketch_in(context: LoweringContext, a: Jvm) -> Sketch | None:
    """Return the sketch that a function keeps, or None."""
    function = a.aggregateFunction()
    return sketch_of(context.catalyst, function) if kind(function) in SKETCHED else None


def are_combinable(context: LoweringContext, aggregates: Sequence[Jvm]) -> bool:
    """Whether the buffers of every function can be merged across groups."""
    return all(
        (is_mergeable(context, a) or sketch_in(context, a) is not None) and not a.isDistinct()
        for a in aggregates
    )


def is_mergeable(context: LoweringContext, a: Jvm, over: Lowered | None = None) -> bool:
    """Whether a mergeable kernel exists for a function; some kernels require an append-only input, given as `over`."""
    function = a.aggregateFunction()
    name = kind(function)
    if name == "ApproxTopK" and a.isDistinct():  # every distinct value would have the count 1
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
            return False  # TRY gives NULL on overflow, where the kernel fails
        return bool(
            pa.types.is_integer(argument) or pa.types.is_floating(argument) or pa.types.is_decimal(argument)
        )
    if name in ("Min", "Max", "MinBy", "MaxBy", "First"):
        parts = by_parts(function) or children_of(function)
        return all(not pa.types.is_nested(context.catalyst.arrow_type(e.dataType())) for e in parts)
    return True


def buffers_of(a: Jvm) -> list[Jvm]:
    """Return the buffer attributes of Spark's function that the kernel keeps too."""
    function = a.aggregateFunction()
    own = items(function.aggBufferAttributes())
    return own[:1] if kind(function) in _ONE_BUFFER else own


def result_of(context: LoweringContext, a: Jvm) -> Jvm:
    """Return the result of a function, computed from its buffers, with the expression ID that expressions above refer to."""
    value = a.aggregateFunction().evaluateExpression()
    return context.catalyst.alias(value, "result", like=a.resultAttribute())


def with_results(
    context: LoweringContext, aggregate: Lowered, values: Sequence[Jvm], results: Sequence[Jvm]
) -> Lowered:
    """Return the output columns of an aggregate node above its operator: Spark's own computation of the results from the
    buffers.

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
