"""Rows on which a view's expressions fail: they stop it or, with `on_error = 'divert'`, are taken out and told of."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.testing import inspect_workspace
from tests.equation.grammar.model import View as Select
from tests.equation.oracle import Oracle, compare
from tests.raising import raises

pytestmark = pytest.mark.slow

TOPICS = """
    CREATE TOPIC orders (id BIGINT, customer BIGINT, amount STRING) WITH (partitions = 2);
    CREATE TOPIC rates (id BIGINT, rate BIGINT, PRIMARY KEY (id)) WITH (partitions = 2);
"""
DIVERT = "WITH (on_error = 'divert')"
VIEWS = {
    # what fails, and over which rows: the same SELECT in which no row fails, NULL being what marks those that would
    "amounts": "SELECT id, CAST(amount AS BIGINT) AS amount FROM orders",
    "totals": "SELECT customer, sum(CAST(amount AS BIGINT)) AS total, count(*) AS n FROM orders GROUP BY customer",
    "rated": "SELECT id, 100 DIV rate AS share FROM rates",
    "joined": "SELECT o.id, o.n, r.share FROM (SELECT id, customer, CAST(amount AS INT) AS n FROM orders) o "
    "LEFT JOIN (SELECT id, 100 DIV rate AS share FROM rates) r ON o.customer = r.id",
    "both": "SELECT id, CAST(amount AS BIGINT) AS n FROM orders UNION ALL SELECT id, 7 DIV customer FROM orders",
    "itself": "SELECT a.id, b.id AS other FROM orders a JOIN orders b "
    "ON CAST(a.amount AS BIGINT) = b.customer",
    "exploded": "SELECT id, 10 DIV n AS x FROM (SELECT id, explode(sequence(CAST(amount AS INT), 2)) AS n FROM orders)",
    "filtered": "SELECT count(*) AS n FROM orders WHERE CAST(amount AS INT) > 1",
}


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", spark=spark, clock=ManualClock()) as made:
        made.sql(TOPICS)
        yield made


def create(ws: hw.Workspace, *names: str) -> None:
    for name in names:
        ws.sql(f"CREATE MATERIALIZED VIEW {name} {DIVERT} AS {VIEWS[name]}")


def rows(table: pa.Table | None) -> list[tuple[Any, ...]]:
    assert table is not None
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def balanced(ws: hw.Workspace, view: str) -> dict[str, int]:
    """The ledger, which must add up, by topic too."""
    account: dict[str, int] = ws.view(view).ledger()
    for each in (account, *ws.view(view).ledger(by_input=True).values()):
        assert each["used"] + each["diverted"] + each["dropped"] + each["failed"] == each["read"]
    return account


def test_a_row_that_fails_is_taken_out_and_told_of(ws: hw.Workspace) -> None:
    create(ws, "amounts")
    ws.topic("orders").append(
        [{"id": i, "customer": 1, "amount": a} for i, a in enumerate(["5", "n/a", "7"])]
    )
    report = ws.run()
    assert report.stopped == {}
    assert rows(ws.view("amounts").read()) == [(0, 5), (2, 7)]
    (error,) = ws.query("SELECT * FROM amounts.errors").to_pylist()
    assert error["_topic"] == "orders"
    assert "'n/a'" in error["_error"]
    assert json.loads(error["_row"]) == {"id": 1, "customer": 1, "amount": "n/a"}
    place = {name: error[name] for name in ("_partition", "_offset", "_appended_at")}
    where = f"_partition = {place['_partition']} AND _offset = {place['_offset']}"
    assert ws.query(f"SELECT id, _appended_at FROM orders WHERE {where}").to_pylist() == [
        {"id": 1, "_appended_at": place["_appended_at"]}
    ]
    assert balanced(ws, "amounts") == {"read": 3, "used": 2, "diverted": 0, "dropped": 0, "failed": 1}
    assert ws.verify().differences == ()


def test_the_errors_are_read_by_any_spelling_and_cannot_be_written(ws: hw.Workspace) -> None:
    create(ws, "amounts")
    ws.topic("orders").append([{"id": 1, "customer": 1, "amount": "x"}])
    tick = ws.run().tick
    for name in ("amounts.errors", "`amounts.errors`", "AMOUNTS.Errors"):
        assert ws.query(f"SELECT count(*) AS n FROM {name}").to_pylist() == [{"n": 1}]
        # what Spark answers
        assert ws.query(f"SELECT stack(1, _topic) AS t FROM {name}").to_pylist() == [{"t": "orders"}]
    assert ws.query("SELECT errors._topic AS t FROM amounts.errors").num_rows == 1
    errors = ws.view("amounts.errors")
    assert errors.read().schema == errors.schema
    assert errors.changes(since=tick - 1).column("_weight").to_pylist() == [1]
    described = ws.sql("DESCRIBE amounts.errors")
    assert described is not None
    assert described.column("column").to_pylist() == errors.schema.names
    with pytest.raises(hw.TopicNotFoundError):
        ws.topic("amounts.errors").append([{"_error": "x"}])
    with pytest.raises(hw.HeadwaterError):
        ws.sql("CREATE TOPIC `amounts.errors` (id BIGINT)")


def test_views_read_errors_in_the_same_tick(ws: hw.Workspace) -> None:
    create(ws, "amounts", "rated")
    ws.sql("""
        CREATE MATERIALIZED VIEW failed AS SELECT _topic AS topic, count(*) AS n FROM amounts.errors GROUP BY _topic
            UNION ALL SELECT e._topic, count(*) FROM rated.errors e GROUP BY e._topic;
    """)
    ws.topic("orders").append([{"id": 1, "customer": 1, "amount": "x"}])
    ws.topic("rates").append([{"id": 1, "rate": 0}])
    ws.run()
    assert rows(ws.view("failed").read()) == [("orders", 1), ("rates", 1)]
    ws.topic("rates").append([{"id": 1, "rate": 5}])
    ws.run()
    assert rows(ws.view("failed").read()) == [("orders", 1)]
    assert ws.verify().differences == ()
    ws.view("rated").rebuild(verify=False)
    ws.run()
    assert rows(ws.view("failed").read()) == [("orders", 1)]
    with raises(hw.UsageError, reason="cycle", view="rated"):
        ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW rated {DIVERT} AS SELECT _offset AS o FROM rated.errors")
    with raises(hw.UsageError, reason="read-by", readers=["failed"]):
        ws.sql("DROP VIEW rated")
    with raises(hw.UsageError, reason="read-by", reader="failed", missing="rated.errors"):
        ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW rated AS {VIEWS['rated']}")


def test_a_row_of_a_table_that_failed_takes_its_error_with_it_when_it_is_replaced(ws: hw.Workspace) -> None:
    create(ws, "rated")
    rates = ws.topic("rates")
    rates.append([{"id": 1, "rate": 0}, {"id": 2, "rate": 50}])
    ws.run()
    assert rows(ws.view("rated").read()) == [(2, 2)]
    assert balanced(ws, "rated")["failed"] == 1
    first = ws.view("rated.errors").read().to_pylist()
    rates.append([{"id": 1, "rate": 0}])  # the same again, at another place
    ws.run()
    second = ws.view("rated.errors").read().to_pylist()
    assert [row["_offset"] for row in second] == [first[0]["_offset"] + 1]
    rates.append([{"id": 1, "rate": 10}, {"id": 2, "rate": 0}])
    ws.run()
    assert rows(ws.view("rated").read()) == [(1, 10)]
    assert [json.loads(row["_row"])["id"] for row in ws.view("rated.errors").read().to_pylist()] == [2]
    rates.delete([{"id": 2}])
    ws.run()
    assert ws.view("rated.errors").read().num_rows == 0
    assert balanced(ws, "rated") == {"read": 1, "used": 1, "diverted": 0, "dropped": 0, "failed": 0}
    assert ws.verify().differences == ()


def is_number(text: str | None) -> bool:
    return text is None or text.lstrip("-").isdigit()


FAILS: dict[str, dict[str, Any]] = {
    "amounts": {"orders": lambda row: not is_number(row["amount"])},
    "totals": {"orders": lambda row: not is_number(row["amount"])},
    "rated": {"rates": lambda row: row["rate"] == 0},
    "joined": {"orders": lambda row: not is_number(row["amount"]), "rates": lambda row: row["rate"] == 0},
    "both": {"orders": lambda row: not is_number(row["amount"]) or row["customer"] == 0},
    "itself": {"orders": lambda row: not is_number(row["amount"])},
    "exploded": {
        "orders": lambda row: (
            not is_number(row["amount"]) or (row["amount"] is not None and int(row["amount"]) <= 0)
        )
    },
    "filtered": {"orders": lambda row: not is_number(row["amount"])},
}
"""By view and topic, the rows on which the view's own expressions fail, in plain Python."""


