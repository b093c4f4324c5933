"""Records that were excised are no messages any more, whatever had become of them."""

from __future__ import annotations

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.queues.queue import Queue
from headwater.queues.queue_client import Ledgers


def opened(ws: hw.Workspace, **options: object) -> Queue:
    ws.topic("outbox", "id BIGINT, text STRING").append([{"id": n, "text": f"t{n}"} for n in range(8)])
    return ws.queue("emails", topic="outbox", deliveries=2, **options)


def test_fresh_leased_returned_and_dead_ones_are_over(ws: hw.Workspace, clock: ManualClock) -> None:
    queue = opened(ws)
    worn = queue.receive(max=1)
    queue.nack(worn, error="once")
    worn = queue.receive(max=1)
    queue.nack(worn, error="twice")  # 0 is dead
    returned = queue.receive(max=1)
    queue.nack(returned, delay="1 hour")  # 1 comes again
    held = queue.receive(max=2)  # 2 and 3 are leased
    assert (queue.standing().dead, queue.standing().delayed, queue.standing().leased) == (1, 1, 2)

    done = ws.excise("outbox", "id IN (0, 1, 2, 4, 5)")
    assert done.records == 5
    assert {(p.kind, p.name) for p in done.places} >= {
        ("queue", "emails"),
        ("log", "outbox"),
        ("log", "emails.dead"),
    }
    standing = queue.standing()
    assert (standing.dead, standing.delayed, standing.leased, standing.waiting) == (0, 0, 1, 2)
    assert ws.query("SELECT * FROM emails.dead").num_rows == 0
    assert ws.dead().list(of="emails").num_rows == 0

    with pytest.raises(hw.LeaseLostError):
        queue.ack(held[0])
    queue.ack(held[1])
    clock.advance("2 hours")
    rest = queue.receive(max=10)
    assert [message.row["id"] for message in rest] == [6, 7]
    queue.ack(rest)
    assert queue.standing().waiting == 0
    assert queue.standing().oldest_seconds is None
    assert ws.verify().ok


def test_another_process_that_has_read_ahead_does_not_hand_them_out(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    queue = opened(ws)
    other = Queue(ws.log, clock, Ledgers(ws.log, clock), "emails")
    assert other.receive(max=1)[0].row["id"] == 0  # it has all rows by now
    ws.excise("outbox", "id IN (1, 2, 3)")
    assert [message.row["id"] for message in other.receive(max=2)] == [4, 5]
    assert [message.row["id"] for message in queue.receive(max=9)] == [6, 7]


def test_what_somebody_wrote_about_a_dead_message_is_said_to_be_out_of_reach(ws: hw.Workspace) -> None:
    queue = opened(ws)
    for _ in range(2):
        queue.nack(queue.receive(max=1), error="no")
    ws.dead().edit("emails/0-0", {"text": "mended"})
    done = ws.excise("outbox", "id = 0")
    assert ("letters", "_dead", "out of reach") in {(p.kind, p.name, p.status) for p in done.places}


def test_keys_of_excised_messages_are_free(ws: hw.Workspace) -> None:
    queue = opened(ws, key="text")
    ws.topic("outbox").append([{"id": 8, "text": "t0"}])
    first = queue.receive(max=1)
    assert first[0].row["id"] == 0
    ws.excise("outbox", "id = 0")
    assert 8 in [message.row["id"] for message in queue.receive(max=20)]
