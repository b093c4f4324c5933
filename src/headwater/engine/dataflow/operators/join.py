"""Joins: pairs of rows of two inputs, by equal keys, and optionally by a value of one row in a range of the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Mask
from headwater.engine.dataflow.arrow_expressions import may_fail, native
from headwater.engine.dataflow.facets.column_origins import PLAIN, ColumnOrigin, Origins, replaced
from headwater.engine.dataflow.facets.demands import (
    Demand,
    Demands,
    OperatorOutput,
    Site,
    Slice,
    TraceRequest,
)
from headwater.engine.dataflow.facets.kept_state import Extent, KeptState
from headwater.engine.dataflow.facets.row_sets import Ids, among, places, row_ids
from headwater.engine.dataflow.facets.unique_keys import NONE, Keys, least
from headwater.engine.dataflow.keyed_operators import ArrowCondition, JoinOperator, RangeJoinOperator
from headwater.engine.dataflow.linear import columns_of, compile_condition
from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.engine.dataflow.operators.operator_kind import BuildContext, OperatorKind, Retraction
from headwater.operators import graph as g
from headwater.operators.join import join, range_join
from headwater.operators.join.pairs import Condition
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import Run, contents
from headwater.plan.relations.relations import Bound

ONE_SIDED = ("semi", "anti", "existence")
"""Joins that output rows of the left side only, at most with a flag that says whether they have a match."""


class JoinKind(OperatorKind[g.Join]):
    """JOIN of all kinds, IN and EXISTS, scalar subqueries."""

    def build(self, node: g.Join, context: BuildContext) -> Operator:
        """Build the join; it is divisible if its condition can be evaluated without a JVM, because tasks have none."""
        condition: Condition | None = _arrow_condition(node.condition)
        divisible = node.condition is None or condition is not None
        if node.condition is not None and condition is None:
            condition = compile_condition(node.condition, context.evaluator)
        left, right = f"{context.name}.left", f"{context.name}.right"
        schemas = node.left.schema, node.right.schema
        if (reach := node.range) is not None:
            ends = reach.ends if id(node) in context.unread else ()
            bounds = reach.point, reach.low, reach.high
            spec = range_join.RangeJoinSpec(
                node.kind, node.left_key, node.right_key, *bounds, reach.width, ends
            )
            ordered = (
                ArrangementSpec(left, "ordered", spec.left_key, spec.left_order, schemas[0]),
                ArrangementSpec(right, "ordered", spec.right_key, spec.right_order, schemas[1]),
            )
            return RangeJoinOperator(spec, condition, ordered, divisible=divisible)
        equal = join.JoinSpec(node.kind, node.left_key, node.right_key)
        sides = (
            ArrangementSpec(left, "multiset", node.left_key, (), schemas[0]),
            ArrangementSpec(right, "multiset", node.right_key, (), schemas[1]),
        )
        if node.at_most_one:
            return _ScalarJoin(equal, condition, sides, divisible=False)
        return JoinOperator(equal, condition, sides, divisible=divisible)

    def is_unread(self, node: g.Join, reader: g.Map) -> bool:
        """Whether no reader uses the ends of the right side's ranges."""
        if node.kind not in ("inner", "left") or node.range is None or not node.range.ends:
            return False
        ends = {len(node.left.schema) + column for column in node.range.ends}
        for step in reader.steps:
            match step:
                case g.Filter(condition):
                    if ends & columns_of([condition]):
                        return False
                case g.Project(expressions):
                    if ends & columns_of([e for e in expressions if e.column is None]):
                        return False
                    ends = {place for place, e in enumerate(expressions) if e.column in ends}
                case _:
                    return False
        return not ends

    def title(self, node: g.Join) -> str:
        pairs = zip(
            (node.left.schema.field(c).name for c in node.left_key),
            (node.right.schema.field(c).name for c in node.right_key),
            strict=True,
        )
        on = " and ".join(f"{a} = {b}" for a, b in pairs) or ("a range" if node.range else "every pair")
        more = f" and {node.condition.text}" if node.condition else ""
        return f"{node.kind} join on {on}{more}"

    def final_when(self, node: g.Join) -> str:
        return "passed the last time at which a row could still match it"

    def row_extent(self, node: g.Join, below: Sequence[Extent]) -> Extent:
        return below[0] if node.kind in ONE_SIDED else super().row_extent(node, below)

    def kept_state(self, node: g.Join, below: Sequence[Extent]) -> Iterator[KeptState]:
        for side, extent in zip(node.inputs, below, strict=True):
            names = " and ".join(dict.fromkeys(s.name for s in g.sources(side))) or "the constants"
            what = f"the rows of {names}, for later rows of the other side"
            yield KeptState(node, what, "join topics that have a PRIMARY KEY", extent)

    def retraction(self, node: g.Join) -> Retraction:
        return "rows"

    def lookup_keys(self, node: g.Join) -> Sequence[tuple[int, ...]] | None:
        return [node.left_key, node.right_key]

    def shown_columns(self, node: g.Join) -> Mapping[int, int]:
        if node.kind not in ("inner", "left", "semi", "anti"):
            return {}
        return {column: column for column in range(len(node.left.schema))}

    def unique_keys(self, node: g.Join, below: Sequence[Keys]) -> Keys:
        left, right = below
        if node.kind in ONE_SIDED:
            return left
        if node.kind == "full":
            return NONE
        width = len(node.left.schema)
        moved = {frozenset(column + width for column in key) for key in right}
        found: set[frozenset[int]] = {one | other for one in left for other in moved}
        # a row that has at most one match on the other side occurs once
        if node.kind in ("inner", "left") and (node.at_most_one or _hold_a_key(node.right_key, right)):
            found |= left
        if node.kind in ("inner", "right") and _hold_a_key(node.left_key, left):
            found |= moved
        return least(found)

    def column_origins(self, node: g.Join, below: Sequence[Origins]) -> Origins:
        left, right = below
        if node.kind in ONE_SIDED:
            return (*left, *(PLAIN,) * (len(node.schema) - len(left)))
        # Where both sides are present, their keys are equal; where one is missing, its private values are NULL.
        for one, other in zip(node.left_key, node.right_key, strict=True):
            both = left[one].identifies | right[other].identifies
            if node.kind in ("inner", "left"):
                left = replaced(left, one, ColumnOrigin(left[one].of, both))
            if node.kind in ("inner", "right"):
                right = replaced(right, other, ColumnOrigin(right[other].of, both))
        return (*left, *right)

    def input_slices(self, node: g.Join, one: Slice) -> Sequence[Slice]:
        """Return the slices of both sides; for a side that may be padded with NULLs, only its key restricts the rows,
        and only by values from the other side."""
        width = len(node.left.schema)
        left = {c: v for c, v in one.items() if c < width and node.kind not in ("right", "full")}
        right = {c - width: v for c, v in one.items() if c >= width and node.kind in ("inner", "right")}
        for mine, theirs in zip(node.left_key, node.right_key, strict=True):
            if node.left.schema.field(mine).type != node.right.schema.field(theirs).type:
                continue
            if mine in left:
                right.setdefault(theirs, left[mine])
            elif theirs in right:
                left[mine] = right[theirs]
        return left, right

    def trace(self, node: g.Join, request: TraceRequest) -> Demands:
        return _JoinTrace(node, request).back(request.site, request.demand)


