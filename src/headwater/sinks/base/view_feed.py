"""The ticks of a view, as a sink reads them. Needs neither an engine nor Spark; waiting for ticks is passed in as `Wait`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError, TickNotKeptError
from headwater.core.positions import Token
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import contents
from headwater.state.manifest import Manifest, ViewState
from headwater.state.missing_ticks import other_history, tick_not_kept
from headwater.state.store import StateStore
from headwater.state.view_reader import change_run, kept_after, view_state

ROWS_MAX = 1_000_000
"""Number of changed rows after which `SinkFeed.changes` ends; a tick is never split."""


@dataclass(frozen=True)
class Point:
    """A tick that a view is part of, and the history of the view that it belongs to. `id` is the id of the tick, '' if it
    has none."""

    tick: int
    history: str
    schema: pa.Schema
    id: str = ""


@dataclass(frozen=True)
class PendingTicks:
    """The ticks that a target does not have yet. `rows` is None if the number is unknown because ticks are no longer
    retained; `since` is the commit time of the first of these ticks, None if there are none."""

    ticks: int
    rows: int | None
    since: Microseconds | None


@dataclass(frozen=True, eq=False)
class TickChanges:
    """The changes of several ticks. `ticks` are the ticks that changed something, with their ids in `ids`; `reached` is the
    last tick that was read, and `id` its id."""

    ticks: list[tuple[int, Delta]]
    reached: int
    id: str = ""
    ids: tuple[str, ...] = ()


class SinkFeed(Protocol):
    """One view, as a sink reads it. If the view cannot be read, its own error is raised."""

    def latest(self) -> Point | None:
        """Return the newest retained tick with this view, or None."""
        ...

    def at(self, tick: int) -> Point | None:
        """Return a tick; None if it is not retained, or the view was not part of it."""
        ...

    def contents(self, tick: int) -> Delta:
        """Return all rows at a tick; TickNotKeptError if it is no longer retained."""
        ...

    def changes(self, since: Token, history: str) -> TickChanges:
        """Return the changes of ticks after `since`, up to the newest tick or until they are many. TickNotKeptError if a
        tick is not retained, if the view is of another history in it or not part of it, or if the first tick follows another
        tick than `since`: then the contents do not follow from the changes."""
        ...

    def has(self, tick: Token) -> bool:
        """Whether this very tick, with its id, was committed; it may no longer be retained."""
        ...

    def pending(self, since: int, history: str) -> PendingTicks:
        """Return the extent of the changes after `since`, from the manifests of the ticks."""
        ...

    def wait(self, timeout_ms: float) -> None:
        """Return when there is a tick that `latest` has not seen, or at the timeout, or some time before."""
        ...


Wait = Callable[[Callable[[], bool], float], None]
"""Callable that waits until a condition is true or a number of milliseconds has passed: `Arrivals.wait`."""


class StoreFeed:
    """A view in the state of a workspace. `workspace` identifies this workspace, since a target may have followed another
    one."""

    def __init__(self, store: StateStore, view: str, wait: Wait, workspace: str) -> None:
        self._store = store
        self._view = view
        self._wait = wait
        self._workspace = workspace
        self._seen = 0
        self._sizes: dict[tuple[int, str], tuple[int, Microseconds]] = {}
        """Number of changed rows and commit time of the ticks that are pending, by tick and history."""

    def latest(self) -> Point | None:
        """See `SinkFeed`."""
        self._seen = max(self._store.ticks(), default=0)
        found = self._newest()
        if found is None:
            return None
        manifest, state = found
        return Point(manifest.tick, self._history(state), state.arrow_schema, manifest.id)

    def at(self, tick: int) -> Point | None:
        """See `SinkFeed`."""
        try:
            manifest = self._store.manifest(tick)
        except TickNotKeptError:
            return None
        if (state := self._state(manifest)) is None:
            return None
        return Point(tick, self._history(state), state.arrow_schema, manifest.id)

    def contents(self, tick: int) -> Delta:
        """See `SinkFeed`."""
        manifest = self._store.manifest(tick)
        state = view_state(manifest, self._view)
        return contents(self._store.runs(manifest, state.contents), state.arrow_schema)

    def changes(self, since: Token, history: str) -> TickChanges:
        """See `SinkFeed`."""
        found: list[tuple[int, Delta]] = []
        ids: list[str] = []
        rows, reached = 0, since
        for manifest, state in self._after(since, history):
            reached = manifest.token
            if state.change is not None:
                ids.append(manifest.id)
                found.append((manifest.tick, change_run(self._store, manifest, state.change)))
                rows += state.change.rows
                if rows >= ROWS_MAX:
                    break
        return TickChanges(found, reached.number, reached.id, tuple(ids))

    def has(self, tick: Token) -> bool:
        """See `SinkFeed`."""
        try:
            return not tick.differs(self._store.cut_of(tick.number).id)
        except (TickNotKeptError, CorruptionError):
            return False

    def pending(self, since: int, history: str) -> PendingTicks:
        """See `SinkFeed`."""
        newest = self._newest()
        if newest is None or newest[0].tick <= since:
            return PendingTicks(0, 0, None)
        try:
            ticks = kept_after(self._store, since, newest[0].tick)
            sizes = {(tick, history): self._size(tick, history) for tick in ticks}
        except TickNotKeptError:
            return PendingTicks(max(newest[0].tick - since, 1), None, None)
        self._sizes = sizes
        return PendingTicks(
            len(sizes), sum(rows for rows, _ in sizes.values()), min(at for _, at in sizes.values())
        )

    def _size(self, tick: int, history: str) -> tuple[int, Microseconds]:
        if (known := self._sizes.get((tick, history))) is not None:
            return known
        manifest = self._store.manifest(tick)
        state = self._state(manifest)
        if state is None or self._history(state) != history:
            raise tick_not_kept(tick, self._store.ticks())
        return state.change.rows if state.change is not None else 0, manifest.committed_at

    def wait(self, timeout_ms: float) -> None:
        """See `SinkFeed`."""
        self._wait(lambda: max(self._store.ticks(), default=0) != self._seen, timeout_ms)

    def _newest(self) -> tuple[Manifest, ViewState] | None:
        latest = self._store.latest()
        state = latest.views.get(self._view) if latest is not None else None
        if latest is None or state is None:
            return None
        if state.status != "live":
            if state.last_tick is None:
                return None
            try:
                latest = self._store.manifest(state.last_tick)
            except TickNotKeptError:
                return None
            state = self._state(latest)
        return (latest, state) if state is not None else None

    def _after(self, since: Token, history: str) -> list[tuple[Manifest, ViewState]]:
        newest = self._newest()
        if newest is None or newest[0].tick <= since.number:
            return []
        found, before = [], since
        for tick in kept_after(self._store, since.number, newest[0].tick):
            manifest = self._store.manifest(tick)
            if before.differs(manifest.previous):
                raise other_history(before, manifest.previous, self._store.ticks(), "what follows it")
            before = manifest.token
            state = self._state(manifest)
            if state is None or self._history(state) != history:
                raise tick_not_kept(tick, self._store.ticks())
            found.append((manifest, state))
        return found

    def _state(self, manifest: Manifest) -> ViewState | None:
        state = manifest.views.get(self._view)
        return state if state is not None and state.status == "live" else None

    def _history(self, state: ViewState) -> str:
        return f"{self._workspace}/{state.incarnation}.{state.built}"
