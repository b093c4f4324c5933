"""Merges of large runs, by a thread beside the ticks: a tick that finds one done names it in the place of its parts."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from headwater.errors import HeadwaterError
from headwater.runtime.compaction import check_parts, merged_run, unexpired
from headwater.runtime.pipeline import Slot
from headwater.state.manifest import Manifest
from headwater.state.refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer


@dataclass
class _Task:
    """Neighbouring runs of an arrangement that are to become one."""

    name: str
    slot: Slot
    parts: tuple[RunRef, ...]
    bottom: bool
    tick: int
    level: int | None
    writer: Writer | None = None
    merged: RunRef | None = None


class Merging:
    """One merge per arrangement at a time. A merge that fails, or whose parts are gone by then, leaves garbage only."""

    def __init__(self, store: StateStore, epoch: int) -> None:
        self._store = store
        self._epoch = epoch
        self._guard = threading.Lock()
        self._tasks: dict[str, _Task] = {}
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def ask(
        self,
        name: str,
        slot: Slot,
        parts: Sequence[RunRef],
        *,
        bottom: bool,
        tick: int,
        level: int | None = None,
    ) -> None:
        """Have these runs merged, unless another merge of the arrangement is under way; see `Compaction`."""
        with self._guard:
            if name in self._tasks:
                return
            task = self._tasks[name] = _Task(name, slot, tuple(parts), bottom, tick, level)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="headwater-merge", daemon=True)
            self._thread.start()
        self._queue.put(task)

    def adopted(self, name: str, refs: tuple[RunRef, ...]) -> tuple[RunRef, ...]:
        """The runs of an arrangement, with a merge that is done in the place of its parts."""
        task = self._task(name)
        if task is None:
            return refs
        place = _place(refs, task.parts)
        if place is None:  # it was built anew since
            self._forget(task)
            return refs
        if task.merged is None:
            return refs
        return (*refs[:place], task.merged, *refs[place + len(task.parts) :])

    def busy(self, name: str, refs: Sequence[RunRef]) -> int:
        """How many of the oldest runs are to be left alone, since some of them are being merged."""
        task = self._task(name)
        place = _place(refs, task.parts) if task is not None else None
        return 0 if task is None or place is None else place + len(task.parts)

    def committed(self, manifest: Manifest) -> None:
        """A tick was made: what it has adopted is done with."""
        with self._guard:
            done = [
                t for t in self._tasks.values() if t.merged is not None and t.merged.file in manifest.files
            ]
        for task in done:
            self._forget(task)

    def close(self) -> None:
        """End the thread after the merge at hand; what was not adopted is garbage."""
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
            except Exception:  # noqa: BLE001 - a full disk, a damaged run: a tick meets it too, where it can be told
                self._forget(task)

    def _merge(self, task: _Task) -> None:
        task.writer = self._store.begin(task.tick, self._epoch)
        check_parts(self._store, task.parts, task.writer)
        runs = [self._store.open_run(ref) for ref in task.parts]
        merged = merged_run(task.slot, runs, bottom=task.bottom)
        if task.bottom:
            merged = unexpired(task.slot, merged, task.level)
        ref = task.writer.add(merged, ticks=(task.parts[0].ticks[0], task.parts[-1].ticks[1]))
        task.writer.flush()
        with suppress(HeadwaterError):  # a tick that needs it tells what is wrong
            self._store.touch(ref)
        task.merged = ref


def _place(refs: Sequence[RunRef], parts: Sequence[RunRef]) -> int | None:
    """Where neighbouring runs lie among others."""
    for place in range(len(refs) - len(parts) + 1):
        if tuple(refs[place : place + len(parts)]) == tuple(parts):
            return place
    return None
