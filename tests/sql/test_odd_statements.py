"""Whatever a statement says, an error that it raises is one of Headwater: no exception of Java, Arrow, DuckDB or sqlglot is bare."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.spark.spark_errors import own_errors, unplanned
from tests.raising import raises

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def chained(count: int) -> str:
    return "SELECT id FROM orders WHERE " + " OR ".join(f"amount = {i}" for i in range(count))


def nested(count: int) -> str:
    query = "SELECT id FROM orders"
    for number in range(count):
        query = f"SELECT id FROM ({query}) t{number}"
    return query


FEW = [
    chained(300),
    nested(60),
    "SELECT " + " + ".join(["amount"] * 2_000) + " AS x FROM orders",
    "SELECT " + "(" * 3_000 + "amount" + ")" * 3_000 + " AS x FROM orders",
    "SELECT " + "CASE WHEN amount = 1 THEN " * 500 + "0" + " END" * 500 + " AS x FROM orders",
    "SELECT count(DISTINCT customer) AS n, listagg(DISTINCT name, ',') WITHIN GROUP (ORDER BY name) AS l FROM orders, customers",
    "SELECT listagg(DISTINCT tags[0], ',') WITHIN GROUP (ORDER BY amount) AS l, count(DISTINCT id) AS n FROM orders",
]
MANY = [
    "SELECT '\ud800' AS x FROM orders",
    "SELECT id AS `\ud800` FROM orders",
    "SELECT '\x00' AS x, id FROM orders",
    "SELECT id AS `a\x00b` FROM orders",
    "",
    "   ",
    ";",
    "SELECT 'abc FROM orders",
    "SELECT /* FROM orders",
    'SELECT "abc FROM orders',
    "SELECT `abc FROM orders",
    "SELECT id AS " + "x" * 20000 + " FROM orders",
    "SELECT * FROM " + "y" * 70000,
    "SELECT 1e400 AS x FROM orders",
    "SELECT 1e308D*10 AS x FROM orders",
    "SELECT 99999999999999999999999999999999999999999 AS x FROM orders",
    "SELECT X'1' AS x FROM orders",
    "SELECT X'ZZ' AS x FROM orders",
    "SELECT DATE '2026-13-01' AS x FROM orders",
    "SELECT INTERVAL 'abc' AS x FROM orders",
    "SELECT TIMESTAMP 'x' AS x FROM orders",
    "SELECT :p AS x FROM orders",
    "SELECT ? AS x FROM orders",
    "SELECT ${x} AS x FROM orders",
    "SELECT id FROM orders WHERE",
    "SELECT",
    "WITH",
    "FROM",
    "VALUES",
    "TABLE",
    "(",
    "VALUES (1),(2,3)",
    "VALUES (1), ('a')",
    "SELECT * FROM VALUES (1, 'a'), (2, NULL) AS t(a, b)",
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM t) SELECT n FROM t",
    "WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a) SELECT * FROM a",
    "SELECT * FROM orders PIVOT (sum(amount) FOR customer IN (1, 'x'))",
    "SELECT * FROM orders PIVOT (sum(amount) FOR customer IN (ANY))",
    "SELECT * FROM (SELECT id, amount FROM orders) UNPIVOT (v FOR w IN (amount, name))",
    "SELECT customer, grouping(customer) FROM orders",
    "SELECT customer, count(*) FROM orders GROUP BY GROUPING SETS ((customer), (nope))",
    "SELECT * FROM orders, LATERAL explode(map(1,2)) AS t",
    "SELECT explode(explode(array(tags))) FROM orders",
    "SELECT sum(sum(amount)) FROM orders",
    "SELECT sum(amount) OVER (ORDER BY id ROWS BETWEEN 1 FOLLOWING AND 1 PRECEDING) FROM orders",
    "SELECT id FROM orders ORDER BY rand() LIMIT 1",
    "SELECT java_method('java.lang.System','exit') FROM orders",
    "SELECT reflect('java.util.UUID','randomUUID') AS x FROM orders",
    "SELECT java_method('no.such','x') AS x FROM orders",
    "SELECT from_json('{', 'garbage<') AS x FROM orders",
    "SELECT from_json(tags[0], schema_of_json(tags[1])) AS x FROM orders",
    "SELECT transform(tags, (x, y, z) -> x) AS x FROM orders",
    "SELECT aggregate(tags, 0, (a, b) -> b) AS x FROM orders",
    "SELECT array_sort(tags, (a, b) -> 'x') AS x FROM orders",
    "SELECT regexp_replace(tags[0], '(', 'x') AS x FROM orders",
    "SELECT tags[0] RLIKE '[' AS x FROM orders",
    "SELECT date_format(at, 'QQQQQQQ') AS x FROM orders",
    "SELECT to_timestamp('x', 'bbbb') AS x FROM orders",
    "SELECT format_string('%d %q', id, tags) AS x FROM orders",
    "SELECT format_number(price, 'zz##;;') AS x FROM orders",
    "SELECT decode(tags[0], 'nope') AS x FROM orders",
    "SELECT encode('x', 'nope') AS x FROM orders",
    "SELECT from_utc_timestamp(at, 'Nowhere/City') AS x FROM orders",
    "SELECT window(at, '0 minutes') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT window(at, '-1 minutes') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT window(at, 'x') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT window(at, '1 month') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT window(at, '1 minute', '1 day') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT session_window(at, 'x') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT cumulate_window(at, 'x', 'y') AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT cumulate_window(at) AS w, count(*) AS n FROM orders GROUP BY 1",
    "SELECT conv('zz', 99, 2) AS x FROM orders",
    "SELECT percentile(amount, 7) AS x FROM orders",
    "SELECT percentile_approx(amount, 0.5, -1) AS x FROM orders",
    "SELECT ntile(-1) OVER (ORDER BY id) AS x FROM orders",
    "SELECT lag(id, amount) OVER (ORDER BY id) AS x FROM orders",
    "SELECT nth_value(id, 0) OVER (ORDER BY id) AS x FROM orders",
    "SELECT id FROM orders LIMIT -1",
    "SELECT id FROM orders ORDER BY id LIMIT 99999999999",
    "SELECT id FROM orders ORDER BY id LIMIT amount",
    "SELECT id FROM orders TABLESAMPLE (-5 ROWS)",
    "SELECT * FROM range(1,10)",
    "SELECT * FROM range(1,10,0)",
    "SELECT * FROM read_files('x')",
    "SELECT * FROM csv.`/etc/passwd`",
    "SELECT * FROM parquet.`/x`",
    "SELECT input_file_name() AS x FROM orders",
    "SELECT TRANSFORM(id) USING 'cat' AS x FROM orders",
    "SELECT MAP(id, name) FROM customers",
    "SELECT id FROM orders CLUSTER BY id",
    "SELECT id FROM orders DISTRIBUTE BY id",
    "SELECT /*+ BROADCAST(orders) */ id FROM orders",
    "SELECT id FROM orders VERSION AS OF 3",
    "SELECT id FROM orders TIMESTAMP AS OF '2026-01-01'",
    "SELECT c.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF nope AS c ON o.customer = c.id",
    "SELECT c.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF (SELECT max(at) FROM orders) AS c ON o.customer = c.id",
    "SELECT c.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF sum(o.at) AS c ON o.customer = c.id",
    "SELECT * FROM clicks MATCH_RECOGNIZE (PATTERN (a) DEFINE a AS true)",
    "SELECT * FROM clicks MATCH_RECOGNIZE (",
    "SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY at MEASURES x.y AS z PATTERN (a{99999}) DEFINE a AS 1)",
    "SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY at PATTERN (a**) DEFINE a AS true)",
    "SELECT count(DISTINCT *) AS n FROM orders",
    "SELECT count(DISTINCT id, amount) AS n, sum(DISTINCT price) FILTER (WHERE id > 1) AS s FROM orders",
    "SELECT max(struct(*)) AS x FROM orders",
    "SELECT named_struct('a') AS x FROM orders",
    "SELECT struct() AS x FROM orders",
    "SELECT array() AS x, map() AS y FROM orders",
    "SELECT NULL AS x FROM orders",
    "SELECT CAST(NULL AS VOID) AS x FROM orders",
    "SELECT CAST(id AS CHAR(0)) AS x FROM orders",
    "SELECT CAST(id AS DECIMAL(99,2)) AS x FROM orders",
    "SELECT CAST(id AS nope) AS x FROM orders",
    "SELECT typeof(id), id AS id2 FROM orders",
    "SELECT raise_error('boom') AS x FROM orders",
    "SELECT assert_true(id > 100) AS x FROM orders",
    "SELECT id / 0 AS x FROM orders",
    "SELECT cast(9223372036854775807 + id AS BIGINT) AS x FROM orders",
    "SELECT xpath(tags[0], 'a[') AS x FROM orders",
    "SELECT xpath('<a', 'a') AS x FROM orders",
    "SELECT parse_url('http://[', 'HOST') AS x FROM orders",
    "SELECT url_decode('%zz') AS x FROM orders",
    "SELECT unbase64('%') AS x FROM orders",
    "SELECT unhex('zz') AS x FROM orders",
    "SELECT aes_decrypt('a', 'b') AS x FROM orders",
    "SELECT ai_query('a','b') AS x FROM orders",
    "SELECT http_request('x') FROM orders",
    "SELECT st_point(1,2) AS x FROM orders",
    "SELECT from_avro(tags, '{}') AS x FROM orders",
    "SELECT from_protobuf(tags, 'x', 'y') AS x FROM orders",
    "SELECT schema_of_xml('<') AS x FROM orders",
    "SELECT from_xml('<p>', 'a int') AS x FROM orders",
    "SELECT to_csv(struct(tags)) AS x FROM orders",
    "SELECT from_csv('1', 'a nope') AS x FROM orders",
    "SELECT collations() FROM orders",
    "SELECT * FROM sql_keywords()",
    "SELECT * FROM collations()",
    "SELECT * FROM python_worker_logs()",
    "SELECT * FROM stack(2, 1, 2)",
    "SELECT * FROM json_tuple('{', 'a')",
    "SELECT timestampadd(NOPE, 1, at) AS x FROM orders",
    "SELECT extract(NOPE FROM at) AS x FROM orders",
    "SELECT make_date(2026, 13, 1) AS x FROM orders",
    "SELECT make_interval(1,2,3,4,5,6,7) AS x FROM orders",
    "SELECT id:a.b AS x FROM orders",
    "SELECT 1e99999999999999999999999BD AS x FROM orders",
    "SELECT id FROM orders WHERE price > 1e99999999999999999999999",
    "SELECT id.a.b AS x FROM orders",
    "SELECT tags.a AS x FROM orders",
    "SELECT orders.*.a FROM orders",
    "SELECT * EXCEPT (nope) FROM orders",
    "SELECT * EXCEPT (id, customer, amount, price, tags, items, at) FROM orders",
    "SELECT count(*) FILTER (WHERE sum(amount) > 1) FROM orders",
    "SELECT id FROM orders HAVING id > 1",
    "SELECT id FROM orders QUALIFY id > 1",
    "SELECT id FROM orders GROUP BY ALL HAVING nope",
    "SELECT CASE END FROM orders",
    "SELECT id IN () FROM orders",
    "SELECT EXISTS (SELECT 1) AS x FROM orders",
    "SELECT (SELECT id, amount FROM orders) AS x FROM orders",
    "SELECT (SELECT id FROM orders) AS x FROM orders",
    "SELECT id FROM orders o JOIN customers c",
    "SELECT o.id FROM orders o NATURAL JOIN nope",
    "SELECT id FROM orders WHERE id = ANY (SELECT id FROM customers)",
    "SELECT id FROM orders WHERE id > ALL (SELECT id FROM customers)",
    "SELECT id FROM orders |> nope",
    "FROM orders |> AGGREGATE sum(amount) GROUP BY customer |> PIVOT (count(*) FOR customer IN (1))",
    "SELECT x -> x FROM orders",
    "SELECT IDENTIFIER('id') AS x FROM orders",
    "SELECT id FROM IDENTIFIER('orders')",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "SELECT id COLLATE nope FROM orders",
    "SELECT tags[0] COLLATE UNICODE_CI AS x, count(*) AS n FROM orders GROUP BY 1",
    "SELECT tags[99] AS x FROM orders",
    "SELECT element_at(tags, 0) AS x FROM orders",
    "SELECT slice(tags, 0, 1) AS x FROM orders",
    "SELECT split_part('a', '', 0) AS x FROM orders",
    "SELECT bround(price, 999999999) AS x FROM orders",
    "SELECT shiftleft(id, 99) AS x, factorial(99) AS y, hex(-1) AS z FROM orders",
    "SELECT variant_get(parse_json('{'), '$') AS x FROM orders",
    "SELECT parse_json('{') IS NULL AS x FROM orders",
    "SELECT try_variant_get(parse_json('1'), '][', 'int') AS x FROM orders",
    "SELECT get_json_object(tags[0], '$[') AS x FROM orders",
    "SELECT user() AS x FROM clicks",
    "SELECT session_user() AS x FROM clicks",
    "SELECT hll_sketch_estimate(CAST('x' AS BINARY)) AS x FROM orders",
    "SELECT theta_union(CAST('x' AS BINARY), CAST('y' AS BINARY)) AS x FROM orders",
    "SELECT bitmap_count(CAST('x' AS BINARY)) AS x FROM orders",
    "SELECT kll_sketch_get_n_bigint(CAST('x' AS BINARY)) AS x FROM orders",
    "SELECT approx_top_k_estimate(struct(1), 3) AS x FROM orders",
    "SELECT count_min_sketch(id, 0, 2, 1) AS x FROM orders",
    "SELECT approx_count_distinct(id, 5) AS x FROM orders",
    "SELECT theta_sketch_agg(id, 99) AS x FROM clicks, orders",
    "SELECT theta_union_agg(tags) AS x FROM orders",
    "SELECT listagg(DISTINCT tags[0], id) WITHIN GROUP (ORDER BY amount), count(DISTINCT id) FROM orders",
    "SELECT listagg(id, ',', 3) WITHIN GROUP (ORDER BY id), count(DISTINCT id), count(DISTINCT amount) FROM orders",
    "SELECT mode() WITHIN GROUP (ORDER BY id, amount) FROM orders",
    "SELECT percentile_cont(id) WITHIN GROUP (ORDER BY amount) FROM orders",
    "SELECT rank(1) WITHIN GROUP (ORDER BY id) FROM orders",
    "SELECT count(id) WITHIN GROUP (ORDER BY id) FROM orders",
    "SELECT array_agg(id ORDER BY) FROM orders",
    "SELECT array_agg(id ORDER BY nope) FROM orders",
    "SELECT array_agg(ORDER BY id) FROM orders",
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("odd") / "w", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC orders (id BIGINT, customer BIGINT, amount INT, price DOUBLE, tags ARRAY<STRING>,
              items ARRAY<STRUCT<sku STRING, n INT>>, at TIMESTAMP, PRIMARY KEY (id));
            CREATE TOPIC customers (id BIGINT, name STRING, country STRING, PRIMARY KEY (id));
            CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
        """)
        order = {"customer": 1, "amount": 10, "price": 1.5, "tags": ["a"], "items": [], "at": NOON}
        ws.append(
            {
                "orders": [{"id": 1, **order}, {"id": 2, **order}],
                "customers": [{"id": 1, "name": "ada", "country": "ch"}],
                "clicks": [{"user": 1, "url": "/a", "at": NOON}],
            }
        )
        yield ws


