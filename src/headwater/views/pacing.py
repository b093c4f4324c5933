"""The pause of an engine between ticks: a choice between latency and throughput. Pure: no threads, no clocks.

A tick takes everything that is new, so ticks grow with the load by themselves, and records appended during a long tick are
in the next one. What is left to choose is the pause after a tick. A tick has a fixed cost: a short pause collects more rows
for it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Protocol

from headwater.core.arguments import span_us
from headwater.core.errors import UsageError

AUTO = "auto"
REST_MS_MAX = 50.0
"""Longest pause of `auto`: the latency that it may add to a record."""
_FOLLOW = 0.2
"""Rate at which the estimate of the fixed cost follows small ticks that have become more expensive."""


class Pace(Protocol):
    """A pacing policy: it is called after every tick, and returns the pause before the next."""

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """Return the pause after a tick that took `cost_ms` for `rows` records. `behind` is true if records, or a view's
        backfill, were left for the next tick."""
        ...


class Every:
    """Starts at most one tick in each interval. A tick that takes longer, or is behind, is followed by the next at once."""

    def __init__(self, every_ms: float) -> None:
        self._every_ms = every_ms

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """Return the rest of the interval."""
        return 0.0 if behind else max(0.0, self._every_ms - cost_ms)


class Auto:
    """Pauses after a tick for as long as the fixed part of a tick takes, so that a trickle of records costs at most half a
    core. The larger the part of the tick that its rows took, the shorter the pause: under load there is none, and ticks grow
    instead. A pause is never longer than `REST_MS_MAX`, and the first record after an idle period is processed without one."""

    def __init__(self) -> None:
        self._fixed_ms: float | None = None
        self._few_rows = 0

    def rest_ms(self, cost_ms: float, rows: int, *, behind: bool) -> float:
        """Return about the cost of the tick if it had few rows, and next to nothing if it had many."""
        fixed_ms = self._learnt(cost_ms, rows)
        if behind or cost_ms <= 0.0:
            return 0.0
        return min(REST_MS_MAX, fixed_ms * min(1.0, fixed_ms / cost_ms))

    def _learnt(self, cost_ms: float, rows: int) -> float:
        """Return the estimated fixed part of a tick: the time of the cheapest tick, or of recent ticks with about as few
        rows."""
        if self._fixed_ms is None or cost_ms <= self._fixed_ms:
            self._fixed_ms, self._few_rows = cost_ms, rows
        elif rows <= 2 * self._few_rows:
            self._fixed_ms += (cost_ms - self._fixed_ms) * _FOLLOW
        return self._fixed_ms


def pace_of(every: Any) -> Pace:
    """Return the pace that `every` of `ws.start` asks for: 'auto' (or None), or a span of time; UsageError otherwise."""
    if every is None or every == AUTO:
        return Auto()
    hint = "every='auto', or a span from one tick to the next such as every='200 ms'"
    if not isinstance(every, (str, timedelta)):
        raise UsageError(
            f"every is 'auto' or a span of time, not {every!r}", hint=hint, option="every", value=every
        )
    try:
        every_us = span_us(every, "every")
    except UsageError:
        raise UsageError(
            f"every is 'auto' or a span of time, not {every!r}", hint=hint, option="every", value=every
        ) from None
    if every_us < 0:
        raise UsageError(
            f"every cannot be negative, and is {every!r}", hint=hint, option="every", value=every
        )
    return Every(every_us / 1_000)
