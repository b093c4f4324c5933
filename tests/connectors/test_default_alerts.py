"""Each of the ready-made alerts fires for what it is there for, and says when that is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2024, 1, 1, tzinfo=UTC)
PATIENCE_S = 20.0


class Watched:
    """A workspace with the ready-made alerts, whose clock is the test's."""

    def __init__(self, ws: hw.Workspace, clock: ManualClock) -> None:
        self.ws = ws
        self.clock = clock
        ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
        for name in ("disk_nearly_full", "wal_retained"):  # the machine's own matter
            ws.sql(f"DROP ALERT {name}")

    def look(self, after: str = "1 second") -> None:
        self.clock.advance(after)
        inspect_workspace(self.ws).evaluate_alerts()

    def told(self) -> list[tuple[str, str, str]]:
        rows = [row for batch in self.ws.topic("alarms").read("earliest") for row in batch.to_pylist()]
        return [(row["alert"], row["event"], row["key"]) for row in rows]

    def until(self, done: Callable[[], bool], after: str = "1 second") -> None:
        """Look again and again: what is outside takes its time."""
        for _ in range(int(PATIENCE_S * 50)):
            self.look(after)
            if done():
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"it never came to that: {self.told()}")


@pytest.fixture
def watched(tmp_path: Path, spark: SparkSession) -> Iterator[Watched]:
    clock = ManualClock()
    with hw.open(tmp_path / "ws", durability="os", spark=spark, clock=clock) as ws:
        yield Watched(ws, clock)


def test_late_rows_that_are_dropped_are_over_when_few_are_among_the_last(watched: Watched) -> None:
    ws = watched.ws
    ws.sql(
        "CREATE TOPIC clicks (at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');"
        "CREATE MATERIALIZED VIEW per_minute WITH (late = 'drop') AS "
        "SELECT window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
    )
    clicks, at = ws.topic("clicks"), '{"view":"per_minute"}'
    clicks.append([{"at": START + timedelta(minutes=i)} for i in range(10)])
    ws.run()
    assert watched.told() == []
    clicks.append([{"at": START}])
    ws.run()
    watched.look("1 minute")
    assert watched.told() == [("late_rows_dropped", "fired", at)]
    clicks.append([{"at": START + timedelta(minutes=10)}] * 20)
    ws.run()
    watched.look("3 minutes")
    assert len(watched.told()) == 1, "one of 31 is more than a hundredth"
    watched.look("2 minutes")
    assert watched.told()[1:] == [("late_rows_dropped", "over", at)], "the late one was read five minutes ago"
    clicks.append([{"at": START}])
    ws.run()
    assert watched.told()[2:] == [("late_rows_dropped", "fired", at)], "another episode"
    watched.look("6 minutes")
    assert watched.told()[3:] == [("late_rows_dropped", "over", at)], "nothing was read since"
    assert 'headwater_view_dropped_share{view="per_minute"} 0.0625' in ws.metrics(), "2 of 32, of all times"


def test_late_rows_that_are_diverted_are_over_when_few_are_among_the_last(watched: Watched) -> None:
    ws = watched.ws
    ws.sql(
        "CREATE TOPIC clicks (at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');"
        "CREATE MATERIALIZED VIEW per_minute WITH (late = 'divert') AS "
        "SELECT window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
    )
    at = '{"view":"per_minute"}'
    ws.topic("clicks").append([{"at": START + timedelta(minutes=i)} for i in (0, 10, 0)])
    ws.run()
    watched.look()
    assert watched.told() == [("late_rows_diverted", "fired", at)]
    watched.look("6 minutes")
    assert watched.told()[1:] == [("late_rows_diverted", "over", at)]


def test_lines_that_a_source_diverted_are_over_when_somebody_has_seen_to_them(
    watched: Watched, tmp_path: Path
) -> None:
    ws, letters = watched.ws, '{"kind":"source","owner":"logs"}'
    (tmp_path / "a.json").write_text('{"id": 1}\nbad\n')
    ws.sql(
        f"CREATE SOURCE logs FROM FILES WITH (path = '{tmp_path}/*.json', columns = 'id BIGINT', on_error = 'divert')"
    )
    ws.run()
    watched.look()
    assert watched.told() == [("source_dead_letters", "fired", letters)]
    ws.dead().drop(of="logs", by="me")
    watched.look()
    assert watched.told()[1:] == [("source_dead_letters", "over", letters)]


