"""What the readers of every kind of plan node share: expressions by column, keys as columns, linear steps put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    UnkeptTypeError,
    find,
    identity,
    items,
    kind,
    module,
    readable,
)
from headwater.runtime.planning.handles import Bound, Lowered, Relation, with_versions

_NAMES = {"UnionLoop": "WITH RECURSIVE", "LogicalRelation": "reading files"}
"""Plan nodes as a user knows them."""


class Reader:
    """One query's way from plan to graph; each kind of node is read by a class derived from this."""

    def __init__(self, catalyst: Catalyst, relations: Mapping[str, Relation], refuse: Refuse) -> None:
        self._c = catalyst
        self._relations = with_versions(relations)
        self._refuse = refuse
        self._read: set[int] = set()
        patterns = catalyst.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._scalar: Jvm = patterns.SCALAR_SUBQUERY()
        self.origins: dict[int, tuple[g.Node, Jvm]] = {}
        """By the identity of a graph's node: the node, and what part of the plan it was made of."""

    def lower(self, plan: Jvm) -> Lowered:
        """The graph of a plan."""
        name = kind(plan)
        method = getattr(self, f"_{name.lower()}", None)
        if method is None:
            known = _NAMES.get(name, f"Spark's {name}")
            self._refuse(
                plan,
                f"{known} has no incremental form",
                hint="docs/sql.md lists what works in views",
            )
        try:
            lowered: Lowered = method(plan)
        except UnkeptTypeError as error:
            self._refuse_type(plan, error)
        self._note(lowered.node, plan)
        return lowered

    def _note(self, node: g.Node, plan: Jvm) -> None:
        """Remember of what a node was made, and those below it that were made with it."""
        if id(node) not in self.origins:
            self.origins[id(node)] = (node, plan)
            for child in node.inputs:
                self._note(child, plan)

    def _keyed(self, child: Lowered, keys: Sequence[Jvm]) -> tuple[Lowered, tuple[int, ...]]:
        """The input with every key among its columns, and where they are."""
        made = [self._expression(k, child.attributes) for k in keys]
        if all(e.column is not None for e in made):
            return child, tuple(e.column for e in made if e.column is not None)
        columns = [*child.attributes]
        places = []
        for key, expression in zip(keys, made, strict=True):
            if expression.column is not None:
                places.append(expression.column)
            else:
                places.append(len(columns))
                columns.append(self._c.alias(key, "key"))
        return self._projected(child, columns), tuple(places)

    def _ordered(self, child: Lowered, order: Jvm) -> tuple[Lowered, tuple[g.Order, ...]]:
        keys = items(order)
        below, places = self._keyed(child, [k.child() for k in keys])
        return below, tuple(
            g.Order(place, kind(k.direction()) == "Descending", kind(k.nullOrdering()) == "NullsFirst")
            for k, place in zip(keys, places, strict=True)
        )

    def _narrowed(self, lowered: Lowered, wanted: Sequence[Jvm]) -> Lowered:
        """Only the wanted columns, in their order."""
        if [identity(a) for a in wanted] == [identity(a) for a in lowered.attributes]:
            return lowered
        return self._projected(lowered, wanted)

    def _counted(self, child: Lowered) -> Lowered:
        """The same rows, with a column if they have none: Arrow counts no rows without one."""
        if child.attributes:
            return child
        return self._projected(child, [self._c.alias(self._literal(1), "one")])

    def _mapped(self, child: Lowered, step: g.Step, attributes: list[Jvm]) -> Lowered:
        schema = self._c.arrow_schema(attributes)
        if isinstance(child.node, g.Map):
            return Lowered(g.Map(child.node.input, (*child.node.steps, step), schema), attributes)
        return Lowered(g.Map(child.node, (step,), schema), attributes)

    def _expression(self, e: Jvm, attributes: Sequence[Jvm]) -> g.Expression:
        inner = e.child() if kind(e) == "Alias" else e
        column = None
        if kind(inner) == "AttributeReference":
            number = identity(inner)
            column = next((i for i, a in enumerate(attributes) if identity(a) == number), None)
        try:
            type_ = self._c.arrow_type(e.dataType())
        except UnkeptTypeError as error:
            self._refuse_unkept(e, error)
        return g.Expression(readable(inner), type_, column, Bound(inner, tuple(attributes)))

    def _refuse_type(self, plan: Jvm, error: UnkeptTypeError) -> NoReturn:
        """Refuse a plan that gives such values, underlining what makes them."""

        def is_unkept(e: Jvm) -> bool:
            try:
                self._c.arrow_type(e.dataType())
            except UnkeptTypeError:
                return True
            return False

        made = (find(e, is_unkept) for e in items(plan.expressions()))
        self._refuse_unkept(next((e for e in made if e is not None), plan), error)

    def _refuse_unkept(self, node: Jvm, error: UnkeptTypeError) -> NoReturn:
        hint = "cast it to another type"
        if "collate" in str(error):
            hint = "compare with it in a condition, or use lower(s), which is a string like any other"
        self._refuse(node, f"values of type {error} cannot be kept in views", hint=hint)

    def _named(self, e: Jvm) -> Jvm:
        return e if kind(e) in ("Alias", "AttributeReference") else self._c.alias(e, "argument")

    def _literal(self, value: Any) -> Jvm:
        return module(self._c.expressions, "Literal").apply(value)

    def _null(self, data_type: Jvm) -> Jvm:
        return module(self._c.expressions, "Literal").create(None, data_type)

    def _number(self, e: Jvm) -> int:
        if not e.foldable():
            self._refuse(e, "LIMIT and OFFSET are constant numbers in views")
        return int(e.eval(None))

    def _planning(self, name: str) -> Jvm:
        return module(self._c.jvm.org.apache.spark.sql.catalyst.planning, name)

    def _projected(self, child: Lowered, expressions: Sequence[Jvm]) -> Lowered:
        child, expressions = self._scalars(child, expressions)
        attributes = [e.toAttribute() for e in expressions]
        made = tuple(self._expression(e, child.attributes) for e in expressions)
        if [e.column for e in made] == list(range(len(child.attributes))) and not isinstance(
            child.node, g.Source
        ):
            return Lowered(child.node, attributes)
        return self._mapped(child, g.Project(made), attributes)

    def _scalars(self, child: Lowered, expressions: Sequence[Jvm]) -> tuple[Lowered, list[Jvm]]:
        """Uncorrelated scalar subqueries become a join with their one row."""
        values: dict[int, Jvm] = {}

        def change(e: Jvm) -> Jvm | None:
            return values.get(identity(e)) if kind(e) == "ScalarSubquery" else None

        changed = []
        for expression in expressions:
            while expression.containsPattern(self._scalar):
                found = find(expression, lambda e: kind(e) == "ScalarSubquery")
                if identity(found) not in values:
                    child = self._beside(child, found)
                    values[identity(found)] = child.attributes[-1]
                expression = self._c.rewritten(expression, change)
            changed.append(expression)
        return child, changed

    def _beside(self, child: Lowered, subquery: Jvm) -> Lowered:
        """The input with one more column, the value of a scalar subquery."""
        if subquery.outerAttrs().size():
            self._refuse(subquery, "this correlated subquery has no incremental form", hint="join with it")
        right = self.lower(subquery.plan())
        attributes = [*child.attributes, right.attributes[0].newInstance()]
        schema = self._c.arrow_schema(attributes)
        node = g.Join(child.node, right.node, "left", (), (), None, schema, at_most_one=True)
        return Lowered(node, attributes)

    def _over(self, projects: Sequence[Jvm], lowered: Lowered) -> Lowered:
        for project in reversed(projects):
            lowered = self._projected(lowered, items(project.projectList()))
        return lowered
