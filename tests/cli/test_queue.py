"""`headwater queue`, and queues in other listings."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        ws.topic("outbox", "id BIGINT").append([{"id": n} for n in range(4)])
    return tmp_path / "ws"


def run(folder: Path, *words: str, status: int = 0) -> str:
    done = CliRunner().invoke(cli, ["-w", str(folder), *words])
    assert done.exit_code == status, done.output
    return done.output


def rows(folder: Path, *words: str) -> Any:
    return json.loads(run(folder, *words, "--json"))


def test_messages_are_taken_and_settled_from_a_shell(folder: Path) -> None:
    assert "no queues yet" in run(folder, "queue")
    run(folder, "queue", "make", "emails", "outbox", "--deliveries", "2")
    one, two, three = rows(folder, "queue", "receive", "emails", "--max", "3")
    assert json.loads(one["row"]) == {"id": 0}
    run(folder, "queue", "ack", "emails", one["token"])
    run(folder, "queue", "nack", "emails", two["token"], "--error", "no", "--delay", "1 hour")
    run(folder, "queue", "extend", "emails", three["token"], "--lease", "2 hours")
    (listed,) = rows(folder, "queue", "list")
    oldest = listed.pop("oldest_seconds")
    assert oldest >= 0
    assert listed == {
        "queue": "emails",
        "topic": "outbox",
        "waiting": 1,
        "leased": 1,
        "delayed": 1,
        "dead": 0,
    }
    assert [row["id"] for row in rows(folder, "queue", "peek", "emails")] == [3]
    shown = rows(folder, "queue", "show", "emails")
    assert (shown["acknowledged"], shown["leases"][0]["worker"]) == (1, "shell")
    assert "emails" in run(folder, "queue", "show", "emails")
    said = run(folder, "queue", "ack", "emails", one["token"], status=1)
    assert "worker 'shell' does not hold" in said
    said = run(folder, "queue", "ack", "emails", three["token"], "--worker", "other", status=1)
    assert "worker 'shell' holds" in said
    assert "is not the token" in run(folder, "queue", "ack", "emails", "soon", status=2)
    assert "there is no queue 'letters'" in run(folder, "queue", "show", "letters", status=1)
    run(folder, "queue", "extend", "emails", three["token"])
    until = rows(folder, "queue", "show", "emails")["leases"][0]["until"]
    assert datetime.fromisoformat(until) < datetime.now(UTC) + timedelta(minutes=5), (
        "as leases of the queue are"
    )
    run(folder, "queue", "ack", "emails", three["token"])
    (four,) = rows(folder, "queue", "receive", "emails")
    run(folder, "queue", "release", "emails", four["token"])
    (four,) = rows(folder, "queue", "receive", "emails")
    assert four["deliveries"] == 1
    run(folder, "queue", "nack", "emails", four["token"], "--delay", "0 seconds")
    run(folder, "queue", "receive", "emails")
    run(folder, "queue", "receive", "emails", status=1)
    run(folder, "queue", "drop", "emails")
    assert rows(folder, "queue", "list") == []


def test_queues_are_in_status_lag_cursors_metrics_and_dead(folder: Path) -> None:
    with hw.open(folder) as ws:
        queue = ws.queue("emails", topic="outbox", deliveries=1)
        queue.nack(queue.receive(1), error="no such address")
        queue.receive(1)
        figures = ws.metrics()
    of = '{queue="emails",topic="outbox"}'
    for what, count in (("waiting", 2), ("leased", 1), ("delayed", 0), ("dead", 1)):
        assert f"headwater_queue_{what}_messages{of} {count}.0" in figures
    assert f"headwater_queue_delivered_messages_total{of} 2.0" in figures
    assert "_queue_emails" not in "".join(line for line in figures.splitlines() if "cursor_lag" in line)
    assert rows(folder, "status")["queues"][0]["dead"] == 1
    assert "emails" in run(folder, "status")
    report = rows(folder, "lag")
    assert (report["cursors"], report["queues"][0]["waiting"]) == ([], 2)
    assert "emails" in run(folder, "lag")
    assert [row["cursor"] for row in rows(folder, "cursors")] == ["queue:emails"]
    (letter,) = rows(folder, "dead", "list")
    assert (letter["letter"], letter["kind"], letter["error"]) == ("emails/0-0", "queue", "no such address")
    assert "no such address" in run(folder, "dead", "show", "emails/0-0")
    run(folder, "dead", "edit", "emails/0-0", "--set", "id=7")
    run(folder, "dead", "replay", "emails/0-0")
    (message,) = rows(folder, "queue", "receive", "emails", "--worker", "me")
    assert json.loads(message["row"]) == {"id": 7}
    run(folder, "queue", "nack", "emails", message["token"], "--error", "nor there", "--worker", "me")
    run(folder, "dead", "drop", "emails/0-0", "--reason", "moved away")
    assert rows(folder, "dead", "list") == []
    assert "moved away" in run(folder, "dead", "show", "emails/0-0")


def test_a_topic_with_a_queue_is_dropped_by_cascade_alone(folder: Path) -> None:
    with hw.open(folder) as ws:
        ws.queue("emails", topic="outbox")
        with pytest.raises(hw.UsageError) as caught:
            ws.sql("DROP TOPIC outbox")
        assert "queue:emails" in str(caught.value)
        ws.sql("DROP TOPIC outbox CASCADE")
        assert ws.queues() == []
        assert list(ws.log.topics()) == []


def test_a_message_that_is_given_up_is_a_dead_letter_at_once(folder: Path) -> None:
    run(folder, "queue", "make", "emails", "outbox")
    one, two = rows(folder, "queue", "receive", "emails", "--max", "2")
    said = run(folder, "queue", "nack", "emails", one["token"], "--final", "--delay", "1 hour", status=2)
    assert "final and delay" in said
    run(folder, "queue", "nack", "emails", one["token"], two["token"], "--final", "--error", "no address")
    assert {letter["error"] for letter in rows(folder, "dead", "list")} == {"no address"}
    run(folder, "dead", "replay", "emails/0-0")
    run(folder, "dead", "drop", "emails/0-1")
    (again, _, _) = rows(folder, "queue", "receive", "emails", "--max", "9")
    assert (json.loads(again["row"]), again["deliveries"]) == ({"id": 0}, 1)
