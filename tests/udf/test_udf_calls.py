"""Scalar and table functions of users in views: incremental, equal to batch, and clear about what goes wrong."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headwater as hw
from headwater.udf.udf_definitions import builtin
from tests.equation.tables import TOPIC, Row, Table, holds, play
from tests.raising import raises

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_items(place: Path, spark: SparkSession, *, declare: bool = True) -> hw.Workspace:
    ws = hw.open(place, spark=spark, durability="os")
    if declare:
        ws.function("twice", lambda x: pc.multiply(x, 2.0), returns="DOUBLE")
        ws.function("tag", tagged, returns="STRING", per_row=True)
        ws.table_function("letters", letters, returns="letter STRING, at INT", per_row=True)
        ws.table_function("upto", upto, returns="n BIGINT")
    return ws


def tagged(name: str | None, price: float | None) -> str | None:
    return None if name is None else f"{name}:{price}"


def letters(name: str | None) -> Iterable[tuple[str, int]]:
    for at, letter in enumerate(name or ""):
        yield letter, at


def upto(price: pa.Array) -> list[list[dict[str, int]]]:
    return [[{"n": n} for n in range(int(p or 0))] for p in price.to_pylist()]


VIEWS = {
    "doubled": (
        "SELECT id, twice(price) + 1 AS w, twice(twice(price)) AS x, tag(name, price) AS t FROM items",
        lambda rows: [
            (
                r["id"],
                None if r["price"] is None else 2 * r["price"] + 1,
                None if r["price"] is None else 4 * r["price"],
                tagged(r["name"], r["price"]),
            )
            for r in rows
        ],
    ),
    "filtered": (
        "SELECT id FROM items WHERE twice(price) > 3 AND id > 2 AND CASE WHEN name IS NULL THEN false ELSE "
        "tag(name, price) LIKE '%a%' END",
        lambda rows: [
            (r["id"],)
            for r in rows
            if (r["price"] or 0) > 1.5 and r["id"] > 2 and r["name"] and "a" in r["name"]
        ],
    ),
    "grouped": (
        "SELECT tag(name, 1.0D) AS t, sum(twice(price)) AS s, count(*) AS n FROM items GROUP BY 1 "
        "HAVING twice(count(*)) > 2",
        lambda rows: grouped(rows),
    ),
    "spelled": (
        "SELECT i.id, l.letter, l.at FROM items i, LATERAL letters(i.name) AS l WHERE l.at < 2",
        lambda rows: [(r["id"], c, at) for r in rows for c, at in letters(r["name"]) if at < 2],
    ),
    "counted": (
        "SELECT u.n, count(*) AS rows FROM items LATERAL VIEW inline(upto(price)) u GROUP BY u.n",
        lambda rows: counted([n for r in rows for n in range(int(r["price"] or 0))]),
    ),
    "pairs": (
        "SELECT a.id, b.id AS other FROM items a JOIN items b ON twice(a.price) = b.price",
        lambda rows: [
            (a["id"], b["id"])
            for a in rows
            for b in rows
            if a["price"] is not None and b["price"] is not None and 2 * a["price"] == b["price"]
        ],
    ),
}


def grouped(rows: list[Row]) -> Iterable[tuple[Any, ...]]:
    for name in {r["name"] for r in rows}:
        mine = [r["price"] for r in rows if r["name"] == name]
        known = [2 * p for p in mine if p is not None]
        if len(mine) > 1:
            yield tagged(name, 1.0), sum(known) if known else None, len(mine)


def counted(values: list[int]) -> list[tuple[int, int]]:
    return [(n, values.count(n)) for n in set(values)]


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.long)])
def test_views_that_call_functions_follow_every_change(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        for name, (query, _) in VIEWS.items():
            ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        computed = {name: compute for name, (_, compute) in VIEWS.items()}
        play(ws, Table(seed), computed, verify=seed == 1)


def test_a_process_that_declares_the_same_functions_goes_on_where_another_left(
    tmp_path: Path, spark: SparkSession
) -> None:
    table = Table(7)
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.sql(f"CREATE MATERIALIZED VIEW doubled AS {VIEWS['doubled'][0]}")
        table.change(ws)
        built = ws.run().tick
    with open_items(tmp_path, spark) as ws:
        table.change(ws)
        ws.run()
        holds(ws, "doubled", VIEWS["doubled"][1](list(table.rows.values())))
        assert ws.view("doubled").changes(since=built).num_rows  # it was not rebuilt: its changes go on
        assert ws.verify().ok


def test_queries_may_call_functions_too(tmp_path: Path, spark: SparkSession) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.topic("items").append([{"id": 1, "price": 2.0, "name": "ab"}])
        assert ws.query("SELECT twice(price) AS p FROM items").to_pylist() == [{"p": 4.0}]
        found = ws.query("SELECT l.letter FROM items, LATERAL letters(name) AS l ORDER BY l.letter")
        assert found.column("letter").to_pylist() == ["a", "b"]


def test_a_process_without_the_code_stops_that_view_alone_and_says_what_to_declare(
    tmp_path: Path, spark: SparkSession
) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.sql("CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(price) AS p FROM items")
        ws.sql("CREATE MATERIALIZED VIEW plain AS SELECT id FROM items")
        ws.topic("items").append([{"id": 1, "price": 2.0}])
        ws.run()
    with open_items(tmp_path, spark, declare=False) as ws:
        ws.topic("items").append([{"id": 2, "price": 3.0}])
        report = ws.run()
        assert list(report.stopped) == ["doubled"]
        assert "ws.function('twice', ...)" in report.stopped["doubled"]
        error = report.errors["doubled"]
        assert isinstance(error, hw.FunctionMissingError)
        assert error.function == "twice"
        holds(ws, "plain", [(1,), (2,)])
        with raises(hw.FunctionMissingError, function="twice"):
            ws.query("SELECT twice(price) FROM items")
        with raises(hw.FunctionMissingError, function="twice"):
            ws.sql("CREATE MATERIALIZED VIEW more AS SELECT twice(price) AS p FROM items")
    with open_items(tmp_path, spark) as ws:
        assert ws.run().stopped == {}
        holds(ws, "doubled", [(1, 4.0), (2, 6.0)])


def test_another_version_rebuilds_the_views_that_use_it_and_no_others(
    tmp_path: Path, spark: SparkSession
) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.sql("CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(price) AS p FROM items")
        ws.sql("CREATE MATERIALIZED VIEW above AS SELECT sum(p) AS p FROM doubled")
        ws.sql("CREATE MATERIALIZED VIEW plain AS SELECT id FROM items")
        ws.topic("items").append([{"id": 1, "price": 2.0}])
        ws.run()
        before = {v.name: v.incarnation for v in (ws.view(n).definition for n in ("doubled", "plain"))}
        ws.function("twice", lambda x: pc.multiply(x, 20.0), returns="DOUBLE", version=2)
        assert ws.run().stopped == {}
        holds(ws, "doubled", [(1, 40.0)])
        holds(ws, "above", [(40.0,)])
        assert ws.view("plain").definition.incarnation == before["plain"]
        assert ws.verify().ok


def test_code_of_another_version_does_not_run(tmp_path: Path, spark: SparkSession) -> None:
    with open_items(tmp_path, spark) as old, open_items(tmp_path, spark) as new:
        old.sql(TOPIC)
        old.sql("CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(price) AS p FROM items")
        old.topic("items").append([{"id": 1, "price": 2.0}])
        old.run()
        new.function("twice", lambda x: pc.multiply(x, 20.0), returns="DOUBLE", version=2)
        report = old.run()
        error = report.errors["doubled"]
        assert isinstance(error, hw.FunctionMissingError)
        assert (error.function, error.version) == ("twice", "2")
        assert "version 1" in report.stopped["doubled"]
        assert new.run().stopped == {}  # it has the code, and so the view is rebuilt
        holds(new, "doubled", [(1, 40.0)])


def test_another_type_changes_the_columns_of_the_views_above(tmp_path: Path, spark: SparkSession) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.sql("CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(price) AS p FROM items")
        ws.sql("CREATE MATERIALIZED VIEW above AS SELECT max(p) AS p FROM doubled")
        ws.topic("items").append([{"id": 1, "price": 2.0}])
        ws.run()
        ws.function("twice", lambda x: f"{x} twice", returns="STRING", per_row=True)
        assert ws.view("above").schema.field("p").type == pa.string()
        ws.run()
        holds(ws, "above", [("2.0 twice",)])
        ws.sql("CREATE MATERIALIZED VIEW upper AS SELECT upper(p) AS p FROM above")
        with raises(hw.UsageError, reason="breaks-view"):
            ws.function("twice", lambda x: [x], returns="ARRAY<DOUBLE>", per_row=True)
        assert ws.view("above").schema.field("p").type == pa.string()  # as it was
        ws.function("twice", lambda x: f"{x} twice", returns="STRING", per_row=True)
        assert ws.run().stopped == {}
        holds(ws, "upper", [("2.0 TWICE",)])


def half(price: pa.Array) -> pa.Array:
    if 3.0 in price.to_pylist():
        raise ValueError("three is odd")
    return pc.divide(price, 2.0)


def test_an_exception_names_the_row_and_keeps_the_traceback(tmp_path: Path, spark: SparkSession) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        ws.function("half", half, returns="DOUBLE")
        ws.sql("CREATE MATERIALIZED VIEW halves AS SELECT id, half(price + 1) AS h FROM items")
        ws.sql("CREATE MATERIALIZED VIEW plain AS SELECT id FROM items")
        ws.topic("items").append([{"id": i, "price": float(i)} for i in range(20)])
        report = ws.run()
        assert list(report.stopped) == ["halves"]
        assert "'half'" in report.stopped["halves"]
        error = report.errors["halves"]
        assert isinstance(error, hw.EvaluationError)
        assert isinstance(error.__cause__, ValueError)
        assert error.row == {"(price + 1.0)": 3.0}
        assert traceback.extract_tb(error.__cause__.__traceback__)[-1].name == "half"
        assert error.detail is not None
        assert 'raise ValueError("three is odd")' in error.detail
        assert "ValueError: three is odd" in error.detail
        assert ws.view("plain").read().num_rows == 20
        with raises(hw.EvaluationError) as failed:
            ws.query("SELECT half(price) FROM items")
        assert "'half'" in failed.value.message
        assert "argument 1 = 3.0" in failed.value.message
        assert "three is odd" in str(failed.value.detail)


@pytest.mark.parametrize(
    ("code", "per_row", "rows", "given"),
    [
        (lambda x: pa.array([1.0]), False, [{}], "1 values for 3 rows"),
        (lambda x: 1.0, False, [{}], "1.0"),
        (lambda x: x.cast(pa.string()), False, [{}], "array of string"),
        (lambda x: ["a"] * len(x), False, [{"price": float(i)} for i in range(3)], "'a'"),
        (lambda x: "a" if x == 2.0 else x, True, [{"price": 2.0}], "'a'"),
    ],
)
def test_a_result_that_does_not_fit_is_refused(
    code: Any, per_row: bool, rows: list[dict[str, float]], given: str, tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(TOPIC)
        ws.function("wrong", code, returns="DOUBLE", per_row=per_row)
        ws.sql("CREATE MATERIALIZED VIEW view AS SELECT id, wrong(price) AS w FROM items")
        ws.topic("items").append([{"id": i, "price": float(i)} for i in range(3)])
        error = ws.run().errors["view"]
        assert isinstance(error, hw.EvaluationError)
        assert error.row in rows
        assert given in error.reason


def test_what_arrow_takes_may_be_returned(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(TOPIC)
        ws.function("whole", lambda x: x.cast(pa.int32()), returns="BIGINT")
        ws.function("listed", lambda x: x.to_pylist(), returns=pa.float64())
        ws.function("numbers", lambda x: x.to_numpy(zero_copy_only=False), returns="DOUBLE")
        ws.function("pieces", lambda x: pa.chunked_array([x.slice(0, 1), x.slice(1)]), returns="DOUBLE")
        ws.sql(
            "CREATE MATERIALIZED VIEW view AS "
            "SELECT whole(price) AS a, listed(price) AS b, numbers(price) AS c, pieces(price) AS d FROM items"
        )
        ws.topic("items").append([{"id": i, "price": float(i)} for i in range(3)])
        assert ws.run().stopped == {}
        holds(ws, "view", [(i, float(i), float(i), float(i)) for i in range(3)])


@pytest.mark.parametrize(
    ("declare", "facts"),
    [
        (lambda ws: ws.function("sum", half, returns="DOUBLE"), {"function": "sum", "reason": "built-in"}),
        (lambda ws: ws.function("a b", half, returns="DOUBLE"), {"argument": "name", "value": "a b"}),
        (lambda ws: ws.function("half", half, returns="MONEY"), {"argument": "returns", "value": "MONEY"}),
        (lambda ws: ws.function("half", half, returns=3), {"argument": "returns", "value": 3}),
        (lambda ws: ws.function("half", 3, returns="DOUBLE"), {"function": "half", "part": "fn"}),
        (
            lambda ws: ws.function("half", half, returns="DOUBLE", version=None),
            {"argument": "version", "value": None},
        ),
        (
            lambda ws: ws.function("letters", half, returns="DOUBLE"),
            {"function": "letters", "reason": "other-kind"},
        ),
        (
            lambda ws: ws.table_function("half", half, returns="a INT, A INT"),
            {"argument": "returns", "reason": "duplicate-column"},
        ),
        (
            lambda ws: ws.table_function("half", half, returns="a INT, PRIMARY KEY (a)"),
            {"argument": "returns", "reason": "columns-only"},
        ),
    ],
)
def test_a_wrong_declaration_is_refused(
    declare: Any, facts: dict[str, Any], tmp_path: Path, spark: SparkSession
) -> None:
    with open_items(tmp_path, spark) as ws, raises(hw.UsageError, **facts):
        declare(ws)


@pytest.mark.parametrize(
    ("query", "facts"),
    [
        ("SELECT thrice(price) AS x FROM items", {"condition": "UNRESOLVED_ROUTINE"}),
        ("SELECT twice(x => price) AS x FROM items", {"reason": "named-arguments"}),
        ("SELECT twice() AS x FROM items", {"reason": "no-arguments"}),
        ("FOLD items BY id WITH twice", {"expected": "a query", "found": "FOLD"}),
    ],
)
def test_a_view_that_calls_a_function_wrongly_is_refused(
    query: str, facts: dict[str, str], tmp_path: Path, spark: SparkSession
) -> None:
    with open_items(tmp_path, spark) as ws:
        ws.sql(TOPIC)
        with raises(hw.StatementError, **facts):
            ws.sql(f"CREATE MATERIALIZED VIEW view AS {query}")


def test_what_cannot_be_pickled_runs_in_views_and_is_named_where_spark_needs_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    with (tmp_path / "notes").open("w") as notes, hw.open(tmp_path / "ws", spark=spark) as ws:
        ws.sql(TOPIC)
        ws.function("noted", lambda x: (notes.write("called"), x)[1], returns="DOUBLE")
        ws.sql("CREATE MATERIALIZED VIEW view AS SELECT noted(price) AS p FROM items")
        ws.topic("items").append([{"id": 1, "price": 2.0}])
        ws.run()
        holds(ws, "view", [(2.0,)])
        with raises(hw.UsageError, reason="not-picklable", function="noted"):
            ws.query("SELECT noted(price) FROM items")


def test_every_function_of_sql_is_known_to_be_taken(spark: SparkSession) -> None:
    names = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    assert {name for name in names if name.isidentifier()} <= builtin()


def test_declaring_again_writes_nothing(tmp_path: Path, spark: SparkSession) -> None:
    with open_items(tmp_path, spark) as ws:
        before = ws.log.sequence()
    with open_items(tmp_path, spark) as ws:
        assert ws.log.sequence() == before
