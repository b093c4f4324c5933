"""Patterns in time: late rows are taken back into account or left out, final matches come once, and some run out of time."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import to_us
from headwater.core.settings import LogSettings
from headwater.operators.match_recognize.spec import Navigate
from tests.conftest import LONG
from tests.equation.random_patterns import (
    BEGIN,
    COLUMNS,
    MEASURES,
    SECOND,
    TIME,
    Asked,
    Question,
    conditions,
    plain,
    question,
    record,
)
from tests.operators.match_recognize.kit import concat
from tests.operators.match_recognize.oracle import Row

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
BIT = {name: conditions(name)[0] for name in "ABC"}
WITHIN = 6
TOPIC = f"CREATE TOPIC events ({COLUMNS}, WATERMARK FOR time AS time - INTERVAL 3 SECONDS)"
BEGUN = Asked("unix_micros(FIRST(time))", (Navigate(TIME, None, "first"),))


def measured(*sql: str) -> list[Asked]:
    return [m for wanted in sql for m in MEASURES if m.sql == wanted]


FALLS = question(concat("A B* C"), BIT, measured("FIRST(A.x)", "count(*)", "sum(A.x)"), within=WITHIN)
PARTS = question(
    concat("A B+? C"), BIT, measured("CLASSIFIER()", "LAST(x, 1)"), rows="all, with unmatched", within=WITHIN
)
OPEN = question(concat("A B* C"), BIT, measured("FIRST(A.x)", "count(*)"))
MISSED = question(concat("A B* C"), BIT, [BEGUN, *measured("count(*)")], within=WITHIN, timeouts=True)


def view(name: str, asked: Question, options: str = "", emit: str = "") -> str:
    return f"CREATE MATERIALIZED VIEW {name} {options} AS {asked.sql()} {emit}"


DIVERTED, CLOSES = "WITH (late = 'divert')", "EMIT ON WINDOW CLOSE"
VIEWS = [
    view("corrected", FALLS),
    view("diverted", FALLS, DIVERTED),
    view("dropped", PARTS, "WITH (late = 'drop')"),
    view("closed", FALLS, DIVERTED, CLOSES),
    view("parts", PARTS, DIVERTED, CLOSES),
    view("open", OPEN, DIVERTED, CLOSES),
    view("revised", FALLS, "", CLOSES),
    view("missed", MISSED),
    view("missed_in_time", MISSED, DIVERTED),
    view("missed_once", MISSED, DIVERTED, CLOSES),
]


class Feed:
    """Rows whose times go on, some of which come late."""

    def __init__(self, seed: int) -> None:
        self._pick = random.Random(seed)
        self._now = 0

    def tick(self, ws: hw.Workspace) -> None:
        pick = self._pick
        rows = []
        for _ in range(pick.randint(1, 8)):
            self._now += pick.choice([0, 0, 1, 1, 2])
            back = pick.choice([0, 0, 0, 1, 2, 6, 9])
            rows.append(
                (pick.randrange(2), max(0, self._now - back) * SECOND, pick.randrange(8), pick.randrange(4))
            )
        ws.topic("events").append([record(row) for row in rows])
        ws.run(tick_rows=pick.choice([None, 3]))


class Logged:
    """What the log has: all rows, those that were in time, and the watermark."""

    def __init__(self, ws: hw.Workspace) -> None:
        columns = ["key", "time", "bits", "x", "_watermark"]
        table = pa.Table.from_batches(list(ws.topic("events").read(columns=columns)))
        self.rows = []
        self.in_time = []
        for row in table.to_pylist():
            moment = (row["time"] - BEGIN).total_seconds() * SECOND
            kept: Row = (row["key"], round(moment), row["bits"], row["x"])
            self.rows.append(kept)
            if row["_watermark"] is None or row["time"] >= row["_watermark"]:
                self.in_time.append(kept)
        reached = ws.topic("events").watermark(0)
        self.watermark = None if reached is None else to_us(reached) - to_us(BEGIN)


def shown(asked: Question, rows: list[Row], watermark: int | None) -> list[Row]:
    """Matches, and those that had run out of time at a watermark."""
    origin = to_us(BEGIN)
    found = []
    for row in asked.expected(rows):
        begun = row[1]
        if not row[-1] or (watermark is not None and begun + WITHIN * SECOND <= watermark):
            found.append((row[0], begun + origin, *row[2:]))
    return sorted(found, key=repr)


def check(ws: hw.Workspace) -> None:
    log = Logged(ws)
    contents = {
        name: plain(ws.view(name).read())
        for name in ("corrected", "diverted", "dropped", "missed", "missed_in_time")
    }
    assert contents["corrected"] == FALLS.expected(log.rows)
    assert contents["diverted"] == FALLS.expected(log.in_time)
    assert contents["dropped"] == PARTS.expected(log.in_time)
    assert contents["missed"] == shown(MISSED, log.rows, log.watermark)
    assert contents["missed_in_time"] == shown(MISSED, log.in_time, log.watermark)
    late = plain(ws.query("SELECT key, time, bits, x FROM diverted.late"))
    assert sorted(late + log.in_time, key=repr) == sorted(log.rows, key=repr)


def test_views_in_time_hold_what_the_oracle_says_tick_by_tick(tmp_path: Path, spark: SparkSession) -> None:
    feed = Feed(seed=5)
    final = ("closed", "parts", "open", "missed_once")
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(TOPIC)
        feed.tick(ws)
        for statement in VIEWS:
            ws.sql(statement)
        for _ in range(15 if LONG else 5):
            feed.tick(ws)
            check(ws)
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        feed.tick(ws)
        check(ws)
        report = ws.verify()
        assert report.ok, report.differences
        before = {name: ws.view(name).read().num_rows for name in final}
        assert before["closed"] > 0
        ws.topic("events").finish()
        ws.run()
        log = Logged(ws)
        assert plain(ws.view("closed").read()) == FALLS.expected(log.in_time)
        assert plain(ws.view("parts").read()) == PARTS.expected(log.in_time)
        assert plain(ws.view("open").read()) == OPEN.expected(log.in_time)
        assert plain(ws.view("revised").read()) == FALLS.expected(log.rows)
        assert plain(ws.view("missed_once").read()) == shown(MISSED, log.in_time, log.watermark)
        for name in final:  # nothing that was shown was taken back
            changes = ws.view(name).changes(since=0).to_pylist()
            assert len(changes) >= before[name] > 0 or name == "open"
            assert all(change["_weight"] > 0 for change in changes), name
        report = ws.verify()
        assert report.ok, report.differences
