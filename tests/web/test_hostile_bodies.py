"""Bodies that ask for more than they are: each is refused with a status of 4xx, and the server goes on in little memory."""

import itertools
import json
import re
import struct
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import headwater as hw
from headwater.testing import inspect_workspace
from headwater.web.idempotency_keys import SCHEMA, TOPIC, IdempotencyKeys
from headwater.web.ingest import Post, _Writing
from headwater.web.problems import Problem
from headwater.web.request_bodies import BodyReader, Media
from headwater.web.server_settings import ServerSettings
from tests.raising import raises
from tests.web import hostile
from tests.web.serving import ARROW, NDJSON, AppClient, ServerProcess, client_of
from tests.web.test_hooks import SECRET, SHOP, signed

JSON = {"content-type": "application/json"}
TYPED = """CREATE TOPIC typed (
  id BIGINT, price DECIMAL(10, 2), name STRING, raw BINARY, tags ARRAY<STRING>, place STRUCT<x: INT>, at TIMESTAMP)"""
GROWTH_KB_MAX = 100_000
"""More memory than this is no body of a few kilobytes worth."""


def peak_kb(server: ServerProcess) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("hostile") / "ws"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_SECRET", SECRET)
        patch.setenv("SHOP_OLD", "old")
        with hw.open(found) as ws:
            ws.sql(f"{TYPED}; {SHOP}")
    return found


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[ServerProcess]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOP_SECRET", SECRET)
        patch.setenv("SHOP_OLD", "old")
        with ServerProcess(place) as made:
            httpx.get(f"{made.url}/health", timeout=30)
            yield made


def refused(server: ServerProcess, path: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
    """The answer to a body that must be refused by a server that lives on."""
    before = peak_kb(server)
    answer = httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=60)
    assert 400 <= answer.status_code < 500, answer.text
    assert server.process.poll() is None
    assert peak_kb(server) - before < GROWTH_KB_MAX + len(body) // 250
    return answer


@pytest.mark.parametrize("name", hostile.ARROW_BOMBS)
def test_an_arrow_stream_that_claims_more_than_it_is_is_refused(server: ServerProcess, name: str) -> None:
    refused(server, "/topics/typed", hostile.ARROW_BOMBS[name](), ARROW)


@pytest.mark.parametrize("number", hostile.DECIMALS, ids=lambda number: f"{number:.14}")
@pytest.mark.parametrize("form", ["{}", '"{}"'], ids=["number", "text"])
def test_a_decimal_of_any_exponent_is_refused(server: ServerProcess, number: str, form: str) -> None:
    body = b'{"price": %s}' % form.format(number).encode()
    answer = refused(server, "/topics/typed", body, JSON)
    assert (answer.status_code, answer.json()["column"]) == (422, "price")
    if len(number) < 1_000:
        refused(server, "/topics/typed", body, NDJSON)


@pytest.mark.parametrize("number", hostile.DECIMALS[:3])
def test_a_decimal_of_any_exponent_in_a_webhook_is_refused(server: ServerProcess, number: str) -> None:
    for said in (number, f'"{number}"'):
        body = b'{"id": 1, "total": %s}' % said.encode()
        refused(server, "/hooks/shop", body, signed(body, "msg_1", int(time.time())))


def test_a_decimal_of_any_exponent_is_refused_by_the_log_itself(ws: hw.Workspace) -> None:
    ws.sql(TYPED)
    for number in ("1e-999999999", "1e999999999", "NaN", "Infinity", "1e-77"):
        with raises(hw.BadRowError, column="price"):
            ws.topic("typed").append([{"price": Decimal(number)}])
    ws.topic("typed").append([{"price": Decimal("0e-999999999")}, {"price": Decimal("1.50")}])
    (batch,) = ws.topic("typed").read()
    assert [str(row["price"]) for row in batch.to_pylist()] == ["0.00", "1.50"]


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"[" + b"{}," * 2_000_000 + b"{}]", JSON),
        (b"{}\n" * 2_000_000, NDJSON),
        (b"\n" * 20_000_000, NDJSON),
        (b'{"tags": [' + b"[]," * 12_000_000 + b"[]]}", JSON),
        (b"[" * 20_000_000, JSON),
    ],
    ids=["rows", "lines", "empty lines", "arrays", "an opening"],
)
def test_json_of_too_many_parts_is_refused(
    server: ServerProcess, body: bytes, headers: dict[str, str]
) -> None:
    before = peak_kb(server)
    answer = httpx.post(f"{server.url}/topics/typed", content=body, headers=headers, timeout=60)
    assert answer.status_code in (400, 413), answer.text
    assert peak_kb(server) - before < 400_000, "a fraction of what the objects would take"


