"""Users' aggregates in views: kept under inserts, updates and deletes, with and without a way to take rows back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headwater as hw
from tests.equation.tables import TOPIC, Row, Table, holds, play
from tests.raising import raises

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Spread = dict[str, Any]


def total(state: float, prices: pa.Array) -> float:
    return state + (pc.sum(prices).as_py() or 0.0)


def longest(state: str | None, names: pa.Array) -> str | None:
    return longer(state, *names.to_pylist())


def longer(*names: str | None) -> str | None:
    return max((n for n in names if n is not None), key=lambda n: (len(n), n), default=None)


def counts(state: dict[str, int], names: pa.Array, by: int = 1) -> dict[str, int]:
    for name in names.to_pylist():
        state[str(name)] = state.get(str(name), 0) + by
    return {name: n for name, n in state.items() if n}


def merged(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    return {name: a.get(name, 0) + b.get(name, 0) for name in {*a, *b}}


def commonest(state: dict[str, int]) -> str | None:
    return min(state, key=lambda n: (-state[n], n)) if state else None


def declare(ws: hw.Workspace, **instead: Any) -> None:
    """`total` and `commonest` can take rows back, `longest` cannot."""
    ws.aggregate(
        "total",
        zero=0.0,
        add=total,
        merge=lambda a, b: a + b,
        remove=lambda state, prices: state - (pc.sum(prices).as_py() or 0.0),
        returns="DOUBLE",
    )
    ws.aggregate("longest", zero=None, add=instead.get("add", longest), merge=longer, returns="STRING")
    ws.aggregate(
        "commonest",
        zero={},
        add=counts,
        merge=merged,
        remove=lambda state, names: counts(state, names, -1),
        result=commonest,
        state="MAP<STRING, BIGINT>",
        returns="STRING",
    )


def each(rows: list[Row], key: Callable[[Row], Any]) -> Iterable[tuple[Any, list[Row]]]:
    for value in {key(r) for r in rows}:
        yield value, [r for r in rows if key(r) == value]


def names(rows: list[Row]) -> list[Any]:
    return [r["name"] for r in rows]


def prices(rows: list[Row]) -> float:
    return sum(r["price"] or 0.0 for r in rows)


def most(rows: list[Row]) -> str | None:
    found = [str(n) for n in names(rows)]
    return min(found, key=lambda n: (-found.count(n), n), default=None)


VIEWS: dict[str, tuple[str, Callable[[list[Row]], Iterable[tuple[Any, ...]]]]] = {
    "removable": (
        "SELECT name, total(price) AS t, count(*) AS n, max(id) AS m FROM items GROUP BY name",
        lambda rows: [
            (name, prices(mine), len(mine), max(r["id"] for r in mine))
            for name, mine in each(rows, lambda r: r["name"])
        ],
    ),
    "recomputed": (
        "SELECT id % 3 AS k, longest(name) AS l, total(price) + 1 AS t, min(id) AS m FROM items GROUP BY id % 3",
        lambda rows: [
            (k, longer(*names(mine)), prices(mine) + 1, min(r["id"] for r in mine))
            for k, mine in each(rows, lambda r: r["id"] % 3)
        ],
    ),
    "by_state": (
        "SELECT id % 2 AS k, commonest(name) AS c FROM items GROUP BY id % 2 HAVING total(price) > 2",
        lambda rows: [(k, most(mine)) for k, mine in each(rows, lambda r: r["id"] % 2) if prices(mine) > 2],
    ),
    "overall": (
        "SELECT longest(name) AS l, commonest(name) AS c, total(price) AS t, count(price) AS n FROM items",
        lambda rows: [
            (longer(*names(rows)), most(rows), prices(rows), sum(r["price"] is not None for r in rows))
        ],
    ),
}


@pytest.mark.parametrize("seed", [1, 2])
def test_aggregates_follow_every_change(seed: int, tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        declare(ws)
        ws.sql(TOPIC)
        for name, (query, _) in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        computed = {name: compute for name, (_, compute) in VIEWS.items()}
        play(ws, Table(seed), computed, verify=seed == 1)


def test_states_outlive_the_process(tmp_path: Path, spark: SparkSession) -> None:
    table = Table(5)
    for turn in range(3):
        with hw.open(tmp_path, spark=spark, durability="os") as ws:
            declare(ws)
            if turn == 0:
                ws.sql(TOPIC)
                ws.sql(f"CREATE MATERIALIZED VIEW by_state AS {VIEWS['by_state'][0]}")
            table.change(ws)
            ws.run(tick_rows=2)
            holds(ws, "by_state", VIEWS["by_state"][1](list(table.rows.values())))


def test_only_functions_that_cannot_take_rows_back_keep_whole_groups(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        declare(ws)
        ws.sql(TOPIC)
        ws.sql("CREATE TOPIC seen (id BIGINT, price DOUBLE, name STRING)")

        def graph(query: str) -> str:
            facts = ws.sql(f"EXPLAIN {query}")
            assert facts is not None
            return next(f["value"] for f in facts.to_pylist() if f["property"] == "graph")

        assert "recompute whole groups" in graph("SELECT id, longest(name) AS l FROM items GROUP BY id")
        assert "recompute" not in graph("SELECT id, total(price) AS t FROM items GROUP BY id")
        assert "recompute" not in graph("SELECT id, longest(name) AS l FROM seen GROUP BY id")


def test_a_topic_that_only_grows_adds_its_new_rows_alone(tmp_path: Path, spark: SparkSession) -> None:
    given: list[int] = []

    def counting(state: str | None, names: pa.Array) -> str | None:
        given.append(len(names))
        return longest(state, names)

    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        declare(ws, add=counting)
        ws.sql("CREATE TOPIC seen (id BIGINT, name STRING)")
        ws.sql("CREATE MATERIALIZED VIEW view AS SELECT longest(name) AS l FROM seen")
        for n in (5, 3, 2):
            ws.topic("seen").append([{"id": i, "name": "x" * i} for i in range(n)])
            ws.run()
        assert given == [5, 3, 2]
        holds(ws, "view", [("xxxx",)])


def test_a_failure_names_the_group_and_the_row(tmp_path: Path, spark: SparkSession) -> None:
    def picky(state: float, prices: pa.Array) -> float:
        return state + sum(1 / (p - 3) for p in prices.to_pylist())

    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(TOPIC)
        ws.aggregate("picky", zero=0.0, add=picky, merge=lambda a, b: a + b, returns="DOUBLE")
        ws.sql("CREATE MATERIALIZED VIEW view AS SELECT name, picky(price) AS p FROM items GROUP BY name")
        ws.topic("items").append([{"id": i, "price": float(i), "name": "ab"[i % 2]} for i in range(6)])
        report = ws.run()
        told = (
            "add of function 'picky' failed on the group name = 'b', the row price = 3.0: ZeroDivisionError"
        )
        assert told in report.stopped["view"]
        error = report.errors["view"]
        assert isinstance(error.__cause__, ZeroDivisionError)
        assert (error.group, error.row) == ({"name": "b"}, {"price": 3.0})


def test_verify_finds_a_law_that_is_broken(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(TOPIC)
        ws.aggregate(
            "leaky",
            zero=0.0,
            add=total,
            merge=lambda a, b: a + b,
            remove=lambda state, prices: state,
            returns="DOUBLE",
        )
        ws.sql("CREATE MATERIALIZED VIEW view AS SELECT leaky(price) AS t FROM items")
        ws.topic("items").append([{"id": 1, "price": 1.0}, {"id": 2, "price": 2.0}])
        ws.run()
        assert ws.verify().ok
        ws.topic("items").delete([{"id": 2}])
        ws.run()
        (difference,) = ws.verify().differences
        assert "view 'view' at tick 2" in difference.message


@pytest.mark.parametrize(
    ("query", "facts"),
    [
        ("SELECT total(price) OVER (PARTITION BY name) AS t FROM items", {"reason": "not-incremental"}),
        (
            "SELECT total(price) AS t, count(DISTINCT id) AS n FROM items",
            {"reason": "udf-aggregate-combination"},
        ),
        (
            "SELECT total(DISTINCT price) AS t FROM items",
            {"condition": "INVALID_SQL_SYNTAX.FUNCTION_WITH_UNSUPPORTED_SYNTAX"},
        ),
        (
            "SELECT id, (SELECT total(price) FROM items b WHERE b.id = a.id + 1) AS t FROM items a",
            {"reason": "udf-aggregate-in-subquery"},
        ),
    ],
)
def test_what_aggregates_cannot_do_is_refused(
    query: str, facts: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        declare(ws)
        ws.sql(TOPIC)
        with raises(hw.StatementError, **facts):
            ws.sql(f"CREATE MATERIALIZED VIEW view AS {query}")


@pytest.mark.parametrize(
    ("parts", "facts"),
    [
        ({"zero": "none"}, {"function": "total", "part": "zero"}),
        ({"add": None}, {"function": "total", "part": "add"}),
        ({"state": "BIGINT", "zero": 0}, {"function": "total", "reason": "no-result"}),
    ],
)
def test_a_wrong_declaration_is_refused(
    parts: dict[str, Any], facts: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    given: dict[str, Any] = {"zero": 0.0, "add": total, "merge": max, "returns": "DOUBLE"} | parts
    with (
        hw.open(tmp_path, spark=spark, durability="os") as ws,
        raises(hw.UsageError, **facts),
    ):
        ws.aggregate("total", **given)
