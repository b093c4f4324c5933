"""Versions of a topic's rows in a parsed plan: FOR SYSTEM_TIME AS OF, FOR SYSTEM_VERSION AS OF, and `customers.versions`.

    FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id

becomes a join with all versions of `customers`, restricted to the version that is valid at the row's own time:

    FROM orders o JOIN customers.versions AS c
      ON o.customer = c.id AND c._valid_from <= o.at AND (c._valid_to IS NULL OR o.at < c._valid_to)

For AS OF a version, the condition is `c._version = o.customer_version`. If the time or version is a constant, the condition
is a filter on the versions instead, which is allowed wherever a relation is. The expression after AS OF is passed to Spark
as a quoted text: see `headwater.sql.system_time`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headwater.plan.relations.metadata_columns import VERSIONED, versions_of
from headwater.plan.rewrite.relation_names import RelationNames, RelationPlan
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, find, items, kind, module, output_of
from headwater.sql.ordered_aggregates import SparkQuery
from headwater.sql.system_time import VERSIONS

_JOINS = ("Inner", "Cross", "LeftOuter", "LeftSemi", "LeftAnti")
_FORM = "write ... o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer_id = c.id"
_NOT_A_NEWLINE = re.compile(r"[^\n]")

Unversioned = tuple[str, str]
"""The reason why a relation has no versions, and a hint."""


class _Travel(NamedTuple):
    """A relation with AS OF, as parsed."""

    plan: Jvm
    """The plan node of the AS OF clause."""
    alias: str | None


class VersionedNames(RelationNames):
    """Replaces relation names in a plan by relations, and names with AS OF by versions."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, RelationPlan],
        dotted: Iterable[str],
        versions: Mapping[str, RelationPlan | Unversioned],
        query: SparkQuery,
        refuse: Refuse,
    ) -> None:
        """`versions` has the topics and views whose versions a query may read; `query` is the query as passed to Spark."""
        super().__init__(catalyst, relations, dotted)
        self._versions = {name.lower(): (name, opened) for name, opened in versions.items()}
        self._query = query
        self._refuse = refuse

    def _is_needed(self) -> bool:
        return super()._is_needed() or bool(self._versions)

    def _plan(self, plan: Jvm) -> Jvm:
        if kind(plan) == "Join" and (travel := _travel(plan.right())) is not None:
            return self._joined(plan, travel)
        if (travel := _travel(plan)) is not None:
            return self._constant(travel)
        if (named := self._all_versions(plan)) is not None:
            return named
        return super()._plan(plan)

    def _all_versions(self, plan: Jvm) -> Jvm | None:
        """Return the versions of a topic, where a query names them as a relation."""
        aliased = kind(plan) == "SubqueryAlias"
        relation = plan.child() if aliased else plan
        if kind(relation) != "UnresolvedRelation":
            return None
        parts = items(relation.multipartIdentifier())
        if len(parts) != 2 or parts[1].lower() != VERSIONS:
            return None
        found = self._versions_named(relation, parts[0])
        return None if found is None else self._shown(*found, [plan.alias()] if aliased else parts)

    def _versions_named(self, place: Jvm, name: str) -> tuple[str, RelationPlan] | None:
        """Return the versions of a topic and their name; None for an unknown topic, which Spark reports."""
        known = self._versions.get(name.lower())
        if known is None:
            return None
        self.met.add(known[0])
        if not isinstance(known[1], RelationPlan):
            message, hint = known[1]
            self._refuse(place, message, hint=hint, reason="no-versions", name=known[0])
        return versions_of(known[0]), known[1]

    def _resolved(self, travel: _Travel) -> tuple[tuple[str, RelationPlan] | None, str]:
        """Return the versions for a relation with AS OF, and the qualifier of the relation in the query."""
        parts = items(travel.plan.relation().multipartIdentifier())
        found = self._versions_named(travel.plan, parts[0]) if len(parts) == 1 else None
        return found, travel.alias or parts[-1]

    def _joined(self, plan: Jvm, travel: _Travel) -> Jvm:
        """Return a join with the version that is valid at the time of each row of the left side."""
        c = self._c
        wanted = self._wanted(travel)
        left = self._plan(plan.left())
        if not _refers(wanted):
            right, condition = self._constant(travel), plan.condition()
        else:
            join = kind(plan.joinType())
            if join in ("UsingJoin", "NaturalJoin"):
                self._refuse(
                    travel.plan,
                    "a join FOR SYSTEM_TIME AS OF a column needs ON",
                    hint=_FORM,
                    reason="as-of-without-on",
                )
            if join not in _JOINS:
                join_type = plan.joinType().sql().lower()
                self._refuse(
                    travel.plan,
                    f"a {join_type} join FOR SYSTEM_TIME AS OF a column is not supported: versions without a row on the other side have no time",
                    hint="use JOIN or LEFT JOIN with the versions on the right side",
                    reason="as-of-join-type",
                )
            found, qualifier = self._resolved(travel)
            if found is None:
                return plan.withNewChildren(c.seq([left, travel.plan.relation()]))
            right = self._shown(*found, [qualifier])
            # by attribute, not by name: the alias may be the name of a column of the other side, which Spark would prefer
            lanes = output_of(right.child())[-len(VERSIONED) :]
            mine = self._condition(travel, lanes, wanted)
            whole = mine if plan.condition().isEmpty() else c.expressions.And(plan.condition().get(), mine)
            condition = module(c.jvm.scala, "Some").apply(whole)
        return self._subqueries(plan.copy(left, right, plan.joinType(), condition, plan.hint()))

    def _constant(self, travel: _Travel) -> Jvm:
        """Return the versions that were valid at a constant time, or the version of a constant ID."""
        wanted = self._wanted(travel)
        if _refers(wanted):
            self._refuse(
                travel.plan,
                "FOR SYSTEM_TIME AS OF a column of another relation needs a join with that relation, on its right side",
                hint=_FORM,
                reason="as-of-without-join",
            )
        found, qualifier = self._resolved(travel)
        if found is None:
            relation = travel.plan.relation()
            return relation if travel.alias is None else self._c.plans.SubqueryAlias(travel.alias, relation)
        width = len(VERSIONED)
        return self._shown(
            *found, [qualifier], lambda columns: self._condition(travel, columns[-width:], wanted)
        )

    def _condition(self, travel: _Travel, lanes: Sequence[Jvm], wanted: Jvm) -> Jvm:
        """Return the condition that selects the requested version, over the columns of validity and version ID."""
        e = self._c.expressions
        valid_from, valid_to, version = lanes
        if travel.plan.version().isDefined():
            return e.EqualTo(version, wanted)
        begun = e.LessThanOrEqual(valid_from, wanted)
        return e.And(begun, e.Or(e.IsNull(valid_to), e.LessThan(wanted, valid_to)))

    def _wanted(self, travel: _Travel) -> Jvm:
        """Return the expression after AS OF, parsed from the quoted text that was passed to Spark."""
        stop = travel.plan.origin().stopIndex()
        end = stop.get() if stop.isDefined() else None
        clause = next((clause for clause in self._query.quoted if clause.end == end), None)
        if clause is None:
            self._refuse(
                travel.plan,
                "versions are read FOR SYSTEM_TIME AS OF a time",
                hint=_FORM,
                reason="as-of-version",
            )
        text = self._query.text
        # padded with blanks, so that Spark's error positions refer to the whole query
        padded = _NOT_A_NEWLINE.sub(" ", text[: clause.start]) + text[clause.start : clause.end]
        return self._c.session.sessionState().sqlParser().parseExpression(padded)


def _travel(plan: Jvm) -> _Travel | None:
    """Return a relation with AS OF and its alias, if any; None for any other node."""
    if kind(plan) == "RelationTimeTravel":
        return _Travel(plan, None)
    if kind(plan) == "SubqueryAlias" and kind(plan.child()) == "RelationTimeTravel":
        return _Travel(plan.child(), plan.alias())
    return None


def _refers(expression: Jvm) -> bool:
    """Whether a parsed expression refers to columns or subqueries."""
    return find(expression, lambda e: kind(e) in ("UnresolvedAttribute", "ScalarSubquery")) is not None


def view_without_versions(name: str) -> Unversioned:
    """Return the reason why a view has no versions."""
    return (
        f"view {name!r} has no versions: only a topic with a PRIMARY KEY has",
        "ws.query(..., as_of=tick) reads a view at an earlier tick",
    )
