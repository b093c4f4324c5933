"""Which units a workspace has: its views, planned, in an order in which sources come first, and the tables they read."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

import pyarrow as pa

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.log.protocol import Log
from headwater.queries.statements import Query
from headwater.runtime.expressions import Evaluator
from headwater.runtime.pipeline import Pipeline
from headwater.runtime.planning.handles import Relation
from headwater.runtime.planning.planner import Plan, Planner
from headwater.runtime.units import TableUnit, Unit, ViewUnit

VIEW = "view"


class Catalog:
    """The definitions that the log holds, made ready to run. Planned once each, and again when they change."""

    def __init__(self, log: Log, planner: Planner, evaluator: Evaluator) -> None:
        self._log = log
        self._planner = planner
        self._evaluator = evaluator
        self._made: dict[str, tuple[object, Unit]] = {}
        self._guard = threading.RLock()

    def plan(self, query: Query, inputs: Mapping[str, Sequence[str]] | None = None) -> Plan:
        """Plan a query over the topics and views that are there; `inputs` says which columns it knew when it was made."""
        return self._planner.plan(query, self._relations(inputs))

    def units(self) -> Sequence[Unit]:
        """Every unit, sources first."""
        with self._guard:
            return self._units()

    def _units(self) -> Sequence[Unit]:
        views = definitions(self._log)
        topics = self._log.topics()
        units: dict[str, Unit] = {}
        for definition in in_order(views):
            for name in definition.reads:
                if name in topics and topics[name].key and name not in units:
                    units[name] = self._table(topics[name])
            units[definition.name] = self._view(definition, units, topics)
        for name in [n for n in self._made if n not in units]:
            del self._made[name]
        return list(units.values())

    def _table(self, topic: TopicDefinition) -> Unit:
        known = (topic.incarnation, topic.schema_version)
        if topic.name not in self._made or self._made[topic.name][0] != known:
            self._made[topic.name] = (known, TableUnit(topic))
        return self._made[topic.name][1]

    def _view(
        self, definition: ViewDefinition, units: Mapping[str, Unit], topics: Mapping[str, TopicDefinition]
    ) -> Unit:
        below = tuple(units[n].identity if n in units else _shape(topics[n]) for n in definition.reads)
        known = (definition.incarnation, below)
        if definition.name not in self._made or self._made[definition.name][0] != known:
            relations = {
                n: self._relation(n, definition.inputs.get(n), units, topics) for n in definition.reads
            }
            plan = self._planner.plan(Query(definition.query), relations)
            pipeline = Pipeline(plan.root, self._evaluator)
            unit = ViewUnit(definition, plan, pipeline, [n for n in definition.reads if n in units])
            self._made[definition.name] = (known, unit)
        return self._made[definition.name][1]

    def _relation(
        self,
        name: str,
        columns: Sequence[str] | None,
        units: Mapping[str, Unit],
        topics: Mapping[str, TopicDefinition],
    ) -> Relation:
        if name in units:
            unit = units[name]
            return Relation(name, _chosen(unit.schema, columns), unit.append_only)
        return Relation(name, _chosen(topics[name].schema, columns), append_only=True)

    def _relations(self, inputs: Mapping[str, Sequence[str]] | None) -> dict[str, Relation]:
        known = inputs or {}
        relations = {
            name: Relation(name, _chosen(topic.schema, known.get(name)), append_only=not topic.key)
            for name, topic in self._log.topics().items()
        }
        for name, view in definitions(self._log).items():
            relations[name] = Relation(name, view.columns, append_only=False)
        return relations


def definitions(log: Log) -> dict[str, ViewDefinition]:
    """Every view that is declared, by name."""
    return {
        name: ViewDefinition.from_document(entry.document, entry.sequence)
        for name, entry in log.entries(VIEW).items()
    }


def in_order(views: Mapping[str, ViewDefinition]) -> list[ViewDefinition]:
    """Views with those that they read before them."""
    done: dict[str, ViewDefinition] = {}

    def visit(view: ViewDefinition) -> None:
        if view.name in done:
            return
        for name in view.reads:
            if name in views:
                visit(views[name])
        done[view.name] = view

    for name in sorted(views):
        visit(views[name])
    return list(done.values())


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    """The columns that were there when the view was made: one that is added later changes nothing."""
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in columns])


def _shape(topic: TopicDefinition) -> str:
    return f"{topic.incarnation}:{topic.schema_version}"
