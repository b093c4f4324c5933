"""EMIT ON WINDOW CLOSE and late policies, case by case: what is refused, when rows are shown, and what goes with them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock, SystemClock, to_us
from headwater.core.errors import HeadwaterError, StatementError, UsageError
from headwater.core.settings import LogSettings
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
W = "window(at, '1 minute')"
TIMED = "at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute'"
TOPICS = f"""
CREATE TOPIC clicks (user BIGINT, x INT, url STRING, {TIMED});
CREATE TOPIC pays ({TIMED}, user BIGINT, x INT, other TIMESTAMP);
CREATE TOPIC people (id BIGINT, name STRING, PRIMARY KEY (id));
CREATE TOPIC seats (id BIGINT, {TIMED}, PRIMARY KEY (id));
CREATE TOPIC plain (id BIGINT, at TIMESTAMP);
CREATE MATERIALIZED VIEW per_minute AS SELECT {W} AS w, user, count(*) AS n FROM clicks GROUP BY {W}, user;
"""


def at(minute: int, second: int = 0, micro: int = 0) -> datetime:
    """A time after noon."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    return noon + timedelta(minutes=minute, seconds=second, microseconds=micro)


def click(moment: datetime, x: int = 1, url: str = "a", user: int = 1) -> dict[str, Any]:
    return {"user": user, "x": x, "url": url, "at": moment}


def pay(moment: datetime, user: int = 1) -> dict[str, Any]:
    return {"user": user, "x": 1, "other": None, "at": moment}


def window(minute: int, minutes: int = 1) -> dict[str, datetime]:
    return {"start": at(minute), "end": at(minute + minutes)}


def rows(ws: hw.Workspace, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in ws.view(name).read().to_pylist()), key=repr)


def opened(path: Path, spark: SparkSession, clock: ManualClock | None = None) -> hw.Workspace:
    return hw.open(path, spark=spark, settings=SETTINGS, clock=clock or SystemClock())


def underlined(error: StatementError, sql: str) -> str:
    line, marks = str(error.detail).splitlines()[1:3]
    start = len(marks) - len(marks.lstrip())
    assert sql in line
    return line[start : start + marks.count("^")]


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with opened(tmp_path_factory.mktemp("refusing") / "ws", spark) as ws:
        ws.sql(TOPICS)
        yield ws


