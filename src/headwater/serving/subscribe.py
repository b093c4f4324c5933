"""Subscribing to a query: a SELECT that is maintained in the subscriber's memory, as a view is maintained on disk.

The graph is that of a view. A subscription begins with the contents of its sources at the newest tick, and is then stepped
with the changes of its sources in every tick: changes of views are stored in the ticks, changes of topics are the records
between the cuts of two ticks. So a subscription returns for a tick the change that a view of that SELECT would have in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa

from headwater.core.errors import SubscriptionTooLargeError, TickNotKeptError
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.operator_interface import ArrangementSpec, StepState
from headwater.engine.merging.run_compaction import merged_run
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.operators.zset.runs import Run
from headwater.plan.relations.metadata_columns import is_versions, table_topic
from headwater.serving.follow import CommittedTicks, Following, FollowStart, Mark, not_part
from headwater.serving.query_sources import (
    CHUNK_ROWS,
    QuerySource,
    TableSource,
    TopicSource,
    VersionsSource,
    ViewSource,
)
from headwater.sql.statements import QueryText
from headwater.state.manifest import Manifest
from headwater.state.store import StateStore
from headwater.state.view_reader import as_changes

ROWS_MAX = 5_000_000
"""Default limit of rows that a subscription may keep: some hundred megabytes, and a few seconds to initialise."""


@dataclass(frozen=True)
class Change:
    """An item of a subscription: `rows` has the columns of the query with `_weight` (+n, -n) and `_tick`.

    With `snapshot`, `rows` are all rows at that tick, and everything returned before is void. Snapshots occur at the
    beginning, and when the subscription cannot continue because ticks were missed, a source was rebuilt, or an older copy
    of the workspace was restored.
    """

    tick: int
    rows: pa.Table
    snapshot: bool


class FollowedQuery:
    """A query with its state in memory. See `headwater.serving.follow.Followed`."""

    name = "a topic or view that the query reads"

    def __init__(
        self, log: Log, store: StateStore, tools: Callable[[], EngineContext], query: QueryText, rows_max: int
    ) -> None:
        self._log = log
        self._store = store
        self._tools = tools
        self._query = query
        self._rows_max = rows_max
        self._runs: dict[ArrangementSpec, list[Run]] = {}
        self._plan()

    def _plan(self) -> None:
        tools = self._tools()
        plan = tools.catalog.plan(self._query)
        self.schema = plan.schema
        self._pipeline = Dataflow(plan.root, tools.evaluator)
        # a graph refers to a topic's columns by index among all columns, including dropped ones
        topics = {name: topic.schema.names for name, topic in self._log.topics().items()}
        known = {n: {**plan.inputs, **topics}[table_topic(n) if is_versions(n) else n] for n in plan.reads}
        self._sources = {n: self._source(n, known[n], plan.hidden.get(n, ())) for n in plan.reads}
        self._planned: Mark | None = None

    def _source(self, name: str, columns: Sequence[str], hidden: Sequence[str]) -> QuerySource:
        topics = self._log.topics()
        if is_versions(name):
            return VersionsSource(self._log, self._store, table_topic(name), columns)
        if name not in topics:
            return ViewSource(self._log, self._store, name, columns)
        if topics[name].key:
            return TableSource(self._log, self._store, name, columns, hidden)
        return TopicSource(self._log, name, columns, hidden)

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the marks of all sources of the query; None if one of them is no part of the tick."""
        marks = tuple(source.mark(manifest) for source in self._sources.values())
        return None if any(mark is None for mark in marks) else marks

    def check(self, manifest: Manifest) -> None:
        """Raise an error if a source of the query will not become part of a tick by itself."""
        for source in self._sources.values():
            if source.mark(manifest) is None:
                source.check(manifest)

    def resume(self, since: int) -> Mark | None:
        """Rebuild the state that the query had at `since`."""
        manifest = self._store.manifest(since)
        mark = self.mark(manifest)
        if mark is None:
            raise not_part(self.name, since)
        if self._pipeline.slots:
            self._refuse_removed()
            for _ in self._load(manifest):
                pass
        self._planned = mark
        return mark

    def _refuse_removed(self) -> None:
        """Raise an error if records were removed: rebuilt state would lack them, and its changes would not continue the
        earlier ones."""
        for source in self._sources.values():
            if isinstance(source, TopicSource) and source.lost_rows():
                raise TickNotKeptError(
                    f"changes cannot be followed: records of topic {source.name!r} that the query needs were removed",
                    hint="omit `since` to start with the current rows",
                    reason="records-removed",
                    topic=source.name,
                    tick=None,
                    first_available=None,
                    last_available=None,
                )

    def begin(self, manifest: Manifest) -> Delta:
        """Return all rows of the query at a tick."""
        if self._planned is not None and self.mark(manifest) != self._planned:
            self._plan()  # a source may have other columns now
        self._planned = self.mark(manifest)
        if self._planned is None:
            raise not_part(self.name, manifest.tick)
        return _added_up(self._load(manifest), self.schema)

    def _load(self, manifest: Manifest) -> Iterator[Delta]:
        """Build the state from empty, piece by piece, and yield the change that each piece makes."""
        self._runs = {}
        pieces = {name: source.rows(manifest) for name, source in self._sources.items()}
        yield self._apply({}, first=True)
        for name, rows in pieces.items():
            for piece in rows:
                yield self._apply({name: piece}, first=False)

    def step(self, before: Manifest | None, now: Manifest) -> Delta:
        """Return the change of the query caused by the changes of a tick."""
        assert before is not None
        changes = {name: source.change(before, now) for name, source in self._sources.items()}
        if not any(len(change) for change in changes.values()):
            return Delta.empty(self.schema)
        return self._apply(changes, first=False)

    def _apply(self, changes: Mapping[str, Delta], *, first: bool) -> Delta:
        # without a placement, a step only reads runs from its state and returns runs
        state = cast("StepState", lambda slot: self._runs.get(slot, []))
        outcome = self._pipeline.step(changes, state, first=first)
        runs = dict(self._runs)
        for slot, run in outcome.runs.items():
            assert isinstance(run, Run)
            runs[slot] = _merged(slot, [*runs.get(slot, []), run])
        held = sum(len(run) for kept in runs.values() for run in kept)
        if held > self._rows_max:
            raise SubscriptionTooLargeError(
                f"the subscription needs {held:,} rows in memory, and its limit is {self._rows_max:,}",
                detail="joins and aggregates keep rows as state",
                hint="CREATE MATERIALIZED VIEW name AS the query, and subscribe to that; or increase rows_max",
                rows=held,
                rows_max=self._rows_max,
            )
        self._runs = runs  # assigned last, so that a failed step can be repeated
        return outcome.change


