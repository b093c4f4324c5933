"""Lowers join nodes, including the semi and anti joins that IN and EXISTS are rewritten to."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import keyed, narrowed, projected, with_scalars
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.range_joins import range_in
from headwater.plan.relations.relations import Bound, Lowered, NotIn
from headwater.spark.catalyst import Jvm, children_of, identity, items, kind, module, option, output_of

_JOINS: dict[str, g.JoinKind] = {
    "Inner": "inner",
    "Cross": "inner",
    "LeftOuter": "left",
    "RightOuter": "right",
    "FullOuter": "full",
    "LeftSemi": "semi",
    "LeftAnti": "anti",
    "ExistenceJoin": "existence",
}


def lower_join(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a join."""
    join_type = plan.joinType()
    join_kind = _JOINS.get(kind(join_type))
    if kind(join_type) == "LeftSingle":
        context.refuse(
            plan,
            "this subquery can return several rows where one value is needed",
            hint="aggregate its rows, as in max(...), or use ORDER BY ... LIMIT 1",
            reason="scalar-subquery-rows",
        )
    if join_kind is None:
        context.refuse(
            plan, f"a {join_type.sql().lower()} join has no incremental form", reason="not-incremental"
        )
    left, right = context.lower(plan.left()), context.lower(plan.right())
    found = option(context.extractor("ExtractEquiJoinKeys").unapply(plan))
    if found is not None:
        left_keys, right_keys, condition = items(found._2()), items(found._3()), option(found._4())
    else:
        left_keys, right_keys, condition = [], [], option(plan.condition())
        if join_kind == "anti" and (pair := _null_aware(context, plan)) is not None:
            return _not_in(context, left, right, *pair)
        if join_kind == "existence" and (pair := _null_aware(context, plan)) is not None:
            return _in_or_null(context, left, right, *pair, join_type.exists())
        # a side that Spark emptied, or a condition that it reduced to false, matches nothing
        if _empty(left.node) or _empty(right.node) or (condition is not None and _never(condition)):
            left_keys, right_keys, condition = _one_sided(context, context.literal(False), left, right)
        elif condition is not None and join_kind in ("semi", "anti", "existence"):
            left_keys, right_keys, condition = _one_sided(context, condition, left, right)
    band = range_in(context, condition, left, right, right_keys)
    if found is None and not left_keys and band is None:
        _refuse_cross(context, plan, left.node, right.node, join_kind)
    left_below, left_key = keyed(context, left, [*left_keys, *([] if band is None else [band.point])])
    right_below, right_key = keyed(context, right, [*right_keys, *([] if band is None else band[1:3])])
    reach = None
    if band is not None:
        ends: tuple[int, ...] = ()
        if band.end is not None:
            places = [identity(a) for a in right_below.attributes]
            ends = (places.index(identity(band.end)), right_key[-1])
        reach = g.MatchRange(left_key[-1], right_key[-2], right_key[-1], band.width, ends)
        left_key, right_key = left_key[:-1], right_key[:-2]
    if condition is not None:
        left_below, (condition,) = with_scalars(context, left_below, [condition])
    sides = [*left_below.attributes]
    if join_kind == "existence":
        sides.append(join_type.exists())
    elif join_kind not in ("semi", "anti"):
        sides += right_below.attributes
    pair_attributes = [*left_below.attributes, *right_below.attributes]
    node = g.Join(
        left_below.node,
        right_below.node,
        join_kind,
        left_key,
        right_key,
        None if condition is None else context.expression(condition, pair_attributes),
        context.catalyst.arrow_schema(sides),
        range=reach,
    )
    return narrowed(context, Lowered(node, sides), output_of(plan))


