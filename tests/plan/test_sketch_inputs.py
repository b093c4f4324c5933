"""Sketches over what can change, over history that was removed, and in a state that is wrong: exact, kept, refused or found."""

from __future__ import annotations

import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import headwater as hw
from headwater.cli.program import cli
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.operators.aggregate.distinct_count import DistinctCount
from headwater.operators.aggregate.frequent_items import FrequentItems
from headwater.operators.aggregate.quantiles import Quantiles
from headwater.testing import inspect_workspace
from tests.plan.test_sketches import explained
from tests.raising import raises
from tests.sql.test_sql_support import underlined

pytestmark = pytest.mark.slow

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
INPUTS = {
    "a topic with a key": "rows",
    "a view that changes": "totals",
    "windows that late rows correct": "(SELECT g, n, CAST(since AS STRING) AS s FROM counted)",
    "a left join": "(SELECT f.g, r.n, r.s FROM facts f LEFT JOIN rows r ON f.n = r.id)",
    "a full join": "(SELECT coalesce(f.g, r.g) AS g, r.n, f.s FROM facts f FULL JOIN rows r ON f.n = r.id)",
    "an anti join": "(SELECT f.g, f.n, f.s FROM facts f LEFT ANTI JOIN rows r ON f.n = r.id)",
    "the newest rows": "(SELECT g, n, s FROM facts QUALIFY row_number() OVER (PARTITION BY s ORDER BY at DESC) = 1)",
}
"""Inputs that take rows back, all with columns g, n and s."""
EXACT = {
    "approx_count_distinct(s)": "count(DISTINCT s)",
    "percentile_approx(n, 0.5, 5)": "percentile_approx(n, 0.5, 2147483647)",
    "approx_percentile(n, array(0.1, 0.9), 2)": "percentile_approx(n, array(0.1, 0.9), 2147483647)",
}


def some_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    return [
        {
            "at": NOON + timedelta(seconds=chance.randrange(600)),
            "g": chance.randrange(3),
            "n": chance.choice([None, *range(40)]),
            "s": chance.choice([None, f"w{chance.randrange(60)}"]),
        }
        for _ in range(count)
    ]