NEVER = {"reason": "never-final"}
TIMELESS = {"reason": "no-event-time-window"}
REFUSED = [
    # policy, SELECT, the facts of the error, what is underlined
    (
        "late = 'divert'",
        f"SELECT {W} AS w, count(*) AS n FROM seats GROUP BY {W}",
        {"reason": "never-late", "relation": "seats"},
        f"GROUP BY {W}",
    ),
    (
        "late = 'drop'",
        f"SELECT {W} AS w, count(*) AS n FROM plain GROUP BY {W}",
        {"reason": "never-late", "relation": "plain"},
        f"GROUP BY {W}",
    ),
    (
        "late = 'divert'",
        "SELECT w, n FROM per_minute",
        {"reason": "never-late", "relation": "per_minute"},
        "SELECT w, n FROM per_minute",
    ),
    ("late = 'divert'", "SELECT 1 AS x", {"reason": "never-late", "relation": None}, "SELECT 1 AS x"),
    (
        "late = 'divert'",
        "SELECT window(_appended_at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY 1",
        {"reason": "windows-by-arrival"},
        "GROUP BY 1",
    ),
    (
        "EMIT",
        "SELECT window(_appended_at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY 1",
        {"reason": "windows-by-arrival"},
        "GROUP BY 1",
    ),
    (
        "EMIT",
        "SELECT window(window_time(w), '1 hour') AS h, sum(n) AS n FROM per_minute GROUP BY 1",
        {"reason": "window-time"},
        "window_time(w)",
    ),
    ("late = 'dvert'", f"SELECT {W} AS w FROM clicks", {"option": "late", "value": "dvert"}, None),
    ("correct_for = '1 minute'", "SELECT url FROM clicks", TIMELESS, "SELECT url FROM clicks"),
    ("late = 'divert'", "SELECT url, count(*) AS n FROM clicks GROUP BY url", TIMELESS, "GROUP BY url"),
    (
        "late = 'drop'",
        f"SELECT {W} AS w, count(*) AS n FROM (SELECT DISTINCT url, at FROM clicks) GROUP BY {W}",
        TIMELESS,
        "SELECT DISTINCT url, at FROM clicks",
    ),
    (
        "late = 'drop'",
        "SELECT window(other, '1 minute') AS w, count(*) AS n FROM pays GROUP BY 1",
        TIMELESS,
        "GROUP BY 1",
    ),
    (
        "late = 'drop'",
        "SELECT window(at - INTERVAL '1 hour', '1 minute') AS w, count(*) AS n FROM clicks GROUP BY 1",
        TIMELESS,
        "GROUP BY 1",
    ),
    (
        "late = 'drop'",
        f"SELECT w FROM (SELECT {W} AS w, count(*) AS n FROM clicks GROUP BY 1) WHERE n > (SELECT avg(x) FROM clicks)",
        TIMELESS,
        None,
    ),
    (
        "late = 'drop'",
        f"SELECT {W} AS w, count(*) AS n FROM (SELECT at FROM clicks UNION ALL SELECT at FROM pays) GROUP BY 1",
        TIMELESS,
        "SELECT at FROM clicks UNION ALL SELECT at FROM pays",
    ),
    (
        "late = 'drop', correct_for = '1 minute'",
        f"SELECT {W} AS w FROM clicks",
        {"option": "correct_for"},
        None,
    ),
    ("late = 'never'", f"SELECT {W} AS w FROM clicks", {"option": "late", "value": "never"}, None),
    ("EMIT", "SELECT url, count(*) AS n FROM clicks GROUP BY url", NEVER, "GROUP BY url"),
    ("EMIT", "SELECT url, at FROM clicks", NEVER, "SELECT url, at FROM clicks"),
    ("EMIT", "SELECT w, n FROM per_minute ORDER BY n DESC LIMIT 3", NEVER, "ORDER BY n DESC LIMIT 3"),
    (
        "EMIT",
        "SELECT window(other, '1 minute') AS w, count(*) AS n FROM pays GROUP BY 1",
        NEVER,
        "GROUP BY 1",
    ),
    (
        "EMIT",
        "SELECT window(t, '1 hour') AS w, count(*) AS n FROM (SELECT date_trunc('day', at) AS t FROM clicks) GROUP BY 1",
        NEVER,
        "GROUP BY 1",
    ),
    ("EMIT", "SELECT at, ntile(2) OVER (PARTITION BY user ORDER BY at) AS n FROM clicks", NEVER, None),
    ("EMIT", "SELECT at, lead(x) OVER (PARTITION BY user ORDER BY at) AS n FROM clicks", NEVER, None),
    (
        "EMIT",
        "SELECT c.at FROM clicks c LEFT JOIN pays p ON c.user = p.user AND p.at >= c.at",
        NEVER,
        None,
    ),
    ("EMIT", "SELECT w, user, n FROM per_minute WHERE n > (SELECT avg(x) FROM clicks)", NEVER, None),
    (
        "late = 'divert' EMIT",
        f"SELECT p.name, c.w FROM (SELECT {W} AS w, user FROM clicks GROUP BY {W}, user) c JOIN people p ON user = id",
        {"reason": "not-append-only", "relation": "people"},
        "people",
    ),
]


@pytest.mark.parametrize(("policy", "select", "facts", "underlines"), REFUSED)
def test_what_a_policy_cannot_be_kept_for_is_refused(
    policy: str, select: str, facts: dict[str, Any], underlines: str | None, refusing: hw.Workspace
) -> None:
    options, emits = policy.removesuffix("EMIT").strip(), policy.endswith("EMIT")
    told = f"CREATE MATERIALIZED VIEW v {f'WITH ({options}) ' if options else ''}AS {select}"
    with raises(StatementError, **facts) as caught:
        refusing.sql(told + (" EMIT ON WINDOW CLOSE" if emits else ""))
    if underlines is not None:
        assert underlined(caught.value, select) == underlines


