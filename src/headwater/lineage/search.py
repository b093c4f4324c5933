"""Finds a sufficient set of records by tracing rows back, replaying the views over the records found, and adding records
until the replay gives exactly the wanted rows.

Tracing finds the records that rows are made of: the rows of a group, the two rows of a joined pair. Replayed over these
alone, the views nearly always give the wanted rows, and the search ends. A replay may give other rows where a row exists
because another is *absent* (an outer join without a match, a rank, a group that must be complete), or where records found
for one part of a query also affect another part. Then the missing and the surplus rows are traced back again, which finds
more records. Each round adds records, so the search terminates: at the latest with all records, which give the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Mask
from headwater.engine.collections.collections import ViewCollection
from headwater.engine.dataflow.facets.demands import Demand, OperatorOutput, Site, Slice, TraceRequest
from headwater.engine.dataflow.facets.row_sets import among, chosen, row_ids
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.lineage.input_slices import within
from headwater.lineage.replay_graph import Pass, run, source_rows
from headwater.lineage.source_records import Records
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, take_rows
from headwater.verify.table_equality import difference


@dataclass(frozen=True, eq=False)
class LineageResult:
    """The origin of rows: records by topic, and rows of the views in between, sources first, the view itself last."""

    records: Mapping[str, pa.Table]
    path: Mapping[str, pa.Table]
    rounds: int
    """Number of tracing rounds: 1 unless records found for one part of a query affect another part."""
    last_resort: bool
    """Whether tracing found no sufficient set, so that all records that may affect the rows were taken."""


class Finder:
    """Finds the records and rows from which rows of the last of `units` come: a view and all views below it, sources first."""

    def __init__(
        self,
        units: Sequence[ViewCollection],
        topics: Mapping[str, Records],
        evaluator: Evaluator,
        watermarks: Mapping[str, Mapping[str, int]],
    ) -> None:
        """`watermarks` has, by view, the watermarks of the topics that the view waits for."""
        self._units = units
        self._watermarks = watermarks
        self._topics = topics
        self._evaluator = evaluator
        everything = {name: np.ones(r.rows.num_rows, dtype=np.bool_) for name, r in topics.items()}
        self._whole = self._run(everything)
        failed = next((p.error for p in self._whole.values() if p.error is not None), None)
        if failed is not None:
            raise failed
        self._chosen = {name: ~mask for name, mask in everything.items()}
        self._path = {u.name: np.zeros(len(self._whole[u.name].rows.delta), dtype=np.bool_) for u in units}

    def rows(self, key: Slice) -> pa.Table:
        """Return the rows of the view that have a key, as computed from the records."""
        view = self._units[-1]
        return _table(self._whole[view.name].rows, key, view.schema)

    def find(self, key: Slice) -> LineageResult:
        """Return the origin of the rows with a key: run over these records alone, the view has the same rows with that key."""
        view = self._units[-1].name
        self._path[view] = _having(self._whole[view].rows, key)
        rounds, last_resort = 0, False
        while not last_resort:
            part = self._run(self._chosen)
            if all(p.error is None for p in part.values()) and self._given(part, key):
                break
            before = _counts(self._chosen)
            self._trace(part, key)
            rounds += 1
            last_resort = _counts(self._chosen) == before
        if last_resort:
            self._chosen = {name: np.ones_like(mask) for name, mask in self._chosen.items()}
        records = {n: r.table(self._chosen[n]) for n, r in self._topics.items() if self._chosen[n].any()}
        path = {
            u.name: _expanded(self._whole[u.name].rows.delta.filter(self._path[u.name]), u.schema)
            for u in self._units
            if self._path[u.name].any()
        }
        return LineageResult(records, path, rounds, last_resort)

    def _run(self, records: Mapping[str, Mask]) -> dict[str, Pass]:
        """Run every view over some records; views above one that fails are left out."""
        rows = {
            name: Delta.of(take_rows(self._topics[name].rows, np.flatnonzero(mask)))
            for name, mask in records.items()
        }
        passes: dict[str, Pass] = {}
        for unit in self._units:
            passes[unit.name] = done = run(unit.pipeline, unit.admitted(rows), self._watermarks[unit.name])
            if done.error is not None:
                break
            rows[unit.name] = done.rows.delta
        return passes

    def _given(self, part: Mapping[str, Pass], key: Slice) -> bool:
        """Whether the view has exactly the expected rows with the key; floats may differ by the order of summation."""
        view = self._units[-1]
        mine = _table(part[view.name].rows, key, view.schema)
        return difference(mine, self.rows(key)) is None

    def _trace(self, part: Mapping[str, Pass], key: Slice) -> None:
        """Add the records, and the rows of views, that the partial run lacks or that remove surplus rows from it."""
        demands: dict[str, Demand] = {}
        for unit in reversed([u for u in self._units if u.name in part]):
            whole, done = self._whole[unit.name], part[unit.name]
            nodes = [node for node, _ in unit.pipeline.nodes]
            sites = {
                id(node): Site(node, w, p)
                for node, w, p in zip(nodes, whole.outputs, done.outputs, strict=True)
            }
            wanted: dict[int, Demand] = {}
            if done.failed is not None:
                # the inputs that it failed on do not exist in the complete run
                below = (sites[id(child)] for child in nodes[done.failed].inputs)
                wanted = {id(s.node): Demand(s.nothing.need, s.excess) for s in below}
            elif unit is self._units[-1]:
                root = sites[id(nodes[-1])]
                wanted[id(nodes[-1])] = Demand(_having(root.whole, key), _having(root.part, key))
            elif unit.name in demands:
                wanted[id(nodes[-1])] = demands[unit.name]
                self._path[unit.name] |= demands[unit.name].need
            self._descend(nodes, sites, wanted, part, demands)

    def _descend(
        self,
        nodes: Sequence[g.Node],
        sites: dict[int, Site],
        wanted: dict[int, Demand],
        part: Mapping[str, Pass],
        demands: dict[str, Demand],
    ) -> None:
        """Propagate demands through one graph down to the topics and views that it reads."""
        for node in reversed(nodes):
            demand = wanted.pop(id(node), None)
            if demand is None or not (demand := demand.open_at(sites[id(node)])):
                continue
            if isinstance(node, g.SourceNode):
                self._at_source(node, sites[id(node)], demand, part, demands)
                continue
            request = TraceRequest(sites[id(node)], demand, sites, self._evaluator)
            for below, more in kind_of(node).trace(node, request):
                known = wanted.get(id(below.node))
                wanted[id(below.node)] = more if known is None else known | more

    def _at_source(
        self,
        node: g.SourceNode,
        site: Site,
        demand: Demand,
        part: Mapping[str, Pass],
        demands: dict[str, Demand],
    ) -> None:
        need = chosen(site.whole.ids, demand.need)
        if node.name in self._topics:
            rows = source_rows(node, self._topics[node.name].rows)
            self._chosen[node.name] = self._chosen[node.name] | among(
                row_ids(rows.columns, rows.num_rows), need
            )
            return
        bad = chosen(site.part.ids, demand.bad)
        more = Demand(
            _among(node, self._whole[node.name].rows, need), _among(node, part[node.name].rows, bad)
        )
        known = demands.get(node.name)
        demands[node.name] = more if known is None else known | more


def _among(node: g.SourceNode, output: OperatorOutput, wanted: pa.Array) -> Mask:
    """Return a mask of the rows of a view that a source shows as one of the wanted rows."""
    rows = source_rows(node, output.delta.rows)
    return among(row_ids(rows.columns, len(output.delta)), wanted)


def _having(output: OperatorOutput, key: Slice) -> Mask:
    return within(output.delta.rows.columns, len(output.delta), (key,))


def _table(output: OperatorOutput, key: Slice, schema: pa.Schema) -> pa.Table:
    return _expanded(output.delta.filter(_having(output, key)), schema)


def _expanded(delta: Delta, schema: pa.Schema) -> pa.Table:
    """Expand each row of weight n to n rows."""
    rows = take_rows(delta.rows, np.repeat(np.arange(len(delta)), delta.weights))
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _counts(masks: Mapping[str, Mask]) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks.items()}
