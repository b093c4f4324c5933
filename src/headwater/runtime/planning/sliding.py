"""OVER with a frame that slides along a time or a number, as an operator that looks at what is near a change alone.

Aggregates over `RANGE BETWEEN ... PRECEDING AND ... FOLLOWING` with bounds that are written out, along one ascending column
of timestamps, dates or integers. Spark computes the results from the functions' buffers, as it does for GROUP BY; where
one of them has no buffer that can be kept, it computes them from the rows. Any other window is by whole groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater.queries import graph as g
from headwater.runtime.planning.aggregates import AggregateReader
from headwater.runtime.planning.catalyst import (
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
from headwater.runtime.planning.handles import Evaluation, Lowered
from headwater.runtime.planning.windows import WindowReader

Bounds = tuple[int, int]
"""What is added to a row's time to give both ends of its frame."""

_TIMES = ("timestamp", "timestamp_ntz")
_INTEGERS = ("tinyint", "smallint", "int", "bigint")
_KEPT = ("Count", "Sum", "Average", "Min", "Max")
_DAY = 86_400_000_000


class SlideReader(WindowReader, AggregateReader):
    """Reads OVER with sliding frames."""

    def _window(self, plan: Jvm) -> Lowered:
        frames = self._frames(plan)
        return super()._window(plan) if frames is None else self._slide(plan, frames)

    def _frames(self, plan: Jvm) -> list[Bounds] | None:
        """The frame of each function, if all slide."""
        order = items(plan.orderSpec())
        if len(order) != 1 or kind(order[0].direction()) != "Ascending":
            return None
        along = order[0].child().dataType().simpleString()
        found = [_bounds(named, along) for named in items(plan.windowExpressions())]
        known = [bounds for bounds in found if bounds is not None]
        return known if len(known) == len(found) else None

    def _slide(self, plan: Jvm, frames: Sequence[Bounds]) -> Lowered:
        named = items(plan.windowExpressions())
        aggregates = [find(e, lambda e: kind(e) == "AggregateExpression") for e in named]
        native = all(kind(e.child()) == "WindowExpression" for e in named) and all(
            map(self._kept, aggregates)
        )
        child = self._counted(self.lower(plan.child()))
        partition = items(plan.partitionSpec())
        wanted = [*partition, plan.orderSpec().head().child()]
        if native:
            wanted += [e for a in aggregates for e in (*self._args(a), option(a.filter())) if e is not None]
        below, places = self._keyed(child, wanted)
        key, (time, *rest) = places[: len(partition)], places[len(partition) :]
        preceding, following = (max(0, *(-low for low, _ in frames)), max(0, *(high for _, high in frames)))
        text = readable(plan).splitlines()[0]
        if not native:
            shown = [e.toAttribute() for e in named]
            attributes = [*below.attributes, *shown]
            schema = self._c.arrow_schema(attributes)
            evaluation = Evaluation(plan, tuple(below.attributes))
            node = g.Slide(below.node, key, time, preceding, following, text, (), schema, evaluation)
            return self._narrowed(Lowered(node, attributes), output_of(plan))
        framed, arguments = [], iter(rest)
        for a, (low, high) in zip(aggregates, frames, strict=True):
            args = [next(arguments) for _ in self._args(a)]
            function = self._function(a, args, lambda _: next(arguments), append_only=True)
            framed.append(g.Framed(function, low, high))
        buffers, finals = self._results(named, aggregates)
        attributes = [*below.attributes, *buffers]
        schema = self._c.arrow_schema(attributes)
        node = g.Slide(below.node, key, time, preceding, following, text, tuple(framed), schema)
        lowered = self._projected(Lowered(node, attributes), [*child.attributes, *finals])
        return self._narrowed(lowered, output_of(plan))

    def _kept(self, a: Jvm) -> bool:
        """Whether a function has a form over frames."""
        function = a.aggregateFunction()
        if kind(function) not in _KEPT or not self._mergeable(a):
            return False
        arguments = [self._c.arrow_type(e.dataType()) for e in children_of(function)]
        return not any(pa.types.is_null(argument) for argument in arguments)

    def _results(self, named: Sequence[Jvm], aggregates: Sequence[Jvm]) -> tuple[list[Jvm], list[Jvm]]:
        """The buffer columns of the functions, and their results from these, by their names."""
        buffers: list[Jvm] = []
        finals: list[Jvm] = []
        for name, a in zip(named, aggregates, strict=True):
            function = a.aggregateFunction()
            # of their own, since the same function may stand here twice, over two frames
            own = {identity(b): b.newInstance() for b in items(function.aggBufferAttributes())}
            buffers += own.values()

            def renewed(e: Jvm, own: dict[int, Jvm] = own) -> Jvm | None:
                return own.get(identity(e)) if kind(e) == "AttributeReference" else None

            final = self._c.rewritten(function.evaluateExpression(), renewed)
            finals.append(self._c.alias(final, name.name(), like=name))
        return buffers, finals


def _bounds(named: Jvm, along: str) -> Bounds | None:
    """The frame of a window function, if it is an aggregate over one that slides."""
    window = find(named, lambda e: kind(e) == "WindowExpression")
    if kind(window.windowFunction()) != "AggregateExpression":
        return None
    frame = window.windowSpec().frameSpecification()
    if kind(frame) != "SpecifiedWindowFrame" or kind(frame.frameType()) != "RangeFrame":
        return None
    low, high = _bound(frame.lower(), along), _bound(frame.upper(), along)
    return None if low is None or high is None else (low, high)


def _bound(bound: Jvm, along: str) -> int | None:
    """What is added to a time for one end of a frame, in units of its type; None if it is no fixed number of them."""
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
