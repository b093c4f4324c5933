"""`changes(follow=True)`: the rows that are there, then every tick's changes, none lost and none twice."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.errors import (
    ClosedError,
    TickNotKeptError,
    UsageError,
    ViewNotFoundError,
    ViewUnavailableError,
)
from headwater.engine.tick import tick_engine
from headwater.serving import follow
from headwater.serving.follow import Changes
from headwater.testing import inspect_workspace
from tests.equation.play import SETTINGS
from tests.raising import raises
from tests.serving.follower_books import TOPICS, VIEWS, Books, History, counted, weighed


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Any:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as workspace:
        workspace.sql(TOPICS)
        workspace.sql(f"CREATE MATERIALIZED VIEW revenue AS {VIEWS['revenue']}")
        yield workspace


def order(ws: Workspace, customer: int, amount: int) -> None:
    ws.topic("orders").append([{"id": 1, "customer": customer, "amount": amount}])


def drain(follower: Changes, books: Books) -> None:
    """Enter all that there is."""
    for rows in follower:
        assert follower.tick is not None
        books.take(rows, follower.tick, snapshot=follower.snapshot)


@pytest.mark.parametrize("seed", [1, 2])
def test_what_is_followed_adds_up_to_the_contents_of_every_tick_wherever_it_is_left_off(
    seed: int, tmp_path: Path, spark: Any
) -> None:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as ws:
        ws.sql(TOPICS)
        for name, query in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        history = History(ws, seed)
        from_first = {name: ws.view(name).changes(0, follow=True, timeout=0) for name in VIEWS}
        steady, resumed = {name: Books() for name in VIEWS}, {name: Books() for name in VIEWS}
        tokens: dict[str, int | None] = dict.fromkeys(VIEWS)
        for _ in range(10):
            history.go_on()
            for name in VIEWS:
                drain(from_first[name], steady[name])
                with ws.view(name).changes(tokens[name], follow=True, timeout=0) as follower:
                    drain(follower, resumed[name])
                    tokens[name] = follower.tick
        ticks = inspect_workspace(ws).ticks()
        for name in VIEWS:
            contents = {tick: counted(ws.view(name).read(as_of=tick)) for tick in ticks}
            steady[name].check(contents, f"{name}, followed")
            resumed[name].check(contents, f"{name}, left off and resumed")
            assert len(resumed[name].snapshots) == 1
            assert not steady[name].snapshots


def test_it_begins_with_the_rows_that_are_there(ws: Workspace) -> None:
    order(ws, 1, 10)
    ws.run()
    order(ws, 2, 20)
    tick = ws.run().tick
    with ws.view("revenue").changes(follow=True, timeout=0) as follower:
        rows = next(follower)
        assert follower.snapshot
        assert follower.tick == tick
        assert weighed(rows, tick) == {"(1, 10, 1)": 1, "(2, 20, 1)": 1}
        assert list(follower) == []
        order(ws, 1, 5)
        ws.run()
        assert weighed(next(follower), tick + 1) == {"(1, 10, 1)": -1, "(1, 15, 2)": 1}
        assert not follower.snapshot


def test_a_view_without_rows_begins_with_none(ws: Workspace) -> None:
    ws.run()
    follower = ws.view("revenue").changes(follow=True, timeout=0)
    assert next(follower).num_rows == 0
    assert next(follower, None) is None


def test_a_tick_that_changes_nothing_in_it_is_passed(ws: Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW places AS SELECT country, count(*) AS n FROM customers GROUP BY country")
    order(ws, 1, 1)
    ws.run()
    follower = ws.view("revenue").changes(follow=True, timeout=0)
    next(follower)
    ws.topic("customers").append([{"id": 1, "country": "at"}])
    tick = ws.run().tick
    assert list(follower) == []
    assert follower.tick == tick, "the token goes on nevertheless"


def test_a_tick_is_noticed_without_looking(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "WAIT_MS", 60_000.0)
    order(ws, 1, 1)
    ws.run()
    follower = ws.view("revenue").changes(follow=True, timeout=30)
    next(follower)
    with ws.start():
        for amount in range(5):
            threading.Timer(0.05, order, (ws, 1, amount + 1)).start()  # by then it waits
            assert next(follower).num_rows == 2


def test_before_the_first_tick_it_waits_for_it(ws: Workspace) -> None:
    follower = ws.view("revenue").changes(follow=True, timeout=30)
    order(ws, 1, 7)
    with ws.start():
        assert counted(next(follower).select(["customer", "amount"])) == {"(1, 7)": 1}


def test_a_view_that_is_made_while_it_is_followed_comes_when_it_is_live(ws: Workspace) -> None:
    order(ws, 1, 7)
    ws.run()
    ws.sql("CREATE MATERIALIZED VIEW later AS SELECT customer, amount FROM orders")
    follower = ws.view("later").changes(follow=True, timeout=0)
    from_first = ws.view("later").changes(0, follow=True, timeout=0)
    assert list(follower) == []
    ws.run()
    assert counted(next(follower).select(["customer", "amount"])) == {"(1, 7)": 1}
    assert next(from_first).num_rows == 1
    assert follower.snapshot
    assert not from_first.snapshot, "it was told that there was nothing before"


def test_one_that_falls_behind_fails_with_the_tick_to_continue_from(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 3)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 3)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    order(ws, 1, 1)
    ws.run()
    strict = ws.view("revenue").changes(follow=True, timeout=0)
    lenient = ws.view("revenue").changes(follow=True, timeout=0, resync=True)
    next(strict)
    next(lenient)
    for _ in range(6):
        order(ws, 1, 1)
        last = ws.run().tick
    for _ in range(2):
        with raises(TickNotKeptError, first_available=last - 2):
            next(strict)
    assert weighed(next(lenient), last) == {"(1, 7, 7)": 1}
    assert lenient.snapshot
    order(ws, 1, 1)
    ws.run()
    assert weighed(next(lenient), last + 1) == {"(1, 7, 7)": -1, "(1, 8, 8)": 1}
    assert not lenient.snapshot


def test_one_whose_view_is_rebuilt_fails(ws: Workspace) -> None:
    order(ws, 1, 1)
    ws.run()
    strict = ws.view("revenue").changes(follow=True, timeout=0)
    lenient = ws.view("revenue").changes(follow=True, timeout=0, resync=True)
    next(strict)
    next(lenient)
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW revenue AS SELECT max(amount) AS largest FROM orders")
    tick = ws.run().tick
    with raises(TickNotKeptError, rebuilt_at=tick):
        next(strict)
    assert next(lenient).to_pylist() == [{"largest": 1, "_weight": 1, "_tick": tick}]
    assert lenient.snapshot
    with pytest.raises(TickNotKeptError):
        next(ws.view("revenue").changes(tick - 1, follow=True, timeout=0))


def test_a_view_that_catches_up_in_chunks_is_waited_for(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for amount in range(6):
        order(ws, amount, amount)
    ws.run()
    follower = ws.view("revenue").changes(follow=True, timeout=0, resync=True)
    next(follower)
    ws.view("revenue").rebuild(verify=False)
    stepping = following_ticks(ws, monkeypatch)
    told = []
    for _ in range(12):
        order(ws, 9, 1)
        stepping()
        told += [(follower.snapshot, follower.tick or 0) for _ in follower]
    snapshots = [snapshot for snapshot, _ in told]
    assert snapshots.count(True) == 1, "it begins again"
    assert snapshots.index(True) > 2, "it took several ticks, in which the one before it went on"
    assert [tick for _, tick in told] == sorted(tick for _, tick in told)


def following_ticks(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make views catch up two records at a time; gives what makes one tick."""
    from headwater.engine.tick import backfill_parts
    from headwater.engine.tick.listener import Listener

    class OneTick(Listener):
        enough = True

    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 2)
    inspect_workspace(ws).on_progress(OneTick())
    return ws.run


