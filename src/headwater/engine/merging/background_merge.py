"""Merges of large runs by a background thread: a later tick replaces the parts by the merged run."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headwater.core.clock import Clock
from headwater.core.errors import HeadwaterError
from headwater.core.faults import Faults
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.merging.run_compaction import check_parts, merged_run, unexpired
from headwater.state.manifest import Manifest
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer


@dataclass
class _Task:
    """Adjacent runs of an arrangement that are to be merged."""

    name: str
    slot: ArrangementSpec
    parts: tuple[RunRef, ...]
    bottom: bool
    tick: int
    level: int | None
    writer: Writer | None = None
    merged: RunRef | None = None


FAULT = "merge of "
"""Prefix of the names of merge faults; the name of the arrangement follows."""
FIRST_REST_MS, LAST_REST_MS = 1_000.0, 60_000.0
"""Backoff of an arrangement after a failed merge: initial and maximum."""


def clear_faults(faults: Faults) -> None:
    """Clear the merge faults of an earlier engine: a new engine decides again which merges are due."""
    for fault in faults.current():
        if fault.kind == "background" and fault.name.startswith(FAULT):
            faults.clear("background", fault.name)


@dataclass
class _Resting:
    """The backoff of an arrangement whose last merge failed."""

    rest_ms: float
    until_ms: float


class Merging:
    """Merges in the background, at most one per arrangement at a time.

    A failed merge is reported. It leaves only garbage, and so does a merge whose parts no longer exist when it ends.
    """

    def __init__(self, store: StateStore, epoch: int, faults: Faults, clock: Clock) -> None:
        self._store = store
        self._epoch = epoch
        self._faults = faults
        self._clock = clock
        self._resting: dict[str, _Resting] = {}
        self._guard = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(
        self,
        name: str,
        slot: ArrangementSpec,
        parts: Sequence[RunRef],
        *,
        bottom: bool,
        tick: int,
        level: int | None = None,
    ) -> None:
        """Request a merge of these runs, unless the arrangement has a merge in progress or is in backoff; see `Compaction`."""
        with self._guard:
            resting = self._resting.get(name)
            if name in self._tasks or (resting and self._clock.steady_ms() < resting.until_ms):
                return
            task = self._tasks[name] = _Task(name, slot, tuple(parts), bottom, tick, level)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headwater-merge", daemon=True)
            self._thread.start()
        self._queue.put(task)

    def adopted(self, name: str, refs: tuple[RunRef, ...]) -> tuple[RunRef, ...]:
        """Return the runs of an arrangement, with the parts of a finished merge replaced by its result."""
        task = self._task(name)
        if task is None:
            return refs
        place = _place(refs, task.parts)
        if place is None:  # the arrangement was rebuilt since
            self._forget(task)
            self._succeeded(task)
            return refs
        if task.merged is None:
            return refs
        return (*refs[:place], task.merged, *refs[place + len(task.parts) :])

    def busy(self, name: str, refs: Sequence[RunRef]) -> int:
        """Return how many of the oldest runs must not be merged, because some of them are being merged in the background."""
        task = self._task(name)
        place = _place(refs, task.parts) if task is not None else None
        return 0 if task is None or place is None else place + len(task.parts)

    def committed(self, manifest: Manifest) -> None:
        """Forget the finished merges whose result the committed tick references."""
        with self._guard:
            done = [
                t for t in self._tasks.values() if t.merged is not None and t.merged.file in manifest.files
            ]
        for task in done:
            self._forget(task)

    def close(self) -> None:
        """End the thread after the current merge; results that no tick has adopted are garbage."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        for task in list(self._tasks.values()):
            self._forget(task)

    def _task(self, name: str) -> _Task | None:
        with self._guard:
            return self._tasks.get(name)

    def _forget(self, task: _Task) -> None:
        with self._guard:
            self._tasks.pop(task.name, None)
        if task.writer is not None:
            self._store.abandon(task.writer)

    def _work(self) -> None:
        while (task := self._queue.get()) is not None:
            if self._task(task.name) is not task:
                continue
            try:
                self._merge(task)
            except Exception as error:  # noqa: BLE001 - a full disk, a damaged run: reported
                self._failed(task, error)
            else:
                self._succeeded(task)

    def _failed(self, task: _Task, error: Exception) -> None:
        with self._guard:
            before = self._resting.get(task.name)
            rest_ms = FIRST_REST_MS if before is None else min(before.rest_ms * 2, LAST_REST_MS)
            self._resting[task.name] = _Resting(rest_ms, self._clock.steady_ms() + rest_ms)
            is_wanted = (
                self._tasks.get(task.name) is task
            )  # otherwise its parts no longer exist: the arrangement was rebuilt or dropped
        if is_wanted:
            hint = (
                None
                if isinstance(error, HeadwaterError) and error.hint
                else "the merge is retried automatically"
            )
            self._faults.report("background", f"{FAULT}{task.name}", error, hint)
        self._forget(task)

    def _succeeded(self, task: _Task) -> None:
        with self._guard:
            had_failed = self._resting.pop(task.name, None) is not None
        if had_failed:
            self._faults.clear("background", f"{FAULT}{task.name}")

    def _merge(self, task: _Task) -> None:
        task.writer = self._store.begin(task.tick, self._epoch)
        check_parts(self._store, task.parts, task.writer)
        runs = [self._store.open_run(ref) for ref in task.parts]
        merged = merged_run(task.slot, runs, bottom=task.bottom)
        if task.bottom:
            merged = unexpired(task.slot, merged, task.level)
        ref = task.writer.add(merged, ticks=(task.parts[0].ticks[0], task.parts[-1].ticks[1]))
        task.writer.flush()
        with suppress(HeadwaterError):  # a tick that needs the run reports the error
            self._store.touch(ref)
        task.merged = ref


def _place(refs: Sequence[RunRef], parts: Sequence[RunRef]) -> int | None:
    """Return the index in `refs` at which the adjacent runs `parts` begin, or None."""
    for place in range(len(refs) - len(parts) + 1):
        if tuple(refs[place : place + len(parts)]) == tuple(parts):
            return place
    return None
