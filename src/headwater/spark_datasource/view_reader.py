"""Reads a view in any PySpark program: its rows at a tick, or the changes of its ticks, in batch and as a stream.

The position of a stream is a tick, and a tick is committed once, so a batch that Spark repeats has the same rows. No
engine needs to run: ticks are read from committed state. Tasks get ticks to read, and keep no state.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from headwater.core.errors import TickNotKeptError
from headwater.operators.zset.runs import contents, split
from headwater.spark_datasource.conversion import to_spark, view_arrow_schema
from headwater.spark_datasource.offsets import ViewOffset, view_batch_start
from headwater.spark_datasource.options import ViewSettings
from headwater.state.manifest import Manifest, ViewState
from headwater.state.missing_ticks import tick_not_kept
from headwater.state.store import StateStore
from headwater.state.view_reader import (
    as_changes,
    change_run,
    check_follows,
    expanded,
    kept_after,
    view_state,
)

BATCH_ROWS = 65_536
"""Maximum number of rows in a batch for Spark."""
_HASHES = 1 << 64


@dataclass(frozen=True)
class Contents:
    """The rows of the view at a tick whose hashes are in a range, half open."""

    tick: int
    low: int
    high: int
    changes: bool
    """Whether to return the rows as changes, as if the tick had inserted all of them."""


@dataclass(frozen=True)
class ViewDelta:
    """The changes of some ticks."""

    ticks: tuple[int, ...]


class ViewSlice(InputPartition):
    """The parts of the view for one task."""

    def __init__(self, parts: Sequence[Contents | ViewDelta]) -> None:
        super().__init__(None)
        self.parts = tuple(parts)


class ViewBatchReader(DataSourceReader):
    """Reads a view at one tick, chosen when the query is planned; with `changes`, its changes up to that tick."""

    def __init__(self, settings: ViewSettings, schema: StructType) -> None:
        settings.refuse_for_batch()
        self._settings = settings
        self._wanted = view_arrow_schema(schema, settings)

    def partitions(self) -> list[InputPartition]:
        """Return the slices of the view at its tick."""
        store, view = self._settings.place.store(), self._settings.place.name()
        manifest = _at(store, self._settings.as_of)
        state = view_state(manifest, view)
        if not self._settings.changes:
            return _contents(manifest, state, self._settings, changes=False)
        begin = _begin(store, view, self._settings, manifest)
        return _slices(store, view, begin, ViewOffset(view, manifest.tick, state.history), self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a slice; runs in a task."""
        return _read(partition, self._settings, self._wanted)


class ViewStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark's `DataSourceStreamReader` for the changes of a view. A batch has whole ticks."""

    def __init__(self, settings: ViewSettings, schema: StructType) -> None:
        settings.refuse_for_stream()
        self._settings = settings
        self._initial: dict[str, Any] | None = None
        self._target: int | None = None
        self._wanted = view_arrow_schema(schema, settings)

    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a new query. Spark calls this repeatedly; the result stays the same."""
        if self._initial is None:
            store, view = self._settings.place.store(), self._settings.place.name()
            self._initial = _begin(store, view, self._settings, store.latest()).to_json()
        return self._initial

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return no limit: `latestOffset` applies `maxTicksPerTrigger`, as Spark cannot count ticks."""
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of a batch from `start`; `start` itself, unchanged, if there are no new ticks."""
        del limit
        store, view = self._settings.place.store(), self._settings.place.name()
        at = ViewOffset.from_json(start)
        at.check(view)
        latest = store.latest()
        there = latest.views.get(view) if latest is not None else None
        if latest is None or there is None or there.status == "backfilling":
            return start
        state = view_state(latest, view)
        kept_after(store, at.tick, latest.tick)
        check_follows(store, at.token, latest, "the checkpoint of the query")
        if at.history is not None and at.history != state.history:
            raise _rebuilt(store, state, latest)
        ends = [latest.tick, *(() if self._target is None else (self._target,))]
        if self._settings.ticks_per_trigger is not None:
            ends.append(at.tick + self._settings.ticks_per_trigger)
        end = max(at.tick, min(ends))
        ended = ViewOffset(view, end, state.history, id=store.manifest(end).id if end else "")
        if at.initial:
            return replace(ended, began=(at.tick, at.snapshot)).to_json()
        return start if end == at.tick else ended.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the current newest tick the end of the query."""
        latest = self._settings.place.store().latest()
        self._target = 0 if latest is None else latest.tick

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the newest tick, for the progress that Spark reports."""
        latest = self._settings.place.store().latest()
        return ViewOffset(self._settings.place.name(), 0 if latest is None else latest.tick).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the slices of a batch."""
        begin, to = ViewOffset.from_json(start), ViewOffset.from_json(end)
        view = self._settings.place.name()
        to.check(view)
        store = self._settings.place.store()
        if (latest := store.latest()) is not None:
            check_follows(store, to.token, latest, "the checkpoint of the query")
        return _slices(store, view, view_batch_start(begin, to), to, self._settings)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the rows of a slice; runs in a task."""
        return _read(partition, self._settings, self._wanted)

    def commit(self, end: Mapping[str, Any]) -> None:
        """Do nothing: Spark's checkpoint stores the query's position."""


def _at(store: StateStore, as_of: int | datetime | None) -> Manifest:
    if isinstance(as_of, datetime):
        tick = store.tick_at(as_of)
        if tick is None:
            raise TickNotKeptError(f"no tick was committed at or before {as_of.isoformat()}", as_of=as_of)
        as_of = tick
    manifest = store.latest() if as_of is None else store.manifest(as_of)
    if manifest is None:
        raise tick_not_kept(1, [])
    return manifest


def _begin(store: StateStore, view: str, settings: ViewSettings, latest: Manifest | None) -> ViewOffset:
    """Return the start of a query: after a tick, or with all rows at one."""
    starting = settings.starting
    if latest is None:
        if isinstance(starting, int) and starting:
            raise tick_not_kept(starting, [])
        return ViewOffset(view, 0, initial=True)
    if starting == "latest":
        return ViewOffset(view, latest.tick, initial=True)
    if starting == "earliest":
        there = latest.views.get(view)
        if there is None or (there.status == "backfilling" and there.last_tick is None):
            # the view has no rows yet: its first rows will be a change
            return ViewOffset(view, latest.tick, initial=True)
        state = view_state(latest, view)
        return ViewOffset(view, _first(store, state, latest), state.history, snapshot=True, initial=True)
    if starting > latest.tick:
        raise tick_not_kept(starting, store.ticks())
    kept_after(store, starting, latest.tick)
    return ViewOffset(view, starting, initial=True)


def _first(store: StateStore, state: ViewState, latest: Manifest) -> int:
    """Return the first tick from which all ticks are kept and have the view live in its current history."""
    first, kept = latest.tick, set(store.ticks())
    while first - 1 in kept:
        before = store.manifest(first - 1).views.get(state.name)
        if before is None or before.history != state.history or before.status != "live":
            break
        first -= 1
    return first


def _rebuilt(store: StateStore, state: ViewState, latest: Manifest) -> TickNotKeptError:
    first = _first(store, state, latest)
    return TickNotKeptError(
        f"view {state.name!r} was rebuilt after the query started; its changes before tick {first} belong to the earlier build",
        hint=f"start the query with a new checkpointLocation; the first available tick is {first}",
        reason="rebuilt",
        view=state.name,
        tick=None,
        first_available=first,
        last_available=latest.tick,
        rebuilt_at=first,
    )


def _contents(
    manifest: Manifest, state: ViewState, settings: ViewSettings, *, changes: bool
) -> list[InputPartition]:
    """Return all rows at a tick, in tasks of about `rows_per_task`, by ranges of the hash that arranges the rows."""
    rows = sum(ref.rows for ref in manifest.arrangements.get(state.contents, ()))
    count = max(1, -(-rows // settings.rows_per_task))
    edges = [_HASHES * i // count for i in range(count + 1)]
    return [
        ViewSlice([Contents(manifest.tick, low, high, changes)]) for low, high in itertools.pairwise(edges)
    ]


def _slices(
    store: StateStore, view: str, begin: ViewOffset, end: ViewOffset, settings: ViewSettings
) -> list[InputPartition]:
    """Split the changes between two positions into tasks of about `rows_per_task`; TickNotKeptError if ticks are no
    longer kept."""
    found: list[InputPartition] = []
    latest = store.latest()
    assert latest is not None
    if begin.snapshot:
        manifest = store.manifest(begin.tick)
        found += _contents(manifest, view_state(manifest, view), settings, changes=True)
    ticks: list[list[int]] = []
    room = 0
    kept = kept_after(store, begin.tick, end.tick)
    for tick in (begin.tick, *kept) if begin.tick in store.ticks() else kept:
        then = store.manifest(tick).views.get(view)
        if then is None:
            continue
        if then.history != end.history and (then.status == "live" or then.last_tick is not None):
            raise _rebuilt(store, view_state(latest, view), latest)
        if then.change is None or tick == begin.tick:
            continue
        if then.change.rows > room:
            ticks.append([])
            room = settings.rows_per_task
        ticks[-1].append(tick)
        room -= then.change.rows
    return [*found, *(ViewSlice([ViewDelta(tuple(some))]) for some in ticks)]


def _read(partition: InputPartition, settings: ViewSettings, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the rows of a slice. Spark passes another kind of partition when there is nothing to read, which yields nothing."""
    if not isinstance(partition, ViewSlice):
        return
    store, view = settings.place.store(), settings.place.name()
    for part in partition.parts:
        for batch in _rows(store, view, part):
            yield to_spark(batch.select(wanted.names), wanted, view)


def _rows(store: StateStore, view: str, part: Contents | ViewDelta) -> Iterator[pa.RecordBatch]:
    if isinstance(part, ViewDelta):
        for tick in part.ticks:
            manifest = store.manifest(tick)
            state = manifest.views[view]
            if state.change is not None:
                yield as_changes(change_run(store, manifest, state.change), state.arrow_schema, tick)
        return
    manifest = store.manifest(part.tick)
    state = view_state(manifest, view)
    runs = [split(run, part.low, part.high) for run in store.runs(manifest, state.contents)]
    found = contents(runs, state.arrow_schema)
    if part.changes:
        yield as_changes(found, state.arrow_schema, part.tick)
    else:
        yield from expanded(found, state.arrow_schema, view).to_batches(max_chunksize=BATCH_ROWS)
