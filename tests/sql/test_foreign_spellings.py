"""What users of RisingWave, Flink and Materialize type first is refused with a statement that works: hints are run here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.sql.parser import parse
from tests.raising import raises
from tests.sql.test_sql_support import table

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = "2026-03-01 12"


def minute(number: float) -> datetime:
    return NOON + timedelta(minutes=number)


@pytest.fixture(scope="module")
def market(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("market") / "w", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
            CREATE TOPIC orders (id BIGINT, customer BIGINT, amount INT, tags ARRAY<STRING>,
              items ARRAY<STRUCT<sku STRING, n INT>>, at TIMESTAMP, PRIMARY KEY (id));
            CREATE TOPIC customers (id BIGINT, name STRING, PRIMARY KEY (id));
            CREATE TOPIC trades (symbol STRING, price DOUBLE, at TIMESTAMP);
            CREATE TOPIC quotes (symbol STRING, bid DOUBLE, at TIMESTAMP, PRIMARY KEY (symbol), WATERMARK FOR at AS at);
        """)
        items = [{"sku": "x", "n": 1}]
        ws.append(
            {
                "clicks": [{"user": u, "url": "/a", "at": minute(m)} for u, m in ((1, 0), (1, 0.5), (2, 3))],
                "orders": [
                    {
                        "id": 1,
                        "customer": 1,
                        "amount": 10,
                        "tags": ["a", "b"],
                        "items": items,
                        "at": minute(0),
                    },
                    {"id": 2, "customer": 1, "amount": 20, "tags": ["c"], "items": items, "at": minute(1)},
                    {"id": 3, "customer": 2, "amount": 20, "tags": [], "items": [], "at": minute(2)},
                ],
                "customers": [{"id": 1, "name": "ada"}, {"id": 2, "name": "bob"}],
                "trades": [{"symbol": "X", "price": 1.0, "at": minute(5)}],
                "quotes": [
                    {"symbol": "X", "bid": bid, "at": minute(m)} for bid, m in ((0.4, 1), (0.5, 5), (0.7, 6))
                ],
            }
        )
        ws.run()
        yield ws


