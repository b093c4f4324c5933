"""Topics, row versions and views on a base, at a cut of the log for which no state is kept.

They are computed from the log where it has every record; where records were removed, the operators compute them from the
newest base and the log after the base.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headwater.core.errors import TickNotKeptError
from headwater.core.positions import Ends
from headwater.engine.collections.collection_steps import CollectionOutcome, step_in_driver
from headwater.engine.collections.collections import Collection, ViewCollection
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import base_of, base_slot, removed
from headwater.engine.collections.version_table import all_records
from headwater.engine.input.log_input import Inputs
from headwater.engine.row_errors.late_rows import watermarks_at
from headwater.engine.tick.backfill_parts import BACKFILL_ROWS, PASSING, Changes, is_passing, more_rows
from headwater.log.cuts import next_cut
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.runs import Run
from headwater.plan.relations.metadata_columns import (
    is_versions,
    table_topic,
    versions_of,
)
from headwater.serving.spark_batch import BatchSession, current_rows
from headwater.state.base_ticks import Bases
from headwater.state.cut_history import ViewCut
from headwater.state.manifest import Manifest
from headwater.state.store import StateStore
from headwater.state.view_reader import expanded


@dataclass(frozen=True)
class Moment:
    """A tick in terms of the log: the positions where it ends, and the positions where each of its collections begins."""

    tick: int
    positions: Ends
    parts: Mapping[str, ViewCut]


class PastUnits:
    """Computes topics, row versions and collections on a base as of one point in time, each at most once."""

    def __init__(
        self, log: Log, store: StateStore, tools: EngineContext, moment: Moment, batch: BatchSession
    ) -> None:
        self._log = log
        self._store = store
        self._bases = Bases(store.storage)
        self._catalog = tools.catalog
        self._moment = moment
        self._batch = batch
        self.made: dict[str, pa.Table] = {}
        """Contents of every collection computed so far, by name."""
        self.on_bases: set[str] = set()
        """Names of the collections that were computed from a base because records were removed."""

    def give(self, name: str, rows: pa.Table) -> None:
        """Keep computed contents and register them with Spark."""
        self.made[name] = rows
        self._batch.register(name, rows)

    def newest_base(self) -> Manifest | None:
        """Return the manifest of the newest base, or None."""
        return self._bases.newest()

    def version_rows(self, name: str) -> pa.Table:
        """Return all versions of a keyed topic's rows."""
        unit = versions_of(name)
        if unit not in self.made:
            if self.removed(unit):
                self.made[unit] = self.on_base(unit)
            else:
                topic, at = self._log.topic(name), self.position(name)
                self.made[unit] = self._batch.version_rows(all_records(self._log, topic, at), topic)
        return self.made[unit]

    def rows(self, name: str, hidden: Sequence[str] = ()) -> pa.Table:
        """Return the rows of a topic at the cut."""
        topic, at = self._log.topic(name), self.position(name)
        if topic.key:
            self._refuse_if_compacted(name)
        return current_rows(self._log, topic, at, hidden)

    def position(self, name: str) -> Mapping[int, int]:
        """Return the end offsets of the tick in a topic, by partition; TickNotKeptError if the tick does not cover the
        topic."""
        if name not in self._moment.positions:
            raise TickNotKeptError(
                f"tick {self._moment.tick} does not cover topic {name!r}: no view of that tick read it",
                hint="read the topic without as_of",
                tick=self._moment.tick,
                topic=name,
                reason="topic-not-read",
            )
        return self._moment.positions[name]

    def removed(self, name: str) -> bool:
        """Whether records that a collection was computed from are gone."""
        part = self._moment.parts.get(name)
        return part is not None and removed(self._log, part.begins)

    def _refuse_if_compacted(self, name: str) -> None:
        ends = self._moment.positions.get(name, {})
        for partition, info in self._log.partitions(name).items():
            if ends.get(partition, info.end) < info.compacted_to:
                raise TickNotKeptError(
                    f"tick {self._moment.tick} can no longer be computed: compaction has removed records of topic {name!r} that were current at that tick",
                    detail=f"partition {partition} can be computed from offset {info.compacted_to} on",
                    hint="newer ticks can be read",
                    tick=self._moment.tick,
                    topic=name,
                    first_available=info.compacted_to,
                    reason="compacted",
                )

    def on_base(self, name: str) -> pa.Table:
        """Return the contents of a collection, computed from the newest base and the log after the base."""
        unit, base = self._unit(name), self._bases.newest()
        based = base_of(self._log, unit, base) if unit is not None else None
        if unit is None or base is None or based is None or base.tick > self._moment.tick:
            raise self.not_computable(name, base)
        if unit.incarnation != self._moment.parts[name].incarnation:
            raise self.not_computable(name, base)
        self.on_bases.add(name)
        runs = {slot.name: self._runs(base, base_slot(based, slot)) for slot in unit.slots}
        if isinstance(unit, ViewCollection):
            own = unit.contents.name
            runs[own] = unit.arranged(runs[own], based.record.key)
        at, rows = based.positions, BACKFILL_ROWS
        while True:
            target = self._next(unit, at, rows)
            last = all(target[t] == self._moment.positions[t] for t in unit.topics)
            changes = Inputs(self._log).changes(unit, at, target)
            if last:
                changes |= {n: self._since(n, base) for n in unit.units}
            reached = {**self._moment.positions, **target} if last else target
            try:
                done = self._stepped(unit, changes, runs, reached)
            except PASSING as error:
                if last or not is_passing(unit, changes, error):
                    raise
                rows = more_rows(rows, changes)
                continue
            for slot, run in done.runs.items():
                assert isinstance(run, Run)  # without a tick to write, runs are not split into tasks
                runs[slot.name].append(run)
            if last:
                for derived in unit.derived if isinstance(unit, ViewCollection) else ():
                    delta = derived.rows(runs[derived.contents.name])
                    self.give(derived.name, expanded(delta, derived.schema, derived.name))
                return expanded(unit.rows(runs[unit.contents.name]), unit.schema, name)
            at, rows = target, BACKFILL_ROWS

    def _stepped(
        self, unit: Collection, changes: Changes, runs: Mapping[str, list[Run]], reached: Ends
    ) -> CollectionOutcome:
        held = lambda slot: runs[slot.name]  # noqa: E731
        watermarks = {}
        if isinstance(unit, ViewCollection):
            watermarks = watermarks_at(self._log, unit.waits_for, reached)
        return step_in_driver(unit, changes, held, first=False, watermarks=watermarks)  # type: ignore[arg-type]

    def _unit(self, name: str) -> Collection | None:
        served = {name: part.incarnation for name, part in self._moment.parts.items()}
        return next((unit for unit in self._catalog.workload(served).units if unit.name == name), None)

    def _next(self, unit: Collection, at: Ends, rows: int) -> Ends:
        """Return the positions where the next step ends, no further than the requested point in time."""
        if not unit.topics:
            return {}
        cut = next_cut(self._log, list(unit.topics), at, rows).positions
        return {
            t: {p: min(end, self._moment.positions[t][p]) for p, end in cut[t].items()} for t in unit.topics
        }

    def _since(self, name: str, base: Manifest) -> Delta:
        unit = self._unit(name)
        assert unit is not None
        if name not in self.made:
            if is_versions(name):
                self.version_rows(table_topic(name))
            elif self.removed(name):
                self.made[name] = self.on_base(name)
            else:
                self.made[name] = self.rows(table_topic(name), unit.schema.names)
        now = Delta.of(batch_of(self.made[name], unit.schema))
        then = unit.rows(self._runs(base, base.views[name].contents))
        return consolidate(concat([now, then.negated()], unit.schema))

    def _runs(self, base: Manifest, arrangement: str) -> list[Run]:
        refs = base.arrangements.get(arrangement, ())
        self._bases.restore(ref.file for ref in refs)
        return [self._store.open_run(ref) for ref in refs]

    def not_computable(self, name: str, base: Manifest | None) -> TickNotKeptError:
        """Return the error for a collection that can no longer be computed."""
        part = self._moment.parts[name]
        there = self._log.topics()
        firsts = {
            t: {p: info.first for p, info in self._log.partitions(t).items()}
            for t in part.begins
            if t in there
        }
        places = ", ".join(
            f"{t} partition {p} offset {first}" for t, ps in firsts.items() for p, first in ps.items()
        )
        return TickNotKeptError(
            f"tick {self._moment.tick} can no longer be computed: records that {name!r} was built from have been removed",
            detail=f"the first still available: {places}",
            hint="read a newer tick" if base is None else f"tick {base.tick} and newer ones can be read",
            tick=self._moment.tick,
            view=name,
            first_available=base.tick if base is not None else None,
            reason="history-removed",
        )


def batch_of(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    columns = [
        pa.concat_arrays(c.chunks) if c.num_chunks else pa.array([], f.type)
        for c, f in zip(table.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
