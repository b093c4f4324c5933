"""Lowers OVER with a frame that slides along a time or a number, to an operator that recomputes only rows near a change.

Supported are aggregates over `RANGE BETWEEN ... PRECEDING AND ... FOLLOWING` with literal bounds, along one ascending
column of timestamps, dates or integers. Spark computes the results from the functions' buffers, as for GROUP BY; if a
function has no buffer that can be kept, Spark computes all of them from the rows. Any other window is recomputed by whole
groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater.operators import graph as g
from headwater.plan.lowering.aggregate_functions import arguments_of, is_mergeable, mergeable_function
from headwater.plan.lowering.linear_steps import counted, keyed, narrowed, projected
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.relations import Evaluation, Lowered
from headwater.spark.catalyst import (
    Jvm,
    children_of,
    find,
    identity,
    items,
    kind,
    option,
    output_of,
    readable,
)

Bounds = tuple[int, int]
"""The offsets from a row's time to both ends of its frame."""

_TIMES = ("timestamp", "timestamp_ntz")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_KEPT = ("Count", "Sum", "Average", "Min", "Max")
_DAY = 86_400_000_000


def sliding_frames(plan: Jvm) -> list[Bounds] | None:
    """Return the frame of each function of a window; None unless all slide."""
    order = items(plan.orderSpec())
    if len(order) != 1 or kind(order[0].direction()) != "Ascending":
        return None
    along = order[0].child().dataType().simpleString()
    found = [_bounds(named, along) for named in items(plan.windowExpressions())]
    known = [bounds for bounds in found if bounds is not None]
    return known if len(known) == len(found) else None


def lower_sliding(context: LoweringContext, plan: Jvm, frames: Sequence[Bounds]) -> Lowered:
    """Lower a window with a sliding frame per function."""
    named = items(plan.windowExpressions())
    aggregates = [find(e, lambda e: kind(e) == "AggregateExpression") for e in named]
    native = all(kind(e.child()) == "WindowExpression" for e in named) and all(
        _has_form(context, a) for a in aggregates
    )
    child = counted(context, context.lower(plan.child()))
    partition = items(plan.partitionSpec())
    wanted = [*partition, plan.orderSpec().head().child()]
    if native:
        wanted += [
            e for a in aggregates for e in (*arguments_of(context, a), option(a.filter())) if e is not None
        ]
    below, places = keyed(context, child, wanted)
    key, (time, *rest) = places[: len(partition)], places[len(partition) :]
    preceding, following = (max(0, *(-low for low, _ in frames)), max(0, *(high for _, high in frames)))
    text = readable(plan).splitlines()[0]
    if not native:
        shown = [e.toAttribute() for e in named]
        attributes = [*below.attributes, *shown]
        schema = context.catalyst.arrow_schema(attributes)
        evaluation = Evaluation(plan, tuple(below.attributes))
        node = g.Slide(below.node, key, time, preceding, following, text, (), schema, evaluation)
        return narrowed(context, Lowered(node, attributes), output_of(plan))
    framed, arguments = [], iter(rest)
    for a, (low, high) in zip(aggregates, frames, strict=True):
        args = [next(arguments) for _ in arguments_of(context, a)]
        where = next(arguments) if a.filter().isDefined() else None
        function = mergeable_function(context, a, args, where, append_only=True)
        framed.append(g.FrameFunction(function, low, high))
    buffers, finals = _results(context, named, aggregates)
    attributes = [*below.attributes, *buffers]
    schema = context.catalyst.arrow_schema(attributes)
    node = g.Slide(below.node, key, time, preceding, following, text, tuple(framed), schema)
    lowered = projected(context, Lowered(node, attributes), [*child.attributes, *finals])
    return narrowed(context, lowered, output_of(plan))


def _has_form(context: LoweringContext, a: Jvm) -> bool:
    """Whether a function has a kernel over frames."""
    function = a.aggregateFunction()
    if kind(function) not in _KEPT or not is_mergeable(context, a):
        return False
    arguments = [context.catalyst.arrow_type(e.dataType()) for e in children_of(function)]
    return not any(pa.types.is_null(argument) for argument in arguments)


def _results(
    context: LoweringContext, named: Sequence[Jvm], aggregates: Sequence[Jvm]
) -> tuple[list[Jvm], list[Jvm]]:
    """Return the buffer columns of the functions, and the named results computed from the buffers."""
    buffers: list[Jvm] = []
    finals: list[Jvm] = []
    for name, a in zip(named, aggregates, strict=True):
        function = a.aggregateFunction()
        # new instances, since the same function may occur twice with different frames
        own = {identity(b): b.newInstance() for b in items(function.aggBufferAttributes())}
        buffers += own.values()

        def renewed(e: Jvm, own: dict[int, Jvm] = own) -> Jvm | None:
            return own.get(identity(e)) if kind(e) == "AttributeReference" else None

        final = context.catalyst.rewritten(function.evaluateExpression(), renewed)
        finals.append(context.catalyst.alias(final, name.name(), like=name))
    return buffers, finals


def _bounds(named: Jvm, along: str) -> Bounds | None:
    """Return the frame of a window function; None if it is no aggregate over a sliding frame."""
    window = find(named, lambda e: kind(e) == "WindowExpression")
    if kind(window.windowFunction()) != "AggregateExpression":
        return None
    frame = window.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame" or kind(frame.frameType()) != "RangeFrame":
        return None
    low, high = _bound(frame.lower(), along), _bound(frame.upper(), along)
    return None if low is None or high is None else (low, high)


def _bound(bound: Jvm, along: str) -> int | None:
    """Return the offset of one end of a frame, in units of its column's type; None if the offset is not constant."""
    if kind(bound) == "CurrentRow":
        return 0
    if kind(bound) != "Literal" or bound.value() is None:
        return None
    kind_of_bound = bound.dataType().simpleString()
    months = "month" in kind_of_bound or "year" in kind_of_bound
    if along in _TIMES and kind_of_bound.startswith("interval ") and not months:
        return int(bound.value())
    if along == "date" and kind_of_bound == "interval day":
        return int(bound.value()) // _DAY
    if (along == "date" and kind_of_bound == "int") or (along in _INTEGERS and kind_of_bound == along):
        return int(bound.value())
    return None
