"""Waits for ticks and records without a thread per client: two threads watch, and any number of coroutines wait.

The threads wait for notifications of the log and the state, whichever process commits. A coroutine that wakes up checks
its condition and waits again; spurious wake-ups are harmless, and the delay of a missed one is at most `POLL_S`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from headwater.core.errors import ClosedError, HeadwaterError
from headwater.core.faults import Component

if TYPE_CHECKING:
    from headwater.log.protocol import Log
    from headwater.views.view_manager import Views

POLL_S = 2.0
"""Longest wait of a coroutine before it checks its condition again, in seconds."""
WAIT_MS = 500.0
REST_S = 0.005
"""Pause between two notifications of the same kind, in seconds: under load one notification covers many commits."""


class Bell:
    """Wakes all waiting coroutines, from any thread. `rung` counts the notifications: a coroutine reads it before it
    checks its condition, and passes it to `wait`, so that no notification is missed."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.rung = 0
        self._loop = loop
        self._next: asyncio.Future[None] = loop.create_future()

    async def wait(self, timeout_s: float, rung: int | None = None) -> None:
        """Wait for the next notification or the timeout; returns at once if there was a notification since `rung` was read."""
        if rung is None or rung == self.rung:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._next), timeout_s)

    def ring(self) -> None:
        """Wake the waiting coroutines; called from the event loop's thread."""
        self.rung += 1
        self._next.set_result(None)
        self._next = self._loop.create_future()

    def ring_from_afar(self) -> None:
        """Wake the waiting coroutines from another thread; does nothing if the event loop is closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.ring)


class Watch:
    """Notifies of new ticks, and of new records in the topics being read. Created in the event loop in which coroutines
    wait."""

    def __init__(self, log: Log, views: Views) -> None:
        self._log = log
        self._views = views
        self._loop = asyncio.get_running_loop()
        self._closed = threading.Event()
        self._threads: dict[str, threading.Thread] = {}
        self.ticks = Bell(self._loop)
        self._topics: dict[str, Bell] = {}
        self._readers: Counter[str] = Counter()
        self._faults = {
            what: Component(log.faults, "background", f"waiting for {what}") for what in ("ticks", "records")
        }

    @contextmanager
    def topic(self, name: str) -> Iterator[Bell]:
        """Yield a bell that rings when a topic has new records; valid within the block."""
        bell = self._topics.setdefault(name, Bell(self._loop))
        self._readers[name] += 1
        self._begin("records", self._watch_records)
        try:
            yield bell
        finally:
            self._readers[name] -= 1
            if not self._readers[name]:
                del self._readers[name]
                self._topics.pop(name, None)

    def ticking(self) -> Bell:
        """Return a bell that rings when a tick is committed."""
        self._begin("ticks", self._watch_ticks)
        return self.ticks

    def close(self) -> None:
        """Wake all coroutines and stop watching."""
        self._closed.set()
        self.ticks.ring()
        for bell in list(self._topics.values()):
            bell.ring()

    def _begin(self, what: str, act: Callable[[], None]) -> None:
        if what not in self._threads:
            thread = threading.Thread(target=act, name=f"headwater-web-{what}", daemon=True)
            self._threads[what] = thread
            thread.start()

    def _watch_ticks(self) -> None:
        seen = -1
        while not self._closed.is_set():
            try:
                ticks = self._views.store.ticks()
                newest = ticks[-1] if ticks else 0
                if newest != seen:
                    seen = newest
                    self.ticks.ring_from_afar()
                self._views.arrivals.wait(lambda seen=seen: self._newest() != seen, WAIT_MS)  # type: ignore[misc]
                self._faults["ticks"].works()
            except Exception as error:  # noqa: BLE001 - waiting coroutines check again at `POLL_S`; the health shows the fault
                self._failed("ticks", error)
            self._closed.wait(REST_S)

    def _newest(self) -> int:
        ticks = self._views.store.ticks()
        return ticks[-1] if ticks else 0

    def _watch_records(self) -> None:
        ends: dict[str, dict[int, int]] = {}
        while not self._closed.is_set():
            try:
                sequence = self._log.sequence()
                for name in list(self._topics):
                    bell = self._topics.get(name)
                    if bell is None:
                        continue
                    now = self._ends(name)
                    if ends.get(name) != now:
                        ends[name] = now
                        bell.ring_from_afar()
                self._log.wait_commit(sequence, WAIT_MS)
                self._faults["records"].works()
            except Exception as error:  # noqa: BLE001 - waiting coroutines check again at `POLL_S`; the health shows the fault
                self._failed("records", error)
            self._closed.wait(REST_S)

    def _failed(self, what: str, error: Exception) -> None:
        """Report that a thread failed to watch, and pause. A workspace that is being closed is no failure."""
        if not self._closed.is_set() and not isinstance(error, ClosedError):
            self._faults[what].failed(error)
        self._closed.wait(WAIT_MS / 1_000)

    def _ends(self, name: str) -> dict[int, int]:
        """Return the ends of a topic; {} if the topic is gone, which its readers will find out."""
        try:
            return dict(self._log.ends([name])[name])
        except HeadwaterError:
            return {}
