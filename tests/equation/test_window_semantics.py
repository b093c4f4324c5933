"""What tumbling, hopping and cumulative windows mean, case by case: what those who know Flink, Beam or Kafka Streams expect.

Each case is a table of rows, a SELECT and the rows it gives. All run through one workspace, in several ticks and out of order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from tests.raising import raises

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """Rows of (at, k, x), a SELECT from `{t}`, and what it gives, as text; times without a day are of one day."""

    rows: Sequence[tuple[str | None, str, float]]
    select: str
    expected: Sequence[tuple[Any, ...]]
    views: list[str] = field(default_factory=list)
    """SELECTs that come first, as `{t}_0` and so on."""


BIDS = [
    ("08:05", "C", 4.0),
    ("08:07", "A", 2.0),
    ("08:09", "D", 5.0),
    ("08:11", "B", 3.0),
    ("08:13", "E", 1.0),
    ("08:17", "F", 6.0),
]
ENDS = [
    ("08:09:59.999999", "a", 1.0),
    ("08:10", "a", 2.0),
    ("08:19:59.999999", "a", 4.0),
    ("08:20", "a", 8.0),
]
OLD = [
    ("1969-12-31 23:59:59.999999", "a", 1.0),
    ("1970-01-01 00:00", "a", 2.0),
    ("1969-12-31 23:50", "a", 4.0),
]


def summed(window: str, more: str = "") -> str:
    return f"SELECT w.start AS s, w.end AS e, sum(x) AS x FROM (SELECT {window} AS w, x FROM {{t}}) GROUP BY w {more}"


CASES = {
    "tumbling windows do not overlap and leave no gap": Case(
        BIDS, summed("window(at, '10 minutes')"), [("08:00", "08:10", 11.0), ("08:10", "08:20", 10.0)]
    ),
    "a row is in as many hopping windows as slides go into the size": Case(
        BIDS,
        summed("window(at, '10 minutes', '5 minutes')"),
        [
            ("08:00", "08:10", 11.0),
            ("08:05", "08:15", 15.0),
            ("08:10", "08:20", 10.0),
            ("08:15", "08:25", 6.0),
        ],
    ),
    "cumulative windows have one start and grow by the step up to the size": Case(
        BIDS,
        summed("cumulate_window(at, '2 minutes', '10 minutes')"),
        [
            ("08:00", "08:06", 4.0),
            ("08:00", "08:08", 6.0),
            ("08:00", "08:10", 11.0),
            ("08:10", "08:12", 3.0),
            ("08:10", "08:14", 4.0),
            ("08:10", "08:16", 4.0),
            ("08:10", "08:18", 10.0),
            ("08:10", "08:20", 10.0),
        ],
    ),
    "a start moves all windows": Case(
        BIDS,
        summed("window(at, '10 minutes', '10 minutes', '1 minute')"),
        [("08:01", "08:11", 11.0), ("08:11", "08:21", 10.0)],
    ),
    "a start moves hopping windows and may be below zero": Case(
        BIDS[:2],
        summed("window(at, '10 minutes', '5 minutes', '-1 minutes')"),
        [("07:59", "08:09", 6.0), ("08:04", "08:14", 6.0)],
    ),
    "a row at the end of a tumbling window belongs to the next": Case(
        ENDS,
        summed("window(at, '10 minutes')"),
        [("08:00", "08:10", 1.0), ("08:10", "08:20", 6.0), ("08:20", "08:30", 8.0)],
    ),
    "a row at the end of a hopping window is in it no more": Case(
        [("08:10", "a", 1.0)],
        summed("window(at, '10 minutes', '5 minutes')"),
        [("08:05", "08:15", 1.0), ("08:10", "08:20", 1.0)],
    ),
    "a row at the end of a step is in the next, and at the end of the size in the next windows": Case(
        [("08:02", "a", 1.0), ("08:03:59.999999", "a", 2.0), ("08:06", "a", 4.0)],
        summed("cumulate_window(at, '2 minutes', '6 minutes')"),
        [
            ("08:00", "08:04", 3.0),
            ("08:00", "08:06", 3.0),
            *(("08:06", f"08:{m}", 4.0) for m in ("08", "10", "12")),
        ],
    ),
    "rows at one instant are each counted": Case(
        [("08:05", "a", 1.0), ("08:05", "a", 1.0), ("08:05", "b", 1.0)],
        "SELECT window(at, '10 minutes').start AS s, count(*) AS n FROM {t} GROUP BY window(at, '10 minutes')",
        [("08:00", 3)],
    ),
    "tumbling windows before 1970 start at multiples too": Case(
        OLD,
        summed("window(at, '10 minutes')"),
        [("1969-12-31 23:50", "1970-01-01 00:00", 5.0), ("1970-01-01 00:00", "1970-01-01 00:10", 2.0)],
    ),
    "hopping windows before 1970 start at multiples too": Case(
        OLD[:1],
        summed("window(at, '10 minutes', '5 minutes')"),
        [("1969-12-31 23:50", "1970-01-01 00:00", 1.0), ("1969-12-31 23:55", "1970-01-01 00:05", 1.0)],
    ),
    "cumulative windows before 1970 start at multiples too": Case(
        OLD,
        summed("cumulate_window(at, '5 minutes', '10 minutes')"),
        [
            ("1969-12-31 23:50", "1969-12-31 23:55", 4.0),
            ("1969-12-31 23:50", "1970-01-01 00:00", 5.0),
            ("1970-01-01 00:00", "1970-01-01 00:05", 2.0),
            ("1970-01-01 00:00", "1970-01-01 00:10", 2.0),
        ],
    ),
    "the size of hopping windows need be no multiple of the slide": Case(
        [(f"1970-01-01 00:00:0{n}", "a", 2.0**n) for n in (1, 2, 4, 5, 8)],
        summed("window(at, '5 seconds', '3 seconds')"),
        [
            ("1969-12-31 23:59:57", "1970-01-01 00:00:02", 2.0),
            ("1970-01-01 00:00:00", "1970-01-01 00:00:05", 2.0 + 4.0 + 16.0),
            ("1970-01-01 00:00:03", "1970-01-01 00:00:08", 16.0 + 32.0),
            ("1970-01-01 00:00:06", "1970-01-01 00:00:11", 256.0),
        ],
    ),
    "a slide as long as the size makes hopping windows tumble": Case(
        ENDS[:2],
        summed("window(at, '10 minutes', '10 minutes')"),
        [("08:00", "08:10", 1.0), ("08:10", "08:20", 2.0)],
    ),
    "a week starts on the weekday of 1970, which was a Thursday": Case(
        [("2026-01-07 12:00", "a", 1.0), ("2026-01-08 00:00", "a", 2.0)],
        summed("window(at, '1 week')"),
        [("2026-01-01 00:00", "2026-01-08 00:00", 1.0), ("2026-01-08 00:00", "2026-01-15 00:00", 2.0)],
    ),
    "a week starts on a Monday by a start of four days": Case(
        [("2026-01-04 23:59", "a", 1.0), ("2026-01-05 00:00", "a", 2.0)],
        summed("window(at, '7 days', '7 days', '4 days')"),
        [("2025-12-29 00:00", "2026-01-05 00:00", 1.0), ("2026-01-05 00:00", "2026-01-12 00:00", 2.0)],
    ),
    "a day of a zone has 23 hours when summer comes and 25 when it goes": Case(
        [
            ("2026-03-28 22:59:59", "a", 1.0),
            ("2026-03-28 23:00", "a", 1.0),
            ("2026-03-29 21:59:59", "a", 1.0),
            ("2026-03-29 22:00", "a", 1.0),
            ("2026-10-24 21:59:59", "a", 1.0),
            ("2026-10-24 22:00", "a", 1.0),
            ("2026-10-25 00:30", "a", 1.0),
            ("2026-10-25 01:30", "a", 1.0),
            ("2026-10-25 22:59:59", "a", 1.0),
            ("2026-10-25 23:00", "a", 1.0),
        ],
        """SELECT date_trunc('day', from_utc_timestamp(at, 'Europe/Berlin')) AS day, count(*) AS n FROM {t}
           GROUP BY date_trunc('day', from_utc_timestamp(at, 'Europe/Berlin'))""",
        [
            ("2026-03-28 00:00", 1),
            ("2026-03-29 00:00", 2),
            ("2026-03-30 00:00", 1),
            ("2026-10-24 00:00", 1),
            ("2026-10-25 00:00", 4),
            ("2026-10-26 00:00", 1),
        ],
    ),
    "windows of a day are days of UTC": Case(
        [("2026-03-28 23:30", "a", 1.0), ("2026-03-29 22:30", "a", 2.0)],
        summed("window(at, '1 day')"),
        [("2026-03-28 00:00", "2026-03-29 00:00", 1.0), ("2026-03-29 00:00", "2026-03-30 00:00", 2.0)],
    ),
    "a row without a time is in no window": Case(
        [(None, "a", 1.0), ("08:05", "a", 2.0)], summed("window(at, '10 minutes')"), [("08:00", "08:10", 2.0)]
    ),
    "a row without a time is in no cumulative window": Case(
        [(None, "a", 1.0), ("08:05", "a", 2.0)],
        summed("cumulate_window(at, '5 minutes', '10 minutes')"),
        [("08:00", "08:10", 2.0)],
    ),
    "a window in which nothing happened has no row": Case(
        [("08:05", "a", 1.0), ("08:35", "a", 2.0)],
        summed("window(at, '10 minutes')"),
        [("08:00", "08:10", 1.0), ("08:30", "08:40", 2.0)],
    ),
    "each key has its own windows": Case(
        [("08:01", "a", 1.0), ("08:02", "b", 2.0), ("08:11", "a", 4.0)],
        """SELECT window(at, '10 minutes').start AS s, k, sum(x) AS x, avg(x) AS m FROM {t}
           GROUP BY window(at, '10 minutes'), k""",
        [("08:00", "a", 1.0, 1.0), ("08:00", "b", 2.0, 2.0), ("08:10", "a", 4.0, 4.0)],
    ),
    "two windows stand side by side in a union": Case(
        BIDS[:2],
        summed("window(at, '10 minutes')") + " UNION ALL " + summed("window(at, '1 hour')"),
        [("08:00", "08:10", 6.0), ("08:00", "09:00", 6.0)],
    ),
    "windows of windows add up": Case(
        BIDS,
        """SELECT window(window_time(w), '1 hour').start AS s, max(n) AS most, sum(n) AS n FROM
             (SELECT window(at, '10 minutes') AS w, count(*) AS n FROM {t} GROUP BY window(at, '10 minutes'))
           GROUP BY window(window_time(w), '1 hour')""",
        [("08:00", 3, 6)],
    ),
    "cumulative windows of tumbling windows add up": Case(
        BIDS,
        """SELECT c.end AS e, sum(y) AS y FROM (SELECT cumulate_window(window_time(w), '10 minutes', '30 minutes') AS c, y
             FROM (SELECT window(at, '10 minutes') AS w, sum(x) AS y FROM {t} GROUP BY window(at, '10 minutes')))
           GROUP BY c""",
        [("08:10", 11.0), ("08:20", 21.0), ("08:30", 21.0)],
    ),
    "HAVING chooses among windows": Case(
        BIDS,
        summed("window(at, '10 minutes', '5 minutes')", "HAVING sum(x) > 10.5"),
        [("08:00", "08:10", 11.0), ("08:05", "08:15", 15.0)],
    ),
    "windows are over views too": Case(
        BIDS,
        "SELECT window(at, '10 minutes').end AS e, count(*) AS n FROM {t}_0 GROUP BY window(at, '10 minutes')",
        [("08:10", 2), ("08:20", 1)],
        views=["SELECT at, x FROM {t} WHERE x >= 4"],
    ),
    "a view reads the windows of another": Case(
        BIDS,
        "SELECT w.start AS s, y FROM {t}_0 WHERE y > 10.5",
        [("08:00", 11.0)],
        views=[
            "SELECT window(at, '10 minutes') AS w, sum(x) AS y FROM {t} GROUP BY window(at, '10 minutes')"
        ],
    ),
    "without GROUP BY a row is given for each of its windows": Case(
        [("08:07", "a", 1.0)],
        "SELECT k, window(at, '10 minutes', '5 minutes').start AS s FROM {t}",
        [("a", "08:00"), ("a", "08:05")],
    ),
    "windows are joined by being equal": Case(
        BIDS,
        """SELECT l.w.start AS s, l.n AS low, r.n AS high FROM
             (SELECT window(at, '10 minutes') AS w, count(*) AS n FROM {t} WHERE x < 4 GROUP BY 1) l JOIN
             (SELECT window(at, '10 minutes') AS w, count(*) AS n FROM {t} WHERE x >= 4 GROUP BY 1) r ON l.w = r.w""",
        [("08:00", 1, 2), ("08:10", 2, 1)],
    ),
    "the first rows of each window are ranked": Case(
        BIDS,
        """SELECT s, k, x FROM (SELECT w.start AS s, k, x, row_number() OVER (PARTITION BY w ORDER BY x DESC) AS r
             FROM (SELECT window(at, '10 minutes') AS w, k, x FROM {t})) WHERE r <= 2""",
        [("08:00", "D", 5.0), ("08:00", "C", 4.0), ("08:10", "F", 6.0), ("08:10", "B", 3.0)],
    ),
    "grouping sets are within each window": Case(
        [("08:01", "a", 1.0), ("08:02", "b", 2.0)],
        """SELECT w.start AS s, k, sum(x) AS x FROM (SELECT window(at, '10 minutes') AS w, k, x FROM {t})
           GROUP BY GROUPING SETS ((w, k), (w))""",
        [("08:00", "a", 1.0), ("08:00", "b", 2.0), ("08:00", None, 3.0)],
    ),
    "distinct values are counted in each window": Case(
        [("08:01", "a", 1.0), ("08:02", "a", 2.0), ("08:12", "a", 2.0)],
        """SELECT window(at, '20 minutes', '10 minutes').start AS s, count(DISTINCT k) AS n, count(*) AS c FROM {t}
           GROUP BY window(at, '20 minutes', '10 minutes')""",
        [("07:50", 1, 2), ("08:00", 1, 3), ("08:10", 1, 1)],
    ),
    "a cumulative window of a day is full at midnight and starts again": Case(
        [("2026-01-01 22:30", "a", 1.0), ("2026-01-01 23:30", "a", 2.0), ("2026-01-02 00:00", "a", 4.0)],
        summed("cumulate_window(at, '1 hour', '1 day')", "HAVING hour(w.end) IN (0, 23, 1)"),
        [
            ("2026-01-01 00:00", "2026-01-01 23:00", 1.0),
            ("2026-01-01 00:00", "2026-01-02 00:00", 3.0),
            ("2026-01-02 00:00", "2026-01-02 01:00", 4.0),
            ("2026-01-02 00:00", "2026-01-02 23:00", 4.0),
            ("2026-01-02 00:00", "2026-01-03 00:00", 4.0),
        ],
    ),
}


def at(text: str | None) -> datetime | None:
    if text is None:
        return None
    return datetime.fromisoformat(text if "-" in text else f"2020-04-15 {text}").replace(tzinfo=UTC)


def shown(value: Any) -> Any:
    return at(value) if isinstance(value, str) and ":" in value else value


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A workspace in which every case has been played: its rows out of order, and by several ticks."""
    chance = random.Random(5)
    with hw.open(tmp_path_factory.mktemp("windows") / "w", durability="os", spark=spark) as workspace:
        left: dict[str, list[dict[str, Any]]] = {}
        for number, case in enumerate(CASES.values()):
            name = f"t{number}"
            workspace.sql(f"CREATE TOPIC {name} (at TIMESTAMP, k STRING, x DOUBLE)")
            for place, select in enumerate([*case.views, case.select]):
                view = f"{name}_{place}" if place < len(case.views) else f"v{number}"
                workspace.sql(f"CREATE MATERIALIZED VIEW {view} AS {select.format(t=name)}")
            rows = [{"at": at(t), "k": k, "x": x} for t, k, x in case.rows]
            left[name] = chance.sample(rows, len(rows))
        while any(left.values()):
            workspace.append({name: rows[:3] for name, rows in left.items() if rows})
            left = {name: rows[3:] for name, rows in left.items()}
            assert workspace.run().stopped == {}
        yield workspace


