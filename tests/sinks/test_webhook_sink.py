"""WEBHOOK: requests of JSON to a real server in a thread: keys, signatures, retries and refusals."""

import contextlib
import datetime as dt
import email.utils
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import SignatureError
from headwater.core.webhook_signatures import check, secret_bytes
from headwater.sinks.base.circuit_breaker import CircuitOptions
from headwater.sinks.base.http_post import Hook
from headwater.sinks.base.target import RowsRefusedError, SinkError, Target, TargetDownError, TargetShape
from headwater.sinks.webhook.target import HttpPostOptions, WebhookTarget, signature
from tests.raising import raises
from tests.sinks.keeping import AtLeastOnceContract, Kept, Receiver
from tests.sinks.receiving import Answer, Server
from tests.sinks.samples import EVERYTHING, checkpoint_of, contents_at, everything, records_at, shape, upsert


@pytest.fixture
def server() -> Iterator[Server]:
    """A server on a port of its own."""
    made = Server()
    yield made
    made.down()


def webhook(server: Server, keeper: Kept | None = None, **options: Any) -> WebhookTarget:
    """A prepared target that does not wait between attempts."""
    waits: list[float] = []
    chosen = HttpPostOptions(**{"attempts": 3, **options})
    target = WebhookTarget(server.url, keeper or Kept(), chosen, clock=ManualClock(), wait=waits.append)
    target.prepare(shape())
    target.waits = waits  # type: ignore[attr-defined]
    return target


class TestWebhookTarget(AtLeastOnceContract):
    @pytest.fixture(autouse=True)
    def _place(self, server: Server) -> Iterator[None]:
        self.server, self.keeper, self.receiver = server, Kept(), Receiver(self.key)
        self.is_down = self.breaks = False
        self.taken_again: set[int] = set()
        self.server.answer = self.take
        self.made: list[WebhookTarget] = []
        yield
        for target in self.made:
            target.close()

    def make_target(self) -> Target:
        options = HttpPostOptions(attempts=1, rows=3, circuit=CircuitOptions(open_s=0))
        self.made.append(WebhookTarget(self.server.url, self.keeper, options))
        return self.made[-1]

    def take(self, body: dict[str, Any], key: str) -> Answer | None:
        if self.is_down:
            return 503, "away", {}
        for row in body["upserts"]:
            if row["name"] == "refused" and row["id"] not in self.taken_again:
                return 422, "not this one", {}
        self.receiver.take(key, body["deletes"], body["upserts"], first_of_snapshot=body["begins"])
        return None if self.breaks else (200, "", {})

    @contextmanager
    def break_within(self) -> Iterator[None]:
        self.breaks = True
        yield
        self.breaks = False

    def take_down(self) -> None:
        self.is_down = True

    def bring_up(self) -> None:
        self.is_down = False

    def lose_stand(self) -> None:
        self.keeper.text = None

    def refused_row(self, at: int) -> dict[str, Any]:
        return {"region": "bad", "id": at, "name": "refused", "score": 1.0}

    def take_again(self, at: int) -> None:
        self.taken_again.add(at)


def test_a_change_is_a_request_with_its_key(server: Server) -> None:
    target = webhook(server)
    one, two = contents_at(1).slice(0, 1), contents_at(1).slice(1, 1)
    target.apply(upsert(two, ("id",), one), None, checkpoint_of(3, two))
    ((path, headers, body),) = server.requests
    assert path == "/hook?x=1"
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"].startswith("s:h:3:0:")
    assert body == {
        "sink": "s",
        "view": "v",
        "history": "h",
        "tick": 3,
        "since": None,
        "snapshot": False,
        "begins": False,
        "piece": 0,
        "pieces": 1,
        "deletes": one.select(["id"]).to_pylist(),
        "upserts": two.to_pylist(),
    }
    assert target.checkpoint() == checkpoint_of(3, two)
    target.close()