def current(ws: hw.Workspace, topic: str) -> pa.Table:
    """What a topic holds, as a program reads it; of a keyed one the current rows."""
    definition = ws.topic(topic).definition
    table = pa.Table.from_batches(list(ws.topic(topic).read("earliest")))
    found = table.to_pylist()
    if definition.key:
        latest = {row["id"]: row for row in sorted(found, key=lambda row: row["_offset"])}
        found = [row for row in latest.values() if row["_op"] != "delete"]
    return pa.Table.from_pylist(found, schema=table.schema)


def hold(ws: hw.Workspace, oracle: Oracle) -> None:
    """Every view is its SELECT over the rows that do not fail, and tells of the others."""
    held = {topic: current(ws, topic) for topic in ("orders", "rates")}
    for name, select in VIEWS.items():
        admitted, failed = dict(held), set()
        for topic, fails in FAILS[name].items():
            every = held[topic].to_pylist()
            bad = [fails(row) for row in every]
            admitted[topic] = held[topic].filter(pa.array([not b for b in bad]))
            failed |= {(topic, r["_partition"], r["_offset"]) for r, b in zip(every, bad, strict=True) if b}
        reads = tuple(topic for topic in held if topic in select)
        expected = oracle.run(admitted, [Select(name, select, reads)])[name]
        told = compare(ws.view(name).read(), expected)
        assert told is None, f"{name}: {told}"
        errors = ws.view(f"{name}.errors").read().to_pylist()
        assert {(e["_topic"], e["_partition"], e["_offset"]) for e in errors} == failed
        assert len(errors) == len(failed)
        account = balanced(ws, name)
        assert account["failed"] == len(failed)
        assert account["read"] == sum(held[topic].num_rows for topic in reads)


