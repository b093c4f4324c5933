"""Views at a cut of the log that no state is kept of: computed again, for `verify` and for ticks of long ago.

From the log alone, by Spark, wherever every record that a view was made from is there. Where some were removed, from the
view's base and the log after it, by the operators themselves. Where even that is impossible, it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog import ViewDefinition
from headwater.errors import TickNotKeptError, ViewUnavailableError
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators.delta import Delta, concat, consolidate
from headwater.operators.frequent_items import FrequentItems
from headwater.operators.runs import Run
from headwater.positions import Ends
from headwater.queries.as_of import are_versions_among, may_read_versions
from headwater.queries.standing import Standing, parse_standing
from headwater.queries.statements import Query
from headwater.runtime.attempt import BACKFILL_ROWS
from headwater.runtime.batch import Batch, as_table, current_rows, free_table
from headwater.runtime.catalog import admission_of, definition_at, derived_of
from headwater.runtime.hidden import (
    POSITION,
    changelog_of,
    hidden_among,
    hidden_in,
    in_order,
    is_versions,
    marked,
    table_topic,
    table_with_hidden,
    topic_schema,
    version_schema,
    versions_of,
)
from headwater.runtime.history import base_of, base_slot, removed
from headwater.runtime.inputs import Inputs
from headwater.runtime.lateness import LATE_NAME, told_of, watermarks_at
from headwater.runtime.meeting import recomputed
from headwater.runtime.planning.answering import Answers
from headwater.runtime.planning.policy import NEEDED, Policy
from headwater.runtime.reading import Relation, is_named
from headwater.runtime.tools import Tools
from headwater.runtime.units import ERRORS_NAME, Unit, ViewUnit, view_of
from headwater.runtime.versions import all_records, readable_versions
from headwater.state.bases import Bases
from headwater.state.cuts import Part
from headwater.state.manifest import Manifest
from headwater.state.serving import expanded
from headwater.state.store import StateStore


@dataclass(frozen=True)
class Moment:
    """A tick as the log knows it: how far it goes, and where what it holds began."""

    tick: int
    positions: Ends
    parts: Mapping[str, Part]


@dataclass(frozen=True)
class Approximate:
    """What of a view is known within bounds: columns that are answers of sketches."""

    columns: tuple[int, ...] = ()
    repeatable: bool = True
    """Whether they are the same however the log was cut into ticks."""
    exactly: bool = False
    """Whether approximate functions are answered exactly in it."""
    frequent: Mapping[int, FrequentItems] = field(default_factory=dict)
    """The columns that are frequent values, whose bounds are all values."""


def moment_of(manifest: Manifest) -> Moment:
    """A tick that is kept."""
    parts = {
        n: Part(v.incarnation, v.extra["begins"]) for n, v in manifest.views.items() if v.status == "live"
    }
    return Moment(manifest.tick, manifest.positions, parts)


_APPROXIMATE = re.compile(
    r"approx_count_distinct|percentile_approx|approx_percentile|approx_top_k", re.IGNORECASE
)


class Past:
    """Computes relations as they were at one moment, each once."""

    def __init__(
        self,
        log: Log,
        store: StateStore,
        tools: Tools,
        moment: Moment,
        held: Callable[[str], pa.Table] | None = None,
    ) -> None:
        """`held` are the contents of a view at the moment, if they are kept: views above one that is known within bounds
        alone are computed from what it holds."""
        self._log = log
        self._store = store
        self._bases = Bases(store.storage)
        self._catalog = tools.catalog
        self._evaluator = tools.evaluator
        self._functions = tools.functions
        self._batch = Batch(tools.spark, log, moment.positions, tools.functions)
        self._moment = moment
        found = {name: definition_at(log, name, part.incarnation) for name, part in moment.parts.items()}
        self._definitions = {name: view for name, view in found.items() if view is not None}
        self._held = held
        self._approximate: dict[str, Approximate] = {}
        self._made: dict[str, pa.Table] = {}
        self.on_base: set[str] = set()
        """What was computed from a base, since records were removed."""

    def close(self) -> None:
        """Remove what was written for Spark to read."""
        self._batch.close()

    def relations(self, names: set[str]) -> dict[str, Relation]:
        """The views and topics of these names (in lower case), for a query; each is computed when it is read."""
        found: dict[str, Relation] = {}
        for name, view in self._definitions.items():
            if name.lower() in names:
                found[name.lower()] = Relation(name, view.columns, partial(self._load_view, name))
            for beside, columns in derived_of(view).items():
                if not is_named(beside, names):
                    continue
                found[beside.lower()] = Relation(beside, columns, partial(self._load_view, beside))
        for name, topic in self._log.topics().items():
            if name.lower() in names and name.lower() not in found:
                schema = topic_schema(topic, hidden_among(names))
                found[name.lower()] = Relation(name, schema, partial(self._load_topic, name, schema))
                if are_versions_among(names) and readable_versions(topic).refusal is None:
                    found[versions_of(name).lower()] = Relation(
                        versions_of(name), version_schema(topic), partial(self._load_versions, name)
                    )
        return found

    def _load_versions(self, name: str, equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        del equal, first
        return self._version_rows(name).cast(version_schema(self._log.topic(name)))

    def _load_view(self, name: str, equal: Mapping[str, Any] | None, first: int | None) -> pa.Table:
        del equal, first
        return self.view(name)

    def _load_topic(
        self, name: str, schema: pa.Schema, equal: Mapping[str, Any] | None, first: int | None
    ) -> pa.Table:
        del equal, first
        for unit, part in self._moment.parts.items():
            if name in part.begins and removed(self._log, {name: part.begins[name]}):
                raise self._gone(unit, self._bases.newest())
        return self._rows(name, schema.names)

    def view(self, name: str) -> pa.Table:
        """The contents of a view; TickNotKeptError if what it was made from is gone, or if it was no part of the tick."""
        if name not in self._definitions and view_of(name) in self._definitions:
            self.view(view_of(name))
            if name in self._made:
                return self._made[name]
        definition = self._definitions.get(name)
        if definition is None:
            raise ViewUnavailableError(
                f"view {name!r} was no part of tick {self._moment.tick}",
                hint="read a later tick",
                view=name,
                status="missing",
                tick=self._moment.tick,
                last_tick=None,
            )
        if name not in self._made:
            for below in map(view_of, definition.reads):
                if below in self._definitions:
                    self.view(below)
            self._view(definition)
        return self._made[name]

    def _view(self, definition: ViewDefinition) -> None:
        name = definition.name
        if self._removed(name):
            self._made[name] = self._on_base(name)
            self._batch.register(name, self._made[name])
        elif (standing := parse_standing(definition.query)) is not None:
            self._matches(definition, standing)
        else:
            self._open(definition)
            known = self.approximate(name)
            self._made[name] = self._computed(definition, "exact" if known.exactly else "approximate")
            if known.columns and not known.repeatable and self._held is not None:
                self._give(name, self._held(name))
            elif any(f.kind == "aggregate" for f in self._functions.used(definition.query).values()):
                # views above read the rows: users' aggregates are lists in Spark's plan, which are refused in views
                self._give(name, self._made[name])

    def _open(self, definition: ViewDefinition) -> None:
        """Have Spark see the topics that a view reads, as it reads them."""
        for source in definition.reads:
            if source not in self._definitions and source in self._log.topics():
                self._topic(source, definition.inputs[source], self._hidden(definition, source))
                if self._log.topic(source).key and may_read_versions(definition.query):
                    self._versions(source, definition)
        if definition.options.on_error == "divert":
            self._admit(definition)

    def _matches(self, definition: ViewDefinition, standing: Standing) -> None:
        """A view of what documents meet stored queries, and what is told of queries that cannot be read."""
        plan = self._catalog.plan(Query(definition.query), definition.inputs, Policy.of(definition))
        admission = admission_of(definition, plan, self._log.topics(), self._evaluator)
        records = all_records(self._log, self._log.topic(standing.queries), self._position(standing.queries))
        if admission is not None:
            done = admission.sorted_out({changelog_of(standing.queries): Delta.of(records)})
            records = done.admitted[changelog_of(standing.queries)].rows
            self._give(f"{definition.name}.{ERRORS_NAME}", pa.Table.from_batches([done.errors.rows]))
        documents = self._topic_rows(standing.topic, definition.inputs[standing.topic], POSITION)
        self._give(definition.name, recomputed(plan.root, records, _batch(documents, documents.schema)))

    def approximate(self, name: str) -> Approximate:
        """What of a view is known within bounds."""
        definition = self._definitions.get(name)
        if definition is None or not _APPROXIMATE.search(definition.query):
            return Approximate()
        if name not in self._approximate:
            plan = self._catalog.plan(Query(definition.query), definition.inputs, Policy.of(definition))
            repeatable = all(f.sketch.repeatable for f in plan.approximate.values())
            sketches = {column: f.sketch for column, f in plan.approximate.items()}
            frequent = {c: sketch for c, sketch in sketches.items() if isinstance(sketch, FrequentItems)}
            self._approximate[name] = Approximate(tuple(plan.approximate), repeatable, plan.exactly, frequent)
        return self._approximate[name]

    def bounds(self, name: str) -> tuple[pa.Table, pa.Table] | None:
        """The contents of a view with the least and with the greatest answers that its sketches may give; None if records
        that it was made from are gone."""
        made = self.view(name)
        if self._removed(name):
            return None
        definition = self._definitions[name]
        self._open(definition)  # another view may read the same topics otherwise
        low, high = self._computed(definition, "floor"), self._computed(definition, "ceiling")
        self._give(name, made)
        return low, high

    def _computed(self, definition: ViewDefinition, answers: Answers) -> pa.Table:
        if Policy.of(definition).is_plain:
            return as_table(self._batch.view(definition, answers), definition.columns)
        return self._timed(definition, answers)

    def _timed(self, definition: ViewDefinition, answers: Answers) -> pa.Table:
        """A view that leaves out late rows, or shows only what is final, and what is told of the late ones."""
        relations = self._catalog.relations_of(definition)
        there = self._log.topics().keys() & self._moment.positions.keys()
        watermarks = watermarks_at(self._log, there, self._moment.positions)
        frame, parts = self._batch.timed_view(definition, relations, watermarks, answers)
        made = as_table(frame, definition.columns)
        if definition.late is not None:
            rows = [
                (topic, Delta.of(_batch(table := free_table(part), table.schema))) for topic, part in parts
            ]
            told = told_of(rows, definition.late)
            self._give(f"{definition.name}.{LATE_NAME}", pa.Table.from_batches([told.rows]))
        return made

    def _hidden(self, definition: ViewDefinition, source: str) -> tuple[str, ...]:
        """The hidden columns that a view needs of a topic."""
        needed = Policy.of(definition).leaves_out and not self._log.topic(source).key
        return (*hidden_in(definition.query), *(NEEDED if needed else ()))

    def _admit(self, definition: ViewDefinition) -> None:
        """Have Spark see only those rows of topics that the view takes, and keep what is told of the others."""
        plan = self._catalog.plan(Query(definition.query), definition.inputs, Policy.of(definition))
        admission = admission_of(definition, plan, self._log.topics(), self._evaluator)
        assert admission is not None
        changes = {}
        for name in admission.topics:
            wanted = self._hidden(definition, name)
            rows = self._topic_rows(name, definition.inputs[name], (*wanted, *POSITION))
            changes[name] = Delta.of(_batch(rows, rows.schema))
        done = admission.sorted_out(changes)
        for name, admitted in done.admitted.items():
            wanted = in_order(self._hidden(definition, name))
            shown = [*definition.inputs[name], *(n for n in wanted if n in admitted.rows.schema.names)]
            rows = pa.Table.from_batches([admitted.rows.select(shown)])
            self._batch.register(name, rows.cast(marked(rows.schema, self._log.topic(name))))
        self._give(f"{definition.name}.{ERRORS_NAME}", pa.Table.from_batches([done.errors.rows]))

    def _give(self, name: str, rows: pa.Table) -> None:
        """Keep what a view gives beside its rows."""
        self._made[name] = rows
        self._batch.register(name, rows)

    def _topic(self, name: str, columns: Sequence[str], hidden: Sequence[str]) -> None:
        """A topic as Spark is to see it. Of a plain one whose records are gone only views on a base are made."""
        self._batch.register(name, self._topic_rows(name, columns, hidden))

    def _topic_rows(self, name: str, columns: Sequence[str], hidden: Sequence[str]) -> pa.Table:
        unit = table_with_hidden(name) if table_with_hidden(name) in self._moment.parts else name
        if self._log.topic(name).key and self._removed(unit):
            rows = self._made[unit] = self._on_base(unit)
        else:
            rows = self._rows(name, hidden)
        rows = rows.select([*columns, *(n for n in in_order(hidden) if n in rows.schema.names)])
        return rows.cast(marked(rows.schema, self._log.topic(name)))

    def _versions(self, name: str, view: ViewDefinition) -> None:
        """The versions of a keyed topic's rows as Spark is to see them; for a view that leaves rows out the records that
        it makes versions of."""
        schema = version_schema(topic := self._log.topic(name), view.inputs[name])
        if Policy.of(view).leaves_out and topic.time is not None:
            records = all_records(self._log, topic, self._position(name), met=True)
            self._batch.changelog(name, records, view.inputs[name])
            rows = schema.empty_table()
        else:
            rows = self._version_rows(name)
        self._batch.register(versions_of(name), rows.select(schema.names).cast(schema))

    def _version_rows(self, name: str) -> pa.Table:
        """All versions of a keyed topic's rows."""
        unit = versions_of(name)
        if unit not in self._made:
            if self._removed(unit):
                self._made[unit] = self._on_base(unit)
            else:
                topic, at = self._log.topic(name), self._position(name)
                self._made[unit] = self._batch.version_rows(all_records(self._log, topic, at), topic)
        return self._made[unit]

    def _rows(self, name: str, hidden: Sequence[str] = ()) -> pa.Table:
        """What a topic held."""
        topic, at = self._log.topic(name), self._position(name)
        if topic.key:
            self._refuse_if_compacted(name)
        return current_rows(self._log, topic, at, hidden)

    def _position(self, name: str) -> Mapping[int, int]:
        """How far the tick goes in a topic."""
        if name not in self._moment.positions:
            raise TickNotKeptError(
                f"tick {self._moment.tick} does not cover topic {name!r}: no view that was part of it read it",
                hint="read the topic as it is, without as_of",
                tick=self._moment.tick,
                topic=name,
            )
        return self._moment.positions[name]

    def _removed(self, name: str) -> bool:
        part = self._moment.parts.get(name)
        return part is not None and removed(self._log, part.begins)

    def _refuse_if_compacted(self, name: str) -> None:
        ends = self._moment.positions.get(name, {})
        for partition, info in self._log.partitions(name).items():
            if ends.get(partition, info.end) < info.compacted_to:
                raise TickNotKeptError(
                    f"tick {self._moment.tick} can no longer be computed: compaction has removed records of topic "
                    f"{name!r} that were current then",
                    detail=f"partition {partition} can be told from offset {info.compacted_to} on",
                    hint="newer ticks can be read",
                    tick=self._moment.tick,
                    topic=name,
                    first_available=info.compacted_to,
                )

    # --- from a base -----------------------------------------------------------------------------------------------

    def _on_base(self, name: str) -> pa.Table:
        unit, base = self._unit(name), self._bases.newest()
        based = base_of(self._log, unit, base) if unit is not None else None
        if unit is None or base is None or based is None or base.tick > self._moment.tick:
            raise self._gone(name, base)
        if unit.incarnation != self._moment.parts[name].incarnation:
            raise self._gone(name, base)
        self.on_base.add(name)
        runs = {slot.name: self._opened(base, base_slot(based, slot)) for slot in unit.slots}
        if isinstance(unit, ViewUnit):
            own = unit.contents.name
            runs[own] = unit.arranged(runs[own], based.extra["key"])
        at: Ends = based.positions
        while True:
            target = self._next(unit, at)
            last = all(target[t] == self._moment.positions[t] for t in unit.topics)
            changes = Inputs(self._log).changes(unit, at, target)
            if last:
                changes |= {n: self._since(n, base) for n in unit.units}
            held = lambda slot: runs[slot.name]  # noqa: E731
            if isinstance(unit, ViewUnit):
                reached = {**self._moment.positions, **target} if last else target
                watermarks = watermarks_at(self._log, unit.waits_for, reached)
                done = unit.step(changes, held, first=False, watermarks=watermarks)  # type: ignore[arg-type]
            else:
                done = unit.step(changes, held, first=False)  # type: ignore[arg-type]
            for slot, run in done.runs.items():
                assert isinstance(run, Run)  # nothing is placed in tasks without a tick to write for
                runs[slot.name].append(run)
            if last:
                for derived in unit.derived if isinstance(unit, ViewUnit) else ():
                    told = derived.rows(runs[derived.contents.name])
                    self._give(derived.name, expanded(told, derived.schema, derived.name))
                return expanded(unit.rows(runs[unit.contents.name]), unit.schema, name)
            at = target

    def _unit(self, name: str) -> Unit | None:
        served = {name: part.incarnation for name, part in self._moment.parts.items()}
        return next((unit for unit in self._catalog.workload(served).units if unit.name == name), None)

    def _next(self, unit: Unit, at: Ends) -> Ends:
        """The next chunk, no further than the moment."""
        if not unit.topics:
            return {}
        cut = next_cut(self._log, list(unit.topics), at, BACKFILL_ROWS).positions
        return {
            t: {p: min(end, self._moment.positions[t][p]) for p, end in cut[t].items()} for t in unit.topics
        }

    def _since(self, name: str, base: Manifest) -> Delta:
        unit = self._unit(name)
        assert unit is not None
        if name not in self._made:
            if is_versions(name):
                self._version_rows(table_topic(name))
            elif self._removed(name):
                self._made[name] = self._on_base(name)
            else:
                self._made[name] = self._rows(table_topic(name), unit.schema.names)
        now = Delta.of(_batch(self._made[name], unit.schema))
        then = unit.rows(self._opened(base, base.views[name].contents))
        return consolidate(concat([now, then.negated()], unit.schema))

    def _opened(self, base: Manifest, arrangement: str) -> list[Run]:
        refs = base.arrangements.get(arrangement, ())
        self._bases.restore(ref.file for ref in refs)
        return [self._store.open_run(ref) for ref in refs]

    def _gone(self, name: str, base: Manifest | None) -> TickNotKeptError:
        part = self._moment.parts[name]
        there = self._log.topics()
        firsts = {
            t: {p: info.first for p, info in self._log.partitions(t).items()}
            for t in part.begins
            if t in there
        }
        told = ", ".join(
            f"{t} partition {p} offset {first}" for t, ps in firsts.items() for p, first in ps.items()
        )
        return TickNotKeptError(
            f"tick {self._moment.tick} can no longer be computed: records that {name!r} was made from were removed",
            detail=f"the first still available: {told}",
            hint="read a newer tick" if base is None else f"tick {base.tick} and newer ones can be read",
            tick=self._moment.tick,
            view=name,
            first_available=base.tick if base is not None else None,
        )


def _batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    columns = [
        pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], f.type)
        for c, f in zip(table.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
