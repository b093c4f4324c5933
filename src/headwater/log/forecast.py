"""Forecasts when retention overtakes a cursor and when the disk is full, assuming present rates. Pure arithmetic.

Retention moves the tail of a partition towards its end. By time, the tail is where records are as old as the retention; by
size, where the records from there to the end take `retention_bytes`. A cursor falls off when the tail overtakes it. All rates
are extrapolated linearly. Retention removes whole segments, and by size only a segment whose removal leaves at least
`retention_bytes`: a cursor falls off at the forecast time or later, and a partition grows to `retention_bytes` and about one
segment more. Positions, sizes and rates are counted in offsets, which gaps make slightly larger than rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds
from headwater.log.protocol import CursorInfo, PartitionInfo

SECOND_US = 1_000_000
HORIZON_SECONDS = 100 * 365 * 86_400
"""Time spans longer than this count as never."""


@dataclass(frozen=True)
class Rates:
    """Append rates of a topic per second, over all partitions together."""

    rows: float
    size_bytes: float


@dataclass(frozen=True)
class CursorForecast:
    """When a cursor falls off the tail: `at` is None if never, and now or earlier if it already has."""

    at: Microseconds | None
    partition: int | None = None
    reason: str | None = None
    """'retention' or 'retention_bytes'."""
    missed: int = 0
    """Offsets that were removed before the cursor read them."""


@dataclass(frozen=True)
class TopicGrowth:
    """Growth of a topic on disk: its rate in bytes per second, until retention removes as much as arrives."""

    bytes_per_second: float
    until_us: Microseconds | None = None


def append_rates(partitions: Iterable[PartitionInfo], recent_rows: int, window_us: Microseconds) -> Rates:
    """Return a topic's rates from the rows appended in a recent window, and the mean size of the rows that are kept."""
    infos = list(partitions)
    seconds = max(window_us, SECOND_US) / SECOND_US
    rows = recent_rows / seconds
    return Rates(rows, rows * _bytes_per_row(infos))


def cursor_rate(cursor: CursorInfo) -> float:
    """Return the offsets per second by which a cursor advanced over its latest commits; 0 if there are fewer than two."""
    if len(cursor.history) < 2:
        return 0.0
    (began, start), (ended, end) = cursor.history[0], cursor.history[-1]
    return max(0.0, (end - start) * SECOND_US / (ended - began)) if ended > began else 0.0


def cursor_forecast(
    cursor: CursorInfo,
    definition: TopicDefinition,
    partitions: Mapping[int, PartitionInfo],
    unread_since: Mapping[int, Microseconds | None],
    rates: Rates,
    now: Microseconds,
) -> CursorForecast:
    """Return when the first of a cursor's partitions is overtaken.

    `unread_since` is the append time of the first unread record of each partition, None where all are read.
    """
    count = max(1, len(partitions))
    arriving, reading = rates.rows / count, _current_rate(cursor, now) / count
    soonest = CursorForecast(None)
    for partition, info in partitions.items():
        position = cursor.positions.get(partition, 0)
        if position < info.first:
            missed = soonest.missed + info.first - position
            soonest = CursorForecast(now, partition, _remover(definition, info), missed)
            continue
        oldest = unread_since.get(partition)
        if cursor.hold or oldest is None or soonest.missed:
            continue
        backlog = info.end - position
        for reason, seconds in (
            ("retention", _overtaken_by_time(definition, backlog, oldest, arriving, reading, now)),
            ("retention_bytes", _overtaken_by_size(definition, info, backlog, arriving, reading)),
        ):
            at = _later(now, seconds)
            if at is not None and (soonest.at is None or at < soonest.at):
                soonest = CursorForecast(at, partition, reason)
    return soonest


def topic_growth(
    definition: TopicDefinition,
    partitions: Mapping[int, PartitionInfo],
    rates: Rates,
    now: Microseconds,
    *,
    held: bool = False,
) -> TopicGrowth:
    """Return how long a topic still grows at its rate: without end if a holding cursor (`held`) may keep retention from
    acting."""
    if held or rates.size_bytes <= 0:
        return TopicGrowth(max(0.0, rates.size_bytes))
    until: list[Microseconds] = []
    oldest = min(
        (i.oldest_appended_at for i in partitions.values() if i.oldest_appended_at is not None), default=now
    )
    if definition.retention_us is not None:
        until.append(max(now, oldest + definition.retention_us))
    if definition.retention_bytes is not None:
        most = definition.retention_bytes
        room = sum(max(0, most + i.oldest_bytes - i.size_bytes) for i in partitions.values())
        full = _later(now, room / rates.size_bytes)
        until += [] if full is None else [full]
    return TopicGrowth(rates.size_bytes, min(until, default=None))


