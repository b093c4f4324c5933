"""A sink in its thread, what it tells of itself, and the ticks of a workspace's state as its feed."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.clock import ManualClock, SystemClock
from headwater.core.errors import ClosedError, LogTimeoutError, TargetDownError, TickNotKeptError
from headwater.core.positions import Token
from headwater.core.storage import Storage
from headwater.operators.zset.delta import Delta
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.sink_runner import SinkRunner
from headwater.sinks.base.sink_status import SinkLag, Status
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import SinkCheckpoint, SinkError, TargetChange, TargetShape
from headwater.sinks.base.view_feed import PendingTicks, StoreFeed
from headwater.state.manifest import ViewState, encode_schema
from headwater.testing.sinks import MemoryPlace, MemoryTarget, ScriptedFeed
from tests.raising import raises
from tests.state import ticks
from tests.state.ticks import CONTENTS, VIEW, Engine

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
SHAPE = TargetShape("s", "v", SCHEMA, ("k",))


def rows(*keys: int, v: str = "a") -> list[dict[str, Any]]:
    return [{"k": key, "v": v} for key in keys]


class Slow(MemoryTarget):
    """Takes a change only when it is let."""

    def __init__(self, place: MemoryPlace) -> None:
        super().__init__(place)
        self.let, self.asked = threading.Semaphore(0), threading.Semaphore(0)

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        self.asked.release()
        assert self.let.acquire(timeout=30)
        super().apply(change, before, after)


class Bench:
    def __init__(self, target: MemoryTarget | None = None, place: MemoryPlace | None = None) -> None:
        self.clock = ManualClock()
        self.place = place or MemoryPlace()
        self.feed = ScriptedFeed(SCHEMA, self.clock)
        self.told: list[Status] = []
        self.applier = Applier(SHAPE, target or MemoryTarget(self.place), self.feed, self.clock)
        self.applier.report.listen(self.told.append)
        self.runner = SinkRunner(self.applier, self.feed, SystemClock())


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.runner.stop()


def test_a_sink_follows_until_it_is_stopped(bench: Bench) -> None:
    bench.runner.start()
    for step in range(1, 20):
        bench.feed.tick(rows(*range(step)))
        bench.runner.wait(step, 30_000)
        assert len(bench.place.rows) == step
    bench.runner.stop()
    assert bench.applier.status().state == "closed"
    bench.feed.tick([])
    assert len(bench.place.rows) == 19


def test_it_waits_for_a_view_that_is_part_of_no_tick(bench: Bench) -> None:
    bench.runner.start()
    assert not bench.applier.report.wait(1, 50)
    assert bench.applier.status().state == "waiting"
    bench.feed.tick(rows(1))
    bench.runner.wait(1, 30_000)


def test_a_slow_target_slows_nobody_else_and_takes_ticks_together() -> None:
    place = MemoryPlace()
    target = Slow(place)
    slow, quick = Bench(target, place), Bench()
    quick.feed = slow.feed
    quick.applier = Applier(SHAPE, MemoryTarget(quick.place), slow.feed, quick.clock)
    quick.runner = SinkRunner(quick.applier, slow.feed, SystemClock())
    try:
        slow.feed.tick(rows(1))
        slow.runner.start()
        assert target.asked.acquire(timeout=30)
        quick.runner.start()
        for step in range(2, 30):
            slow.feed.tick(rows(*range(step)))
            quick.runner.wait(step, 30_000)
        assert place.applied == 0
        for _ in range(2):
            target.let.release()
        slow.runner.wait(29, 30_000)
        assert place.applied == 2
        assert place.rows == quick.place.rows
    finally:
        for _ in range(5):
            target.let.release()
        slow.runner.stop()
        quick.runner.stop()


def test_what_a_person_has_to_mend_stops_it_until_it_is_resumed(bench: Bench) -> None:
    bench.place.refuses = lambda row: "too many" if row["k"] > 5 else None
    bench.feed.tick(rows(1))
    bench.runner.start()
    bench.runner.wait(1, 30_000)
    bench.feed.tick(rows(1, 6))
    with raises(SinkError, sink="s", status="stopped") as caught:
        bench.runner.wait(2, 30_000)
    assert caught.value.message.endswith(": too many")
    assert bench.applier.status().state == "stopped"
    bench.place.refuses = lambda row: None
    bench.runner.resume()
    bench.feed.tick(rows(1, 6, 7))
    bench.feed.wait(0)
    assert _until(lambda: bench.applier.report.wait(3, 1_000))


def test_a_defect_of_a_target_is_told_and_not_lost(bench: Bench) -> None:
    bench.place.refuses = lambda row: 1 // 0  # type: ignore[return-value]
    bench.feed.tick(rows(1))
    bench.runner.start()
    assert _until(lambda: bench.applier.status().state == "stopped")
    assert bench.applier.status().reason == "ZeroDivisionError: integer division or modulo by zero"


def test_a_wait_that_takes_too_long_says_how_far_it_is(bench: Bench) -> None:
    bench.place.is_down = True
    bench.feed.tick(rows(1))
    bench.runner.start()
    with raises(LogTimeoutError, sink="s", tick=1, last_tick=None):
        bench.runner.wait(1, 200)
    bench.place.is_down = False
    bench.runner.resume()
    bench.runner.wait(1, 30_000)


def test_without_a_thread_waiting_does_the_work(bench: Bench) -> None:
    bench.feed.tick(rows(1))
    bench.feed.tick(rows(1, 2))
    bench.runner.wait(2, 5_000)
    assert len(bench.place.rows) == 2
    assert bench.runner.catch_up() == 2
    with pytest.raises(LogTimeoutError):
        bench.runner.wait(3, 10)


def test_catching_up_gives_up_on_a_target_that_stays_away(bench: Bench) -> None:
    bench.place.is_down = True
    bench.feed.tick(rows(1))
    with raises(TargetDownError, reason="down"):
        bench.runner.catch_up(timeout_ms=150)
    assert bench.told[-2].state == "retrying"


def test_a_workspace_that_is_closed_ends_the_thread(bench: Bench) -> None:
    def closed(*_: Any) -> None:
        raise ClosedError("this workspace was closed")

    bench.feed.latest = closed  # type: ignore[method-assign,assignment]
    bench.runner.start()
    assert _until(lambda: not bench.runner.running)


def test_lag_is_told_in_ticks_rows_and_seconds(bench: Bench) -> None:
    assert bench.applier.lag() == SinkLag(0, 0, 0.0)
    bench.feed.tick(rows(1))
    assert bench.applier.lag() == SinkLag(1, None, 0.0)
    bench.applier.step()
    assert bench.applier.lag() == SinkLag(0, 0, 0.0)
    bench.feed.tick(rows(1, 2))
    bench.clock.advance("2 seconds")
    bench.feed.tick(rows(1, 2, v="b"))
    bench.clock.advance("3 seconds")
    assert bench.applier.lag() == SinkLag(2, 5, 5.0)
    bench.feed.forget(3)
    assert bench.applier.lag() == SinkLag(2, None, 0.0)
    bench.applier.step()
    assert bench.applier.lag() == SinkLag(0, 0, 0.0)


def test_another_process_can_look_where_a_sink_stands(bench: Bench) -> None:
    other = Applier(SHAPE, MemoryTarget(bench.place), bench.feed, bench.clock)
    assert other.probe().tick is None
    bench.feed.tick(rows(1))
    bench.applier.step()
    bench.feed.tick(rows(1, 2))
    assert other.probe().tick == 1
    assert other.lag() == SinkLag(1, 1, 0.0)
    renamed = Applier(
        TargetShape("s", "v", SCHEMA, ("v",)), MemoryTarget(bench.place), bench.feed, bench.clock
    )
    assert renamed.probe().tick is None  # rows by another key


def test_a_view_with_other_columns_stops_the_sink_and_says_so(bench: Bench) -> None:
    feed = ScriptedFeed(pa.schema([("k", pa.int64())]), bench.clock)
    feed.tick([{"k": 1}])
    applier = Applier(SHAPE, MemoryTarget(bench.place), feed, bench.clock)
    with raises(SinkError, sink="s", view="v", reason="view-columns"):
        applier.step()


def test_too_many_refused_rows_are_not_diverted(bench: Bench) -> None:
    bench.place.refuses = lambda row: "no"
    applier = Applier(
        SHAPE, MemoryTarget(bench.place), bench.feed, bench.clock, on_error="divert", letters=lambda one: None
    )
    bench.feed.tick(rows(*range(1_001)))
    with raises(SinkError, sink="s", rows=1_001, rows_max=1_000):
        applier.step()


def test_a_sink_with_nothing_applied_is_neither_right_nor_wrong(bench: Bench) -> None:
    found = check(bench.applier, bench.feed)
    assert (found.ok, found.detail) == (None, "nothing was applied yet")


# --- the ticks of a workspace --------------------------------------------------------------------------------------


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(Storage(tmp_path))


def feed_of(engine: Engine) -> StoreFeed:
    return StoreFeed(engine.store, VIEW, lambda arrived, timeout_ms: None, "w1")


def stored(delta: Delta) -> dict[int, int]:
    return dict(zip(delta.rows.column(0).to_pylist(), delta.weights.tolist(), strict=True))


def other(status: Any = "live", **facts: Any) -> dict[str, ViewState]:
    return {VIEW: ViewState(VIEW, 1, status, CONTENTS, encode_schema(ticks.SCHEMA), **facts)}


def test_ticks_are_read_from_the_state(engine: Engine) -> None:
    feed = feed_of(engine)
    assert feed.latest() is None
    engine.tick({1: 1, 2: 1})
    engine.tick({2: -1, 3: 1})
    engine.tick({}, views=other())
    point = feed.latest()
    assert point is not None
    assert (point.tick, point.history, point.schema) == (3, "w1/1.0", ticks.SCHEMA)
    assert stored(feed.contents(1)) == {1: 1, 2: 1}
    assert stored(feed.contents(3)) == {1: 1, 3: 1}
    advance = feed.changes(Token(0), point.history)
    assert ([tick for tick, _ in advance.ticks], advance.reached) == ([1, 2], 3)
    assert stored(advance.ticks[1][1]) == {2: -1, 3: 1}
    assert feed.changes(Token(3), point.history).reached == 3
    first = engine.store.manifest(2).committed_at
    assert feed.pending(1, point.history) == PendingTicks(2, 2, first)
    assert feed.at(2) is not None
    assert feed.at(9) is None


def test_another_history_is_not_followed(engine: Engine) -> None:
    feed = feed_of(engine)
    engine.tick({1: 1})
    engine.tick({2: 1}, views=other(built=2))
    with pytest.raises(TickNotKeptError):
        feed.changes(Token(1), "w1/1.0")
    assert feed.pending(1, "w1/1.0") == PendingTicks(1, None, None)
    point = feed.latest()
    assert point is not None
    assert point.history == "w1/1.2"


def test_ticks_that_are_not_kept_are_not_followed(engine: Engine) -> None:
    feed = feed_of(engine)
    engine.ticks(4)
    for tick in (1, 2):
        engine.storage.remove(f"state/manifests/{tick:012d}.json")
    with pytest.raises(TickNotKeptError):
        feed.changes(Token(1), "w1/1.0")
    assert [tick for tick, _ in feed.changes(Token(2), "w1/1.0").ticks] == [3, 4]


def test_a_view_that_stopped_is_followed_up_to_its_last_tick(engine: Engine) -> None:
    feed = feed_of(engine)
    engine.tick({1: 1})
    engine.tick({2: 1})
    engine.tick({}, views=other("stopped", last_tick=2))
    point = feed.latest()
    assert point is not None
    assert point.tick == 2
    assert feed.changes(Token(1), point.history).reached == 2
    engine.tick({}, views=other("backfilling"))
    assert feed.latest() is None


def test_a_sink_follows_the_state(engine: Engine) -> None:
    feed = feed_of(engine)
    place = MemoryPlace()
    shape = TargetShape("s", VIEW, ticks.SCHEMA, ("n",))
    applier = Applier(shape, MemoryTarget(place), feed, engine.clock)
    engine.tick({1: 1, 2: 1})
    assert applier.step()
    engine.tick({2: -1, 3: 1})
    engine.tick({4: 1})
    assert applier.lag().rows == 3
    assert applier.step()
    assert sorted(place.rows) == [(1,), (3,), (4,)]
    assert check(applier, feed).ok
    assert not applier.step()


def _until(done: Any) -> bool:
    for _ in range(300):
        if done():
            return True
        threading.Event().wait(0.1)
    return False


def test_a_target_that_never_stands_still_is_neither_right_nor_wrong(bench: Bench) -> None:
    bench.feed.tick(rows(1))
    bench.applier.step()
    target = bench.applier._target
    contents = target.contents

    def moved() -> Any:
        checkpoint = bench.place.checkpoint
        assert checkpoint is not None
        bench.place.checkpoint = SinkCheckpoint(
            checkpoint.tick + 1, checkpoint.history, checkpoint.checksum, checkpoint.rows
        )
        return contents()

    target.contents = moved  # type: ignore[method-assign]
    found = check(bench.applier, bench.feed, repair=True)
    assert found.ok is None
    assert "another process" in (found.detail or "")


def test_the_cheap_check_finds_what_differs_too(bench: Bench) -> None:
    bench.feed.tick(rows(1, 2))
    bench.applier.step()
    assert check(bench.applier, bench.feed, cheap=True).ok
    del bench.place.rows[(2,)]
    found = check(bench.applier, bench.feed, cheap=True)
    assert (found.ok, found.detail) == (False, "1 rows missing, such as (k: 2, v: a)")
