"""Summaries of the kept ticks: time, rows read, duration of each phase, and the number of changes of each view.

A tick never changes, so its manifest is read only once: manifests are large, and their summaries are small.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError, TickNotKeptError
from headwater.engine.metrics.tick_totals import TickTotals, totals_of
from headwater.state.store import StateStore

KEPT = 2_500
"""Number of summaries kept in memory: more ticks than a workspace keeps by default."""


@dataclass(frozen=True)
class Tick:
    """The summary of a tick. `changed` is the number of inserted and retracted rows by view, without unchanged views."""

    tick: int
    committed_at: Microseconds
    totals: TickTotals
    changed: Mapping[str, int]

    @property
    def rows(self) -> int:
        """Number of records that the tick read from the log."""
        return self.totals.last.rows if self.totals.last is not None else 0

    def cost(self, after: Tick | None) -> dict[str, float]:
        """Return the seconds of each phase. The duration of the commit itself is recorded only in the next tick, `after`."""
        last = self.totals.last
        own = dict(last.phases) if last is not None else {}
        if after is None or after.totals.last is None or after.totals.ticks != self.totals.ticks + 1:
            return own
        whole = {}
        for phase, so_far in after.totals.phases.items():
            before = self.totals.phases.get(phase, 0.0) - own.get(phase, 0.0)
            whole[phase] = max(0.0, round(so_far - after.totals.last.phases.get(phase, 0.0) - before, 6))
        return whole


class TickHistory:
    """The ticks of a workspace, each read once. Thread-safe."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._known: OrderedDict[int, Tick] = OrderedDict()
        self._guard = threading.Lock()

    def get(self, tick: int) -> Tick | None:
        """Return a tick; None if it is not kept, or is damaged."""
        with self._guard:
            known = self._known.get(tick)
        if known is not None:
            return known
        try:
            manifest = self._store.manifest(tick)
        except (TickNotKeptError, CorruptionError):
            return None
        changed = {name: view.change.rows for name, view in manifest.views.items() if view.change is not None}
        made = Tick(tick, manifest.committed_at, totals_of(manifest), changed)
        with self._guard:
            self._known[tick] = made
            while len(self._known) > KEPT:
                self._known.popitem(last=False)
        return made

    def last(self, count: int) -> list[Tick]:
        """Return the newest kept ticks, the oldest first."""
        return [found for tick in self._store.ticks()[-count:] if (found := self.get(tick)) is not None]

    def documents(self, count: int) -> list[dict[str, Any]]:
        """Return the newest kept ticks as documents, the oldest first."""
        some = self.last(count)
        found = []
        for one, after in zip_longest(some, some[1:]):
            phases = one.cost(after)
            found.append(
                {
                    "tick": one.tick,
                    "at": one.committed_at // 1_000,
                    "rows": one.rows,
                    "seconds": round(sum(phases.values()), 6),
                    "phases": phases,
                    "changed": dict(one.changed),
                }
            )
        return found