def test_one_whose_view_is_stopped_or_dropped_fails(ws: Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW share AS SELECT id, 10 DIV amount AS share FROM orders")
    ws.sql("CREATE MATERIALIZED VIEW gone AS SELECT id FROM orders")
    order(ws, 1, 5)
    ws.run()
    share = ws.view("share").changes(follow=True, timeout=0)
    gone = ws.view("gone").changes(follow=True, timeout=0)
    assert next(share).num_rows == next(gone).num_rows == 1
    order(ws, 1, 0)
    ws.sql("DROP VIEW gone")
    ws.run()
    with raises(ViewUnavailableError, view="share", status="stopped"):
        next(share)
    with raises(ViewNotFoundError, view="gone"):
        next(gone)


def test_after_the_state_was_deleted_it_begins_again(ws: Workspace) -> None:
    order(ws, 1, 5)
    ws.run()
    strict = ws.view("revenue").changes(follow=True, timeout=0)
    lenient = ws.view("revenue").changes(follow=True, timeout=0, resync=True)
    next(strict)
    next(lenient)
    assert ws.path is not None
    shutil.rmtree(ws.path / "state" / "manifests")
    assert list(lenient) == []
    ws.run()
    with pytest.raises(TickNotKeptError):
        next(strict)
    assert counted(next(lenient).select(["customer", "amount"])) == {"(1, 5)": 1}
    assert lenient.snapshot


def test_silence_ends_it_and_iterating_again_goes_on(ws: Workspace) -> None:
    order(ws, 1, 1)
    ws.run()
    follower = ws.view("revenue").changes(follow=True, timeout=0.05)
    assert len(list(follower)) == 1
    assert list(follower) == []
    order(ws, 1, 1)
    ws.run()
    assert len(list(follower)) == 1


def test_close_ends_it_for_a_thread_that_waits_too(ws: Workspace) -> None:
    ws.run()
    follower = ws.view("revenue").changes(follow=True)
    next(follower)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(follower))
    waiting.start()
    follower.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert found == []
    with ws.view("revenue").changes(follow=True) as again:
        next(again)
    assert list(again) == []


