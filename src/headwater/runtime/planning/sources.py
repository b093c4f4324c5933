"""Sources, constants and linear nodes of a plan, as operators."""

from __future__ import annotations

from itertools import islice

import pyarrow as pa

from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import (
    Jvm,
    children_of,
    collected,
    identity,
    items,
    kind,
    output_of,
    readable,
)
from headwater.runtime.planning.handles import COLUMN_KEY, SOURCE_KEY, Lowered
from headwater.runtime.planning.reader import Reader


class LinearReader(Reader):
    """Reads what acts on each row alone."""

    def keep_hidden(self, plan: Jvm) -> None:
        """Have sources give those of their hidden columns that the whole plan reads; without this they give none."""
        self._read = _read_attributes(plan)

    # Sources

    def _logicalrdd(self, plan: Jvm) -> Lowered:
        attributes = output_of(plan)
        metadata = attributes[0].metadata()
        if not metadata.contains(SOURCE_KEY):
            self._refuse(plan, "a view reads topics and views of its workspace, nothing else")
        relation = self._relations[metadata.getString(SOURCE_KEY)]
        columns = tuple(range(len(relation.schema))) if relation.places is None else relation.places
        named = [a for a in attributes[len(columns) :] if identity(a) in self._read]
        attributes = [*attributes[: len(columns)], *named]
        hidden = tuple(a.name() for a in named)
        schema = self._c.arrow_schema(attributes)
        source = g.Source(relation.name, columns, schema, relation.append_only, hidden=hidden)
        return Lowered(source, attributes)

    def _localrelation(self, plan: Jvm) -> Lowered:
        return self._constant(plan)

    def _onerowrelation(self, plan: Jvm) -> Lowered:
        return self._constant(plan)

    def _range(self, plan: Jvm) -> Lowered:
        return self._constant(plan)

    def _constant(self, plan: Jvm) -> Lowered:
        from pyspark.sql.classic.dataframe import DataFrame

        attributes = output_of(plan)
        if not attributes:  # Arrow counts no rows without a column
            one = self._c.alias(self._literal(1), "one")
            return self._narrowed(self._constant(self._c.plans.Project(self._c.seq([one]), plan)), [])
        schema = self._c.arrow_schema(attributes)
        table = collected(DataFrame(self._c.dataset(plan), self._c.spark))
        columns = [
            table.column(i).cast(f.type).combine_chunks() if table.num_rows else pa.array([], f.type)
            for i, f in enumerate(schema)
        ]
        rows = pa.RecordBatch.from_arrays(
            [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns], schema=schema
        )
        return Lowered(g.Constant(rows, schema), attributes)

    # Linear

    def _project(self, plan: Jvm) -> Lowered:
        return self._projected(self.lower(plan.child()), items(plan.projectList()))

    def _filter(self, plan: Jvm) -> Lowered:
        below = self.filtered(plan)
        child, (condition,) = self._scalars(below, [plan.condition()])
        step = g.Filter(self._expression(condition, child.attributes))
        lowered = self._mapped(child, step, child.attributes)
        there = {identity(a) for a in lowered.attributes}  # a source gives no hidden column that nobody reads
        return self._narrowed(lowered, [a for a in output_of(plan) if identity(a) in there])

    def filtered(self, plan: Jvm) -> Lowered:
        """What a filter filters."""
        return self.lower(plan.child())

    def _expand(self, plan: Jvm) -> Lowered:
        given = [items(projection) for projection in items(plan.projections())]
        child, changed = self._scalars(self.lower(plan.child()), [e for some in given for e in some])
        made = iter([self._expression(e, child.attributes) for e in changed])
        projections = tuple(tuple(islice(made, len(some))) for some in given)
        return self._mapped(child, g.Expand(projections), output_of(plan))

    def _generate(self, plan: Jvm) -> Lowered:
        child = self.lower(plan.child())
        generator = plan.generator()
        name = kind(generator)
        dropped = set(items(plan.unrequiredChildIndex()))
        keep = tuple(i for i in range(len(child.attributes)) if i not in dropped)
        kept = [child.attributes[i] for i in keep]
        outputs = items(plan.generatorOutput())
        if name == "ReplicateRows":
            count, *columns = [self._expression(e, child.attributes) for e in children_of(generator)]
            everything = tuple(self._expression(a, child.attributes) for a in kept)
            return self._mapped(child, g.Replicate(count, everything + tuple(columns)), [*kept, *outputs])
        if name == "Stack":
            return self._stacked(child, generator, keep, [*kept, *outputs])
        kinds = {"Explode": "explode", "PosExplode": "posexplode", "Inline": "inline"}
        if name not in kinds:
            self._refuse(
                generator,
                f"{generator.prettyName()} has no incremental form yet",
                hint="explode, posexplode, inline and stack work",
            )
        argument = self._expression(generator.children().head(), child.attributes)
        step = g.Generate(readable(generator), kinds[name], argument, plan.outer(), keep)  # type: ignore[arg-type]
        return self._mapped(child, step, [*kept, *outputs])

    def _stacked(
        self, child: Lowered, generator: Jvm, keep: tuple[int, ...], attributes: list[Jvm]
    ) -> Lowered:
        """`stack(n, ...)`: every row n times, each time with the next of its values; null where they end."""
        count, *values = children_of(generator)
        outputs = attributes[len(keep) :]
        projections = []
        for row in range(int(count.eval(None))):
            own = values[row * len(outputs) : (row + 1) * len(outputs)]
            columns = [child.attributes[i] for i in keep]
            columns += [self._c.cast(v, a.dataType()) for v, a in zip(own, outputs, strict=False)]
            columns += [self._null(a.dataType()) for a in outputs[len(own) :]]
            projections.append(tuple(self._expression(e, child.attributes) for e in columns))
        return self._mapped(child, g.Expand(tuple(projections)), attributes)

    def _union(self, plan: Jvm) -> Lowered:
        children = [self.lower(c) for c in children_of(plan)]
        attributes = output_of(plan)
        schema = self._c.arrow_schema(attributes)
        return Lowered(g.Union(tuple(c.node for c in children), schema), attributes)

    # What a view does not show: an order of its rows, hints on how to lay them out

    def _sort(self, plan: Jvm) -> Lowered:
        return self.lower(plan.child())

    _repartition = _repartitionbyexpression = _rebalancepartitions = _sort


def places_read(plan: Jvm) -> dict[str, set[int]]:
    """By relation, the places of those of its columns, hidden ones too, that a plan reads or gives."""
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
    """The attributes that a plan gives, and those that a union of it takes by their places."""
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
    """The attributes that any node of a plan reads, those in subqueries included."""
    read = {identity(a) for a in items(plan.references().toSeq())}
    below = (_read_attributes(p) for p in (*children_of(plan), *items(plan.subqueries())))
    return read.union(*below)
