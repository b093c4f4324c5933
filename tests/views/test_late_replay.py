"""Late rows that are given back: they count as if they had been in time, from one tick on, for all who read the view."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.engine.collections.workload import VIEW
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.testing import inspect_workspace
from tests.raising import raises
from tests.serving.test_changes import OneTick

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

CLICKS = """
CREATE TOPIC clicks (user BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute') {options}
"""
PER_MINUTE = """
CREATE MATERIALIZED VIEW per_minute WITH (late = 'divert') AS
  SELECT window(at, '1 minute').start AS minute, count(*) AS n, sum(user) AS users FROM clicks
  GROUP BY window(at, '1 minute')
"""


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[hw.Workspace]:
    """A workspace with a topic of clicks."""
    with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS) as opened:
        opened.sql(CLICKS.format(options=""))
        yield opened


def click(user: int, second: int) -> dict[str, Any]:
    return {"user": user, "at": NOON + timedelta(seconds=second)}


def append(ws: hw.Workspace, *seconds: int) -> None:
    """A click at each of these seconds, its user the second."""
    ws.topic("clicks").append([click(second, second) for second in seconds])


def minutes(ws: hw.Workspace, view: str = "per_minute") -> dict[int, tuple[int, int]]:
    """By minute: how many clicks, and the sum of their users."""
    return {
        (row["minute"] - NOON) // timedelta(minutes=1): (row["n"], row["users"])
        for row in ws.view(view).read().to_pylist()
    }


def late(ws: hw.Workspace, view: str = "per_minute") -> list[int]:
    return sorted(row["user"] for row in ws.view(f"{view}.late").read().to_pylist())


def account(ws: hw.Workspace, view: str = "per_minute") -> tuple[int, int, int]:
    ledger = ws.view(view).ledger()
    return ledger["read"], ledger["used"], ledger["diverted"]


def entry(ws: hw.Workspace, view: str = "per_minute") -> Any:
    return ws.log.entries(VIEW)[view]


def one_tick(ws: hw.Workspace) -> None:
    inspect_workspace(ws).on_progress(OneTick())
    ws.run()
    inspect_workspace(ws).on_progress(Listener())


def test_late_rows_that_are_given_back_count_as_if_they_had_been_in_time(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE)
    ws.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n FROM per_minute")
    ws.sql("CREATE MATERIALIZED VIEW missed AS SELECT count(*) AS n FROM per_minute.late")
    append(ws, 10, 300, 20, 30)
    tick = ws.run().tick
    assert (minutes(ws), late(ws), account(ws)) == ({0: (1, 10), 5: (1, 300)}, [20, 30], (4, 2, 2))

    assert ws.view("per_minute").replay_late() == 2
    assert late(ws) == [20, 30], "until the next tick all is as it was"
    report = ws.run()
    assert report.tick == tick + 1, "it is built and switched in one tick, with those that read it"
    assert (minutes(ws), late(ws), account(ws)) == ({0: (3, 60), 5: (1, 300)}, [], (4, 4, 0))
    assert ws.query("SELECT n FROM total").to_pylist() == [{"n": 4}]
    assert ws.query("SELECT n FROM missed").to_pylist() == [{"n": 0}]
    assert ws.query("SELECT * FROM per_minute.late", as_of=tick).num_rows == 2
    assert ws.verify().ok

    append(ws, 40, 310)
    ws.run()
    assert (minutes(ws), late(ws)) == ({0: (3, 60), 5: (2, 610)}, [40]), (
        "what is late from then on is left out"
    )
    assert account(ws) == (6, 5, 1)
    assert ws.view("per_minute.late").replay_late() == 1
    ws.run()
    assert (minutes(ws), late(ws)) == ({0: (4, 100), 5: (2, 610)}, [])
    assert ws.query("SELECT n FROM total").to_pylist() == [{"n": 6}]
    assert ws.verify().ok


def test_with_nothing_to_give_back_nothing_is_written(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE)
    append(ws, 10, 300)
    ws.run()
    before = entry(ws)
    assert ws.view("per_minute").replay_late() == 0
    assert entry(ws) == before
    append(ws, 20)
    ws.run()
    assert ws.view("per_minute").replay_late() == 1
    before = entry(ws)
    assert ws.view("per_minute").replay_late() == 0, "it was given back, though it is in no tick yet"
    assert entry(ws) == before


@pytest.mark.long
def test_a_row_is_counted_once_however_many_windows_it_has_missed(ws: hw.Workspace) -> None:
    ws.sql("""
        CREATE MATERIALIZED VIEW hops WITH (correct_for = '30 seconds') AS
          SELECT window(at, '2 minutes', '1 minute').start AS minute, count(*) AS n, sum(user) AS users FROM clicks
          GROUP BY window(at, '2 minutes', '1 minute');
        CREATE MATERIALIZED VIEW all AS
          SELECT window(at, '2 minutes', '1 minute').start AS minute, count(*) AS n, sum(user) AS users FROM clicks
          GROUP BY window(at, '2 minutes', '1 minute');
    """)
    append(ws, 10, 300, 20, 130)  # the watermark is at 240: 20 misses both windows, 130 one that ends at 180
    ws.run()
    assert late(ws, "hops") == [20, 20, 130]
    assert account(ws, "hops") == (4, 3, 1)
    assert ws.view("hops").replay_late() == 2
    ws.run()
    assert minutes(ws, "hops") == minutes(ws, "all")
    assert account(ws, "hops") == (4, 4, 0)
    assert ws.verify().ok


def test_rows_that_were_shown_as_final_are_revised(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE + "EMIT ON WINDOW CLOSE")
    ws.sql("CREATE MATERIALIZED VIEW above AS SELECT minute, n FROM per_minute")
    append(ws, 10, 300, 20)
    tick = ws.run().tick
    assert minutes(ws) == {0: (1, 10)}
    ws.view("per_minute").replay_late()
    ws.run()
    assert minutes(ws) == {0: (2, 30)}
    changes = ws.view("above").changes(since=tick).to_pylist()
    assert sorted((row["n"], row["_weight"]) for row in changes) == [(1, -1), (2, 1)]
    append(ws, 500)
    ws.run()
    assert minutes(ws) == {0: (2, 30), 5: (1, 300)}
    assert ws.verify().ok


def test_views_that_need_append_only_rows_are_rebuilt_with_it(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE + "EMIT ON WINDOW CLOSE")
    ws.sql("CREATE MATERIALIZED VIEW least AS SELECT min(n) AS n FROM per_minute")
    ws.sql("CREATE MATERIALIZED VIEW latest AS SELECT max(_lateness) AS late FROM per_minute.late")
    ws.sql(
        "CREATE MATERIALIZED VIEW twice AS SELECT l.n, c.user FROM clicks c JOIN least l ON c.user = l.n + 298"
    )
    append(ws, 10, 300, 301, 20, 500)
    ws.run()
    assert ws.query("SELECT n FROM least").to_pylist() == [{"n": 1}]
    assert ws.query("SELECT n, user FROM twice").to_pylist() == []
    ws.view("per_minute").replay_late()
    ws.run()
    assert minutes(ws) == {0: (2, 30), 5: (2, 601)}
    assert ws.query("SELECT n FROM least").to_pylist() == [{"n": 2}]
    assert ws.query("SELECT late FROM latest").to_pylist() == [{"late": None}]
    assert ws.query("SELECT n, user FROM twice").to_pylist() == [{"n": 2, "user": 300}]
    assert ws.verify().ok


@pytest.mark.long
def test_the_same_create_again_is_the_same_and_another_forgets_what_was_given_back(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE)
    append(ws, 10, 300, 20)
    ws.run()
    ws.view("per_minute").replay_late()
    ws.run()
    with raises(hw.ViewExistsError, view="per_minute", same=True):
        ws.sql(PER_MINUTE)
    before = entry(ws)
    ws.sql(PER_MINUTE.replace("CREATE", "CREATE OR REPLACE"))
    assert entry(ws) == before
    ws.view("per_minute").rebuild()
    ws.run()
    assert minutes(ws) == {0: (2, 30), 5: (1, 300)}, "it means the same after a rebuild"
    ws.sql(PER_MINUTE.replace("CREATE", "CREATE OR REPLACE").replace("sum(user)", "max(user)"))
    ws.run()
    assert minutes(ws) == {0: (1, 10), 5: (1, 300)}
    assert late(ws) == [20]
    assert ws.verify().ok


def test_rows_that_are_not_recorded_are_not_replayed(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE.replace("'divert'", "'drop'"))
    ws.sql(PER_MINUTE.replace("'divert'", "'correct'").replace("per_minute", "corrected"))
    with raises(hw.UsageError, reason="drops-late-rows", view="per_minute") as refused:
        ws.view("per_minute").replay_late()
    assert "late = 'divert'" in str(refused.value.hint)
    with raises(hw.UsageError, reason="no-late-rows", view="corrected"):
        ws.view("corrected").replay_late()


def test_which_rows_are_late_must_be_known(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE)
    with pytest.raises(hw.ViewUnavailableError):
        ws.view("per_minute").replay_late()
    append(ws, 10, 300, 20)
    ws.run()
    ws.sql(PER_MINUTE.replace("CREATE", "CREATE OR REPLACE").replace("1 minute'", "2 minutes'"))
    with raises(hw.UsageError, reason="rebuild-pending", view="per_minute") as refused:
        ws.view("per_minute").replay_late()
    assert "headwater run --once" in str(refused.value.hint)
    ws.run()
    assert ws.view("per_minute").replay_late() == 1


def test_without_the_records_that_it_was_made_from_it_is_refused(tmp_path: Path, spark: Any) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "w", spark=spark, clock=clock, settings=SETTINGS) as ws:
        ws.sql(CLICKS.format(options="WITH (retention = '1 hour')"))
        ws.sql(PER_MINUTE)
        append(ws, 10, 300)
        ws.run()
        clock.advance("3 hours")
        assert ws.maintain().rows_removed == 2
        append(ws, 20)
        ws.run()
        before = entry(ws)
        with raises(hw.UsageError, reason="history-removed", view="per_minute"):
            ws.view("per_minute").replay_late()
        assert entry(ws) == before
        assert late(ws) == [20]


def test_a_row_that_fails_when_it_is_given_back_stops_the_new_one_or_goes_to_the_errors(
    ws: hw.Workspace,
) -> None:
    query = """
        SELECT window(at, '1 minute').start AS minute, count(*) AS n, sum(600 DIV user) AS users FROM clicks
        GROUP BY window(at, '1 minute')"""
    ws.sql(f"CREATE MATERIALIZED VIEW strict WITH (late = 'divert') AS {query}")
    ws.sql(f"CREATE MATERIALIZED VIEW tells WITH (late = 'divert', on_error = 'divert') AS {query}")
    append(ws, 10, 300, 20, 0)  # nothing is divided by what is left out
    ws.run()
    assert account(ws, "strict") == account(ws, "tells") == (4, 2, 2)
    assert [ws.view(name).replay_late() for name in ("strict", "tells")] == [2, 2]
    report = ws.run()
    assert list(report.stopped) == ["strict~next"]
    assert minutes(ws, "strict") == {0: (1, 60), 5: (1, 2)}
    assert late(ws, "strict") == [0, 20]
    assert minutes(ws, "tells") == {0: (2, 90), 5: (1, 2)}
    assert ws.view("tells").ledger() == {"read": 4, "used": 3, "diverted": 0, "dropped": 0, "failed": 1}
    assert late(ws, "tells") == []
    ws.sql(
        f"CREATE OR REPLACE MATERIALIZED VIEW strict WITH (late = 'divert', on_error = 'divert') AS {query}"
    )
    ws.run()
    assert late(ws, "strict") == [0, 20]
    assert ws.verify().ok


def test_a_running_engine_takes_it_up(ws: hw.Workspace) -> None:
    ws.sql(PER_MINUTE)
    with ws.start():
        append(ws, 10, 300, 20)
        ws.run()
        assert late(ws) == [20]
        assert ws.view("per_minute").replay_late() == 1
        ws.run()
        assert (minutes(ws), late(ws)) == ({0: (2, 30), 5: (1, 300)}, [])
    assert ws.verify().ok


def test_it_is_served_as_it_was_while_it_is_built_in_many_ticks_and_after_a_restart(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old windows are let go of at merges, but not before the rows are in that were given back."""
    numbers = random.Random(7)
    with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS) as ws:
        ws.sql(CLICKS.format(options="WITH (partitions = 2, partition_by = 'user')"))
        ws.sql(PER_MINUTE)
        ws.sql(PER_MINUTE.replace("'divert'", "'correct'").replace("VIEW per_minute", "VIEW everything"))
        ws.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n FROM per_minute")
        for step in range(20):
            append(ws, *(step * 30 + numbers.choice((0, 0, 0, -90, -400)) for _ in range(4)))
        ws.run()
        given = ws.view("per_minute").replay_late()
        assert given == len(late(ws)) == account(ws)[2] > 5
        before = minutes(ws)
        monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 8)
        one_tick(ws)
        shown = {row["view"]: row for row in ws.sql("SHOW VIEWS").to_pylist()}  # type: ignore[union-attr]
        assert shown["per_minute"]["reason"] == "a new definition is being built as a shadow build"
        assert (shown["per_minute"]["diverted"], shown["per_minute"]["dropped"]) == (given, 0)
        assert minutes(ws) == before
        assert ws.verify().ok
    with hw.open(tmp_path / "w", spark=spark, settings=SETTINGS) as ws:
        append(ws, 10_000, 100, 101)  # late, and not given back
        ws.run()
        assert late(ws) == [100, 101]
        newest = 10_000 // 60
        assert sum(n for n, _ in minutes(ws).values()) == 81
        without = {
            m: (n - 2, users - 201) if m == 1 else (n, users)
            for m, (n, users) in minutes(ws, "everything").items()
        }
        assert minutes(ws) == {m: made for m, made in without.items() if made[0]}
        assert minutes(ws)[newest] == (1, 10_000)
        assert ws.query("SELECT n FROM total").to_pylist() == [{"n": 81}]
        assert ws.verify().ok
