"""Bounds on time are read off conditions and frames as they are written."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from headwater.plan.relations.time_bounds import TimeBounds
from headwater.spark.catalyst import identity, items, kind, option

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.ansi.enabled", "true")
    for name in ("l", "r"):
        own.sql(
            "SELECT 1 AS k, TIMESTAMP '2026-01-01' AS at, TIMESTAMP '2026-01-01' AS other"
        ).createTempView(name)
    return own


def analysed(session: SparkSession, sql: str, wanted: str) -> Any:
    """The first node of a kind in the analysed plan of a query."""
    left = [session.sql(sql)._jdf.queryExecution().analyzed()]
    while left:
        node = left.pop(0)
        if kind(node) == wanted:
            return node
        left += items(node.children())
    raise AssertionError(f"no {wanted} in {sql}")


def column(plan: Any, name: str) -> int:
    return identity(next(a for a in items(plan.output()) if a.name() == name))


JOINS = [
    ("r.at BETWEEN l.at - INTERVAL '30 seconds' AND l.at + INTERVAL '1 minute'", (-30 * SECOND, MINUTE)),
    ("l.at BETWEEN r.at - INTERVAL '1 minute' AND r.at + INTERVAL '30 seconds'", (-30 * SECOND, MINUTE)),
    ("r.at >= l.at AND r.at < l.at + INTERVAL '1 hour'", (0, HOUR - 1)),
    ("l.at <= r.at AND l.at > r.at - INTERVAL '1 hour'", (0, HOUR - 1)),
    ("r.at + INTERVAL '5 seconds' > l.at AND r.at - INTERVAL '1' DAY <= l.at", (-5 * SECOND + 1, 24 * HOUR)),
    ("r.at - l.at BETWEEN INTERVAL '0' SECOND AND INTERVAL '5' MINUTE", (0, 5 * MINUTE)),
    ("l.at - r.at <= INTERVAL '5' MINUTE AND l.at - r.at >= INTERVAL '-5' MINUTE", (-5 * MINUTE, 5 * MINUTE)),
    ("r.at >= l.at", (0, None)),
    ("r.at < l.at", (None, -1)),
    (
        "r.at >= l.at AND r.at >= l.at + INTERVAL '1 minute' AND r.at <= l.at + INTERVAL '1 hour' "
        "AND r.at < l.at + INTERVAL '2 minutes'",
        (MINUTE, 2 * MINUTE - 1),
    ),
    (
        "l.other <= r.other AND r.at BETWEEN l.at AND l.at + INTERVAL '1 minute' AND l.at > TIMESTAMP '2026-01-01'",
        (0, MINUTE),
    ),
    ("(r.at >= l.at OR l.k = r.k)", None),
    ("NOT r.at < l.at", None),
    ("r.at BETWEEN l.at AND l.at + INTERVAL '1' MONTH", (0, None)),
    ("r.at > l.at + make_dt_interval(0, 0, 0, l.k)", None),
    ("date_trunc('hour', r.at) >= l.at", None),
    ("r.at > TIMESTAMP '2026-01-01'", None),
]


@pytest.mark.parametrize(("condition", "expected"), JOINS)
def test_bounds_of_a_join(condition: str, expected: Any, session: SparkSession) -> None:
    join = analysed(session, f"SELECT 1 FROM l JOIN r ON l.k = r.k AND {condition}", "Join")
    times = ({column(join.left(), "at")}, {column(join.right(), "at")})
    found = TimeBounds().of(option(join.condition()), *times)
    assert (None if found is None else (found.least, found.most)) == expected
    if found is not None:
        assert (identity(found.left), identity(found.right)) == tuple(min(t) for t in times)
        assert found.is_closed == (None not in expected)


FRAMES = [
    ("sum(k) OVER (ORDER BY at RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW)", MINUTE, 0),
    (
        "sum(k) OVER (ORDER BY at RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING AND INTERVAL '2' MINUTE FOLLOWING)",
        MINUTE,
        2 * MINUTE,
    ),
    ("sum(k) OVER (ORDER BY at)", None, 0),
    ("sum(k) OVER (ORDER BY at RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)", 0, None),
    ("sum(k) OVER (ORDER BY at ROWS BETWEEN 2 PRECEDING AND CURRENT ROW)", None, 0),
    ("sum(k) OVER (ORDER BY at ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING)", None, None),
    ("lag(k) OVER (ORDER BY at)", None, 0),
    ("lead(k) OVER (ORDER BY at)", None, None),
    ("row_number() OVER (ORDER BY at)", None, 0),
    ("ntile(2) OVER (ORDER BY at)", None, None),
    ("percent_rank() OVER (ORDER BY at)", None, None),
    ("cume_dist() OVER (ORDER BY at)", None, None),
]


@pytest.mark.parametrize(("function", "behind", "ahead"), FRAMES)
def test_how_far_a_frame_looks(
    function: str, behind: int | None, ahead: int | None, session: SparkSession
) -> None:
    window = analysed(session, f"SELECT {function} AS n FROM l", "Window")
    (named,) = items(window.windowExpressions())
    assert TimeBounds().behind(named) == behind
    assert TimeBounds().ahead(named) == ahead
