"""Patterns where they meet the rest: bounds of work, types, NULLs and ties, late rows, tables, deletions, views over views."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import EvaluationError, ViewUnavailableError
from headwater.core.settings import LogSettings
from headwater.operators.match_recognize import spec
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
EVENTS = "CREATE TOPIC {} (k BIGINT, x BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL 1 MINUTE)"


def at(minute: float) -> datetime:
    return datetime(2026, 3, 1, 12, tzinfo=UTC) + timedelta(minutes=minute)


def event(k: int | None, x: int | None, minute: float | None) -> dict[str, Any]:
    return {"k": k, "x": x, "at": None if minute is None else at(minute)}


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("cases") / "w", settings=SETTINGS, spark=spark) as opened:
        yield opened


def rows(table: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def read(ws: hw.Workspace, name: str) -> list[tuple[Any, ...]]:
    return rows(ws.view(name).read())


# --- work ----------------------------------------------------------------------------------------------------------

HARD = """SELECT * FROM {} MATCH_RECOGNIZE (PARTITION BY k ORDER BY at MEASURES count(*) AS n
  PATTERN ((A | B)+ X) DEFINE X AS sum(A.x) = 2 * sum(B.x) + 1)"""


@pytest.mark.parametrize("policy", ["stop", "divert"])
def test_a_pattern_that_costs_too_much_stops_its_view_and_no_other(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    monkeypatch.setattr(spec, "WORK_MAX", 5_000)
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(EVENTS.format("events"))
        ws.sql(f"CREATE MATERIALIZED VIEW hard WITH (on_error = '{policy}') AS {HARD.format('events')}")
        ws.sql("CREATE MATERIALIZED VIEW easy AS SELECT k, count(*) AS n FROM events GROUP BY k")
        ws.topic("events").append([event(1, 2, 0), event(1, 5, 1), event(1, 3, 2)])
        tick = ws.run().tick
        assert read(ws, "hard") == [(1, 3)]
        ws.topic("events").append([event(2, 2 * i, 3 + i) for i in range(30)])
        report = ws.run()
        assert set(report.stopped) == {"hard"}
        error = report.errors["hard"]
        assert isinstance(error, EvaluationError)
        assert error.facts == {"pattern": "(A | B)+ X", "key": {"k": 2}, "reason": "too-many-steps"}
        assert read(ws, "easy") == [(1, 3), (2, 30)]
        with raises(ViewUnavailableError, view="hard", status="stopped"):
            read(ws, "hard")
        assert rows(ws.view("hard").read(as_of=tick)) == [(1, 3)]
        # a query has no view to stop: it fails
        with raises(EvaluationError, reason="too-many-steps"):
            ws.query(HARD.format("events"))
        bounded = HARD.format("events").replace("(A | B)+ X", "(A | B){1,3} X")
        ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW hard AS {bounded}")
        ws.run()
        assert read(ws, "hard") == [(1, 3)]


# --- values --------------------------------------------------------------------------------------------------------


def test_measures_have_the_types_of_their_expressions(ws: hw.Workspace) -> None:
    ws.sql(
        """CREATE TOPIC typed (id BIGINT, amount DECIMAL(10, 2), at TIMESTAMP, name STRING, day DATE, raw BINARY,
        place STRUCT<city: STRING, zip: INT>, tags ARRAY<STRING>, attrs MAP<STRING, INT>, ratio FLOAT, flag BOOLEAN)"""
    )
    for i in (1, 2, 3):
        ws.topic("typed").append(
            [
                {"id": i, "amount": Decimal(f"{i}.25"), "at": at(i), "name": f"n{i}", "day": at(0).date(), "raw": bytes([i]),
                 "place": {"city": f"c{i}", "zip": i}, "tags": [f"t{i}"], "attrs": {"a": i}, "ratio": i / 2, "flag": i > 1}
            ]
        )  # fmt: skip
    ws.sql(
        """CREATE MATERIALIZED VIEW values AS SELECT * FROM typed MATCH_RECOGNIZE (ORDER BY id MEASURES
          sum(amount) AS total, avg(amount) AS mean, max(at) AS latest, LAST(name) AS name, LAST(day) AS day, LAST(raw) AS raw,
          LAST(place) AS place, FIRST(place.city) AS city, LAST(A.place.zip) AS zip, LAST(tags) AS tags, LAST(attrs) AS attrs,
          LAST(attrs['a']) AS a, min(ratio) AS ratio, LAST(flag) AS flag, max(place) AS most, array_agg(place.city) AS cities,
          LAST(at) - FIRST(at) AS took, count(DISTINCT tags) AS tagged
        PATTERN (A+))"""
    )
    ws.run()
    table = ws.view("values").read()
    (row,) = table.to_pylist()
    assert row == {
        "total": Decimal("6.75"), "mean": Decimal("2.250000"), "latest": at(3), "name": "n3", "day": at(0).date(), "raw": b"\x03",
        "place": {"city": "c3", "zip": 3}, "city": "c1", "zip": 3, "tags": ["t3"], "attrs": [("a", 3)], "a": 3, "ratio": 0.5,
        "flag": True, "most": {"city": "c3", "zip": 3}, "cities": ["c1", "c2", "c3"], "took": timedelta(minutes=2), "tagged": 3,
    }  # fmt: skip
    assert str(table.schema.field("total").type) == "decimal128(20, 2)"
    assert ws.verify().ok


def test_nulls_are_a_partition_and_come_where_the_order_says(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC gaps (k BIGINT, x BIGINT, at TIMESTAMP)")
    ws.topic("gaps").append(
        [
            event(None, 1, 1),
            event(None, 2, 0),
            event(1, 3, None),
            event(1, 4, 2),
            event(None, 5, None),
            event(1, 6, 1),
        ]
    )
    for name, order in (
        ("up", "at"),
        ("down", "at DESC"),
        ("last", "at NULLS LAST"),
        ("first", "at DESC NULLS FIRST"),
        ("computed", "-x"),
        ("two", "k, coalesce(at, TIMESTAMP '2000-01-01'), x"),
    ):
        ws.sql(
            f"""CREATE MATERIALIZED VIEW {name} AS SELECT * FROM gaps MATCH_RECOGNIZE (PARTITION BY k ORDER BY {order}
            MEASURES array_agg(x) AS xs, MATCH_NUMBER() AS n PATTERN (A+))"""
        )
    ws.run()
    assert read(ws, "up") == [(1, [3, 6, 4], 1), (None, [5, 2, 1], 1)]
    assert read(ws, "down") == [(1, [4, 6, 3], 1), (None, [1, 2, 5], 1)]
    assert read(ws, "last") == [(1, [6, 4, 3], 1), (None, [2, 1, 5], 1)]
    assert read(ws, "first") == [(1, [3, 4, 6], 1), (None, [5, 1, 2], 1)]
    assert read(ws, "computed") == [(1, [6, 4, 3], 1), (None, [5, 2, 1], 1)]
    assert read(ws, "two") == [(1, [3, 6, 4], 1), (None, [5, 2, 1], 1)]
    ws.topic("gaps").append([event(None, 9, None), event(1, 9, None)])
    ws.run()
    assert read(ws, "up") == [(1, [3, 9, 6, 4], 1), (None, [5, 9, 2, 1], 1)]
    report = ws.verify()
    assert report.ok, report.differences


def test_ties_go_by_the_columns_that_are_looked_at_in_whatever_order_rows_come(
    tmp_path: Path, spark: SparkSession
) -> None:
    tied = [event(1, x, 0) for x in (3, 1, 2)]
    found = []
    for name, order in (("a", tied), ("b", tied[::-1])):
        with hw.open(tmp_path / name, settings=SETTINGS, spark=spark) as ws:
            ws.sql(EVENTS.format("events"))
            ws.sql(
                """CREATE MATERIALIZED VIEW runs AS SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY at
                MEASURES array_agg(x) AS xs PATTERN (A+))"""
            )
            for row in order:
                ws.topic("events").append([row])
                ws.run()
            found.append(read(ws, "runs"))
    assert found == [[(1, [1, 2, 3])]] * 2


def test_names_are_found_in_any_case_and_quoted(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC odd (`Card No` BIGINT, `select` BIGINT, At TIMESTAMP)")
    ws.topic("odd").append([{"Card No": 1, "select": i, "At": at(i)} for i in range(3)])
    found = ws.query(
        """SELECT m.`card no`, M.`first One` FROM odd AS o MATCH_RECOGNIZE (partition by `CARD NO` order by AT
          measures first(`a B`.`Select`) as `first One` one row per match after match skip past last row
          pattern (`a B` c+) define C as c.SELECT > prev(C.select)) AS m"""
    )
    assert found.to_pylist() == [{"card no": 1, "first One": 0}] or rows(found) == [(1, 0)]


# --- time ----------------------------------------------------------------------------------------------------------


def test_a_late_row_joins_matches_and_takes_them_apart(ws: hw.Workspace) -> None:
    ws.sql(EVENTS.format("readings"))
    ws.sql(
        """CREATE MATERIALIZED VIEW stretches AS SELECT * FROM readings MATCH_RECOGNIZE (PARTITION BY k ORDER BY at
          MEASURES FIRST(at) AS since, LAST(at) AS until, count(*) AS n, MATCH_NUMBER() AS number
          PATTERN (A B*) DEFINE A AS x > 0, B AS x > 0 AND at <= PREV(at) + INTERVAL 2 MINUTES)"""
    )
    readings = ws.topic("readings")
    readings.append([event(1, 5, m) for m in (0, 1, 4, 5, 9)])
    ws.run()
    assert read(ws, "stretches") == [
        (1, at(0), at(1), 2, 1), (1, at(4), at(5), 2, 2), (1, at(9), at(9), 1, 3),
    ]  # fmt: skip
    readings.append([event(1, 5, 2.5)])
    ws.run()
    assert read(ws, "stretches") == [(1, at(0), at(5), 5, 1), (1, at(9), at(9), 1, 2)]
    readings.append([event(1, 0, 2)])
    ws.run()
    assert read(ws, "stretches") == [
        (1, at(0), at(1), 2, 1), (1, at(2.5), at(5), 3, 2), (1, at(9), at(9), 1, 3),
    ]  # fmt: skip
    assert ws.verify().ok


def test_time_is_over_at_the_bound_and_not_before(ws: hw.Workspace) -> None:
    ws.sql(EVENTS.format("steps"))
    clause = "PARTITION BY k ORDER BY at MEASURES FIRST(at) AS since, count(*) AS n PATTERN (A B) WITHIN INTERVAL 10 MINUTES"
    define = "DEFINE A AS x = 1, B AS x = 2"
    ws.sql(f"CREATE MATERIALIZED VIEW done AS SELECT * FROM steps MATCH_RECOGNIZE ({clause} {define})")
    ws.sql(
        f"CREATE MATERIALIZED VIEW missed AS SELECT * FROM steps MATCH_RECOGNIZE ({clause} EMIT TIMEOUTS {define})"
    )
    ws.sql(
        f"""CREATE MATERIALIZED VIEW missed_for_good WITH (late = 'drop') AS
        SELECT * FROM steps MATCH_RECOGNIZE ({clause} EMIT TIMEOUTS {define}) EMIT ON WINDOW CLOSE"""
    )
    steps = ws.topic("steps")
    tick = 1 / 60_000_000
    # the second comes at the bound, and a microsecond before it
    steps.append([event(1, 1, 0), event(2, 1, 0), event(1, 2, 10), event(2, 2, 10 - tick)])
    ws.run()
    assert read(ws, "done") == [(2, at(0), 2)]
    assert read(ws, "missed") == [(2, at(0), 2, False)]
    # the watermark is a minute behind: it reaches the bound, a microsecond late and then in time
    steps.append([event(3, 0, 11 - tick)])
    ws.run()
    assert read(ws, "missed") == [(2, at(0), 2, False)]
    steps.append([event(3, 0, 11)])
    ws.run()
    assert read(ws, "missed") == [(1, at(0), 1, True), (2, at(0), 2, False)]
    assert read(ws, "missed_for_good") == [(1, at(0), 1, True), (2, at(0), 2, False)]
    assert ws.verify().ok


# --- tables, deletion, views ----------------------------------------------------------------------------------------


def test_a_table_whose_rows_change_and_go(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC stages (id BIGINT, deal BIGINT, stage STRING, pos INT, PRIMARY KEY (id))")
    ws.sql(
        """CREATE MATERIALIZED VIEW won AS SELECT * FROM stages MATCH_RECOGNIZE (PARTITION BY deal ORDER BY pos
          MEASURES array_agg(stage) AS path PATTERN (A M* W) DEFINE A AS stage = 'new', M AS stage = 'talk', W AS stage = 'won')"""
    )
    stages = ws.topic("stages")

    def stage(i: int, deal: int, name: str, pos: int) -> dict[str, Any]:
        return {"id": i, "deal": deal, "stage": name, "pos": pos}

    stages.append(
        [stage(1, 1, "new", 1), stage(2, 1, "talk", 2), stage(3, 1, "won", 3), stage(4, 2, "new", 1)]
    )
    ws.run()
    assert read(ws, "won") == [(1, ["new", "talk", "won"])]
    stages.append([stage(2, 2, "won", 2)])  # moves to another partition
    ws.run()
    assert read(ws, "won") == [(1, ["new", "won"]), (2, ["new", "won"])]
    stages.delete([{"id": 1}])
    stages.append([stage(4, 2, "new", 3)])  # now behind the end
    ws.run()
    assert read(ws, "won") == []
    stages.append([stage(1, 1, "new", 0)])
    ws.run()
    assert read(ws, "won") == [(1, ["new", "won"])]
    assert ws.verify().ok


def test_an_excised_row_was_in_no_match(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as ws:
        ws.sql(EVENTS.format("events"))
        ws.sql(
            """CREATE MATERIALIZED VIEW runs AS SELECT * FROM events MATCH_RECOGNIZE (PARTITION BY k ORDER BY at
            MEASURES array_agg(x) AS xs PATTERN (A B+) DEFINE B AS B.x > A.x)"""
        )
        ws.topic("events").append([event(1, x, i) for i, x in enumerate((1, 5, 7, 3))])
        ws.run()
        assert read(ws, "runs") == [(1, [1, 5, 7, 3])]
        ws.excise("events", "x = 7")
        ws.run()
        assert read(ws, "runs") == [(1, [1, 5, 3])]
        ws.excise("events", "x = 1")
        ws.run()
        assert read(ws, "runs") == []
        assert ws.verify().ok


def test_views_over_matches_and_matches_over_joins(ws: hw.Workspace) -> None:
    ws.sql(
        f"{EVENTS.format('clicks')}; CREATE TOPIC users (k BIGINT, country STRING, PRIMARY KEY (k));"
        """CREATE MATERIALIZED VIEW bursts AS SELECT * FROM (SELECT c.*, u.country FROM clicks c JOIN users u ON c.k = u.k) j
          MATCH_RECOGNIZE (PARTITION BY country ORDER BY at, k MEASURES FIRST(at) AS since, count(*) AS n, LAST(k) AS who
            PATTERN (A B+) DEFINE B AS at < PREV(at) + INTERVAL 1 MINUTE) AS m WHERE n > 1;
        CREATE MATERIALIZED VIEW per_country AS SELECT country, count(*) AS bursts, sum(n) AS clicks FROM bursts GROUP BY country;
        CREATE MATERIALIZED VIEW again AS SELECT * FROM bursts
          MATCH_RECOGNIZE (PARTITION BY country ORDER BY since MEASURES sum(n) AS clicks PATTERN (A B) DEFINE B AS B.n > A.n);
        CREATE MATERIALIZED VIEW named AS WITH b AS (SELECT * FROM bursts WHERE n > 2)
          SELECT u.k, b.country, b.n FROM b JOIN users u ON u.k = b.who"""
    )
    ws.topic("users").append(
        [{"k": 1, "country": "de"}, {"k": 2, "country": "de"}, {"k": 3, "country": "fr"}]
    )
    ws.topic("clicks").append(
        [event(k, 1, m) for k, m in [(1, 0), (2, 0.5), (1, 5), (1, 5.5), (2, 6), (3, 0)]]
    )
    ws.run()
    assert read(ws, "per_country") == [("de", 2, 5)]
    assert read(ws, "again") == [("de", 5)]
    assert read(ws, "named") == [(2, "de", 3)]
    ws.topic("users").append([{"k": 2, "country": "fr"}])
    ws.run()
    assert read(ws, "per_country") == [("de", 1, 2), ("fr", 1, 2)]
    assert read(ws, "again") == []
    report = ws.verify()
    assert report.ok, report.differences
