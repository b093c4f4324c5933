"""A workspace with events, queues and deletions at once: looked at, verified, and closed while all of it goes on."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from headwater.events import Aggregate
from tests.raising import raises


@dataclass(frozen=True)
class Note:
    text: str | None


def take(notes: int, command: Note) -> Note:
    return command


def count(notes: int, event: Note) -> int:
    return notes + 1


@dataclass(frozen=True)
class Length:
    characters: int


def lively(folder: Path) -> hw.Workspace:
    ws = hw.open(folder)
    store = ws.store(Aggregate("note", take, count, initial=0, private=["text"]))
    for number in range(3):
        store.execute(f"n-{number}", Note(f"secret {number}"))
    ws.topic("outbox", "id BIGINT NOT NULL, email STRING", private={"email": "id"})
    ws.topic("outbox").append([{"id": n, "email": f"secret {n}"} for n in range(10)])
    queue = ws.queue("emails", topic="outbox", deliveries=1)
    queue.nack(queue.receive(max=2), error="no")
    ws.excise("outbox", "id IN (0, 3)")
    ws.forget(1)
    ws.forget("n-1")
    return ws


def test_it_is_verified_and_told_about(tmp_path: Path) -> None:
    with lively(tmp_path / "ws") as ws:
        assert ws.verify().ok
        assert all(deletion.done for deletion in ws.deletions())
        with raises(hw.UsageError, topic="note", reason="event-sourced"):
            ws.excise("note", "aggregate_id = 'n-2'")
    for words in (["status"], ["deletions"], ["queue", "list"], ["verify"], ["status", "--json"]):
        told = CliRunner().invoke(cli, ["-w", str(tmp_path / "ws"), *words])
        assert told.exit_code == 0, told.output
        assert "emails" in told.output or words[0] in ("deletions", "verify")
        assert "secret" not in told.output


def test_closing_ends_what_goes_on_in_the_background(tmp_path: Path) -> None:
    ws = lively(tmp_path / "ws")
    store = ws.store(Aggregate("mark", take, count, initial=0))
    reacted, handled = threading.Event(), threading.Event()

    @ws.reaction("marks", ws.store(Aggregate("note", take, count, initial=0, private=["text"])))
    def mark(event: Note) -> object:
        reacted.set()
        return store.send("m-1", Note("marked"))

    @ws.serve("lengths")
    def length(request: Note) -> Length:
        return Length(len(request.text or ""))

    mark.start()
    length.start()
    worker = ws.queue("emails").work(lambda message: handled.set(), threads=2)
    assert ws.call("lengths", Note("four"), returns=Length) == Length(4)
    assert reacted.wait(30)
    assert handled.wait(30)
    ws.close()
    mine = ("marks", "serve lengths", "queue emails")
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(mine)]
    assert worker.wait().failed == 0
    with hw.open(tmp_path / "ws") as again:
        assert again.queue("emails").standing().leased == 0
        assert again.store(Aggregate("mark", take, count, initial=0)).load("m-1").state == 3


def test_closing_from_a_handler_waits_for_no_one_for_ever(tmp_path: Path) -> None:
    ws = lively(tmp_path / "ws")
    closed = threading.Event()

    def close(message: object) -> None:
        ws.close()
        closed.set()

    ws.queue("emails").work(close)
    assert closed.wait(30)