def test_closing_the_workspace_ends_it_with_an_error(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as ws:
        ws.sql(TOPICS)
        ws.sql(f"CREATE MATERIALIZED VIEW revenue AS {VIEWS['revenue']}")
        ws.run()
        follower = ws.view("revenue").changes(follow=True)
        next(follower)
    with pytest.raises(ClosedError):
        next(follower)


@pytest.mark.parametrize("kind", ["memory:", "folder"])
def test_it_works_on_every_kind_of_workspace(kind: str, tmp_path: Path, spark: Any) -> None:
    place = kind if kind == "memory:" else tmp_path / "ws"
    with hw.open(place, spark=spark) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT); CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        with ws.start():
            follower = ws.view("n").changes(follow=True, timeout=30)
            assert next(follower).to_pylist()[0]["n"] == 0
            ws.topic("t").append([{"a": 1}])
            assert {row["n"]: row["_weight"] for row in next(follower).to_pylist()} == {0: -1, 1: 1}


def test_wrong_arguments_are_refused(ws: Workspace) -> None:
    ws.run()
    view = ws.view("revenue")
    with raises(TickNotKeptError, tick=1_000):
        view.changes(1_000, follow=True)
    with raises(UsageError, argument="since", value=-1):
        view.changes(-1, follow=True)
    with raises(UsageError, argument="timeout", value=-1):
        view.changes(follow=True, timeout=-1)
    with raises(UsageError, reason="not-following"):
        view.changes(0, timeout=1)  # type: ignore[call-overload]


def follow_elsewhere(path: str, changes: int, told: Any) -> None:
    """In a process of its own, which has no Spark."""
    import sys

    held: Counter[str] = Counter()
    with hw.open(path, create=False) as ws:
        follower = ws.view("revenue").changes(0, follow=True, timeout=60)
        told.put("ready")
        for _ in range(changes):
            rows = next(follower)
            assert follower.tick is not None
            held.update(weighed(rows, follower.tick))
    told.put((Counter({row: n for row, n in held.items() if n}), "pyspark" in sys.modules))


def test_a_process_without_spark_follows_an_engine_of_another_one(ws: Workspace) -> None:
    ws.run()
    context = multiprocessing.get_context("spawn")
    told: Any = context.SimpleQueue()
    process = context.Process(target=follow_elsewhere, args=(str(ws.path), 5, told), daemon=True)
    process.start()
    assert told.get() == "ready"
    for amount in range(5):
        order(ws, 1, amount + 1)
        ws.run()
    held, has_spark = told.get()
    process.join()
    assert held == counted(ws.view("revenue").read())
    assert not has_spark
