"""What lineage asks of an operator: which rows of its inputs its rows come from.

A graph is run twice: over all that a view reads (*whole*), and over the records found so far (*part*). Given rows that
the part lacks, and rows that it has too many, an operator says what of its inputs that is owed to:

- rows of an input that the part must have: those of the group, the pair, the ranks up to a row;
- rows of an input that the part must not have: those that got into a group, matched a row that has no match, or took a
  rank, only because the records that keep them away are not among those found.

It may name rows that the part has already, or that it has rightly; whoever asks leaves these out.

Before that, records that cannot have to do with the rows are left out by *slices*: what some columns are equal to.
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
"""column -> its value, an array of length 1; no column: everything."""


@dataclass(frozen=True, eq=False)
class OperatorOutput:
    """The rows that an operator gave, as they came."""

    given: Delta
    origin: Indices | None = None
    """Of a linear operator: the row of its input, as they came there, that each row came from."""

    @cached_property
    def delta(self) -> Delta:
        """Each row once, with how often it is there."""
        return consolidate(self.given)

    @cached_property
    def ids(self) -> Ids:
        """What stands for each row of `delta`."""
        return row_ids(self.delta.rows.columns, len(self.delta))

    @cached_property
    def given_ids(self) -> Ids:
        """What stands for each row of `given`."""
        return row_ids(self.given.rows.columns, len(self.given))


@dataclass(frozen=True, eq=False)
class Site:
    """An operator in both runs."""

    node: g.Node
    whole: OperatorOutput
    part: OperatorOutput

    @cached_property
    def lacking(self) -> Mask:
        """The rows of the whole that are there less often in the part."""
        return _more_often(self.whole, self.part)

    @cached_property
    def excess(self) -> Mask:
        """The rows of the part that are there less often in the whole."""
        return _more_often(self.part, self.whole)

    @cached_property
    def nothing(self) -> Demand:
        """No demand."""
        return Demand(np.zeros(len(self.whole.delta), np.bool_), np.zeros(len(self.part.delta), np.bool_))


@dataclass(frozen=True, eq=False)
class Demand:
    """Rows of the whole that the part must have, and rows of the part that it must not have."""

    need: Mask
    bad: Mask

    def __or__(self, other: Demand) -> Demand:
        return Demand(self.need | other.need, self.bad | other.bad)

    def __bool__(self) -> bool:
        return bool(self.need.any() or self.bad.any())

    def open_at(self, site: Site) -> Demand:
        """What of it is not met."""
        return Demand(self.need & site.lacking, self.bad & site.excess)


Sites = dict[int, Site]
"""By the identity of the node."""
Demands = Iterator[tuple[Site, Demand]]


@dataclass(frozen=True, eq=False)
class TraceRequest:
    """A demand at an operator, with what it takes to say what that means for those below it."""

    site: Site
    demand: Demand
    sites: Sites
    evaluator: Evaluator

    def below(self, node: g.Node) -> Site:
        """An operator that it reads."""
        return self.sites[id(node)]

    def rows(self) -> pa.RecordBatch:
        """All rows that are asked for."""
        site, demand = self.site, self.demand
        asked = [site.whole.delta.filter(demand.need).rows, site.part.delta.filter(demand.bad).rows]
        return concat_rows(asked, site.node.schema)

    def keys(self, key: Sequence[int]) -> Ids:
        """The keys of all rows that are asked for, by some columns of the output."""
        return joined(
            chosen(key_ids(self.site.whole.delta, key), self.demand.need),
            chosen(key_ids(self.site.part.delta, key), self.demand.bad),
        )

    def origins(self, node: g.Node) -> Demand:
        """The rows of its input from which the rows come that are asked for, where each comes from a single one."""
        below = self.below(node)
        return Demand(
            _origins(self.site.whole, self.demand.need, below.whole),
            _origins(self.site.part, self.demand.bad, below.part),
        )


def of_groups(below: Site, key: Sequence[int], groups: Ids) -> Demand:
    """All rows of some groups."""
    return Demand(
        among(key_ids(below.whole.delta, key), groups), among(key_ids(below.part.delta, key), groups)
    )


def column_ids(output: OperatorOutput, wanted: Mask, start: int, end: int) -> Ids:
    """What stands for some columns of some rows."""
    rows = output.delta.filter(wanted)
    return row_ids(rows.rows.columns[start:end], len(rows))


def _origins(output: OperatorOutput, wanted: Mask, below: OperatorOutput) -> Mask:
    """The rows of its input from which rows of a linear operator come."""
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
