"""Messages of a queue are posted: signed, once each if nothing fails, again with the same key if something does, dead in the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.errors import SinkError
from headwater.core.webhook_signatures import check, secret_bytes
from tests.raising import raises
from tests.sinks.receiving import Answer, Server

SECRET = "whsec_c2VjcmV0IG9mIHNvbWUgbGVuZ3Ro"
QUICK: dict[str, Any] = {"delay": "1 ms", "open_for": "20 ms", "idle": 0.3}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.down()


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os") as ws:
        yield ws


def outbox(ws: hw.Workspace, count: int, **options: Any) -> Any:
    topic = ws.topic("outbox", "id BIGINT, customer STRING, amount DECIMAL(8, 2)")
    topic.append(
        [{"id": n, "customer": "ab"[n % 2], "amount": Decimal(n) / 4} for n in range(count)] if count else []
    )
    return ws.queue("emails", topic="outbox", **options)


def posted(server: Server) -> list[int]:
    return [body["row"]["id"] for _, _, body in server.requests]


def keys(server: Server) -> list[str]:
    return [headers["Idempotency-Key"] for _, headers, _ in server.requests]


def test_a_message_is_a_signed_request_and_is_done_when_it_is_answered(
    ws: hw.Workspace, server: Server
) -> None:
    queue = outbox(ws, 3)
    report = ws.post("emails", server.url, secret=SECRET, token="me", **QUICK).wait()
    assert (report.handled, report.failed, queue.standing().acknowledged) == (3, 0, 3)
    assert posted(server) == [0, 1, 2]
    assert len(set(keys(server))) == 3
    path, headers, body = server.requests[1]
    assert (path, headers["Authorization"]) == ("/hook?x=1", "Bearer me")
    assert body == {
        "queue": "emails",
        "topic": "outbox",
        "id": "0-1",
        "deliveries": 1,
        "row": {"id": 1, "customer": "b", "amount": "0.25"},
    }
    small = {name.lower(): value for name, value in headers.items()}
    now_us = time.time_ns() // 1_000
    signed = check("standard", small, server.bodies[1], [secret_bytes(SECRET)], now_us, 60_000_000)
    assert signed.id == headers["Idempotency-Key"]
    assert ws.post("emails", server.url, **QUICK).wait().handled == 0, "what is done is not posted again"


def test_a_message_at_the_same_place_of_an_older_copy_has_another_key(tmp_path: Path, server: Server) -> None:
    """A receiver that remembers keys would drop it for the one that it has had."""
    folder, copy = tmp_path / "shop", tmp_path / "copy"
    with hw.open(folder, durability="os") as ws:
        outbox(ws, 1)
        ws.post("emails", server.url, **QUICK).wait()
    shutil.copytree(folder, copy)
    for _ in range(2):
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)
        with hw.open(folder, durability="os") as ws:
            outbox(ws, 2)
            ws.post("emails", server.url, **QUICK).wait()
    assert [body["id"] for _, _, body in server.requests] == ["0-0", "0-1", "0-2", "0-1", "0-2"]
    assert len(set(keys(server))) == 5


def test_what_fails_comes_again_with_the_same_key(ws: hw.Workspace, server: Server) -> None:
    outbox(ws, 1)
    answers: list[Answer | None] = [None, (503, "away", {}), (429, "", {"Retry-After": "0"}), (200, "", {})]
    server.answer = lambda body, key: answers.pop(0)
    assert ws.post("emails", server.url, **QUICK).wait().handled == 1
    assert len(server.requests) == 4
    assert len(set(keys(server))) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_message_that_is_wrong_as_it_is_is_posted_once_and_dead(
    ws: hw.Workspace, server: Server, status: int
) -> None:
    queue = outbox(ws, 3, deliveries=5)
    server.answer = lambda body, key: (status if body["row"]["id"] == 1 else 200, "", {})
    assert ws.post("emails", server.url, **QUICK).wait().handled == 2
    assert sorted(posted(server)) == [0, 1, 2]
    assert queue.standing().dead == 1


def test_a_conflict_may_pass_and_is_posted_again(ws: hw.Workspace, server: Server) -> None:
    outbox(ws, 1)
    answers = [(409, "still at it", {}), (200, "", {})]
    server.answer = lambda body, key: answers.pop(0)
    assert ws.post("emails", server.url, **QUICK).wait().handled == 1
    assert len(set(keys(server))) == 1


def test_what_is_refused_is_dead_with_the_answer_and_edited_it_is_another_request(
    ws: hw.Workspace, server: Server
) -> None:
    queue = outbox(ws, 3, deliveries=2)
    server.answer = lambda body, key: (
        (422, "no such customer", {}) if body["row"]["customer"] == "b" else (200, "", {})
    )
    report = ws.post("emails", server.url, **QUICK).wait()
    assert (report.handled, report.failed, queue.standing().dead) == (2, 1, 1)
    (letter,) = ws.dead().find("emails")
    assert letter.letter.error == "422: no such customer"
    first = keys(server)[1]
    ws.dead().edit(letter.letter.id, {"customer": "c"})
    ws.dead().replay(letter.letter.id)
    assert ws.post("emails", server.url, **QUICK).wait().handled == 1
    assert server.requests[-1][2]["row"] == {"id": 1, "customer": "c", "amount": "0.25"}
    assert keys(server)[-1].startswith(f"{first}/")


def test_while_the_receiver_is_down_messages_are_not_worn_out(ws: hw.Workspace, server: Server) -> None:
    queue = outbox(ws, 4, deliveries=2)
    failures = iter(range(15))
    server.answer = lambda body, key: (503, "away", {}) if next(failures, None) is not None else (200, "", {})
    poster = ws.post("emails", server.url, open_after=2, **QUICK)
    assert poster.wait().handled == 4
    assert (queue.standing().dead, queue.standing().acknowledged) == (0, 4)
    assert poster.circuit.state == "closed"
    assert len(server.requests) == 15 + 4


def test_a_message_that_brings_the_receiver_down_is_dead_in_the_end(
    ws: hw.Workspace, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.connectors.manage.queue_webhooks.PROBES_MAX", 2)
    queue = outbox(ws, 2, deliveries=2)
    server.answer = lambda body, key: (500, "boom", {}) if body["row"]["id"] == 0 else (200, "", {})
    assert ws.post("emails", server.url, open_after=1, **QUICK).wait().handled == 1
    assert (queue.standing().dead, queue.standing().acknowledged) == (1, 1)
    (letter,) = ws.dead().find("emails")
    assert letter.letter.error == "the response was 500: boom"


@pytest.mark.parametrize("status", [301, 401, 404])
def test_an_answer_about_all_requests_stops_it_and_leaves_messages_as_they_were(
    ws: hw.Workspace, server: Server, status: int
) -> None:
    queue = outbox(ws, 2, deliveries=1)
    server.answer = lambda body, key: (status, "go away", {})
    with raises(SinkError, status=status, queue="emails") as refused:
        ws.post("emails", server.url, **QUICK).wait(20)
    assert f"127.0.0.1:{server.port}" in refused.value.message
    assert len(server.requests) == 1
    assert (queue.standing().waiting, queue.standing().dead) == (2, 0)
    assert [message.deliveries for message in queue.receive(2)] == [1, 1]


def test_stopping_while_the_receiver_is_down_is_quick_and_wears_nothing_out(
    ws: hw.Workspace, server: Server
) -> None:
    queue = outbox(ws, 1, deliveries=2)
    server.answer = lambda body, key: (503, "away", {"Retry-After": "600"})
    with ws.post("emails", server.url, delay="1 ms") as poster:
        while queue.standing().delivered < 2:  # once posted, once waiting for the receiver
            threading.Event().wait(0.01)
        before = time.monotonic()
    assert time.monotonic() - before < 5
    assert not poster.working
    assert (queue.standing().waiting, queue.standing().dead, len(server.requests)) == (1, 0, 1)


def test_messages_of_a_key_are_posted_in_order_by_any_number_of_threads(
    ws: hw.Workspace, server: Server
) -> None:
    outbox(ws, 20, key="customer", deliveries=50)
    calls = iter(range(1_000))
    server.answer = lambda body, key: (503, "", {}) if next(calls) % 3 == 1 else (200, "", {})
    report = ws.post("emails", server.url, threads=3, **QUICK).wait()
    assert report.handled == 20
    for rest in (0, 1):
        mine = list(dict.fromkeys(number for number in posted(server) if number % 2 == rest))
        assert mine == sorted(mine)


def test_what_cannot_be_posted_to_is_told_at_once(ws: hw.Workspace) -> None:
    outbox(ws, 1)
    with raises(SinkError, option="url"):
        ws.post("emails", "mail://host")
    with raises(SinkError, option="secret"):
        ws.post("emails", "http://host/", secret=5)
    with raises(hw.UsageError, option="secrets"):
        ws.post("emails", "http://host/", secrets="x")
    with raises(hw.UsageError, argument="url", value=7):
        ws.post("emails", 7)  # type: ignore[arg-type]
    with pytest.raises(hw.QueueNotFoundError):
        ws.post("letters", "http://host/")
    assert ws.queue("emails").standing().delivered == 0


def start(folder: Path, server: Server, *words: str) -> subprocess.Popen[str]:
    environ = {**os.environ, "EMAILS_SECRET": SECRET}
    command = [sys.executable, "-m", "headwater", "-w", str(folder), "queue", "post", "emails", server.url]
    return subprocess.Popen(
        [*command, "--secret", "EMAILS_SECRET", *words],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_a_process_that_posts_is_killed_and_another_goes_on_and_ctrl_c_ends_it(
    tmp_path: Path, server: Server
) -> None:
    folder, count = tmp_path / "ws", 30
    with hw.open(folder, durability="os") as ws:
        queue = outbox(ws, count, lease="1 second")
        answered: list[str] = []
        reached, may_go_on = threading.Event(), threading.Event()

        def answer(body: dict[str, Any], key: str) -> Answer:
            if len(server.requests) == 10:
                reached.set()
                may_go_on.wait(20)
            answered.append(key)
            return 200, "", {}

        server.answer = answer
        victim = start(folder, server)
        assert reached.wait(60)
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        may_go_on.set()
        other = start(folder, server)
        while queue.standing().acknowledged < count:
            ws.log.wait_commit(ws.log.sequence(), 1_000)
        other.send_signal(signal.SIGINT)
        said, _ = other.communicate(timeout=30)
        assert other.returncode == 0
        assert "messages delivered, 0 failed" in said
        twice = [key for key, times in Counter(keys(server)).items() if times > 1]
        assert len(set(keys(server))) == count
        assert len(twice) <= 2, "only what was not acknowledged comes again, under its key"
        assert all(json.loads(body)["queue"] == "emails" for body in server.bodies)


def test_a_secret_that_is_in_no_variable_is_said(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from headwater.cli.program import cli

    with hw.open(tmp_path / "ws") as ws:
        outbox(ws, 0)
    words = ["-w", str(tmp_path / "ws"), "queue", "post", "emails", "http://host/", "--secret", "NO_SUCH"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2
    assert "environment variable 'NO_SUCH' is not set" in done.output
