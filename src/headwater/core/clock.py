"""Time in Headwater: microseconds since 1970 in UTC, an injected clock, and spans written as text.

A log does not use readings of the wall clock directly: see `headwater.core.trusted_clock`.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from headwater.core.errors import UsageError

Microseconds = int
"""A point in time (since 1970, UTC) or a span, always in microseconds."""
FOREVER_US: Microseconds = 2**63 - 1
"""Later than any point in time."""

_UNITS: dict[str, int] = {
    "microsecond": 1,
    "us": 1,
    "millisecond": 1_000,
    "ms": 1_000,
    "second": 1_000_000,
    "sec": 1_000_000,
    "s": 1_000_000,
    "minute": 60_000_000,
    "min": 60_000_000,
    "hour": 3_600_000_000,
    "h": 3_600_000_000,
    "day": 86_400_000_000,
    "d": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""On Linux the monotonic clock stops during a suspend; on macOS it does not."""
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?")


class Clock(Protocol):
    """Source of the current time; tests inject their own."""

    def now_us(self) -> Microseconds:
        """Return the present in microseconds since 1970 UTC. May jump; the log never lets append times decrease."""
        ...

    def steady_ms(self) -> float:
        """Return milliseconds that never decrease, for measuring waits."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_us(self) -> Microseconds:
        """Return the time of the wall clock."""
        return time.time_ns() // 1_000

    def steady_ms(self) -> float:
        """Return the monotonic clock, which the processes of one machine share."""
        return time.monotonic_ns() / 1e6

    def elapsed_ms(self) -> float:
        """Return the monotonic clock that continues while the machine is suspended, from its start."""
        return time.clock_gettime_ns(_ELAPSED) / 1e6


class ManualClock:
    """A clock that advances only by calls."""

    def __init__(self, now_us: Microseconds = 1_700_000_000_000_000) -> None:
        self._now_us = now_us

    def now_us(self) -> Microseconds:
        """Return the time that the clock was last set to."""
        return self._now_us

    def steady_ms(self) -> float:
        """Return the same time in milliseconds."""
        return self._now_us / 1e3

    def advance(self, span: timedelta | str) -> None:
        """Advance the clock by a span."""
        self._now_us += parse_span_us(span)


def to_us(moment: datetime | int) -> Microseconds:
    """Return a datetime (in UTC if it has no zone) as microseconds; an integer is in microseconds already."""
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def from_us(moment: Microseconds) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment)


def timestamp(moment: datetime) -> str:
    """Return a datetime as ISO text, converted to UTC if it has a zone."""
    if moment.tzinfo is None:
        return moment.isoformat()
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def parse_span_us(text: str | timedelta) -> Microseconds:
    """Return a span such as '10 minutes', '1 day 12 hours' or a timedelta in microseconds."""
    if isinstance(text, timedelta):
        return text // timedelta(microseconds=1)
    rest, total = text.strip().lower(), 0.0
    if not rest:
        raise _bad_span(text)
    while rest:
        part = _PART.match(rest)
        unit = part and (_UNITS.get(part[2]) or _UNITS.get(part[2].removesuffix("s")))
        if not part or not unit:
            raise _bad_span(text)
        total += float(part[1]) * unit
        rest = rest[part.end() :]
    return round(total)


def format_span(span_us: Microseconds) -> str:
    """Return the shortest exact text of a span: '7 days', '90 seconds'."""
    for unit in ("week", "day", "hour", "minute", "second", "millisecond", "microsecond"):
        count, rest = divmod(span_us, _UNITS[unit])
        if rest == 0 and (count or unit == "microsecond"):
            return f"{count} {unit}{'' if count == 1 else 's'}"
    raise AssertionError("microseconds divide everything")


def _bad_span(text: str) -> UsageError:
    return UsageError(
        f"{text!r} is not a duration",
        hint="write it as a number and a unit, such as '10 minutes' or '7 days'",
        value=text,
    )