def test_views_are_their_selects_over_the_rows_that_do_not_fail(tmp_path: Path, spark: Any) -> None:
    chance, oracle = random.Random(3), Oracle(spark)
    texts = [None, "1", "2", "3", "0", "-1", "x", "n/a"]
    for step, tick_rows in enumerate((None, 5)):
        with hw.open(tmp_path / "w", spark=spark) as ws:
            if step == 0:
                ws.sql(TOPICS)
                create(ws, *VIEWS)
            for number in range(4):
                ws.topic("orders").append(
                    [
                        {
                            "id": 100 * step + number,
                            "customer": chance.randrange(4),
                            "amount": chance.choice(texts),
                        }
                        for _ in range(4)
                    ]
                )
                ws.topic("rates").append(
                    [{"id": chance.randrange(5), "rate": chance.choice([0, 5, 20])} for _ in range(3)]
                )
                ws.topic("rates").delete([{"id": chance.randrange(5)}])
            assert ws.run(tick_rows=tick_rows).stopped == {}
            hold(ws, oracle)
            accounts = {name: balanced(ws, name) for name in VIEWS}
    with hw.open(tmp_path / "w", spark=spark) as ws:
        for name in ("both", "joined"):
            ws.view(name).rebuild(verify=False)
        ws.run()
        hold(ws, oracle)
        assert {name: balanced(ws, name) for name in VIEWS} == accounts
        assert ws.verify().differences == ()