SPELLINGS: dict[str, list[tuple[Any, ...]]] = {
    "SELECT window_end, count(*) AS n FROM tumble(clicks, at, '1 minute') GROUP BY window_end": [
        (minute(1), 2),
        (minute(4), 1),
    ],
    "SELECT window_start, count(*) AS n FROM tumble(clicks, at, INTERVAL '1 minute') GROUP BY window_start": [
        (minute(0), 2),
        (minute(3), 1),
    ],
    "SELECT t.window_end, count(*) AS n FROM hop(clicks, at, INTERVAL '1 minute', INTERVAL '2 minutes') AS t "
    "WHERE user = 2 GROUP BY t.window_start, t.window_end": [(minute(4), 1), (minute(5), 1)],
    "SELECT window_start, window_end, count(*) AS n FROM TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
    "GROUP BY window_start, window_end": [(minute(0), minute(1), 2), (minute(3), minute(4), 1)],
    "SELECT window_end, count(*) AS n FROM TABLE(CUMULATE(DATA => TABLE clicks, TIMECOL => DESCRIPTOR(at), "
    "STEP => INTERVAL '2' MINUTES, SIZE => INTERVAL '4' MINUTES)) GROUP BY window_start, window_end": [
        (minute(2), 2),
        (minute(4), 3),
    ],
    "SELECT user, window_start, count(*) AS n FROM TABLE(SESSION(TABLE clicks, DESCRIPTOR(at), INTERVAL '1' MINUTE)) "
    "GROUP BY user, window_start, window_end": [(1, minute(0), 2), (2, minute(3), 1)],
    "SELECT user, window_start FROM tumble(clicks, at, INTERVAL '1 minute') WHERE user = 1": [
        (1, minute(0)),
        (1, minute(0)),
    ],
    "SELECT TUMBLE_START(at, INTERVAL '1' MINUTE) AS s, TUMBLE_END(at, INTERVAL '1' MINUTE) AS e, count(*) AS n "
    "FROM clicks GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)": [
        (minute(0), minute(1), 2),
        (minute(3), minute(4), 1),
    ],
    "SELECT TUMBLE_ROWTIME(at, INTERVAL '1' MINUTE) AS t, count(*) AS n FROM clicks GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)": [
        (minute(1) - timedelta(milliseconds=1), 2),
        (minute(4) - timedelta(milliseconds=1), 1),
    ],
    "SELECT HOP_START(at, INTERVAL '1' MINUTE, INTERVAL '2' MINUTE) AS s, count(*) AS n FROM clicks WHERE user = 2 "
    "GROUP BY HOP(at, INTERVAL '1' MINUTE, INTERVAL '2' MINUTE)": [(minute(2), 1), (minute(3), 1)],
    "SELECT user, SESSION_START(at, INTERVAL '1' MINUTE) AS s, count(*) AS n FROM clicks "
    "GROUP BY user, SESSION(at, INTERVAL '1' MINUTE)": [(1, minute(0), 2), (2, minute(3), 1)],
    "SELECT user, PROCTIME() > TIMESTAMP '2026-01-01' AS recent FROM clicks WHERE user = 2": [(2, True)],
    "SELECT o.id, c.name FROM orders o JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c ON o.customer = c.id": [
        (1, "ada"),
        (2, "ada"),
        (3, "bob"),
    ],
    "SELECT t.symbol, q.bid FROM trades t ASOF JOIN quotes q ON t.symbol = q.symbol AND t.at >= q.at WHERE t.price > 0": [
        ("X", 0.5)
    ],
    "SELECT t.symbol, q.bid FROM trades t ASOF JOIN quotes q ON q.at < t.at AND t.symbol = q.symbol": [
        ("X", 0.4)
    ],
    "SELECT trades.symbol, q.bid FROM trades ASOF LEFT JOIN quotes AS q USING (symbol, at)": [("X", 0.5)],
    "SELECT trades.symbol, q.bid FROM trades LEFT ASOF JOIN quotes AS q USING (symbol, at)": [("X", 0.5)],
    "SELECT trades.symbol, quotes.bid FROM trades ASOF JOIN quotes MATCH_CONDITION (trades.at >= quotes.at) "
    "ON trades.symbol = quotes.symbol": [("X", 0.5)],
    "SELECT DISTINCT ON (customer) customer, id FROM orders ORDER BY customer, at DESC": [(1, 2), (2, 3)],
    "SELECT DISTINCT ON (customer) customer FROM orders WHERE amount > 10": [(1,), (2,)],
    "SELECT DISTINCT ON (customer) customer, id FROM orders ORDER BY customer, at DESC LIMIT 1": [(1, 2)],
    "SELECT id, amount FROM orders ORDER BY amount DESC FETCH FIRST 1 ROWS WITH TIES": [(2, 20), (3, 20)],
    "SELECT id FROM orders ORDER BY id DESC FETCH NEXT ROW ONLY": [(3,)],
    "SELECT approx_percentile(0.5) WITHIN GROUP (ORDER BY amount) AS p FROM orders": [(20,)],
    "SELECT approx_percentile(0.9, 0.01) WITHIN GROUP (ORDER BY user DESC) AS p FROM clicks": [(1,)],
    "SELECT * FROM gap_fill(clicks, at, INTERVAL '1 minute', LOCF(user))": [
        (minute(0), 2),
        (minute(1), 0),
        (minute(2), 0),
        (minute(3), 1),
    ],
    "SELECT time_bucket_gapfill('1 minute', at) AS t, count(*) AS n FROM clicks GROUP BY 1": [
        (minute(0), 2),
        (minute(1), 0),
        (minute(2), 0),
        (minute(3), 1),
    ],
    "SELECT id, tag FROM orders CROSS JOIN UNNEST(tags) AS t(tag)": [(1, "a"), (1, "b"), (2, "c")],
    "SELECT id, sku, n FROM orders, UNNEST(items) AS t(sku, n)": [(1, "x", 1), (2, "x", 1)],
    "SELECT id, unnest(tags) AS tag FROM orders": [(1, "a"), (1, "b"), (2, "c")],
    "SELECT id, tag FROM orders, LATERAL TABLE(explode(tags)) AS t(tag)": [(1, "a"), (1, "b"), (2, "c")],
    "SELECT date_bin(INTERVAL '5 minutes', at, TIMESTAMP '2001-01-01') AS t, count(*) AS n FROM clicks GROUP BY 1": [
        (minute(0), 3)
    ],
    "SELECT time_bucket('5 minutes', at) AS t, count(*) AS n FROM clicks GROUP BY 1": [(minute(0), 3)],
}


