"""Views at a cut of the log that no state is kept of: computed again, for `verify` and for ticks of long ago.

From the log alone, by Spark, wherever every record that a view was made from is there. Where some were removed, from the
view's base and the log after it, by the operators themselves. Where even that is impossible, it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog import ViewDefinition
from headwater.errors import TickNotKeptError, ViewUnavailableError
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators.delta import Delta, concat, consolidate
from headwater.operators.runs import Run
from headwater.positions import Ends
from headwater.queries.statements import Query
from headwater.runtime.attempt import BACKFILL_ROWS
from headwater.runtime.batch import Batch, as_table, current_rows
from headwater.runtime.catalog import admission_of, definition_at, derived_of
from headwater.runtime.hidden import (
    POSITION,
    hidden_among,
    hidden_in,
    marked,
    table_topic,
    table_with_hidden,
    topic_schema,
)
from headwater.runtime.history import base_of, base_slot, removed
from headwater.runtime.inputs import Inputs
from headwater.runtime.reading import Relation, is_named
from headwater.runtime.tools import Tools
from headwater.runtime.units import Unit, ViewUnit, view_of
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


def moment_of(manifest: Manifest) -> Moment:
    """A tick that is kept."""
    parts = {
        n: Part(v.incarnation, v.extra["begins"]) for n, v in manifest.views.items() if v.status == "live"
    }
    return Moment(manifest.tick, manifest.positions, parts)


class Past:
    """Computes relations as they were at one moment, each once."""

    def __init__(self, log: Log, store: StateStore, tools: Tools, moment: Moment) -> None:
        self._log = log
        self._store = store
        self._bases = Bases(store.storage)
        self._catalog = tools.catalog
        self._evaluator = tools.evaluator
        self._batch = Batch(tools.spark, log, moment.positions, tools.functions)
        self._moment = moment
        found = {name: definition_at(log, name, part.incarnation) for name, part in moment.parts.items()}
        self._definitions = {name: view for name, view in found.items() if view is not None}
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
        return found

    def _load_view(self, name: str, equal: Mapping[str, Any] | None) -> pa.Table:
        del equal
        return self.view(name)

    def _load_topic(self, name: str, schema: pa.Schema, equal: Mapping[str, Any] | None) -> pa.Table:
        del equal
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
        else:
            for source in definition.reads:
                if source not in self._definitions and source in self._log.topics():
                    self._topic(source, definition.inputs[source], hidden_in(definition.query))
            if definition.options.on_error == "divert":
                self._admit(definition)
            self._made[name] = as_table(self._batch.view(definition), definition.columns)

    def _admit(self, definition: ViewDefinition) -> None:
        """Have Spark see only those rows of topics that the view takes, and keep what is told of the others."""
        plan = self._catalog.plan(Query(definition.query), definition.inputs)
        admission = admission_of(definition, plan, self._log.topics(), self._evaluator)
        assert admission is not None
        wanted, changes = hidden_in(definition.query), {}
        for name in admission.topics:
            rows = self._topic_rows(name, definition.inputs[name], (*wanted, *POSITION))
            changes[name] = Delta.of(_batch(rows, rows.schema))
        done = admission.sorted_out(changes)
        for name, admitted in done.admitted.items():
            shown = [*definition.inputs[name], *(n for n in wanted if n in admitted.rows.schema.names)]
            rows = pa.Table.from_batches([admitted.rows.select(shown)])
            self._batch.register(name, rows.cast(marked(rows.schema)))
        for name in derived_of(definition):
            self._give(name, pa.Table.from_batches([done.errors.rows]))

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
        rows = rows.select([*columns, *(n for n in hidden_among(hidden) if n in rows.schema.names)])
        return rows.cast(marked(rows.schema))

    def _rows(self, name: str, hidden: Sequence[str] = ()) -> pa.Table:
        """What a topic held."""
        topic = self._log.topic(name)
        if name not in self._moment.positions:
            raise TickNotKeptError(
                f"tick {self._moment.tick} does not cover topic {name!r}: no view that was part of it read it",
                hint="read the topic as it is, without as_of",
                tick=self._moment.tick,
                topic=name,
            )
        if topic.key:
            self._refuse_if_compacted(name)
        return current_rows(self._log, topic, self._moment.positions[name], hidden)

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
        at: Ends = based.positions
        while True:
            target = self._next(unit, at)
            last = all(target[t] == self._moment.positions[t] for t in unit.topics)
            changes: dict[str, Delta | pa.RecordBatch] = {
                t: Inputs(self._log).read(unit, t, at, target) for t in unit.topics
            }
            if last:
                changes |= {n: self._since(n, base) for n in unit.units}
            done = unit.step(changes, lambda slot: runs[slot.name], first=False)  # type: ignore[arg-type]
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
        return next((unit for unit in self._catalog.units() if unit.name == name), None)

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
            gone = self._removed(name)
            self._made[name] = (
                self._on_base(name) if gone else self._rows(table_topic(name), unit.schema.names)
            )
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
