"""Figures of a workspace: the same from every process, without Spark and without asking anybody outside."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson
import psycopg
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import headwater as hw
from headwater.catalog.connectors import SINK, SOURCE, SinkDefinition
from headwater.cli.program import cli
from headwater.connectors.manage.declarations import ConnectorDeclarations
from headwater.connectors.manage.status_board import FILE, STALE_AFTER_US, PublishedStatus, StatusBoard
from headwater.core.clock import ManualClock, SystemClock
from headwater.core.errors import SinkExistsError, SinkNotFoundError
from headwater.core.storage import Storage
from headwater.engine.metrics.tick_totals import BOUNDS_S, TickCost, TickTotals
from headwater.sinks.base.sink_status import SinkLag, Status
from headwater.sources.base import AGAIN, AWAY
from headwater.sources.python_source import Source
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def figures(text: str) -> dict[str, dict[tuple[str, ...], float]]:
    """By name and the values of labels, which come in the order of their names."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_an_empty_workspace_has_figures_too(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        found = figures(ws.metrics())
    assert found["headwater_info"] == {(hw.__version__,): 1}
    assert found["headwater_engine_running"] == {(): 0}
    assert found["headwater_disk_free_bytes"][()] > 0


def test_ticks_are_counted_by_how_long_they_took() -> None:
    figures = TickTotals()
    for tick, seconds in enumerate((0.001, 0.005, 0.006, 3600.0), start=1):
        figures = figures.and_then(TickCost(tick, 10, seconds, {"read": seconds / 2}))
    assert (figures.ticks, figures.rows, figures.seconds) == (4, 40, 3600.012)
    assert figures.counts[0] == 2, "up to and with a bound"
    assert figures.counts[1] == 1
    assert figures.counts[len(BOUNDS_S)] == 1, "longer than any"
    assert figures.phases == {"read": 1800.006}


def test_topics_ticks_views_and_late_rows_have_their_figures(tmp_path: Path, spark: SparkSession) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC clicks (user BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');"
            "CREATE MATERIALIZED VIEW per_minute WITH (late = 'drop') AS "
            "SELECT window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
        )
        clicks = ws.topic("clicks")
        clicks.append([{"user": i, "at": start + timedelta(minutes=i)} for i in range(10)])
        clicks.cursor("mailer").commit()
        ws.run()
        clicks.append([{"user": 99, "at": start}])
        ws.run()
        ws.run()
        found = figures(ws.metrics())
        first = figures(ws.metrics())["headwater_tick_seconds_count"]
        clicks.append([{"user": 99, "at": start + timedelta(minutes=20)}])
        ws.run()
        again = figures(ws.metrics())
    assert found["headwater_topic_appended_rows_total"] == {("clicks",): 11}
    assert found["headwater_cursor_lag_rows"]["mailer", "clicks"] == 11
    assert found["headwater_view_status"]["live", "per_minute"] == 1
    assert found["headwater_view_status"]["stopped", "per_minute"] == 0
    outcomes = found["headwater_view_input_rows_total"]
    assert outcomes["used", "per_minute"] == 10
    assert outcomes["dropped", "per_minute"] == 1
    assert found["headwater_topic_watermark_delay_seconds"]["clicks",] > 86_400
    assert found["headwater_view_state_bytes"]["per_minute",] > 0
    assert first[()] >= 2, "of every run"
    assert again["headwater_tick_seconds_count"][()] > first[()], "they go on counting with another engine"
    assert again["headwater_tick_rows_total"][()] >= 10
    assert again["headwater_tick_phase_seconds_total"]["compute",] > 0