def changes(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """New rows of a table, other values for old ones, and deletions."""
    made = [{"id": chance.randrange(40), **row} for row in some_rows(chance, count)]
    return [{"id": row["id"], "_op": "delete"} if chance.random() < 0.2 else row for row in made]


def test_over_what_takes_rows_back_answers_are_exact_or_refused(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(8)
    shown = ", ".join(f"{one} AS c{i}, {other} AS exact{i}" for i, (one, other) in enumerate(EXACT.items()))
    filters = hw.BloomFilter("STRING", items=100)
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.aggregate("seen", **filters.aggregate)
        ws.sql("""
            CREATE TOPIC facts (at TIMESTAMP, g BIGINT, n BIGINT, s STRING, WATERMARK FOR at AS at - INTERVAL '1 minute') WITH (partitions = 2);
            CREATE TOPIC rows (id BIGINT, at TIMESTAMP, g BIGINT, n BIGINT, s STRING, PRIMARY KEY (id));
            CREATE MATERIALIZED VIEW totals AS SELECT n % 2 AS g, sum(g) AS n, max(s) AS s FROM facts GROUP BY n;
            CREATE MATERIALIZED VIEW counted AS
            SELECT g, window(at, '10 seconds').start AS since, count(*) AS n FROM facts GROUP BY g, window(at, '10 seconds');
        """)
        for number, (what, source) in enumerate(INPUTS.items()):
            ws.sql(f"CREATE MATERIALIZED VIEW v{number} AS SELECT g, {shown} FROM {source} GROUP BY g")
            ws.sql(
                f"CREATE MATERIALIZED VIEW filter{number} AS SELECT g, seen(s) AS seen FROM {source} GROUP BY g"
            )
            told = explained(ws, f"v{number}")
            assert "answered exactly" in told, what
            assert "in a sketch" not in told, what
            with raises(hw.StatementError, reason="approx-top-k") as refused:
                ws.sql(
                    f"CREATE MATERIALIZED VIEW refused AS SELECT g, approx_top_k(s, 2) AS top FROM {source} GROUP BY g"
                )
            assert underlined(refused.value) == "approx_top_k(s, 2)"
            assert "row_number() OVER (PARTITION BY ... ORDER BY n DESC, value)" in str(refused.value.hint)
        for size in (4, 60, 150):
            ws.append({"facts": some_rows(chance, size), "rows": changes(chance, size // 2)})
            assert ws.run().stopped == {}
        for number, what in enumerate(INPUTS):
            found = ws.query(f"SELECT * FROM v{number}").to_pylist()
            assert len(found) > 1, what
            for row in found:
                assert [row[f"c{i}"] for i in range(len(EXACT))] == [
                    row[f"exact{i}"] for i in range(len(EXACT))
                ], what
        assert [finding.message for finding in ws.verify().differences] == []


def test_late_rows_of_windows_are_merged_into_their_sketches(tmp_path: Path, spark: SparkSession) -> None:
    """A window that is corrected takes no row back: it is its input that counts."""
    chance = random.Random(9)
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.sql("""
            CREATE TOPIC facts (at TIMESTAMP, g BIGINT, n BIGINT, s STRING, WATERMARK FOR at AS at - INTERVAL '1 second');
            CREATE MATERIALIZED VIEW corrected WITH (late = 'correct') AS
            SELECT window(at, '1 minute').start AS since, approx_count_distinct(s) AS s, percentile_approx(n, 0.5, 3) AS n,
                   approx_top_k(n, 2, 4) AS top FROM facts GROUP BY window(at, '1 minute')
        """)
        assert "in a sketch" in explained(ws, "corrected")
        for size in (3, 100, 200):
            ws.topic("facts").append(sorted(some_rows(chance, size), key=lambda r: -r["at"].timestamp()))
            ws.run()
        assert [finding.message for finding in ws.verify().differences] == []


VIEWS = """
CREATE TOPIC facts (at TIMESTAMP, g BIGINT, n BIGINT, s STRING) WITH (retention = '1 hour', partitions = 2);
CREATE MATERIALIZED VIEW kept AS
SELECT g, approx_count_distinct(s) AS s, percentile_approx(n, 0.5, 5) AS n, approx_top_k(n, 2, 6) AS top, count(*) AS c FROM facts GROUP BY g;
CREATE MATERIALIZED VIEW filters AS SELECT g, seen(s) AS seen FROM facts GROUP BY g;
"""


def check(ws: hw.Workspace, every: Sequence[dict[str, Any]], filters: hw.BloomFilter) -> None:
    """What the views hold is within the bounds of all rows that there ever were."""
    groups: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in every:
        groups[row["g"]].append(row)
    found = ws.query("SELECT * FROM kept ORDER BY g").to_pylist()
    assert [row["g"] for row in found] == sorted(groups)
    for row in found:
        rows = groups[row["g"]]
        words = {r["s"] for r in rows if r["s"] is not None}
        assert abs(row["s"] - len(words)) <= 3 + 0.25 * len(words)
        values = sorted(r["n"] for r in rows if r["n"] is not None)
        below, upto = (sum(v < row["n"] for v in values), sum(v <= row["n"] for v in values))
        assert below - len(values) / 5 <= 0.5 * len(values) <= upto + len(values) / 5
        true = Counter(r["n"] for r in rows)
        for pair in row["top"]:
            assert true[pair["item"]] - len(rows) / 7 <= pair["count"] <= true[pair["item"]]
        assert row["c"] == len(rows)
    for row in ws.query("SELECT * FROM filters").to_pylist():
        words = {r["s"] for r in groups[row["g"]] if r["s"] is not None}
        assert pc.all(filters.may_have(pa.array([row["seen"]] * len(words)), pa.array(sorted(words)))).as_py()


def test_sketches_outlive_the_records_that_they_were_made_of(tmp_path: Path, spark: SparkSession) -> None:
    chance, clock, every = random.Random(10), ManualClock(), list[dict[str, Any]]()
    filters = hw.BloomFilter("STRING", items=100)

    def opened() -> hw.Workspace:
        ws = hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock)
        ws.aggregate("seen", **filters.aggregate)
        return ws

    def more(ws: hw.Workspace, count: int) -> None:
        rows = some_rows(chance, count)
        every.extend(rows)
        ws.topic("facts").append(rows)
        assert ws.run().stopped == {}

    with opened() as ws:
        ws.sql(VIEWS)
        for size in (5, 200, 300):
            more(ws, size)
        clock.advance("2 hours")
        assert ws.maintain().rows_removed == len(every)
        assert [f.message for f in ws.verify().differences] == []
        more(ws, 100)
        check(ws, every, filters)
        assert [f.message for f in ws.verify().differences] == []
        before = ws.query("SELECT * FROM kept ORDER BY g").to_pylist()
    shutil.rmtree(tmp_path / "ws" / "state")
    with opened() as ws:  # from the base, and the log after it
        ws.run()
        assert ws.query("SELECT g, s, c FROM kept ORDER BY g").to_pylist() == [
            {name: row[name] for name in ("g", "s", "c")} for row in before
        ]
        check(ws, every, filters)
        ws.view("kept").rebuild()
        more(ws, 150)
        check(ws, every, filters)
        assert [f.message for f in ws.verify().differences] == []


@pytest.mark.parametrize(
    ("sketch", "says"),
    [
        (DistinctCount, "values of s outside of their bounds"),
        (Quantiles, "values of n outside of their bounds"),
        (FrequentItems, "values of top that are less frequent than reported"),
    ],
)
def test_a_sketch_that_answers_wrongly_is_found(
    sketch: type, says: str, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept was changed by somebody who knows how to make its checksum: the answer is another one."""
    chance = random.Random(11)

    def wrong(self: Any, states: Sequence[pa.Array], finish: Any = sketch.finish) -> pa.Array:  # type: ignore[attr-defined]
        made = finish(self, states)
        if pa.types.is_list(made.type):
            return pa.array(
                [[{"item": p["item"], "count": p["count"] * 3} for p in row] for row in made.to_pylist()],
                made.type,
            )
        return pa.array([10 * value + 100 for value in made.to_pylist()], made.type)

    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.aggregate("seen", **hw.BloomFilter("STRING", items=100).aggregate)
        ws.sql(VIEWS.replace("retention = '1 hour', ", ""))
        ws.topic("facts").append(some_rows(chance, 200))
        with monkeypatch.context() as patch:
            patch.setattr(sketch, "finish", wrong)
            ws.run()
        (finding,) = ws.verify().differences
        assert says in finding.message
        assert "kept" in finding.message
        ws.sql("DROP VIEW filters")  # which no command has the code of
    result = CliRunner().invoke(cli, ["-w", str(tmp_path / "ws"), "verify"])
    assert result.exit_code == 1
    assert says in result.output


def test_a_sketch_whose_bytes_are_damaged_is_found_and_rebuilt(tmp_path: Path, spark: SparkSession) -> None:
    chance = random.Random(12)
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.aggregate("seen", **hw.BloomFilter("STRING", items=100).aggregate)
        ws.sql(VIEWS.replace("retention = '1 hour', ", ""))
        for size in (50, 100):
            ws.topic("facts").append(some_rows(chance, size))
            ws.run()
        ws.sql("DROP VIEW filters")
        ws.topic("facts").append(some_rows(chance, 1))
        ws.run()
        latest = inspect_workspace(ws).manifest()
        assert latest is not None
        places = {(r.file, r.offset + r.length // 2) for refs in latest.arrangements.values() for r in refs}
    for file, place in sorted(places):
        path = tmp_path / "ws" / "state" / "runs" / file
        whole = path.read_bytes()
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        result = CliRunner().invoke(cli, ["-w", str(tmp_path / "ws"), "verify"])
        assert result.exit_code == 1
        assert f"state/runs/{file} is damaged at byte" in result.output
        if (file, place) != max(places):
            path.write_bytes(whole)
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as ws:
        ws.view("kept").rebuild()
        ws.run()
        assert ws.verify().ok