def disk_full_at(topics: Iterable[TopicGrowth], free_bytes: int, now: Microseconds) -> Microseconds | None:
    """Return when the free bytes are used up if each topic grows as forecast; None if never."""
    growing = list(topics)
    at, free = now, float(free_bytes)
    for until in [
        *sorted({t.until_us for t in growing if t.until_us is not None and t.until_us > now}),
        None,
    ]:
        rate = sum(t.bytes_per_second for t in growing if t.until_us is None or t.until_us > at)
        full = _later(at, free / rate) if rate > 0 else None
        if until is None or (full is not None and full <= until):
            return full
        free -= rate * (until - at) / SECOND_US
        at = until
    raise AssertionError("the last step has no end")


def _remover(definition: TopicDefinition, info: PartitionInfo) -> str:
    """Return the retention that removed the oldest records: by size if that is the only one, or if the remaining records fill
    it."""
    if definition.retention_bytes is None:
        return "retention"
    # allow one segment less: the remaining records filled the limit, and may have become smaller by sealing since
    full = info.size_bytes + _segment_bytes(info) > definition.retention_bytes
    return "retention_bytes" if full or definition.retention_us is None else "retention"


def _later(now: Microseconds, seconds: float | None) -> Microseconds | None:
    return None if seconds is None or seconds > HORIZON_SECONDS else now + round(seconds * SECOND_US)


def _current_rate(cursor: CursorInfo, now: Microseconds) -> float:
    """Return the cursor's rate, decreasing once the time since its last commit exceeds the span of its commit history."""
    rate = cursor_rate(cursor)
    if not rate or cursor.committed_at is None:
        return rate
    (began, start), (ended, end) = cursor.history[0], cursor.history[-1]
    if now - ended <= ended - began:
        return rate
    return (end - start) * SECOND_US / (now - began)


def _overtaken_by_time(
    definition: TopicDefinition,
    backlog: int,
    oldest: Microseconds,
    arriving: float,
    reading: float,
    now: Microseconds,
) -> float | None:
    """Return the seconds until the tail, which moves one second of the log per second, catches up with the cursor; None if
    never."""
    if definition.retention_us is None:
        return None
    slack = max(0.0, (oldest + definition.retention_us - now) / SECOND_US)
    if _keeps_up(backlog, arriving, reading, slack):
        return None
    unread_seconds = max((now - oldest) / SECOND_US, 1e-6)
    speed = reading / (backlog / unread_seconds)  # seconds of the log read per second
    if speed >= 1:
        return None
    overtaken = slack / (1 - speed)
    caught_up = backlog / (reading - arriving) if reading > arriving else float("inf")
    return overtaken if overtaken < caught_up else None


def _overtaken_by_size(
    definition: TopicDefinition, info: PartitionInfo, backlog: int, arriving: float, reading: float
) -> float | None:
    """Return the seconds until retention by size reaches the cursor: until both the records from the cursor on, and those after
    the oldest segment, take `retention_bytes`. None if never."""
    per_row = _bytes_per_row([info])
    if definition.retention_bytes is None or not per_row:
        return None
    slack = definition.retention_bytes - backlog * per_row
    missing = max(0, definition.retention_bytes - (info.size_bytes - info.oldest_bytes))
    if missing and not arriving:
        return None
    removable = missing / (arriving * per_row) if missing else 0.0
    if slack <= 0:
        return removable
    growth = (arriving - reading) * per_row
    if growth <= 0 or _keeps_up(backlog, arriving, reading, slack / growth):
        return None
    return max(removable, slack / growth)


def _keeps_up(backlog: int, arriving: float, reading: float, slack_seconds: float) -> bool:
    """Whether a cursor is so close to the end, and so nearly as fast as the appends, that the difference may be chance."""
    return reading >= 0.9 * arriving and backlog < reading * slack_seconds / 10


def _segment_bytes(info: PartitionInfo) -> float:
    """Return the mean size of a partition's segments."""
    return info.size_bytes / max(1, info.segments)


def _bytes_per_row(infos: Iterable[PartitionInfo]) -> float:
    infos = list(infos)
    rows = sum(i.rows for i in infos)
    return sum(i.size_bytes for i in infos) / rows if rows else 0.0