@pytest.mark.parametrize("case", CASES)
def test_of_windows(case: str, ws: hw.Workspace) -> None:
    number = list(CASES).index(case)
    found = [tuple(row.values()) for row in ws.view(f"v{number}").read().to_pylist()]
    wanted = [tuple(map(shown, row)) for row in CASES[case].expected]
    assert sorted(found, key=repr) == sorted(wanted, key=repr)


@pytest.mark.parametrize(
    "window", ["window(at, '5 minutes', '10 minutes')", "window(at, '10 minutes', '5 minutes', '7 minutes')"]
)
def test_a_slide_beyond_the_size_and_a_start_beyond_the_slide_are_refused(
    window: str, ws: hw.Workspace
) -> None:
    with raises(hw.StatementError, condition="DATATYPE_MISMATCH.PARAMETER_CONSTRAINT_VIOLATION"):
        ws.sql(
            f"CREATE MATERIALIZED VIEW wrong AS SELECT {window} AS w, count(*) AS n FROM t0 GROUP BY {window}"
        )


def test_a_row_whose_time_is_put_right_leaves_its_windows_for_others(ws: hw.Workspace) -> None:
    ws.sql("""
        CREATE TOPIC moved (id BIGINT, at TIMESTAMP, x DOUBLE, PRIMARY KEY (id));
        CREATE MATERIALIZED VIEW moved_windows AS
          SELECT w.start AS s, w.end AS e, count(*) AS n
          FROM (SELECT cumulate_window(at, '5 minutes', '10 minutes') AS w FROM moved) GROUP BY w""")
    for time, expected in (
        ("08:01", [("08:00", "08:05", 1), ("08:00", "08:10", 1)]),
        ("08:06", [("08:00", "08:10", 1)]),
        ("08:12", [("08:10", "08:15", 1), ("08:10", "08:20", 1)]),
    ):
        ws.topic("moved").append([{"id": 1, "at": at(time), "x": 1.0}])
        ws.run()
        found = [tuple(row.values()) for row in ws.view("moved_windows").read().to_pylist()]
        assert sorted(found) == [tuple(map(shown, row)) for row in expected]
    ws.topic("moved").delete([{"id": 1}])
    ws.run()
    assert ws.view("moved_windows").read().num_rows == 0


@pytest.mark.long
def test_all_of_them_are_what_batch_gives(ws: hw.Workspace) -> None:
    verified = ws.verify()
    assert verified.ok, verified.differences
    assert {f"v{number}" for number in range(len(CASES))} <= {check.view for check in verified.views}