class Subscription(Following[Change]):
    """The iterator of `Change` items that `ws.subscribe(query)` returns. See `Following` for `token` and `timeout`."""

    resync = True

    def __init__(self, followed: FollowedQuery, ticks: CommittedTicks, start: FollowStart) -> None:
        super().__init__(followed, ticks, start)
        self._query = followed

    @property
    def schema(self) -> pa.Schema:
        """The columns of the query."""
        return self._query.schema

    def _item(self, change: Delta, tick: int) -> Change:
        rows = pa.Table.from_batches([as_changes(change, self._query.schema, tick)])
        return Change(tick, rows, self.snapshot)


def _added_up(changes: Iterable[Delta], schema: pa.Schema) -> Delta:
    """Return the sum of changes, consolidated whenever it has doubled: a group that every piece updates does not accumulate
    rows."""
    parts: list[Delta] = []
    least = CHUNK_ROWS
    for change in changes:
        parts.append(change)
        if sum(map(len, parts)) > 2 * least:
            parts = [consolidate(concat(parts, schema))]
            least = max(CHUNK_ROWS, len(parts[0]))
    return consolidate(concat(parts, schema))


def _merged(slot: ArrangementSpec, runs: list[Run]) -> list[Run]:
    """Merge the newest run of an arrangement into older runs of similar size, to keep the number of runs small."""
    while len(runs) > 1 and 2 * len(runs[-1]) >= len(runs[-2]):
        runs = [*runs[:-2], merged_run(slot, runs[-2:], bottom=len(runs) == 2)]
    return runs
