"""Linear operators: sources, constants, maps and unions. They have no state, and process each row independently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from headwater.engine.dataflow.facets.column_origins import (
    PLAIN,
    ColumnOrigin,
    Origins,
    all_of,
    either,
    unknown,
)
from headwater.engine.dataflow.facets.demands import (
    Demand,
    Demands,
    OperatorOutput,
    Slice,
    TraceRequest,
    column_ids,
)
from headwater.engine.dataflow.facets.kept_state import ONE, Extent
from headwater.engine.dataflow.facets.row_sets import among, chosen
from headwater.engine.dataflow.facets.unique_keys import NONE, Keys, least
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import columns_of, compile_map, renamed
from headwater.engine.dataflow.operator_interface import Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind, Retraction
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat
from headwater.operators.zset.runs import Run
from headwater.plan.relations.relations import NotIn


class SourceNodeKind(OperatorKind[g.SourceNode]):
    """A topic or a view that is read. Properties of sources are added by the code that walks a graph, not by this kind."""

    is_linear = True

    def build(self, node: g.SourceNode, context: BuildContext) -> Operator:
        return Operator()

    def retraction(self, node: g.SourceNode) -> Retraction:
        return "rows"

    def title(self, node: g.SourceNode) -> str:
        return f"source {node.name}" + ("" if node.append_only else " (changes)")


class ConstantKind(OperatorKind[g.Constant]):
    """Literal rows of the SQL text."""

    is_linear = True

    def build(self, node: g.Constant, context: BuildContext) -> Operator:
        return _Constant(node)

    def retraction(self, node: g.Constant) -> Retraction:
        return "rows"

    def title(self, node: g.Constant) -> str:
        return f"constant of {node.rows.num_rows} rows"

    def row_extent(self, node: g.Constant, below: Sequence[Extent]) -> Extent:
        return ONE

    def column_origins(self, node: g.Constant, below: Sequence[Origins]) -> Origins:
        return (PLAIN,) * len(node.schema)


class _Constant(Operator):
    def __init__(self, node: g.Constant) -> None:
        self._rows = node.rows

    def initial(self) -> Delta:
        return Delta.of(self._rows)


class MapKind(OperatorKind[g.Map]):
    """Row-wise steps: filters, projections, generators."""

    is_linear = True

    def build(self, node: g.Map, context: BuildContext) -> Operator:
        is_of_ranks = isinstance(node.input, g.Rank) and id(node.input) in context.unread
        return _Map(node, context.evaluator, ranks_unread=is_of_ranks)

    def retraction(self, node: g.Map) -> Retraction:
        return "rows"

    def title(self, node: g.Map) -> str:
        return "map " + ", then ".join(_step_title(s) for s in node.steps)

    def unique_keys(self, node: g.Map, below: Sequence[Keys]) -> Keys:
        (keys,) = below
        for step in node.steps:
            keys = _keys_after(step, keys)
        return keys

    def column_origins(self, node: g.Map, below: Sequence[Origins]) -> Origins:
        (now,) = below
        for step in node.steps:
            match step:
                case g.Filter():
                    pass
                case g.Project(expressions) | g.Replicate(_, expressions):
                    now = _projected(expressions, now)
                case g.Expand(projections):
                    now = either([_projected(each, now) for each in projections])
                case g.UdfCall():
                    now = (*now, ColumnOrigin(all_of(now[c] for c in columns_of(step.args))))
                case _:
                    return unknown(node.schema, below)
        return now

    def input_slices(self, node: g.Map, one: Slice) -> Sequence[Slice]:
        for step in reversed(node.steps):
            match step:
                case g.Project(expressions):
                    origins = [e.column for e in expressions]
                case g.Expand(projections):
                    each = [[e.column for e in p] for p in projections]
                    origins = [c[0] if len(set(c)) == 1 else None for c in zip(*each, strict=True)]
                case g.Generate(keep=keep):
                    origins = list(keep)
                case g.Replicate(keep=kept):
                    origins = [e.column for e in kept]
                case g.UdfCall(place=place):
                    origins = list(range(place))
                case _:
                    continue
            one = {o: v for c, v in one.items() if c < len(origins) and (o := origins[c]) is not None}
        return [one]

    def replay(
        self, node: g.Map, operator: Operator, inputs: Sequence[Delta], watermarks: Mapping[str, int]
    ) -> OperatorOutput:
        """Replay the steps over rows whose weights are their numbers: steps keep weights, so they identify each output
        row's origin."""
        (given,) = inputs
        if not len(given):
            return OperatorOutput(Delta.empty(node.schema), np.zeros(0, dtype=np.int64))
        numbered, _ = operator.step([Delta(given.rows, np.arange(1, len(given) + 1))], ())
        copies = np.ones(len(numbered), dtype=np.int64)
        if any(isinstance(step, g.Replicate) for step in node.steps):
            copies = operator.step([Delta(given.rows, np.ones(len(given), dtype=np.int64))], ())[0].weights
        origin = numbered.weights // copies - 1
        rows = renamed(numbered.rows, node.schema) if len(numbered) else Delta.empty(node.schema).rows
        return OperatorOutput(Delta(rows, given.weights[origin] * copies), origin)

    def trace(self, node: g.Map, request: TraceRequest) -> Demands:
        below, found = request.below(node.input), request.origins(node.input)
        first = node.steps[0]
        if isinstance(first, g.Filter) and isinstance(first.condition.handle, NotIn):
            # NOT IN joins its rows with a tally of the rows that they are compared with. If only a row itself is
            # replayed, the tally is different, and the row is emitted regardless.
            assert isinstance(node.input, g.Join)
            rows = request.below(node.input.left)
            wanted = among(rows.whole.ids, column_ids(below.whole, found.need, 0, len(rows.node.schema)))
            if (wanted & rows.missing).any():
                yield rows, Demand(wanted, rows.nothing.bad)
                found = replace(found, need=below.nothing.need)
        yield below, found


