"""Which queries are served without Spark, which are left to it, and that nothing outside is within reach."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.types import TIMESTAMP
from headwater.sql.duckdb import duckdb_engine
from headwater.sql.duckdb.serve import HIDDEN, decline_reason, serve

Reads = list[tuple[tuple[str, ...] | None, dict[str, Any] | None]]


@dataclass
class Recorded:
    """A relation that is a table and notes what it is asked for."""

    table: pa.Table
    reads: Reads = field(default_factory=list)

    @property
    def schema(self) -> pa.Schema:
        """The table's."""
        return self.table.schema

    def read(
        self, columns: Sequence[str] | None, equal: Mapping[str, Any] | None, first: int | None = None
    ) -> pa.Table:
        """The columns, unfiltered."""
        self.reads.append((None if columns is None else tuple(columns), dict(equal) if equal else None))
        return self.table if columns is None else self.table.select(list(columns))


@pytest.fixture
def revenue() -> Recorded:
    """A view keyed by country."""
    return Recorded(
        pa.table(
            {
                "country": ["at", "ch", "de", None],
                "amount": pa.array(
                    [Decimal("1.50"), Decimal("2.25"), None, Decimal("0.00")], pa.decimal128(10, 2)
                ),
                "orders": pa.array([3, 4, 0, 1], pa.int64()),
                "at": pa.array([dt.datetime(2024, 1, day, tzinfo=dt.UTC) for day in (1, 2, 3, 4)], TIMESTAMP),
            }
        )
    )


