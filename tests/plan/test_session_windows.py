"""Views with session windows hold what Spark's batch gives, over topics that grow, tables that change, and views."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import StatementError
from headwater.core.settings import LogSettings
from tests.equation.grammar.model import View
from tests.equation.oracle import Oracle, compare
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("user", pa.int64()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("x", pa.int32()),
        ("url", pa.string()),
    ]
)
COLUMNS = "id BIGINT, user BIGINT, at TIMESTAMP, x INT, url STRING"
TOPICS = f"""
CREATE TOPIC clicks ({COLUMNS}) WITH (partitions = 2);
CREATE TOPIC visits ({COLUMNS}, PRIMARY KEY (id)) WITH (partitions = 2);
"""
W = "session_window(at, '5 minutes')"
BY_USER = f"GROUP BY user, {W}"
GAP = "session_window(at, CASE WHEN x > 2 THEN '9 minutes' WHEN x < 0 THEN '0 minutes' ELSE '2 minutes' END)"

VIEWS = [
    View(name, select, reads)
    for name, select, reads in [
        (
            "counted",
            f"SELECT user, {W} AS w, count(*) AS n, sum(x) AS s, min(url) AS a, max(x) AS b, avg(x) AS m "
            f"FROM clicks {BY_USER}",
            ("clicks",),
        ),
        (
            "visited",
            f"SELECT user, {W} AS w, count(*) AS n, sum(x) AS s, min(url) AS a, max_by(url, id) AS b "
            f"FROM visits {BY_USER}",
            ("visits",),
        ),
        ("alone", f"SELECT {W} AS w, count(x) AS n, max(at) AS last FROM clicks GROUP BY {W}", ("clicks",)),
        (
            "many",
            f"SELECT user, {W} AS w FROM clicks {BY_USER} HAVING count(*) > 1 AND user IS NOT NULL",
            ("clicks",),
        ),
        (
            "since",
            f"SELECT user, {W} AS w, count(*) AS n FROM visits {BY_USER} "
            "HAVING session_window.start > TIMESTAMP '2026-01-01 00:20:00'",
            ("visits",),
        ),
        (
            "listed",
            f"SELECT user, {W}.start AS began, collect_set(url) AS urls, percentile(x, 0.5) AS middle "
            f"FROM visits {BY_USER}",
            ("visits",),
        ),
        (
            "told_apart",
            f"SELECT user, {W} AS w, count(DISTINCT url) AS urls, sum(x) AS s FROM clicks {BY_USER}",
            ("clicks",),
        ),
        (
            "twice_apart",
            f"SELECT user, {W} AS w, count(DISTINCT url) AS urls, count(DISTINCT x) AS xs FROM visits {BY_USER}",
            ("visits",),
        ),
        ("moving", f"SELECT user, {GAP} AS w, count(*) AS n FROM clicks GROUP BY user, {GAP}", ("clicks",)),
        ("moving_kept", f"SELECT {GAP} AS w, sum(x) AS n FROM visits GROUP BY {GAP}", ("visits",)),
        (
            "both",
            f"SELECT user, {W} AS w, count(*) AS n FROM clicks GROUP BY GROUPING SETS ((user, {W}), ({W}))",
            ("clicks",),
        ),
        ("different", f"SELECT DISTINCT {W} AS w FROM visits", ("visits",)),
        # above others
        (
            "later",
            "SELECT user, w, n FROM counted WHERE w.start > TIMESTAMP '2026-01-01 00:20:00'",
            ("counted",),
        ),
        ("together", "SELECT w, count(*) AS n FROM counted GROUP BY w", ("counted",)),
        ("slim", "SELECT user, at, x FROM clicks WHERE x IS NOT NULL", ("clicks",)),
        ("of_slim", f"SELECT user, {W} AS w, sum(x) AS s FROM slim {BY_USER}", ("slim",)),
        ("last_seen", "SELECT user, max(at) AS at FROM clicks GROUP BY user", ("clicks",)),
        ("seen", f"SELECT {W} AS w, count(*) AS users FROM last_seen GROUP BY {W}", ("last_seen",)),
    ]
]
ORACLE = [
    # Spark takes the condition to the rows, where it cuts sessions: here it meets the sessions of a table
    View(
        "since",
        "SELECT user, w, n FROM visited WHERE w.start > TIMESTAMP '2026-01-01 00:20:00'",
        ("visited",),
    )
    if view.name == "since"
    # Spark tells values apart in sessions of their own, where they are of several columns
    else View(
        "twice_apart",
        f"SELECT user, {W} AS w, CAST(size(collect_set(url)) AS BIGINT) AS urls, "
        f"CAST(size(collect_set(x)) AS BIGINT) AS xs FROM visits {BY_USER}",
        ("visits",),
    )
    if view.name == "twice_apart"
    else view
    for view in VIEWS
]
LISTS = f"SELECT user, {W} AS w, array_agg(url ORDER BY at, id) AS path FROM visits {BY_USER}"


class Rows:
    """Random records, and what the two topics hold of them."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.clicks: list[dict[str, Any]] = []
        self.visits: dict[int, dict[str, Any]] = {}

    def tick(self, ws: hw.Workspace) -> None:
        """Append, update and delete some, and have the views see it."""
        fresh = [self._row(len(self.clicks) + i) for i in range(self._random.randint(0, 12))]
        changed = [self._row(self._random.randint(0, 25)) for _ in range(self._random.randint(1, 10))]
        gone = self._random.sample(sorted(self.visits), min(len(self.visits), self._random.randint(0, 4)))
        if fresh:
            ws.topic("clicks").append(fresh)
            self.clicks += fresh
        if gone:
            ws.topic("visits").delete([{"id": i} for i in gone])
            for i in gone:
                del self.visits[i]
        ws.topic("visits").append(changed)
        self.visits |= {row["id"]: row for row in changed}
        ws.run(tick_rows=self._random.choice([None, 10]))

    def tables(self) -> dict[str, pa.Table]:
        """What the topics hold."""
        return {
            "clicks": pa.Table.from_pylist(self.clicks, schema=SCHEMA),
            "visits": pa.Table.from_pylist(list(self.visits.values()), schema=SCHEMA),
        }

    def _row(self, number: int) -> dict[str, Any]:
        pick = self._random
        minutes = pick.choice([None, *range(0, 60, 1)])
        return {
            "id": number,
            "user": pick.choice([None, 1, 2, 3]),
            "at": None if minutes is None else datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes),
            "x": pick.choice([None, -1, 0, 1, 2, 3]),
            "url": pick.choice([None, "/", "/a", "/b"]),
        }