class _ScalarJoin(JoinOperator):
    """A join with the single row of a scalar subquery."""

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, (left, right) = super().step(inputs, state)
        if len(right):
            rows = contents([*state[1], right], self.slots[1].schema)
            if int(np.sum(rows.weights)) > 1:
                raise EvaluationError(
                    "an expression failed: a subquery used as an expression returned more than one row",
                    hint="aggregate its rows, or limit them to one",
                    reason="scalar-subquery-rows",
                )
        return output, (left, right)


def _hold_a_key(columns: tuple[int, ...], keys: Keys) -> bool:
    return any(key <= set(columns) for key in keys)


def _arrow_condition(condition: g.Expression | None) -> ArrowCondition | None:
    """Return the condition as one that is evaluated without a JVM; None if that is not possible."""
    bound = None if condition is None else condition.handle
    if condition is None or not isinstance(bound, Bound) or may_fail(bound.expression):
        return None
    made = native(bound.expression, bound.attributes, condition.type)
    return None if made is None else ArrowCondition(made)


class _JoinTrace:
    """Traces rows of a join back: pairs, and rows of one side that show whether they have a match."""

    def __init__(self, node: g.Join, request: TraceRequest) -> None:
        self._node = node
        self._evaluator = request.evaluator
        self._sides = (request.below(node.left), request.below(node.right))
        self._width = len(node.left.schema)
        self._spec = join.JoinSpec(node.kind, node.left_key, node.right_key)

    def back(self, site: Site, demand: Demand) -> Demands:
        """Translate a demand into demands on both sides."""
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

    def _halves(self, output: OperatorOutput, wanted: Mask, side: int) -> Ids:
        """Return IDs of one side's rows in joined rows.

        A half with only NULLs is padding, because a NULL in a key matches nothing. If the other half has only NULLs
        too, it is a real row without a match.
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
        """Return the demand for rows of the other side because of which rows of this side have a match, or have none."""
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
        """Return a mask of the rows that show that they have a match."""
        kind = self._node.kind
        if kind in ("semi", "anti"):
            return np.full(len(rows), kind == "semi")
        if kind == "existence":
            flags: Mask = rows.rows.column(self._width).to_numpy(zero_copy_only=False)
            return flags
        return ~_all_null(_half(rows, 1 - side, self._width))

    def _matching(self, rows: Delta, side: int, other: OperatorOutput, *, one: bool = False) -> Mask:
        """Return a mask of the rows of the other side that match any row in `rows`; with `one`, one match per row
        is enough."""
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
    """Return the columns of one side of joined rows."""
    names = rows.rows.schema.names
    columns = rows.rows.columns[width:] if side else rows.rows.columns[:width]
    return Delta(pa.RecordBatch.from_arrays(columns, names=names[: len(columns)]), rows.weights)


def _all_null(rows: Delta) -> Mask:
    mask = np.ones(len(rows), dtype=np.bool_)
    for column in rows.rows.columns:
        mask &= column.is_null().to_numpy(zero_copy_only=False)
    return mask