def suggested(ws: hw.Workspace, statement: str) -> str:
    """The statement that the hint says to write."""
    with pytest.raises(hw.StatementError) as refused:
        ws.sql(statement)
    assert "^" in (refused.value.detail or ""), "nothing is underlined"
    verb, _, rest = (refused.value.hint or "").partition(" ")
    assert verb == "write", refused.value
    return rest


@pytest.mark.slow
def test_the_statement_of_every_hint_runs_as_a_view_and_as_a_query(market: hw.Workspace) -> None:
    made: dict[str, tuple[str, list[tuple[Any, ...]]]] = {}
    for number, (spelling, expected) in enumerate(SPELLINGS.items()):
        create = f"CREATE MATERIALIZED VIEW v{number} AS "
        instead = suggested(market, create + spelling)
        market.sql(instead if instead.startswith("CREATE") else create + instead)
        asked = suggested(market, spelling)
        answer = [tuple(row.values()) for row in market.query(asked).to_pylist()]
        assert sorted(answer) == expected, spelling
        made[f"v{number}"] = spelling, expected
    assert market.run().stopped == {}
    for view, (spelling, expected) in made.items():
        rows = [tuple(row.values()) for row in market.query(f"SELECT * FROM {view}").to_pylist()]
        assert sorted(rows) == expected, spelling
    assert market.verify().ok


@pytest.mark.slow
def test_a_type_of_another_engine_is_answered_with_ours(market: hw.Workspace) -> None:
    instead = suggested(
        market, "CREATE MATERIALIZED VIEW typed AS SELECT id, at::timestamptz AS t FROM orders"
    )
    assert market.query(instead).num_rows == 3


@pytest.mark.parametrize(
    "query",
    [
        "SELECT asof.id FROM orders AS asof JOIN customers c ON asof.customer = c.id",
        "SELECT a.x FROM a, asof JOIN b ON x = y",
        "SELECT * FROM asof JOIN v ON a = b",
        "SELECT * FROM trades `asof` JOIN quotes ON a = b",
        "SELECT tumble(a, 3), hop(b), session(c) FROM t",
        "SELECT a, tumble(a, b, 3) FROM t",
        "SELECT 'PROCTIME()', unnest, fetch FROM t -- DISTINCT ON (a)",
        "SELECT count(DISTINCT a) FROM t JOIN u ON (t.a = u.a)",
        "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY x) FROM t",
        "SELECT now() FROM t",
        "CREATE TOPIC unnest (a INT, session INT)",
        "CREATE MATERIALIZED VIEW unnest (a, b) AS SELECT a, b FROM t",
    ],
)
def test_what_only_looks_like_another_spelling_is_read(query: str) -> None:
    assert len(parse(query)) == 1