def test_every_tick_accounts_for_its_rows(ws: hw.Workspace) -> None:
    create(ws, "totals", "rated")
    for number in range(4):
        ws.topic("orders").append([{"id": number, "customer": 1, "amount": a} for a in ("1", "x", "y")])
        ws.topic("rates").append([{"id": number % 2, "rate": number % 3}])
    seen = []

    class Ticks(Listener):
        def ticked(self, report: Any, manifest: Any) -> None:
            seen.append((balanced(ws, "totals"), ws.view("totals.errors").read().num_rows))

    inspect_workspace(ws).on_progress(Ticks())
    ws.run(tick_rows=4)
    assert len(seen) >= 3
    assert [account["failed"] for account, _ in seen] == [errors for _, errors in seen]
    assert seen[-1][0] == {"read": 12, "used": 4, "diverted": 0, "dropped": 0, "failed": 8}


@pytest.mark.parametrize(
    ("select", "appended", "said"),
    [
        ("SELECT sum(CAST(id AS INT)) + 2147483647 AS s FROM orders GROUP BY customer HAVING 1 DIV sum(customer) > 0",
         {"id": 1, "customer": 0, "amount": "1"}, "Division by zero"),
        ("SELECT 10 DIV (o.id - r.id) AS x FROM orders o JOIN rates r ON o.customer = r.id",
         {"id": 1, "customer": 1, "amount": "1"}, "Division by zero"),
        ("SELECT sum(id) AS s FROM orders", {"id": 2**63 - 1, "customer": 0, "amount": "1"}, "does not fit"),
    ],
)  # fmt: skip
def test_an_error_of_no_single_row_stops_a_view_that_diverts(
    ws: hw.Workspace, select: str, appended: Any, said: str
) -> None:
    ws.sql(
        f"CREATE MATERIALIZED VIEW v {DIVERT} AS {select}; CREATE MATERIALIZED VIEW w AS SELECT id FROM rates"
    )
    ws.topic("rates").append([{"id": 1, "rate": 1}])
    ws.topic("orders").append([appended, appended])
    report = ws.run()
    assert set(report.stopped) == {"v"}
    assert said.lower() in report.stopped["v"].lower()
    assert rows(ws.view("w").read()) == [(1,)]
    with raises(hw.ViewUnavailableError, view="v.errors", status="stopped"):
        ws.query("SELECT * FROM v.errors")
    assert ws.view("v").ledger()["read"] == 0  # nothing of it is part of a tick


