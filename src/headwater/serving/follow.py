"""Following committed ticks: a snapshot of a relation, then the changes of each tick. `subscribe` follows queries.

A subscriber pulls: it has a position and no queue, and reads the ticks that are kept. A slow subscriber blocks nothing; one
that falls behind the kept ticks gets an error. Subscribers work alongside any engine, in the same process or in another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

import pyarrow as pa

from headwater.core.clock import Clock
from headwater.core.errors import ClosedError, GapError, TickNotKeptError
from headwater.core.positions import Token
from headwater.core.storage import Storage
from headwater.log.embedded.journal.notify import Notifier
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.runs import contents
from headwater.state.manifest import Manifest
from headwater.state.missing_ticks import other_history, tick_not_kept
from headwater.state.state_files import MANIFESTS
from headwater.state.store import StateStore
from headwater.state.view_reader import as_changes, change_run, kept_after, view_state

WAIT_MS = 500.0
"""Maximum time, in ms, that a subscriber waits before it checks for ticks itself: a file system may fail to notify."""
FOLDER_WAIT_MS = 20.0
"""Maximum wait, in ms, before the first tick, when there is no folder yet to be notified about."""

Item = TypeVar("Item")
Mark = Hashable
"""Identifies the history of a relation at a tick: changes between two ticks add up only if their marks are equal."""


class Arrivals:
    """Notifies subscribers when any process commits a tick; one instance serves all subscribers of a workspace."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._notifier = Notifier()
        self.closed = False

    def wait(self, arrived: Callable[[], bool], timeout_ms: float) -> None:
        """Wait until `arrived` is true or until the timeout, or return earlier: the caller checks and waits again."""
        if not self._storage.exists(MANIFESTS):
            threading.Event().wait(min(timeout_ms, FOLDER_WAIT_MS) / 1_000)
            return
        path = self._storage.path(MANIFESTS)
        count = self._notifier.count(path)
        if not arrived():
            self._notifier.wait(path, count, min(timeout_ms, WAIT_MS))

    def close(self) -> None:
        """Wake all waiting threads: no more ticks will come."""
        self.closed = True
        self._notifier.close()


@dataclass(frozen=True)
class CommittedTicks:
    """The committed ticks of a workspace: where they are read, and what tells that another was committed."""

    store: StateStore
    arrivals: Arrivals
    clock: Clock


@dataclass(frozen=True)
class FollowStart:
    """Where following starts, the rows if `since` is None, and how long an item is waited for; None if without end."""

    since: Token | None
    timeout_ms: float | None


class Followed(Protocol):
    """A relation that can be followed: a view or a query."""

    @property
    def name(self) -> str:
        """The relation's name for messages."""
        ...

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the mark of the relation's history at a tick; None if the relation is no part of the tick."""
        ...

    def check(self, manifest: Manifest) -> None:
        """Raise an error if the relation, which is no part of the newest tick, will not become part of a later tick by
        itself."""
        ...

    def resume(self, since: int) -> Mark | None:
        """Prepare for the ticks after `since`, and return the mark of the relation's history at `since`; None if it did not
        exist then.

        TickNotKeptError if that history is no longer known. The caller has already checked that `since` is a tick of this
        history.
        """
        ...

    def begin(self, manifest: Manifest) -> Delta:
        """Start over at a tick that the relation is part of, and return all of its rows."""
        ...

    def step(self, before: Manifest | None, now: Manifest) -> Delta:
        """Return the change of a tick; `before`, the previous tick, is None after a resume from a tick that is not kept."""
        ...


