"""POST /hooks/{name}: signed deliveries become rows, once each; whatever is not signed now and by the secret changes nothing."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import itertools
import json
import logging
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.catalog.definitions import define_topic
from headwater.cli.program import cli
from headwater.core.clock import ManualClock
from headwater.core.types import normalize_schema
from headwater.log.embedded.embedded_log import EmbeddedLog
from headwater.sources.webhook_source import WebhookSource
from headwater.sql.parser import parse_columns
from headwater.testing import Crash, FaultyStorage, inspect_workspace
from headwater.web.idempotency_keys import DELIVERIES, SCHEMA, IdempotencyKeys, key_of
from headwater.web.ingest import DeliveryOrigin, Post, _Writing
from headwater.web.request_bodies import Media
from headwater.web.server_settings import ServerSettings
from headwater.web.tokens import create
from tests.raising import raises
from tests.web.serving import PROBLEM, AppClient, ServerProcess, client_of

SECRET = "whsec_" + base64.b64encode(b"a secret of twenty-four b").decode()
OLD = "the one before"
JSON = {"content-type": "application/json"}
SHOP = """CREATE SOURCE shop FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), previous_secret = env('SHOP_OLD'), topic = 'orders',
  columns = 'id BIGINT, total DECIMAL(10, 2), country STRING, at TIMESTAMP, lines ARRAY<STRING>',
  paths = '{"country": "buyer.address.0.country", "at": "made"}', max_body = '2 KB')"""
GITHUB = """CREATE SOURCE repo FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), scheme = 'github',
  columns = 'event STRING, action STRING', paths = '{"event": "header:X-GitHub-Event"}')"""
STRIPE = """CREATE SOURCE pay FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), scheme = 'stripe',
  columns = 'amount BIGINT, created TIMESTAMP', paths = '{"amount": "data.object.amount"}')"""
ORDER = {
    "id": 7,
    "total": 12.30,
    "buyer": {"address": [{"country": "ch"}]},
    "made": "2026-01-31T12:00:00Z",
    "lines": ["a", "b"],
}


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", SECRET)
    monkeypatch.setenv("SHOP_OLD", OLD)


@pytest.fixture
def client(ws: hw.Workspace) -> Iterator[AppClient]:
    ws.sql(f"{SHOP}; {GITHUB}; {STRIPE}")
    with client_of(ws) as made:
        yield made


def key() -> bytes:
    return base64.b64decode(SECRET.removeprefix("whsec_"))


def signed(body: bytes, name: str, at_s: int, secret: bytes | None = None) -> dict[str, str]:
    """The headers of Standard Webhooks, by its own text: not by our code."""
    said = hmac.new(secret or key(), f"{name}.{at_s}.".encode() + body, hashlib.sha256).digest()
    return {
        **JSON,
        "webhook-id": name,
        "webhook-timestamp": str(at_s),
        "webhook-signature": f"v1a,xyz v1,{base64.b64encode(said).decode()}",
    }


def deliver(
    client: AppClient, clock: ManualClock, name: str = "msg_1", said: Any = ORDER, **changed: Any
) -> httpx.Response:
    body = said if isinstance(said, bytes) else json.dumps(said).encode()
    headers = signed(
        body, name, clock.now_us() // 1_000_000 + changed.pop("late_s", 0), changed.pop("secret", None)
    )
    return client.post("/hooks/shop", content=body, headers={**headers, **changed})


def rows(ws: hw.Workspace, topic: str = "orders") -> list[dict[str, Any]]:
    return [row for batch in ws.topic(topic).read("earliest") for row in batch.to_pylist()]


def problem(answer: httpx.Response, status: int, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = answer.json()
    assert (answer.status_code, found["type"]) == (status, f"urn:headwater:problem:{kind}"), found
    assert answer.headers["content-type"] == PROBLEM
    assert SECRET not in answer.text
    return found


# --- what is taken -------------------------------------------------------------------------------------------------


def test_a_delivery_is_a_row_with_its_text_and_its_columns(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    answer = deliver(client, clock)
    assert answer.status_code == 200
    assert answer.json()["rows"] == 1
    (row,) = rows(ws)
    assert json.loads(row["body"]) == ORDER
    assert (row["delivery"], row["id"], str(row["total"])) == ("msg_1", 7, "12.30")
    assert (row["country"], row["lines"], row["at"].hour) == ("ch", ["a", "b"], 12)
    assert row["received_at"].timestamp() == clock.now_us() / 1e6
    assert ws.query("SELECT country FROM orders").to_pylist() == [{"country": "ch"}]
    assert answer.headers["headwater-receipt"].startswith("orders:0@0-1~")


def test_private_columns_are_encrypted_and_so_is_the_text_that_they_came_in(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    ws.sql(
        "CREATE SOURCE people FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), "
        "columns = 'id BIGINT NOT NULL, email STRING PRIVATE BY (id)')"
    )
    for number in (7, 8):
        body = json.dumps({"id": number, "email": f"mail-{number}-secret"}).encode()
        headers = signed(body, f"msg_{number}", clock.now_us() // 1_000_000, None)
        assert client.post("/hooks/people", content=body, headers=headers).status_code == 200
    assert ws.path is not None
    kept = b"".join(path.read_bytes() for path in ws.path.rglob("*") if path.is_file())
    assert b"-secret" not in kept
    ws.forget(7)
    gone, there = rows(ws, "people")
    assert (gone["id"], gone["email"], gone["body"]) == (7, None, None)
    assert (there["email"], json.loads(there["body"])["email"]) == ("mail-8-secret", "mail-8-secret")


def test_the_secret_before_is_good_during_rotation_and_not_after_it(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    assert deliver(client, clock, "msg_1", secret=OLD.encode()).status_code == 200
    ws.sql("ALTER SOURCE shop SET (previous_secret = NULL)")
    problem(deliver(client, clock, "msg_2", secret=OLD.encode()), 401, "signature")
    assert deliver(client, clock, "msg_2").status_code == 200
    assert len(rows(ws)) == 2


def test_github_signs_the_body_and_names_the_event_in_a_header(ws: hw.Workspace, client: AppClient) -> None:
    body = b'{"action": "opened"}'
    headers = {
        **JSON,
        "X-Hub-Signature-256": "sha256=" + hmac.new(SECRET_BYTES, body, hashlib.sha256).hexdigest(),
        "X-GitHub-Delivery": "72d3162e",
        "X-GitHub-Event": "issues",
    }
    for replayed in (False, True):
        answer = client.post("/hooks/repo", content=body, headers=headers)
        assert answer.status_code == 200
        assert ("idempotency-replayed" in answer.headers) is replayed
    (row,) = rows(ws, "repo")
    assert (row["delivery"], row["event"], row["action"]) == ("72d3162e", "issues", "opened")
    wrong = {**headers, "X-Hub-Signature-256": "sha256=" + "0" * 64, "X-GitHub-Delivery": "other"}
    problem(client.post("/hooks/repo", content=body, headers=wrong), 401, "signature")
    without = {name: value for name, value in headers.items() if name != "X-GitHub-Delivery"}
    problem(client.post("/hooks/repo", content=body, headers=without), 400, "bad-request")


SECRET_BYTES = base64.b64decode(SECRET.removeprefix("whsec_"))


def test_stripe_signs_time_and_body_with_any_of_several_and_is_known_by_the_id_in_it(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    at_s = clock.now_us() // 1_000_000

    def post(body: bytes, at_s: int) -> httpx.Response:
        said = hmac.new(SECRET_BYTES, f"{at_s}.".encode() + body, hashlib.sha256).hexdigest()
        header = f"t={at_s},v1={'0' * 64},v1={said},v0=abc"
        return client.post("/hooks/pay", content=body, headers={**JSON, "Stripe-Signature": header})

    body = b'{"id": "evt_1", "created": 1700000000, "data": {"object": {"amount": 500}}}'
    assert post(body, at_s).status_code == 200
    again = post(body.replace(b": 500", b":500"), at_s + 1)  # written otherwise, and sent again
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    (row,) = rows(ws, "pay")
    assert (row["delivery"], row["amount"], row["created"].timestamp()) == ("evt_1", 500, 1_700_000_000)
    problem(post(body, at_s - 301), 401, "signature")
    assert "1 stale" in str(ws.sql("EXPLAIN SOURCE pay").to_pylist())  # type: ignore[union-attr]
    problem(post(b"{}", at_s), 400, "bad-request")
    problem(
        client.post("/hooks/pay", content=body, headers={**JSON, "Stripe-Signature": "t=x"}), 401, "signature"
    )


def test_numbers_are_kept_in_all_their_digits_where_a_column_has_them(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    deliver(client, clock, said=b'{"total": 12345678.91, "buyer": {"address": [{"country": {"n": 1.5}}]}}')
    (row,) = rows(ws)
    assert (str(row["total"]), row["country"]) == ("12345678.91", '{"n": 1.5}')
    number = "12345678901234567890123"
    deliver(client, clock, "msg_2", said=f'{{"buyer": {{"address": [{{"country": {number}}}]}}}}'.encode())
    assert rows(ws)[1]["country"] == number


# --- once ----------------------------------------------------------------------------------------------------------


def test_a_delivery_that_comes_again_is_answered_as_the_first_also_after_a_restart(
    tmp_path: Path, clock: ManualClock
) -> None:
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        ws.sql(SHOP)
        with client_of(ws) as client:
            first = deliver(client, clock)
            deliver(client, clock, "msg_2")
            again = deliver(client, clock, said={"id": 8})
            assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
    with hw.open(tmp_path / "ws", clock=clock) as ws, client_of(ws) as client:
        again = deliver(client, clock)
        assert (again.json(), again.headers["idempotency-replayed"]) == (first.json(), "true")
        clock.advance("8 days")
        assert "idempotency-replayed" not in deliver(client, clock).headers  # forgotten after a week
        assert [row["delivery"] for row in rows(ws)] == ["msg_1", "msg_2", "msg_1"]


def test_what_was_taken_and_is_kept_no_more_is_answered_so_that_its_sender_rests(
    tmp_path: Path, clock: ManualClock
) -> None:
    with hw.open(tmp_path / "ws", clock=clock) as ws:
        ws.sql(SHOP)
        with client_of(ws) as client:
            deliver(client, clock)
        ws.sql("ALTER TOPIC orders SET (retention = '1 hour')")
        clock.advance("2 hours")
        ws.maintain()
        assert rows(ws) == []
    with hw.open(tmp_path / "ws", clock=clock) as ws, client_of(ws) as client:
        again = deliver(client, clock)
        assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
        assert again.json() == {"receipt": "", "rows": 0, "positions": {}}
        assert rows(ws) == []


def test_a_topic_that_is_made_anew_takes_what_the_one_before_had(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    deliver(client, clock)
    ws.sql(f"DROP SOURCE shop; DROP TOPIC orders; {SHOP}")
    assert "idempotency-replayed" not in deliver(client, clock).headers
    assert deliver(client, clock).headers["idempotency-replayed"] == "true"
    assert [row["delivery"] for row in rows(ws)] == ["msg_1"]


def test_dying_at_any_call_to_the_disk_neither_loses_nor_repeats_a_delivery(
    tmp_path: Path, clock: ManualClock
) -> None:
    """The sender tries each delivery until it is answered."""
    storage = FaultyStorage(tmp_path / "ws")
    source = WebhookSource("shop", {"secret": SECRET, "columns": "id BIGINT"}, clock=clock)
    ids = define_topic(DELIVERIES, normalize_schema(parse_columns(SCHEMA).schema))
    with contextlib.closing(EmbeddedLog.open(storage.root, storage=storage, clock=clock)) as log:
        for topic in (*source.check(), ids):
            log.create_topic(topic)
    number = crashes = 0
    while crashes < 30:
        storage = storage.restart()
        storage.crash_at(len(storage.calls) + 1 + crashes % 17)
        try:
            with contextlib.closing(EmbeddedLog.open(storage.root, storage=storage, clock=clock)) as log:
                keys = IdempotencyKeys(log, clock, lambda log=log: log.topic(DELIVERIES))  # type: ignore[misc]
                writing = _Writing(log, keys, keys, 1 << 20)
                while True:
                    group = [post_of(source, clock, f"msg_{number + n}") for n in range(3)]
                    writing.write(source.topic.name, group)
                    assert all(post.answer is not None for post in group)
                    number += 3
        except Crash:
            crashes += 1
    with contextlib.closing(EmbeddedLog.open(storage.restart().root, clock=clock)) as log:
        end = log.partitions("shop")[0].end
        found = [
            row["delivery"]
            for batch in log.read("shop", 0, 0, end, ["delivery"])
            for row in batch.to_pylist()
        ]
    assert len(found) == len(set(found))
    assert {f"msg_{n}" for n in range(number)} <= set(found) <= {f"msg_{n}" for n in range(number + 3)}
    assert number > 10


def post_of(source: WebhookSource, clock: ManualClock, name: str) -> Post:
    body = b'{"id": 1}'
    made = source.delivered(signed(body, name, clock.now_us() // 1_000_000), body)
    key = key_of(made.id, "hook:shop", "shop", "", b"")
    return Post(body, Media.JSON, key, DeliveryOrigin("shop", made.row, made.sent_us))


@pytest.mark.long
def test_a_server_that_is_killed_has_what_it_answered_and_its_successor_knows_the_rest(
    tmp_path: Path,
) -> None:
    """Senders try each delivery again until it is answered, as they do."""
    with hw.open(tmp_path / "ws") as ws:
        ws.sql(SHOP)
    answered: set[str] = set()
    sent: set[str] = set()
    numbers = itertools.count()

    def send(web: httpx.Client, name: str) -> bool:
        body = b'{"id": 1}'
        with contextlib.suppress(httpx.HTTPError):
            headers = signed(body, name, int(time.time()))
            if web.post("/hooks/shop", content=body, headers=headers).status_code == 200:
                answered.add(name)
        return name in answered

    def load(url: str) -> None:
        with httpx.Client(base_url=url, timeout=20) as web:
            while True:
                name = f"msg_{next(numbers)}"
                sent.add(name)
                if not send(web, name):
                    return

    with ServerProcess(tmp_path / "ws") as server:
        threads = [threading.Thread(target=load, args=(server.url,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(answered) < 40:
            threading.Event().wait(0.005)
        os.kill(server.process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
    with ServerProcess(tmp_path / "ws") as server, httpx.Client(base_url=server.url, timeout=20) as web:
        assert all(send(web, name) for name in sorted(sent))  # those that were answered too
    with hw.open(tmp_path / "ws") as ws:
        assert sorted(row["delivery"] for row in rows(ws)) == sorted(sent), "each is there once"


# --- what is refused -----------------------------------------------------------------------------------------------


def test_whatever_is_not_signed_now_and_by_the_secret_writes_nothing(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    body, at_s = json.dumps(ORDER).encode(), clock.now_us() // 1_000_000
    good = signed(body, "msg_1", at_s)
    for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        headers = {k: v for k, v in good.items() if k != name}
        problem(client.post("/hooks/shop", content=body, headers=headers), 401, "signature")
    problem(client.post("/hooks/shop", content=body + b" ", headers=good), 401, "signature")
    problem(
        client.post("/hooks/shop", content=body, headers={**good, "webhook-id": "msg_2"}), 401, "signature"
    )
    problem(deliver(client, clock, secret=b"another"), 401, "signature")
    problem(deliver(client, clock, late_s=-301), 401, "signature")
    problem(deliver(client, clock, late_s=301), 401, "signature")
    problem(
        client.post("/hooks/shop", content=body, headers={**good, "webhook-timestamp": "1e9"}),
        401,
        "signature",
    )
    assert rows(ws) == []
    assert deliver(client, clock, late_s=-300).status_code == 200


def test_a_delivery_of_too_many_objects_is_refused(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql(SHOP.replace("2 KB", "64 MB"))
    with client_of(ws) as client:
        for count, status in ((100, 200), (1_000_000, 400)):
            body = b'{"id": 1, "more": [' + b"[]," * count + b"[]]}"
            answer = deliver(client, clock, f"msg_{count}", body)
            assert answer.status_code == status, answer.text
    assert "1,000,000 objects and arrays" in problem(answer, 400, "bad-request")["detail"]


def test_what_is_signed_and_cannot_be_read_is_refused_with_a_problem(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    assert "JSON" in problem(deliver(client, clock, said=b'{"id": '), 400, "bad-request")["detail"]
    problem(deliver(client, clock, said=b'{"id": "\xff"}'), 400, "bad-request")
    assert problem(deliver(client, clock, said={"id": "seven"}), 422, "bad-row")["column"] == "id"
    problem(deliver(client, clock, said={"made": "yesterday"}), 422, "bad-row")
    problem(deliver(client, clock, "x" * 256), 400, "bad-request")
    problem(deliver(client, clock, **{"content-type": "text/plain"}), 415, "unsupported-media-type")
    problem(deliver(client, clock, **{"content-type": "application/x-ndjson"}), 415, "unsupported-media-type")
    problem(deliver(client, clock, said={"text": "x" * 3_000}), 413, "body-too-large")
    problem(client.post("/hooks/nobody", content=b"{}", headers=JSON), 404, "no-such-hook")
    problem(client.post("/hooks/orders", content=b"{}", headers=JSON), 404, "no-such-hook")
    assert rows(ws) == []
    assert deliver(client, clock, said=[1, 2]).status_code == 200  # whatever JSON says: columns are NULL
    assert rows(ws)[0]["id"] is None


@pytest.mark.parametrize(
    "body",
    [
        b'{"buyer": {"address": [{"country": "\\ud800"}]}}',
        b'{"buyer": {"address": [{"country": 1' + b"0" * 400 + b"}]}}",
        b'{"id": 1234567890123456789, "lines": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
        b'{"id": 1' + b"0" * 1_900 + b"}",
        b'{"id": 100000000000000000000}',
        b'{"lines": ' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"buyer": {"address": [{"country": ' + b"[" * 900 + b"]" * 900 + b"}]}}",
        b"[" * 1_900,
        b'{"id": 1e400}',
        b'{"made": 1e300}',
        b'{"made": true}',
        b'{"total": "NaN"}',
        b"\x00",
        b"",
    ],
)
def test_whatever_is_signed_is_taken_or_refused_and_never_breaks_what_comes_with_it(
    ws: hw.Workspace, client: AppClient, clock: ManualClock, body: bytes
) -> None:
    answer = deliver(client, clock, said=body)
    assert answer.status_code in (200, 400, 422), answer.text
    assert len(rows(ws)) == (answer.status_code == 200)
    assert deliver(client, clock, "msg_2").status_code == 200


def test_who_has_not_signed_yet_holds_a_part_of_the_room_and_not_for_long(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    ws.sql(f"{SHOP}; CREATE TOPIC clicks (user BIGINT)")
    begun, answered = threading.Event(), threading.Event()

    async def slow() -> AsyncIterator[bytes]:
        yield b"x" * 1_000
        begun.set()
        while not answered.is_set():
            await asyncio.sleep(0.01)

    with client_of(ws, ServerSettings(in_flight_bytes_max=4_400, body_s=0.5)) as client:
        answers: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: answers.append(client.post("/hooks/shop", content=slow(), headers=JSON))
        )
        thread.start()
        assert begun.wait(30)
        problem(deliver(client, clock), 429, "too-busy")
        assert client.post("/topics/clicks", json=[{"user": n} for n in range(200)]).status_code == 200
        thread.join(30)
        answered.set()
        problem(answers[0], 408, "body-too-slow")
        assert deliver(client, clock).status_code == 200
        here = client.app._here
        assert (here.strangers._bytes, here.ingest._bytes) == (0, 0)


def test_its_columns_may_change_while_it_is_served_and_may_have_a_key(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    ws.sql("ALTER SOURCE repo SET (columns = 'event STRING, action STRING, number BIGINT')")
    body = b'{"number": 7}'
    proof = "sha256=" + hmac.new(SECRET_BYTES, body, hashlib.sha256).hexdigest()
    headers = {**JSON, "X-Hub-Signature-256": proof, "X-GitHub-Delivery": "1"}
    assert client.post("/hooks/repo", content=body, headers=headers).status_code == 200
    assert rows(ws, "repo")[0]["number"] == 7
    ws.sql("""CREATE OR REPLACE SOURCE repo FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), scheme = 'github', topic = 'latest',
      columns = 'number BIGINT NOT NULL, PRIMARY KEY (number), WATERMARK FOR received_at AS received_at - INTERVAL 1 MINUTE')""")
    for name in ("2", "3"):
        answer = client.post("/hooks/repo", content=body, headers={**headers, "X-GitHub-Delivery": name})
        assert answer.status_code == 200, answer.text
    assert ws.topic("latest").definition.key == ("number",)
    assert ws.topic("latest").definition.time == "received_at"
    assert [row["delivery"] for row in rows(ws, "latest")] == ["2", "3"]


def test_nobody_else_writes_to_its_topics(ws: hw.Workspace, client: AppClient, clock: ManualClock) -> None:
    deliver(client, clock)
    row = {"delivery": "x", "body": "{}", "received_at": "2026-01-31T12:00:00Z"}
    problem(client.post("/topics/orders", json=row), 400, "bad-request")
    problem(client.post("/topics/headwater_hook_ids", json={}), 403, "not-yours")


def test_it_needs_a_signature_and_no_token(ws: hw.Workspace, clock: ManualClock) -> None:
    ws.sql(SHOP)
    create(ws.log, "loader", ["write"])
    with client_of(ws, ServerSettings()) as client:
        assert client.post("/topics/orders", json={}).status_code == 401
        assert client.get("/hooks/shop").status_code == 401
        assert deliver(client, clock).status_code == 200
        problem(deliver(client, clock, "msg_2", secret=b"another"), 401, "signature")


# --- declaring and showing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "kind", "facts"),
    [
        ("topic = 'x'", hw.StatementError, {"option": "secret", "reason": "missing-option"}),
        ("secret = 'written'", hw.StatementError, {"option": "secret", "reason": "plain-secret"}),
        (
            "secret = env('SHOP_SECRET'), previous_secret = 'written'",
            hw.StatementError,
            {"option": "previous_secret", "reason": "plain-secret"},
        ),
        ("secret = env('NOT_SET')", hw.UsageError, {"variable": "NOT_SET"}),
        ("secret = env('BAD_SECRET')", hw.UsageError, {"reason": "not-base64"}),
        (
            "secret = env('SHOP_SECRET'), scheme = 'gitlab'",
            hw.UsageError,
            {"option": "scheme", "value": "gitlab"},
        ),
        (
            "secret = env('SHOP_SECRET'), columns = 'body STRING'",
            hw.SchemaError,
            {"column": "body", "reason": "duplicate-column"},
        ),
        (
            "secret = env('SHOP_SECRET'), columns = 'n INT', paths = '{\"m\": \"n\"}'",
            hw.UsageError,
            {"option": "paths", "column": "m"},
        ),
        ("secret = env('SHOP_SECRET'), paths = '[]'", hw.UsageError, {"option": "paths", "column": None}),
        ("secret = env('SHOP_SECRET'), tolerance = 5", hw.UsageError, {"argument": "tolerance", "value": 5}),
    ],
)
def test_a_wrong_declaration_is_refused_and_leaves_nothing(
    ws: hw.Workspace,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    kind: type[hw.HeadwaterError],
    facts: dict[str, Any],
) -> None:
    monkeypatch.setenv("BAD_SECRET", "whsec_***")
    with raises(kind, **facts):
        ws.sql(f"CREATE SOURCE x FROM WEBHOOK WITH ({options})")
    assert ws.sql("SHOW SOURCES").num_rows == 0
    assert ws.log.topics() == {}


def test_it_is_seen_like_other_sources_and_the_secret_is_not(
    ws: hw.Workspace, client: AppClient, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    deliver(client, clock)
    deliver(client, clock)
    deliver(client, clock, "msg_2", secret=b"another")
    deliver(client, clock, "msg_3", late_s=-400)
    shown = {row["source"]: row for row in ws.sql("SHOW SOURCES").to_pylist()}
    assert shown["shop"]["kind"] == "webhook"
    assert shown["shop"]["state"] == "taking deliveries at /hooks/shop; 2 refused"
    assert "env('SHOP_SECRET')" in shown["shop"]["options"]
    figures = client.get("/metrics").text
    for outcome in ("taken", "repeated", "unsigned", "stale"):
        assert f'headwater_source_deliveries_total{{outcome="{outcome}",source="shop"}} 1.0' in figures
    assert 'headwater_source_up{source="shop"} 1.0' in figures
    explained = ws.sql("EXPLAIN shop").to_pylist()
    assert "1 taken, 1 repeated, 1 unsigned, 1 stale" in str(explained)
    everything = (
        str(shown) + figures + str(explained) + caplog.text + client.get("/console/api/sources/shop").text
    )
    assert SECRET not in everything
    assert OLD not in everything
    with raises(hw.UsageError, source="shop"):
        ws.source("shop").wait(5)


def test_other_processes_are_told(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    with hw.open(place) as ws:
        ws.sql(SHOP)

        def status() -> dict[str, Any]:
            said = CliRunner().invoke(cli, ["-w", str(place), "status", "--json"])
            assert said.exit_code == 0, said.output
            found: dict[str, Any] = json.loads(said.output)["sources"][0]
            return found

        assert status()["state"].startswith("not served")
        with client_of(ws) as client:
            client.post("/hooks/shop", content=b"{}", headers=JSON)
            deadline = time.monotonic() + 60
            while not status()["counts"] and time.monotonic() < deadline:
                time.sleep(0.1)  # it tells every second
            told = status()
            assert told["state"] == "taking deliveries at /hooks/shop; 1 refused"
            assert told["counts"] == {"unsigned": 1}
        assert status()["state"].startswith("not served")


def test_a_source_that_is_dropped_is_not_posted_to_and_its_records_stay(
    ws: hw.Workspace, client: AppClient, clock: ManualClock
) -> None:
    deliver(client, clock)
    ws.sql("DROP SOURCE shop")
    problem(deliver(client, clock, "msg_2"), 404, "no-such-hook")
    assert len(rows(ws)) == 1


def test_a_secret_that_the_server_lacks_is_said_to_its_people_alone(
    ws: hw.Workspace, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.sql(SHOP)
    monkeypatch.delenv("SHOP_OLD")
    with client_of(ws) as client:
        answer = deliver(client, clock)
        problem(answer, 503, "hook-not-ready")
        assert "SHOP_OLD" not in answer.text
        assert "SHOP_OLD is not set" in ws.sql("SHOW SOURCES").to_pylist()[0]["state"]


def test_without_an_engine_a_run_does_not_wait_for_deliveries(ws: hw.Workspace) -> None:
    ws.sql(SHOP)
    inspect_workspace(ws).sources.catch_up(5)
    inspect_workspace(ws).sources.start()
    assert inspect_workspace(ws).sources.statuses() == {}