class _Map(Operator):
    def __init__(self, node: g.Map, evaluator: Evaluator, *, ranks_unread: bool = False) -> None:
        self._run = compile_map(node, evaluator)
        self._keeps_rows = all(isinstance(step, g.Project) for step in node.steps)
        self._passes_all = _passes_all(node, ranks_unread=ranks_unread)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        (given,) = inputs
        output = self._run(given)
        known = output.distinct or (given.distinct and self._passes_all)
        hashes = given.hashes if self._keeps_rows else output.hashes
        return Delta(output.rows, output.weights, known, hashes), ()


def _passes_all(node: g.Map, *, ranks_unread: bool) -> bool:
    """Whether the Map passes on every column, so that distinct rows stay distinct; unread ranks do not make rows distinct."""
    origins: list[int | None] = list(range(len(node.input.schema)))
    for step in node.steps:
        if isinstance(step, g.Project):
            origins = [None if e.column is None else origins[e.column] for e in step.expressions]
        elif not isinstance(step, g.Filter):
            return False
    return set(range(len(node.input.schema) - ranks_unread)) <= set(origins)


def _step_title(step: g.Step) -> str:
    match step:
        case g.Filter(condition):
            return f"where {condition.text}"
        case g.Project(expressions):
            return "select " + ", ".join(e.text for e in expressions)
        case g.Expand(projections):
            return f"expand {len(projections)} times"
        case g.Generate(text):
            return text
        case g.Replicate(count):
            return f"repeat {count.text} times"
        case g.UdfCall(text=text):
            return f"call {text}"


def _keys_after(step: g.Step, keys: Keys) -> Keys:
    match step:
        case g.Filter() | g.UdfCall():
            return keys
        case g.Project():
            places: dict[int, int] = {}
            for place, expression in enumerate(step.expressions):
                if expression.column is not None:
                    places.setdefault(expression.column, place)
            return least(frozenset(places[c] for c in key) for key in keys if all(c in places for c in key))
        case _:
            return NONE


def _projected(expressions: Sequence[g.Expression], given: Origins) -> Origins:
    return tuple(
        given[e.column] if e.column is not None else ColumnOrigin(all_of(given[c] for c in columns_of([e])))
        for e in expressions
    )


class UnionKind(OperatorKind[g.Union]):
    """All rows of several inputs."""

    is_linear = True

    def build(self, node: g.Union, context: BuildContext) -> Operator:
        return _Union(node)

    def retraction(self, node: g.Union) -> Retraction:
        return "rows"

    def title(self, node: g.Union) -> str:
        return f"union of {len(node.inputs)}"

    def column_origins(self, node: g.Union, below: Sequence[Origins]) -> Origins:
        return either(below)

    def input_slices(self, node: g.Union, one: Slice) -> Sequence[Slice]:
        return [one] * len(node.inputs)

    def trace(self, node: g.Union, request: TraceRequest) -> Demands:
        need = chosen(request.site.whole.ids, request.demand.need)
        bad = chosen(request.site.part.ids, request.demand.bad)
        for child in node.inputs:
            below = request.below(child)
            yield below, Demand(among(below.whole.ids, need), among(below.part.ids, bad))


class _Union(Operator):
    def __init__(self, node: g.Union) -> None:
        self._schema = node.schema

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        same = [d.renamed(renamed(d.rows, self._schema)) for d in inputs if len(d)]
        return concat(same, self._schema), ()
