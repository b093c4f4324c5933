"""Linear steps above an operator: computing, selecting and dropping columns, keys as columns, joining scalar subqueries.

Where an operator needs its keys as columns, they are computed below it and dropped above it.
"""

from __future__ import annotations

from collections.abc import Sequence

from headwater.operators import graph as g
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, find, identity, items, kind


def keyed(context: LoweringContext, child: Lowered, keys: Sequence[Jvm]) -> tuple[Lowered, tuple[int, ...]]:
    """Return the input with every key as a column, and the column indices of the keys."""
    made = [context.expression(k, child.attributes) for k in keys]
    if all(e.column is not None for e in made):
        return child, tuple(e.column for e in made if e.column is not None)
    columns = [*child.attributes]
    places = []
    for key, expression in zip(keys, made, strict=True):
        if expression.column is not None:
            places.append(expression.column)
        else:
            places.append(len(columns))
            columns.append(context.catalyst.alias(key, "key"))
    return projected(context, child, columns), tuple(places)


def ordered(context: LoweringContext, child: Lowered, order: Jvm) -> tuple[Lowered, tuple[g.OrderKey, ...]]:
    """Return the input with the expressions of a sort order as columns, and the order."""
    keys = items(order)
    below, places = keyed(context, child, [k.child() for k in keys])
    return below, tuple(
        g.OrderKey(place, kind(k.direction()) == "Descending", kind(k.nullOrdering()) == "NullsFirst")
        for k, place in zip(keys, places, strict=True)
    )


def narrowed(context: LoweringContext, lowered: Lowered, wanted: Sequence[Jvm]) -> Lowered:
    """Return the input with the wanted columns only, in their order."""
    if [identity(a) for a in wanted] == [identity(a) for a in lowered.attributes]:
        return lowered
    return projected(context, lowered, wanted)


def counted(context: LoweringContext, child: Lowered) -> Lowered:
    """Return the input, with a constant column if it has none: an Arrow batch without columns has no row count."""
    if child.attributes:
        return child
    return projected(context, child, [context.catalyst.alias(context.literal(1), "one")])


def mapped(context: LoweringContext, child: Lowered, step: g.Step, attributes: list[Jvm]) -> Lowered:
    """Return the input with one more step; adjacent steps share one operator."""
    schema = context.catalyst.arrow_schema(attributes)
    if isinstance(child.node, g.Map):
        return Lowered(g.Map(child.node.input, (*child.node.steps, step), schema), attributes)
    return Lowered(g.Map(child.node, (step,), schema), attributes)


def named(context: LoweringContext, e: Jvm) -> Jvm:
    """Return an expression with a name, so that it can be a column."""
    return e if kind(e) in ("Alias", "AttributeReference") else context.catalyst.alias(e, "argument")


def projected(context: LoweringContext, child: Lowered, expressions: Sequence[Jvm]) -> Lowered:
    """Return the input with its columns replaced by these expressions."""
    child, expressions = with_scalars(context, child, expressions)
    attributes = [e.toAttribute() for e in expressions]
    made = tuple(context.expression(e, child.attributes) for e in expressions)
    if [e.column for e in made] == list(range(len(child.attributes))) and not isinstance(
        child.node, g.SourceNode
    ):
        return Lowered(child.node, attributes)
    return mapped(context, child, g.Project(made), attributes)


def projected_by(context: LoweringContext, projects: Sequence[Jvm], lowered: Lowered) -> Lowered:
    """Return the input with the columns of stacked projections, given from the top down."""
    for project in reversed(projects):
        lowered = projected(context, lowered, items(project.projectList()))
    return lowered


def with_scalars(
    context: LoweringContext, child: Lowered, expressions: Sequence[Jvm]
) -> tuple[Lowered, list[Jvm]]:
    """Return the input joined with the single row of every uncorrelated scalar subquery, and the expressions with the
    subqueries replaced by the joined columns."""
    values: dict[int, Jvm] = {}

    def change(e: Jvm) -> Jvm | None:
        return values.get(identity(e)) if kind(e) == "ScalarSubquery" else None

    changed = []
    for expression in expressions:
        while context.has_scalar(expression):
            found = find(expression, lambda e: kind(e) == "ScalarSubquery")
            if identity(found) not in values:
                child = _with_value(context, child, found)
                values[identity(found)] = child.attributes[-1]
            expression = context.catalyst.rewritten(expression, change)
        changed.append(expression)
    return child, changed


def _with_value(context: LoweringContext, child: Lowered, subquery: Jvm) -> Lowered:
    """Return the input with one more column, the value of a scalar subquery."""
    if subquery.outerAttrs().size():
        context.refuse(
            subquery,
            "this correlated subquery has no incremental form",
            hint="write it as a join",
            reason="not-incremental",
        )
    right = context.lower(subquery.plan())
    attributes = [*child.attributes, right.attributes[0].newInstance()]
    schema = context.catalyst.arrow_schema(attributes)
    node = g.Join(child.node, right.node, "left", (), (), None, schema, at_most_one=True)
    return Lowered(node, attributes)
