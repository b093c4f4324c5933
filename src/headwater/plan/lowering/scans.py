"""Lowers sources, constants and linear nodes of a plan."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import mapped, narrowed, projected, with_scalars
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.lowering.windows import ranked
from headwater.plan.relations.relations import COLUMN_KEY, SOURCE_KEY, Lowered
from headwater.spark.catalyst import Jvm, children_of, collected, identity, items, kind, output_of, readable


def keep_hidden(context: LoweringContext, plan: Jvm) -> None:
    """Let sources provide the metadata columns that the whole plan reads; without this call they provide none."""
    context.hidden_read = _read_attributes(plan)


def lower_source(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a topic or a view."""
    attributes = output_of(plan)
    metadata = attributes[0].metadata()
    if not metadata.contains(SOURCE_KEY):
        context.refuse(
            plan, "a view can read only topics and views of its workspace", reason="unsupported-source"
        )
    relation = context.relations[metadata.getString(SOURCE_KEY)]
    columns = tuple(range(len(relation.schema))) if relation.places is None else relation.places
    named = [a for a in attributes[len(columns) :] if identity(a) in context.hidden_read]
    attributes = [*attributes[: len(columns)], *named]
    hidden = tuple(a.name() for a in named)
    schema = context.catalyst.arrow_schema(attributes)
    source = g.SourceNode(relation.name, columns, schema, relation.append_only, hidden=hidden)
    return Lowered(source, attributes)


def lower_constant(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower rows that are part of the query: VALUES, range(), and the single row of a SELECT without FROM."""
    from pyspark.sql.classic.dataframe import DataFrame

    c, attributes = context.catalyst, output_of(plan)
    if not attributes:  # an Arrow batch without columns has no row count
        one = c.alias(context.literal(1), "one")
        return narrowed(context, lower_constant(context, c.plans.Project(c.seq([one]), plan)), [])
    schema = c.arrow_schema(attributes)
    table = collected(DataFrame(c.dataset(plan), c.spark))
    columns = [
        table.column(i).cast(f.type).combine_chunks() if table.num_rows else pa.array([], f.type)
        for i, f in enumerate(schema)
    ]
    rows = pa.RecordBatch.from_arrays(
        [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns], schema=schema
    )
    return Lowered(g.Constant(rows, schema), attributes)


def lower_project(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a projection."""
    return projected(context, context.lower(plan.child()), items(plan.projectList()))


def lower_filter(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a filter; a filter that bounds the ranks of a window becomes top-k."""
    below = ranked(context, plan)
    if below is None:
        below = context.lower(plan.child())
    child, (condition,) = with_scalars(context, below, [plan.condition()])
    step = g.Filter(context.expression(condition, child.attributes))
    lowered = mapped(context, child, step, child.attributes)
    there = {identity(a) for a in lowered.attributes}  # sources omit metadata columns that nothing reads
    return narrowed(context, lowered, [a for a in output_of(plan) if identity(a) in there])


def lower_expand(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower the expansion of each row to several rows, which GROUPING SETS need."""
    given = [items(projection) for projection in items(plan.projections())]
    child, changed = with_scalars(context, context.lower(plan.child()), [e for some in given for e in some])
    made = iter([context.expression(e, child.attributes) for e in changed])
    projections = tuple(tuple(islice(made, len(some))) for some in given)
    return mapped(context, child, g.Expand(projections), output_of(plan))


def lower_generate(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a generator in LATERAL VIEW or the SELECT list, such as explode."""
    child = context.lower(plan.child())
    generator = plan.generator()
    name = kind(generator)
    dropped = set(items(plan.unrequiredChildIndex()))
    keep = tuple(i for i in range(len(child.attributes)) if i not in dropped)
    kept = [child.attributes[i] for i in keep]
    outputs = items(plan.generatorOutput())
    if name == "ReplicateRows":
        count, *columns = [context.expression(e, child.attributes) for e in children_of(generator)]
        everything = tuple(context.expression(a, child.attributes) for a in kept)
        return mapped(context, child, g.Replicate(count, everything + tuple(columns)), [*kept, *outputs])
    if name == "Stack":
        return _stacked(context, child, generator, keep, [*kept, *outputs])
    kinds = {"Explode": "explode", "PosExplode": "posexplode", "Inline": "inline"}
    if name not in kinds:
        context.refuse(
            generator,
            f"{generator.prettyName()} has no incremental form",
            hint="use explode, posexplode, inline or stack",
            reason="not-incremental",
        )
    argument = context.expression(generator.children().head(), child.attributes)
    step = g.Generate(readable(generator), kinds[name], argument, plan.outer(), keep)  # type: ignore[arg-type]
    return mapped(context, child, step, [*kept, *outputs])


def _stacked(
    context: LoweringContext, child: Lowered, generator: Jvm, keep: tuple[int, ...], attributes: list[Jvm]
) -> Lowered:
    """Lower `stack(n, ...)`: n copies of every row, each with the next values; NULL where values run out."""
    count, *values = children_of(generator)
    outputs = attributes[len(keep) :]
    projections = []
    for row in range(int(count.eval(None))):
        own = values[row * len(outputs) : (row + 1) * len(outputs)]
        columns = [child.attributes[i] for i in keep]
        columns += [context.catalyst.cast(v, a.dataType()) for v, a in zip(own, outputs, strict=False)]
        columns += [context.null(a.dataType()) for a in outputs[len(own) :]]
        projections.append(tuple(context.expression(e, child.attributes) for e in columns))
    return mapped(context, child, g.Expand(tuple(projections)), attributes)


def lower_union(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower UNION ALL."""
    children = [context.lower(c) for c in children_of(plan)]
    attributes = output_of(plan)
    schema = context.catalyst.arrow_schema(attributes)
    return Lowered(g.Union(tuple(c.node for c in children), schema), attributes)


def lower_layout(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a node without effect on the contents of a view: an order of its rows, or a hint on their layout."""
    return context.lower(plan.child())


def places_read(plan: Jvm) -> dict[str, set[int]]:
    """Return, by relation, the indices of the columns, including metadata columns, that a plan reads or outputs."""
    read = _read_attributes(plan) | _given_attributes(plan)
    found: dict[str, set[int]] = {}
    left = [plan]
    while left:
        node = left.pop()
        left += [*children_of(node), *items(node.subqueries())]
        for attribute in output_of(node) if kind(node) == "LogicalRDD" else ():
            metadata = attribute.metadata()
            if identity(attribute) in read and metadata.contains(SOURCE_KEY):
                found.setdefault(metadata.getString(SOURCE_KEY), set()).add(metadata.getLong(COLUMN_KEY))
    return found


def _given_attributes(plan: Jvm) -> set[int]:
    """Return the attributes that a plan outputs, and those that a union in it takes by position."""
    given = {identity(a) for a in output_of(plan)}
    left = [plan]
    while left:
        node = left.pop()
        below = children_of(node)
        left += [*below, *items(node.subqueries())]
        if kind(node) == "Union":
            given |= {identity(a) for child in below for a in output_of(child)}
    return given


def _read_attributes(plan: Jvm) -> set[int]:
    """Return the attributes that any node of a plan reads, including nodes in subqueries."""
    read = {identity(a) for a in items(plan.references().toSeq())}
    below = (_read_attributes(p) for p in (*children_of(plan), *items(plan.subqueries())))
    return read.union(*below)
