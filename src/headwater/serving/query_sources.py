"""Sources of a subscription, at ticks: views, keyed topics as their current tables, and the records of plain topics.

Rows always have the columns that the query had when it was planned, in that order, even if columns were added since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import UsageError
from headwater.engine.collections.collection_steps import step_in_driver
from headwater.engine.collections.collections import view_of
from headwater.engine.collections.version_table import VersionCollection
from headwater.engine.collections.workload import definitions
from headwater.log.protocol import Log
from headwater.operators.table.upsert import upsert
from headwater.operators.zset.delta import Delta, concat_rows, consolidate
from headwater.operators.zset.runs import Run, contents, contents_latest
from headwater.plan.relations.metadata_columns import (
    READABLE,
    hidden_schema,
    read_records,
    table_with_hidden,
    version_hidden,
    versions_of,
)
from headwater.serving.follow import Mark
from headwater.state.manifest import Manifest, ViewState, encode_schema
from headwater.state.store import StateStore
from headwater.state.view_reader import change_run, view_state

CHUNK_ROWS = 500_000
"""Rows per piece: bounds the memory that an initial read takes in addition to the rows that are kept."""


class QuerySource(Protocol):
    """A relation that a query reads: its rows at a tick, and the change of a tick, always with the same columns."""

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the mark of the relation's history at a tick; None if the relation is no part of the tick."""
        ...

    def check(self, manifest: Manifest) -> None:
        """Raise an error if the relation, which is no part of the newest tick, will not become part of a later tick by
        itself."""
        ...

    def rows(self, manifest: Manifest) -> Iterator[Delta]:
        """Return all rows at a tick, in pieces. The call itself opens the files that the rows are read from."""
        ...

    def change(self, before: Manifest, now: Manifest) -> Delta:
        """Return the change from one tick to the next."""
        ...


class ViewSource:
    """A view, or a relation derived from a view, as a source."""

    def __init__(self, log: Log, store: StateStore, name: str, columns: Sequence[str]) -> None:
        self.name = name
        self._log = log
        self._store = store
        self._columns = columns

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the view's history and schema at a tick; None if the view is not live in it."""
        state = manifest.views.get(self.name)
        return (state.history, state.schema) if state is not None and state.status == "live" else None

    def check(self, manifest: Manifest) -> None:
        """Raise an error if the view is stopped or no longer declared; a declared view will become part of a tick."""
        state = manifest.views.get(self.name)
        if view_of(self.name) not in definitions(self._log) or (
            state is not None and state.status == "stopped"
        ):
            view_state(manifest, self.name)
            raise _dropped(f"view {self.name!r}", view=self.name)

    def rows(self, manifest: Manifest) -> Iterator[Delta]:
        """Return the contents of the view at a tick, in pieces."""
        state = view_state(manifest, self.name)
        return _pieces(self._store.runs(manifest, state.contents), self._columns, _multiset(state))

    def change(self, before: Manifest, now: Manifest) -> Delta:
        """Return the change of the view that the tick stores."""
        state = view_state(now, self.name)
        if state.change is None:
            return Delta.empty(state.arrow_schema)
        return _selected(change_run(self._store, now, state.change), self._columns)