def test_a_view_that_stopped_goes_on_when_it_is_replaced_by_one_that_diverts(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW amounts AS {VIEWS['amounts']}")
    ws.sql("CREATE MATERIALIZED VIEW above AS SELECT sum(amount) AS s FROM amounts")
    ws.topic("orders").append([{"id": 1, "customer": 1, "amount": "4"}])
    ws.run()
    ws.topic("orders").append(
        [{"id": 2, "customer": 1, "amount": "x"}, {"id": 3, "customer": 1, "amount": "6"}]
    )
    report = ws.run()
    assert set(report.stopped) == {"amounts", "above"}
    assert balanced(ws, "amounts") == {"read": 1, "used": 1, "diverted": 0, "dropped": 0, "failed": 0}
    ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW amounts {DIVERT} AS {VIEWS['amounts']}")
    assert ws.run().stopped == {}
    assert rows(ws.view("amounts").read()) == [(1, 4), (3, 6)]
    assert rows(ws.view("above").read()) == [(10,)]
    assert ws.query("SELECT _offset FROM amounts.errors").num_rows == 1
    assert balanced(ws, "amounts") == {"read": 3, "used": 2, "diverted": 0, "dropped": 0, "failed": 1}
    shown = ws.sql("SHOW VIEWS")
    assert shown is not None
    assert {row["view"]: row["failed"] for row in shown.to_pylist()} == {"amounts": 1, "above": 0}
    ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW amounts AS {VIEWS['amounts'].replace('CAST', 'try_cast')}")
    ws.run()
    assert ws.view("amounts").read().num_rows == 3
    with pytest.raises(hw.ViewNotFoundError):
        ws.view("amounts.errors")


def test_many_rows_that_fail_alike_are_looked_into_once(ws: hw.Workspace, monkeypatch: Any) -> None:
    create(ws, "amounts")
    ws.topic("orders").append(
        [{"id": i, "customer": 1, "amount": "n/a" if i % 2 else "3"} for i in range(2_000)]
    )
    evaluated, run = [], Evaluator.run

    def counting(evaluator: Evaluator, *given: Any) -> list[pa.Array]:
        evaluated.append(given)
        return run(evaluator, *given)

    monkeypatch.setattr(Evaluator, "run", counting)
    ws.run()
    assert ws.query("SELECT count(*) AS n FROM amounts.errors").to_pylist() == [{"n": 1_000}]
    assert len(evaluated) < 10


def append_some(ws: hw.Workspace, numbers: range) -> None:
    for number in numbers:
        ws.topic("orders").append(
            [{"id": number, "customer": number % 3, "amount": "x" if number % 4 == 0 else str(number)}]
        )


def test_a_view_that_catches_up_in_chunks_tells_of_all_that_failed(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 3)
    create(ws, "totals")
    append_some(ws, range(10))
    ws.run()
    create(ws, "amounts")
    ws.sql("CREATE MATERIALIZED VIEW failed AS SELECT count(*) AS n FROM amounts.errors")
    tick = ws.run().tick
    assert balanced(ws, "amounts") == balanced(ws, "totals")
    assert balanced(ws, "amounts")["failed"] == 3
    assert rows(ws.view("failed").read()) == [(3,)]
    change = ws.view("amounts.errors").changes(since=tick - 1)
    assert rows(change.select(["_offset", "_error"])) == rows(
        ws.query("SELECT _offset, _error FROM amounts.errors")
    )
    assert ws.verify().differences == ()


def test_errors_and_ledger_are_the_same_after_all_state_is_lost(tmp_path: Path, spark: Any) -> None:
    told: list[Any] = []
    for _ in range(2):
        with hw.open(tmp_path / "w", spark=spark) as ws:
            if not told:
                ws.sql(TOPICS)
                create(ws, "joined")
                append_some(ws, range(6))
                ws.topic("rates").append([{"id": 1, "rate": 0}, {"id": 2, "rate": 4}])
                ws.run(tick_rows=3)
            else:
                ws.run()
            told.append((rows(ws.view("joined.errors").read()), balanced(ws, "joined")))
        shutil.rmtree(tmp_path / "w" / "state")
    assert told[0] == told[1]
    assert told[0][1]["failed"] == 3


def test_errors_stay_readable_while_the_view_is_replaced(ws: hw.Workspace) -> None:
    create(ws, "amounts")
    ws.sql(
        "CREATE MATERIALIZED VIEW failed AS SELECT _topic AS topic, count(*) AS n FROM amounts.errors GROUP BY 1"
    )
    append_some(ws, range(5))
    ws.run()
    ws.sql(
        f"CREATE OR REPLACE MATERIALIZED VIEW amounts {DIVERT} AS "
        "SELECT id, CAST(amount AS BIGINT) AS amount FROM orders WHERE id > 0"
    )
    assert ws.query("SELECT count(*) AS n FROM amounts.errors").to_pylist() == [{"n": 2}]  # 0 and 4
    append_some(ws, range(8, 9))
    ws.run()
    assert rows(ws.view("failed").read()) == [("orders", 2)]  # 4 and 8
    assert ws.verify().differences == ()


def test_what_a_user_s_function_refuses_is_diverted_too(ws: hw.Workspace) -> None:
    def strict(text: str) -> int:
        if text == "x":
            raise ValueError("no number")
        return len(text)

    ws.function("strict", strict, returns="BIGINT", per_row=True)
    ws.sql(f"CREATE MATERIALIZED VIEW lengths {DIVERT} AS SELECT id, strict(amount) AS n FROM orders")
    append_some(ws, range(9))
    assert ws.run().stopped == {}
    assert balanced(ws, "lengths")["failed"] == 3
    errors = ws.query("SELECT _error FROM lengths.errors").to_pylist()
    assert all("no number" in error["_error"] for error in errors)


def test_a_row_with_every_type_is_told_as_json(ws: hw.Workspace) -> None:
    ws.sql("""
        CREATE TOPIC wide (n INT, d DECIMAL(9, 2), b BINARY, day DATE, at TIMESTAMP, tags ARRAY<STRING>,
            s STRUCT<a: INT, t: TIMESTAMP>, m MAP<STRING, INT>);
    """)
    ws.sql(f"CREATE MATERIALIZED VIEW v {DIVERT} AS SELECT 1 DIV n AS x FROM wide")
    moment = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    ws.topic("wide").append(
        [
            {
                "n": 0,
                "d": Decimal("1.50"),
                "b": b"\x00\xff",
                "day": moment.date(),
                "at": moment,
                "tags": ["a", None],
                "s": {"a": 1, "t": moment},
                "m": {"k": 2},
            }
        ]
    )
    ws.run()
    (error,) = ws.query("SELECT _row, _error FROM v.errors").to_pylist()
    assert json.loads(error["_row"]) == {
        "n": 0,
        "d": "1.50",
        "b": "AP8=",
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05.000006+00:00",
        "tags": ["a", None],
        "s": {"a": 1, "t": "2026-01-02T03:04:05.000006+00:00"},
        "m": [["k", 2]],
    }


def test_what_a_row_comes_from_is_found_among_the_rows_that_did_not_fail(ws: hw.Workspace) -> None:
    create(ws, "totals")
    ws.sql("CREATE MATERIALIZED VIEW failed AS SELECT count(*) AS n FROM totals.errors")
    append_some(ws, range(9))
    ws.run()
    found = ws.view("totals").why({"customer": 1})
    assert sorted(found.records["orders"].column("id").to_pylist()) == [1, 7]  # 4 is no number
    with raises(hw.UsageError, view="failed", reads="totals.errors"):
        ws.view("failed").why({"n": 3})


def test_the_command_line_counts_what_failed(tmp_path: Path, ws: hw.Workspace) -> None:
    create(ws, "amounts")
    append_some(ws, range(5))
    ws.run()
    for command in ("views", "status"):
        shown = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "w"), command])
        assert shown.exit_code == 0, shown.output
        (header,) = (line for line in shown.stdout.splitlines() if line.startswith("view"))
        assert "failed" in header
    told = CliRunner().invoke(cli, ["--workspace", str(tmp_path / "w"), "status", "--json"])
    assert json.loads(told.stdout)["views"][0]["ledger"] == ws.view("amounts").ledger()


