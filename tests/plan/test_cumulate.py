"""`cumulate_window` and `corrected_time`: in views, in batch and in queries, as if Spark had them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.engine.dataflow import window_preaggregation
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.operators import aggregate
from headwater.operators import graph as g
from headwater.operators.aggregate.aggregate import AggregateSpec
from tests.raising import raises

pytestmark = pytest.mark.slow

W = "cumulate_window(at, '20 minutes', '1 hour')"
TOPIC = "CREATE TOPIC t (id BIGINT, k STRING, at TIMESTAMP, sent TIMESTAMP, received TIMESTAMP, x DOUBLE, PRIMARY KEY (id))"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STEP, SIZE = timedelta(minutes=20), timedelta(hours=1)

VIEWS = {
    "by_call": f"SELECT {W} AS w, count(*) AS n FROM t GROUP BY {W}",
    "by_alias": f"SELECT {W} AS w, count(*) AS n FROM t GROUP BY w",
    "by_name": f"SELECT struct(cumulate_window.start, cumulate_window.end) AS w, count(*) AS n FROM t GROUP BY {W}",
    "by_place": f"SELECT {W} AS w, count(*) AS n FROM t GROUP BY 1",
    "by_parts": f"SELECT struct({W}.start, {W}.end) AS w, count(*) AS n FROM t GROUP BY {W}",
    "by_intervals": """
        SELECT w, count(*) AS n FROM
          (SELECT cumulate_window(at, INTERVAL '20' MINUTE, INTERVAL '1' HOUR) AS w, k FROM t) GROUP BY w""",
    "by_with": f"WITH c AS (SELECT {W}, k FROM t) SELECT cumulate_window AS w, count(*) AS n FROM c GROUP BY cumulate_window",
    "by_subquery": f"""
        SELECT w, n FROM (SELECT {W} AS w, count(*) AS n, sum(x) AS s FROM t GROUP BY {W})
        WHERE w IN (SELECT {W} FROM t) AND EXISTS (SELECT {W} FROM t)""",
}


@pytest.fixture
def folder(tmp_path: Path, spark: SparkSession) -> Path:
    """A workspace with a table and the views above it, which all mean the same."""
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPIC)
        for name, select in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
    return tmp_path / "w"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A workspace with the table alone, and a row in it."""
    with hw.open(tmp_path_factory.mktemp("bare") / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPIC)
        ws.topic("t").append([{"id": 1, "k": "a", "at": datetime(2026, 1, 1, 10, 7, tzinfo=UTC), "x": 1.5}])
        yield ws