def test_deliveries_that_a_webhook_refuses_are_over_after_five_minutes(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0")
    ws, shop = watched.ws, '{"source":"shop"}'
    ws.sql("CREATE SOURCE shop FROM WEBHOOK WITH (secret = env('SHOP_SECRET'))")
    hooks = inspect_workspace(ws).sources.hooks
    hooks.serve()
    try:
        watched.look()
        assert watched.told() == []
        hooks.count("shop", "unsigned")
        watched.look()
        assert watched.told() == [("source_rows_rejected", "fired", shop)]
        watched.look("6 minutes")
        assert watched.told()[1:] == [("source_rows_rejected", "over", shop)]
    finally:
        hooks.rest()


def test_a_view_that_stops_and_letters_of_one_are_over_when_somebody_has_seen_to_them(
    watched: Watched,
) -> None:
    ws = watched.ws
    ws.sql(
        "CREATE TOPIC orders (id BIGINT, n BIGINT, PRIMARY KEY (id));"
        "CREATE MATERIALIZED VIEW shares WITH (on_error = 'divert') AS SELECT id, 10 / n AS share FROM orders;"
        "CREATE MATERIALIZED VIEW brittle AS SELECT id, 10 / n AS share FROM orders"
    )
    letters = '{"kind":"view","owner":"shares"}'
    stopped = '{"kind":"view","name":"brittle","status":"stopped"}'
    ws.topic("orders").append([{"id": i, "n": i} for i in range(3)])
    ws.run()
    watched.look()
    assert sorted(watched.told()) == [
        ("view_dead_letters", "fired", letters),
        ("view_stopped", "fired", stopped),
    ]
    (row,) = ws.dead().list().to_pylist()
    ws.dead().drop(row["letter"], by="me")
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW brittle AS SELECT id, n FROM orders")
    ws.run()
    assert sorted(watched.told()[2:]) == [
        ("view_dead_letters", "over", letters),
        ("view_stopped", "over", stopped),
    ]
    ws.topic("orders").append([{"id": 7, "n": 0}])
    ws.run()
    assert watched.told()[4:] == [("view_dead_letters", "fired", letters)]
    (row,) = ws.dead().list().to_pylist()
    ws.dead().edit(row["letter"], {"n": 5}, by="me")
    watched.look()
    assert len(watched.told()) == 5, "it still waits for somebody"
    assert ws.dead().replay(row["letter"], by="me").ok
    ws.run()
    watched.look()
    assert watched.told()[5:] == [("view_dead_letters", "over", letters)]


def test_messages_that_a_queue_gave_up_are_over_when_somebody_has_seen_to_them(tmp_path: Path) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "ws", durability="os", clock=clock) as ws:
        watched, letters = Watched(ws, clock), '{"kind":"queue","owner":"emails"}'
        ws.sql("CREATE TOPIC outbox (n BIGINT)")
        ws.topic("outbox").append([{"n": 1}, {"n": 2}])
        queue = ws.queue("emails", topic="outbox", deliveries=1)
        watched.look()
        assert watched.told() == []
        for message in queue.receive(2):
            message.nack(error="no such address")
        watched.look()
        assert watched.told() == [("queue_dead_letters", "fired", letters)]
        first, second = (row["letter"] for row in ws.dead().list().to_pylist())
        ws.dead().drop(first, by="me")
        watched.look()
        assert len(watched.told()) == 1, "the other still waits for somebody"
        assert ws.dead().replay(second, by="me").ok
        watched.look()
        assert watched.told()[1:] == [("queue_dead_letters", "over", letters)]


