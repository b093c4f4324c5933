"""Clients that are slow, many, or ask for too much: each is told so, and holds nothing for ever."""

from __future__ import annotations

import base64
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import httpx
import orjson
import pytest

import headwater as hw
from headwater.web.request_limits import connections_max
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.web.serving import PROBLEM

ROWS = 3_000
JOINED = "SELECT sum(a.id * b.id * c.id) AS s FROM orders a, orders b, orders c"
"""27 billion rows: nobody waits for that."""


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os") as made:
        made.sql("CREATE TOPIC orders (id BIGINT)")
        made.topic("orders").append([{"id": i} for i in range(ROWS)])
        yield made


@contextmanager
def served(ws: hw.Workspace, **settings: float) -> Iterator[tuple[str, int]]:
    with serve_in_thread(ws, ServerSettings(port=0, **settings)) as where:  # type: ignore[arg-type]
        url = httpx.URL(where)
        assert url.port is not None
        yield url.host, url.port


@contextmanager
def connected(at: tuple[str, int]) -> Iterator[socket.socket]:
    with closing(socket.create_connection(at, timeout=30)) as client:
        yield client


def answer_of(client: socket.socket) -> httpx.Response:
    """What the server says before it hangs up."""
    said = b""
    with suppress(ConnectionResetError):  # it does not wait for what is still on its way
        for piece in iter(lambda: client.recv(65_536), b""):
            said += piece
    head, _, body = said.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


def check_problem(answer: httpx.Response, status: int, kind: str) -> dict[str, object]:
    assert answer.status_code == status
    assert answer.headers["content-type"] == PROBLEM
    problem: dict[str, object] = answer.json()
    assert problem["type"] == f"urn:headwater:problem:{kind}"
    assert problem["hint"]
    return problem


@pytest.mark.parametrize("piece_bytes", [1_000, 70_000, 300_000])
def test_a_body_that_comes_in_pieces_is_what_was_sent(ws: hw.Workspace, piece_bytes: int) -> None:
    ids = list(range(1_000_000, 1_060_000))
    body = orjson.dumps([{"id": number} for number in ids])
    with served(ws) as at, connected(at) as client:
        client.sendall(
            "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(body), piece_bytes):
            client.sendall(body[start : start + piece_bytes])
        assert answer_of(client).status_code == 200
    stored = [number for batch in ws.topic("orders").read() for number in batch.column("id").to_pylist()]
    assert stored[ROWS:] == ids


@pytest.mark.parametrize("path", ["/topics/orders", "/query", "/console/api/dead", "/hooks/shop"])
def test_a_body_that_comes_too_slowly_is_ended(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "whsec_" + base64.b64encode(bytes(24)).decode())
    ws.sql("CREATE SOURCE shop FROM WEBHOOK WITH (secret = env('SHOP_SECRET'), columns = 'id BIGINT')")
    with served(ws, body_s=0.2) as at, connected(at) as client:
        client.sendall(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            'Content-Length: 1000\r\n\r\n[{"id": '.encode()
        )
        stop = threading.Event()

        def drip() -> None:
            """A byte now and then, which is a sign of life and no more."""
            while not stop.wait(0.02):
                try:
                    client.sendall(b"1")
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            problem = check_problem(answer_of(client), 408, "body-too-slow")
        finally:
            stop.set()
            dripping.join()
        assert "--body-timeout" in str(problem["hint"])
        assert httpx.get(f"http://{at[0]}:{at[1]}/health").status_code == 200
    assert sum(batch.num_rows for batch in ws.topic("orders").read("earliest")) == ROWS, (
        "nothing of it is there"
    )


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: localh"])
def test_a_head_that_does_not_come_is_not_waited_for(ws: hw.Workspace, sent: bytes) -> None:
    with served(ws, head_s=0.2) as at, connected(at) as client:
        client.sendall(sent)
        check_problem(answer_of(client), 408, "head-too-slow")


def test_nor_is_the_next_one_on_a_connection(ws: hw.Workspace) -> None:
    with served(ws, head_s=0.2) as at, connected(at) as client:
        for _ in range(2):
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200 ")
        client.sendall(b"\r\n")  # no request, and no silence either
        check_problem(answer_of(client), 408, "head-too-slow")


def test_connections_are_bounded(ws: hw.Workspace) -> None:
    with served(ws, connections_max=3) as at, ExitStack() as open_ones:
        kept = [open_ones.enter_context(connected(at)) for _ in range(3)]
        for one in kept:
            one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(65_536).startswith(b"HTTP/1.1 200 ")
        with connected(at) as fourth:
            answer = answer_of(fourth)
        check_problem(answer, 503, "too-many-connections")
        assert answer.headers["retry-after"] == "1"
        kept[0].close()
        for _ in range(500):  # it is seen to be gone in a moment
            try:
                if httpx.get(f"http://{at[0]}:{at[1]}/health").status_code == 200:
                    break
            except httpx.RemoteProtocolError:
                pass
            threading.Event().wait(0.02)
        else:
            raise AssertionError("the place that became free is not given to anybody")
        kept[1].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept[1].recv(65_536).startswith(b"HTTP/1.1 200 "), "those that are there are served"


def test_connections_leave_files_to_the_workspace() -> None:
    assert connections_max(ServerSettings(connections_max=10)) == 10
    assert connections_max(ServerSettings(connections_max=1 << 40)) < 1 << 40


def test_a_query_that_takes_too_long_is_broken_off_and_its_thread_is_free_again(ws: hw.Workspace) -> None:
    with served(ws, query_s=0.3, query_threads=1, queries_waiting_max=1) as at:
        with httpx.Client(base_url=f"http://{at[0]}:{at[1]}", timeout=30) as web:
            problem = check_problem(web.post("/query", json={"query": JOINED}), 504, "query-too-slow")
            assert problem["seconds_max"] == 0.3
            assert "--query-timeout" in str(problem["hint"])
            answer = web.post("/query", json={"query": "SELECT count(*) AS n FROM orders"})
            assert answer.json()["rows"] == [{"n": ROWS}], "by the one thread that there is"


def test_queries_at_once_are_bounded(ws: hw.Workspace) -> None:
    with served(ws, query_s=1.0, query_threads=1, queries_waiting_max=1) as at:
        answers: list[httpx.Response] = []

        def ask() -> None:
            answers.append(httpx.post(f"http://{at[0]}:{at[1]}/query", json={"query": JOINED}, timeout=30))

        asking = [threading.Thread(target=ask) for _ in range(4)]
        for one in asking:
            one.start()
        for one in asking:
            one.join()
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [429, 429, 429, 504]
        assert all(a.headers["retry-after"] == "1" for a in answers if a.status_code == 429)


def test_of_a_result_without_end_only_what_is_shown_is_computed(ws: hw.Workspace) -> None:
    query = "SELECT a.id + b.id + c.id AS n FROM orders a, orders b, orders c"
    with served(ws) as at:
        answer = httpx.post(
            f"http://{at[0]}:{at[1]}/query", json={"query": query, "limit": 20_000}, timeout=60
        )
    assert answer.status_code == 200
    assert (len(answer.json()["rows"]), answer.json()["more"]) == (20_000, True)
