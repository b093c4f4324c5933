"""Counts what happened within the last minutes, from totals that only rise."""

from __future__ import annotations

from collections import deque

from headwater.core.clock import Clock, Microseconds

RECENT_US: Microseconds = 300_000_000


class Recent:
    """The growth of totals, by name, within `RECENT_US`: asked about once a second by whoever has the totals."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[Microseconds, int]]] = {}

    def of(self, name: str, total: int, begin: int | None = None) -> int:
        """How much of a total came within that time. `begin` is the total before it was first asked about; if left out, the
        first total that is given: what it has from earlier processes is not recent."""
        now = self._clock.now_us()
        seen = self._seen.setdefault(name, deque([(now, total if begin is None else begin)]))
        if total < seen[-1][1]:  # it was begun anew
            seen.clear()
            seen.append((now, 0))
        if total != seen[-1][1]:
            seen.append((now, total))
        while len(seen) > 1 and seen[1][0] <= now - RECENT_US:
            seen.popleft()
        return total - seen[0][1]
