"""Views at a cut of the log for which no state is kept: recomputed for `verify` and for reads of old ticks.

A view whose records are all still in the log is recomputed by Spark from the log alone. Where some of the records were
removed, the operators recompute it from its base and the log after the base. Where that is impossible too, TickNotKeptError
is raised.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import ViewUnavailableError
from headwater.engine.collections.collections import ERRORS_NAME, view_of
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import removed
from headwater.engine.collections.version_table import all_records, readable_versions
from headwater.engine.collections.workload import admission_of, definition_at, derived_of
from headwater.engine.row_errors.late_rows import LATE_NAME, reports_of, watermarks_at
from headwater.log.protocol import Log
from headwater.operators.aggregate.frequent_items import FrequentItems
from headwater.operators.zset.delta import Delta
from headwater.plan.relations.metadata_columns import (
    POSITION,
    changelog_of,
    hidden_among,
    hidden_in,
    in_order,
    marked,
    table_with_hidden,
    topic_schema,
    version_schema,
    versions_of,
)
from headwater.plan.rewrite.approximate_answers import Answers
from headwater.plan.time.late_policy import NEEDED, Policy
from headwater.serving.query import QueryRelation, is_named
from headwater.serving.spark_batch import BatchSession, as_table, free_table
from headwater.sql.standing_statements import StandingDefinition, parse_standing
from headwater.sql.statements import QueryText
from headwater.sql.system_time import are_versions_among, may_read_versions
from headwater.state.cut_history import ViewCut
from headwater.state.manifest import Manifest
from headwater.state.store import StateStore
from headwater.verify.recompute_matches import recomputed
from headwater.verify.recompute_units import Moment, PastUnits, batch_of


@dataclass(frozen=True)
class Approximate:
    """How far a view's contents are determined: the columns whose values are answers of sketches and have error bounds."""

    columns: tuple[int, ...] = ()
    repeatable: bool = True
    """Whether the answers are the same however the log was cut into ticks."""
    exactly: bool = False
    """Whether the view answers approximate functions exactly."""
    frequent: Mapping[int, FrequentItems] = field(default_factory=dict)
    """The columns that hold frequent values; their bounds are computed from all values of a group."""


def moment_of(manifest: Manifest) -> Moment:
    """Return the point in time of a tick that is kept."""
    parts = {
        n: ViewCut(v.incarnation, v.record.begins) for n, v in manifest.views.items() if v.status == "live"
    }
    return Moment(manifest.tick, manifest.positions, parts)


_APPROXIMATE = re.compile(
    r"approx_count_distinct|percentile_approx|approx_percentile|approx_top_k", re.IGNORECASE
)