def asked(ws: hw.Workspace, number: int, query: str) -> str | None:
    """What a statement raises that is no error of Headwater, asked as a view that is run and as a query."""
    for way in ("view", "query"):
        try:
            if way == "view":
                ws.sql(f"CREATE MATERIALIZED VIEW v{number} AS {query}")
            else:
                ws.query(query)
        except hw.HeadwaterError:
            pass
        except Exception as error:  # noqa: BLE001 - what is looked for
            return f"{query[:100]!a} as a {way}: {type(error).__name__} {str(error)[:200]!a}"
    return None


def run_all(ws: hw.Workspace) -> None:
    """Views that can be made are run together: one that fails stops alone, with a reason."""
    try:
        assert all(ws.run().stopped.values())
    finally:
        found = ws.sql("SHOW VIEWS")
        assert found is not None
        for view in found.column("view").to_pylist():
            ws.sql(f"DROP VIEW IF EXISTS {view} CASCADE")


@pytest.mark.slow
def test_an_odd_statement_raises_an_error_of_headwater_or_none(shop: hw.Workspace) -> None:
    bare = [asked(shop, number, query) for number, query in enumerate([*FEW, *MANY[::6]])]
    assert [one for one in bare if one is not None] == []
    run_all(shop)


@pytest.mark.long
def test_many_odd_statements_raise_errors_of_headwater_or_none(shop: hw.Workspace) -> None:
    bare = [asked(shop, number, query) for number, query in enumerate([*MANY, chained(2_000)])]
    assert [one for one in bare if one is not None] == []
    run_all(shop)