@pytest.fixture
def relations(revenue: Recorded) -> dict[str, Recorded]:
    """The view, and a topic with system columns, and one with a type that only Spark knows."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("Name", pa.string()),
            pa.field("_offset", pa.int64(), metadata={HIDDEN: b""}),
        ]
    )
    topic = pa.table({"id": [1, 2], "Name": ["a", "b"], "_offset": [10, 11]}, schema=schema)
    odd = pa.table({"id": [1], "span": pa.array([5], pa.duration("us"))})
    return {
        "revenue": revenue,
        "Customers": Recorded(topic),
        "odd": Recorded(odd),
        "revenue.late": Recorded(revenue.table),
    }


def test_a_look_up_asks_the_relation_for_its_key(relations: dict[str, Recorded], revenue: Recorded) -> None:
    answer = serve("SELECT * FROM revenue WHERE country = 'ch'", relations)
    assert answer is not None
    assert answer.to_pylist() == [revenue.table.to_pylist()[1]]
    assert revenue.reads == [(None, {"country": "ch"})]


def test_only_the_columns_that_a_query_needs_are_read(
    relations: dict[str, Recorded], revenue: Recorded
) -> None:
    serve("SELECT sum(orders) AS n FROM revenue WHERE at >= '2024-01-02'", relations)
    assert revenue.reads == [(("orders", "at"), None)]


def test_counting_rows_reads_one_narrow_column(relations: dict[str, Recorded], revenue: Recorded) -> None:
    answer = serve("SELECT count(*) FROM revenue", relations)
    assert answer is not None
    assert answer.to_pydict() == {"count(1)": [4]}
    assert revenue.reads == [(("orders",), None)]


def test_equal_constants_reach_relations_inside_joins_in_the_columns_own_type(
    relations: dict[str, Recorded],
) -> None:
    query = """
        SELECT c.name, r.amount FROM revenue r JOIN customers c ON r.orders = c.id + 2
        WHERE c.id = 1 AND r.at = '2024-01-01' AND r.amount = 1.5
    """
    answer = serve(query, relations)
    assert answer is not None
    assert answer.to_pylist() == [{"name": "a", "amount": Decimal("1.50")}]
    assert relations["Customers"].reads == [(("id", "Name"), {"id": 1})]
    assert relations["revenue"].reads == [
        (("amount", "orders", "at"), {"at": dt.datetime(2024, 1, 1, tzinfo=dt.UTC)})
    ]


def test_each_mention_of_a_relation_is_read_by_itself(
    relations: dict[str, Recorded], revenue: Recorded
) -> None:
    query = "SELECT a.country FROM revenue a JOIN revenue b ON a.country = b.country WHERE b.orders = 3"
    answer = serve(query, relations)
    assert answer is not None
    assert answer.to_pydict() == {"country": ["at"]}
    assert revenue.reads == [(("country",), None), (("country", "orders"), {"orders": 3})]


def test_names_are_found_in_any_case_and_headed_as_typed(relations: dict[str, Recorded]) -> None:
    answer = serve("SELECT NAME, c.Id AS x FROM CUSTOMERS c", relations)
    assert answer is not None
    assert answer.column_names == ["NAME", "x"]


def test_a_hidden_column_is_no_part_of_the_star_but_has_its_name(relations: dict[str, Recorded]) -> None:
    starred, named = (
        serve(f"SELECT {columns} FROM customers", relations) for columns in ("*", "name, _offset")
    )
    assert starred is not None
    assert named is not None
    assert starred.column_names == ["id", "Name"]
    assert named.to_pydict() == {"name": ["a", "b"], "_offset": [10, 11]}


def test_a_views_late_rows_are_a_relation_with_a_dot(relations: dict[str, Recorded]) -> None:
    answer = serve("SELECT late.country FROM revenue.late WHERE late.orders > 3", relations)
    assert answer is not None
    assert answer.to_pydict() == {"country": ["ch"]}


def test_results_have_sparks_types(relations: dict[str, Recorded]) -> None:
    answer = serve(
        "SELECT sum(amount) AS a, count(*) AS n, max(at) AS t, avg(amount) AS m FROM revenue", relations
    )
    assert answer is not None
    assert answer.schema.types == [pa.decimal128(20, 2), pa.int64(), TIMESTAMP, pa.decimal128(14, 6)]
    assert answer.to_pylist()[0]["m"] == Decimal("1.250000")


def test_a_type_that_only_spark_computes_with_can_still_be_looked_up(relations: dict[str, Recorded]) -> None:
    answer = serve("SELECT * FROM odd WHERE id = 1", relations)
    assert answer is not None
    assert answer.column("span").type == pa.duration("us")
    assert serve("SELECT * FROM odd WHERE id > 0", relations) is None


def test_a_plan_follows_the_schema(relations: dict[str, Recorded]) -> None:
    query = "SELECT * FROM odd LIMIT 5"
    first = serve(query, relations)
    relations["odd"] = Recorded(pa.table({"other": ["x"]}))
    second = serve(query, relations)
    assert first is not None
    assert second is not None
    assert second.to_pydict() == {"other": ["x"]}


DECLINED = """
SELECT upper(country) || 1 AS x FROM revenue
SELECT orders + 1 AS x, now() AS t FROM revenue
SELECT rand() AS x FROM revenue
SELECT uuid() AS x FROM revenue
SELECT input_file_name() AS x FROM revenue
SELECT java_method('java.lang.Runtime', 'getRuntime') AS x
SELECT reflect('java.util.UUID', 'randomUUID') AS x
SELECT getenv('HOME') AS x
SELECT current_setting('threads') AS x
SELECT * FROM read_csv('/etc/passwd')
SELECT * FROM `/etc/passwd`
SELECT * FROM '/etc/passwd'
SELECT * FROM parquet.`/tmp/x`
SELECT * FROM csv.`/tmp/x`
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_tables
SELECT * FROM information_schema.tables
SELECT * FROM range(10)
SELECT * FROM VALUES (1) AS t(a)
SELECT explode(array(1, 2)) AS x
SELECT * FROM revenue TABLESAMPLE (10 PERCENT)
SELECT * FROM revenue FOR SYSTEM_TIME AS OF 5
SELECT * FROM revenue LATERAL VIEW explode(array(1)) t AS x
SELECT * FROM nowhere
SELECT nothing FROM revenue
SELECT revenue.nothing FROM revenue
SELECT a.country, country FROM revenue a JOIN revenue b ON a.orders = b.orders
SELECT amount / 2 AS x FROM revenue
SELECT round(CAST(orders AS DOUBLE), 1) AS x FROM revenue
SELECT CAST(country AS INT) AS x FROM revenue
SELECT CAST(CAST(orders AS DOUBLE) AS STRING) AS x FROM revenue
SELECT try_cast(country AS INT) AS x FROM revenue
SELECT orders FROM revenue WHERE country = 5
SELECT orders FROM revenue WHERE orders = '5'
SELECT orders FROM revenue WHERE at > 'yesterday'
SELECT orders FROM revenue WHERE at > '2024-02-30'
SELECT orders FROM revenue WHERE orders
SELECT orders FROM revenue WHERE country LIKE 'a!%' ESCAPE '!'
SELECT orders FROM revenue WHERE country LIKE country
SELECT orders FROM revenue WHERE country RLIKE 'a.*'
SELECT orders FROM revenue WHERE country = 'a\\nb'
SELECT orders FROM revenue WHERE country = 'a' 'b'
SELECT orders FROM revenue WHERE orders = 1 = true
SELECT orders FROM revenue WHERE orders IN (SELECT id FROM customers) OR orders = 1
SELECT orders IN (SELECT id FROM customers) AS x FROM revenue
SELECT orders FROM revenue r WHERE EXISTS (SELECT 1 AS x FROM customers c WHERE c.id = r.orders)
SELECT (SELECT max(id) FROM customers c WHERE c.id = r.orders) AS x FROM revenue r
SELECT orders & 1 AS x FROM revenue
SELECT sum(orders) OVER (PARTITION BY country) AS x FROM revenue
SELECT first(orders) AS x FROM revenue
SELECT collect_list(orders) AS x FROM revenue
SELECT percentile(orders, 0.5) AS x FROM revenue
SELECT count(DISTINCT orders, country) AS x FROM revenue
SELECT country, sum(orders) AS x FROM revenue GROUP BY ROLLUP (country)
SELECT country, sum(orders) AS x FROM revenue GROUP BY GROUPING SETS ((country), ())
SELECT country, orders FROM revenue GROUP BY country
SELECT coalesce(orders, 1) FROM revenue
SELECT NULL AS x FROM revenue
SELECT * EXCEPT (orders) FROM revenue
SELECT orders FROM revenue LIMIT 1 + 1
SELECT orders FROM revenue LIMIT ALL
SELECT DISTINCT country FROM revenue ORDER BY orders
SELECT /*+ BROADCAST(r) */ orders FROM revenue r
SELECT country FROM revenue a NATURAL JOIN customers
SELECT a.country FROM revenue a, customers b JOIN customers c ON a.orders = c.id
SELECT country FROM revenue UNION SELECT id FROM customers
SELECT country FROM revenue UNION BY NAME SELECT name FROM customers
WITH RECURSIVE q AS (SELECT 1 AS a) SELECT * FROM q
FROM revenue |> WHERE orders > 1
SELECT orders FROM revenue; SELECT orders FROM revenue
INSERT INTO revenue SELECT * FROM revenue
DROP VIEW revenue
SET threads = 4
PRAGMA database_list
ATTACH '/tmp/x.db'
COPY revenue TO '/tmp/x'
SELECT FROM WHERE
""".strip().splitlines()


@pytest.mark.parametrize(
    "query",
    [
        *DECLINED,
        "",
        ";",
        "(" * 5000,
        "SELECT -- x",
        "SELECT 1" + " / orders" * 200 + " AS x FROM revenue",
        "SELECT count(*) AS n FROM revenue HAVING max(orders) > 0" + " + (1" * 150 + ")" * 150,
        "SELECT " + "- " * 5000 + "1 AS x",
    ],
)
def test_what_is_not_known_to_agree_is_left_to_spark(query: str, relations: dict[str, Recorded]) -> None:
    assert decline_reason(query, relations)
    assert serve(query, relations) is None


def test_the_reason_is_said_in_words(relations: dict[str, Recorded]) -> None:
    reason = decline_reason("SELECT amount / 2 AS x FROM revenue", relations)
    assert reason == "decimal128(10, 2) / int32"


@pytest.mark.parametrize(
    "query",
    [
        "SELECT upper(x) AS x FROM t",
        "SELECT 1 / n AS x FROM t",
        "SELECT n + 9223372036854775807 AS x FROM t",
        "SELECT CAST(n AS TINYINT) AS x FROM t",
    ],
)
def test_an_error_at_run_time_leaves_the_query_to_spark(query: str) -> None:
    relations = {"t": Recorded(pa.table({"x": ["straße", "a"], "n": [0, 1000]}))}
    assert decline_reason(query, relations) is None
    assert serve(query, relations) is None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM glob('{file}')",
        "COPY (SELECT 1) TO '{file}'",
        "ATTACH '{file}'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 4",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "SELECT * FROM outside",
    ],
)
def test_the_engine_has_no_way_out(sql: str, tmp_path: Path) -> None:
    file = tmp_path / "secret.csv"
    file.write_text("a,b\n1,2\n", encoding="utf-8")
    outside = pa.table({"a": [1]})
    with pytest.raises(duckdb_engine.Failed):
        duckdb_engine.run(sql.format(file=file), {})
    assert outside.num_rows == 1
    assert file.read_text(encoding="utf-8") == "a,b\n1,2\n"


def test_nan_is_greater_than_every_number() -> None:
    relations = {"t": Recorded(pa.table({"k": [1, 2, 3], "d": [float("nan"), 5.0, 0.5]}))}
    answer = serve("SELECT k FROM t WHERE d > 1 ORDER BY d DESC", relations)
    assert answer is not None
    assert answer.to_pydict() == {"k": [1, 2]}


def test_threads_ask_at_once(relations: dict[str, Recorded]) -> None:
    wrong = []

    def ask(number: int) -> None:
        for _ in range(20):
            answer = serve(f"SELECT sum(orders) + {number} AS n FROM revenue WHERE orders >= 0", relations)
            if answer is None or answer.to_pydict() != {"n": [8 + number]}:
                wrong.append(number)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_look_up_takes_a_few_milliseconds(relations: dict[str, Recorded]) -> None:
    def fastest(query: str, new_each_time: bool) -> float:
        taken = []
        for i in range(30):
            text = query + " " * i if new_each_time else query
            before = time.perf_counter()
            assert serve(text, relations) is not None
            taken.append(time.perf_counter() - before)
        return min(taken)

    assert fastest("SELECT * FROM revenue WHERE orders = 3", new_each_time=True) < 0.005
    assert (
        fastest("SELECT country, sum(orders) AS n FROM revenue GROUP BY country", new_each_time=False) < 0.02
    )
