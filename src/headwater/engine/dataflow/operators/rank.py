"""Ranking: the first rows of each group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Indices
from headwater.engine.dataflow.facets.column_origins import PLAIN, Origins
from headwater.engine.dataflow.facets.demands import Demand, Demands, Slice, TraceRequest, column_ids
from headwater.engine.dataflow.facets.kept_state import ONE, Extent, KeptState
from headwater.engine.dataflow.facets.row_sets import among, chosen, joined, key_ids, places
from headwater.engine.dataflow.facets.unique_keys import Keys, least
from headwater.engine.dataflow.keyed_operators import RankOperator
from headwater.engine.dataflow.linear import columns_of
from headwater.engine.dataflow.operator_interface import Operator
from headwater.engine.dataflow.operators.operator_kind import (
    BuildContext,
    OperatorKind,
    Retraction,
    column_names,
)
from headwater.operators import graph as g
from headwater.operators.window.ranking import RankSpec
from headwater.operators.zset.collation import ColumnOrder, sort_rows, total_order
from headwater.operators.zset.delta import Delta
from headwater.plan.relations.relations import Bound
from headwater.spark.catalyst import Jvm, children_of, conjuncts, identity, items, kind


class RankKind(OperatorKind[g.Rank]):
    """row_number, rank or dense_rank up to a limit; ORDER BY with LIMIT."""

    def build(self, node: g.Rank, context: BuildContext) -> Operator:
        order = _column_order(node)
        limits, exact = (node.limit, node.offset), id(node) not in context.unread
        spec = RankSpec(node.key, order, node.function, *limits, numbered=node.shows_rank, exact=exact)
        return RankOperator(spec, node.input.schema, context.name)

    def is_unread(self, node: g.Rank, reader: g.Map) -> bool:
        """Whether rows are only filtered by their ranks, and no rank is in the output."""
        if not node.shows_rank:
            return False
        column = len(node.schema) - 1
        for step in reader.steps:
            match step:
                case g.Filter(condition):
                    if column in columns_of([condition]) and not _bounds(condition, column, node.limit):
                        return False
                case g.Project(expressions):
                    return column not in columns_of(expressions)
                case _:
                    return False
        return False

    def title(self, node: g.Rank) -> str:
        return f"{node.function} <= {node.limit} by ({column_names(node.input.schema, node.key)})"

    def row_extent(self, node: g.Rank, below: Sequence[Extent]) -> Extent:
        if not node.key and node.function == "row_number":
            return ONE
        return super().row_extent(node, below)

    def kept_state(self, node: g.Rank, below: Sequence[Extent]) -> Iterable[KeptState]:
        what = "every row, since the next row takes the place of a retracted one"
        instead = "min, max, min_by and max_by without GROUP BY keep one row of a topic without a PRIMARY KEY"
        return [KeptState(node, what, instead, below[0])]

    def retraction(self, node: g.Rank) -> Retraction:
        return "rows"

    def lookup_keys(self, node: g.Rank) -> Sequence[tuple[int, ...]] | None:
        return [node.key]

    def shown_columns(self, node: g.Rank) -> Mapping[int, int]:
        return {column: column for column in range(len(node.input.schema))}

    def partition_key(self, node: g.Rank) -> Sequence[int]:
        return node.key

    def unique_keys(self, node: g.Rank, below: Sequence[Keys]) -> Keys:
        has_one = node.limit - node.offset == 1 and node.function == "row_number"
        return least([*below[0], *([frozenset(node.key)] if has_one else ())])

    def column_origins(self, node: g.Rank, below: Sequence[Origins]) -> Origins:
        return (*below[0], *(PLAIN,) * (len(node.schema) - len(below[0])))  # the rank is a number

    def input_slices(self, node: g.Rank, one: Slice) -> Sequence[Slice]:
        return [{c: v for c, v in one.items() if c in node.key}]

    def trace(self, node: g.Rank, request: TraceRequest) -> Demands:
        """Demand the rows of the group up to the last demanded row.

        For a row that ranks too high in the part, demand the rows that precede it in the whole, as far as they are
        ranked at all.
        """
        below, site, demand = request.below(node.input), request.site, request.demand
        width = len(node.input.schema)
        too_high = column_ids(site.part, demand.bad, 0, width)
        marked = among(below.whole.ids, joined(column_ids(site.whole, demand.need, 0, width), too_high))
        keys, part_keys = key_ids(below.whole.delta, node.key), key_ids(below.part.delta, node.key)
        groups = joined(chosen(keys, marked), chosen(part_keys, among(below.part.ids, too_high))).unique()
        members = np.flatnonzero(among(keys, groups))
        ranked = _ranked(node, below.whole.delta.take(members), places(keys.take(pa.array(members)), groups))
        last = np.full(len(groups), -1, dtype=np.int64)
        np.maximum.at(last, ranked.group[marked[members]], ranked.place[marked[members]])
        before = ranked.place <= last[ranked.group]
        if node.function != "row_number":
            # rows of equal rank do not precede each other
            before = (ranked.place < last[ranked.group]) | marked[members]
        need = np.zeros(len(keys), dtype=np.bool_)
        need[members[before & (ranked.ahead < node.limit)]] = True
        yield below, Demand(need, among(part_keys, groups))


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The group of each row, the position in the order of the group, and the number of rows or values ahead of it.

    Rows of equal rank have equal positions.
    """

    group: Indices
    place: Indices
    ahead: Indices


def _ranked(node: g.Rank, rows: Delta, groups: Indices) -> _Ranked:
    declared = _column_order(node)
    order = sort_rows(rows.rows, groups, total_order(declared, rows.rows.num_columns), len(declared))
    sorted_groups, weights = groups[order.order], rows.weights[order.order]
    starts = np.ones(len(groups), dtype=np.bool_)
    starts[1:] = sorted_groups[1:] != sorted_groups[:-1]
    fresh = order.rows if node.function == "row_number" else order.values
    place = np.cumsum(fresh | starts, dtype=np.int64)
    ahead = place - 1 if node.function == "dense_rank" else np.cumsum(weights) - weights
    at = np.maximum.accumulate(np.where(fresh | starts, np.arange(len(groups)), 0))
    within = np.maximum.accumulate(np.where(starts, np.arange(len(groups)), 0))
    ahead = ahead[at] - ahead[within] if len(groups) else ahead
    back_to = np.empty(len(groups), dtype=np.int64)
    back_to[order.order] = np.arange(len(groups))
    return _Ranked(groups, place[back_to], ahead[back_to])


def _column_order(node: g.Rank) -> tuple[ColumnOrder, ...]:
    return tuple(ColumnOrder(o.column, o.descending, o.nulls_first) for o in node.order)


def _bounds(condition: g.Expression, column: int, limit: int) -> bool:
    """Whether a condition only bounds the rank from above, by a number that no rank up to `limit` exceeds."""
    if not isinstance(condition.handle, Bound):
        return False
    rank = identity(condition.handle.attributes[column])
    for term in conjuncts(condition.handle.expression):
        read = (identity(a) for a in items(term.references().toSeq()))
        if rank in read and not limit <= _greatest(term, rank):
            return False
    return True


def _greatest(term: Jvm, rank: int) -> int:
    """Return the k of `rank <= k` or `rank < k + 1`; -1, below all ranks, for any other condition."""
    if kind(term) not in ("LessThanOrEqual", "LessThan"):
        return -1
    left, right = children_of(term)
    if kind(left) != "AttributeReference" or identity(left) != rank or kind(right) != "Literal":
        return -1
    value = right.value()
    if not isinstance(value, int):
        return -1
    return value - 1 if kind(term) == "LessThan" else value
