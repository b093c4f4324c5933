"""Rows that were left out are counted, whoever left them out and however, and across restarts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.health.rejected_counts import RejectedRows, rejected_rows
from headwater.connectors.manage.recent_counts import RECENT_US, Recent
from headwater.core.clock import ManualClock
from headwater.engine.row_errors.rejected_row_counts import since
from headwater.log.protocol import Append, Producer
from headwater.sources.source_runner import producer_of
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2024, 1, 1, tzinfo=UTC)
HOOK = "CREATE SOURCE shop FROM WEBHOOK WITH (secret = env('SHOP_SECRET'))"


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        yield ws


def left_out(ws: hw.Workspace) -> Mapping[tuple[str, str, str], RejectedRows]:
    found = rejected_rows(ws.log, inspect_workspace(ws).views, inspect_workspace(ws).supervisor)
    return {(one.kind, one.name, one.outcome): one for one in found}


def counts(ws: hw.Workspace) -> dict[tuple[str, str, str], tuple[int, int | None]]:
    return {at: (one.rows, one.open) for at, one in left_out(ws).items()}


def files(ws: hw.Workspace, folder: Path) -> None:
    folder.mkdir()
    ws.sql(
        f"CREATE SOURCE logs FROM FILES WITH (path = '{folder}/*.json', columns = 'id BIGINT', on_error = 'divert')"
    )


def test_where_nothing_was_left_out_nothing_is_counted(ws: hw.Workspace) -> None:
    assert counts(ws) == {}
    assert ws.run().rejected == ()


def test_ticks_of_another_process_are_counted_after_a_run_here(
    ws: hw.Workspace, tmp_path: Path, spark: SparkSession
) -> None:
    ws.sql(
        "CREATE TOPIC t (x BIGINT); CREATE MATERIALIZED VIEW v WITH (on_error = 'divert') AS SELECT 10 DIV x AS y FROM t"
    )
    ws.append({"t": pa.table({"x": [1]})})
    assert ws.run().rejected == ()
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as other:
        other.append({"t": pa.table({"x": [0]})})
        (told,) = other.run().rejected
    assert counts(ws)["view", "v", "diverted"][0] == told.rows == 1
    assert ws.run().rejected == ()


def test_a_run_tells_what_was_left_out_in_it_and_not_before(ws: hw.Workspace, tmp_path: Path) -> None:
    files(ws, tmp_path / "in")
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\nbad\nbad\n')
    (told,) = ws.run().rejected
    assert told.sentence == "2 rows rejected by source logs (headwater dead list logs)"
    assert ws.run().rejected == ()
    with ws.start() as runner:
        (tmp_path / "in" / "b.json").write_text("bad\n")
        ws.source("logs").wait(inspect_workspace(ws).sources.runners.end(ws.log.entries("source")["logs"]))
        (told,) = runner.stop().rejected
    assert told.sentence == "1 row rejected by source logs (headwater dead list logs)"
    assert counts(ws) == {("source", "logs", "diverted"): (3, 3)}
    ws.dead().drop("logs/logs_errors-0-0")
    assert counts(ws) == {("source", "logs", "diverted"): (3, 2)}


def test_rows_of_views_that_fail_come_late_or_are_dropped_are_counted(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (n BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')")
    select = "SELECT window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
    ws.sql(f"CREATE MATERIALIZED VIEW told WITH (late = 'divert') AS {select}")
    ws.sql(f"CREATE MATERIALIZED VIEW forgotten WITH (late = 'drop') AS {select}")
    ws.sql("CREATE MATERIALIZED VIEW shares WITH (on_error = 'divert') AS SELECT 10 / n AS share FROM clicks")
    minutes = (0, 10, 0, 1, 11)
    ws.topic("clicks").append([{"n": m, "at": START + timedelta(minutes=m)} for m in minutes])
    report = ws.run()
    assert counts(ws) == {
        ("view", "told", "late"): (2, None),
        ("view", "forgotten", "dropped"): (2, None),
        ("view", "shares", "diverted"): (2, 2),
    }
    assert {one.sentence for one in report.rejected} == {
        "2 rows too late for view told (headwater late told)",
        "2 late rows dropped by view forgotten (headwater late)",
        "2 rows rejected by view shares (headwater dead list shares)",
    }
    assert 'headwater_rejected_rows_total{kind="view",outcome="late",owner="told"} 2.0' in ws.metrics()


def test_rows_that_a_sink_refused_are_counted_without_asking_its_target(
    ws: hw.Workspace, tmp_path: Path, spark: SparkSession
) -> None:
    def picky(change: pa.Table, key: str) -> None:
        for number, row in enumerate(change.to_pylist()):
            if row["_op"] != "delete" and row["n"] > 1:
                raise hw.RefusedRowError("too much", row=number)

    ws.sql("CREATE TOPIC orders (id BIGINT PRIMARY KEY, n BIGINT)")
    ws.sql("CREATE MATERIALIZED VIEW v AS SELECT id, n FROM orders")
    ws.sink_function("picky", picky)
    ws.sql("CREATE SINK told FROM v INTO PYTHON WITH (function = 'picky', key = 'id', on_error = 'divert')")
    ws.topic("orders").append([{"id": n, "n": n} for n in range(4)])
    assert [one.name for one in ws.run().rejected] == ["told"]
    assert counts(ws)["sink", "told", "diverted"] == (2, 2)
    ws.close()
    with hw.open(tmp_path / "ws", spark=spark) as again:  # which does not know the function
        assert counts(again)["sink", "told", "diverted"] == (2, 2)
        first, *_ = again.dead().list("told").column("letter").to_pylist()
        again.dead().drop(first)
        assert counts(again)["sink", "told", "diverted"] == (2, 1)
        assert 'headwater_dead_letters{kind="sink",owner="told"} 1.0' in again.metrics()
        again.sink_function("picky", picky)
        again.topic("orders").append([{"id": n, "n": 1} for n in range(4)])
        again.run()
        assert counts(again)["sink", "told", "diverted"] == (2, 0), "the view has corrected the rows"
        again.sql("DROP SINK told")
        assert 'owner="told"' not in again.metrics()


def test_messages_that_a_queue_gave_up_are_counted(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC outbox (n BIGINT)")
    ws.topic("outbox").append([{"n": 1}, {"n": 2}])
    queue = ws.queue("emails", topic="outbox", deliveries=1)
    for message in queue.receive(2):
        message.nack(error="no such address")
    assert [row["kind"] for row in ws.dead().list().to_pylist()] == ["queue", "queue"]
    assert counts(ws) == {("queue", "emails", "diverted"): (2, 2)}


def test_deliveries_that_were_refused_are_counted_after_a_restart(
    ws: hw.Workspace, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")
    ws.sql(HOOK)
    hooks = inspect_workspace(ws).sources.hooks
    hooks.serve()
    for outcome in ("taken", "unsigned", "repeated", "malformed"):
        hooks.count("shop", outcome)  # type: ignore[arg-type]
    assert counts(ws) == {("source", "shop", "rejected"): (2, None)}
    assert 'headwater_source_recent_rejected{source="shop"} 2.0' in ws.metrics()
    hooks.store()
    hooks.count("shop", "stale")
    assert counts(ws) == {("source", "shop", "rejected"): (3, None)}
    hooks.rest()
    ws.close()
    with hw.open(tmp_path / "ws", spark=spark) as again:
        (told,) = left_out(again).values()
        assert told.sentence == "3 deliveries rejected by source shop (headwater sql 'EXPLAIN shop')"
        inspect_workspace(again).sources.hooks.serve()
        assert counts(again) == {("source", "shop", "rejected"): (3, None)}
        inspect_workspace(again).sources.hooks.rest()


def test_lines_and_datagrams_that_statsd_lost_are_counted_while_nobody_listens(ws: hw.Workspace) -> None:
    ws.sql("CREATE SOURCE stats FROM STATSD WITH (port = 0)")
    note: dict[str, Any] = {
        "packets": 9,
        "lines": 9,
        "malformed": 4,
        "dropped_by_kernel": 2,
        "dropped_here": 1,
    }
    ws.log.append(Append({}, Producer(producer_of("stats"), 1, 0, note)))
    assert counts(ws) == {
        ("source", "stats", "rejected"): (4, None),
        ("source", "stats", "dropped"): (3, None),
    }


def test_a_count_that_fell_begins_anew() -> None:
    def view(rows: int) -> RejectedRows:
        return RejectedRows("view", "v", "late", rows)

    assert since([view(5)], [view(8)]) == (view(3),)
    assert since([view(5)], [view(5)]) == ()
    assert since([view(5)], [view(2)]) == (view(2),)


def test_what_is_recent_is_forgotten_after_five_minutes() -> None:
    clock = ManualClock()
    recent = Recent(clock)
    assert recent.of("shop", 7) == 0, "it came in an earlier process"
    clock.advance("1 minute")
    assert recent.of("shop", 9) == 2
    clock.advance("3 minutes")
    assert recent.of("shop", 10) == 3
    clock.advance("2 minutes")
    assert recent.of("shop", 10) == 1
    clock.advance(f"{RECENT_US // 1_000_000} seconds")
    assert recent.of("shop", 10) == 0
    assert recent.of("shop", 1) == 1, "it was begun anew"
