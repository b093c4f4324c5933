"""The percolator: documents matched with the queries that are stored at the document's position in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.engine.dataflow.facets.demands import Demand, Demands, Slice, TraceRequest, of_groups
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.row_sets import among, row_ids
from headwater.engine.dataflow.facets.unique_keys import Keys, least
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind
from headwater.operators import graph as g
from headwater.operators.percolator.percolate import Percolator, PercolatorSpec, document_ids
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run


class PercolatorKind(OperatorKind[g.Percolate]):
    """Standing queries: a row for each pair of a document and a stored query that it matches."""

    def build(self, node: g.Percolate, context: BuildContext) -> Operator:
        return _Percolator(node, context.name)

    def title(self, node: g.Percolate) -> str:
        return "match documents with the queries stored at their place in the log"

    def kept_state(self, node: g.Percolate, below: Sequence[Extent]) -> Iterator[KeptState]:
        queries, documents = below
        yield KeptState(node, "every version of every stored query, for later documents", "", queries)
        if node.backfill:
            what = "documents, for stored queries that are added later with backfill"
            yield KeptState(node, what, "the same WITH (backfill = FALSE)", documents)

    def contents_key(self, node: g.Percolate) -> tuple[int, ...] | None:
        return 0, 1

    def unique_keys(self, node: g.Percolate, below: Sequence[Keys]) -> Keys:
        return least([frozenset(range(2))])  # the query, and the document

    def input_slices(self, node: g.Percolate, one: Slice) -> Sequence[Slice]:
        spec: PercolatorSpec = node.handle
        query = {c: v for c, v in one.items() if c == 0}
        known = {1: spec.id[0]} if len(spec.id) == 1 else {}
        first = len(spec.output) - len(spec.shown)
        known |= {first + place: column for place, column in enumerate(spec.shown)}
        return [query, {known[c]: v for c, v in one.items() if c in known}]

    def trace(self, node: g.Percolate, request: TraceRequest) -> Demands:
        """Demand the documents of the matches, and all records of their queries."""
        wanted = request.rows()
        documents, queries = request.below(node.documents), request.below(node.queries)
        ids = row_ids([wanted.column(1)], wanted.num_rows)
        need, bad = (
            among(row_ids([document_ids(node.handle, o.delta.rows)], len(o.delta)), ids)
            for o in (documents.whole, documents.part)
        )
        yield documents, Demand(need, bad)
        yield queries, of_groups(queries, (0,), row_ids([wanted.column(0)], wanted.num_rows))


class _Percolator(Operator):
    def __init__(self, node: g.Percolate, name: str) -> None:
        spec: PercolatorSpec = node.handle
        self._percolator = Percolator(spec)
        self.slots = (
            ArrangementSpec(f"{name}.queries", "multiset", (0,), (), node.queries.schema),
            ArrangementSpec(f"{name}.documents", "ordered", (), spec.order, spec.documents),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        change, queries, documents = self._percolator.step(state[0], state[1], inputs[0], inputs[1])
        return change, (queries, documents)