# --- when rows are shown -------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_row_is_shown_once_it_is_final(tmp_path: Path, spark: SparkSession) -> None:
    views = {
        "counted": f"SELECT {W} AS w, count(*) AS n FROM clicks GROUP BY {W}",
        "many": f"SELECT {W} AS w, count(*) AS n FROM clicks WHERE x > 0 GROUP BY {W} HAVING count(*) > 1",
        "of_view": "SELECT w, user, n FROM per_minute WHERE n > 1",
        "again": "SELECT w, sum(n) AS n FROM per_minute GROUP BY w",
        "hourly": "SELECT window(window_time(w), '1 hour') AS h, sum(n) AS n "
        f"FROM (SELECT {W} AS w, count(*) AS n FROM clicks GROUP BY {W}) GROUP BY 1",
        "first": f"SELECT w, url, n FROM (SELECT {W} AS w, url, count(*) AS n FROM clicks GROUP BY 1, 2) "
        "QUALIFY row_number() OVER (PARTITION BY w ORDER BY n DESC, url) <= 1",
        "sessions": "SELECT session_window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY 1",
        "both": f"SELECT {W} AS w, count(*) AS n FROM (SELECT at FROM clicks UNION ALL SELECT at FROM pays) GROUP BY {W}",
        "beside": f"WITH c AS (SELECT {W} AS w, count(*) AS n FROM clicks GROUP BY {W}), "
        f"p AS (SELECT {W} AS w, count(*) AS n FROM pays GROUP BY {W}) "
        "SELECT c.w, c.n, p.n AS m FROM c LEFT JOIN p ON c.w = p.w",
        "after": f"SELECT c.e, c.n, p.at FROM (SELECT {W}.end AS e, count(*) AS n FROM clicks GROUP BY {W}) c "
        "JOIN pays p ON p.at BETWEEN c.e AND c.e + INTERVAL '1 minute'",
        "ahead": f"SELECT {W} AS w, sum(s) AS s FROM looking GROUP BY {W}",
    }
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(
            "CREATE MATERIALIZED VIEW looking AS SELECT at, sum(x) OVER (ORDER BY at "
            "RANGE BETWEEN CURRENT ROW AND INTERVAL '5 minutes' FOLLOWING) AS s FROM clicks"
        )
        for name, select in views.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select} EMIT ON WINDOW CLOSE")
        clicks, pays = ws.topic("clicks"), ws.topic("pays")

        def shown() -> dict[str, list[tuple[Any, ...]]]:
            ws.run()
            return {name: found for name in views if (found := rows(ws, name))}

        clicks.append([click(at(0, 30)), click(at(0, 31), url="b"), click(at(0, 32), url="b")])
        assert shown() == {}
        clicks.append([click(at(1, 59, 999_999))])
        pays.append([pay(at(1, 10))])
        assert shown() == {}, "a microsecond is missing"
        clicks.append([click(at(2))])
        noon = {
            "counted": [(window(0), 3)],
            "many": [(window(0), 3)],
            "of_view": [(window(0), 1, 3)],
            "again": [(window(0), 3)],
            "first": [(window(0), "b", 2)],
        }
        assert shown() == noon
        pays.append([pay(at(2))])
        noon |= {"both": [(window(0), 3)], "beside": [(window(0), 3, None)]}
        assert shown() == noon, "where both count, both have to be there"
        pays.append([pay(at(0, 20))])
        noon |= {"both": [(window(0), 4)], "beside": [(window(0), 3, 1)]}
        assert shown() == noon
        changed = ws.view("both").changes(since=0).to_pylist()
        assert [(c["n"], c["_weight"], c["_tick"]) for c in changed[-2:]] in (
            [(3, -1, changed[-1]["_tick"]), (4, 1, changed[-1]["_tick"])],
            [(4, 1, changed[-1]["_tick"]), (3, -1, changed[-1]["_tick"])],
        ), "a revision is one tick"

        clicks.finish()
        pays.finish()
        found = shown()
        assert found["hourly"] == [(window(0, 60), 5)]
        assert found["after"] == [(at(1), 3, at(1, 10)), (at(1), 3, at(2)), (at(2), 1, at(2))]
        assert ws.verify().ok


def test_a_session_waits_for_a_row_at_its_very_end(tmp_path: Path, spark: SparkSession) -> None:
    session = "session_window(at, '1 minute')"
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(
            f"CREATE MATERIALIZED VIEW v WITH (late = 'divert') AS SELECT {session} AS w, count(*) AS n FROM clicks "
            f"GROUP BY {session} EMIT ON WINDOW CLOSE"
        )
        clicks = ws.topic("clicks")
        clicks.append([click(at(0))])
        clicks.punctuate(at(1))
        ws.run()
        assert rows(ws, "v") == []
        clicks.append([click(at(1)), click(at(0, 59, 999_999))])
        clicks.punctuate(at(2))
        ws.run()
        assert rows(ws, "v") == []
        clicks.punctuate(at(2, 0, 1))
        ws.run()
        assert rows(ws, "v") == [(window(0, 2), 2)]
        (late,) = ws.view("v.late").read().to_pylist()
        assert (late["_lateness"], late["_window_end"], late["_offset"]) == (1, None, 3)
        assert ws.verify().ok


