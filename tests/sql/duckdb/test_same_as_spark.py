"""What is served without Spark is what Spark answers: hand-written queries over tables made to show differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from headwater.sql.duckdb.serve import decline_reason, serve

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Held:
    """A relation that is a table, and filters by nothing."""

    table: pa.Table

    @property
    def schema(self) -> pa.Schema:
        """The table's."""
        return self.table.schema

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """The columns."""
        return self.table if columns is None else self.table.select(list(columns))


SELECTS = """
SELECT * FROM numbers
SELECT K, n.I, `d` FROM numbers n
SELECT n.* FROM numbers n WHERE k = 8
SELECT * FROM numbers WHERE k = 3 AND i = 7
SELECT k FROM numbers WHERE i = 7L
SELECT k FROM numbers WHERE ti = 1000
SELECT s FROM texts WHERE s = 'it''s'
SELECT s FROM texts WHERE s = "abc" AND k = 0
SELECT k FROM times WHERE day = '1970-01-01'
SELECT k FROM times WHERE ts = '1970-01-01'
SELECT k FROM times WHERE ts = TIMESTAMP '2024-12-30 00:00:01'
SELECT k FROM numbers WHERE b = true
SELECT k FROM numbers WHERE b
SELECT k FROM numbers WHERE NOT b
SELECT k FROM numbers WHERE d > 1
SELECT k FROM numbers WHERE d >= 5 OR d = 0
SELECT k, d FROM numbers WHERE d = d
SELECT k FROM numbers WHERE d <> 0
SELECT k FROM numbers WHERE f > 1.5
SELECT k FROM numbers WHERE f = d
SELECT k FROM numbers WHERE dec > 1
SELECT k FROM numbers WHERE dec = 7.0 OR dec < d
SELECT k FROM numbers WHERE i = 1.0 OR l > 2.5
SELECT k FROM numbers WHERE wide > dec
SELECT k FROM numbers WHERE i IN (1, 2, 7L) OR i IS NULL
SELECT k FROM numbers WHERE i NOT IN (1, 2)
SELECT k FROM numbers WHERE i NOT IN (1, NULL)
SELECT k FROM numbers WHERE i IN (1, NULL)
SELECT k FROM numbers WHERE d IN (1.25, 0) OR i IN (13)
SELECT k FROM numbers WHERE i BETWEEN -7 AND 7
SELECT k FROM numbers WHERE i NOT BETWEEN -7 AND 7.5
SELECT k FROM numbers WHERE k IS NULL OR k IS NOT NULL AND i > 5
SELECT k FROM numbers WHERE b IS TRUE OR b IS NOT FALSE
SELECT k FROM numbers WHERE i <=> 7 OR i IS DISTINCT FROM l
SELECT k FROM numbers WHERE i = NULL OR i IS NOT DISTINCT FROM NULL
SELECT k FROM numbers WHERE true
SELECT k FROM numbers WHERE 1 = 2
SELECT 1 AS one, 'x' AS x, 1.50 AS d, 1e3 AS e, -5 AS m, 10000000000 AS l, true AS t, -2147483648 AS low
SELECT 5L AS a, CAST('2024-01-01' AS DATE) AS b, DATE '0001-01-01' AS c, TIMESTAMP '2024-01-01 10:00:00.5' AS d, .5 AS e
SELECT i, i AS j, I FROM numbers
SELECT ti + ti AS a, ti + 1 AS b, ti + si AS c, i + l AS d, ti * 2 AS e, l - 1 AS g FROM numbers
SELECT f + f AS a, f + d AS b, f + 1 AS c, d * 2 AS e, d - 0.5 AS g, f * 1.5 AS h, d + dec AS i FROM numbers
SELECT -i AS a, -d AS b, -dec AS c, - 3 AS e, -(3) AS g FROM numbers
SELECT i / 2 AS a, i / l AS b, d / 2 AS c, f / 2 AS e FROM numbers WHERE l <> 0
SELECT i DIV 2 AS a, l DIV 7 AS b, i % 3 AS c, l % 7 AS d, -7 DIV 2 AS e, -7 % 3 AS g, d % 2 AS h, ti % 3 AS j FROM numbers
SELECT k FROM numbers WHERE i <> 0 AND 10 / i > 1
SELECT CASE WHEN i <> 0 THEN 10 / i ELSE 0 END AS q FROM numbers
SELECT dec + 1 AS a, dec + i AS b, dec * 2 AS c, dec * ti AS d, dec + l AS e, dec + 1.5 AS g, dec * dec AS h FROM numbers
SELECT dec - 100 AS a, 100 - dec AS b, wide + dec AS c, wide * 2 AS d, dec * -2 AS e, dec * (2) AS g, wide * 1.5 AS h FROM numbers
SELECT dec * wide AS a, wide - l AS b, (dec + 1) * 2 AS c, dec + (1 + 1) AS e FROM numbers
SELECT abs(i) AS a, abs(d) AS b, abs(dec) AS c, abs(f) AS d FROM numbers
SELECT round(dec) AS a, round(dec, 1) AS b, round(wide, 2) AS c, round(i) AS d, round(dec, 5) AS e FROM numbers
SELECT ceil(i) AS a, floor(l) AS b, floor(d) AS c, ceil(d) AS e FROM numbers WHERE d < 1e9 AND d > -1e9
SELECT greatest(i, ti) AS a, least(i, l) AS b, greatest(d, 0) AS c, least(d, f) AS e, greatest(dec, 1) AS g FROM numbers
SELECT greatest(s, t) AS a, least(s, t, 'b') AS b FROM texts
SELECT isnan(d) AS a, isnan(f) AS b FROM numbers
SELECT coalesce(i, 0) AS a, coalesce(dec, 0) AS b, coalesce(i, 1.5) AS c, coalesce(f, i) AS d, nvl(l, i) AS e FROM numbers
SELECT ifnull(d, 1.5) AS a, nullif(i, 7) AS b, nullif(i, 7.0) AS c, nullif(d, 0) AS e, coalesce(NULL, i, 3) AS g FROM numbers
SELECT if(b, i, l) AS a, if(i > 5, 'big', 'small') AS b, if(b, NULL, dec) AS c FROM numbers
SELECT CASE i WHEN 7 THEN 'seven' WHEN 2 THEN 'two' ELSE 'other' END AS a, CASE WHEN b THEN 1 WHEN NOT b THEN 2L END AS c FROM numbers
SELECT CASE WHEN b THEN d ELSE i END AS a, CASE WHEN b THEN dec ELSE 1 END AS c, CASE d WHEN 0 THEN 1 END AS e FROM numbers
SELECT CAST(i AS BIGINT) AS a, CAST(i AS DOUBLE) AS b, CAST(i AS STRING) AS c, CAST(i AS BOOLEAN) AS d, CAST(l AS FLOAT) AS e FROM numbers
SELECT CAST(i AS TINYINT) AS a, CAST(l AS DECIMAL(20,2)) AS b, CAST(b AS INT) AS c, CAST(b AS STRING) AS e FROM numbers
SELECT CAST(dec AS STRING) AS a, CAST(dec AS DECIMAL(5,1)) AS b, CAST(wide AS DECIMAL(20,2)) AS c, CAST(dec AS DOUBLE) AS d, CAST(dec AS INT) AS e FROM numbers
SELECT CAST(d AS INT) AS a, CAST(d AS BIGINT) AS b, CAST(f AS SMALLINT) AS c FROM numbers WHERE d < 1e9 AND d > -1e9 AND f < 1e9
SELECT CAST(f AS DOUBLE) AS a, CAST(d AS FLOAT) AS b, i::string AS c FROM numbers
SELECT CAST(NULL AS INT) AS a, CAST(NULL AS STRING) AS b FROM numbers
SELECT length(s) AS a, char_length(t) AS b, trim(s) AS c, ltrim(s) AS d, rtrim(s) AS e FROM texts
SELECT s || t AS a, concat(s, '-', t) AS b, substring(s, 2, 3) AS c, substr(s, 2) AS d, substring(s, 0, 2) AS e, left(s, 2) AS g FROM texts
SELECT substring(s, 100) AS a, substring(s, 2, 0) AS b, left(s, 0) AS c, substring(s, 1, 100) AS e FROM texts
SELECT upper(s) AS a, lower(t) AS b FROM texts WHERE k IN (0, 1, 2, 3, 7, 8, 9, 10)
SELECT startswith(s, t) AS a, endswith(s, t) AS b, contains(s, t) AS c, contains(s, '') AS d FROM texts
SELECT replace(s, 'a', 'zz') AS a, replace(s, 'ab', '') AS b FROM texts
SELECT s LIKE 'a%' AS a, s LIKE '%b%' AS b, s LIKE '_bc' AS c, s NOT LIKE '%c' AS d, s LIKE '' AS e, s LIKE '%' AS g, s LIKE '_x' AS h, s LIKE '%_b%' AS i, s NOT LIKE '_%c%' AS j FROM texts
SELECT k FROM texts WHERE s < t OR s >= 'n'
SELECT k FROM texts WHERE s IN ('abc', '', t)
SELECT k FROM texts WHERE raw = raw AND raw > raw OR raw IS NULL
SELECT k, s FROM texts WHERE s BETWEEN 'a' AND 'b'
SELECT year(ts) AS a, month(ts) AS b, day(ts) AS c, hour(ts) AS d, minute(ts) AS e, second(ts) AS g FROM times
SELECT year(day) AS a, quarter(day) AS b, dayofmonth(day) AS c, dayofweek(day) AS d, dayofyear(day) AS e, weekofyear(day) AS g FROM times
SELECT quarter(ts) AS a, dayofweek(ts) AS b, dayofyear(ts) AS c, weekofyear(ts) AS d FROM times
SELECT date_trunc('year', ts) AS a, date_trunc('QUARTER', ts) AS b, date_trunc('month', ts) AS c, date_trunc('week', ts) AS d FROM times
SELECT date_trunc('day', ts) AS a, date_trunc('HOUR', ts) AS b, date_trunc('minute', ts) AS c, date_trunc('second', ts) AS d, date_trunc('day', day) AS e FROM times
SELECT date_add(day, 1) AS a, date_sub(day, 30) AS b, date_add(day, k) AS c, datediff(day, ts) AS d, datediff(ts, day) AS e FROM times WHERE year(day) BETWEEN 3 AND 9000
SELECT ts + INTERVAL 1 DAY AS a, ts - INTERVAL '10' MINUTE AS b, ts + INTERVAL 1 MONTH AS c, ts - INTERVAL 1 YEAR AS d FROM times WHERE year(ts) BETWEEN 2 AND 9000
SELECT day + INTERVAL 1 DAY AS a, day + INTERVAL 1 MONTH AS b, day - INTERVAL '2' HOUR AS c, day - INTERVAL 13 MONTHS AS d FROM times WHERE year(day) BETWEEN 3 AND 9000
SELECT CAST(ts AS DATE) AS a, CAST(day AS TIMESTAMP) AS b, CAST(ts AS STRING) AS c, CAST(day AS STRING) AS d FROM times
SELECT CAST(ts AS TIMESTAMP_NTZ) AS a, CAST(ntz AS TIMESTAMP) AS b, CAST(ntz AS DATE) AS c FROM times
SELECT k FROM times WHERE ts > day OR day >= TIMESTAMP '2024-01-01 00:00:00'
SELECT k FROM times WHERE ts >= '2024-01-01' AND ts < '2024-12-30 00:00:01.5'
SELECT k FROM times WHERE ts BETWEEN '1969-12-31' AND TIMESTAMP '1970-01-01 00:00:00'
SELECT k FROM times WHERE day IN ('1970-01-01', DATE '2024-12-30')
SELECT k FROM times WHERE ntz = ntz
SELECT w.start, w.END, t.w.size, w FROM times t
SELECT size(xs) AS n, xs FROM times
SELECT xs[0] AS x FROM times WHERE size(xs) > 0
SELECT count(*) FROM numbers
SELECT count(*), count(1), count(i), COUNT(DISTINCT i), sum(I), avg(n.d), max(s.s) FROM numbers n CROSS JOIN texts s
SELECT sum(ti), sum(si), sum(i), sum(l), sum(f), sum(dec), sum(wide), sum(i + 1), sum(-i), sum(i * l) FROM numbers
SELECT avg(ti) AS a, avg(i) AS b, avg(l) AS c, avg(dec) AS d, avg(f) AS e FROM numbers
SELECT avg(dec) AS d, b FROM numbers GROUP BY b
SELECT min(i), max(i), min(d), max(d), min(b), max(b), min(dec), max(dec), min(f) FROM numbers
SELECT min(s), max(s), min(raw) AS r, count(DISTINCT s) FROM texts
SELECT min(ts), max(day), min(w.start), count(w.size), count(w) AS n FROM times
SELECT count(*), sum(i), avg(d), min(s.s) FROM nothing n LEFT JOIN texts s ON n.k = s.k
SELECT count(*) AS n, sum(i) AS s, avg(dec) AS a, max(d) AS m, sum(dec) AS t FROM nothing
SELECT k, count(*) AS n FROM nothing GROUP BY k
SELECT sum(DISTINCT l), count(DISTINCT d), count(DISTINCT dec), sum(DISTINCT dec) FROM numbers
SELECT count_if(b), count_if(i > 5) AS n, bool_and(b) AS a, bool_or(b) AS o FROM numbers
SELECT count(*) FILTER (WHERE b), sum(i) FILTER (WHERE i > 5) AS s, avg(d) FILTER (WHERE k < 3) AS a FROM numbers
SELECT b, count(*) AS n, sum(i) AS s FROM numbers GROUP BY b
SELECT b, i % 2 AS odd, count(*) AS n FROM numbers GROUP BY b, i % 2
SELECT i % 2 + 1 AS x, i % 2 * 2 AS y FROM numbers GROUP BY i % 2
SELECT d, f, count(*) AS n FROM numbers GROUP BY d, f
SELECT b AS flag, max(i) FROM numbers GROUP BY flag
SELECT b, max(i) FROM numbers GROUP BY 1
SELECT b, i % 2 AS odd, max(l) AS m FROM numbers GROUP BY ALL
SELECT w.start, count(*) FROM times GROUP BY w.start
SELECT w, w.start, count(*) AS n FROM times GROUP BY w
SELECT date_trunc('year', ts) AS y, count(*) AS n FROM times GROUP BY date_trunc('year', ts)
SELECT b, sum(i) AS s FROM numbers GROUP BY b HAVING sum(i) > 0
SELECT b, count(*) AS n FROM numbers GROUP BY b HAVING n > 2 AND b
SELECT i % 2 AS odd FROM numbers GROUP BY i % 2 HAVING i % 2 = 1
SELECT count(*) AS n FROM numbers HAVING count(*) > 100
SELECT max(i) - min(i) AS spread, sum(i) / count(i) AS mean, coalesce(max(k), 0) + 1 AS next FROM numbers
SELECT DISTINCT b FROM numbers
SELECT DISTINCT d, f FROM numbers
SELECT DISTINCT i % 2 AS x, b FROM numbers
SELECT DISTINCT w FROM times
SELECT a.k, b.i FROM numbers a JOIN numbers b ON a.k = b.k
SELECT a.k, b.i FROM numbers a INNER JOIN numbers b ON a.i = b.ti AND a.k < b.k
SELECT a.k, t.s FROM numbers a LEFT JOIN texts t ON a.k = t.k
SELECT a.k, t.s FROM numbers a RIGHT OUTER JOIN texts t ON a.i = t.k
SELECT a.k, t.s FROM numbers a FULL OUTER JOIN texts t ON a.i = t.k
SELECT a.d, b.d FROM numbers a JOIN numbers b ON a.d = b.d
SELECT a.f, b.d FROM numbers a JOIN numbers b ON a.f = b.d
SELECT a.k FROM numbers a LEFT SEMI JOIN texts t ON a.k = t.k
SELECT a.k FROM numbers a LEFT ANTI JOIN texts t ON a.k = t.k AND t.s > 'b'
SELECT a.k, b.k FROM numbers a, numbers b WHERE a.k = b.i
SELECT * FROM numbers a JOIN texts t USING (k)
SELECT * FROM (SELECT k, i FROM numbers) a LEFT JOIN (SELECT k, l FROM numbers) b USING (k)
SELECT * FROM (SELECT k, i FROM numbers) a RIGHT JOIN (SELECT i AS k, l FROM extremes) b USING (k)
SELECT * FROM (SELECT i AS k, l FROM numbers) a FULL JOIN (SELECT i AS k, ti FROM extremes) b USING (k)
SELECT k, a.k, b.k FROM (SELECT k, i FROM numbers) a LEFT JOIN (SELECT k, l FROM numbers) b USING (k)
SELECT a.k, t.s FROM numbers a LEFT JOIN texts t ON a.k = t.k WHERE t.k = 3
SELECT a.k, t.s FROM numbers a FULL JOIN texts t ON a.k = t.k WHERE a.i = 7
SELECT a.k, b.k, c.k FROM numbers a JOIN numbers b ON a.k = b.k LEFT JOIN texts c ON c.k = b.i
SELECT i FROM numbers UNION SELECT ti FROM numbers
SELECT i FROM numbers UNION ALL SELECT l FROM numbers
SELECT dec FROM numbers UNION ALL SELECT i FROM numbers
SELECT d FROM numbers UNION SELECT f FROM numbers
SELECT ts FROM times UNION ALL SELECT day FROM times
SELECT NULL AS x UNION ALL SELECT i FROM numbers
SELECT i FROM numbers INTERSECT SELECT ti FROM numbers
SELECT d FROM numbers EXCEPT SELECT f FROM numbers
SELECT k FROM numbers EXCEPT ALL SELECT k FROM numbers WHERE k < 4
SELECT k FROM numbers INTERSECT ALL SELECT 8L AS x
SELECT i FROM numbers UNION ALL SELECT i FROM extremes INTERSECT SELECT 0 AS x
(SELECT i FROM numbers MINUS SELECT 7 AS x) UNION ALL SELECT 7 AS y
WITH q AS (SELECT k, i FROM numbers WHERE k > 3) SELECT * FROM q
WITH q AS (SELECT k, i FROM numbers), r AS (SELECT max(k) AS m FROM q) SELECT q.k FROM q JOIN r ON q.k = r.m
WITH q AS (SELECT k FROM numbers) SELECT a.k FROM q a JOIN q b ON a.k = b.k + 1
WITH numbers AS (SELECT 1 AS z) SELECT * FROM numbers
SELECT x.n FROM (SELECT b, count(*) AS n FROM numbers GROUP BY b) x WHERE x.n > 2
SELECT `count(1)` + 1 AS n FROM (SELECT count(*) FROM numbers)
SELECT k FROM numbers WHERE i IN (SELECT k FROM texts)
SELECT k FROM numbers WHERE i NOT IN (SELECT k FROM texts)
SELECT k FROM numbers WHERE i NOT IN (SELECT ti FROM numbers)
SELECT k FROM numbers WHERE EXISTS (SELECT 1 AS x FROM texts WHERE s = 'abc') AND k > 2
SELECT k FROM numbers WHERE NOT EXISTS (SELECT 1 AS x FROM nothing)
SELECT k FROM numbers WHERE k = (SELECT max(k) FROM numbers)
SELECT k, (SELECT count(*) FROM texts) AS n, i / (SELECT max(i) FROM numbers) AS r FROM numbers
SELECT k, (SELECT i FROM nothing) AS n FROM numbers
SELECT sum(i) AS k FROM numbers GROUP BY b HAVING max(k) > (SELECT 1 AS one)
SELECT max(DISTINCT i), mean(i), every(b) AS e, some(b) AS s, count(NULL) AS z, sum(1) AS o, count('x') AS x, sum(1.5) AS d FROM numbers
SELECT ts - INTERVAL '10 minutes' AS a, ts + INTERVAL '1 day' AS b, ts - INTERVAL '3 hours' AS c FROM times WHERE year(ts) BETWEEN 2 AND 9000
SELECT day + INTERVAL '1' DAY AS b, day - INTERVAL '1' MONTH AS c FROM times WHERE year(day) BETWEEN 2 AND 9000
SELECT day + INTERVAL '1 day' AS b, day - INTERVAL '1 month' AS c, day + INTERVAL '2 hours' AS d FROM times WHERE year(day) BETWEEN 2 AND 9000
SELECT i, count(*) AS n FROM numbers GROUP BY i HAVING i > 1 OR n > 1
SELECT count(*) AS i FROM numbers GROUP BY i HAVING i > 5
WITH a AS (WITH b AS (SELECT i FROM numbers) SELECT i FROM b), b AS (SELECT 5 AS x) SELECT * FROM a, b
SELECT k FROM numbers WHERE i IN (SELECT k FROM texts WHERE s = 'abc') AND k IN (SELECT k FROM times)
SELECT t.s FROM (SELECT s, k FROM texts UNION ALL SELECT t, k FROM texts) t WHERE t.k = 3
SELECT a.b, a.n + 1 AS n FROM (SELECT b, count(*) AS n FROM numbers GROUP BY b) a JOIN (SELECT max(b) AS b FROM numbers) m ON a.b = m.b
SELECT nvl(s, 'none') AS s, len(s) AS n, ceiling(1) AS c, date_diff(DATE '2024-01-01', DATE '2023-01-01') AS d FROM texts
SELECT b, (SELECT max(k) FROM numbers) AS m FROM numbers GROUP BY b
SELECT i % 2 AS i, count(*) AS n FROM numbers GROUP BY i
SELECT tags, spans, w FROM times
SELECT k, tags FROM times WHERE k > 2
SELECT cardinality(xs) AS a, array_size(xs) AS b, size(spans) AS c FROM times
SELECT CAST(0.01 AS STRING) AS a, CAST(-0.5 AS STRING) AS b, CAST(CAST(1 AS DECIMAL(38,30)) AS STRING) AS c
SELECT * FROM nothing a, nothing b
SELECT i + 1, i * 2, -i, i = 1, i < l, NOT b, i % 2, i DIV 2, i / 2 FROM numbers WHERE k < 0
SELECT max(i + 1), min(t.w.Size), max(Ts), sum(i - 2 * K) FROM numbers n JOIN times t USING (k)
""".strip().splitlines()