def test_errors_and_ledger_outlast_the_records_that_they_are_of(tmp_path: Path, spark: Any) -> None:
    clock, settings = ManualClock(), LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "w", spark=spark, clock=clock, settings=settings) as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT, customer BIGINT, amount STRING) WITH (retention = '1 hour')")
        create(ws, "amounts", "totals")
        ws.sql(
            "CREATE MATERIALIZED VIEW failed AS SELECT count(*) AS n, max(_offset) AS o FROM totals.errors"
        )
        append_some(ws, range(9))
        ws.run()
        clock.advance("3 hours")
        assert ws.maintain().rows_removed > 0
        append_some(ws, range(9, 13))
        ws.run()
        told = [
            rows(ws.view(name).read()) for name in ("totals", "totals.errors", "amounts.errors", "failed")
        ]
        account = balanced(ws, "totals")
        assert account == {"read": 13, "used": 9, "diverted": 0, "dropped": 0, "failed": 4}
        assert ws.verify().differences == ()
        assert told[-1] == [(4, 12)]
    shutil.rmtree(tmp_path / "w" / "state")
    with hw.open(tmp_path / "w", spark=spark, clock=clock, settings=settings) as ws:
        ws.run()
        assert told == [
            rows(ws.view(name).read()) for name in ("totals", "totals.errors", "amounts.errors", "failed")
        ]
        assert balanced(ws, "totals") == account
        assert ws.verify().differences == ()
