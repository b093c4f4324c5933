"""Lowers aggregates over distinct values, as one aggregate over a union of branches of the input.

One branch has all rows; the others have the distinct rows of one set of arguments each. Flag columns mark the branch of a
row, and a function reads only the rows of its branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headwater.operators import graph as g
from headwater.plan.lowering.aggregate_functions import arguments_of, mergeable_function, with_arguments
from headwater.plan.lowering.linear_steps import mapped, named, projected, with_scalars
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, Numbers, kind, option


def with_distinct(
    context: LoweringContext,
    child: Lowered,
    keys: Sequence[Jvm],
    plain: Sequence[Jvm],
    distinct: Sequence[Jvm],
) -> tuple[Lowered, tuple[g.MergeableFunction, ...]]:
    """Return the union of the branches, and the functions over it: those over all rows, then those over distinct rows."""
    numbers = Numbers()
    all_rows, functions = with_arguments(context, child, keys, plain)
    branches = [all_rows]
    members: list[tuple[Jvm, int, list[int]]] = []
    for number, group in enumerate(_alike(context, distinct, numbers), 1):
        branches.append(_branch(context, child, keys, group[0]))
        given = [numbers.of(e) for e in arguments_of(context, group[0])]
        for a in group:
            members.append((a, number, [given.index(numbers.of(e)) for e in arguments_of(context, a)]))
    starts, total = [], len(keys)
    for branch in branches:
        starts.append(total)
        total += len(branch.attributes) - len(keys)
    # a function over all rows that has its own filter excludes other branches already: the filter column is NULL there
    own = [replace(f, filter=f.filter if f.filter is not None else total) for f in functions]
    shown = [
        mergeable_function(
            context, a, [starts[number] + i for i in arguments], total + number, append_only=False
        )
        for a, number, arguments in members
    ]
    # results are paired with aggregates by position: in the order of `distinct`
    order = [next(i for i, m in enumerate(members) if m[0] is a) for a in distinct]
    return _united(context, branches, len(keys)), (*own, *(shown[i] for i in order))


def _alike(context: LoweringContext, distinct: Sequence[Jvm], numbers: Numbers) -> list[list[Jvm]]:
    """Group functions that share their distinct rows: same arguments, in any order, and same filter."""
    groups: dict[tuple[tuple[int, ...], int | None], list[Jvm]] = {}
    for a in distinct:
        chosen = option(a.filter())
        key = tuple(sorted(numbers.of(e) for e in arguments_of(context, a)))
        groups.setdefault((key, None if chosen is None else numbers.of(chosen)), []).append(a)
    return list(groups.values())


def _branch(context: LoweringContext, child: Lowered, keys: Sequence[Jvm], a: Jvm) -> Lowered:
    """Return the distinct rows that a function aggregates."""
    chosen = option(a.filter())
    if chosen is not None:
        child, (chosen,) = with_scalars(context, child, [chosen])
        kept = g.Filter(context.expression(chosen, child.attributes))
        child = mapped(context, child, kept, child.attributes)
    shown = [named(context, e) for e in (*keys, *arguments_of(context, a))]
    below = projected(context, child, shown)
    schema = context.catalyst.arrow_schema(below.attributes)
    return Lowered(g.AggregateNode(below.node, len(below.attributes), (), schema), below.attributes)


def _united(context: LoweringContext, branches: Sequence[Lowered], keys: int) -> Lowered:
    """Return the union of all branches: the keys, the columns of each branch, NULL in rows of other branches, and a flag
    per branch."""
    c = context.catalyst
    tagged = []
    for number, branch in enumerate(branches):
        columns = list(branch.attributes[:keys])
        for other, each in enumerate(branches):
            theirs = each.attributes[keys:]
            columns += (
                theirs if other == number else [c.alias(context.null(a.dataType()), a.name()) for a in theirs]
            )
        columns += [c.alias(context.literal(f == number), f"branch_{f}") for f in range(len(branches))]
        shown = [e if kind(e) == "Alias" else c.alias(e, e.name()) for e in columns]
        tagged.append(projected(context, branch, shown))
    attributes = tagged[0].attributes
    return Lowered(g.Union(tuple(t.node for t in tagged), c.arrow_schema(attributes)), attributes)