ORDERED = """
SELECT d, k FROM numbers ORDER BY d, k
SELECT d, k FROM numbers ORDER BY d DESC, k DESC
SELECT d, k FROM numbers ORDER BY d NULLS LAST, k NULLS LAST
SELECT i, k FROM numbers ORDER BY 1 DESC NULLS FIRST, 2
SELECT s FROM texts ORDER BY s
SELECT s, k FROM texts ORDER BY s DESC, k
SELECT b, k FROM numbers ORDER BY b, k DESC
SELECT k AS x FROM numbers ORDER BY i, l, x
SELECT -k AS k FROM numbers ORDER BY k
SELECT k FROM numbers ORDER BY -k LIMIT 3
SELECT k, i FROM numbers ORDER BY k, i LIMIT 4 OFFSET 2
SELECT k FROM numbers ORDER BY k LIMIT 0
SELECT DISTINCT k FROM numbers ORDER BY k DESC
SELECT k AS i, i AS k FROM numbers ORDER BY i, k
SELECT i AS x, k FROM numbers ORDER BY x + k, x
SELECT n.k, n.i FROM numbers n ORDER BY n.i, k
SELECT b, sum(i) AS s FROM numbers GROUP BY b ORDER BY sum(i)
SELECT b, sum(i) AS s FROM numbers GROUP BY b ORDER BY s DESC
SELECT b, count(*) AS n FROM numbers GROUP BY b ORDER BY n + sum(k), b
SELECT i % 3 AS r FROM numbers GROUP BY i % 3 ORDER BY i % 3
SELECT i FROM numbers UNION SELECT ti FROM numbers ORDER BY i DESC LIMIT 5
SELECT ts FROM times ORDER BY ts
SELECT w.start FROM times ORDER BY w.start DESC
SELECT t.day FROM times t ORDER BY t.day
SELECT dec, k FROM numbers ORDER BY dec, k LIMIT 5
SELECT * FROM (SELECT k FROM numbers ORDER BY k DESC LIMIT 3) ORDER BY k
""".strip().splitlines()