def by_hand(rows: list[dict[str, Any]]) -> Counter[tuple[datetime, datetime]]:
    """The windows of rows: those that grow from the last multiple of the size and end after the row."""
    found: Counter[tuple[datetime, datetime]] = Counter()
    for row in rows:
        if row["at"] is not None:
            start = EPOCH + (row["at"] - EPOCH) // SIZE * SIZE
            ends = (start + STEP * (i + 1) for i in range(SIZE // STEP))
            found.update((start, end) for end in ends if end > row["at"])
    return found


@pytest.mark.long
def test_windows_grow_through_updates_deletions_and_restarts(folder: Path, spark: SparkSession) -> None:
    chance = random.Random(3)
    table: dict[int, dict[str, Any]] = {}
    for _ in range(2):
        with hw.open(folder, durability="os", spark=spark) as ws:
            for number in chance.sample(range(20), 15):
                if number in table and chance.random() < 0.4:
                    del table[number]
                    ws.topic("t").delete([{"id": number}])
                    continue
                seconds = chance.choice(
                    [None, 0, 1200, 1199.999999, -1, -0.000001, *(chance.uniform(-9e3, 9e3),) * 4]
                )
                time = None if seconds is None else EPOCH + timedelta(seconds=seconds)
                table[number] = {"id": number, "k": chance.choice("ab"), "at": time, "x": 1.0}
                ws.topic("t").append([table[number]])
            assert ws.run(tick_rows=chance.choice([4, 100])).stopped == {}
            for name in VIEWS:
                rows = ws.view(name).read().to_pylist()
                found = Counter({tuple(row["w"].values()): row["n"] for row in rows})
                assert found == by_hand(list(table.values())), name
            asked = ws.query(VIEWS["by_call"]).to_pylist()
            assert Counter({tuple(row["w"].values()): row["n"] for row in asked}) == by_hand(
                list(table.values())
            )
            assert ws.verify().differences == ()


STREAM = "CREATE TOPIC s (k STRING, i INT, x DOUBLE, d DECIMAL(12, 2), at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5 minutes')"
SPREAD = {
    "mergeable": f"""
        SELECT {W} AS w, upper(k) AS u, count(*) AS n, count(x) FILTER (WHERE i > 1) AS c, sum(i) AS i, sum(d) AS d, avg(d) AS e,
               sum(x) AS x, avg(x) AS y, stddev(i) AS s, min(x) AS lo, max(k) FILTER (WHERE i > 0) AS hi, max_by(k, i) AS b
        FROM s GROUP BY {W}, upper(k)""",
    "whole": f"SELECT {W} AS w, count(*) AS n, sum(i) AS i FROM s WHERE i > 0 GROUP BY {W} HAVING count(*) > 1",
    "by_day": f"SELECT date_trunc('hour', w.end) AS h, i, count(*) AS n FROM (SELECT {W} AS w, i FROM s) GROUP BY 1, 2",
    "by_zero": f"SELECT {W} AS w, x, CAST(x AS STRING) AS t, count(*) AS n FROM s GROUP BY {W}, x, CAST(x AS STRING)",
    "of_table": f"SELECT {W} AS w, k, count(*) AS n, sum(x) AS x, avg(x) AS y FROM t GROUP BY {W}, k",
    "steps": "SELECT e, count(*) AS n, sum(i) AS s FROM (SELECT i, explode(sequence(CAST(i AS BIGINT), 9L, 2L)) AS e FROM s) GROUP BY e",
}
ROW_BY_ROW = {
    "whole_groups": f"SELECT {W} AS w, count(DISTINCT k) AS n, collect_set(k) AS ks, median(i) AS m FROM s GROUP BY {W}",
    "of_element": f"SELECT w.start AS b, max(w.end) AS e, count(*) AS n FROM (SELECT {W} AS w FROM s) GROUP BY w.start",
    "filtered": f"SELECT w, count(*) AS n FROM (SELECT {W} AS w FROM s) WHERE minute(w.end) <> 20 GROUP BY w",
    "retracting": f"SELECT {W} AS w, min(x) AS lo, max(k) AS hi FROM t GROUP BY {W}",
}


@pytest.mark.long
def test_what_rows_bring_is_spread_over_windows_as_if_each_were_in_all_of_its_own(
    tmp_path: Path, spark: SparkSession
) -> None:
    chance = random.Random(7)
    start = datetime(2026, 1, 1, 10, tzinfo=UTC)
    for round_ in range(2):
        with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
            if not round_:
                ws.sql(TOPIC)
                ws.sql(STREAM)
                for name, select in {**SPREAD, **ROW_BY_ROW}.items():
                    ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
                for late in ("late = 'divert'", "late = 'drop'", "correct_for = '10 minutes'"):
                    name = late.partition("'")[2].strip("'").replace(" ", "_")
                    ws.sql(
                        f"CREATE MATERIALIZED VIEW p_{name} WITH ({late}) AS {SPREAD['mergeable']} EMIT ON WINDOW CLOSE"
                    )
            rows = [
                {
                    "k": chance.choice(["a", "b", None]),
                    "i": chance.choice([None, 0, 1, 2, 3]),
                    "x": chance.choice([None, 0.0, -0.0, 1.5, 1e20, float("nan")]),
                    "d": chance.choice([None, Decimal("0.01"), Decimal("9999999999.99")]),
                    "at": start + timedelta(minutes=round_ * 40 + chance.uniform(-30, 40)),
                }
                for _ in range(40)
            ]
            ws.topic("s").append(rows)
            ws.topic("t").append(
                [
                    {"id": chance.randrange(15), **{c: row[c] for c in ("k", "at")}, "x": row["i"]}
                    for row in rows
                ]
            )
            assert ws.run(tick_rows=chance.choice([7, 1000])).stopped == {}
            if round_:
                assert ws.verify().differences == ()
            else:
                assert ws.view("p_divert").replay_late()
                ws.run()


def test_rows_are_combined_where_only_keys_look_at_the_window(
    bare: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[bool] = []

    def spread(
        node: g.AggregateNode, spec: AggregateSpec, evaluator: Evaluator
    ) -> window_preaggregation.WindowPreaggregation | None:
        found = window_preaggregation.spread(node, spec, evaluator)
        made.append(found is not None)
        return found

    monkeypatch.setattr(aggregate, "spread", spread)
    bare.sql(STREAM)
    for name, select in {**SPREAD, **ROW_BY_ROW}.items():
        made.clear()
        bare.sql(f"EXPLAIN {select}")
        assert any(made) == (name in SPREAD), name


def test_columns_are_named_as_those_of_sparks_windows_are(bare: hw.Workspace) -> None:
    names = bare.query(
        f"SELECT {W}, {W}.end, corrected_time(at, sent, received), upper(k) FROM t"
    ).column_names
    assert names == ["cumulate_window", f"{W}.end", "corrected_time(at, sent, received)", "upper(k)"]
    starred = bare.query(f"SELECT *, {W} AS w FROM t")
    assert starred.column_names == ["id", "k", "at", "sent", "received", "x", "w"]
    assert (
        starred.schema.field("w").type
        == bare.query("SELECT window(at, '1 hour') AS w FROM t").schema.field("w").type
    )
    grouped = bare.query(f"SELECT cumulate_window.start, count(*) AS n FROM t GROUP BY {W}, k")
    assert grouped.column_names == ["start", "n"]


@pytest.mark.parametrize(
    ("call", "facts", "underlined"),
    [
        ("cumulate_window(at, '7 minutes', '1 hour')", {"reason": "cumulate-size"}, None),
        ("cumulate_window(at, '2 hours', '1 hour')", {"reason": "cumulate-size"}, None),
        ("cumulate_window(at, '1 hour')", {"reason": "argument-count", "function": "cumulate_window"}, None),
        ("cumulate_window(at, '1 month', '1 year')", {"reason": "cumulate-step"}, "'1 month'"),
        (
            "cumulate_window(at, '1 hour', INTERVAL '1' YEAR)",
            {"reason": "cumulate-size"},
            "INTERVAL '1' YEAR",
        ),
        ("cumulate_window(at, 'soon', '1 hour')", {"reason": "cumulate-step"}, "'soon'"),
        ("cumulate_window(at, 5, '1 hour')", {"reason": "cumulate-step"}, "5"),
        ("cumulate_window(at, x, '1 hour')", {"reason": "cumulate-step"}, "x"),
        ("cumulate_window(at, '-5 minutes', '1 hour')", {"reason": "cumulate-step"}, "'-5 minutes'"),
        ("cumulate_window(at, '0 minutes', '1 hour')", {"reason": "cumulate-step"}, "'0 minutes'"),
        (
            "cumulate_window(x, '5 minutes', '1 hour')",
            {"condition": "DATATYPE_MISMATCH.UNEXPECTED_INPUT_TYPE"},
            None,
        ),
        ("corrected_time(at, sent)", {"reason": "argument-count", "function": "corrected_time"}, None),
    ],
)
def test_what_has_no_meaning_is_refused_where_it_stands(
    call: str, facts: dict[str, str], underlined: str | None, bare: hw.Workspace
) -> None:
    with raises(hw.StatementError, **facts) as caught:
        bare.sql(f"CREATE MATERIALIZED VIEW wrong AS SELECT {call} AS w FROM t")
    *_, line, marks = str(caught.value.detail).splitlines()
    start = marks.index("^")
    assert line[start : marks.rindex("^") + 1] == (underlined or call)


def test_two_windows_in_one_select_are_refused_as_sparks_are(bare: hw.Workspace) -> None:
    with raises(hw.StatementError, condition="_LEGACY_ERROR_TEMP_1039"):
        bare.query(f"SELECT {W} AS a, window(at, '1 hour') AS b FROM t")


def test_a_function_of_the_workspace_with_that_name_is_the_users(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC n (a BIGINT, b BIGINT, c BIGINT)")
        ws.function("corrected_time", lambda a, b, c: a * 100 + b * 10 + c, returns="BIGINT", per_row=True)
        ws.sql("CREATE MATERIALIZED VIEW v AS SELECT corrected_time(a, b, c) AS y FROM n")
        ws.topic("n").append([{"a": 1, "b": 2, "c": 3}])
        ws.run()
        assert ws.view("v").read().to_pylist() == [{"y": 123}]


def test_a_corrected_time_is_the_senders_by_the_clock_of_the_receiver(bare: hw.Workspace) -> None:
    bare.sql("""
        CREATE TOPIC phone (id BIGINT, at TIMESTAMP, sent TIMESTAMP, received TIMESTAMP);
        CREATE MATERIALIZED VIEW corrected AS
          SELECT id, corrected_time(at, sent, received) AS y, cumulate_window(corrected_time(at, sent, received),
            '1 hour', '2 hours').end AS e FROM phone WHERE corrected_time(at, sent, received) > TIMESTAMP'2000-01-01'
            OR at IS NULL OR sent IS NULL OR received IS NULL;
        CREATE MATERIALIZED VIEW uncorrected AS SELECT id, corrected_time(at, sent, received) AS y FROM phone""")
    start = datetime(2026, 1, 1, 10, tzinfo=UTC)
    times = [start, start + timedelta(seconds=30), None]
    slow = start - timedelta(days=400, microseconds=1)
    rows: list[dict[str, Any]] = [
        {"id": 0, "at": slow, "sent": slow + timedelta(minutes=5), "received": start},
        *(
            {"id": 1 + n, "at": times[n // 9], "sent": times[n // 3 % 3], "received": times[n % 3]}
            for n in range(27)
        ),
    ]
    bare.topic("phone").append(rows)
    bare.run()
    wanted = {
        r["id"]: None
        if None in (r["at"], r["sent"], r["received"])
        else r["at"] + (r["received"] - r["sent"])
        for r in rows
    }
    assert wanted[0] == start - timedelta(minutes=5)
    assert {row["id"]: row["y"] for row in bare.view("uncorrected").read().to_pylist()} == wanted
    found = {(row["id"], row["y"], row["e"]) for row in bare.view("corrected").read().to_pylist()}
    hours = [start + timedelta(hours=n) for n in range(3)]
    assert found == {
        (i, y, e) for i, y in wanted.items() if y is not None for e in hours if y < e and e <= _end(y)
    }
    assert bare.verify().differences == ()


def _end(time: datetime) -> datetime:
    two = timedelta(hours=2)
    return EPOCH + ((time - EPOCH) // two + 1) * two