def test_large_changes_are_several_requests_over_one_connection(server: Server) -> None:
    target = webhook(server, rows=5)
    rows = contents_at(9)
    target.apply(upsert(rows, ("id",)), None, checkpoint_of(9, rows))
    assert [body["piece"] for _, _, body in server.requests] == list(range(-(-rows.num_rows // 5)))
    assert [row for _, _, body in server.requests for row in body["upserts"]] == rows.to_pylist()
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.requests}) == len(server.requests)
    target.close()


def test_values_are_written_so_that_anybody_can_read_them(server: Server) -> None:
    target = WebhookTarget(server.url, Kept())
    target.prepare(TargetShape("s", "v", EVERYTHING, ("id",)))
    target.apply(upsert(everything(), ("id",)), None, checkpoint_of(1, everything()))
    first, second, missing, fourth, *_ = server.requests[0][2]["upserts"]
    assert first["at"] == "2024-01-01T12:00:00.000001Z"
    assert first["local"] == "1969-12-31T23:59:59.999999"
    assert (first["day"], first["price"], first["raw"]) == ("2024-02-29", "12.34", "AP8=")
    assert (first["tags"], first["place"], first["counts"]) == (
        ["red", "blue"],
        {"x": 1.5, "name": "here"},
        [["a", 1]],
    )
    assert (second["double"], fourth["double"], fourth["single"]) == ("NaN", "-Infinity", "Infinity")
    assert fourth["wide"] == "9" * 32 + ".999999"
    assert [value for name, value in missing.items() if name != "id"] == [None] * 16
    target.close()


def test_a_changelog_has_weights_and_ticks(server: Server) -> None:
    target = WebhookTarget(server.url, Kept())
    target.prepare(shape(mode="changelog"))
    target.apply(records_at(1), None, checkpoint_of(1, contents_at(1)))
    assert set(server.requests[0][2]["records"][0]) == {"id", "word", "n", "_weight", "_tick"}
    target.close()


def test_requests_are_signed_with_the_secret_and_carry_the_token(server: Server) -> None:
    target = webhook(server, secret="hush", token="abc")
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    headers = server.requests[0][1]
    assert headers["Headwater-Signature"] == signature("hush", headers["Idempotency-Key"], server.bodies[0])
    assert headers["Headwater-Signature"] != signature("other", headers["Idempotency-Key"], server.bodies[0])
    assert headers["Authorization"] == "Bearer abc"
    target.close()


@pytest.mark.parametrize(
    "failure", [(500, "oops", {}), (503, "", {}), (429, "slow", {}), (408, "", {}), None]
)
def test_what_may_pass_is_tried_again_with_the_same_key(server: Server, failure: Answer | None) -> None:
    answers: list[Answer | None] = [failure, failure, (204, "", {})]
    server.answer = lambda *_: answers.pop(0)
    target = webhook(server)
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    assert len({headers["Idempotency-Key"] for _, headers, _ in server.requests}) == 1
    assert len(server.requests) == 3
    first, second = target.waits  # type: ignore[attr-defined]
    assert 0.1 <= first <= 0.2 <= second <= 0.4
    target.close()


def test_after_some_attempts_the_target_is_down_and_the_stand_has_not_moved(server: Server) -> None:
    server.answer = lambda *_: (500, "out of order", {})
    target = webhook(server)
    with pytest.raises(TargetDownError) as caught:
        target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    assert caught.value.detail == "the response was 500: out of order"
    assert "x=1" not in caught.value.message
    assert target.checkpoint() is None
    target.close()


def test_a_server_that_is_not_there_or_does_not_answer_is_down(server: Server) -> None:
    hang = threading.Event()
    server.answer = lambda *_: (200, str(hang.wait(5)), {})
    target = webhook(server, attempts=1, timeout_s=0.1)
    url = f"http://127.0.0.1:{server.port}/..."
    with raises(TargetDownError, url=url):
        target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    hang.set()
    server.down()
    with raises(TargetDownError, url=url):
        target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    server.answer = lambda *_: (200, "", {})
    server.up()
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    target.close()


def test_retry_after_is_honoured_in_seconds_and_as_a_date(server: Server) -> None:
    now = dt.datetime.fromtimestamp(ManualClock().now_us() / 1e6, dt.UTC).replace(microsecond=0)
    later = email.utils.format_datetime(now + dt.timedelta(seconds=4), usegmt=True)
    answers: list[Answer] = [
        (429, "", {"Retry-After": "3"}),
        (503, "", {"Retry-After": later}),
        (200, "", {}),
    ]
    server.answer = lambda *_: answers.pop(0)
    target = webhook(server)
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    first, second = target.waits  # type: ignore[attr-defined]
    assert first == 3
    assert 3 <= second <= 4
    target.close()


def test_refused_rows_are_found_with_the_answer_as_reason(server: Server) -> None:
    rows = contents_at(9)
    bad = {rows["id"][3].as_py(), rows["id"][17].as_py()}

    def answer(body: dict[str, Any], _: str) -> Answer:
        return (422, "the id is bad", {}) if {row["id"] for row in body["upserts"]} & bad else (200, "", {})

    server.answer = answer
    target = webhook(server, rows=8)
    with pytest.raises(RowsRefusedError) as caught:
        target.apply(upsert(rows, ("id",), contents_at(8).slice(0, 2)), None, checkpoint_of(9, rows))
    assert [(one.index, one.reason) for one in caught.value.refused] == [
        (3, "422: the id is bad"),
        (17, "422: the id is bad"),
    ]
    assert target.checkpoint() is None
    target.close()


def test_a_snapshot_says_so_and_where_it_begins_though_rows_of_it_are_refused(server: Server) -> None:
    rows = contents_at(9)
    bad = rows["id"][0].as_py()

    def answer(body: dict[str, Any], _: str) -> Answer:
        return (422, "no", {}) if bad in {row["id"] for row in body["upserts"]} else (200, "", {})

    server.answer = answer
    target = webhook(server, rows=4)
    list(target.contents())
    with pytest.raises(RowsRefusedError):
        target.apply(upsert(rows, ("id",)), None, checkpoint_of(9, rows))
    assert all(body["snapshot"] for _, _, body in server.requests)
    assert [body["begins"] for _, _, body in server.requests][:3] == [
        True,
        True,
        True,
    ]  # 4 rows, 2, and the bad one
    server.requests.clear()
    target.apply(upsert(rows.slice(1), ("id",)), None, checkpoint_of(9, rows))
    assert [body["begins"] for _, _, body in server.requests] == [True] + [False] * (len(server.requests) - 1)
    server.requests.clear()
    target.apply(upsert(rows.slice(1), ("id",)), checkpoint_of(9, rows), checkpoint_of(10, rows))
    assert not any(body["snapshot"] for _, _, body in server.requests)
    target.close()


def test_an_empty_snapshot_is_sent_and_an_empty_change_is_not(server: Server) -> None:
    target = webhook(server)
    nothing = contents_at(1).slice(0, 0)
    list(target.contents())
    target.apply(upsert(nothing, ("id",)), None, checkpoint_of(1, nothing))
    assert [(body["begins"], body["upserts"]) for _, _, body in server.requests] == [(True, [])]
    target.apply(upsert(nothing, ("id",)), checkpoint_of(1, nothing), checkpoint_of(2, nothing))
    assert len(server.requests) == 1
    assert target.checkpoint() == checkpoint_of(2, nothing)
    target.close()


@pytest.mark.parametrize("status", [301, 401, 403, 404, 410])
def test_answers_that_need_a_person_stop_the_sink(server: Server, status: int) -> None:
    server.answer = lambda *_: (status, "go away", {})
    target = webhook(server)
    with raises(SinkError, status=status) as caught:
        target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    assert caught.value.detail == "go away"
    assert len(server.requests) == 1
    target.close()


@pytest.mark.parametrize(
    "url",
    [
        *("", "ftp://host/x", "hook", "http://", "http://host:99999/", "http://host:x/", "http://[::1/"),
        *(
            "http://a b/",
            "http://host/a b",
            "http://host/\u20ac",
            f"http://{'a' * 70}.org/",
            "http://\u2100.org/",
        ),
    ],
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with raises(SinkError, option="url"):
        WebhookTarget(url, Kept())


@pytest.mark.parametrize("token", ["of nobody's business\n", "of nobody's\r\nX-Other: 1", "nobody's \u20ac"])
def test_a_token_that_no_header_can_hold_is_refused_and_not_shown(token: str) -> None:
    with raises(SinkError, option="token") as caught:
        WebhookTarget("http://host/", Kept(), HttpPostOptions(token=token))
    assert "nobody" not in str(caught.value)


@pytest.mark.parametrize("name", ["secret", "previous_secret", "token"])
def test_a_secret_that_is_no_text_is_refused_and_not_shown(name: str) -> None:
    wrong: dict[str, Any] = {name: 20260131}
    with raises(SinkError, option=name) as caught:
        WebhookTarget("http://host/", Kept(), HttpPostOptions(**wrong))
    assert "20260131" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://hooks.example/services/T0/B0/secret", "https://hooks.example/..."),
        ("https://hooks.example:8443/?key=secret", "https://hooks.example:8443/..."),
        ("http://[::1]:80/", "http://[::1]:80"),
        ("http://who:secret@hooks.example", "http://hooks.example"),
    ],
)
def test_errors_speak_of_a_receiver_without_what_its_address_may_keep_secret(url: str, shown: str) -> None:
    assert Hook(url).shown == shown