FAILING = """
SELECT i + 1 AS x FROM extremes
SELECT ti + ti AS x FROM extremes
SELECT l * 2 AS x FROM extremes
SELECT -i AS x FROM extremes
SELECT abs(l) AS x FROM extremes
SELECT sum(l) AS x FROM extremes WHERE l > 0 OR l < 0 UNION ALL SELECT sum(l + l) AS x FROM extremes
SELECT sum(a.l) AS x FROM extremes a CROSS JOIN numbers b WHERE a.l > 0
SELECT 1 / i AS x FROM extremes
SELECT 1 % ti AS x FROM numbers
SELECT i DIV l AS x FROM numbers
SELECT 1.5 / d AS x FROM numbers
SELECT CAST(l AS INT) AS x FROM extremes
SELECT CAST(i AS TINYINT) AS x FROM extremes
SELECT CAST(d AS INT) AS x FROM extremes
SELECT CAST(d AS BIGINT) AS x FROM numbers
SELECT CAST(dec AS DECIMAL(5,2)) AS x FROM extremes
SELECT xs[0] AS x FROM times
SELECT i FROM extremes WHERE i + 1 > 5
SELECT i FROM extremes WHERE -i < 5
SELECT l FROM extremes WHERE l - 1 = 5
SELECT i FROM extremes WHERE i * 2 = 6
SELECT i FROM extremes WHERE CAST(i AS TINYINT) = 5
SELECT (l + 1) * 0 AS x FROM extremes
SELECT l + 1 IS NULL AS x FROM extremes
SELECT (SELECT k FROM numbers) AS x
SELECT k FROM numbers WHERE 10 / i > 1 AND i <> 0
SELECT k FROM numbers WHERE i <> 0 OR 10 / i > 1
""".strip().splitlines()


