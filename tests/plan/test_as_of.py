"""`FOR SYSTEM_TIME AS OF`: against its meaning, the Spark SQL that is written out here over all records of the table."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from tests.equation.grammar.model import View as Select
from tests.equation.oracle import Oracle, compare
from tests.raising import raises

pytestmark = pytest.mark.slow

TOPICS = """
    CREATE TOPIC orders (id BIGINT, customer BIGINT, country STRING, at TIMESTAMP) WITH (partitions = 2);
    CREATE TOPIC customers (
      id BIGINT, name STRING, country STRING, since TIMESTAMP,
      PRIMARY KEY (id), WATERMARK FOR since AS since - INTERVAL '1 hour'
    ) WITH (partitions = 2);
    CREATE TOPIC rates (country STRING, product STRING, rate INT, PRIMARY KEY (country, product));
    CREATE TOPIC captured (id BIGINT, name STRING, _source_time TIMESTAMP, PRIMARY KEY (id));
"""
BEGINS = {
    "customers": ("id", "coalesce(since, _appended_at)"),
    "rates": ("country, product", "_appended_at"),
    "captured": ("id", "coalesce(_source_time, _appended_at)"),
}
"""By table: its key, and when a record begins."""
VALID = "{0}._valid_from <= {1} AND ({0}._valid_to IS NULL OR {1} < {0}._valid_to)"
C_AT = VALID.format("c", "o.at")

JOINS = {
    "at_time": (
        "SELECT o.id, c.name, c._version AS version, c._valid_to AS until FROM orders o "
        "JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        f"SELECT o.id, c.name, c._version, c._valid_to FROM orders o JOIN v_customers c ON o.customer = c.id AND {C_AT}",
    ),
    "left_at_time": (
        "SELECT o.id AS o, c.* FROM orders o LEFT JOIN customers FOR SYSTEM_TIME AS OF o.at c "
        "ON o.customer = c.id AND c.name <> 'b'",
        "SELECT o.id, c.id, c.name, c.country, c.since FROM orders o LEFT JOIN v_customers c "
        f"ON o.customer = c.id AND c.name <> 'b' AND {C_AT}",
    ),
    "never": (
        "SELECT o.id FROM orders o LEFT ANTI JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        f"SELECT o.id FROM orders o LEFT ANTI JOIN v_customers c ON o.customer = c.id AND {C_AT}",
    ),
    "by_country": (
        "SELECT o.id, c.name FROM orders o, customers FOR SYSTEM_TIME AS OF o.at - INTERVAL '5' MINUTE AS c "
        "WHERE o.country = c.country",
        "SELECT o.id, c.name FROM orders o JOIN v_customers c ON o.country = c.country AND "
        + VALID.format("c", "(o.at - INTERVAL '5' MINUTE)"),
    ),
    "three": (
        "SELECT o.id, c.name, x.name AS other, r.rate FROM orders o "
        "LEFT JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id "
        "LEFT JOIN captured FOR SYSTEM_TIME AS OF c.since AS x ON c.id = x.id "
        "LEFT JOIN rates FOR SYSTEM_TIME AS OF o.at AS r ON r.country = o.country AND r.product = c.name",
        "SELECT o.id, c.name, x.name, r.rate FROM orders o "
        f"LEFT JOIN v_customers c ON o.customer = c.id AND {C_AT} "
        f"LEFT JOIN v_captured x ON c.id = x.id AND {VALID.format('x', 'c.since')} "
        f"LEFT JOIN v_rates r ON r.country = o.country AND r.product = c.name AND {VALID.format('r', 'o.at')}",
    ),
    "sums": (
        "SELECT c.country, count(*) AS n, max(o.at) AS last FROM orders o "
        "JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id GROUP BY c.country",
        "SELECT c.country, count(*), max(o.at) FROM orders o "
        f"JOIN v_customers c ON o.customer = c.id AND {C_AT} GROUP BY c.country",
    ),
    "all_versions": (
        "SELECT *, _version, _valid_from, _valid_to, _op, _offset FROM customers.versions",
        "SELECT id, name, country, since, _version, _valid_from, _valid_to, _op, _offset FROM v_customers",
    ),
    "by_version": (
        "SELECT a.id, c.name FROM at_time a JOIN customers FOR SYSTEM_VERSION AS OF a.version AS c",
        "SELECT a.id, c.name FROM at_time a JOIN v_customers c ON c._version = a.version",
    ),
    "then": (
        "SELECT id, name FROM customers FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01 00:20:00'",
        f"SELECT id, name FROM v_customers c WHERE {VALID.format('c', 'TIMESTAMP ' + repr('2026-01-01 00:20:00'))}",
    ),
    "with_current": (
        "SELECT o.id, c.name, n.name AS now FROM orders o "
        "JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id LEFT JOIN customers n ON n.id = c.id",
        f"SELECT o.id, c.name, n.name FROM orders o JOIN v_customers c ON o.customer = c.id AND {C_AT} "
        "LEFT JOIN customers n ON n.id = c.id",
    ),
}
"""Views, and what each means in plain Spark SQL, where `v_customers` are the versions."""
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1_000_000))


def records(ws: hw.Workspace, topic: str) -> pa.Table:
    """Every record, with its hidden columns."""
    definition = ws.topic(topic).definition
    hidden = ["_partition", "_offset", "_appended_at", *(["_op"] if definition.key else [])]
    return pa.Table.from_batches(
        list(ws.topic(topic).read("earliest", columns=[*definition.schema.names, *hidden]))
    )


def meaning(ws: hw.Workspace, oracle: Oracle) -> dict[str, pa.Table]:
    """What the views must hold."""
    tables = {topic: records(ws, topic) for topic in ("orders", *BEGINS)}
    selects = []
    for topic, (key, begin) in BEGINS.items():
        spans = (
            f"SELECT *, lead(_valid_from) OVER (PARTITION BY {key} ORDER BY _valid_from, _offset) AS _valid_to, "
            f"concat(_partition, ':', _offset) AS _version FROM (SELECT *, {begin} AS _valid_from FROM {topic})"
        )
        selects.append(Select(f"v_{topic}", f"SELECT * FROM ({spans}) WHERE _op <> 'delete'", (topic,), ()))
    current = tables["customers"].to_pylist()
    last = {r["id"]: r for r in sorted(current, key=lambda r: r["_offset"])}
    versions = oracle.run(tables, selects)
    now = pa.Table.from_pylist(
        [r for r in last.values() if r["_op"] != "delete"], schema=tables["customers"].schema
    )
    given = {"orders": tables["orders"], "customers": now, **versions}
    reads = (*given, "at_time")
    views = [
        Select(name, select, tuple(n for n in reads if n in select and n != name), ())
        for name, (_, select) in JOINS.items()
    ]
    views[0] = Select(
        "at_time", views[0].select.replace("c._version,", "c._version AS version,"), views[0].reads, ()
    )
    return oracle.run(given, views)


def hold(ws: hw.Workspace, oracle: Oracle) -> None:
    for name, table in meaning(ws, oracle).items():
        told = compare(ws.view(name).read(), table)
        assert told is None, f"{name}: {told}"


def minutes(number: int) -> datetime:
    return START + timedelta(minutes=number)


def append(ws: hw.Workspace, chance: random.Random, clock: ManualClock) -> None:
    """Orders, and versions that come in any order of time, some of one time, and go."""
    clock.advance(f"{chance.randrange(1, 8)} minutes")
    orders = [
        {
            "id": chance.randrange(10_000),
            "customer": chance.choice([0, 1, 2, 3, None]),
            "country": chance.choice("xy"),
            "at": chance.choice([None, *(minutes(5 * n) for n in range(12))]),
        }
        for _ in range(8)
    ]
    ws.topic("orders").append(orders)
    for topic, time in (("customers", "since"), ("captured", "_source_time")):
        rows = []
        for _ in range(4):
            made = {
                "id": chance.randrange(4),
                "name": chance.choice("abc"),
                time: minutes(5 * chance.randrange(12)),
            }
            if topic == "customers":
                made["country"] = chance.choice("xy")
            if chance.random() < 0.2:
                made = {"id": made["id"], "_op": "delete"} | (
                    {time: made[time]} if chance.random() < 0.5 else {}
                )
            rows.append(made)
        ws.topic(topic).append(rows)
    ws.topic("rates").append(
        [{"country": chance.choice("xy"), "product": chance.choice("abc"), "rate": chance.randrange(9)}]
    )


@pytest.mark.long
def test_joins_as_of_a_time_mean_their_rewrite_after_every_tick_and_restart(
    tmp_path: Path, spark: Any, clock: ManualClock
) -> None:
    chance, oracle = random.Random(11), Oracle(spark)
    for step in range(2):
        with hw.open(tmp_path / "w", spark=spark, clock=clock) as ws:
            if step == 0:
                ws.sql(TOPICS)
                for name, (select, _) in JOINS.items():
                    ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {select}")
            else:
                ws.sql(
                    "ALTER TOPIC customers ADD COLUMN age INT; ALTER TOPIC rates ALTER COLUMN rate TYPE BIGINT"
                )
            for _ in range(2):
                append(ws, chance, clock)
                ws.run(tick_rows=None if step else 12)
            hold(ws, oracle)
            if step == 1:
                ws.view("at_time").rebuild(verify=False)
                ws.run()
                assert ws.verify().differences == ()
                for name in ("at_time", "by_country", "then"):
                    told = compare(ws.query(JOINS[name][0]), ws.view(name).read())
                    assert told is None, f"{name}: {told}"


@pytest.fixture
def ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", spark=spark, clock=clock) as made:
        made.sql(TOPICS)
        yield made


AT_TIME = JOINS["at_time"][0]


REFUSED = [
    (
        "SELECT c.id FROM customers c JOIN orders FOR SYSTEM_TIME AS OF c.since AS o ON c.id = o.customer",
        {"reason": "no-versions", "name": "orders"},
        "FOR SYSTEM_TIME AS OF c.since",
    ),
    (
        "SELECT o.id FROM orders o JOIN latest FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        {"reason": "no-versions", "name": "latest"},
        "FOR SYSTEM_TIME AS OF o.at",
    ),
    (
        "SELECT o.id FROM customers FOR SYSTEM_TIME AS OF o.at AS c JOIN orders o ON o.customer = c.id",
        {"reason": "as-of-without-join"},
        "FOR SYSTEM_TIME AS OF o.at",
    ),
    (
        "SELECT o.id FROM orders o RIGHT JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        {"reason": "as-of-join-type"},
        "FOR SYSTEM_TIME AS OF o.at",
    ),
    (
        "SELECT o.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c USING (id)",
        {"reason": "as-of-without-on"},
        "FOR SYSTEM_TIME AS OF o.at",
    ),
    (
        "SELECT o.id FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.never AS c ON o.customer = c.id",
        {"condition": "UNRESOLVED_COLUMN.WITH_SUGGESTION"},
        "o.never",
    ),
    (
        "SELECT o.id FROM orders o JOIN nobody FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        {"missing": "nobody"},
        "nobody",
    ),
    (
        "SELECT o.id FROM orders o JOIN compacted FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id",
        {"reason": "no-versions", "name": "compacted"},
        "FOR SYSTEM_TIME AS OF o.at",
    ),
    ("SELECT * FROM orders.versions", {"reason": "no-versions", "name": "orders"}, "orders.versions"),
]
"""Queries, the facts of their errors, and what of them is underlined."""


def test_what_has_no_meaning_is_refused_and_underlined(ws: hw.Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW latest AS SELECT * FROM customers")
    ws.sql("CREATE TOPIC compacted (id BIGINT, PRIMARY KEY (id)) WITH (cleanup = 'compact')")
    ws.run()
    for query, facts, marked in REFUSED:
        for run in (ws.query, lambda query: ws.sql(f"CREATE MATERIALIZED VIEW v AS\n  {query}")):
            with raises(hw.StatementError, **facts) as refused:
                run(query)
            line, marks = str(refused.value.detail).splitlines()[1:3]
            assert line[marks.index("^") : marks.rindex("^") + 1] == marked


def test_a_null_time_matches_no_version(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW v AS {AT_TIME}")
    ws.topic("customers").append([{"id": 1, "name": "a", "since": minutes(0)}])
    ws.topic("orders").append(
        [{"id": 1, "customer": 1, "at": None}, {"id": 2, "customer": 1, "at": minutes(0)}]
    )
    ws.run()
    assert ws.view("v").read().column("id").to_pylist() == [2]


def test_a_late_version_shows_again_the_rows_that_it_was_valid_for_and_no_others(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW v AS {AT_TIME}")
    ws.topic("customers").append([{"id": 1, "name": "a", "since": minutes(0)}])
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in range(6)])
    tick = ws.run().tick
    ws.topic("customers").append([{"id": 1, "name": "b", "since": minutes(4)}])
    ws.run()
    changed = ws.view("v").changes(since=tick)
    names = sorted((r["id"], r["name"], r["_weight"]) for r in changed.to_pylist() if r["id"] > 3)
    assert names == [(4, "a", -1), (4, "b", 1), (5, "a", -1), (5, "b", 1)]


def test_a_subscription_follows_joins_as_of_a_time(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW v AS {AT_TIME}")
    ws.topic("customers").append([{"id": 1, "name": "a", "since": minutes(0)}])
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in range(3)])
    ws.run()
    query = "SELECT o.id, c.name FROM orders o JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id"
    with ws.subscribe(query, timeout=0) as updates:
        first = next(updates)
        assert sorted(first.rows.column("id").to_pylist()) == [0, 1, 2]
        ws.topic("customers").append([{"id": 1, "name": "b", "since": minutes(2)}])
        ws.run()
        then = next(updates).rows.to_pylist()
        assert sorted((r["id"], r["name"], r["_weight"]) for r in then) == [(2, "a", -1), (2, "b", 1)]


def test_why_names_the_version_that_a_row_was_joined_with(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT c.name, count(*) AS n FROM orders o "
        "JOIN customers FOR SYSTEM_TIME AS OF o.at AS c ON o.customer = c.id GROUP BY c.name"
    )
    ws.topic("customers").append([{"id": 1, "name": n, "since": minutes(m)} for m, n in enumerate("abc")])
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in range(3)])
    ws.run()
    found = ws.view("v").why("b")
    assert found.records["customers.versions"].column("name").to_pylist() == ["b"]
    assert found.records["orders"].column("id").to_pylist() == [1]
    assert found.recompute().to_pylist() == found.rows.to_pylist() == [{"name": "b", "n": 1}]


def test_versions_outlive_compaction_which_leaves_those_of_the_declared_span(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    ws.sql(
        "CREATE TOPIC prices (id BIGINT, price INT, PRIMARY KEY (id)) WITH (cleanup = 'compact', versions_for = '1 hour')"
    )
    ws.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT o.id, p.price FROM orders o "
        "LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at AS p ON o.customer = p.id"
    )
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in range(0, 300, 30)])
    for price in range(5):
        ws.topic("prices").append([{"id": 1, "price": price}])
        clock.advance("1 hour")
        ws.run()
    before = ws.view("v").read().to_pylist()
    ws.maintain()
    kept = [r["price"] for batch in ws.topic("prices").read("earliest") for r in batch.to_pylist()]
    assert kept == [3, 4]
    ws.topic("orders").append([{"id": 1_000, "customer": 1, "at": minutes(30)}])
    ws.topic("prices").append([{"id": 1, "price": 7}])
    ws.run()
    assert ws.verify().differences == ()
    assert {"id": 1_000, "price": 0} in ws.view("v").read().to_pylist()
    ws.view("v").rebuild(verify=False)
    ws.run()
    assert ws.verify().differences == ()
    now = ws.view("v").read().to_pylist()
    assert [row for row in before if row not in now] == []
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws.run()
    assert compare(ws.view("v").read(), pa.Table.from_pylist(now, schema=ws.view("v").schema)) is None
    assert ws.verify().differences == ()
    with raises(hw.UsageError, reason="versions-read", topic="prices", view="v"):
        ws.sql("ALTER TOPIC prices SET (versions_for = NULL)")


def test_what_retention_removed_is_in_the_base(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql("CREATE TOPIC prices (id BIGINT, price INT, PRIMARY KEY (id)) WITH (retention = '2 hours')")
    ws.sql(
        "CREATE MATERIALIZED VIEW v AS SELECT o.id, p.price FROM orders o "
        "LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at AS p ON o.customer = p.id"
    )
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in range(0, 300, 30)])
    for price in range(6):
        ws.topic("prices").append([{"id": 1, "price": price}])
        clock.advance("1 hour")
        ws.run()
        ws.maintain()
    assert next(iter(ws.topic("prices").read("earliest"))).column("_offset")[0].as_py() > 0
    ws.topic("orders").append([{"id": 1_000, "customer": 1, "at": minutes(30)}])
    ws.run()
    assert {"id": 1_000, "price": 0} in ws.view("v").read().to_pylist()
    found = ws.verify()
    assert found.differences == ()


def test_ticks_of_long_ago_have_the_versions_of_then(tmp_path: Path, spark: Any, clock: ManualClock) -> None:
    with hw.open(tmp_path / "w", spark=spark, clock=clock, keep_ticks=2) as ws:
        ws.sql(TOPICS)
        ws.sql(f"CREATE MATERIALIZED VIEW v AS {AT_TIME}")
        ws.topic("orders").append([{"id": 1, "customer": 1, "at": minutes(9)}])
        found = []
        for number, name in enumerate("abcde"):
            ws.topic("customers").append([{"id": 1, "name": name, "since": minutes(number)}])
            found.append((ws.run().tick, name))
        for tick, name in found:
            assert ws.view("v").read(as_of=tick).column("name").to_pylist() == [name]
            assert ws.query(AT_TIME, as_of=tick).column("name").to_pylist() == [name]


def test_an_alias_may_be_the_name_of_a_column_of_the_other_side(ws: hw.Workspace) -> None:
    ws.topic("customers").append([{"id": 1, "name": "a", "since": minutes(0)}])
    ws.topic("customers").append([{"id": 1, "name": "b", "since": minutes(4)}])
    ws.topic("orders").append([{"id": n, "customer": 1, "at": minutes(n)} for n in (3, 5)])
    of_time = (
        "FROM orders o LEFT JOIN customers FOR SYSTEM_TIME AS OF o.at AS customer ON o.customer = customer.id"
    )
    ws.sql(f"CREATE MATERIALIZED VIEW at_time AS SELECT o.id, customer.name {of_time}")
    ws.sql(
        "CREATE MATERIALIZED VIEW told AS SELECT o.id, customer._version AS version, upper(customer._op) AS op "
        f"{of_time} WHERE customer._valid_from <= o.at"
    )
    ws.sql(
        "CREATE MATERIALIZED VIEW again AS SELECT t.id, version.name FROM told t "
        "JOIN customers FOR SYSTEM_VERSION AS OF t.version AS version ON version.id = 1"
    )
    ws.run()
    wanted = [{"id": 3, "name": "a"}, {"id": 5, "name": "b"}]
    for name in ("at_time", "again"):
        found = ws.view(name).read().select(["id", "name"]).sort_by("id").to_pylist()
        assert found == wanted, name
    asked = ws.query(f"SELECT o.id, customer.name {of_time} ORDER BY o.id").to_pylist()
    assert asked == wanted
    assert ws.verify().ok