class TableSource:
    """A keyed topic as its current table, which ticks keep for the views that read it: with the metadata columns of each
    key's record, without them, or both."""

    def __init__(
        self, log: Log, store: StateStore, name: str, columns: Sequence[str], hidden: Sequence[str]
    ) -> None:
        self.name = name
        self._log = log
        self._store = store
        self._columns = (*columns, *hidden)
        self._units = (table_with_hidden(name),) if hidden else (name, table_with_hidden(name))

    def _state(self, manifest: Manifest) -> ViewState | None:
        found = (manifest.views.get(unit) for unit in self._units)
        return next((state for state in found if state is not None and state.status == "live"), None)

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the identity of the kept table at a tick; None if the tick does not keep it."""
        state = self._state(manifest)
        return None if state is None else (state.record.identity, state.built, state.schema)

    def check(self, manifest: Manifest) -> None:
        """Raise an error unless a declared view that reads the topic is still to become part of a tick."""
        _refuse_unread(self._log, self.name, manifest)

    def rows(self, manifest: Manifest) -> Iterator[Delta]:
        """Return the current rows at a tick, in pieces."""
        state = self._state(manifest)
        assert state is not None
        return _pieces(self._runs(manifest, state), self._columns, _table(state))

    def change(self, before: Manifest, now: Manifest) -> Delta:
        """Return the effect of the records between the two cuts on the table at the first cut."""
        then, state = self._state(before), self._state(now)
        assert then is not None
        assert state is not None
        schema = state.arrow_schema
        columns = [*schema.names, *(["_op"] if "_op" not in schema.names else [])]
        since, until = then.positions[self.name], state.positions[self.name]
        batches = list(_between(self._log, self.name, since, until, columns))
        if not batches:
            return Delta.empty(schema)
        records = concat_rows(batches, batches[0].schema)
        deleted = pc.equal(records.column("_op"), "delete").to_numpy(zero_copy_only=False)
        runs, rows = self._runs(before, then), records.select(schema.names)
        change, _ = upsert(runs, state.record.key, rows, np.asarray(deleted, dtype=np.bool_))
        return consolidate(_selected(change, self._columns))

    def _runs(self, manifest: Manifest, state: ViewState) -> list[Run]:
        name = state.contents
        return self._store.runs(manifest, name) if name in manifest.arrangements else []


class VersionsSource:
    """All versions of a keyed topic's rows, which ticks keep for the views that read them."""

    def __init__(self, log: Log, store: StateStore, topic: str, columns: Sequence[str]) -> None:
        self.name = topic
        self._log = log
        self._store = store
        self._columns = (*columns, *version_hidden(log.topic(topic)).names)

    def _state(self, manifest: Manifest) -> ViewState | None:
        state = manifest.views.get(versions_of(self.name))
        return state if state is not None and state.status == "live" else None

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the identity of the kept versions at a tick; None if the tick does not keep them."""
        state = self._state(manifest)
        return None if state is None else (state.record.identity, state.built, state.schema)

    def check(self, manifest: Manifest) -> None:
        """Raise an error unless a declared view that reads the versions is still to become part of a tick."""
        _refuse_unread(self._log, self.name, manifest)

    def rows(self, manifest: Manifest) -> Iterator[Delta]:
        """Return all versions at a tick, in pieces."""
        return _pieces(
            self._runs(manifest), self._columns, VersionCollection(self._log.topic(self.name)).rows
        )

    def change(self, before: Manifest, now: Manifest) -> Delta:
        """Return the effect of the records between the two cuts on the versions at the first cut."""
        then, state = self._state(before), self._state(now)
        assert then is not None
        assert state is not None
        topic = self._log.topic(self.name)
        unit, schema = VersionCollection(topic), pa.schema([*topic.schema, *hidden_schema(topic)])
        since, until = then.positions[self.name], state.positions[self.name]
        batches = list(_between(self._log, self.name, since, until, schema.names))
        if not batches:
            return Delta.empty(unit.schema)
        records, runs = concat_rows(batches, schema), self._runs(before)
        done = step_in_driver(unit, {self.name: records}, lambda _: runs, first=False)  # type: ignore[arg-type]
        return _selected(done.change, self._columns)

    def _runs(self, manifest: Manifest) -> list[Run]:
        state = self._state(manifest)
        assert state is not None
        name = state.contents
        return self._store.runs(manifest, name) if name in manifest.arrangements else []


class TopicSource:
    """A topic without a key: its records between the cuts of ticks."""

    def __init__(self, log: Log, name: str, columns: Sequence[str], hidden: Sequence[str]) -> None:
        self.name = name
        self._log = log
        self._own = tuple(columns)
        self._columns = (*columns, *hidden)

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the topic's incarnation and column types; None if the tick does not cover the topic or a column was
        dropped."""
        topic = self._log.topic(self.name)
        if _cut(manifest, self.name) is None or self._missing():
            return None
        return (topic.incarnation, encode_schema(pa.schema([topic.schema.field(name) for name in self._own])))

    def check(self, manifest: Manifest) -> None:
        """Raise an error if a column was dropped, or unless a declared view that reads the topic is still to become part of
        a tick."""
        if missing := self._missing():
            raise _dropped(
                f"column {missing[0]!r} of topic {self.name!r}", topic=self.name, column=missing[0]
            )
        _refuse_unread(self._log, self.name, manifest)

    def _missing(self) -> list[str]:
        there = self._log.topic(self.name).schema.names
        return [name for name in self._own if name not in there]

    def lost_rows(self) -> bool:
        """Whether retention has removed records of the topic."""
        return any(info.first > 0 for info in self._log.partitions(self.name).values())

    def rows(self, manifest: Manifest) -> Iterator[Delta]:
        """Return all records up to the cut of a tick, in pieces."""
        batches = _between(self._log, self.name, {}, _cut(manifest, self.name) or {}, self._columns)
        return map(Delta.of, _gathered(batches))

    def change(self, before: Manifest, now: Manifest) -> Delta:
        """Return the records between the two cuts."""
        since, until = _cut(before, self.name) or {}, _cut(now, self.name) or {}
        batches = list(_between(self._log, self.name, since, until, self._columns))
        if not batches:
            return Delta.empty(READABLE)
        return Delta.of(concat_rows(batches, batches[0].schema))