@pytest.mark.parametrize(
    "text", ["SELECT '\ud800' AS x FROM orders", "\udfff", "CREATE TOPIC t (`\ud800` INT)"]
)
def test_half_of_a_surrogate_pair_is_refused(ws: hw.Workspace, text: str) -> None:
    for run in (ws.sql, ws.query):
        with raises(hw.StatementError, reason="surrogate"):
            run(text)


@pytest.mark.slow
def test_listagg_works_with_distinct_aggregates(shop: hw.Workspace) -> None:
    """Spark fails on it, in views and in queries."""
    query = """
        SELECT country, count(DISTINCT id) AS n, listagg(DISTINCT name, ',') WITHIN GROUP (ORDER BY name DESC) AS names,
          string_agg(name, '+' ORDER BY id) AS listed, listagg(DISTINCT name) WITHIN GROUP (ORDER BY name) FILTER (WHERE id > 9) AS no
        FROM customers GROUP BY country"""
    shop.sql(f"CREATE MATERIALIZED VIEW lists AS {query}")
    customers = [{"id": 2, "name": "ada", "country": "ch"}, {"id": 3, "name": "bea", "country": "ch"}]
    shop.topic("customers").append(customers)
    shop.run()
    expected = [{"country": "ch", "n": 3, "names": "bea,ada", "listed": "ada+ada+bea", "no": None}]
    assert shop.query("SELECT * FROM lists").to_pylist() == shop.query(query).to_pylist() == expected
    shop.topic("customers").delete([{"id": 3}])
    shop.run()
    assert shop.query("SELECT names, listed FROM lists").to_pylist() == [
        {"names": "ada", "listed": "ada+ada"}
    ]
    assert shop.verify().ok
    shop.sql("DROP VIEW lists")


@pytest.mark.slow
def test_a_spark_that_is_gone_stops_no_view(spark: SparkSession) -> None:
    """The error can be tried again, so that a tick fails as a whole and no view is blamed."""
    from py4j.protocol import Py4JJavaError

    assert spark._jvm is not None
    java = spark._jvm.java.lang.IllegalStateException("Cannot call methods on a stopped SparkContext.")
    with pytest.raises(hw.SparkJobError) as gone, own_errors(unplanned):
        raise Py4JJavaError("failed", java)
    assert gone.value.retryable
    assert isinstance(gone.value.__cause__, Py4JJavaError)


def test_faults_of_headwater_itself_pass_as_they_are() -> None:
    with pytest.raises(KeyError), own_errors(unplanned):
        raise KeyError("a fault")
    with raises(hw.StatementError, reason="nested-too-deeply"), own_errors(unplanned):
        raise RecursionError
