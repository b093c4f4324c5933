"""POST /topics/{topic}: every kind of body, every kind of refusal, and receipts that tell the truth."""

import concurrent.futures
import contextlib
import itertools
import random
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import headwater as hw
from headwater.catalog.conform import conform
from headwater.core.clock import ManualClock
from headwater.core.positions import Receipt
from headwater.log.protocol import Append
from headwater.web.idempotency_keys import SCHEMA, IdempotencyKeys, key_of
from headwater.web.idempotency_keys import TOPIC as KEYS
from headwater.web.ingest import Ingest, Post, _Writing
from headwater.web.problems import Problem
from headwater.web.request_bodies import BodyReader, Media
from headwater.web.server_settings import ServerSettings
from tests.raising import raises
from tests.web.serving import ARROW, NDJSON, PROBLEM, AppClient, arrow_bytes, client_of

TYPES = """CREATE TOPIC typed (
  id BIGINT NOT NULL, flag BOOLEAN, small SMALLINT, price DECIMAL(10, 2), ratio DOUBLE, name STRING, raw BINARY,
  day DATE, at TIMESTAMP, plain TIMESTAMP_NTZ, tags ARRAY<STRING>, place STRUCT<x: INT, y: INT>, counts MAP<STRING, INT>)"""
ROW = {
    "id": 2**62,
    "flag": True,
    "small": -3,
    "price": 12.10,
    "ratio": 0.1,
    "name": 'ein "Wort"\n',
    "raw": "aGk=",
    "day": "2026-01-31",
    "at": "2026-01-31T12:00:00.000001+01:00",
    "plain": "2026-01-31T12:00:00",
    "tags": ["a", None],
    "place": {"x": 1, "y": None},
    "counts": {"a": 1},
}


@pytest.fixture
def client(ws: hw.Workspace) -> Iterator[AppClient]:
    ws.sql("CREATE TOPIC clicks (user BIGINT NOT NULL, url STRING, at TIMESTAMP)")
    ws.sql("CREATE TOPIC parted (user BIGINT, n INT) WITH (partitions = 4, partition_by = 'user')")
    ws.sql("CREATE TOPIC people (id BIGINT, name STRING, PRIMARY KEY (id))")
    ws.sql(TYPES)
    with client_of(ws) as made:
        yield made


async def in_pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def ingest_of(client: AppClient) -> Ingest:
    return client.app._here.ingest