# --- in the process itself -----------------------------------------------------------------------------------------


@pytest.fixture
def client(ws: hw.Workspace) -> Iterator[AppClient]:
    ws.sql(TYPED)
    ws.sql("CREATE TOPIC wide (" + ", ".join(f"c{n} DECIMAL(38, 2)" for n in range(60)) + ")")
    with client_of(ws, ServerSettings(body_rows_max=1_000, body_bytes_max=1 << 20)) as made:
        yield made


def test_the_number_of_rows_of_a_body_is_bounded(client: AppClient) -> None:
    for count, status in ((1_000, 200), (1_001, 413)):
        rows = [{"id": n} for n in range(count)]
        assert client.post("/topics/typed", json=rows).status_code == status
        lines = "\n\n".join(map(json.dumps, rows))
        assert client.post("/topics/typed", content=lines, headers=NDJSON).status_code == status
        body = hostile.stream(hostile.batch_of(id=pa.nulls(count)))
        answer = client.post("/topics/typed", content=body, headers=ARROW)
        assert answer.status_code == status, answer.text
    assert "1,000 rows" in answer.json()["detail"]


def test_columns_that_are_left_out_count_for_the_size_of_rows(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC wide (" + ", ".join(f"c{n} DECIMAL(38, 2)" for n in range(60)) + ")")
    reader = BodyReader(ws.log.topic("wide"), 1 << 10)
    body = hostile.stream(hostile.batch_of(c0=pa.nulls(100)))
    for given, media in ((body, Media.ARROW), (b"{}\n" * 100, Media.NDJSON)):
        with pytest.raises(Problem) as caught:
            reader.rows(given, media)
        assert caught.value.status == 413
    assert len(reader.rows(b"{}\n" * 5, Media.NDJSON)) == 5


def test_parts_that_are_not_null_count_for_the_size_of_rows(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE TOPIC strict (parts ARRAY<STRUCT<n: INT NOT NULL>>); CREATE TOPIC loose (parts ARRAY<STRUCT<n: INT>>)"
    )
    parts = pa.array([[{"n": 1}] * 5_000], pa.list_(pa.struct([("n", pa.int32())])))
    body = hostile.stream(hostile.batch_of(parts=parts))
    assert BodyReader(ws.log.topic("loose"), 1 << 16).rows(body, Media.ARROW).num_rows == 1
    with pytest.raises(Problem) as caught:
        BodyReader(ws.log.topic("strict"), 1 << 16).rows(body, Media.ARROW)
    assert caught.value.status == 413


def test_posts_of_streams_that_are_large_once_decoded_are_not_held_at_the_same_time(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty of them are a small group by the bytes that were sent."""
    ws.sql("CREATE TOPIC t (name STRING)")
    ws.topic(TOPIC, SCHEMA)
    keys = IdempotencyKeys(ws.log, inspect_workspace(ws).clock, lambda: ws.log.topic(TOPIC))
    monkeypatch.setattr("headwater.web.ingest.DECODED_BYTES_MAX", 4 << 20)
    body = hostile.stream(hostile.batch_of(name=pa.array(["x" * 1_000_000])), compression="zstd")
    posts = [Post(body, Media.ARROW, None) for _ in range(60)]
    before = pa.total_allocated_bytes()
    most = 0

    class Log:
        """The log, with a look at the memory before each append."""

        def __getattr__(self, name: str) -> Any:
            return getattr(ws.log, name)

        def append(self, append: Any) -> Any:
            nonlocal most
            most = max(most, pa.total_allocated_bytes() - before)
            return ws.log.append(append)

    _Writing(Log(), keys, keys, 64 << 20).write("t", posts)  # type: ignore[arg-type]
    assert all(post.answer is not None for post in posts)
    assert most < 30 << 20


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("",), "column 0 has no name"),
        (("id", "id"), "column 'id'"),
        (("nothing", "nothing"), "column 'nothing'"),
    ],
)
def test_a_column_without_a_name_of_its_own_is_named(
    client: AppClient, names: tuple[str, ...], said: str
) -> None:
    answer = client.post("/topics/typed", content=hostile.with_names(*names), headers=ARROW)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["detail"]


def test_a_table_with_a_column_twice_is_refused_by_the_log_itself(ws: hw.Workspace) -> None:
    ws.sql(TYPED)
    for names in (["nothing", "nothing"], ["id", "id"]):
        table = pa.table([pa.array([1]), pa.array([2])], names=names)
        with raises(hw.UsageError, column=names[0], reason="duplicate-column"):
            ws.topic("typed").append(table)


def test_a_large_value_of_another_type_is_told_by_its_size(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC numbers (n BIGINT)")
    lists = pa.array([[1, 2], [3] * 2_000_000], pa.list_(pa.int8()))
    with raises(hw.BadRowError, row=0, column="n", value=[1, 2]):
        ws.topic("numbers").append(pa.table({"n": lists}))
    with raises(hw.BadRowError, row=0, column="n") as large:
        ws.topic("numbers").append(pa.table({"n": lists[1:]}))
    assert large.value.value.startswith("a value of 2,000,00")


def test_a_dictionary_that_expands_beyond_a_column_is_refused_by_the_log_itself(ws: hw.Workspace) -> None:
    ws.sql(TYPED)
    values = pa.array(["x" * 1_000_000])
    table = pa.table({"name": pa.DictionaryArray.from_arrays(pa.array([0] * 2_200, pa.int16()), values)})
    with raises(hw.UsageError, column="name", reason="not-combinable"):
        ws.topic("typed").append(table)


def test_bytes_of_a_stream_that_are_changed_are_refused_or_read(client: AppClient) -> None:
    """Every byte of the metadata, with several values each."""
    body = hostile.stream(
        hostile.batch_of(
            id=pa.array([1, None]),
            name=pa.array(["a", None]).dictionary_encode(),
            tags=pa.array([["a"], None]),
        ),
        compression="lz4",
    )
    for place, change in itertools.product(range(0, len(body), 3), (0x01, 0x80, 0xFF)):
        mutated = bytearray(body)
        mutated[place] ^= change
        answer = client.post("/topics/typed", content=bytes(mutated), headers=ARROW)
        assert answer.status_code < 500, (place, change, answer.text)


def test_a_stream_that_goes_on_after_its_end_is_refused(client: AppClient) -> None:
    """Arrow would read the first part, and forget the other."""
    one = hostile.stream(hostile.batch_of(id=pa.array([1])))
    answer = client.post("/topics/typed", content=one + one, headers=ARROW)
    assert (answer.status_code, answer.json()["topic"]) == (400, "typed")
    assert client.post("/topics/typed", content=one[:-8], headers=ARROW).status_code == 200
    assert client.post("/topics/typed", content=one[:-9], headers=ARROW).status_code == 400
    old = struct.pack("<i", 8) + one[8:]
    assert client.post("/topics/typed", content=old, headers=ARROW).status_code == 400


def test_json_that_is_nested_deeply_is_refused(client: AppClient) -> None:
    for levels in (100, 900, 990, 1_000, 1_020, 5_000, 100_000):
        deep = b"[" * levels + b"]" * levels
        for column in (b"id", b"price", b"name", b"tags", b"nothing"):
            body = b'{"' + column + b'": ' + deep + b"}"
            answer = client.post("/topics/typed", content=body, headers=JSON)
            assert 400 <= answer.status_code < 500, (levels, column, answer.text)
