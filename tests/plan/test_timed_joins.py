"""Joins in time, however they are written, and EMIT ON WINDOW CLOSE beside tables."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw

pytestmark = pytest.mark.slow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TIMED = "at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute'"
TOPICS = f"""
CREATE TOPIC a (k BIGINT, x BIGINT, {TIMED});
CREATE TOPIC b (k BIGINT, y BIGINT, {TIMED});
CREATE TOPIC c (k BIGINT, z BIGINT, {TIMED});
"""
NEAR = "b.at BETWEEN a.at - INTERVAL '2 minutes' AND a.at"
THEN = "c.k = a.k AND c.at BETWEEN a.at AND a.at + INTERVAL '1 minute'"
SAME = {
    "where": (
        f"SELECT a.x, b.y FROM a, b WHERE a.k = b.k AND {NEAR} AND a.x <> 3",
        f"SELECT a.x, b.y FROM a JOIN b ON a.k = b.k AND {NEAR} WHERE a.x <> 3",
    ),
    "three": (
        f"SELECT a.x, b.y, c.z FROM a, b, c WHERE {THEN} AND a.k = b.k AND {NEAR}",
        f"SELECT a.x, b.y, c.z FROM a JOIN b ON a.k = b.k AND {NEAR} JOIN c ON {THEN}",
    ),
    "crossed": (
        f"SELECT a.x, b.y FROM a CROSS JOIN b WHERE {NEAR}",
        f"SELECT a.x, b.y FROM a JOIN b ON {NEAR}",
    ),
    "equal": (
        "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k AND a.at = b.at",
        "SELECT a.x, b.y FROM a JOIN b ON a.k = b.k AND b.at BETWEEN a.at AND a.at",
    ),
    "equal_left": (
        "SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k AND b.at = a.at - INTERVAL '1 minute'",
        "SELECT a.x, b.y FROM a LEFT JOIN b ON a.k = b.k AND b.at BETWEEN a.at - INTERVAL '1 minute' "
        "AND a.at - INTERVAL '1 minute'",
    ),
}


def rows(ws: hw.Workspace, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in ws.view(name).read().to_pylist()), key=repr)


@pytest.mark.long
def test_joins_in_time_mean_the_same_however_they_are_written(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(5)
    for round_ in range(2):
        with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
            if not round_:
                ws.sql(TOPICS)
                for name, pair in SAME.items():
                    for way, select in zip(("a", "b"), pair, strict=True):
                        ws.sql(
                            f"CREATE MATERIALIZED VIEW {name}_{way} WITH (late = 'divert') AS {select} EMIT ON WINDOW CLOSE"
                        )
            for _ in range(2):
                for topic, column in (("a", "x"), ("b", "y"), ("c", "z")):
                    ws.topic(topic).append(
                        [
                            {
                                "k": chance.randrange(2),
                                column: n,
                                "at": NOON + timedelta(minutes=round_ * 3 + chance.randrange(7)),
                            }
                            for n in range(8)
                        ]
                    )
                assert ws.run(tick_rows=chance.choice([5, 100])).stopped == {}
            for name in SAME:
                assert rows(ws, f"{name}_a") == rows(ws, f"{name}_b"), name
                late = [rows(ws, f"{name}_{way}.late") for way in ("a", "b")]
                assert late[0] == late[1] != []
                if round_:
                    assert rows(ws, f"{name}_a") != []
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        assert ws.verify().differences == ()


def test_a_table_joined_with_windows_changes_what_is_closed_whether_it_has_times_or_not(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(TOPICS)
        ws.sql("CREATE TOPIC people (k BIGINT, name STRING, PRIMARY KEY (k))")
        ws.sql(f"CREATE TOPIC seats (k BIGINT, name STRING, {TIMED}, PRIMARY KEY (k))")
        for table in ("people", "seats"):
            ws.sql(f"""
                CREATE MATERIALIZED VIEW by_{table} AS
                SELECT window(a.at, '1 minute').start AS m, name, count(*) AS n FROM a JOIN {table} t ON a.k = t.k
                GROUP BY window(a.at, '1 minute'), name EMIT ON WINDOW CLOSE""")
        ws.topic("people").append([{"k": 1, "name": "one"}])
        ws.topic("seats").append([{"k": 1, "name": "one", "at": NOON}])
        ws.topic("a").append([{"k": 1, "x": 1, "at": NOON + timedelta(minutes=m)} for m in (0, 1, 2)])
        ws.run()
        assert rows(ws, "by_people") == rows(ws, "by_seats") == [(NOON, "one", 1)]
        ws.topic("people").append([{"k": 1, "name": "uno"}])
        ws.topic("seats").append([{"k": 1, "name": "uno", "at": NOON + timedelta(hours=1)}])
        tick = ws.run().tick
        for table in ("people", "seats"):
            changes = ws.view(f"by_{table}").changes(since=tick - 1).to_pylist()
            assert sorted((row["name"], row["_weight"]) for row in changes) == [("one", -1), ("uno", 1)]
        assert ws.verify().differences == ()