def rows(ws: hw.Workspace, topic: str) -> list[dict[str, Any]]:
    return [row for batch in ws.topic(topic).read() for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("body", "headers", "count"),
    [
        (b'{"user": 1}', {"content-type": "application/json"}, 1),
        (b'[{"user": 1}, {"user": 2, "url": null}]', {"content-type": "application/json; charset=utf-8"}, 2),
        (b"[]", {"content-type": "application/json"}, 0),
        (b'{"user": 1}\n\n{"user": 2}\r\n', NDJSON, 2),
        (b'{"user": 1, "_partition": 0, "_offset": 17}', {"content-type": "application/jsonl"}, 1),
        (b"", NDJSON, 0),
        (arrow_bytes(pa.table({"user": [1, 2, 3]})), ARROW, 3),
        (
            arrow_bytes(
                pa.table({"user": pa.array([1], pa.int8()), "url": pa.array(["x"]).dictionary_encode()})
            ),
            ARROW,
            1,
        ),
    ],
    ids=[
        "object",
        "array",
        "empty array",
        "lines",
        "columns of a read",
        "no lines",
        "arrow",
        "other arrow types",
    ],
)
def test_a_body_is_one_append(
    ws: hw.Workspace, client: AppClient, body: bytes, headers: dict[str, str], count: int
) -> None:
    answer = client.post("/topics/clicks", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert said["rows"] == count == len(rows(ws, "clicks"))
    assert said["positions"] == ({"clicks": {"0": [0, count]}} if count else {})
    assert answer.headers["headwater-receipt"] == said["receipt"]
    assert said["receipt"].partition("~")[0] == (f"clicks:0@0-{count}" if count else "")
    assert Receipt.parse(said["receipt"]).rows == count


def test_values_of_every_type_come_back_as_they_were_sent(client: AppClient) -> None:
    assert client.post("/topics/typed", json=ROW).status_code == 200
    (back,) = client.get("/topics/typed").json()["rows"]
    expected = {**ROW, "at": "2026-01-31T11:00:00.000001Z", "plain": "2026-01-31T12:00:00.000000"}
    assert {name: back[name] for name in ROW} == expected
    again = client.post("/topics/typed", json=back)
    assert again.status_code == 200, again.text


def test_a_tombstone_is_posted_as_a_row_that_says_so(ws: hw.Workspace, client: AppClient) -> None:
    client.post("/topics/people", json=[{"id": 7, "name": "a"}, {"id": 7, "_op": "delete"}])
    assert [row["_op"] for row in rows(ws, "people")] == ["upsert", "delete"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "kind", "said"),
    [
        (b'{"user": 1,', NDJSON, 400, "bad-request", {"row": 0, "line": 1}),
        (b'{"user": 1}\n\n{"user"}', NDJSON, 400, "bad-request", {"row": 1, "line": 3}),
        (b'{"user": 1}\n{"user": "x"}', NDJSON, 422, "bad-row", {"row": 1, "column": "user", "value": "x", "expected": "BIGINT"}),
        (b'[{"user": 1}, {"url": "x"}]', {"content-type": "application/json"}, 422, "bad-row", {"row": 1, "column": "user", "value": None}),
        (b'[{"user": 1}, {"user": 2, "at": "soon"}]', {"content-type": "application/json"}, 422, "bad-row", {"row": 1, "column": "at", "value": "soon"}),
        (b'[{"user": 1, "uzer": 2}]', {"content-type": "application/json"}, 422, "bad-row", {"row": 0, "column": "uzer"}),
        (b'[{"user": 1}, 5]', {"content-type": "application/json"}, 422, "bad-row", {"row": 1}),
        (b'{"user": 1.5}', {"content-type": "application/json"}, 422, "bad-row", {"row": 0, "column": "user"}),
        (b"5", {"content-type": "application/json"}, 400, "bad-request", {}),
        (b"[" * 2_000, {"content-type": "application/json"}, 400, "bad-request", {}),
        (b"\xff\xfe", {"content-type": "application/json"}, 400, "bad-request", {}),
        (b"not arrow", ARROW, 400, "bad-request", {}),
        (arrow_bytes(pa.table({"user": [1]}))[:-20], ARROW, 400, "bad-request", {}),
        (arrow_bytes(pa.table({"user": ["x"]})), ARROW, 422, "bad-row", {"row": 0, "column": "user"}),
        (b'{"user": 1}', {}, 415, "unsupported-media-type", {}),
        (b"user=1", {"content-type": "application/x-www-form-urlencoded"}, 415, "unsupported-media-type", {}),
        (b'{"user": 1}', {"content-type": "text/plain"}, 415, "unsupported-media-type", {}),
        (b"x", {"content-type": "application/json", "content-encoding": "gzip"}, 415, "unsupported-encoding", {}),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_a_problem_that_names_the_place_and_writes_nothing(
    ws: hw.Workspace,
    client: AppClient,
    body: bytes,
    headers: dict[str, str],
    status: int,
    kind: str,
    said: dict[str, Any],
) -> None:
    answer = client.post("/topics/clicks", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (status, PROBLEM), answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:headwater:problem:{kind}"
    assert problem["status"] == status
    assert problem["detail"]
    assert {name: problem.get(name) for name in said} == said
    assert rows(ws, "clicks") == []


@pytest.mark.parametrize("number", [2**63, 2**64, 10**30])
def test_a_number_that_is_too_large_is_refused_also_where_digits_are_kept(
    client: AppClient, number: int
) -> None:
    answer = client.post("/topics/typed", json={"id": number})
    assert (answer.status_code, answer.json()["value"]) == (422, str(number))


def test_what_is_nested_too_deeply_is_refused_also_where_digits_are_kept(client: AppClient) -> None:
    for body in (b"[" * 100_000, b'{"price": ' + b"[" * 100_000):
        answer = client.post("/topics/typed", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_a_topic_that_is_not_there_is_not_found(client: AppClient) -> None:
    answer = client.post("/topics/klicks", json={})
    assert answer.status_code == 404
    assert "did you mean clicks?" in answer.json()["hint"]


def test_a_body_that_is_too_large_is_refused_whether_it_says_so_or_not(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    with client_of(ws, ServerSettings(body_bytes_max=100)) as client:
        said = client.post("/topics/clicks", content=b"x" * 101, headers=NDJSON)
        unsaid = client.post("/topics/clicks", content=in_pieces(b"x" * 60, b"y" * 60), headers=NDJSON)
        fits = client.post("/topics/clicks", content=b'{"user": 1}' + b" " * 89, headers=NDJSON)
    assert [said.status_code, unsaid.status_code, fits.status_code] == [413, 413, 200]
    assert said.json()["bytes_max"] == 100


def test_more_than_fits_is_told_to_come_again(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    with client_of(ws, ServerSettings(in_flight_bytes_max=50)) as client:
        answer = client.post("/topics/clicks", content=b'{"user": 1}' + b" " * 90, headers=NDJSON)
        again = client.post("/topics/clicks", content=b'{"user": 1}', headers=NDJSON)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert again.status_code == 200, "what was refused holds no room"


def test_posts_that_wait_are_bounded_by_number(ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    go, append = threading.Event(), ws.log.append
    monkeypatch.setattr(ws.log, "append", lambda given: (go.wait(30), append(given))[1])
    with client_of(ws, ServerSettings(posts_waiting_max=3)) as client:
        with concurrent.futures.ThreadPoolExecutor(3) as threads:
            first = [threads.submit(client.post, "/topics/clicks", json={"user": i}) for i in range(3)]
            while ingest_of(client)._posts < 3:
                threading.Event().wait(0.001)
            answer = client.post("/topics/clicks", json={"user": 9})
            go.set()
            assert [each.result().status_code for each in first] == [200] * 3
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")


# --- group commit ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", ["", "WITH (partitions = 3)", "WITH (partitions = 4, partition_by = 'user')"]
)
def test_posts_at_the_same_time_share_commits_and_each_has_the_receipt_of_its_own_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql(f"CREATE TOPIC clicks (user BIGINT NOT NULL, post BIGINT) {options}")
        append, commits = ws.log.append, []
        monkeypatch.setattr(ws.log, "append", lambda given: (commits.append(1), append(given))[1])
        with client_of(ws) as client, concurrent.futures.ThreadPoolExecutor(16) as threads:

            def post(number: int) -> httpx.Response:
                sent = [{"user": number * 31 + i, "post": number} for i in range(number % 5 + 1)]
                if number % 10 == 9:
                    sent.append({"post": number})  # the user is missing
                return client.post("/topics/clicks", json=sent)

            answers = list(threads.map(post, range(100)))
        good = [number for number in range(100) if number % 10 != 9]
        assert [a.status_code for a in answers] == [422 if n % 10 == 9 else 200 for n in range(100)]
        assert {a.json()["row"] for n, a in enumerate(answers) if n not in good} == {5}
        by_place = {(row["_partition"], row["_offset"]): row["post"] for row in rows(ws, "clicks")}
        claimed = {
            (int(p), offset): number
            for number in good
            for p, (first, end) in answers[number].json()["positions"]["clicks"].items()
            for offset in range(first, end)
        }
        assert claimed == by_place
        assert len(commits) < len(good), "some shared a commit"


def test_posts_with_keys_share_commits_too(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql("CREATE TOPIC clicks (user BIGINT) WITH (partitions = 4, partition_by = 'user')")
        with client_of(ws) as client, concurrent.futures.ThreadPoolExecutor(16) as threads:

            def post(number: int) -> dict[str, Any]:
                answer = keyed(client, f"k{number}", [{"user": number}, {"user": number + 1_000}])
                assert answer.status_code == 200, answer.text
                return answer.json()["positions"]["clicks"]  # type: ignore[no-any-return]

            first = list(threads.map(post, [n // 2 for n in range(100)]))  # each twice, at the same time
        assert first[0::2] == first[1::2]
        assert len(rows(ws, "clicks")) == 100
        with client_of(ws) as other:  # another process, which knows the keys from the log alone
            for number in range(0, 50, 7):
                answer = keyed(other, f"k{number}", [{"user": number}, {"user": number + 1_000}])
                assert answer.headers["idempotency-replayed"] == "true"
                assert answer.json()["positions"]["clicks"] == first[2 * number]
        assert len(rows(ws, "clicks")) == 100


# --- idempotency keys ------------------------------------------------------------------------------------------------


def keyed(client: AppClient, key: str, body: Any, topic: str = "clicks") -> Any:
    return client.post(f"/topics/{topic}", json=body, headers={"Idempotency-Key": key})


def test_a_key_that_is_repeated_is_answered_with_the_first_receipt(
    ws: hw.Workspace, client: AppClient
) -> None:
    first, again = (keyed(client, "a", {"user": 1}) for _ in range(2))
    other = keyed(client, "b", {"user": 1})
    assert first.json() == again.json()
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert other.json() != first.json()
    assert len(rows(ws, "clicks")) == 2


def test_posts_that_are_written_one_by_one_are_not_written_again_when_one_is_refused(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.sql(
        "CREATE TOPIC spread (n BIGINT) WITH (partitions = 2)"
    )  # the log decides where rows go: a commit for each key
    append, calls = ws.log.append, itertools.count(1)

    def refuse_second(what: Append) -> Receipt:
        if next(calls) == 2:
            raise hw.UsageError("not this one")
        return append(what)

    keys = IdempotencyKeys(ws.log, ManualClock(), lambda: ws.topic(KEYS, SCHEMA).definition)
    monkeypatch.setattr(ws.log, "append", refuse_second)
    posts = [Post(b'{"n": 1}', Media.JSON, key_of(name, "", "spread", "", b"")) for name in "abc"]
    _Writing(ws.log, keys, keys, 1 << 20).write("spread", posts)
    assert all(post.answer is not None for post in posts)
    assert len(rows(ws, "spread")) == 3


def test_a_key_is_of_one_topic_and_one_body(client: AppClient) -> None:
    keyed(client, "a", {"user": 1})
    other = keyed(client, "a", {"user": 2})
    assert (other.status_code, other.json()["type"]) == (422, "urn:headwater:problem:idempotency-key-reused")
    assert keyed(client, "a", {"user": 1}, "parted").status_code == 200


def test_a_topic_that_is_made_anew_knows_no_keys(ws: hw.Workspace, client: AppClient) -> None:
    ws.sql("CREATE TOPIC brief (n BIGINT)")
    keyed(client, "a", {"n": 1}, "brief")
    ws.sql("DROP TOPIC brief; CREATE TOPIC brief (n BIGINT)")
    assert "idempotency-replayed" not in keyed(client, "a", {"n": 1}, "brief").headers
    assert keyed(client, "a", {"n": 1}, "brief").headers["idempotency-replayed"] == "true"
    assert len(rows(ws, "brief")) == 1


def test_what_was_refused_is_not_remembered(client: AppClient) -> None:
    assert keyed(client, "a", {"user": "x"}).status_code == 422
    assert keyed(client, "a", {"user": 1}).status_code == 200


@pytest.mark.parametrize("key", ["", "x" * 256])
def test_a_key_has_a_length(client: AppClient, key: str) -> None:
    assert keyed(client, key, {"user": 1}).status_code == 400


def test_an_empty_post_has_a_key_too(client: AppClient) -> None:
    first, again = (keyed(client, "a", []) for _ in range(2))
    assert (first.status_code, again.json()) == (200, first.json())


def test_a_key_is_known_after_a_restart_and_to_other_servers(ws: hw.Workspace, client: AppClient) -> None:
    first = keyed(client, "a", [{"user": i} for i in range(10)], "parted")
    for i in range(5):
        client.post("/topics/parted", json=[{"user": j} for j in range(i)])
    with client_of(ws) as other:
        again = keyed(other, "a", [{"user": i} for i in range(10)], "parted")
        refused = keyed(other, "a", [{"user": 1}], "parted")
        fresh = keyed(other, "b", [{"user": 1}], "parted")
    assert again.json() == first.json()
    assert refused.status_code == 422
    assert keyed(client, "b", [{"user": 1}], "parted").json() == fresh.json()


def test_a_key_is_forgotten_after_a_day(ws: hw.Workspace, client: AppClient, clock: ManualClock) -> None:
    keyed(client, "a", {"user": 1})
    clock.advance(timedelta(hours=23))
    assert "idempotency-replayed" in keyed(client, "a", {"user": 1}).headers
    clock.advance(timedelta(hours=2))
    assert "idempotency-replayed" not in keyed(client, "a", {"user": 1}).headers
    assert ws.topic(KEYS).definition.retention_us == 24 * 3_600_000_000


def test_the_topic_of_the_keys_is_closed_to_others(client: AppClient) -> None:
    assert client.post(f"/topics/{KEYS.upper()}", json={"key": ""}).status_code == 403


def test_room_is_given_back_however_a_post_ends(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    with client_of(ws) as client:
        for body in (b'{"user": 1}', b"{", b"[5]"):
            client.post("/topics/clicks", content=body, headers={"content-type": "application/json"})
        left = ingest_of(client)
        assert (left._bytes, left._posts, left._lanes) == (0, 0, {})


# --- bodies that mean harm -------------------------------------------------------------------------------------------

HOSTILE = pa.table(
    {
        "a": [1, 2, None],
        "s": ["x", "yy", None],
        "d": pa.array([Decimal("1.00")] * 3, pa.decimal128(10, 2)),
        "l": [["a"], [], None],
        "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int32())),
        "p": pa.array([{"x": 1, "y": "z"}, None, {"x": None, "y": "q"}]),
        "b": [b"1", b"", None],
    }
)


def test_no_damaged_arrow_stream_brings_the_server_down(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC t (a BIGINT, s STRING, d DECIMAL(10, 2), l ARRAY<STRING>, m MAP<STRING, INT>, p STRUCT<x: INT, y: STRING>, b BINARY)")  # fmt: skip
    topic, chance = ws.log.topic("t"), random.Random(7)
    reader = BodyReader(topic, 1 << 20)
    whole = arrow_bytes(HOSTILE)
    assert conform(reader.rows(whole, Media.ARROW), topic).num_rows == 3
    for _ in range(800):
        body = bytearray(whole)
        for _ in range(chance.choice([1, 1, 3])):
            at = chance.randrange(len(body))
            if chance.random() < 0.8:
                body[at] = chance.randrange(256)
            else:
                del body[at : at + chance.randrange(1, 40)]
        with contextlib.suppress(hw.HeadwaterError, Problem):
            conform(reader.rows(bytes(body), Media.ARROW), topic)


@pytest.mark.parametrize("nest", [lambda kind: kind, pa.list_, lambda kind: pa.struct([("x", kind)])])
def test_a_type_that_arrow_would_not_survive_is_refused(ws: hw.Workspace, nest: Any) -> None:
    """A decimal whose scale is in the millions: converting it ends the process."""
    ws.sql("CREATE TOPIC t (d DECIMAL(10, 2))")
    reader = BodyReader(ws.log.topic("t"), 1 << 20)
    empty = pa.schema([("d", nest(pa.decimal128(10, 12_582_914)))]).empty_table()
    with raises(hw.UsageError, topic="t", reason="arrow-stream"):
        reader.rows(arrow_bytes(empty), Media.ARROW)


def test_a_topic_whose_readers_are_too_far_behind_answers_429(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC held (id BIGINT) WITH (backlog_rows = 2, when_behind = 'refuse')")
    cursor = ws.topic("held").cursor("mailer", hold=True)
    with client_of(ws) as client:
        assert client.post("/topics/held", content=b'{"id": 1}\n{"id": 2}', headers=NDJSON).status_code == 200
        refused = client.post("/topics/held", content=b'{"id": 3}', headers=NDJSON)
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.headers["content-type"].startswith(PROBLEM)
        assert refused.json()["type"] == "urn:headwater:problem:backlog"
        for _ in cursor.read():
            cursor.commit()
        assert client.post("/topics/held", content=b'{"id": 3}', headers=NDJSON).status_code == 200