class Following(Generic[Item]):
    """An iterator over ticks that waits for more. `close()`, or leaving the `with` block, ends the iteration. So does a
    `timeout`, in seconds, without an item: iterating again continues after it.

    `token` is the position to resume from: everything up to it was returned, and following with `since=token` later, also
    in another process, loses nothing and repeats nothing. The token is a text that names the tick uniquely:
    OtherHistoryError is raised if an older copy of the workspace was restored. `tick` is the tick's number alone, and
    suffices where no copy is ever restored. Both are None before the first item.
    """

    resync = False

    def __init__(self, followed: Followed, ticks: CommittedTicks, start: FollowStart) -> None:
        since, store = start.since, ticks.store
        self.tick = None if since is None else since.number
        self.snapshot = False
        """Whether the last item contains all rows, replacing everything returned before, rather than a change."""
        self._followed = followed
        self._store = store
        self._arrivals = ticks.arrivals
        self._clock = ticks.clock
        self._timeout_ms = start.timeout_ms
        self._closed = False
        self._given = since
        self._at = since
        self._before: Manifest | None = None
        self._mark: Mark | None = None
        self._fresh = since is None
        self._resumed = self._lost = False
        kept = store.ticks()
        if since is not None and kept and since.number > kept[-1]:
            raise tick_not_kept(since.number, kept)

    @property
    def token(self) -> str | None:
        """Position to resume from, as a text to pass as `since`."""
        return None if self._given is None else str(self._given)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Item:
        started_ms = self._clock.steady_ms()
        while not self._closed:
            if self._arrivals.closed:
                raise ClosedError("the workspace was closed", hint="open it again with hw.open")
            found = self._advance()
            if found is not None:
                return found
            left_ms = WAIT_MS
            if self._timeout_ms is not None:
                left_ms = self._timeout_ms - (self._clock.steady_ms() - started_ms)
                if left_ms <= 0:
                    break
            self._arrivals.wait(self._arrived, left_ms)
        raise StopIteration

    def close(self) -> None:
        """End the iteration; a thread that waits in it returns within `WAIT_MS`."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _item(self, change: Delta, tick: int) -> Item:
        raise NotImplementedError

    def _arrived(self) -> bool:
        ticks = self._store.ticks()
        return self._closed or (bool(ticks) and (self._at is None or ticks[-1] != self._at.number))

    def _advance(self) -> Item | None:
        """Return the next snapshot or change; None if nothing is new."""
        ticks = self._store.ticks()
        if not ticks:
            return None
        if (
            self._at is not None
            and ticks[-1] == self._at.number
            and not self._fresh
            and not self._was_restored()
        ):
            return None
        if not self._fresh:
            try:
                return self._next(ticks[-1])
            except (TickNotKeptError, GapError):
                if not self.resync:
                    raise
                self._fresh = True
        return self._all()

    def _all(self) -> Item | None:
        """Return all rows at the newest tick."""
        latest = self._store.latest()
        if latest is None:
            return None
        if self._followed.mark(latest) is None:
            self._followed.check(latest)
            self._at = latest.token
            return None
        rows = self._followed.begin(latest)
        self._move_to(
            latest, self._followed.mark(latest)
        )  # the mark is read again: begin() may have replanned the query
        self._fresh, self._resumed, self.snapshot = False, True, True
        return self._item(rows, latest.tick)

    def _next(self, newest: int) -> Item | None:
        """Return the next change up to the newest tick."""
        assert self._at is not None
        if newest <= self._at.number and self._was_restored():
            raise other_history(self._at, None, self._store.ticks(), self._followed.name)
        if not self._resumed:
            if self._at.number in self._store.ticks():
                before = self._store.manifest(self._at.number)
                if self._at.differs(before.id):
                    raise other_history(self._at, before.id, self._store.ticks(), self._followed.name)
                self._before = before
            self._mark = self._followed.resume(self._at.number)
            self._resumed = True
        while self._at.number < newest:
            tick = kept_after(self._store, self._at.number, newest)[0]
            now = self._store.manifest(tick)
            if self._at.differs(now.previous):
                raise other_history(self._at, now.previous, self._store.ticks(), self._followed.name)
            mark = self._followed.mark(now)
            if mark is None:
                self._lost = self._mark is not None
                self._at = self._passed(now)
                continue
            if self._mark is None:
                change = self._followed.begin(now)
            elif self._lost or mark != self._mark:
                raise self._rebuilt(tick, newest)
            else:
                change = self._followed.step(self._before, now)
            self._move_to(now, mark)
            if len(change):
                self.snapshot = False
                return self._item(change, tick)
        return None

    def _was_restored(self) -> bool:
        """Whether an older copy of the workspace was restored while this process follows it: the newest tick is older than
        the last one returned, or is another tick with the same number. If the newest tick is newer, the ID of its previous
        tick reveals a restore."""
        latest = self._store.latest()
        if self._at is None or latest is None or latest.tick > self._at.number:
            return False
        return latest.tick < self._at.number or self._at.differs(latest.id)

    def _passed(self, now: Manifest) -> Token:
        """Return the position to continue from after a tick that the relation is no part of: the newest tick, if it is no
        part of that either."""
        latest = self._store.latest()
        if latest is None or self._followed.mark(latest) is not None:
            return now.token
        self._followed.check(latest)
        return latest.token

    def _move_to(self, manifest: Manifest, mark: Mark | None) -> None:
        self._mark, self._before, self._lost = mark, manifest, False
        self._at = self._given = manifest.token
        self.tick = manifest.tick

    def _rebuilt(self, tick: int, newest: int) -> TickNotKeptError:
        return TickNotKeptError(
            f"{self._followed.name} was rebuilt at tick {tick}: changes from before the rebuild cannot be followed",
            hint=f"read the contents at tick {tick} or later and follow the changes from there",
            tick=self.tick,
            first_available=tick,
            last_available=newest,
            rebuilt_at=tick,
        )


class FollowedView:
    """A view as a followed relation: its changes are stored in the ticks. Needs no Spark."""

    def __init__(self, store: StateStore, view: str, canonical_name: Callable[[str], str]) -> None:
        self.view = view
        self.name = f"view {view!r}"
        self.schema = pa.schema([])
        self._store = store
        self._canonical_name = canonical_name

    def mark(self, manifest: Manifest) -> Mark | None:
        """Return the view's history at a tick; None if the view is not live in it."""
        state = manifest.views.get(self.view)
        return state.history if state is not None and state.status == "live" else None

    def check(self, manifest: Manifest) -> None:
        """Raise an error if the view is not declared, or is stopped; a declared view will become part of a tick."""
        self._canonical_name(self.view)
        state = manifest.views.get(self.view)
        if state is not None and state.status == "stopped":
            view_state(manifest, self.view)

    def resume(self, since: int) -> Mark | None:
        """Return the view's history at `since`; None if the view was not live yet. See `Followed`."""
        if not since:
            return None
        if since in self._store.ticks():
            state = self._store.manifest(since).views.get(self.view)
            if state is None or state.status == "live":
                return None if state is None else state.history
            if state.last_tick is None:
                return None
        else:
            state = self._store.manifest(since + 1).views.get(self.view)
            if state is not None and state.status == "live" and state.built <= since:
                return state.history
        raise not_part(self.name, since)

    def begin(self, manifest: Manifest) -> Delta:
        """Return all rows of the view."""
        state = view_state(manifest, self.view)
        self.schema = state.arrow_schema
        return contents(self._store.runs(manifest, state.contents), self.schema)

    def step(self, before: Manifest | None, now: Manifest) -> Delta:
        """Return the change of the view that the tick stores."""
        del before
        state = view_state(now, self.view)
        self.schema = state.arrow_schema
        if state.change is None:
            return Delta.empty(self.schema)
        return change_run(self._store, now, state.change)


class Changes(Following[pa.Table]):
    """The iterator of `view.changes(follow=True)`: a table per tick that changed the view, with `_weight` and `_tick`.

    Without `since`, the first table has all rows, even if there are none. TickNotKeptError if the next tick is no longer
    kept, the view was rebuilt, or an older copy of the workspace was restored; the error says where to resume. With
    `resync`, a table of all rows is returned instead of the error, with `snapshot` true: everything returned before is
    void.
    """

    def __init__(
        self, followed: FollowedView, ticks: CommittedTicks, start: FollowStart, *, resync: bool
    ) -> None:
        super().__init__(followed, ticks, start)
        self.resync = resync
        self._view = followed

    def _item(self, change: Delta, tick: int) -> pa.Table:
        return pa.Table.from_batches([as_changes(change, self._view.schema, tick)])


def not_part(name: str, tick: int) -> TickNotKeptError:
    """Return the error for resuming at a tick that the relation is not known to have been part of."""
    return TickNotKeptError(
        f"changes cannot be followed from tick {tick}: it is not known that {name} was part of that tick",
        hint="omit `since` to start with the current rows",
        reason="not-part-of-tick",
        tick=tick,
        first_available=None,
        last_available=None,
    )
