"""State of windows that are closed goes: what operators keep stays as it is while a topic grows at a constant rate."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

import headwater as hw
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS, ROWS, KEYS = 18, 200, 20

QUERIES = {
    "tumbling": "SELECT window(at, '1 hour') AS w, k, count(*) AS n, max(v) AS m FROM a GROUP BY window(at, '1 hour'), k",
    "hopping": "SELECT window(at, '2 hours', '1 hour') AS w, sum(v) AS s FROM a GROUP BY window(at, '2 hours', '1 hour')",
    "percentile": "SELECT window(at, '1 day') AS w, percentile(v, 0.5) AS p FROM a GROUP BY window(at, '1 day')",
    "session": "SELECT k, session_window(at, '1 hour') AS w, count(*) AS n FROM a GROUP BY k, session_window(at, '1 hour')",
    "session of lists": "SELECT k, session_window(at, '1 hour') AS w, array_agg(v ORDER BY at) AS l FROM a "
    "GROUP BY k, session_window(at, '1 hour')",
    "sliding": "SELECT k, at, v, sum(v) OVER (PARTITION BY k ORDER BY at "
    "RANGE BETWEEN INTERVAL '2' HOURS PRECEDING AND CURRENT ROW) AS s FROM a",
    "pattern": "SELECT * FROM a MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES FIRST(x.at) AS since, sum(y.v) AS s "
    "PATTERN (x y+ z) WITHIN INTERVAL 1 HOUR DEFINE x AS v > 5, y AS y.v <= x.v, z AS v > 7)",
    "join": "SELECT a.k, a.at, b.at AS other FROM a LEFT JOIN b ON a.k = b.k "
    "AND b.at BETWEEN a.at - INTERVAL '10' MINUTES AND a.at + INTERVAL '20' MINUTES",
}


def rows(day: int, topic: int) -> pa.Table:
    random = np.random.default_rng((day, topic))
    micros = np.sort(random.integers(0, 86_400_000_000, ROWS)) + day * 86_400_000_000
    at = pa.array(micros + int(START.timestamp()) * 1_000_000).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        {
            "k": pa.array(random.integers(0, KEYS, ROWS)),
            "v": pa.array(random.integers(0, 9, ROWS)),
            "at": at,
        }
    )


def kept(ws: hw.Workspace) -> int:
    """Rows in the arrangements of operators, which is not what the view shows."""
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    return sum(
        ref.rows
        for name, refs in manifest.arrangements.items()
        if not name.endswith(("/contents", "/late"))
        for ref in refs
    )


FEW = ("tumbling", "session", "sliding", "pattern", "join")
"""One query for each kind of state; the others take as long, and are for `make test-long`."""
CASES = [
    pytest.param(name, "late = 'drop'", marks=() if name in FEW else pytest.mark.long) for name in QUERIES
]
CASES += [
    pytest.param("join", "correct_for = '6 hours'"),
    pytest.param("tumbling", "correct_for = '6 hours'", marks=pytest.mark.long),
]


@pytest.mark.parametrize(("name", "policy"), CASES)
def test_state_stays_as_large_as_it_is(tmp_path: Path, spark: SparkSession, name: str, policy: str) -> None:
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        for topic in ("a", "b"):
            ws.sql(
                f"CREATE TOPIC {topic} (k BIGINT, v BIGINT, at TIMESTAMP, "
                "WATERMARK FOR at AS at - INTERVAL '1 hour') WITH (partitions = 1)"
            )
        ws.sql(f"CREATE MATERIALIZED VIEW result WITH ({policy}) AS {QUERIES[name]}")
        sizes = []
        for day in range(DAYS):
            batch = {"a": rows(day, 0), "b": rows(day, 1)}
            ws.append(batch if name == "join" else {"a": batch["a"]})
            ws.run()
            sizes.append(kept(ws))
        # it grows from one merge to the next, eight ticks apart, and not beyond
        assert max(sizes[-8:]) <= 1.3 * max(sizes[:8])
        assert ws.verify().ok


SLOW_LEFT = {
    "groups above a join": "SELECT a.at, count(*) AS n FROM a JOIN b ON a.k = b.k "
    "AND b.at BETWEEN a.at AND a.at + INTERVAL '1' HOUR GROUP BY a.at",
    "frames above frames": "SELECT k, v, at, s, count(*) OVER (PARTITION BY v ORDER BY at "
    "RANGE BETWEEN INTERVAL '2' DAYS PRECEDING AND CURRENT ROW) AS n FROM ("
    "SELECT k, v, at, sum(v) OVER (PARTITION BY k ORDER BY at "
    "RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW) AS s FROM a)",
}


@pytest.mark.parametrize("name", SLOW_LEFT)
def test_what_stands_above_keeps_what_it_needs_itself(tmp_path: Path, spark: SparkSession, name: str) -> None:
    """The right topic is days ahead of the left one, whose rows still come for groups that are old by the right's time."""
    with hw.open(tmp_path / "ws", spark=spark) as ws:
        for topic in ("a", "b"):
            ws.sql(
                f"CREATE TOPIC {topic} (k BIGINT, v BIGINT, at TIMESTAMP, "
                "WATERMARK FOR at AS at - INTERVAL '1 hour') WITH (partitions = 1)"
            )
        ws.sql(f"CREATE MATERIALIZED VIEW result WITH (late = 'drop') AS {SLOW_LEFT[name]}")
        for day in range(12):
            ws.topic("b").append(rows(day, 1))
        for day in range(9):
            again = [{"k": k, "v": 1, "at": START + timedelta(days=day)} for k in range(KEYS)]
            for batch in (again, again, rows(day, 0)):
                ws.topic("a").append(batch)
                ws.run()
        checked = ws.verify()
        assert checked.ok, checked.differences