@pytest.mark.long
def test_views_of_sessions_hold_what_batch_gives_tick_by_tick(
    tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    rows = Rows(seed=1)
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(TOPICS)
        rows.tick(ws)
        for view in VIEWS:
            ws.sql(view.ddl)
        ws.sql(f"CREATE MATERIALIZED VIEW paths AS {LISTS}")
        for _ in range(2):
            rows.tick(ws)
        _compare(ws, rows, oracle)
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        for _ in range(2):
            rows.tick(ws)
        _compare(ws, rows, oracle)
        report = ws.verify()
        assert report.ok, report.differences


def _compare(ws: hw.Workspace, rows: Rows, oracle: Oracle) -> None:
    for name, expected in oracle.run(rows.tables(), ORACLE).items():
        told = compare(ws.view(name).read(), expected)
        assert told is None, f"{name}: {told}"
    wanted: dict[tuple[Any, ...], list[Any]] = {}
    present = [row for row in rows.visits.values() if row["at"] is not None]
    for row in sorted(present, key=lambda r: (str(r["user"]), r["at"], r["id"])):
        last = next(reversed(wanted), None)
        if last is not None and last[0] == row["user"] and last[2] >= row["at"]:
            path = wanted.pop(last)
            key = (row["user"], last[1], row["at"] + timedelta(minutes=5))
        else:
            path, key = [], (row["user"], row["at"], row["at"] + timedelta(minutes=5))
        wanted[key] = [*path, row["url"]] if row["url"] is not None else path
    have = {
        (r["user"], r["w"]["start"], r["w"]["end"]): r["path"] for r in ws.view("paths").read().to_pylist()
    }
    assert have == wanted


def at(minutes: int) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=minutes)


def click(number: int, user: int, minutes: int) -> dict[str, Any]:
    return {"id": number, "user": user, "at": at(minutes), "x": 1, "url": "/"}


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Any:
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as opened:
        opened.sql(TOPICS)
        for topic in ("clicks", "visits"):
            opened.sql(
                f"CREATE MATERIALIZED VIEW of_{topic} AS "
                f"SELECT user, {W} AS w, count(*) AS n FROM {topic} {BY_USER}"
            )
        yield opened


def test_a_late_row_joins_two_sessions_in_one_tick(ws: hw.Workspace) -> None:
    ws.topic("clicks").append([click(1, 7, 0), click(2, 7, 10)])
    tick = ws.run().tick
    ws.topic("clicks").append([click(3, 7, 5)])
    ws.run()
    changes = [
        (c["_weight"], c["w"]["start"], c["n"]) for c in ws.view("of_clicks").changes(since=tick).to_pylist()
    ]
    assert sorted(changes) == [(-1, at(0), 1), (-1, at(10), 1), (1, at(0), 3)]