class PastRelations:
    """Computes relations as of one point in time, each at most once."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        tools: EngineContext,
        moment: Moment,
        held: Callable[[str], pa.Table] | None = None,
    ) -> None:
        """`held` returns the kept contents of a view at that time, if given: views that read a view with error bounds are
        computed from its kept contents."""
        self._log = log
        self._catalog = tools.catalog
        self._evaluator = tools.evaluator
        self._functions = tools.functions
        self._batch = BatchSession(tools.spark, log, moment.positions, tools.functions)
        self._moment = moment
        found = {name: definition_at(log, name, part.incarnation) for name, part in moment.parts.items()}
        self._definitions = {name: view for name, view in found.items() if view is not None}
        self._held = held
        self._approximate: dict[str, Approximate] = {}
        self._units = PastUnits(log, store, tools, moment, self._batch)

    @property
    def on_base(self) -> set[str]:
        """Names of the collections that were computed from a base because records were removed."""
        return self._units.on_bases

    def close(self) -> None:
        """Remove the files that were written for Spark."""
        self._batch.close()

    def relations(self, names: set[str]) -> dict[str, QueryRelation]:
        """Return the views and topics of these names (in lower case), for a query; each is computed when it is read."""
        found: dict[str, QueryRelation] = {}
        for name, view in self._definitions.items():
            if name.lower() in names:
                found[name.lower()] = QueryRelation(name, view.columns, partial(self._load_view, name))
            for derived, columns in derived_of(view).items():
                if not is_named(derived, names):
                    continue
                found[derived.lower()] = QueryRelation(derived, columns, partial(self._load_view, derived))
        for name, topic in self._log.topics().items():
            if name.lower() in names and name.lower() not in found:
                schema = topic_schema(topic, hidden_among(names))
                found[name.lower()] = QueryRelation(name, schema, partial(self._load_topic, name, schema))
                if are_versions_among(names) and readable_versions(topic).refusal is None:
                    found[versions_of(name).lower()] = QueryRelation(
                        versions_of(name), version_schema(topic), partial(self._load_versions, name)
                    )
        return found

    def _load_versions(self, name: str, equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        del equal, first
        return self._units.version_rows(name).cast(version_schema(self._log.topic(name)))

    def _load_view(self, name: str, equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        del equal, first
        return self.view(name)

    def _load_topic(
        self, name: str, schema: pa.Schema, equal: Mapping[str, Any] | None, first: int | None
    ) -> pa.Table:
        del equal, first
        for unit, part in self._moment.parts.items():
            if name in part.begins and removed(self._log, {name: part.begins[name]}):
                raise self._units.not_computable(unit, self._units.newest_base())
        return self._units.rows(name, schema.names)

    def view(self, name: str) -> pa.Table:
        """Return the contents of a view; TickNotKeptError if its inputs are gone, ViewUnavailableError if it was no part of
        the tick."""
        if name not in self._definitions and view_of(name) in self._definitions:
            self.view(view_of(name))
            if name in self._units.made:
                return self._units.made[name]
        definition = self._definitions.get(name)
        if definition is None:
            raise ViewUnavailableError(
                f"view {name!r} was not part of tick {self._moment.tick}",
                hint="read a later tick",
                view=name,
                status="missing",
                tick=self._moment.tick,
                last_tick=None,
            )
        if name not in self._units.made:
            for below in map(view_of, definition.reads):
                if below in self._definitions:
                    self.view(below)
            self._view(definition)
        return self._units.made[name]

    def _view(self, definition: ViewDefinition) -> None:
        name = definition.name
        if self._units.removed(name):
            self._units.made[name] = self._units.on_base(name)
            self._batch.register(name, self._units.made[name])
        elif (standing := parse_standing(definition.query)) is not None:
            self._matches(definition, standing)
        else:
            self._open(definition)
            known = self.approximate(name)
            self._units.made[name] = self._computed(definition, "exact" if known.exactly else "approximate")
            if known.columns and not known.repeatable and self._held is not None:
                self._units.give(name, self._held(name))
            elif any(f.kind == "aggregate" for f in self._functions.used(definition.query).values()):
                # views above read these rows: Spark's plan represents users' aggregates as lists, which views may not
                # contain
                self._units.give(name, self._units.made[name])

    def _open(self, definition: ViewDefinition) -> None:
        """Register with Spark the topics that a view reads, with the rows and columns that the view sees."""
        for source in definition.reads:
            if source not in self._definitions and source in self._log.topics():
                self._topic(source, definition.inputs[source], self._hidden(definition, source))
                if self._log.topic(source).key and may_read_versions(definition.query):
                    self._versions(source, definition)
        if definition.options.on_error == "divert":
            self._admit(definition)

    def _matches(self, definition: ViewDefinition, standing: StandingDefinition) -> None:
        """Compute a percolator view: the matches of documents and stored queries, and the error rows of queries that cannot
        be parsed."""
        plan = self._catalog.plan(QueryText(definition.query), definition.inputs, Policy.of(definition))
        admission = admission_of(definition, plan, self._log.topics(), self._evaluator)
        records = all_records(
            self._log, self._log.topic(standing.queries), self._units.position(standing.queries)
        )
        if admission is not None:
            done = admission.sorted_out({changelog_of(standing.queries): Delta.of(records)})
            records = done.admitted[changelog_of(standing.queries)].rows
            self._units.give(f"{definition.name}.{ERRORS_NAME}", pa.Table.from_batches([done.errors.rows]))
        documents = self._topic_rows(standing.topic, definition.inputs[standing.topic], POSITION)
        self._units.give(
            definition.name, recomputed(plan.root, records, batch_of(documents, documents.schema))
        )

    def approximate(self, name: str) -> Approximate:
        """Return how far the contents of a view are determined."""
        definition = self._definitions.get(name)
        if definition is None or not _APPROXIMATE.search(definition.query):
            return Approximate()
        if name not in self._approximate:
            plan = self._catalog.plan(QueryText(definition.query), definition.inputs, Policy.of(definition))
            repeatable = all(f.sketch.repeatable for f in plan.approximate.values())
            sketches = {column: f.sketch for column, f in plan.approximate.items()}
            frequent = {c: sketch for c, sketch in sketches.items() if isinstance(sketch, FrequentItems)}
            self._approximate[name] = Approximate(tuple(plan.approximate), repeatable, plan.exactly, frequent)
        return self._approximate[name]

    def bounds(self, name: str) -> tuple[pa.Table, pa.Table] | None:
        """Return the contents of a view with the least and with the greatest answers that its sketches may give; None if
        records that the view was computed from are gone."""
        made = self.view(name)
        if self._units.removed(name):
            return None
        definition = self._definitions[name]
        self._open(definition)  # another view may have registered the same topics with other columns
        low, high = self._computed(definition, "floor"), self._computed(definition, "ceiling")
        self._units.give(name, made)
        return low, high

    def _computed(self, definition: ViewDefinition, answers: Answers) -> pa.Table:
        if Policy.of(definition).is_plain:
            return as_table(self._batch.view(definition, answers), definition.columns)
        return self._timed(definition, answers)

    def _timed(self, definition: ViewDefinition, answers: Answers) -> pa.Table:
        """Compute a view that drops late rows or emits only final rows, and the view's reports of late rows."""
        relations = self._catalog.relations_of(definition)
        there = self._log.topics().keys() & self._moment.positions.keys()
        watermarks = watermarks_at(self._log, there, self._moment.positions)
        frame, parts = self._batch.timed_view(definition, relations, watermarks, answers)
        made = as_table(frame, definition.columns)
        if definition.late is not None:
            rows = [
                (topic, Delta.of(batch_of(table := free_table(part), table.schema))) for topic, part in parts
            ]
            late = reports_of(rows, definition.late)
            self._units.give(f"{definition.name}.{LATE_NAME}", pa.Table.from_batches([late.rows]))
        return made

    def _hidden(self, definition: ViewDefinition, source: str) -> tuple[str, ...]:
        """Return the metadata columns of a topic that a view needs."""
        needed = Policy.of(definition).leaves_out and not self._log.topic(source).key
        return (*hidden_in(definition.query), *(NEEDED if needed else ()))

    def _admit(self, definition: ViewDefinition) -> None:
        """Register with Spark only the topic rows that the view accepts, and keep the error rows of the others."""
        plan = self._catalog.plan(QueryText(definition.query), definition.inputs, Policy.of(definition))
        admission = admission_of(definition, plan, self._log.topics(), self._evaluator)
        assert admission is not None
        changes = {}
        for name in admission.topics:
            wanted = self._hidden(definition, name)
            rows = self._topic_rows(name, definition.inputs[name], (*wanted, *POSITION))
            changes[name] = Delta.of(batch_of(rows, rows.schema))
        done = admission.sorted_out(changes)
        for name, admitted in done.admitted.items():
            wanted = in_order(self._hidden(definition, name))
            shown = [*definition.inputs[name], *(n for n in wanted if n in admitted.rows.schema.names)]
            rows = pa.Table.from_batches([admitted.rows.select(shown)])
            self._batch.register(name, rows.cast(marked(rows.schema, self._log.topic(name))))
        self._units.give(f"{definition.name}.{ERRORS_NAME}", pa.Table.from_batches([done.errors.rows]))

    def _topic(self, name: str, columns: Sequence[str], hidden: Sequence[str]) -> None:
        """Register a topic with Spark as a view reads it. A topic without a key whose records are gone is read only by
        views on a base."""
        self._batch.register(name, self._topic_rows(name, columns, hidden))

    def _topic_rows(self, name: str, columns: Sequence[str], hidden: Sequence[str]) -> pa.Table:
        unit = table_with_hidden(name) if table_with_hidden(name) in self._moment.parts else name
        if self._log.topic(name).key and self._units.removed(unit):
            rows = self._units.made[unit] = self._units.on_base(unit)
        else:
            rows = self._units.rows(name, hidden)
        rows = rows.select([*columns, *(n for n in in_order(hidden) if n in rows.schema.names)])
        return rows.cast(marked(rows.schema, self._log.topic(name)))

    def _versions(self, name: str, view: ViewDefinition) -> None:
        """Register with Spark the row versions of a keyed topic; for a view that drops late rows, register the records from
        which the view derives its versions."""
        schema = version_schema(topic := self._log.topic(name), view.inputs[name])
        if Policy.of(view).leaves_out and topic.time is not None:
            records = all_records(self._log, topic, self._units.position(name), met=True)
            self._batch.changelog(name, records, view.inputs[name])
            rows = schema.empty_table()
        else:
            rows = self._units.version_rows(name)
        self._batch.register(versions_of(name), rows.select(schema.names).cast(schema))