def test_asof_as_a_name_that_was_not_meant_is_refused_even_where_no_time_is_given() -> None:
    with raises(hw.StatementError, reason="other-dialect", keyword="ASOF") as refused:
        parse("SELECT price, bid FROM trades ASOF JOIN quotes ON asof.symbol = quotes.symbol")
    assert "FROM trades JOIN quotes FOR SYSTEM_TIME AS OF trades." in (refused.value.hint or "")
    with raises(hw.StatementError, reason="other-dialect", keyword="ASOF") as refused:
        parse("SELECT bid FROM (SELECT * FROM trades) ASOF JOIN quotes ON true")
    assert "FROM <left> JOIN quotes FOR SYSTEM_TIME AS OF <left>." in (refused.value.hint or "")
    with raises(hw.StatementError, reason="other-dialect") as refused:
        parse("SELECT bid FROM trades LEFT ASOF JOIN quotes ON trades.symbol = quotes.symbol")
    assert "FROM trades LEFT JOIN quotes FOR SYSTEM_TIME AS OF trades." in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("query", "window"),
    [
        ("SELECT gap_fill(at, INTERVAL '5 minutes') AS t FROM clicks", "window(at, '5 minutes')"),
        ("SELECT gap_fill(at) AS t FROM clicks", "window(at, '1 minute')"),
        ("SELECT * FROM gap_fill(clicks, at)", "window(at, '1 minute')"),
        ("SELECT time_bucket_gapfill(at, INTERVAL '1 hour') AS t FROM clicks", "window(at, '1 hour')"),
    ],
)
def test_gap_fill_with_other_arguments_is_refused_with_what_works_too(query: str, window: str) -> None:
    with raises(hw.StatementError, reason="other-dialect") as refused:
        parse(query)
    assert f"{window}.start AS t, count(*) AS n FROM clicks" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("SUBSCRIBE TO revenue", 'ws.subscribe("SELECT * FROM revenue")'),
        ("SUBSCRIBE (SELECT a FROM t)", 'ws.subscribe("SELECT a FROM t")'),
        ("TAIL revenue", 'ws.subscribe("SELECT * FROM revenue")'),
        ("CREATE TABLE t (a INT) WITH (connector = 'kafka')", "CREATE SOURCE shop FROM POSTGRES"),
        ("CREATE STREAM s (a INT)", "CREATE TOPIC s"),
        ("DROP TABLE IF EXISTS orders", "DROP TOPIC orders"),
        ("CREATE INDEX i ON t (a)", "CREATE MATERIALIZED VIEW"),
        ("INSERT INTO v SELECT * FROM t", "CREATE SINK"),
        ("EXECUTE STATEMENT SET BEGIN INSERT INTO a SELECT 1; END", "CREATE SINK"),
        ("BEGIN STATEMENT SET", "ws.append("),
        ("CREATE VIEW v AS SELECT 1", "CREATE MATERIALIZED VIEW"),
        ("CREATE SECRET s AS 'x'", "env('NAME')"),
        ("FLUSH", "ws.run()"),
        ("CREATE FUNCTION f AS 'x'", "ws.function("),
        ("CREATE TOPIC t (a timestamptz)", "write TIMESTAMP"),
        ("CREATE TOPIC t (a TIMESTAMP(3))", "write TIMESTAMP"),
        ("CREATE TOPIC t (a jsonb)", "write STRING"),
        ("SELECT a FROM t EMIT CHANGES", "EMIT ON WINDOW CLOSE"),
        ("CREATE MATERIALIZED VIEW v AS SELECT a FROM t WHERE mz_now() < at", "WHERE at > now()"),
        ("SELECT CURRENT_WATERMARK(at) FROM t", "EMIT ON WINDOW CLOSE"),
    ],
)
def test_statements_of_other_engines_are_answered_with_what_does_the_same(statement: str, hint: str) -> None:
    with pytest.raises(hw.StatementError) as refused:
        parse(statement)
    assert hint in (refused.value.hint or "")


ELSEWHERE = table("elsewhere", "here")


def test_the_page_has_the_spellings_that_hints_give() -> None:
    assert len(ELSEWHERE) >= 12


@pytest.mark.slow
@pytest.mark.parametrize(("elsewhere", "here"), ELSEWHERE)
def test_a_spelling_of_the_page_is_refused_and_the_other_works(
    market: hw.Workspace, elsewhere: str, here: str
) -> None:
    assert suggested(market, elsewhere) == here
    market.sql(f"EXPLAIN {here}")
