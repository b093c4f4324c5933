"""Events of an outbox, from a table and from messages, in the topics that they are for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.catalog.definitions import define_topic
from headwater.core.errors import SourceError
from tests.raising import raises
from tests.sources.pipelines import Follower, drop_slot

OUTBOX = """CREATE TABLE outbox (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL,
            aggregateid text, type text, payload jsonb)"""


@pytest.fixture
def session(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_url, autocommit=True) as session:
        session.execute(OUTBOX)
        session.execute("CREATE TABLE orders (id int PRIMARY KEY, n int)")
        yield session


@pytest.fixture
def follower(postgres_url: str, tmp_path: Path) -> Iterator[Follower]:
    follower = Follower(postgres_url, tmp_path, {"tables": "orders", "outbox": "public.outbox"})
    yield follower
    follower.close()


def put(session: psycopg.Connection[Any], topic: str, aggregate: str, kind: str, payload: Any) -> None:
    """An event that is written and deleted at once."""
    with session.transaction():
        session.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, %s)",
            [topic, aggregate, kind, json.dumps(payload)],
        )
        session.execute("DELETE FROM outbox")


def test_events_go_to_the_topics_that_they_are_for_in_order(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    follower.follow()
    put(session, "shipments", "7", "packed", {"weight": 1.5})
    put(session, "shipments", "7", "sent", {"weight": 1.5})
    put(session, "invoices", "1", "paid", [1, 2])
    session.execute("UPDATE outbox SET type = 'x'")
    follower.follow()
    assert set(follower.topics) == {"orders", "shipments", "invoices"}
    shown = [(row["aggregate_id"], row["type"], row["payload"]) for row in follower.records["shipments"]]
    assert shown == [("7", "packed", '{"weight": 1.5}'), ("7", "sent", '{"weight": 1.5}')]
    assert [row["payload"] for row in follower.records["invoices"]] == ["[1, 2]"]
    assert follower.topics["shipments"].captured_by == "shop"
    positions = [row["_source_position"] for row in follower.records["shipments"]]
    assert positions == sorted(positions)


def test_events_that_are_in_the_outbox_already_come_first_and_once(
    session: psycopg.Connection[Any], follower: Follower
) -> None:
    for kind in ("packed", "sent"):
        session.execute(
            "INSERT INTO outbox (aggregatetype, aggregateid, type, payload) VALUES ('shipments', '7', %s, '{}')",
            [kind],
        )
    session.execute("INSERT INTO orders VALUES (1, 1)")
    follower.follow()
    put(session, "shipments", "7", "lost", {})
    follower.follow()
    assert [row["type"] for row in follower.records["shipments"]] == ["packed", "sent", "lost"]
    follower.close()
    follower.position = None
    follower.follow()
    assert len(follower.records["shipments"]) == 3


@pytest.mark.parametrize("snapshot", ["initial", "incremental", "none"])
def test_events_of_before_are_taken_once_with_every_kind_of_snapshot_or_said_to_be_lacking(
    session: psycopg.Connection[Any], follower: Follower, snapshot: str
) -> None:
    follower.options["snapshot"] = snapshot
    session.execute("INSERT INTO orders VALUES (1, 1)")
    session.execute("INSERT INTO outbox (aggregatetype, type, payload) VALUES ('shipments', 'packed', '{}')")
    follower.settle()
    put(session, "shipments", "7", "sent", {})
    follower.settle()
    wanted = ["sent"] if snapshot == "none" else ["packed", "sent"]
    assert [row["type"] for row in follower.records["shipments"]] == wanted
    assert len(follower.contents["orders"]) == (snapshot != "none")
    assert follower.source is not None
    assert not follower.source.status.missing

    follower.close()
    drop_slot(session)
    put(session, "shipments", "7", "lost", {})
    follower.position, follower.sequence, follower.generation = (
        None,
        -1,
        1,
    )  # as after ALTER SOURCE ... RESTART
    follower.settle()
    put(session, "shipments", "7", "arrived", {})
    follower.settle()
    assert [row["type"] for row in follower.records["shipments"]] == [*wanted, "arrived"]
    follower.close()
    follower.settle()
    assert follower.source is not None
    assert (
        "missing events that were written to outbox public.outbox"
        in follower.source.status.missing["public.outbox"]
    )
    follower.source.retry("public.outbox")
    while (follower.position or {}).get("missing"):
        follower.step()


def test_events_before_a_slot_that_was_there_and_while_the_outbox_was_not_published_are_said_to_be_lacking(
    session: psycopg.Connection[Any], follower: Follower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.0)
    session.execute("INSERT INTO outbox (aggregatetype, type, payload) VALUES ('shipments', 'packed', '{}')")
    session.execute("SELECT pg_create_logical_replication_slot('mine', 'pgoutput')")
    follower.options["slot"] = "mine"
    follower.settle()
    source = follower.source
    assert source is not None
    assert "where slot mine begins" in source.status.missing["public.outbox"]
    source.retry("outbox")
    while (follower.position or {}).get("missing"):
        follower.step()

    session.execute("ALTER PUBLICATION headwater_shop_inserts DROP TABLE outbox")
    while not source.stopped:
        follower.step()
    put(session, "shipments", "7", "lost", {})
    session.execute("ALTER PUBLICATION headwater_shop_inserts ADD TABLE outbox")
    source.retry("outbox")
    while not (follower.position or {}).get("missing"):
        follower.step()
    assert "while it was stopped" in source.status.missing["public.outbox"]
    assert not source.stopped
    put(session, "shipments", "7", "sent", {})
    follower.follow()
    assert [row["type"] for row in follower.records["shipments"]] == ["sent"]


def test_events_have_the_columns_of_their_topic(session: psycopg.Connection[Any], follower: Follower) -> None:
    schema = pa.schema(
        [
            ("order_id", pa.int64()),
            ("type", pa.string()),
            ("amount", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", "UTC")),
            ("tags", pa.list_(pa.string())),
            ("score", pa.float64()),
        ]
    )
    follower.declare(define_topic("payments", schema))
    follower.follow()
    payload = {"order_id": 5, "amount": 9.9, "at": "2024-05-06T07:08:09Z", "tags": ["a", "b"], "score": 1}
    put(session, "payments", "5", "paid", payload)
    follower.follow()
    (row,) = follower.records["payments"]
    assert row == {
        "order_id": 5,
        "type": "paid",
        "amount": Decimal("9.90"),
        "at": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC),
        "tags": ["a", "b"],
        "score": 1.0,
    }


@pytest.mark.parametrize(
    ("payload", "facts"),
    [
        ({"order_id": "five"}, {"column": "order_id", "value": "five"}),
        ({"order_id": 5, "more": 1}, {"field": "more"}),
        ([5], {"reason": "payload-not-a-json-object"}),
    ],
)
def test_an_event_that_does_not_fit_stops_the_source_and_is_not_lost(
    session: psycopg.Connection[Any], follower: Follower, payload: Any, facts: dict[str, Any]
) -> None:
    follower.declare(define_topic("payments", pa.schema([("order_id", pa.int64())])))
    follower.follow()
    put(session, "payments", "5", "paid", payload)
    with raises(SourceError, source="shop", topic="payments", **facts):
        follower.forever()
    follower.close()
    follower.topics.pop("payments")
    follower.follow()
    assert [json.loads(row["payload"]) for row in follower.records["payments"]] == [payload]


def test_messages_are_an_outbox_without_a_table(session: psycopg.Connection[Any], follower: Follower) -> None:
    follower.options["outbox"] = "messages"
    follower.follow()
    event = {"aggregate_type": "shipments", "aggregate_id": "7", "type": "sent", "payload": {"weight": 2}}
    with session.transaction():
        session.execute("INSERT INTO orders VALUES (1, 1)")
        session.execute("SELECT pg_logical_emit_message(true, 'outbox', %s::text)", [json.dumps(event)])
    with session.transaction(force_rollback=True):
        session.execute("SELECT pg_logical_emit_message(true, 'outbox', %s::text)", [json.dumps(event)])
    session.execute("SELECT pg_logical_emit_message(false, 'outbox', %s::text)", [json.dumps(event)])
    session.execute("SELECT pg_logical_emit_message(true, 'other', 'not for us')")
    commits = follower.commits
    follower.follow()
    assert [row["payload"] for row in follower.records["shipments"]] == ['{"weight": 2}'] * 2
    assert follower.records["shipments"][0]["_transaction"] == follower.records["orders"][0]["_transaction"]
    assert follower.commits == commits + 2
    follower.close()
    follower.follow()
    assert len(follower.records["shipments"]) == 2
