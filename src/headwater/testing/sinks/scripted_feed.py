"""A view that a test writes tick by tick: the feed that a sink reads instead of a workspace's state."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headwater.core.clock import ManualClock
from headwater.core.positions import Token, new_id
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate
from headwater.sinks.base.view_feed import PendingTicks, Point, TickChanges
from headwater.state.missing_ticks import other_history, tick_not_kept


class ScriptedFeed:
    """The ticks of one view: `tick(rows)` adds the next, with these contents. All are kept until `forget`."""

    def __init__(self, schema: pa.Schema, clock: ManualClock) -> None:
        self._schema = schema
        self._clock = clock
        self._contents: dict[int, Delta] = {}
        self._changes: dict[int, Delta] = {}
        self._histories: dict[int, str] = {}
        self._ids: dict[int, str] = {0: ""}
        self._committed: dict[int, int] = {}
        self._history = 1
        self._arrived = threading.Condition()
        self._seen = 0
        self.now = 0
        """The number of the newest tick."""

    def tick(self, rows: Sequence[dict[str, Any]]) -> int:
        """Add a tick at which the view has these rows; returns its number."""
        table = pa.Table.from_pylist(list(rows), schema=self._schema)
        made = consolidate(Delta.of(concat_rows(table.combine_chunks().to_batches(), self._schema)))
        return self.commit(made)

    def commit(self, contents: Delta) -> int:
        """Add a tick at which the view has the rows of this Z-set; returns its number."""
        before = self._contents.get(self.now, Delta.empty(self._schema))
        with self._arrived:
            at = self.now + 1
            self._contents[at] = contents
            self._changes[at] = consolidate(concat([contents, before.negated()], self._schema))
            self._histories[at] = str(self._history)
            self._ids[at] = new_id()
            self._committed[at] = self._clock.now_us()
            self.now = at
            self._arrived.notify_all()
        return at

    def rebuild(self, rows: Sequence[dict[str, Any]]) -> int:
        """Add a tick of a new history, as after a rebuild: its contents do not follow from earlier ticks and changes."""
        self._history += 1
        at = self.tick(rows)
        self._changes[at] = self._contents[at]
        return at

    def put_back(self, tick: int) -> None:
        """Restore an older copy, from before the ticks that follow `tick`; the test then writes these ticks differently."""
        for later in range(tick + 1, self.now + 1):
            for kept in (self._contents, self._changes, self._histories, self._ids, self._committed):
                kept.pop(later, None)
        self.now = tick

    def forget(self, before: int) -> None:
        """Drop the ticks before this one."""
        for tick in range(1, before):
            for kept in (self._contents, self._changes, self._histories):
                kept.pop(tick, None)

    def rows(self, tick: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of the view at a tick, by default the newest."""
        there = self._contents[tick or self.now]
        return [
            row
            for row, times in zip(there.rows.to_pylist(), there.weights, strict=True)
            for _ in range(times)
        ]

    # --- the feed that a sink reads --------------------------------------------------------------------------------

    def latest(self) -> Point | None:
        """Return the newest tick; see `Feed`."""
        self._seen = self.now
        return self.at(self.now) if self.now else None

    def at(self, tick: int) -> Point | None:
        """Return the point of a tick, or None if the tick is not kept; see `Feed`."""
        if tick not in self._contents:
            return None
        return Point(tick, self._histories[tick], self._schema, self._ids[tick])

    def contents(self, tick: int) -> Delta:
        """Return the contents at a tick; see `Feed`."""
        if tick not in self._contents:
            raise tick_not_kept(tick, list(self._contents))
        return self._contents[tick]

    def changes(self, since: Token, history: str) -> TickChanges:
        """Return the changes since a tick; see `Feed`."""
        found = []
        if since.differs(before := self._ids.get(since.number, "")):
            raise other_history(since, before, list(self._contents))
        for tick in range(since.number + 1, self.now + 1):
            if self._histories.get(tick) != history:
                raise tick_not_kept(tick, list(self._contents))
            if len(self._changes[tick]):
                found.append((tick, self._changes[tick]))
        reached = max(since.number, self.now)
        ids = tuple(self._ids[tick] for tick, _ in found)
        return TickChanges(found, reached, self._ids[reached], ids)

    def has(self, tick: Token) -> bool:
        """Whether a tick is one of this feed; see `Feed`."""
        return tick.number in self._ids and not tick.differs(self._ids[tick.number])

    def pending(self, since: int, history: str) -> PendingTicks:
        """Return the ticks and rows that a sink has still to read; see `Feed`."""
        ticks = range(since + 1, self.now + 1)
        if any(self._histories.get(tick) != history for tick in ticks):
            return PendingTicks(len(ticks), None, None)
        rows = sum(len(self._changes[tick]) for tick in ticks)
        return PendingTicks(len(ticks), rows, self._committed[ticks[0]] if ticks else None)

    def wait(self, timeout_ms: float) -> None:
        """Wait for a tick after the last `latest`; see `Feed`."""
        with self._arrived:
            self._arrived.wait_for(lambda: self.now != self._seen, timeout_ms / 1_000)
