"""From rows of an operator back to rows of its inputs: a function for each kind of operator.

A graph is run twice: over all that a view reads (*whole*), and over the records found so far (*part*). Given rows that
the part lacks, and rows that it has too many, `back` tells what of the inputs that is owed to:

- rows of an input that the part must have: those of the group, the pair, the ranks up to a row;
- rows of an input that the part must not have: those that got into a group, matched a row that has no match, or took a
  rank, only because the records that keep them away are not among those found.

It may tell rows that the part has already, or that it has rightly; whoever asks leaves these out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from headwater.hashing import Indices, Mask
from headwater.operators import join, sessions
from headwater.operators.collation import Order, sort_rows, total_order
from headwater.operators.delta import Delta, concat_rows, take_rows
from headwater.operators.sliding import near
from headwater.operators.standing.meeting import document_ids
from headwater.queries import graph as g
from headwater.runtime.expressions import Evaluator
from headwater.runtime.groups import compile_groups, shown_columns
from headwater.runtime.lineage.passes import Output
from headwater.runtime.lineage.sets import Ids, among, chosen, joined, key_ids, places, row_ids
from headwater.runtime.linear import compile_condition
from headwater.runtime.planning.catalyst import items, kind
from headwater.runtime.planning.handles import Evaluation, NotIn


@dataclass(frozen=True, eq=False)
class Site:
    """An operator in both runs."""

    node: g.Node
    whole: Output
    part: Output

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


def back(site: Site, demand: Demand, sites: Sites, evaluator: Evaluator) -> Demands:
    """What a demand at an operator means for those below it."""
    match site.node:
        case g.Map():
            yield from _map(site, site.node, demand, sites)
        case g.Union():
            yield from _union(site, demand, sites)
        case g.Close(input=child):
            below = sites[id(child)]
            need = _origins(site.whole, demand.need, below.whole)
            yield below, Demand(need, _origins(site.part, demand.bad, below.part))
        case g.Aggregate():
            yield from _aggregate(site, site.node, demand, sites)
        case g.Regroup():
            yield from _regroup(site, site.node, demand, sites, evaluator)
        case g.Slide():
            yield from _slide(site, site.node, demand, sites)
        case g.Sessions():
            yield from _sessions(site, site.node.key, site.node.column, demand, sites)
        case g.SessionAggregate():
            yield from _sessions(site, range(site.node.keys), site.node.column, demand, sites)
        case g.Versions(input=child, key=key):
            groups = joined(
                chosen(key_ids(site.whole.delta, key), demand.need),
                chosen(key_ids(site.part.delta, key), demand.bad),
            )
            yield sites[id(child)], _of_groups(sites[id(child)], key, groups)
        case g.Fold():
            yield from _fold(site, site.node, demand, sites)
        case g.Meet():
            yield from _meet(site, site.node, demand, sites)
        case g.Rank():
            yield from _rank(site, site.node, demand, sites)
        case g.Join():
            yield from _Join(site.node, evaluator, sites).back(site, demand)
        case _:
            return


def _map(site: Site, node: g.Map, demand: Demand, sites: Sites) -> Demands:
    below = sites[id(node.input)]
    found = Demand(
        _origins(site.whole, demand.need, below.whole),
        _origins(site.part, demand.bad, below.part),
    )
    first = node.steps[0]
    if isinstance(first, g.Filter) and isinstance(first.condition.handle, NotIn):
        # NOT IN joins its rows with a tally of what they are compared with. Over no more than a row itself the tally
        # is another, and the row is there all the same.
        assert isinstance(node.input, g.Join)
        rows = sites[id(node.input.left)]
        width = len(rows.node.schema)
        wanted = among(rows.whole.ids, _part_ids(below.whole, found.need, 0, width))
        if (wanted & rows.lacking).any():
            yield rows, Demand(wanted, rows.nothing.bad)
            found = replace(found, need=below.nothing.need)
    yield below, found


def _origins(output: Output, wanted: Mask, below: Output) -> Mask:
    """The rows of its input from which rows of a linear operator come."""
    if not wanted.any():
        return np.zeros(len(below.delta), dtype=np.bool_)
    assert output.origin is not None
    mine = output.origin[among(output.given_ids, chosen(output.ids, wanted))]
    return among(below.ids, below.given_ids.take(pa.array(mine)))


def _union(site: Site, demand: Demand, sites: Sites) -> Demands:
    need, bad = chosen(site.whole.ids, demand.need), chosen(site.part.ids, demand.bad)
    for child in site.node.inputs:
        below = sites[id(child)]
        yield below, Demand(among(below.whole.ids, need), among(below.part.ids, bad))


def _aggregate(site: Site, node: g.Aggregate, demand: Demand, sites: Sites) -> Demands:
    below = sites[id(node.input)]
    yield below, _of_groups(below, range(node.keys), _first_columns(site, demand, node.keys))


def _fold(site: Site, node: g.Fold, demand: Demand, sites: Sites) -> Demands:
    below = sites[id(node.input)]
    yield below, _of_groups(below, node.key, _first_columns(site, demand, len(node.key)))


def _meet(site: Site, node: g.Meet, demand: Demand, sites: Sites) -> Demands:
    """The documents of matches, and all records of their queries."""
    asked = [site.whole.delta.filter(demand.need).rows, site.part.delta.filter(demand.bad).rows]
    wanted = concat_rows(asked, node.schema)
    documents, queries = sites[id(node.documents)], sites[id(node.queries)]
    ids = row_ids([wanted.column(1)], wanted.num_rows)
    need, bad = (
        among(row_ids([document_ids(node.handle, o.delta.rows)], len(o.delta)), ids)
        for o in (documents.whole, documents.part)
    )
    yield documents, Demand(need, bad)
    yield queries, _of_groups(queries, (0,), row_ids([wanted.column(0)], wanted.num_rows))


def _slide(site: Site, node: g.Slide, demand: Demand, sites: Sites) -> Demands:
    """All rows in the frames of those that are asked for, which are themselves the first columns of what is shown."""
    below = sites[id(node.input)]
    asked = [site.whole.delta.filter(demand.need).rows, site.part.delta.filter(demand.bad).rows]
    wanted = concat_rows([rows.select(range(len(node.input.schema))) for rows in asked], node.input.schema)
    reach = node.preceding, node.following
    need, bad = (
        near(output.delta.rows, wanted, node.key, node.time, *reach) for output in (below.whole, below.part)
    )
    yield below, Demand(need, bad)


def _sessions(site: Site, key: tuple[int, ...] | range, column: int, demand: Demand, sites: Sites) -> Demands:
    """All rows of the sessions that are asked for. One that the part has and the whole has not is a piece of a session of
    the whole, or of several: of these all rows are needed.
    """
    (child,) = site.node.inputs
    below = sites[id(child)]
    columns = [*(c for c in key if c != column), column]
    whole, part = (_session_ids(output, columns) for output in (below.whole, below.part))
    bad = among(part, chosen(key_ids(site.part.delta, columns), demand.bad))
    pieces = chosen(whole, among(below.whole.ids, chosen(below.part.ids, bad)))
    asked = chosen(key_ids(site.whole.delta, columns), demand.need)
    yield below, Demand(among(whole, joined(asked, pieces)), bad)


def _session_ids(output: Output, columns: list[int]) -> Ids:
    """What stands for the key and the session that each row belongs to; the session is the last of the columns."""
    delta = output.delta
    *key, column = columns
    arrays = [*delta.rows.columns]
    arrays[column] = sessions.sessions_of(delta.rows, key, column)
    return key_ids(
        Delta(pa.RecordBatch.from_arrays(arrays, schema=delta.rows.schema), delta.weights), columns
    )


def _first_columns(site: Site, demand: Demand, width: int) -> Ids:
    """The keys of groups that stand in the first columns of what is asked for."""
    key = range(width)
    return joined(
        chosen(key_ids(site.whole.delta, key), demand.need), chosen(key_ids(site.part.delta, key), demand.bad)
    )


def _of_groups(below: Site, key: range | tuple[int, ...], groups: Ids) -> Demand:
    """All rows of some groups."""
    return Demand(
        among(key_ids(below.whole.delta, key), groups), among(key_ids(below.part.delta, key), groups)
    )


def _regroup(site: Site, node: g.Regroup, demand: Demand, sites: Sites, evaluator: Evaluator) -> Demands:
    below = sites[id(node.input)]
    groups = joined(
        _groups_of(node, site.whole, demand.need, below.whole, evaluator),
        _groups_of(node, site.part, demand.bad, below.part, evaluator),
    )
    yield below, _of_groups(below, node.key, groups)


def _groups_of(node: g.Regroup, output: Output, wanted: Mask, given: Output, evaluator: Evaluator) -> Ids:
    """The keys of the groups that gave some rows."""
    if not wanted.any():
        return row_ids([], 0)
    if not node.key:
        return key_ids(output.delta, ()).slice(0, 1)
    rows = output.delta.filter(wanted)
    shown = {column: place for place, column in shown_columns(node).items()}
    if all(column in shown for column in node.key):
        return key_ids(rows, [shown[column] for column in node.key])
    evaluation: Evaluation = node.evaluate
    width = len(evaluation.attributes)
    if kind(evaluation.plan) == "Window":
        # a window function leaves the rows of its input as they are
        mine = among(
            row_ids(given.delta.rows.columns[:width], len(given.delta)),
            row_ids(rows.rows.columns[:width], len(rows)),
        )
        return chosen(key_ids(given.delta, node.key), mine)
    made = Delta.of(compile_groups(_with_keys(node, evaluator), evaluator)(_expanded(given.delta)))
    width = len(node.schema)
    mine = among(row_ids(made.rows.columns[:width], len(made)), chosen(output.ids, wanted))
    return chosen(key_ids(made, range(width, width + len(node.key))), mine)


def _with_keys(node: g.Regroup, evaluator: Evaluator) -> g.Regroup:
    """The same function of groups, with the key of the group behind what it gives."""
    evaluation: Evaluation = node.evaluate
    c, plan = evaluator.catalyst, evaluation.plan
    keys = [c.alias(e, f"key_{i}") for i, e in enumerate(items(plan.groupingExpressions()))]
    shown = c.seq([*items(plan.aggregateExpressions()), *keys])
    wider = c.plans.Aggregate(plan.groupingExpressions(), shown, plan.child(), plan.hint())
    fields = [node.input.schema.field(k).with_name(f"key_{i}") for i, k in enumerate(node.key)]
    schema = pa.schema([*node.schema, *fields])
    return replace(node, evaluate=evaluation._replace(plan=wider), schema=schema)


def _expanded(delta: Delta) -> pa.RecordBatch:
    return take_rows(delta.rows, np.repeat(np.arange(len(delta)), delta.weights))


def _rank(site: Site, node: g.Rank, demand: Demand, sites: Sites) -> Demands:
    """The rows of the group up to the last one that is asked for; of a row that ranks too high, those that go before
    it, as far as they are ranked at all.
    """
    below = sites[id(node.input)]
    width = len(node.input.schema)
    too_high = _part_ids(site.part, demand.bad, 0, width)
    marked = among(below.whole.ids, joined(_part_ids(site.whole, demand.need, 0, width), too_high))
    keys, part_keys = key_ids(below.whole.delta, node.key), key_ids(below.part.delta, node.key)
    groups = joined(chosen(keys, marked), chosen(part_keys, among(below.part.ids, too_high))).unique()
    members = np.flatnonzero(among(keys, groups))
    ranked = _ranked(node, below.whole.delta.take(members), places(keys.take(pa.array(members)), groups))
    last = np.full(len(groups), -1, dtype=np.int64)
    np.maximum.at(last, ranked.group[marked[members]], ranked.place[marked[members]])
    before = ranked.place <= last[ranked.group]
    if node.function != "row_number":
        # rows of one rank do not go before each other
        before = (ranked.place < last[ranked.group]) | marked[members]
    need = np.zeros(len(keys), dtype=np.bool_)
    need[members[before & (ranked.ahead < node.limit)]] = True
    yield below, Demand(need, among(part_keys, groups))


@dataclass(frozen=True, eq=False)
class _Ranked:
    """Of each row its group, its place in the order of the group, and what its rank counts ahead of it.

    Rows that have one rank have one place.
    """

    group: Indices
    place: Indices
    ahead: Indices


def _ranked(node: g.Rank, rows: Delta, groups: Indices) -> _Ranked:
    declared = tuple(Order(o.column, o.descending, o.nulls_first) for o in node.order)
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


def _part_ids(output: Output, wanted: Mask, start: int, end: int) -> Ids:
    """What stands for some columns of some rows."""
    rows = output.delta.filter(wanted)
    return row_ids(rows.rows.columns[start:end], len(rows))


class _Join:
    """Rows of a join: pairs, and rows of one side that show whether they have a match."""

    def __init__(self, node: g.Join, evaluator: Evaluator, sites: Sites) -> None:
        self._node = node
        self._evaluator = evaluator
        self._sides = (sites[id(node.left)], sites[id(node.right)])
        self._width = len(node.left.schema)
        self._spec = join.JoinSpec(node.kind, node.left_key, node.right_key)

    def back(self, site: Site, demand: Demand) -> Demands:
        for side, below in enumerate(self._sides):
            if side and not self._spec.shows_pairs:
                need, bad = below.nothing.need, below.nothing.bad
            else:
                need = among(below.whole.ids, self._halves(site.whole, demand.need, side))
                bad = among(below.part.ids, self._halves(site.part, demand.bad, side))
            yield below, Demand(need, bad)
        if self._spec.shows_left:
            yield self._sides[1], self._partners(site, demand, 0)
        if self._spec.shows_right:
            yield self._sides[0], self._partners(site, demand, 1)

    def _halves(self, output: Output, wanted: Mask, side: int) -> Ids:
        """The rows of one side that joined rows show. NULLs alone are padding, since a NULL in a key matches nothing;
        but if the other side is no more than NULLs either, a row that is so has no match.
        """
        shown = output.delta.filter(wanted)
        rows = _half(shown, side, self._width)
        padded = self._node.kind in ("full", "left" if side else "right")
        if self._node.left_key and padded:
            real = ~_all_null(rows)
            if self._node.kind == "full":
                real |= _all_null(_half(shown, 1 - side, self._width))
            rows = rows.filter(real)
        return row_ids(rows.rows.columns, len(rows))

    def _partners(self, site: Site, demand: Demand, side: int) -> Demand:
        """Rows of the other side by which rows of this one have, or do not have, a match."""
        mine = self._sides[side].node.schema
        other = self._sides[1 - side]
        need, bad = other.nothing.need, other.nothing.bad
        for output, wanted, wrong in ((site.whole, demand.need, False), (site.part, demand.bad, True)):
            if not wanted.any():
                continue
            shown = output.delta.filter(wanted)
            matched = self._matched(shown, side)
            for has_match, rows in ((True, shown.filter(matched)), (False, shown.filter(~matched))):
                if not len(rows) or (has_match and self._spec.shows_pairs):
                    continue  # a pair shows its match
                half = _half(rows, side, self._width)
                own = half.with_rows(pa.RecordBatch.from_arrays(half.rows.columns, schema=mine))
                if has_match == wrong:
                    bad = bad | self._matching(own, side, other.part)
                else:
                    need = need | self._matching(own, side, other.whole, one=wrong)
        return Demand(need, bad)

    def _matched(self, rows: Delta, side: int) -> Mask:
        """Which rows show that they have a match."""
        kind = self._node.kind
        if kind in ("semi", "anti"):
            return np.full(len(rows), kind == "semi")
        if kind == "existence":
            flags: Mask = rows.rows.column(self._width).to_numpy(zero_copy_only=False)
            return flags
        return ~_all_null(_half(rows, 1 - side, self._width))

    def _matching(self, rows: Delta, side: int, other: Output, *, one: bool = False) -> Mask:
        """The rows of the other side that match some of these; `one` for each is enough."""
        spec = join.JoinSpec("inner", self._spec.left_key, self._spec.right_key)
        sides = (other.delta, rows) if side else (rows, other.delta)
        condition = None
        if self._node.condition is not None:
            condition = compile_condition(self._node.condition, self._evaluator)
        pairs = join.step(spec, (), (), *sides, condition).output
        if one:
            half = _half(pairs, side, self._width)
            ids = row_ids(half.rows.columns, len(half))
            pairs = pairs.take(np.unique(places(ids, ids)))
        theirs = _half(pairs, 1 - side, self._width)
        return among(other.ids, row_ids(theirs.rows.columns, len(theirs)))


def _half(rows: Delta, side: int, width: int) -> Delta:
    """The columns of one side of joined rows."""
    names = rows.rows.schema.names
    columns = rows.rows.columns[width:] if side else rows.rows.columns[:width]
    return Delta(pa.RecordBatch.from_arrays(columns, names=names[: len(columns)]), rows.weights)


def _all_null(rows: Delta) -> Mask:
    mask = np.ones(len(rows), dtype=np.bool_)
    for column in rows.rows.columns:
        mask &= column.is_null().to_numpy(zero_copy_only=False)
    return mask


def _more_often(mine: Output, theirs: Output) -> Mask:
    found = places(mine.ids, theirs.ids)
    weights = np.append(theirs.delta.weights, 0)[found]
    more: Mask = mine.delta.weights > weights
    return more