def test_a_partition_without_a_row_holds_everything_up(tmp_path: Path, spark: SparkSession) -> None:
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(f"CREATE TOPIC clicks (user BIGINT, {TIMED}) WITH (partitions = 2, partition_by = 'user')")
        ws.sql(
            f"CREATE MATERIALIZED VIEW v AS SELECT {W} AS w, count(*) AS n FROM clicks GROUP BY {W} "
            "EMIT ON WINDOW CLOSE"
        )
        clicks = ws.topic("clicks")
        clicks.append([{"user": 1, "at": at(minute)} for minute in range(5)])
        ws.run()
        assert rows(ws, "v") == []
        with ws.view("v").changes(follow=True, timeout=10) as following:
            clicks.punctuate(at(1))
            ws.run()
            assert rows(ws, "v") == [(window(0), 1)]
            assert [row["n"] for row in next(iter(following)).to_pylist()] == [1]
        assert ws.query("SELECT * FROM v", as_of=1).num_rows == 0
        clicks.finish()
        ws.run()
        assert len(rows(ws, "v")) == 5


# --- what is told of late rows -------------------------------------------------------------------------------------

DIVERTING = f"""
CREATE MATERIALIZED VIEW v WITH (late = 'divert') AS SELECT {W} AS w, count(*) AS n, sum(x) AS s FROM clicks GROUP BY {W}
"""


def test_late_rows_are_read_in_the_tick_in_which_they_come(tmp_path: Path, spark: SparkSession) -> None:
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(DIVERTING)
        ws.sql(
            "CREATE MATERIALIZED VIEW missed AS SELECT l.x, v.n FROM v.late l LEFT JOIN v ON v.w.end = l._window_end"
        )
        clicks = ws.topic("clicks")
        clicks.append([click(at(0)), click(at(5))])
        ws.run()
        clicks.append([click(at(0), x=7), click(at(3), x=8), click(at(5, 1), x=9)])
        tick = ws.run().tick
        assert rows(ws, "missed") == [(7, 1), (8, None)]
        assert {row["_tick"] for row in ws.view("missed").changes(since=0).to_pylist()} == {tick}
        told = ws.query("SELECT max(_lateness) AS most, count(*) AS n FROM v.late").to_pylist()
        assert told == [{"most": 240_000_000, "n": 2}]
        assert ws.query("SELECT * FROM v.late", as_of=tick - 1).num_rows == 0
        assert ws.view("v").ledger() == {"read": 5, "used": 3, "diverted": 2, "dropped": 0, "failed": 0}
        with raises(UsageError, reason="read-by", view="v", reader="missed", missing="v.late"):
            ws.sql(DIVERTING.replace("CREATE", "CREATE OR REPLACE").replace("divert", "drop"))
        with raises(UsageError, reason="read-by", readers=["missed"]):
            ws.sql("DROP VIEW v")
        ws.sql("DROP VIEW v CASCADE")
        ws.run()
        with pytest.raises(HeadwaterError):
            ws.query("SELECT * FROM v.late")


def test_a_row_that_fails_before_its_window_is_an_error_and_one_that_is_late_is_late(
    tmp_path: Path, spark: SparkSession
) -> None:
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(
            f"CREATE MATERIALIZED VIEW v WITH (late = 'divert', on_error = 'divert') AS "
            f"SELECT {W} AS w, sum(10 / x) AS s FROM clicks WHERE length(url) / (x + 1) > 0 GROUP BY {W}"
        )
        ws.topic("clicks").append(
            [
                click(at(5)),
                click(at(0), x=-1),  # late, and fails in WHERE
                click(at(0), x=0),  # late, and would fail above
                click(at(5), x=-1),
                click(at(5), x=0),
            ]
        )
        report = ws.run()
        assert not report.stopped
        assert rows(ws, "v") == [(window(5), 10.0)]
        assert [row["_offset"] for row in ws.view("v.late").read().to_pylist()] == [2]
        assert sorted(row["_offset"] for row in ws.view("v.errors").read().to_pylist()) == [1, 3, 4]
        assert ws.view("v").ledger() == {"read": 5, "used": 1, "diverted": 1, "dropped": 0, "failed": 3}
        assert ws.verify().ok


