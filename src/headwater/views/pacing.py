"""How long an engine rests between ticks: the choice between delay and throughput. Pure: no threads, no clocks.

A tick takes all that is new, so ticks grow with the load by themselves, and what is appended during a long one is the next.
What is left to choose is the rest after a tick. A tick has a fixed cost: resting a little gathers more rows for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from headwater.core.arguments import span_us
from headwater.core.errors import UsageError

AUTO = "auto"
REST_MS_MAX = 50.0
"""The longest that `auto` rests: what it may add to the delay of a record."""
_FOLLOW = 0.2
"""How fast the estimate of the fixed cost follows small ticks that have become dearer."""


class Pace(Protocol):
    """Told of every tick, says how long to rest before the next."""

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """The rest after a tick that took `cost_ms` for `rows` records. `behind`: it had to leave records, or a view that is
        being filled, to the next one."""
        ...


class Every:
    """Ticks start no more often than once in a span. One that takes longer, or is behind, is followed at once."""

    def __init__(self, every_ms: float) -> None:
        self._every_ms = every_ms

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """What is left of the span."""
        return 0.0 if behind else max(0.0, self._every_ms - cost_ms)


class Auto:
    """Rests after a tick for as long as the fixed part of a tick takes, so that a trickle of records costs half a core at
    most. The more of the tick its rows took, the shorter the rest: under load there is none, and ticks grow instead.
    A rest is never longer than `REST_MS_MAX`, and the first record after a pause finds the engine rested.
    """

    def __init__(self) -> None:
        self._fixed_ms: float | None = None
        self._few_rows = 0

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """Of a tick with few rows about its own cost, of one with many next to nothing."""
        fixed_ms = self._learnt(cost_ms, rows)
        if behind or cost_ms <= 0.0:
            return 0.0
        return min(REST_MS_MAX, fixed_ms * min(1.0, fixed_ms / cost_ms))

    def _learnt(self, cost_ms: float, rows: int) -> float:
        """The fixed part of a tick: what the cheapest one took, or lately those with about as few rows."""
        if self._fixed_ms is None or cost_ms <= self._fixed_ms:
            self._fixed_ms, self._few_rows = cost_ms, rows
        elif rows <= 2 * self._few_rows:
            self._fixed_ms += (cost_ms - self._fixed_ms) * _FOLLOW
        return self._fixed_ms


def pace_of(every: Any) -> Pace:
    """The pace that `every` of `ws.start` asks for: 'auto' (or None), or a span of time; UsageError otherwise."""
    if every is None or every == AUTO:
        return Auto()
    hint = "every='auto', or a span from one tick to the next such as every='200 ms'"
    if not isinstance(every, (str, timedelta)):
        raise UsageError(f"every is 'auto' or a span of time, not {every!r}", hint=hint)
    try:
        every_us = span_us(every, "every")
    except UsageError:
        raise UsageError(f"every is 'auto' or a span of time, not {every!r}", hint=hint) from None
    if every_us < 0:
        raise UsageError(f"every is a span of time from 0 up, not {every!r}", hint=hint)
    return Every(every_us / 1_000)
