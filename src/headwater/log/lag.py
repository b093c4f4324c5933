"""Computes the lag of every cursor, and gathers the input of its `forecast`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from headwater.core.clock import Clock, Microseconds, from_us
from headwater.log.forecast import (
    CursorForecast,
    Rates,
    TopicGrowth,
    append_rates,
    cursor_forecast,
    cursor_rate,
    disk_full_at,
    topic_growth,
)
from headwater.log.protocol import CursorInfo, Log, PartitionInfo

WINDOW_US: Microseconds = 3_600_000_000
"""Window of the present rates: the last hour, or the time since the first record if that is shorter."""
WINDOW_MIN_US: Microseconds = 300_000_000
"""Minimum window: the rows of a burst are divided by at least five minutes, because the first load of a topic is not a rate."""


@dataclass(frozen=True)
class CursorLag:
    """Lag of a cursor, its rate, and the time at which it falls off the tail (None: never)."""

    topic: str
    cursor: str
    rows: int
    seconds: float
    rows_per_second: float
    appended_per_second: float
    hold: bool
    lost: int
    missed: int
    """Offsets that retention removed before this cursor reached them."""
    falls_off_at: datetime | None
    falls_off_by: str | None
    """'retention' or 'retention_bytes'."""


@dataclass(frozen=True)
class LagReport:
    """Lag of every cursor of a workspace, and when its disk is full at present rates (None: never)."""

    cursors: tuple[CursorLag, ...]
    disk_free_bytes: int | None
    disk_full_at: datetime | None

    def __iter__(self) -> Iterator[CursorLag]:
        return iter(self.cursors)

    def __len__(self) -> int:
        return len(self.cursors)


def lag_report(log: Log, clock: Clock, disk_free_bytes: int | None = None) -> LagReport:
    """Compute the lag of every cursor of every topic."""
    now = clock.now_us()
    lags: list[CursorLag] = []
    growth: list[TopicGrowth] = []
    for name, definition in sorted(log.topics().items()):
        partitions = log.partitions(name)
        rates = _rates(log, name, partitions, now)
        cursors = sorted(log.cursors(name), key=lambda c: c.name)
        held = any(c.hold for c in cursors)
        growth.append(topic_growth(definition, partitions, rates, now, held=held))
        for cursor in cursors:
            unread = _unread_since(log, cursor, partitions)
            forecast = cursor_forecast(cursor, definition, partitions, unread, rates, now)
            lags.append(_cursor_lag(cursor, partitions, unread, rates, forecast, now))
    full = None if disk_free_bytes is None else disk_full_at(growth, disk_free_bytes, now)
    return LagReport(tuple(lags), disk_free_bytes, None if full is None else from_us(full))


def _rates(log: Log, topic: str, partitions: Mapping[int, PartitionInfo], now: Microseconds) -> Rates:
    kept_since = [i.oldest_appended_at for i in partitions.values() if i.oldest_appended_at is not None]
    since = max(now - WINDOW_US, min(kept_since, default=now))
    recent = sum(info.end - log.offset_at(topic, p, since, "appended") for p, info in partitions.items())
    return append_rates(partitions.values(), max(0, recent), max(now - since, WINDOW_MIN_US))


def _unread_since(
    log: Log, cursor: CursorInfo, partitions: Mapping[int, PartitionInfo]
) -> dict[int, Microseconds | None]:
    """Return the append time of the first unread record of each partition."""
    return {
        p: log.appended_at(cursor.topic, p, max(cursor.positions.get(p, 0), info.first))
        for p, info in partitions.items()
        if cursor.positions.get(p, 0) < info.end
    }


def _cursor_lag(
    cursor: CursorInfo,
    partitions: Mapping[int, PartitionInfo],
    unread: Mapping[int, Microseconds | None],
    rates: Rates,
    forecast: CursorForecast,
    now: Microseconds,
) -> CursorLag:
    oldest = min((moment for moment in unread.values() if moment is not None), default=now)
    return CursorLag(
        topic=cursor.topic,
        cursor=cursor.name,
        rows=sum(
            max(0, i.end - max(cursor.positions.get(p, 0), i.first))
            for p, i in partitions.items()
            if unread.get(p) is not None
        ),
        seconds=max(0, now - oldest) / 1e6,
        rows_per_second=cursor_rate(cursor),
        appended_per_second=rates.rows,
        hold=cursor.hold,
        lost=cursor.lost,
        missed=forecast.missed,
        falls_off_at=None if forecast.at is None else from_us(forecast.at),
        falls_off_by=forecast.reason,
    )