@pytest.mark.parametrize(
    "said",
    ["\xb2", "soon", "Mon, 01 Jan 2024 00:00:00 +99999999999999", "Mon, 01 Jan 99999999999 00:00:00 GMT"],
)
def test_a_retry_after_that_says_nothing_is_passed_over(server: Server, said: str) -> None:
    answers: list[Answer] = [(503, "", {"Retry-After": said}), (200, "", {})]
    server.answer = lambda *_: answers.pop(0)
    target = webhook(server)
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    assert answers == []
    target.close()


# --- signatures, as Standard Webhooks has them ---------------------------------------------------------------------


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def test_receivers_of_standard_webhooks_take_it_with_the_new_secret_and_with_the_one_before(
    server: Server,
) -> None:
    clock = ManualClock()
    target = webhook(server, secret="whsec_bmV3IHNlY3JldA==", previous_secret="old")
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    headers, body = lower(server.requests[0][1]), server.bodies[0]
    assert headers["webhook-id"] == headers["idempotency-key"]
    assert headers["webhook-timestamp"] == str(clock.now_us() // 1_000_000)
    assert len(headers["webhook-signature"].split()) == 2
    for secret in ("whsec_bmV3IHNlY3JldA==", "old"):
        signed = check("standard", headers, body, [secret_bytes(secret)], clock.now_us(), 1_000_000)
        assert signed.id == headers["webhook-id"]
    with pytest.raises(SignatureError):
        check("standard", headers, body, [b"another"], clock.now_us(), 1_000_000)
    target.close()


def test_an_attempt_later_is_signed_with_its_own_time_under_the_same_id(server: Server) -> None:
    clock = ManualClock()
    answers: list[Answer] = [(500, "", {}), (200, "", {})]
    server.answer = lambda *_: answers.pop(0)
    target = WebhookTarget(
        server.url,
        Kept(),
        HttpPostOptions(secret="hush"),
        clock=clock,
        wait=lambda _: clock.advance("3 seconds"),
    )
    target.prepare(shape())
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    first, second = (lower(headers) for _, headers, _ in server.requests)
    assert int(second["webhook-timestamp"]) - int(first["webhook-timestamp"]) == 3
    assert first["webhook-id"] == second["webhook-id"]
    target.close()


def test_without_a_secret_nothing_is_signed(server: Server) -> None:
    target = webhook(server)
    target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    assert not {name for name in lower(server.requests[0][1]) if name.startswith("webhook-")}
    target.close()


# --- receivers that are not well -----------------------------------------------------------------------------------


def test_a_receiver_that_fails_again_and_again_is_left_alone_and_then_tried_once(server: Server) -> None:
    clock = ManualClock()
    server.answer = lambda *_: (500, "out of order", {})
    options = HttpPostOptions(attempts=4, circuit=CircuitOptions(opens_after=6, open_s=30))
    target = WebhookTarget(server.url, Kept(), options, clock=clock, wait=lambda _: None)
    target.prepare(shape())
    change = (upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))

    def fails(requests: int) -> None:
        server.requests.clear()
        with pytest.raises(TargetDownError) as caught:
            target.apply(*change)
        assert len(server.requests) == requests
        assert "500: out of order" in str(caught.value.detail)

    fails(4)
    fails(2)  # the sixth in a row opens the circuit
    assert target.circuit.state == "open"
    fails(0)
    clock.advance("30 seconds")
    assert target.circuit.state == "half-open"
    fails(1)
    fails(0)
    clock.advance("30 seconds")
    server.answer = lambda *_: (200, "", {})
    target.apply(*change)
    assert target.circuit.state == "closed"
    target.close()


