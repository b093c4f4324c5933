"""Forgetting reaches messages: those that wait, those that are dead, and those that were edited."""

from __future__ import annotations

import json
from typing import Any

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.queues import queue_checkpoint
from headwater.queues import queue_client as ledger_module
from headwater.queues.queue import Queue
from headwater.queues.queue_client import Ledgers
from tests.raising import raises

COLUMNS = "id BIGINT NOT NULL, text STRING, email STRING"


def outbox(ws: hw.Workspace) -> None:
    topic = ws.topic("outbox", COLUMNS, private={"email": "id"})
    topic.append([{"id": n, "text": f"t{n}", "email": f"secret-{n}"} for n in range(5)])


def said(ws: hw.Workspace) -> str:
    """Everything that topics of the queue hold, checkpoints decoded."""
    found = []
    for name in ("_queue_emails", "emails.dead", *(["_dead"] if "_dead" in ws.log.topics() else [])):
        for batch in ws.topic(name).read():
            for row in batch.to_pylist():
                body = row.get("body")
                if row.get("kind") == "checkpoint":
                    body = queue_checkpoint.decode(body).bodies
                found.append(f"{row} {body!r}")
    return "\n".join(found)


def test_messages_are_received_without_what_was_forgotten(ws: hw.Workspace, clock: ManualClock) -> None:
    outbox(ws)
    queue = ws.queue("emails", topic="outbox")
    other = Queue(ws.log, clock, Ledgers(ws.log, clock), "emails")
    assert other.receive(max=1)[0].row["email"] == "secret-0"  # both have read ahead
    assert queue.peek(9)["email"].to_pylist() == [f"secret-{n}" for n in range(1, 5)]
    done = ws.forget(2)
    assert ("queue", "emails", "done") in {(p.kind, p.name, p.status) for p in done.places}
    got = {m.row["id"]: (m.row["email"], m.forgotten) for m in [*queue.receive(max=2), *other.receive(max=9)]}
    assert got == {
        1: ("secret-1", False),
        2: (None, True),
        3: ("secret-3", False),
        4: ("secret-4", False),
    }
    assert queue.peek().column_names == ["id", "text", "email", "_partition", "_offset"]


def test_dead_and_edited_messages_are_kept_encrypted(ws: hw.Workspace, monkeypatch: Any) -> None:
    monkeypatch.setattr(ledger_module, "CHECKPOINT_OPS", 3)
    outbox(ws)
    queue = ws.queue("emails", topic="outbox", deliveries=1)
    queue.nack(queue.receive(max=3), error="no")
    ws.dead().edit("emails/0-1", {"text": "mended"})
    ws.dead().edit("emails/0-2", {"email": "secret-new"})
    ws.dead().replay("emails/0-0")
    ws.dead().replay("emails/0-1")
    ws.dead().replay("emails/0-2")
    for _ in range(3):
        queue.extend(queue.receive(max=1), "1 hour")
    assert "checkpoint" in said(ws)
    assert "secret" not in said(ws)
    assert "mended" in said(ws)

    again = ws.queue("emails")
    assert again.leases()[0]["messages"] == 1
    ws.forget(1)
    fresh = Queue(ws.log, queue.clock, Ledgers(ws.log, queue.clock), "emails")
    fresh.nack(fresh.receive(max=5), error="no")
    assert {row["id"] for row in _rows(ws)} == {3, 4}


def test_a_dead_message_is_replayed_with_its_private_values_until_they_are_forgotten(
    ws: hw.Workspace,
) -> None:
    outbox(ws)
    queue = ws.queue("emails", topic="outbox", deliveries=1)
    queue.nack(queue.receive(max=3), error="no")
    ws.dead().edit("emails/0-1", {"text": "mended"})
    ws.dead().edit("emails/0-2", {"text": "mended"})
    ws.forget(1)
    for place in range(3):
        ws.dead().replay(f"emails/0-{place}")
    got = [(m.row["id"], m.row["text"], m.row["email"]) for m in queue.receive(max=3)]
    assert got == [(0, "t0", "secret-0"), (1, "mended", None), (2, "mended", "secret-2")]


def test_a_queue_does_not_go_by_private_columns(ws: hw.Workspace) -> None:
    outbox(ws)
    with raises(hw.SchemaError, column="email", reason="private-column"):
        ws.queue("emails", topic="outbox", key="email")


def _rows(ws: hw.Workspace) -> list[dict[str, Any]]:
    rows = ws.query("SELECT row, offset FROM emails.dead WHERE offset > 2").to_pylist()
    return [json.loads(row["row"]) for row in rows]