def test_a_follower_that_refuses_rows_or_falls_behind_is_over_when_it_does_not(watched: Watched) -> None:
    ws = watched.ws
    is_down = threading.Event()

    def take(change: pa.Table, key: str) -> None:
        if is_down.is_set():
            raise RuntimeError("it is down")
        for number, row in enumerate(change.to_pylist()):
            if row["_op"] != "delete" and row["n"] < 0:
                raise hw.RefusedRowError("less than nothing", row=number)

    ws.sink_function("take", take)
    ws.sql(
        "CREATE TOPIC orders (id BIGINT, n BIGINT, PRIMARY KEY (id)); CREATE MATERIALIZED VIEW all_of AS SELECT id, n FROM orders;"
        "CREATE SINK cache FROM all_of INTO PYTHON WITH (function = 'take', on_error = 'divert')"
    )
    letters = '{"kind":"sink","owner":"cache"}'
    behind = '{"kind":"sink","name":"cache","status":"behind"}'
    ws.topic("orders").append([{"id": 1, "n": 1}, {"id": 2, "n": -1}])
    inspect_workspace(ws).views.run()
    inspect_workspace(ws).sinks.start()
    watched.until(lambda: watched.told() == [("sink_dead_letters", "fired", letters)])
    (row,) = ws.dead().list().to_pylist()
    ws.dead().drop(row["letter"], by="me")
    watched.until(lambda: watched.told()[1:] == [("sink_dead_letters", "over", letters)])
    is_down.set()
    ws.topic("orders").append([{"id": 3, "n": 3}])
    inspect_workspace(ws).views.run()
    watched.until(lambda: inspect_workspace(ws).sinks.facts()["cache"]["lag"]["seconds"] > 60, "10 seconds")
    assert len(watched.told()) == 2, "not for five minutes yet"
    watched.until(lambda: watched.told()[2:] == [("follower_behind", "fired", behind)], "1 minute")
    inspect_workspace(ws).sinks.stop()
    inspect_workspace(ws).sinks.start()
    watched.until(lambda: inspect_workspace(ws).sinks.facts()["cache"]["lag"]["seconds"] > 60, "10 seconds")
    is_down.clear()
    ws.sink("cache").resume()
    watched.until(lambda: watched.told()[3:] == [("follower_behind", "over", behind)])


def test_wal_that_a_server_keeps_is_over_when_it_lets_it_go(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headwater.sources.postgres.capture_session.EVERY_S", 0.1
    )  # seconds between looks at the slot
    clock, told = ManualClock(), '{"source":"shop"}'
    with (
        psycopg.connect(postgres_url, autocommit=True) as shop,
        psycopg.connect(postgres_url) as slow,
        hw.open(tmp_path / "ws", durability="os", clock=clock) as ws,
    ):
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE others (said text)")
        watched = Watched(ws, clock)
        ws.sql(
            f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders');"
            "CREATE ALERT wal_retained ON METRIC headwater_source_retained_wal_bytes WHEN value > 5e6 "
            "FOR '5 minutes' NOTIFY TOPIC WITH (topic = 'alarms')"  # as the ready-made one, of fewer bytes
        )
        sources = inspect_workspace(ws).sources
        sources.start()
        try:
            watched.until(lambda: sources.statuses()["shop"]["state"] == "streaming")
            slow.execute("INSERT INTO others VALUES ('a transaction that takes its time')")
            shop.execute("INSERT INTO others SELECT repeat(md5(i::text), 20) FROM generate_series(1, 9000) i")

            def moved(*events: str) -> bool:
                shop.execute("SELECT pg_log_standby_snapshot()")  # by which the server sees what may go
                return watched.told() == [("wal_retained", event, told) for event in events]

            watched.until(lambda: moved("fired"), "1 minute")
            slow.commit()
            watched.until(lambda: moved("fired", "over"), "1 second")
        finally:
            sources.stop()


def test_a_disk_that_is_nearly_full_is_over_when_it_is_not(tmp_path: Path) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "ws", durability="os", clock=clock) as ws:
        watched = Watched(ws, clock)
        ws.sql("CREATE DEFAULT ALERTS NOTIFY TOPIC WITH (topic = 'alarms')")
        text = "ALERT disk_nearly_full ON METRIC headwater_disk_free_bytes WHEN value < {} FOR '1 minute' "
        notify = "NOTIFY TOPIC WITH (topic = 'alarms')"
        ws.sql(f"CREATE OR REPLACE {text.format('1e18')} {notify}")  # every disk is
        watched.look()
        watched.look("59 seconds")
        assert watched.told() == []
        watched.look()
        assert watched.told() == [("disk_nearly_full", "fired", "{}")]
        ws.sql(f"CREATE OR REPLACE {text.format('1')} {notify}")  # none is
        watched.look()
        assert watched.told()[1:] == [("disk_nearly_full", "over", "{}")]