@pytest.fixture(scope="session")
def relations(served_tables: dict[str, pa.Table]) -> dict[str, Held]:
    """The tables as relations."""
    return {name: Held(table) for name, table in served_tables.items()}


@pytest.mark.parametrize("query", SELECTS)
def test_a_served_answer_is_sparks(
    query: str, serving_spark: SparkSession, relations: dict[str, Held]
) -> None:
    assert decline_reason(query, relations) is None
    expected = serving_spark.sql(query).toArrow()
    actual = serve(query, relations)
    assert actual is not None
    assert_same(actual, expected)


@pytest.mark.parametrize("query", ORDERED)
def test_the_order_is_sparks(query: str, serving_spark: SparkSession, relations: dict[str, Held]) -> None:
    assert decline_reason(query, relations) is None
    actual = serve(query, relations)
    assert actual is not None
    expected = serving_spark.sql(query).toArrow()
    assert_same(actual, expected)
    assert rows(actual) == rows(expected)


@pytest.mark.parametrize("query", FAILING)
def test_what_fails_in_spark_is_left_to_spark(
    query: str, serving_spark: SparkSession, relations: dict[str, Held]
) -> None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    assert decline_reason(query, relations) is None
    assert serve(query, relations) is None
    with pytest.raises((PySparkException, Py4JJavaError)):
        serving_spark.sql(query).toArrow()


def assert_same(actual: pa.Table, expected: pa.Table) -> None:
    """The same names, types and multiset of rows; floats to nine digits."""
    assert actual.column_names == expected.column_names
    assert [shape(f.type) for f in actual.schema] == [shape(f.type) for f in expected.schema]
    assert sorted(rows(actual), key=repr) == sorted(rows(expected), key=repr)


def shape(kind: pa.DataType) -> str:
    """A type without nullability and the names of list items."""
    if pa.types.is_struct(kind):
        return "{" + ", ".join(f"{f.name}: {shape(f.type)}" for f in kind.fields) + "}"
    if pa.types.is_list(kind):
        return f"[{shape(kind.value_type)}]"
    return str(kind)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows, in order, comparable."""
    if not table.num_columns:
        return [()] * table.num_rows
    return [tuple(map(_comparable, row)) for row in zip(*(c.to_pylist() for c in table.columns), strict=True)]


def _comparable(value: Any) -> object:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else f"{value + 0.0:.9g}"
    if isinstance(value, dict):
        return tuple((k, _comparable(v)) for k, v in value.items())
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return value
