"""The records that suffice: found by tracing rows back, run again, and added to until they give the rows and no others.

Tracing from the rows gives the records they are made of: the rows of a group, the two rows of a pair. Run over these
alone the views nearly always give the rows, and then that is the answer. They may not where a row is there because
another is *not* (an outer join without a match, a rank, a group that must be complete) and records found for one part of
a query mean something to another part. Then what is missing, and what is too much, is traced back again, which finds
more records. Each round adds some, so it ends; at the latest with all, which give the view.
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
    """What rows come from: records, by topic, and rows of the views on the way, sources first, the view itself last."""

    records: Mapping[str, pa.Table]
    path: Mapping[str, pa.Table]
    rounds: int
    """How often was traced: 1 unless records of one part of a query had to do with another."""
    last_resort: bool
    """Whether tracing did not get there, and all records were taken that may have to do with the rows."""


class Finder:
    """Finds what rows of the last of some views come from. `units` are it and all views below, sources first."""

    def __init__(
        self,
        units: Sequence[ViewCollection],
        topics: Mapping[str, Records],
        evaluator: Evaluator,
        watermarks: Mapping[str, Mapping[str, int]],
    ) -> None:
        """`watermarks`: by view, those of the topics that it waits for."""
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
        """The rows of the view that have a key, as they are computed from the records."""
        view = self._units[-1]
        return _table(self._whole[view.name].rows, key, view.schema)

    def find(self, key: Slice) -> LineageResult:
        """What the rows with a key come from: run over these records alone, the view has the same rows with that key."""
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
        """What every view is over some records; those above one that fails are left out."""
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
        """Whether the view has the rows with the key that it must have; floats may differ by the order of a sum."""
        view = self._units[-1]
        mine = _table(part[view.name].rows, key, view.schema)
        return difference(mine, self.rows(key)) is None

    def _trace(self, part: Mapping[str, Pass], key: Slice) -> None:
        """Add the records, and the rows of views, that the part lacks, or without which it has rows too many."""
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
                # what it failed on is not there in the whole
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
        """Bring demands down one graph, to the topics and the views that it reads."""
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
    """The rows of a view of which a source shows what is wanted."""
    rows = source_rows(node, output.delta.rows)
    return among(row_ids(rows.columns, len(output.delta)), wanted)


def _having(output: OperatorOutput, key: Slice) -> Mask:
    return within(output.delta.rows.columns, len(output.delta), (key,))


def _table(output: OperatorOutput, key: Slice, schema: pa.Schema) -> pa.Table:
    return _expanded(output.delta.filter(_having(output, key)), schema)


def _expanded(delta: Delta, schema: pa.Schema) -> pa.Table:
    """A row of weight n as n rows."""
    rows = take_rows(delta.rows, np.repeat(np.arange(len(delta)), delta.weights))
    return pa.Table.from_arrays(rows.columns, schema=schema)


def _counts(masks: Mapping[str, Mask]) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks.items()}
