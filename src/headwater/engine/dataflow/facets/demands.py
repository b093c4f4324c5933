"""Lineage of an operator: which rows of its inputs its output rows come from.

A graph is run twice: over all that a view reads (*whole*), and over the records found so far (*part*). Given output rows that
are missing from the part, and output rows that the part has in excess, an operator determines which input rows cause this:

- input rows that the part must have: those of the group, of the pair, or of the ranks up to a row;
- input rows that the part must not have: those that got into a group, matched a row that has no match, or took a rank,
  only because the records that prevent this have not been found yet.

An operator may also name rows that the part already has, or has rightly; the caller removes these.

Before that, *slices* exclude records that cannot contribute to the rows: a slice maps columns to the values they must equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Indices, Mask
from headwater.engine.dataflow.facets.row_sets import Ids, among, chosen, joined, key_ids, places, row_ids
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat_rows, consolidate

Slice = Mapping[int, pa.Array]
"""column -> its value, an array of length 1; a slice without columns contains all rows."""


@dataclass(frozen=True, eq=False)
class OperatorOutput:
    """The output rows of an operator, in the order in which they were emitted."""

    given: Delta
    origin: Indices | None = None
    """For a linear operator, the index of the input row that each output row came from."""

    @cached_property
    def delta(self) -> Delta:
        """The distinct output rows, with their total weights."""
        return consolidate(self.given)

    @cached_property
    def ids(self) -> Ids:
        """A 16-byte ID for each row of `delta`."""
        return row_ids(self.delta.rows.columns, len(self.delta))

    @cached_property
    def given_ids(self) -> Ids:
        """A 16-byte ID for each row of `given`."""
        return row_ids(self.given.rows.columns, len(self.given))


@dataclass(frozen=True, eq=False)
class Site:
    """An operator with its outputs in both runs."""

    node: g.Node
    whole: OperatorOutput
    part: OperatorOutput

    @cached_property
    def missing(self) -> Mask:
        """Mask of the rows of the whole that occur less often in the part."""
        return _more_often(self.whole, self.part)

    @cached_property
    def excess(self) -> Mask:
        """Mask of the rows of the part that occur less often in the whole."""
        return _more_often(self.part, self.whole)

    @cached_property
    def nothing(self) -> Demand:
        """The empty demand."""
        return Demand(np.zeros(len(self.whole.delta), np.bool_), np.zeros(len(self.part.delta), np.bool_))


@dataclass(frozen=True, eq=False)
class Demand:
    """Rows of the whole that the part must have (`need`), and rows of the part that it must not have (`bad`)."""

    need: Mask
    bad: Mask

    def __or__(self, other: Demand) -> Demand:
        return Demand(self.need | other.need, self.bad | other.bad)

    def __bool__(self) -> bool:
        return bool(self.need.any() or self.bad.any())

    def open_at(self, site: Site) -> Demand:
        """Return the part of the demand that is still open."""
        return Demand(self.need & site.missing, self.bad & site.excess)


Sites = dict[int, Site]
"""The sites of a graph, by the ID of the node."""
Demands = Iterator[tuple[Site, Demand]]


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """A demand at an operator, with the sites that are needed to translate it to the operator's inputs."""

    site: Site
    demand: Demand
    sites: Sites
    evaluator: Evaluator

    def below(self, node: g.Node) -> Site:
        """Return the site of an input node."""
        return self.sites[id(node)]

    def rows(self) -> pa.RecordBatch:
        """Return all rows of the demand, missing and excess ones."""
        site, demand = self.site, self.demand
        asked = [site.whole.delta.filter(demand.need).rows, site.part.delta.filter(demand.bad).rows]
        return concat_rows(asked, site.node.schema)

    def keys(self, key: Sequence[int]) -> Ids:
        """Return the keys of all rows of the demand; `key` has columns of the output."""
        return joined(
            chosen(key_ids(self.site.whole.delta, key), self.demand.need),
            chosen(key_ids(self.site.part.delta, key), self.demand.bad),
        )

    def origins(self, node: g.Node) -> Demand:
        """Return the input rows from which the demanded rows come, where each comes from a single input row."""
        below = self.below(node)
        return Demand(
            _origins(self.site.whole, self.demand.need, below.whole),
            _origins(self.site.part, self.demand.bad, below.part),
        )


def of_groups(below: Site, key: Sequence[int], groups: Ids) -> Demand:
    """Return the demand for all rows of some groups."""
    return Demand(
        among(key_ids(below.whole.delta, key), groups), among(key_ids(below.part.delta, key), groups)
    )


def column_ids(output: OperatorOutput, wanted: Mask, start: int, end: int) -> Ids:
    """Return an ID for some columns of the rows in `wanted`."""
    rows = output.delta.filter(wanted)
    return row_ids(rows.rows.columns[start:end], len(rows))


def _origins(output: OperatorOutput, wanted: Mask, below: OperatorOutput) -> Mask:
    """Return a mask of the input rows from which the rows in `wanted` of a linear operator come."""
    if not wanted.any():
        return np.zeros(len(below.delta), dtype=np.bool_)
    assert output.origin is not None
    mine = output.origin[among(output.given_ids, chosen(output.ids, wanted))]
    return among(below.ids, below.given_ids.take(pa.array(mine)))


def _more_often(mine: OperatorOutput, theirs: OperatorOutput) -> Mask:
    found = places(mine.ids, theirs.ids)
    weights = np.append(theirs.delta.weights, 0)[found]
    more: Mask = mine.delta.weights > weights
    return more
