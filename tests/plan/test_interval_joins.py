"""Joins of rows that are near each other in time: every kind, against the same SELECT in batch, with retractions."""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.operators import graph as g
from headwater.sql.statements import QueryText
from headwater.testing import inspect_workspace
from tests.equation.grammar.model import View as Select
from tests.equation.oracle import Oracle, compare

pytestmark = pytest.mark.slow

COLUMNS = "id BIGINT, k BIGINT, at TIMESTAMP, local TIMESTAMP_NTZ, day DATE, n INT, b BIGINT"
TOPICS = f"CREATE TOPIC l ({COLUMNS}); CREATE TOPIC r ({COLUMNS}, PRIMARY KEY (id));"
NEAR = "r.at BETWEEN l.at - INTERVAL 10 MINUTES AND l.at + INTERVAL 5 MINUTES"
VIEWS = {
    **{
        f"{kind}_join": f"SELECT l.id AS a, r.id AS b FROM l {kind} JOIN r ON l.k = r.k AND {NEAR}"
        for kind in ("inner", "left", "right", "full")
    },
    "semi": f"SELECT id FROM l WHERE EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND {NEAR})",
    "anti": f"SELECT id FROM l WHERE NOT EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND {NEAR})",
    "existence": f"SELECT id, EXISTS (SELECT 1 FROM r WHERE l.k = r.k AND {NEAR}) AS e FROM l",
    "keyless": f"SELECT l.id AS a, r.id AS b FROM l LEFT JOIN r ON {NEAR}",
    "strict": "SELECT l.id AS a, r.id AS b FROM r LEFT JOIN l "
    "ON l.k = r.k AND l.at > r.at - INTERVAL '5' MINUTE AND r.at + INTERVAL '5' MINUTE > l.at",
    "by_difference": "SELECT l.id AS a, r.id AS b FROM l FULL JOIN r "
    "ON l.k = r.k AND r.at - l.at < INTERVAL 5 MINUTES AND INTERVAL 10 MINUTES >= l.at - r.at",
    "by_day": "SELECT l.id AS a, r.id AS b FROM l LEFT JOIN r "
    "ON l.k = r.k AND r.day BETWEEN l.day - 1 AND date_add(l.day, 2) AND l.n <= r.n",
    "by_number": "SELECT l.id AS a, r.id AS b FROM l RIGHT JOIN r ON l.k = r.k AND l.n - r.n BETWEEN -1 AND 2",
    "by_width": "SELECT l.id AS a, r.id AS b FROM l JOIN r ON l.k = r.k AND r.n BETWEEN l.b - 1 AND 2 + l.b",
    "local": "SELECT l.id AS a, r.id AS b FROM l LEFT JOIN r "
    "ON l.k = r.k AND r.local >= l.local AND r.local < l.local + INTERVAL '1' HOUR",
    "counted": f"SELECT l.k, count(*) AS n, sum(r.n) AS s FROM l JOIN r ON l.k = r.k AND {NEAR} GROUP BY l.k",
}
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(chance: random.Random, number: int) -> dict[str, Any]:
    """Values few enough to lie on the bounds often; each may be missing."""
    at = START + timedelta(minutes=5 * chance.randrange(8), microseconds=chance.randrange(-1, 2))
    values = {
        "k": chance.randrange(3),
        "at": at,
        "local": at.replace(tzinfo=None),
        "day": date(2026, 1, 1 + chance.randrange(6)),
        "n": chance.randrange(6),
        "b": chance.randrange(6),
    }
    return {"id": number} | {name: v for name, v in values.items() if chance.random() > 0.05}


def tables(ws: hw.Workspace) -> Mapping[str, pa.Table]:
    """What the topics hold, as a program reads it."""
    found = {}
    for name in ("l", "r"):
        topic = ws.topic(name)
        columns = [*topic.definition.schema.names, *(["_op", "_offset"] if topic.definition.key else [])]
        rows = pa.Table.from_batches(list(topic.read("earliest", columns=columns))).to_pylist()
        if topic.definition.key:
            rows = list({r["id"]: r for r in sorted(rows, key=lambda r: r["_offset"])}.values())
            rows = [r for r in rows if r["_op"] != "delete"]
        schema = pa.schema([f.with_nullable(True) for f in topic.definition.schema])
        found[name] = pa.Table.from_pylist([{n: r[n] for n in schema.names} for r in rows], schema=schema)
    return found


def hold(ws: hw.Workspace, oracle: Oracle) -> None:
    selects = [Select(name, select, ("l", "r"), ()) for name, select in VIEWS.items()]
    for name, table in oracle.run(tables(ws), selects).items():
        told = compare(ws.view(name).read(), table)
        assert told is None, f"{name}: {told}"


@pytest.mark.long
def test_interval_joins_equal_batch_after_every_tick_and_restart(tmp_path: Path, spark: Any) -> None:
    chance, oracle, number = random.Random(5), Oracle(spark), 0
    for step in range(2):
        with hw.open(tmp_path / "w", spark=spark) as ws:
            if step == 0:
                ws.sql(TOPICS)
                for name, select in VIEWS.items():
                    ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
            for _ in range(2):
                number += 14
                ws.topic("l").append([row(chance, number + i) for i in range(14)])
                ws.topic("r").append([row(chance, chance.randrange(20)) for _ in range(10)])
                ws.topic("r").delete([{"id": chance.randrange(20)}])
                ws.run(tick_rows=None if step else 11)
            hold(ws, oracle)
            if step == 1:
                ws.view("full_join").rebuild(verify=False)
                ws.run()
                assert ws.verify().differences == ()


def test_every_bound_of_these_narrows_the_search(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "w", spark=spark) as ws:
        ws.sql(TOPICS)
        for select in VIEWS.values():
            plan = inspect_workspace(ws).engine_context().catalog.plan(QueryText(select))
            joins = [node for node in g.walk(plan.root) if isinstance(node, g.Join)]
            assert [join.range is not None for join in joins] == [True], select


def test_ends_beyond_all_numbers_stop_there(tmp_path: Path, spark: Any) -> None:
    most, least = 2**63 - 1, -(2**63)
    with hw.open(tmp_path / "w", spark=spark) as ws:
        ws.sql(TOPICS)
        ws.sql(
            "CREATE MATERIALIZED VIEW v AS SELECT l.id AS a, r.id AS b FROM l LEFT JOIN r "
            "ON l.k = r.k AND r.b BETWEEN l.b - 1000 AND l.b + 1000"
        )
        # partners would make the condition itself overflow: these have none
        ws.topic("l").append([{"id": 1, "k": 1, "b": most}, {"id": 2, "k": 2, "b": least}])
        ws.topic("r").append([{"id": 3, "k": 3, "b": most}, {"id": 4, "k": 4, "b": least}])
        ws.run()
        assert sorted(ws.view("v").read().to_pylist(), key=lambda r: r["a"]) == [
            {"a": 1, "b": None},
            {"a": 2, "b": None},
        ]
        assert ws.verify().differences == ()