def test_the_records_of_a_session_are_why_it_is_there(ws: hw.Workspace) -> None:
    for topic in ("clicks", "visits"):
        ws.topic(topic).append(
            [click(1, 7, 0), click(2, 7, 4), click(3, 7, 8), click(4, 7, 30), click(5, 8, 4)]
        )
    ws.run()
    for topic in ("clicks", "visits"):
        why = ws.view(f"of_{topic}").why({"user": 7, "w": {"start": at(0), "end": at(13)}})
        assert sorted(why.records[topic].column("id").to_pylist()) == [1, 2, 3]
        assert compare(why.recompute(), why.rows) is None
        every = ws.view(f"of_{topic}").why({"user": 7})
        assert sorted(every.records[topic].column("id").to_pylist()) == [1, 2, 3, 4]


def test_users_aggregates_are_over_the_rows_of_a_session(ws: hw.Workspace) -> None:
    ws.aggregate(
        "last_of",
        zero=None,
        add=lambda state, values: max(
            [v for v in (state, *values.to_pylist()) if v is not None], default=None
        ),
        merge=lambda a, b: max([v for v in (a, b) if v is not None], default=None),
        returns="STRING",
    )
    for topic in ("clicks", "visits"):
        ws.sql(
            f"CREATE MATERIALIZED VIEW last_{topic} AS "
            f"SELECT user, {W} AS w, last_of(url) AS u, count(*) AS n FROM {topic} {BY_USER}"
        )
        ws.topic(topic).append([{**click(i, 7, 4 * i), "url": f"/{i}"} for i in (0, 1, 3)])
    ws.run()
    ws.topic("clicks").append([{**click(2, 7, 8), "url": "/2"}])
    ws.topic("visits").delete([{"id": 1}])
    ws.run()
    shown = [(r["w"]["start"], r["w"]["end"], r["u"], r["n"]) for r in _sorted(ws, "last_clicks")]
    assert shown == [(at(0), at(17), "/3", 4)]
    shown = [(r["w"]["start"], r["w"]["end"], r["u"], r["n"]) for r in _sorted(ws, "last_visits")]
    assert shown == [(at(0), at(5), "/0", 1), (at(12), at(17), "/3", 1)]
    report = ws.verify()
    assert report.ok, report.differences


def _sorted(ws: hw.Workspace, view: str) -> list[dict[str, Any]]:
    return sorted(ws.view(view).read().to_pylist(), key=lambda row: row["w"]["start"])


def test_explain_tells_what_sessions_keep(ws: hw.Workspace) -> None:
    grows, kept = (str(ws.sql(f"EXPLAIN of_{topic}").to_pylist()) for topic in ("clicks", "visits"))
    assert "session aggregate count(1) by (user, session_window)" in grows
    assert "it keeps a row for every session" in grows
    assert "sessions of rows by (user)" in kept


def test_a_session_window_that_may_be_null_is_refused(ws: hw.Workspace) -> None:
    with raises(StatementError, reason="session-window-null"):
        ws.sql(
            f"CREATE MATERIALIZED VIEW v AS SELECT user, {W} AS w, count(*) AS n FROM clicks "
            f"GROUP BY GROUPING SETS ((user, {W}), (user))"
        )


BY_ALL = f"SELECT user, {W} AS w, count(*) AS n FROM {{0}} {BY_USER}"
ABOVE = {
    # of sessions (user, start, end, n): the rows that a query above their GROUP BY gives
    "having_start": (
        f"{BY_ALL} HAVING session_window.start > TIMESTAMP '2026-01-01 00:02:00'",
        {(7, at(30), at(35), 1), (8, at(6), at(11), 1)},
    ),
    "having_end": (f"{BY_ALL} HAVING w.end < TIMESTAMP '2026-01-01 00:12:00'", {(8, at(6), at(11), 1)}),
    "outer_end": (
        f"SELECT user, w.end AS e, n FROM ({BY_ALL}) WHERE w.end > TIMESTAMP '2026-01-01 00:12:00' AND user = 7",
        {(7, at(13), 3), (7, at(35), 1)},
    ),
    "common": (
        f"WITH s AS ({BY_ALL}) SELECT a.user, a.n, b.w.start AS next FROM s a JOIN s b "
        "ON a.user = b.user AND b.w.start > a.w.end",
        {(7, 3, at(30))},
    ),
    "semi": (
        f"SELECT user, n FROM ({BY_ALL}) WHERE w.end IN (SELECT at FROM visits WHERE id > 90)",
        {(7, 3)},
    ),
    "told_once": (f"SELECT DISTINCT w FROM ({BY_ALL})", {(at(0), at(13)), (at(6), at(11)), (at(30), at(35))}),
    "grouped": (
        f"SELECT w, count(*) AS c FROM ({BY_ALL}) GROUP BY w",
        {(at(0), at(13), 1), (at(6), at(11), 1), (at(30), at(35), 1)},
    ),
}


