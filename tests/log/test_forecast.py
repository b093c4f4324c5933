"""Forecasts: when a cursor falls off the tail and when the disk is full, by hand and by simulation."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.log.forecast import (
    SECOND_US,
    CursorForecast,
    Rates,
    TopicGrowth,
    append_rates,
    cursor_forecast,
    cursor_rate,
    disk_full_at,
    topic_growth,
)
from headwater.log.protocol import CursorInfo, PartitionInfo

NOW = 1_700_000_000 * SECOND_US
HOUR = 3_600 * SECOND_US


def topic(**options: Any) -> TopicDefinition:
    return define_topic("t", pa.schema([("n", pa.int64())]), options=options)


def info(first: int = 0, end: int = 1_000, **more: Any) -> PartitionInfo:
    values = {"rows": end - first, "size_bytes": (end - first) * 100, "segments": 1, "watermark": None}
    values |= {"last_appended_at": NOW, "oldest_appended_at": NOW - HOUR}
    return PartitionInfo(first, end, **{**values, **more})


def cursor(position: int, *, rate: float = 0.0, hold: bool = False) -> CursorInfo:
    history = ((NOW - 100 * SECOND_US, position - round(100 * rate)), (NOW, position)) if rate else ()
    return CursorInfo("t", "c", {0: position}, hold, 0, NOW if rate else None, history)


def forecast(
    c: CursorInfo,
    definition: TopicDefinition,
    *,
    partition: PartitionInfo | None = None,
    age: int = 0,
    rate: float = 1.0,
) -> CursorForecast:
    partition = partition or info()
    unread = {0: NOW - age * SECOND_US} if c.positions[0] < partition.end else {}
    return cursor_forecast(c, definition, {0: partition}, unread, Rates(rate, rate * 100), NOW)


def test_a_cursor_that_stands_still_falls_off_when_its_record_is_too_old() -> None:
    found = forecast(cursor(500), topic(retention="1 hour"), age=600)
    assert found == CursorForecast(NOW + 3_000 * SECOND_US, 0, "retention")


def test_or_when_what_lies_behind_it_is_too_large() -> None:
    found = forecast(cursor(500), topic(retention_bytes=100_000), rate=10)
    assert found == CursorForecast(NOW + 50 * SECOND_US, 0, "retention_bytes")


def test_the_sooner_of_both_counts() -> None:
    both = topic(retention="1 minute", retention_bytes=100_000)
    assert forecast(cursor(500), both, rate=1).reason == "retention"
    assert forecast(cursor(500), both, rate=100).reason == "retention_bytes"


@pytest.mark.parametrize(
    ("c", "definition"),
    [
        (cursor(500), topic()),
        (cursor(1_000), topic(retention="1 hour")),
        (cursor(500, hold=True), topic(retention="1 hour")),
        (cursor(500, rate=5.0), topic(retention="1 hour")),
        (cursor(999, rate=0.99), topic(retention="1 hour")),
    ],
    ids=["no retention", "all read", "held", "catching up", "as fast as what comes"],
)
def test_never(c: CursorInfo, definition: TopicDefinition) -> None:
    assert forecast(c, definition, age=500) == CursorForecast(None)


def test_a_slow_reader_is_overtaken_later_than_one_that_stands_still() -> None:
    still = forecast(cursor(500), topic(retention="1 hour"), age=500).at
    slow = forecast(cursor(500, rate=0.5), topic(retention="1 hour"), age=500).at
    assert still is not None
    assert slow is not None
    assert slow - NOW == pytest.approx(2 * (still - NOW))


def test_the_oldest_segment_stays_until_the_others_hold_the_retained_bytes() -> None:
    small, alone = topic(retention_bytes=10_000), info(oldest_bytes=100_000)
    assert forecast(cursor(500), small, partition=alone, rate=0) == CursorForecast(None)
    later = forecast(cursor(500), small, partition=alone, rate=10)
    assert later == CursorForecast(NOW + 10 * SECOND_US, 0, "retention_bytes")
    enough = info(oldest_bytes=90_000, segments=2)
    assert forecast(cursor(500), small, partition=enough, rate=10).at == NOW


def test_one_that_fell_off_is_off_now() -> None:
    found = forecast(cursor(500), topic(retention="1 hour"), partition=info(first=700))
    assert found == CursorForecast(NOW, 0, "retention", missed=200)


def test_rates() -> None:
    assert append_rates([info(), info()], 600, 60 * SECOND_US) == Rates(10.0, 1_000.0)
    assert append_rates([info(end=0)], 0, 0) == Rates(0.0, 0.0)
    assert cursor_rate(cursor(500, rate=3.0)) == pytest.approx(3.0)
    assert cursor_rate(cursor(500)) == 0.0


def test_growth_ends_where_retention_begins_to_remove_as_much_as_comes() -> None:
    rates = Rates(1, 100)
    assert topic_growth(topic(), {0: info()}, rates, NOW) == TopicGrowth(100)
    young = topic_growth(topic(retention="3 hours"), {0: info()}, rates, NOW)
    assert young == TopicGrowth(100, NOW + 2 * HOUR)
    assert topic_growth(topic(retention="3 hours"), {0: info()}, rates, NOW, held=True) == TopicGrowth(100)
    small = topic_growth(topic(retention_bytes=150_000), {0: info(oldest_bytes=100_000)}, rates, NOW)
    assert small == TopicGrowth(
        100, NOW + 1_500 * SECOND_US
    )  # the oldest segment is removed when the rest is enough


def test_disk_full() -> None:
    assert disk_full_at([], 1_000, NOW) is None
    assert disk_full_at([TopicGrowth(0.0)], 1_000, NOW) is None
    assert disk_full_at([TopicGrowth(10), TopicGrowth(15)], 1_000, NOW) == NOW + 40 * SECOND_US
    assert disk_full_at([TopicGrowth(10, NOW + 5 * SECOND_US)], 1_000, NOW) is None
    ends_soon = TopicGrowth(90, NOW + 10 * SECOND_US)
    assert disk_full_at([ends_soon, TopicGrowth(10)], 1_100, NOW) == NOW + 20 * SECOND_US


GROWTH = st.builds(
    TopicGrowth,
    st.integers(0, 50).map(float),
    st.none() | st.integers(0, 60).map(lambda s: NOW + s * SECOND_US),
)


@given(st.lists(GROWTH, max_size=5), st.integers(1, 5_000))
def test_disk_full_agrees_with_filling_it_second_by_second(topics: list[TopicGrowth], free: int) -> None:
    def used_after(seconds: float) -> float:
        at = NOW + seconds * SECOND_US
        return sum(
            t.bytes_per_second
            * max(0.0, (min(at, t.until_us) if t.until_us is not None else at) - NOW)
            / SECOND_US
            for t in topics
        )

    full = disk_full_at(topics, free, NOW)
    if full is None:
        assert used_after(10_000) < free
    else:
        assert used_after((full - NOW) / SECOND_US) == pytest.approx(free, rel=1e-4)


@given(
    st.integers(1, 900),
    st.integers(0, 40),
    st.integers(1, 20),
    st.integers(1_000, 100_000),
    st.integers(10, 100_000),
)
def test_the_forecast_agrees_with_a_simulation_of_retention_by_size(
    backlog: int, reading: int, arriving: int, keep_rows: int, per_row: int
) -> None:
    """Whoever reads steadily, and is overtaken, is overtaken when the forecast says so."""
    partition = info(end=1_000, size_bytes=1_000 * per_row)
    c = cursor(1_000 - backlog, rate=float(reading))
    found = forecast(
        c, topic(retention_bytes=keep_rows * per_row), partition=partition, age=1, rate=float(arriving)
    )
    assume(reading < 0.9 * arriving)
    overtaken = (keep_rows - backlog) / (arriving - reading)
    assert found.at is not None
    assert (found.at - NOW) / SECOND_US == pytest.approx(overtaken, rel=1e-5, abs=1e-3)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"retention": "1 hour"}, "retention"),
        ({"retention_bytes": 1_000_000}, "retention_bytes"),
        ({"retention": "1 hour", "retention_bytes": 50_500}, "retention_bytes"),
        ({"retention": "1 hour", "retention_bytes": 1_000_000}, "retention"),
    ],
)
def test_what_removed_the_rows_that_were_missed(options: dict[str, Any], reason: str) -> None:
    found = cursor_forecast(cursor(10), topic(**options), {0: info(500)}, {0: NOW}, Rates(1, 100), NOW)
    assert (found.reason, found.missed) == (reason, 490)