def _one_sided(
    context: LoweringContext, condition: Jvm, left: Lowered, right: Lowered
) -> tuple[list[Jvm], list[Jvm], Jvm | None]:
    """Turn a condition over one side alone into an equality key that matches where the condition is true: NULL matches
    nothing."""
    read = {identity(a) for a in items(condition.references().toSeq())}
    one = context.literal(1)
    key = context.catalyst.expressions.If(condition, one, context.null(one.dataType()))
    if not read & {identity(a) for a in right.attributes}:
        return [key], [one], None
    if not read & {identity(a) for a in left.attributes}:
        return [one], [key], None
    return [], [], condition


def _refuse_cross(
    context: LoweringContext, plan: Jvm, left: g.Node, right: g.Node, join_kind: g.JoinKind
) -> None:
    if join_kind in ("semi", "anti", "existence") and option(plan.condition()) is None:
        return  # EXISTS of an uncorrelated subquery: one flag for all rows
    if any(_single(side) or _static(side) for side in (left, right)):
        return
    if join_kind in ("anti", "existence") and "isnull" in plan.condition().toString():
        context.refuse(
            plan,
            "NOT IN over several columns has no incremental form",
            hint="write NOT EXISTS (SELECT 1 ... WHERE a.x = b.x AND a.y = b.y), if no value is NULL",
            reason="not-incremental",
        )
    context.refuse(
        plan,
        "the join has no equality between its sides, so every row would be joined with every other",
        hint="join on a key: ON a.id = b.id; AND adds further conditions",
        reason="join-without-equality",
    )


def _null_aware(context: LoweringContext, plan: Jvm) -> tuple[Jvm, Jvm] | None:
    anti = context.catalyst.jvm.org.apache.spark.sql.catalyst.plans
    plan = plan.copy(plan.left(), plan.right(), module(anti, "LeftAnti"), plan.condition(), plan.hint())
    found = option(context.extractor("ExtractSingleColumnNullAwareAntiJoin").unapply(plan))
    if found is None:
        return None
    return found._1().head(), found._2().head()


def _in_or_null(
    context: LoweringContext, left: Lowered, right: Lowered, left_key: Jvm, right_key: Jvm, exists: Jvm
) -> Lowered:
    """Return the left rows with `x IN (SELECT y)` as a column: true if some y equals x, or if a y exists and some y or x is
    NULL.

    NOT IN negates this column.
    """
    c, e = context.catalyst, context.catalyst.expressions
    left_below, left_columns = keyed(context, left, [left_key])
    right_below, right_columns = keyed(context, right, [right_key])
    matched = c.alias(context.literal(True), "matched").toAttribute()
    sides = [*left_below.attributes, matched]
    found = g.Join(
        left_below.node,
        right_below.node,
        "existence",
        left_columns,
        right_columns,
        None,
        c.arrow_schema(sides),
    )
    zero = c.cast(context.literal(0), context.bigint())
    every, filled = (c.alias(zero, name).toAttribute() for name in ("all", "filled"))
    tally = Lowered(_tally(right_below, right_columns), [every, filled])
    # two flags, which rarely change, are joined instead of the counts, which change with every row
    there, null = e.GreaterThan(every, zero), e.LessThan(filled, every)
    flags = projected(context, tally, [c.alias(there, "there"), c.alias(null, "null")])
    joined = [*sides, *flags.attributes]
    node = g.Join(found, flags.node, "inner", (), (), None, c.arrow_schema(joined))
    there, null = flags.attributes
    unknown = e.Or(null, e.And(there, e.IsNull(left_below.attributes[left_columns[0]])))
    shown = c.alias(e.Or(matched, unknown), exists.name(), like=exists)
    return projected(context, Lowered(node, joined), [*left.attributes, shown])


def _tally(side: Lowered, columns: tuple[int, ...]) -> g.AggregateNode:
    """Return an aggregate of the number of rows, and of the number of rows with a key that is not NULL."""
    count_all = g.MergeableFunction("count", "count(*)", (), None, ordered=False)
    count_filled = g.MergeableFunction("count", "count(y)", columns, None, ordered=False)
    counts = pa.schema([("all", pa.int64()), ("filled", pa.int64())])
    return g.AggregateNode(side.node, 0, (count_all, count_filled), counts)


