"""Resolves relation names in the parsed plan where Spark's catalog cannot.

Topics have columns that are found by name and are no part of `*`. Spark supports such columns for its own sources, and for
the keys that USING merges: a projection carries a tag with the attributes that may be named above it. A relation whose
metadata columns are wanted is inserted as such a projection, once per mention in the query. Temporary views of the session
cannot express this: a view has exactly the columns of its query.

Relations derived from views have two-part names, such as `revenue.errors`, which Spark would take for a database and a
table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headwater.plan.relations.relations import RELATION_KEY
from headwater.spark.catalyst import Catalyst, Jvm, children_of, items, kind, module, option, output_of

_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")
_HIDDEN = "__metadata_col"
"""Metadata key by which Spark's analyzer recognizes metadata columns."""


@dataclass(frozen=True)
class RelationPlan:
    """A relation with metadata columns: its analysed plan, whose first `visible` columns are those of `*`."""

    plan: Jvm
    visible: int


class RelationNames:
    """Replaces relation names in a plan by relations."""

    def __init__(
        self, catalyst: Catalyst, relations: Mapping[str, RelationPlan], dotted: Iterable[str] = ()
    ) -> None:
        """`dotted` has names with a dot that the session has registered as one-part names."""
        self._c = catalyst
        self._relations = {name.lower(): (name, opened) for name, opened in relations.items()}
        self._dotted = {name.lower(): name for name in dotted}
        self.met: set[str] = set()
        """Names of the relations that were found, in their declared spelling."""
        self._hidden: dict[tuple[str, str], list[Jvm]] = {}
        """Metadata columns of the mentioned relations, by qualifier and column name in lower case."""

    def with_hidden(self, plan: Jvm) -> Jvm:
        """Return a resolved plan in which `alias._offset` refers to the metadata column: Spark would prefer a column named
        like the alias.

        Return the plan itself if no metadata column is referred to by a unique alias.
        """
        changes = self._c.jvm.java.util.HashMap()

        def note(expression: Jvm) -> None:
            if kind(expression) == "UnresolvedAttribute":
                called = tuple(str(part).lower() for part in items(expression.nameParts()))
                columns = self._hidden.get(called, []) if len(called) == 2 else []
                if len(columns) == 1:
                    changes.put(expression, columns[0])
            for child in children_of(expression):
                note(child)

        def visit(node: Jvm) -> None:
            for expression in items(node.expressions()):
                note(expression)
            for child in children_of(node):
                visit(child)

        visit(plan)
        if changes.isEmpty():
            return plan
        rule = self._c.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
        return plan.transformAllExpressions(rule)

    def resolved(self, parsed: Jvm) -> Jvm:
        """Return a parsed plan with names replaced by relations."""
        self._hidden.clear()
        if not self._is_needed():
            return parsed
        # names defined by WITH take precedence; the names left after this are relations
        substitution = module(self._c.jvm.org.apache.spark.sql.catalyst.analysis, "CTESubstitution")
        return self._plan(substitution.apply(parsed))

    def _is_needed(self) -> bool:
        return bool(self._relations or self._dotted)

    def _plan(self, plan: Jvm) -> Jvm:
        if kind(plan) == "UnresolvedRelation":
            return self._mention(plan, None) or self._one_name(plan) or plan
        named = kind(plan) == "SubqueryAlias" and kind(plan.child()) == "UnresolvedRelation"
        if named and (mention := self._mention(plan.child(), plan.alias())) is not None:
            return mention
        children = children_of(plan)
        changed = [self._plan(child) for child in children]
        if any(a is not b for a, b in zip(children, changed, strict=True)):
            plan = plan.withNewChildren(self._c.seq(changed))
        return self._subqueries(plan)

    def _subqueries(self, plan: Jvm) -> Jvm:
        changes = self._c.jvm.java.util.HashMap()
        for expression in items(plan.expressions()):
            for subquery in _subqueries_of(expression):
                changes.put(subquery, subquery.withNewPlan(self._plan(subquery.plan())))
        if changes.isEmpty():
            return plan
        # a Scala Map is a PartialFunction, which is the type that the transform methods take
        rule = self._c.jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(changes)
        return plan.transformExpressionsDown(rule)

    def _mention(self, relation: Jvm, alias: str | None) -> Jvm | None:
        parts = items(relation.multipartIdentifier())
        found = self._relations.get(parts[0].lower()) if len(parts) == 1 else None
        if found is None:
            return None
        name, opened = found
        self.met.add(name)
        origin = module(self._c.jvm.org.apache.spark.sql.catalyst.trees, "CurrentOrigin")
        origin.set(relation.origin())  # errors about the relation underline its mention
        try:
            return self._shown(name, opened, [alias or name])
        finally:
            origin.reset()

    def _shown(
        self,
        name: str,
        opened: RelationPlan,
        qualifier: Sequence[str],
        where: Callable[[Sequence[Jvm]], Jvm] | None = None,
    ) -> Jvm:
        """Return a relation for one mention of its name; `where`, given the relation's columns, returns a condition on its
        rows."""
        c = self._c
        attributes = output_of(opened.plan)
        marks = [{_HIDDEN: a.name()} if i >= opened.visible else {} for i, a in enumerate(attributes)]
        marks[0][RELATION_KEY] = name
        named = [self._renewed(a, mark) for a, mark in zip(attributes, marks, strict=True)]
        below = c.plans.Project(c.seq(named), opened.plan)
        shown = [n.toAttribute().withQualifier(c.seq(qualifier)) for n in named]
        if where is not None:
            below = c.plans.Filter(where(shown), below)
        projection = c.plans.Project(c.seq(shown[: opened.visible]), below)
        tag = module(c.plans, "Project").hiddenOutputTag()
        projection.setTagValue(tag, c.seq(shown[opened.visible :]))
        for column in shown[opened.visible :]:
            self._hidden.setdefault((qualifier[-1].lower(), column.name().lower()), []).append(column)
        return projection

    def _one_name(self, relation: Jvm) -> Jvm | None:
        parts = items(relation.multipartIdentifier())
        name = self._dotted.get(".".join(parts).lower()) if len(parts) > 1 else None
        if name is None:
            return None
        c = self._c
        found = relation.copy(c.seq([name]), relation.options(), relation.isStreaming())
        known_as = c.jvm.org.apache.spark.sql.catalyst.AliasIdentifier(parts[-1], c.seq(parts[:-1]))
        return c.plans.SubqueryAlias(known_as, found)

    def _renewed(self, attribute: Jvm, marks: Mapping[str, str]) -> Jvm:
        """Return a column under a new expression ID, so that every mention of a relation has columns of its own."""
        name, none = attribute.name(), self._c.seq([])
        metadata = self._c.none()
        if marks:
            mark = self._c.jvm.org.apache.spark.sql.types.Metadata.fromJson(json.dumps(dict(marks)))
            metadata = module(self._c.jvm.scala, "Some").apply(mark)
        number = self._c.expressions.NamedExpression.newExprId()
        return self._c.expressions.Alias(attribute, name, number, none, metadata, none)


def _subqueries_of(expression: Jvm) -> list[Jvm]:
    """Return the outermost subqueries of an expression."""
    if kind(expression) in _SUBQUERIES:
        return [expression]
    return [found for child in children_of(expression) for found in _subqueries_of(child)]


def relation_of(plan: Jvm) -> str | None:
    """Return the name of the relation that `RelationNames` inserted a projection for; None for any other projection."""
    first = option(plan.projectList().headOption())
    # a window inherits the metadata of the column it is computed from
    if first is None or kind(first) != "Alias" or kind(first.child()) != "AttributeReference":
        return None
    metadata = option(first.explicitMetadata())
    is_known = metadata is not None and metadata.contains(RELATION_KEY)
    return metadata.getString(RELATION_KEY) if is_known else None  # type: ignore[union-attr]
