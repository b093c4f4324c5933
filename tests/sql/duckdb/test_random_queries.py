"""Random expressions over what may be served: the answer is Spark's, or Spark is asked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from headwater.sql.duckdb.serve import decline_reason, serve
from tests.conftest import LONG
from tests.sql.duckdb.test_same_as_spark import Held, assert_same

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

SEEDS = range(400 if LONG else 16)
COLUMNS_PER_QUERY = 10
SERVED_AT_LEAST = 0.6

COLUMNS: Mapping[str, Sequence[str]] = {
    "int": ["n.ti", "n.si", "n.i", "x.k"],
    "long": ["n.l", "n.k"],
    "double": ["n.d"],
    "float": ["n.f"],
    "decimal": ["n.dec"],
    "boolean": ["n.b"],
    "string": ["x.s", "x.t"],
    "date": ["t.day"],
    "timestamp": ["t.ts", "t.w.start"],
}
LITERALS: Mapping[str, Sequence[str]] = {
    "int": ["0", "1", "-1", "2", "7", "100"],
    "long": ["0L", "5L", "-3L", "3000000000"],
    "double": ["1.5D", "0.0D", "1e2"],
    "float": ["CAST(1.5 AS FLOAT)"],
    "decimal": ["1.5", "0.01", "-2.50"],
    "boolean": ["true", "false"],
    "string": ["''", "'a'", "'ab'", "'ï'", "'it''s'"],
    "date": ["DATE '2024-02-29'", "DATE '1969-12-31'"],
    "timestamp": ["TIMESTAMP '2024-02-29 12:00:00'", "TIMESTAMP '1970-01-01 00:00:00.000001'"],
}
NUMERIC = ("int", "long", "double", "float", "decimal")
FROM = "FROM numbers n LEFT JOIN texts x ON n.i = x.k OR n.ti = x.k LEFT JOIN times t ON n.k = t.k"


@dataclass(frozen=True)
class Grammar:
    """Makes expressions of a type, no deeper than asked."""

    random: random.Random

    def expression(self, kind: str, depth: int) -> str:
        """An expression of a type, or of one that Spark brings to it."""
        if depth <= 0 or self.random.random() < 0.15:
            return self.random.choice(COLUMNS[kind] if self.random.random() < 0.75 else LITERALS[kind])
        makers = [*self._common(kind, depth), *self._of(kind, depth)]
        return self.random.choice(makers)()

    def _pick(self, kinds: Sequence[str], depth: int) -> str:
        return self.expression(self.random.choice(kinds), depth - 1)

    def _common(self, kind: str, depth: int) -> list[Callable[[], str]]:
        def same() -> str:
            return self.expression(kind, depth - 1)

        def condition() -> str:
            return self.expression("boolean", depth - 1)

        return [
            lambda: f"CASE WHEN {condition()} THEN {same()} ELSE {same()} END",
            lambda: f"if({condition()}, {same()}, {same()})",
            lambda: f"coalesce({same()}, {same()})",
            lambda: f"nullif({same()}, {same()})",
            lambda: f"{self.random.choice(['greatest', 'least'])}({same()}, {same()})",
            lambda: f"CASE WHEN {condition()} THEN {same()} END",
        ]

    def _of(self, kind: str, depth: int) -> list[Callable[[], str]]:
        def part(of: str) -> str:
            return self.expression(of, depth - 1)

        def number() -> str:
            return self._pick(NUMERIC, depth)

        match kind:
            case "int":
                return [
                    lambda: f"({part('int')} {self.random.choice('+-')} {part('int')})",
                    lambda: f"({part('int')} % {self.random.choice(['3', '7', '-2'])})",
                    lambda: f"length({part('string')})",
                    lambda: (
                        f"{self.random.choice(['year', 'month', 'dayofweek', 'weekofyear'])}({part('date')})"
                    ),
                    lambda: (
                        f"{self.random.choice(['hour', 'second', 'day', 'quarter'])}({part('timestamp')})"
                    ),
                    lambda: f"datediff({part('date')}, {part('timestamp')})",
                    lambda: f"abs({part('int')})",
                    lambda: f"CAST({part('boolean')} AS INT)",
                ]
            case "long":
                return [
                    lambda: f"({part('long')} {self.random.choice('+-*')} {part('int')})",
                    lambda: f"({part('long')} DIV {self.random.choice(['2', '-3', '1000L'])})",
                    lambda: f"CAST({part('int')} AS BIGINT)",
                    lambda: f"({part('long')} % 1000)",
                ]
            case "double":
                return [
                    lambda: f"({part('double')} {self.random.choice('+-*')} {number()})",
                    lambda: (
                        f"({self._pick(['int', 'double'], depth)} / {self.random.choice(['2', '4.0D', '-8'])})"
                    ),
                    lambda: f"CAST({part('int')} AS DOUBLE)",
                    lambda: f"(- {part('double')})",
                ]
            case "float":
                return [lambda: f"({part('float')} + {part('float')})", lambda: f"abs({part('float')})"]
            case "decimal":
                return [
                    lambda: (
                        f"({part('decimal')} {self.random.choice('+-*')} {self._pick(['int', 'decimal'], depth)})"
                    ),
                    lambda: f"round({part('decimal')}, {self.random.choice('012')})",
                    lambda: f"CAST({part('int')} AS DECIMAL(12,2))",
                    lambda: f"CAST({part('decimal')} AS DECIMAL(14,1))",
                ]
            case "boolean":
                kinds = self.random.choice([NUMERIC, ["string"], ["date", "timestamp"], ["boolean"]])
                return [
                    lambda: f"({self._pick(kinds, depth)} {self._comparison()} {self._pick(kinds, depth)})",
                    lambda: f"({self._pick(kinds, depth)} {self._comparison()} {self._pick(kinds, depth)})",
                    lambda: f"({part('boolean')} {self.random.choice(['AND', 'OR'])} {part('boolean')})",
                    lambda: f"(NOT {part('boolean')})",
                    lambda: f"({self._pick(kinds, depth)} IS {self.random.choice(['', 'NOT '])}NULL)",
                    lambda: (
                        f"({part('int')} IN ({self.random.choice(LITERALS['int'])}, 13, NULL, {self.random.choice(LITERALS['long'])}))"
                    ),
                    lambda: f"({part('int')} BETWEEN {part('int')} AND {part('long')})",
                    lambda: (
                        f"({part('string')} LIKE '{self.random.choice(['a%', '%b%', '_', '%', '%_b%'])}')"
                    ),
                    lambda: f"contains({part('string')}, {part('string')})",
                    lambda: f"isnan({part('double')})",
                ]
            case "string":
                return [
                    lambda: f"({part('string')} || {part('string')})",
                    lambda: (
                        f"substring({part('string')}, {self.random.choice('0123')}, {self.random.choice('012')})"
                    ),
                    lambda: f"trim({part('string')})",
                    lambda: f"CAST({self._pick(['int', 'long', 'decimal', 'boolean'], depth)} AS STRING)",
                    lambda: f"replace({part('string')}, 'a', {part('string')})",
                    lambda: f"CAST({part('date')} AS STRING)",
                ]
            case "date":
                return [
                    lambda: f"CAST({part('timestamp')} AS DATE)",
                    lambda: f"date_add({part('date')}, -1)",
                    lambda: f"({part('date')} + INTERVAL 1 {self.random.choice(['DAY', 'MONTH'])})",
                ]
        return [
            lambda: (
                f"date_trunc('{self.random.choice(['day', 'week', 'month', 'hour'])}', {part('timestamp')})"
            ),
            lambda: f"CAST({part('date')} AS TIMESTAMP)",
            lambda: f"({part('timestamp')} - INTERVAL 5 {self.random.choice(['MINUTES', 'DAYS'])})",
        ]

    def _comparison(self) -> str:
        return self.random.choice(["=", "<>", "<", "<=", ">", ">=", "<=>"])

    def query(self) -> str:
        """A SELECT of several expressions, of rows or of groups."""
        kinds = [self.random.choice(list(COLUMNS)) for _ in range(COLUMNS_PER_QUERY)]
        years = "(year(t.ts) BETWEEN 100 AND 9000 OR t.ts IS NULL) AND (year(t.day) BETWEEN 100 AND 9000 OR t.day IS NULL)"
        where = f"WHERE {years} AND {self.expression('boolean', 2)}"
        if self.random.random() < 0.5:
            listed = ", ".join(f"{self.expression(kind, 3)} AS x{i}" for i, kind in enumerate(kinds))
            distinct = self.random.choice(["", "", "DISTINCT "])
            return f"SELECT {distinct}{listed} {FROM} {where}"
        key = self.expression(self.random.choice(["int", "boolean", "string", "double", "date"]), 1)
        having = self.random.choice(["", f"HAVING count(*) > 1 OR max({self.expression('int', 1)}) > 3"])
        listed = ", ".join(f"{self._aggregate(kind)} AS x{i}" for i, kind in enumerate(kinds))
        return f"SELECT {key} AS g, {listed} {FROM} {where} GROUP BY g {having}"

    def _aggregate(self, kind: str) -> str:
        if kind in ("int", "long", "decimal"):
            name = self.random.choice(["sum", "avg", "min", "max", "count"])
            return f"{name}({self.expression(kind, 1)})"
        name = self.random.choice(["min", "max", "count", "count"])
        distinct = "DISTINCT " if name == "count" and self.random.random() < 0.5 else ""
        return f"{name}({distinct}{self.expression(kind, 2)})"


@pytest.fixture(scope="session")
def relations(served_tables: dict[str, pa.Table]) -> dict[str, Held]:
    """The tables as relations."""
    return {name: Held(table) for name, table in served_tables.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_query_is_answered_as_spark_does(
    seed: int, serving_spark: SparkSession, relations: dict[str, Held]
) -> None:
    grammar = Grammar(random.Random(seed))
    query = next(q for q in iter(grammar.query, None) if decline_reason(q, relations) is None)
    actual = serve(query, relations)
    if actual is not None:
        assert_same(actual, serving_spark.sql(query).toArrow())


def test_most_random_queries_are_served(relations: dict[str, Held]) -> None:
    queries = [Grammar(random.Random(seed)).query() for seed in range(40)]
    served = [q for q in queries if serve(q, relations) is not None]
    assert len(served) >= SERVED_AT_LEAST * len(queries), [decline_reason(q, relations) for q in queries]
