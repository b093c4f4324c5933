"""Counts over the last minutes, from totals that only increase."""

from __future__ import annotations

from collections import deque

from headwater.core.clock import Clock, Microseconds

RECENT_US: Microseconds = 300_000_000


class Recent:
    """The increase of totals, by name, within `RECENT_US`. The owner of the totals calls `of` about once a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, deque[tuple[Microseconds, int]]] = {}

    def of(self, name: str, total: int, begin: int | None = None) -> int:
        """Return the part of a total from within that time. `begin` is the total before the first call; by default it is the
        first `total`: counts of earlier processes are not recent."""
        now = self._clock.now_us()
        seen = self._seen.setdefault(name, deque([(now, total if begin is None else begin)]))
        # the total was reset
        if total < seen[-1][1]:
            seen.clear()
            seen.append((now, 0))
        if total != seen[-1][1]:
            seen.append((now, total))
        while len(seen) > 1 and seen[1][0] <= now - RECENT_US:
            seen.popleft()
        return total - seen[0][1]