def test_a_view_that_diverts_is_replaced_altered_and_rebuilt(tmp_path: Path, spark: SparkSession) -> None:
    late = [(1, 4, "a", 2), (1, 5, "a", 3)]

    def told(ws: hw.Workspace) -> list[tuple[Any, ...]]:
        found = ws.view("v.late").read().to_pylist()
        return sorted((r["user"], r["x"], r["url"], r["_offset"]) for r in found)

    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(DIVERTING.replace("divert", "correct"))
        clicks = ws.topic("clicks")
        clicks.append([click(at(0, 30)), click(at(5)), click(at(0, 10), x=4)])
        ws.run()
        assert rows(ws, "v") == [(window(0), 2, 5), (window(5), 1, 1)]
        ws.sql(DIVERTING.replace("CREATE", "CREATE OR REPLACE"))
        ws.run()
        assert rows(ws, "v") == [(window(0), 1, 1), (window(5), 1, 1)]
        ws.sql("ALTER TOPIC clicks ADD COLUMN referrer STRING")
        clicks.append([{**click(at(0, 11), x=5), "referrer": "r"}])
        ws.run()
        assert told(ws) == late
        ws.sql("ALTER TOPIC clicks ALTER COLUMN x TYPE BIGINT")
        ws.run()
        clicks.append([{**click(at(0, 12), x=2**40), "referrer": "r"}])
        ws.run()
        assert told(ws) == [*late, (1, 2**40, "a", 4)]
        ws.view("v").rebuild(verify=False)
    with opened(tmp_path / "ws", spark) as ws:
        ws.run()
        assert told(ws) == [*late, (1, 2**40, "a", 4)]
        assert rows(ws, "v") == [(window(0), 1, 1), (window(5), 1, 1)]
        assert ws.view("v").ledger() == {"read": 5, "used": 2, "diverted": 3, "dropped": 0, "failed": 0}
        assert ws.verify().ok


def test_what_was_late_stays_so_when_the_records_are_gone(tmp_path: Path, spark: SparkSession) -> None:
    clock = ManualClock(to_us(at(0)))
    with opened(tmp_path / "ws", spark, clock) as ws:
        ws.sql(f"CREATE TOPIC clicks (user BIGINT, x INT, url STRING, {TIMED})")
        ws.sql(DIVERTING)
        ws.sql(DIVERTING.replace("VIEW v", "VIEW e") + "EMIT ON WINDOW CLOSE")
        clicks = ws.topic("clicks")
        clicks.append([click(at(0, 30)), click(at(5)), click(at(0, 10))])
        ws.run()
        clock.advance("2 hours")
        ws.sql("ALTER TOPIC clicks SET (retention = '1 hour')")
        ws.maintain()
        assert clicks.partitions()[0].first == 3
        clicks.append([click(at(5, 30)), click(at(0, 20))])
        for name in ("v", "e"):
            ws.view(name).rebuild(verify=False)
        clicks.append([click(at(7)), click(at(0, 21))])
        ws.run()
        assert rows(ws, "v") == [(window(0), 1, 1), (window(5), 2, 2), (window(7), 1, 1)]
        assert rows(ws, "e") == [(window(0), 1, 1), (window(5), 2, 2)]
        for name in ("v", "e"):
            assert sorted(r["_offset"] for r in ws.view(f"{name}.late").read().to_pylist()) == [2, 4, 6]
            assert ws.view(name).ledger() == {"read": 7, "used": 4, "diverted": 3, "dropped": 0, "failed": 0}
        assert ws.verify().ok


def test_a_row_comes_from_the_records_that_were_in_time_and_is_final(
    tmp_path: Path, spark: SparkSession
) -> None:
    with opened(tmp_path / "ws", spark) as ws:
        ws.sql(TOPICS)
        ws.sql(DIVERTING + "EMIT ON WINDOW CLOSE")
        ws.sql(
            "CREATE MATERIALIZED VIEW alone WITH (late = 'drop') AS SELECT c.user, c.at FROM clicks c "
            "LEFT ANTI JOIN pays p ON c.user = p.user AND p.at BETWEEN c.at AND c.at + INTERVAL '1 minute' "
            "EMIT ON WINDOW CLOSE"
        )
        ws.topic("clicks").append(
            [click(at(0)), click(at(0, 1)), click(at(5)), click(at(0, 2)), click(at(6))]
        )
        ws.topic("pays").append([pay(at(0, 30), user=2), pay(at(4))])
        ws.run()
        for view, records in (("v", [0, 1]), ("alone", [0, 1])):
            why = ws.view(view).why({} if view == "v" else {"user": 1})
            assert why.records["clicks"].column("_offset").to_pylist() == records
            assert why.complete
            assert why.recompute().num_rows == why.rows.num_rows
        with raises(UsageError, view="v.late"):
            ws.view("v.late").why({"x": 1})