def _cut(manifest: Manifest, topic: str) -> Mapping[int, int] | None:
    """Return the end offsets of a tick in a topic; None if no live view of the tick reads the topic."""
    live = (view.positions for view in manifest.views.values() if view.status == "live")
    return manifest.positions.get(topic) or next((at[topic] for at in live if topic in at), None)


def _multiset(state: ViewState) -> Callable[[Sequence[Run]], Delta]:
    return lambda runs: contents(runs, state.arrow_schema)


def _table(state: ViewState) -> Callable[[Sequence[Run]], Delta]:
    return lambda runs: contents_latest(runs, state.arrow_schema, state.record.key)


def _pieces(
    runs: Sequence[Run], columns: Sequence[str], read: Callable[[Sequence[Run]], Delta]
) -> Iterator[Delta]:
    """Return the contents of an arrangement in pieces. The generator is nested so that the runs are opened before the first
    piece is requested."""

    def pieces() -> Iterator[Delta]:
        whole = _selected(read(runs), columns)
        for start in range(0, len(whole), CHUNK_ROWS):
            rows = whole.rows.slice(start, CHUNK_ROWS)
            yield Delta(rows, whole.weights[start : start + CHUNK_ROWS])

    return pieces()


def _selected(change: Delta, columns: Sequence[str]) -> Delta:
    """Select the columns that the query was planned with, by name: columns may have been added since."""
    if change.rows.schema.names == list(columns):
        return change
    return Delta(change.rows.select(list(columns)), change.weights)


def _between(
    log: Log, topic: str, since: Mapping[int, int], until: Mapping[int, int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a topic between two positions; from the first record that exists if `since` is empty."""
    firsts = {} if since else log.partitions(topic)
    for partition, end in sorted(until.items()):
        start = since[partition] if since else firsts[partition].first
        if start < end:
            yield from read_records(log, topic, partition, (start, end), columns)


def _gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Combine batches until they have `CHUNK_ROWS` rows."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= CHUNK_ROWS:
            yield concat_rows(waiting, waiting[0].schema)
            waiting, rows = [], 0
    if waiting:
        yield concat_rows(waiting, waiting[0].schema)


def _refuse_unread(log: Log, topic: str, manifest: Manifest) -> None:
    """Raise an error for a topic that no tick covers, unless a view that reads it is still to become part of a tick."""
    log.topic(topic)
    for view in definitions(log).values():
        state = manifest.views.get(view.name)
        fresh = state is not None and state.incarnation == view.incarnation
        if topic in view.reads and (not fresh or (state is not None and state.status == "backfilling")):
            return
    raise UsageError(
        f"no materialized view reads these columns of topic {topic!r}, so ticks do not contain them",
        hint=f"CREATE MATERIALIZED VIEW name AS the query, and subscribe to that; or ws.topic({topic!r}).read(follow=True)",
        reason="not-read-by-a-view",
        topic=topic,
    )


def _dropped(what: str, **facts: str) -> UsageError:
    return UsageError(
        f"{what} was dropped or replaced",
        hint="subscribe again, with another query",
        reason="dropped",
        **facts,
    )
