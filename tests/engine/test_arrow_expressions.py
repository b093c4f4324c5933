"""Expressions that are evaluated on Arrow give what Spark gives, NULLs, NaNs and the ends of types included."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headwater.engine.dataflow.arrow_expressions import FAILURES, native
from headwater.spark.catalyst import Catalyst, items

SCHEMA = "i BIGINT, j BIGINT, n INT, x DOUBLE, y DOUBLE, s STRING, b BOOLEAN, at TIMESTAMP, p STRUCT<a: BIGINT, b: BIGINT>"
DOUBLES = (None, math.nan, math.inf, -math.inf, 0.0, -0.0, 1.5, -50.0)
ROWS = [
    {
        "i": (None, 0, 1, -1, 7, 2**63 - 1, -(2**63))[k % 7],
        "j": (1, None, 3, -5)[k % 4],
        "n": (None, 4, -4)[k % 3],
        "x": DOUBLES[k % 8],
        "y": DOUBLES[(k // 8) % 8],
        "s": (None, "", "a", "é", "b")[k % 5],
        "b": (None, True, False)[k % 3],
        "at": (None, *(datetime.fromtimestamp(t, UTC) for t in (0, -1, -0.000001, 1767225659.999999)))[k % 5],
        "p": (None, {"a": 1, "b": 2}, {"a": None, "b": 2}, {"a": 3, "b": 3})[k % 4],
    }
    for k in range(8 * 8 * 3 * 7)
]
EXPRESSIONS = (
    "x = y",
    "x < y",
    "x <= y",
    "x > y",
    "x >= y",
    "x > 50",
    "x <> y",
    "b AND x > 1",
    "b OR i % 2 = 0",
    "NOT b",
    "i % 3",
    "s IN ('a', 'é')",
    "s NOT IN ('a', 'é')",
    "n IN (4, 5)",
    "CASE WHEN x > 1 THEN 1 WHEN b THEN 2 ELSE 3 END",
    "CASE WHEN x > 1 THEN s WHEN b THEN 'b' END",
    "if(b, x, y)",
    "CASE WHEN i % 2 < 0 THEN i % 2 + 2 ELSE i % 2 END",
    "window(at, '1 minute')",
    "window(at, '7 days', '7 days', '3 hours')",
    "window(at, '1 minute').start",
    "p.a < p.b",
    "p.a + p.b",
    "n + n * 2 - n",
    "x * y + x",
    "CAST(n AS BIGINT) * 2",
    "i IS NULL OR x IS NOT NULL",
    "at - at",
    "at + (at - at)",
    "sequence(j, j + 10L, 3L)",
    "sequence(j, 100L, 50L)",
)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> pa.RecordBatch:
    """Each value with many others, as Spark gives them back."""
    frame = spark.createDataFrame(ROWS, SCHEMA)  # type: ignore[type-var]
    return frame.toArrow().combine_chunks().to_batches()[0]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_is_what_spark_says(expression: str, spark: SparkSession, rows: pa.RecordBatch) -> None:
    if "window" in expression:
        rows = rows.filter(rows.column("at").is_valid())  # rows of no time are in no window
    table = pa.Table.from_batches([rows])
    frame = spark.createDataFrame(table).selectExpr(f"{expression} AS value")
    expected = frame.toArrow().column("value").to_pylist()
    bound = Bound(spark, expression)
    made = native(bound.expression, bound.attributes, bound.kind)
    if made is None:
        pytest.fail(f"{expression} is not evaluated on Arrow")
    assert _plain(made(bound.taken(rows), len(expected)).to_pylist()) == _plain(expected)


def test_what_fails_is_left_to_spark(spark: SparkSession, rows: pa.RecordBatch) -> None:
    bound = Bound(spark, "CASE WHEN i < 100 THEN i * 2 ELSE 0 END")
    made = native(bound.expression, bound.attributes, bound.kind)
    assert made is not None
    with pytest.raises(FAILURES):
        made(bound.taken(rows), rows.num_rows)


@pytest.mark.parametrize(
    "expression", ["upper(s)", "x / y", "i DIV j", "i % j", "s > 5", "CAST(x AS BIGINT)"]
)
def test_what_may_mean_something_else_is_sparks(expression: str, spark: SparkSession) -> None:
    bound = Bound(spark, expression)
    assert native(bound.expression, bound.attributes, bound.kind) is None


class Bound:
    """An expression over the columns of a table, as the planner finds it."""

    def __init__(self, spark: SparkSession, expression: str) -> None:
        frame = spark.createDataFrame([], SCHEMA).selectExpr(f"{expression} AS value")
        plan = Catalyst(spark).rule("ConstantFolding").apply(frame._jdf.queryExecution().analyzed())
        while plan.getClass().getSimpleName() != "Project":
            (plan,) = items(plan.children())
        (alias,) = items(plan.projectList())
        below = items(plan.children())[0]
        (self.expression,) = items(alias.children())
        if expression.startswith("window"):  # a column of its own below
            (window,) = items(items(below.projectList())[0].children())
            self.expression = (
                self.expression.withNewChildren(Catalyst(spark).seq([window]))
                if items(self.expression.children())
                else window
            )
            below = items(below.children())[0]
        self.attributes = items(below.output())
        self.kind = Catalyst(spark).arrow_type(self.expression.dataType())

    def taken(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.select([a.name() for a in self.attributes])


def _plain(values: list[Any]) -> list[Any]:
    return [repr(value) for value in values]