def _flat(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        part for value in row.values() for part in (value.values() if isinstance(value, dict) else (value,))
    )


FEW = ("having_start", "outer_end", "semi", "told_once")


@pytest.mark.parametrize("names", [FEW, pytest.param(tuple(ABOVE), marks=pytest.mark.long)])
def test_what_stands_above_sessions_meets_whole_sessions(
    tmp_path: Path, spark: SparkSession, names: tuple[str, ...]
) -> None:
    topics = "CREATE TOPIC visits ({0}, PRIMARY KEY (id)); CREATE TOPIC clicks ({0}, WATERMARK FOR at AS at)"
    rows = [click(1, 7, 0), click(2, 7, 4), click(5, 8, 6), click(3, 7, 8), click(4, 7, 30)]
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(topics.format(COLUMNS))
        for name in names:
            select, _ = ABOVE[name]
            for topic in ("clicks", "visits") if name == "having_start" else ("clicks",):
                ws.sql(f"CREATE MATERIALIZED VIEW {name}_{topic} AS {select.format(topic)}")
        ws.sql(
            "CREATE MATERIALIZED VIEW closed WITH (late = 'divert') AS "
            f"{ABOVE['having_start'][0].format('clicks')} EMIT ON WINDOW CLOSE"
        )
        for topic in ("clicks", "visits"):
            for row in rows[:3], rows[3:]:
                ws.topic(topic).append(row)
                ws.run()
        ws.topic("visits").append([click(99, 9, 13)])
        ws.run()
        for name in names:
            _, wanted = ABOVE[name]
            assert set(map(_flat, ws.view(f"{name}_clicks").read().to_pylist())) == wanted, name
        found = set(map(_flat, ws.view("having_start_visits").read().to_pylist()))
        assert found == ABOVE["having_start"][1] | {(9, at(13), at(18), 1)}
        assert set(map(_flat, ws.view("closed").read().to_pylist())) == {(8, at(6), at(11), 1)}
        facts = {row["property"]: row["value"] for row in ws.sql("EXPLAIN closed").to_pylist()}
        assert facts["state"].startswith("bounded by time")
        asked = ws.query(ABOVE["having_start"][0].format("clicks")).to_pylist()
        assert set(map(_flat, asked)) == ABOVE["having_start"][1]
        report = ws.verify()
        assert report.ok, report.differences


APART = {
    "pair": "count(DISTINCT x) AS a, count(DISTINCT url) AS b, count(DISTINCT x, url) AS c",
    "some": "count(DISTINCT x) FILTER (WHERE id > 0) AS a, count(DISTINCT url) AS b, 2 AS c",
    "sums": "sum(DISTINCT n) + 1 AS a, count(DISTINCT n) AS b, CAST(2 * avg(DISTINCT n) AS BIGINT) + 1 AS c",
}


def test_a_value_is_counted_once_in_a_session(tmp_path: Path, spark: SparkSession) -> None:
    """Also where its rows lie further apart than the gap, with rows of other values between them."""
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(TOPICS)
        for name, shown in APART.items():
            for topic in ("clicks", "visits"):
                source = f"(SELECT *, CAST(x AS BIGINT) AS n FROM {topic})"
                ws.sql(
                    f"CREATE MATERIALIZED VIEW {name}_{topic} AS SELECT user, {shown} FROM {source} {BY_USER}"
                )
        rows = [{**click(i, 7, 4 * i), "x": i % 2, "url": "ab"[i % 2]} for i in range(4)]
        for topic in ("clicks", "visits"):
            for part in rows[2:], rows[:2]:
                ws.topic(topic).append(part)
                ws.run()
            found = {name: ws.view(f"{name}_{topic}").read().to_pylist() for name in APART}
            whole = [{"user": 7, "a": 2, "b": 2, "c": 2}]
            assert found == dict.fromkeys(APART, whole)
        assert [found.message for found in ws.verify().differences] == []
        asked = ws.query(f"SELECT user, {APART['pair']} FROM clicks {BY_USER}").to_pylist()
        assert asked == [{"user": 7, "a": 2, "b": 2, "c": 2}]
        with raises(StatementError, reason="session-distinct"):
            ws.sql(
                "CREATE MATERIALIZED VIEW v AS "
                f"SELECT user, sum(DISTINCT x) AS a, sum(DISTINCT id) AS b FROM clicks {BY_USER}"
            )