def _not_in(
    context: LoweringContext, left: Lowered, right: Lowered, left_key: Jvm, right_key: Jvm
) -> Lowered:
    """Return the left rows with `x NOT IN (SELECT y)`: no y equals x, and, unless there is no y at all, neither x nor any y
    is NULL."""
    c = context.catalyst
    left_below, left_columns = keyed(context, left, [left_key])
    right_below, right_columns = keyed(context, right, [right_key])
    unmatched = g.Join(
        left_below.node,
        right_below.node,
        "anti",
        left_columns,
        right_columns,
        None,
        c.arrow_schema(left_below.attributes),
    )
    tally = _tally(right_below, right_columns)
    width = len(left_below.attributes)
    joined_schema = pa.schema([*unmatched.schema, *tally.schema])
    joined = g.Join(unmatched, tally, "inner", (), (), None, joined_schema)
    text = "NOT IN: nothing to compare with, or no null on either side"
    condition = g.Expression(
        text, pa.bool_(), None, NotIn(x=left_columns[0], all_rows=width, filled=width + 1)
    )
    filtered = g.Map(joined, (g.Filter(condition),), joined_schema)
    dropped = tuple(
        g.Expression(a.name(), context.catalyst.arrow_type(a.dataType()), i, None)
        for i, a in enumerate(left.attributes)
    )
    schema = c.arrow_schema(left.attributes)
    return Lowered(g.Map(filtered.input, (*filtered.steps, g.Project(dropped)), schema), left.attributes)


def _never(condition: Jvm) -> bool:
    """Whether a condition is provably false or NULL for every row."""
    children = children_of(condition)
    match kind(condition):
        case "Literal":
            return condition.value() is not True
        case "And":
            return any(map(_never, children))
        case "Or":
            return all(map(_never, children))
        case "If" | "CaseWhen":  # conditions and values alternate; the last child is the ELSE value, if any
            return all(map(_never, [*children[1::2], *children[-1:][: len(children) % 2]]))
    return False


def _empty(node: g.Node) -> bool:
    """Whether a node provably never has a row."""
    match node:
        case g.Constant():
            return not node.rows.num_rows
        case g.Join(kind="inner" | "semi"):
            return _empty(node.left) or _empty(node.right)
        case g.Join(kind="left" | "anti" | "existence"):
            return _empty(node.left)
        case g.Join(kind="right"):
            return _empty(node.right)
        case g.AggregateNode(keys=0) | g.Regroup(whole=True) | g.SourceNode():
            return False
    return all(_empty(i) for i in node.inputs)


def _single(node: g.Node) -> bool:
    """Whether a node has at most one row: an aggregate without GROUP BY, or with constant keys only."""
    if isinstance(node, g.Map):
        return _single(node.input) and not any(
            isinstance(s, (g.Expand, g.Generate, g.Replicate)) for s in node.steps
        )
    if isinstance(node, g.Rank):
        return node.limit - node.offset <= 1 and not node.key and node.function == "row_number"
    if isinstance(node, g.Regroup):
        aggregates = isinstance(node.evaluate, g.AggregateNode) or kind(node.evaluate.plan) == "Aggregate"
        return aggregates and _fixed(node.input, node.key)
    return isinstance(node, g.AggregateNode) and _fixed(node.input, range(node.keys))


def _fixed(node: g.Node, columns: Sequence[int]) -> bool:
    """Whether columns of a node are constant over all rows."""
    if not columns:
        return True
    last = node.steps[-1] if isinstance(node, g.Map) else None
    if not isinstance(last, g.Project):
        return False
    handles = [last.expressions[c].handle for c in columns]
    return all(isinstance(handle, Bound) and handle.expression.foldable() for handle in handles)


def _static(node: g.Node) -> bool:
    """Whether a node never changes after the first tick."""
    return not g.sources(node)
