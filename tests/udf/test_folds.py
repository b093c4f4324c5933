"""Folds: a view of every key's state, made of the topic's records in their order."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import headwater as hw
from tests.equation.tables import holds
from tests.raising import raises

pytestmark = pytest.mark.slow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

State = dict[str, Any]
PAYMENTS = (
    "CREATE TOPIC payments (account STRING, amount DECIMAL(18,2), note STRING) "
    "WITH (partitions = 3, partition_by = 'account')"
)


def step(state: State, event: State) -> State:
    """The order matters: an account is closed for good by a payment of 0."""
    if state["closed"]:
        return state
    notes = [*state["notes"], event["note"]][-2:]
    return {
        "balance": state["balance"] + event["amount"],
        "notes": notes,
        "closed": event["amount"] == 0,
    }


ZERO: State = {"balance": Decimal(0), "notes": [], "closed": False}
FOLD: dict[str, Any] = {
    "topic": "payments",
    "key": "account",
    "zero": ZERO,
    "step": step,
    "returns": "balance DECIMAL(18,2), notes ARRAY<STRING>, closed BOOLEAN",
}


def payments(count: int, seed: int) -> list[State]:
    chosen = random.Random(seed)
    return [
        {
            "account": chosen.choice([None, *"abcdefgh"]),
            "amount": Decimal(chosen.randint(0, 12)),
            "note": chosen.choice("xyz"),
        }
        for _ in range(count)
    ]


def folded(events: list[State]) -> list[tuple[Any, ...]]:
    states: dict[Any, State] = {}
    for event in events:
        states[event["account"]] = step(states.get(event["account"], ZERO), event)
    return [(key, s["balance"], tuple(s["notes"]), s["closed"]) for key, s in states.items()]


def accounts(ws: hw.Workspace) -> list[tuple[Any, ...]]:
    rows = ws.view("accounts").read().to_pylist()
    return [(r["account"], r["balance"], tuple(r["notes"]), r["closed"]) for r in rows]


def same(a: list[tuple[Any, ...]], b: list[tuple[Any, ...]]) -> bool:
    return sorted(a, key=repr) == sorted(b, key=repr)


@pytest.mark.parametrize("tick_rows", [None, 1, 7])
def test_however_ticks_fall_the_view_is_the_fold_of_the_whole_log(
    tick_rows: int | None, tmp_path: Path, spark: SparkSession
) -> None:
    events: list[State] = []
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        ws.fold("accounts", **FOLD)
        ws.sql("CREATE MATERIALIZED VIEW open AS SELECT count(*) AS n FROM accounts WHERE NOT closed")
        for turn in range(4):
            more = payments(5 + turn, seed=turn)
            for event in more:
                ws.topic("payments").append([event])
            events += more
            assert ws.run(tick_rows=tick_rows).stopped == {}
            assert same(accounts(ws), folded(events))
        holds(ws, "open", [(sum(not closed for *_, closed in folded(events)),)])
        assert ws.verify().ok


def test_a_fold_goes_on_in_the_next_process(tmp_path: Path, spark: SparkSession) -> None:
    events: list[State] = []
    for turn in range(3):
        with hw.open(tmp_path, spark=spark, durability="os") as ws:
            if turn == 0:
                ws.sql(PAYMENTS)
            ws.fold("accounts", **FOLD)
            more = payments(8, seed=turn)
            ws.topic("payments").append(more)
            events += more
            ws.run()
            assert same(accounts(ws), folded(events))
            assert ws.view("accounts").definition.to_sql().endswith("FOLD payments BY account WITH accounts")


def test_a_fold_of_a_topic_with_history_is_backfilled_beside_the_others(
    tmp_path: Path, spark: SparkSession
) -> None:
    events = payments(30, seed=3)
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM payments")
        for event in events:
            ws.topic("payments").append([event])
        ws.run()
        ws.fold("accounts", **FOLD)
        ws.run(tick_rows=4)
        assert same(accounts(ws), folded(events))
        assert ws.verify().ok


def test_it_is_a_view_like_others(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        view = ws.fold("accounts", **FOLD)
        assert view.schema.names == ["account", "balance", "notes", "closed"]
        ws.topic("payments").append(payments(9, seed=1))
        first = ws.run().tick
        shown = ws.sql("SHOW VIEWS")
        assert shown is not None
        assert shown.to_pylist()[0]["view"] == "accounts"
        explained = ws.sql("EXPLAIN accounts")
        assert explained is not None
        assert "fold accounts by (account), in the order of the log" in str(explained.to_pylist())
        ws.topic("payments").append([{"account": "a", "amount": Decimal(5), "note": "z"}])
        ws.run()
        assert {c["account"] for c in view.changes(since=first).to_pylist()} <= {"a"}
        assert ws.query("SELECT account FROM accounts WHERE account = 'a'").num_rows == 1
        view.rebuild()
        ws.run()
        assert ws.verify().ok
        with pytest.raises(hw.TopicExistsError):
            ws.sql("CREATE TOPIC accounts (id BIGINT)")
        ws.sql("DROP VIEW accounts")
        with pytest.raises(hw.ViewNotFoundError):
            ws.view("accounts")
        assert not ws.cursors()


def test_a_step_may_take_a_batch_of_records_at_once(tmp_path: Path, spark: SparkSession) -> None:
    def tally(state: State, events: pa.RecordBatch) -> tuple[Any, ...]:
        last = events.column("note")[-1].as_py()
        return state["n"] + events.num_rows, state["sum"] + pc.sum(events.column("n")).as_py(), last

    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.topic("hits", "user BIGINT, site STRING, n BIGINT, note STRING", partitions=1)
        ws.fold(
            "users",
            topic="hits",
            key=["user", "site"],
            zero=(0, 0, None),
            step=tally,
            returns="n BIGINT, sum BIGINT, last STRING",
            per_row=False,
        )
        rows = [{"user": i % 2, "site": "ab"[i % 3 == 0], "n": i, "note": str(i)} for i in range(12)]
        for row in rows:
            ws.topic("hits").append([row])
        ws.run(tick_rows=5)
        keys = {(r["user"], r["site"]) for r in rows}
        mine = {k: [r for r in rows if (r["user"], r["site"]) == k] for k in keys}
        holds(
            ws,
            "users",
            [(*k, len(m), sum(r["n"] for r in m), m[-1]["note"]) for k, m in mine.items()],
        )
        assert ws.verify().ok


def test_where_a_tick_ends_is_not_seen_by_the_step(tmp_path: Path, spark: SparkSession) -> None:
    def halve(state: State, event: State) -> State:
        assert type(state["last"]) in (
            float,
            type(None),
        )  # what was returned as an int is read back as declared
        assert isinstance(state["seen"], list)
        return {"last": 1 if state["last"] is None else state["last"] / 3, "seen": (*state["seen"], 1)}

    for tick_rows in (1, None):
        with hw.open(tmp_path / str(tick_rows), spark=spark, durability="os") as ws:
            ws.topic("hits", "user BIGINT", partitions=1)
            ws.fold(
                "users",
                topic="hits",
                key="user",
                zero={"last": None, "seen": []},
                step=halve,
                returns="last FLOAT, seen ARRAY<INT>",
            )
            for _ in range(4):
                ws.topic("hits").append([{"user": 1}])
            assert ws.run(tick_rows=tick_rows).stopped == {}
            assert ws.verify().ok


@pytest.mark.parametrize(
    ("given", "kind", "facts"),
    [
        ({"topic": "loose"}, hw.UsageError, {"topic": "loose", "reason": "key-in-several-partitions"}),
        ({"topic": "keyed"}, hw.UsageError, {"topic": "keyed", "reason": "has-primary-key"}),
        ({"topic": "nowhere"}, hw.TopicNotFoundError, {"topic": "nowhere"}),
        ({"key": "owner"}, hw.SchemaError, {"topic": "payments", "column": "owner"}),
        ({"key": []}, hw.UsageError, {"fold": "accounts"}),
        ({"returns": "account STRING"}, hw.UsageError, {"column": "account", "reason": "returns-key"}),
        ({"zero": {"balance": 1}}, hw.UsageError, {"function": "accounts", "part": "zero"}),
        ({"step": None}, hw.UsageError, {"function": "accounts", "part": "step"}),
    ],
)
def test_what_cannot_be_folded_is_refused(
    given: dict[str, Any],
    kind: type[hw.HeadwaterError],
    facts: dict[str, str],
    tmp_path: Path,
    spark: SparkSession,
) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        ws.sql("CREATE TOPIC loose (account STRING) WITH (partitions = 2)")
        ws.sql("CREATE TOPIC keyed (account STRING, PRIMARY KEY (account))")
        with raises(kind, **facts):
            ws.fold("accounts", **(FOLD | given))
        assert not ws.log.entries("view")


def test_a_step_that_fails_names_the_key_and_the_record(tmp_path: Path, spark: SparkSession) -> None:
    def picky(state: State, event: State) -> State:
        if event["note"] == "bad":
            raise ValueError("not this one")
        return {**step(state, event), "balance": "much"} if event["note"] == "worse" else step(state, event)

    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        ws.fold("accounts", **(FOLD | {"step": picky}))
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM payments")
        ws.topic("payments").append([{"account": "a", "amount": Decimal(1), "note": "fine"}])
        ws.run()
        ws.topic("payments").append([{"account": "a", "amount": Decimal(2), "note": "bad"}])
        report = ws.run()
        assert "fold 'accounts'" in report.stopped["accounts"]
        error = report.errors["accounts"]
        assert isinstance(error, hw.EvaluationError)
        assert isinstance(error.__cause__, ValueError)
        assert (error.key, error.row["account"], error.row["note"]) == ({"account": "a"}, "a", "bad")
        holds(ws, "n", [(2,)])
        ws.fold("accounts", **(FOLD | {"version": 2}))
        assert ws.run().stopped == {}
        assert ws.verify().ok
        ws.fold("accounts", **(FOLD | {"step": picky, "version": 3}))
        ws.topic("payments").append([{"account": "b", "amount": Decimal(2), "note": "worse"}])
        assert "balance = 'much' is not DECIMAL(18,2)" in ws.run().stopped["accounts"]


def test_other_columns_are_checked_against_the_views_above(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark, durability="os") as ws:
        ws.sql(PAYMENTS)
        ws.fold("accounts", **FOLD)
        ws.sql("CREATE MATERIALIZED VIEW rich AS SELECT sum(balance) AS b FROM accounts")
        ws.topic("payments").append(payments(9, seed=1))
        ws.run()
        wider = FOLD | {"returns": "balance DECIMAL(20,2), notes ARRAY<STRING>, closed BOOLEAN"}
        ws.fold("accounts", **wider)
        assert ws.view("rich").schema.field("b").type == pa.decimal128(30, 2)
        assert ws.run().stopped == {}
        assert ws.verify().ok
        other = {"zero": (0,), "step": lambda s, e: (1,), "returns": "n BIGINT"}
        with raises(hw.UsageError, reason="breaks-view"):
            ws.fold("accounts", **(FOLD | other))
        ws.fold("accounts", **wider)
        assert ws.run().stopped == {}
        assert ws.verify().ok