def test_sources_and_sinks_are_told_of_by_the_process_that_runs_them(
    tmp_path: Path, postgres_url: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_URL", postgres_url)
    with psycopg.connect(postgres_url, autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint)")
        shop.execute("INSERT INTO orders SELECT i, i FROM generate_series(1, 30) i")
        with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
            ws.sql(
                "CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders');"
                "CREATE MATERIALIZED VIEW big AS SELECT * FROM orders WHERE amount > 10;"
                "CREATE SINK report FROM big INTO POSTGRES WITH (url = env('SHOP_URL'), key = 'id')"
            )
            before = figures(ws.metrics())
            assert before["headwater_source_up"] == {("shop",): 0}
            assert before["headwater_sink_up"] == {("postgres", "report", "big"): 0}
            with ws.start():
                ws.sink("report").wait(
                    after=shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()[0]  # type: ignore[index]
                )
                told = _elsewhere(tmp_path / "ws", "headwater_source_retained_wal_bytes")
                assert told["headwater_source_up"] == {("shop",): 1}
                assert told["headwater_source_rows_total"] == {("shop",): 30}
                assert told["headwater_source_retained_wal_bytes"]["shop",] >= 0
                at = ("postgres", "report", "big")
                assert told["headwater_sink_up"] == {at: 1}
                assert told["headwater_sink_lag_rows"] == {at: 0}
                assert told["headwater_sink_lag_ticks"] == {at: 0}
                assert told["headwater_sink_applied_rows_total"] == {at: 20}
                with hw.open(tmp_path / "ws", spark=spark) as beside:
                    assert beside.sink("report").status.state == "following", "without asking its target"
                    assert beside.source("shop").status.state == "streaming"
            after = figures(ws.metrics())
            assert after["headwater_source_up"] == {("shop",): 0}
            ws.sql("DROP SOURCE shop")


def _elsewhere(path: Path, awaited: str) -> dict[str, dict[tuple[str, ...], float]]:
    """The figures that another process gives, once it has those that come every second."""
    deadline = time.monotonic() + 60
    while True:
        command = [sys.executable, "-m", "headwater", "-w", str(path), "metrics"]
        found = figures(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        if found.get(awaited) or time.monotonic() > deadline:
            return found


def test_news_comes_while_a_tick_takes_long_and_is_taken_down_in_the_end(tmp_path: Path) -> None:
    """It is told by a thread of its own: nothing of the engine has to come round for it."""
    writer, reader = (StatusBoard(Storage(tmp_path), SystemClock()) for _ in range(2))
    writer.start_publishing(
        lambda: PublishedStatus(SystemClock().now_us(), sinks={"cache": {"state": "following"}})
    )
    try:
        deadline = time.monotonic() + 30
        while reader.read() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        first = reader.read()
        assert first is not None
        assert first.sinks == {"cache": {"state": "following"}}
        assert writer.read() is None, "one's own news is none"
        while (again := reader.read()) is not None and again.at == first.at and time.monotonic() < deadline:
            time.sleep(0.01)
        assert again is not None
        assert again.at > first.at
    finally:
        writer.clear()
    assert reader.read() is None


def test_a_circuit_that_is_open_is_told_to_every_process(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        made = SinkDefinition(
            "told", "webhook", {"url": "http://127.0.0.1:1/", "mode": "changelog"}, view="v"
        )
        ws.log.put_entry(SINK, "told", made.to_document(), expect=None)
        status = Status("told", "retrying", "it is left alone", circuit="open")
        facts = {"told": {"status": asdict(status), "lag": asdict(SinkLag(1, 1, 0.0))}}
        StatusBoard(Storage(tmp_path / "ws"), SystemClock())._write(
            PublishedStatus(SystemClock().now_us(), sinks=facts)
        )
        found = figures(ws.metrics())
        assert found["headwater_sink_circuit_open"] == {("webhook", "told", "v"): 1.0}
        assert found["headwater_sink_up"] == {("webhook", "told", "v"): 0.0}
        explained = {row["property"]: row["value"] for row in ws.sql("EXPLAIN told").to_pylist()}
        assert explained["circuit"].startswith("open: ")
        said = CliRunner().invoke(cli, ["-w", str(tmp_path / "ws"), "status", "--json"])
        assert orjson.loads(said.output)["sinks"][0]["circuit"] == "open"


def test_news_that_is_torn_or_old_says_nothing(tmp_path: Path) -> None:
    clock = ManualClock()
    board = StatusBoard(Storage(tmp_path), clock)
    (tmp_path / FILE).write_bytes(b'{"at": 1, "proc')
    assert board.read() is None
    old = {"whose": "x", "at": clock.now_us() - STALE_AFTER_US - 1, "process": 1, "sources": {}, "sinks": {}}
    (tmp_path / FILE).write_bytes(orjson.dumps(old))
    assert board.read() is None
    (tmp_path / FILE).write_bytes(orjson.dumps({**old, "at": clock.now_us()}))
    assert board.read() is not None


def test_a_source_whose_server_is_away_is_not_up_and_one_that_was_dropped_meanwhile_ends_nothing(
    tmp_path: Path, postgres_server: PostgresServer, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as shop:
        shop.execute("CREATE TABLE orders (id bigint PRIMARY KEY)")
    with hw.open(tmp_path / "ws", durability="os") as ws:
        ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'orders')")
        sources = inspect_workspace(ws).sources
        sources.start()
        try:
            _until(lambda: sources.statuses()["shop"]["state"] == "streaming")
            assert figures(ws.metrics())["headwater_source_up"] == {("shop",): 1}
            postgres_server.stop()
            _until(lambda: sources.statuses()["shop"]["state"].startswith(AWAY))
            assert figures(ws.metrics())["headwater_source_up"] == {("shop",): 0}
            postgres_server.start()
            _until(lambda: bool(sources.statuses()["shop"]["up"]))
            with hw.open(tmp_path / "ws", durability="os") as beside:
                beside.log.drop_entry(SOURCE, "shop")
            assert sources.statuses()["shop"]["state"], "it still runs here, until it is looked for"
        finally:
            sources.stop()


class Failing(Source):
    """Has an error and nothing else."""

    topics: ClassVar[dict[str, Any]] = {"orders": "id BIGINT"}

    def read(self, position: int | None) -> Iterator[tuple[dict[str, list[dict[str, int]]], int]]:
        raise ValueError("no page today")
        yield


def test_a_source_that_fails_again_and_again_is_not_up_and_says_why(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        ws.sql(f"CREATE SOURCE pages FROM PYTHON WITH (class = '{__name__}:Failing', every = '0.05 s')")
        sources = inspect_workspace(ws).sources
        sources.start()
        try:
            _until(lambda: sources.statuses()["pages"]["state"].startswith(AGAIN))
            assert figures(ws.metrics())["headwater_source_up"] == {("pages",): 0}
            (shown,) = ws.sql("SHOW SOURCES").to_pylist()
            assert "no page today" in str(shown)
        finally:
            sources.stop()


def test_what_was_made_from_a_declaration_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        made = SinkDefinition("s", "parquet", {}, view="v")
        declared = ConnectorDeclarations(
            ws.log, SINK, SinkDefinition.from_document, SinkExistsError, SinkNotFoundError
        )
        declared.put(made)
        read = declared.entry("s")
        declared.put(replace(made, options={"on_error": "divert"}))
        with pytest.raises(hw.ConflictError):
            declared.put(replace(made, options={"path": "x"}), read)
        assert declared.all()["s"].options == {"on_error": "divert"}


def _until(so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