def test_a_long_retry_after_is_kept_to_without_holding_the_sink_up(server: Server) -> None:
    clock, waits = ManualClock(), list[float]()
    server.answer = lambda *_: (429, "", {"Retry-After": "600"})
    target = WebhookTarget(server.url, Kept(), clock=clock, wait=waits.append)
    target.prepare(shape())
    change = (upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
    for _ in range(3):
        with pytest.raises(TargetDownError):
            target.apply(*change)
    assert (len(server.requests), waits) == (1, [])
    clock.advance("10 minutes")
    server.answer = lambda *_: (200, "", {})
    target.apply(*change)
    target.close()


@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"])
def test_a_receiver_that_answers_byte_by_byte_has_the_whole_time_and_no_more(begun: bytes) -> None:
    done = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(begun or b"HTTP/1.1 200 OK\r\n")
                while not done.wait(0.02):
                    connection.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        target = WebhookTarget(url, Kept(), HttpPostOptions(attempts=1, timeout_s=0.2))
        target.prepare(shape())
        with pytest.raises(TargetDownError) as caught:
            target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
        assert caught.value.detail == "timed out"
        done.set()
        thread.join()
        target.close()


def test_a_redirect_is_not_followed_to_another_host(server: Server) -> None:
    other = Server()
    try:
        server.answer = lambda *_: (307, "", {"Location": other.url})
        target = webhook(server, secret="hush", token="abc")
        with raises(SinkError, status=307):
            target.apply(upsert(contents_at(1), ("id",)), None, checkpoint_of(1, contents_at(1)))
        assert (len(server.requests), other.requests) == (1, [])
        assert target.checkpoint() is None
        target.close()
    finally:
        other.down()


def test_a_400_for_one_row_of_many_sends_all_the_others(server: Server) -> None:
    rows = contents_at(9)
    bad, taken = rows["id"][5].as_py(), set[int]()

    def answer(body: dict[str, Any], _: str) -> Answer:
        ids = {row["id"] for row in body["upserts"]}
        if bad in ids:
            return 400, "poison", {}
        taken.update(ids)
        return 200, "", {}

    server.answer = answer
    target = webhook(server)
    with pytest.raises(RowsRefusedError) as caught:
        target.apply(upsert(rows, ("id",)), None, checkpoint_of(9, rows))
    assert [(one.index, one.reason) for one in caught.value.refused] == [(5, "400: poison")]
    assert taken == set(rows["id"].to_pylist()) - {bad}
    assert target.circuit.state == "closed"  # a refusal is an answer
    target.close()
