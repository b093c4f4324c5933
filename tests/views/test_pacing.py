"""How an engine paces itself: over simulated arrivals, without Spark; then that a real one takes its pace from there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import UsageError
from headwater.core.settings import LogSettings
from headwater.engine.tick.listener import Listener
from headwater.engine.tick.tick_engine import TickReport
from headwater.state.manifest import Manifest
from headwater.testing import inspect_workspace
from headwater.views.pacing import REST_MS_MAX, Auto, Every, Pace, pace_of
from tests.raising import raises

FIXED_MS, ROW_MS = 20.0, 0.01
"""What a simulated tick costs: so much, and so much for each row; 100 rows a millisecond is all that it can do."""


@dataclass(frozen=True)
class Tick:
    """A simulated tick: when it started, what it took in, what it cost, and how old its oldest row was at its end."""

    start_ms: float
    rows: int
    cost_ms: float
    delay_ms: float


def simulate(
    pace: Pace, per_ms: Callable[[float], float], until_ms: float, rows_max: int | None = None
) -> list[Tick]:
    """Ticks of an engine to which rows come at a rate, looked at every millisecond."""
    ticks: list[Tick] = []
    now = rested = 0.0
    waiting: list[tuple[float, float]] = []  # when rows came, and how many
    came_until = 0.0
    while now < until_ms:
        while came_until <= now:
            if (rate := per_ms(came_until)) > 0:
                waiting.append((came_until, rate))
            came_until += 1.0
        there = sum(rows for _, rows in waiting)
        if there < 1 or now < rested:
            now += 1.0
            continue
        taken, oldest = 0.0, waiting[0][0]
        while waiting and (rows_max is None or taken < rows_max):
            taken += waiting.pop(0)[1]
        cost = FIXED_MS + ROW_MS * taken
        ticks.append(Tick(now, int(taken), cost, now + cost - oldest))
        now += cost
        rested = now + pace.rest_ms(cost, int(taken), behind=bool(waiting))
    return ticks


def busy(ticks: list[Tick], since_ms: float = 0.0) -> float:
    """The share of the time that was spent in ticks."""
    chosen = [tick for tick in ticks if tick.start_ms >= since_ms]
    span = chosen[-1].start_ms + chosen[-1].cost_ms - chosen[0].start_ms
    return sum(tick.cost_ms for tick in chosen) / span


def test_under_a_trickle_auto_takes_about_half_a_core_and_the_delay_stays_small() -> None:
    ticks = simulate(Auto(), lambda _: 1.0, 5_000)
    assert busy(ticks) < 0.6
    assert max(tick.delay_ms for tick in ticks) < 3 * FIXED_MS + REST_MS_MAX


def test_a_row_after_a_pause_is_taken_at_once() -> None:
    ticks = simulate(Auto(), lambda ms: 1.0 if ms % 500 == 0 else 0.0, 5_000)
    assert len(ticks) == 10
    assert all(tick.delay_ms <= FIXED_MS + 2 for tick in ticks)


def test_the_more_rows_the_larger_the_ticks_and_the_shorter_the_rests() -> None:
    shares, sizes = [], []
    for rate in (1.0, 10.0, 50.0, 90.0):
        ticks = simulate(Auto(), lambda _, rate=rate: rate, 20_000)  # type: ignore[misc]
        shares.append(busy(ticks, since_ms=10_000))
        sizes.append(ticks[-1].rows)
    assert sizes == sorted(sizes)
    assert shares == sorted(shares)
    assert shares[-1] > 0.9, "near its limit an engine does not rest"


@pytest.mark.parametrize("pace", [Auto(), Every(200.0)], ids=["auto", "every"])
def test_under_overload_ticks_grow_and_come_back_by_themselves(pace: Pace) -> None:
    burst = range(5_000, 8_000)
    ticks = simulate(pace, lambda ms: 300.0 if int(ms) in burst else 10.0, 40_000)
    before = [tick for tick in ticks if 2_000 < tick.start_ms < burst.start]
    during = [tick for tick in ticks if burst.start < tick.start_ms < burst.stop + 3_000]
    after = [tick for tick in ticks if tick.start_ms > 30_000]
    assert max(tick.rows for tick in during) > 20 * max(tick.rows for tick in before)
    assert len(during) < len(before), "fewer and larger ticks, not a queue of small ones"
    assert max(tick.rows for tick in after) <= 1.2 * max(tick.rows for tick in before)
    assert max(tick.delay_ms for tick in after) <= 1.2 * max(tick.delay_ms for tick in before)


def test_nothing_waits_for_the_end_of_a_rest_when_ticks_are_bounded_and_full() -> None:
    for pace in (Auto(), Every(1_000.0)):
        ticks = simulate(pace, lambda ms: 50.0 if ms < 2_000 else 0.0, 20_000, rows_max=5_000)
        full = [tick for tick in ticks if tick.rows >= 5_000]
        gaps = [b.start_ms - a.start_ms - a.cost_ms for a, b in itertools.pairwise(full)]
        assert sum(tick.rows for tick in ticks) == 100_000
        assert all(gap <= 1 for gap in gaps[3:])


def test_every_starts_ticks_no_more_often_than_asked() -> None:
    ticks = simulate(Every(200.0), lambda _: 1.0, 5_000)
    gaps = [b.start_ms - a.start_ms for a, b in itertools.pairwise(ticks)]
    assert all(199 <= gap <= 202 for gap in gaps)


def test_auto_learns_that_ticks_have_become_dearer() -> None:
    pace = Auto()
    for _ in range(10):
        cheap = pace.rest_ms(2.0, 5, behind=False)
    for _ in range(40):
        dear = pace.rest_ms(30.0, 5, behind=False)
    assert cheap == 2.0
    assert dear == pytest.approx(30.0, rel=0.05)


def test_a_large_tick_teaches_nothing_about_small_ones() -> None:
    pace = Auto()
    pace.rest_ms(20.0, 5, behind=False)
    assert pace.rest_ms(2_000.0, 500_000, behind=False) < 1.0
    assert pace.rest_ms(20.0, 5, behind=False) == 20.0


@pytest.mark.parametrize("every", ["soon", "", "200", "-1 s", 0.2, 200, True, timedelta(seconds=-1), b"auto"])
def test_a_wrong_every_is_refused(every: Any) -> None:
    with raises(UsageError, option="every", value=every):
        pace_of(every)


def test_every_is_auto_or_a_span() -> None:
    assert isinstance(pace_of("auto"), Auto)
    assert isinstance(pace_of(None), Auto)
    assert pace_of("200 ms").rest_ms(50.0, 1, behind=False) == 150.0
    assert pace_of(timedelta(seconds=1)).rest_ms(50.0, 1, behind=False) == 950.0
    assert pace_of("0 ms").rest_ms(50.0, 1, behind=False) == 0.0


def test_a_wrong_every_or_tick_rows_starts_nothing(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        with raises(UsageError, option="every", value="often"):
            ws.start(every="often")
        with raises(UsageError, argument="tick_rows", value=0):
            ws.start(tick_rows=0)
        assert inspect_workspace(ws).engine() is None


class Until(Listener):
    """Counts the rows of ticks, and tells when so many were taken in."""

    def __init__(self, rows: int) -> None:
        self.sizes: list[int] = []
        self.done = threading.Event()
        self._rows = rows

    def ticked(self, report: TickReport, manifest: Manifest) -> None:
        """By the engine's thread."""
        self.sizes.append(report.rows)
        if sum(self.sizes) >= self._rows:
            self.done.set()


def test_an_engine_that_is_behind_does_not_rest(tmp_path: Path, spark: Any) -> None:
    with hw.open(
        tmp_path / "ws", settings=LogSettings(durability="os", maintenance_every_ms=0), spark=spark
    ) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        for number in range(10):
            ws.topic("t").append([{"a": number}])
        inspect_workspace(ws).on_progress(until := Until(10))
        with ws.start(every="1 hour", tick_rows=2):
            assert until.done.wait(60), "it rested for an hour"
        assert [size for size in until.sizes if size] == [2, 2, 2, 2, 2]
        assert ws.query("SELECT n FROM n").to_pylist() == [{"n": 10}]
