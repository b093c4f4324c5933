"""Every request has a bound on its time that holds, whatever it asks for; and what is bounded holds up nobody else."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import headwater as hw
from headwater.testing import inspect_workspace
from headwater.web.app import ROUTES
from headwater.web.console.console_api import ROUTES as CONSOLE_ROUTES
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.web.serving import PROBLEM, ServerProcess, client_of

ROWS = 100
SOON_S = 20.0
"""Far more than an answer takes on a busy machine, and far less than what is bounded would take."""
COUNT = {"query": "SELECT count(*) AS n FROM orders"}


def joined(count: int) -> dict[str, str]:
    joins = " ".join(f"JOIN orders a{i} ON a{i}.id = a{i - 1}.id" for i in range(1, count))
    return {"query": f"SELECT count(*) AS n FROM orders a0 {joins}"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT, who STRING)")
        ws.topic("orders").append([{"id": i, "who": "w" * 1_000} for i in range(ROWS)])
    return tmp_path / "ws"


def children(pid: int) -> list[int]:
    """The processes that a process has started and that run still."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found


def wait_until_gone(pids: list[int]) -> None:
    until = time.monotonic() + SOON_S
    for pid in pids:
        with suppress(ProcessLookupError):
            while time.monotonic() < until:
                os.kill(pid, 0)
            raise AssertionError(f"process {pid} is left behind")


def test_queries_of_200_joins_are_ended_in_time_and_others_are_answered_meanwhile(place: Path) -> None:
    command = ("serve", "--port", "0", "--query-timeout", "4 seconds")
    with (
        ServerProcess(place, command=command) as server,
        httpx.Client(base_url=server.url, timeout=60) as web,
    ):
        web.post("/query", json=COUNT)
        ended: list[tuple[int, str, float]] = []

        def ask() -> None:
            began = time.monotonic()
            answer = httpx.post(f"{server.url}/query", json=joined(200), timeout=120)
            ended.append((answer.status_code, answer.json()["type"], time.monotonic() - began))

        asking = [threading.Thread(target=ask) for _ in range(10)]
        for one in asking:
            one.start()
        while not children(server.process.pid):
            assert not ended, "a query of 200 joins was answered by the server itself"
        took: list[float] = []
        while len(ended) < len(asking):
            began = time.monotonic()
            answer = web.post("/query", json=COUNT)
            took.append(time.monotonic() - began)
            assert answer.json()["rows"] == [{"n": ROWS}]
        for one in asking:
            one.join()
        assert {(status, kind) for status, kind, _ in ended} == {
            (504, "urn:headwater:problem:query-too-slow")
        }
        assert max(seconds for _, _, seconds in ended) < SOON_S
        assert len(took) >= 4, "others are answered while the ten are not"
        assert sorted(took)[len(took) // 2] < 2.0
        assert web.post("/query", json=joined(3)).json()["rows"] == [{"n": ROWS}]
        heavy = web.post("/query", json={"query": "SELECT max(replace(who, 'w', 'v')) AS v FROM orders"})
        assert heavy.json()["rows"] == [{"v": "v" * 1_000}], "by a process that is new"
        left = children(server.process.pid)
        assert left
        assert server.stop()[0] == 0
        wait_until_gone(left)


def test_no_process_is_left_behind_by_a_server_that_is_killed(place: Path) -> None:
    with ServerProcess(place) as server:

        def ask() -> None:
            with suppress(httpx.HTTPError):
                httpx.post(f"{server.url}/query", json=joined(200), timeout=120)

        asking = threading.Thread(target=ask)
        asking.start()
        while not (found := children(server.process.pid)):
            pass
        os.kill(server.process.pid, signal.SIGKILL)
        asking.join()
    wait_until_gone(found)


def test_a_query_that_runs_long_gives_its_thread_to_others(place: Path) -> None:
    crossed = "SELECT sum(a.id * b.id * c.id * d.id * e.id) AS s FROM orders a, orders b, orders c, orders d, orders e"
    settings = ServerSettings(port=0, query_s=6.0, query_threads=1, light_query_s=0.2)
    with hw.open(place) as ws, serve_in_thread(ws, settings) as url:
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(httpx.post(f"{url}query", json={"query": crossed}, timeout=60).status_code)

        asking = threading.Thread(target=ask)
        asking.start()
        answered = 0
        while not statuses:
            assert httpx.post(f"{url}query", json=COUNT, timeout=60).json()["rows"] == [{"n": ROWS}]
            answered += not statuses
        asking.join()
    assert statuses == [504]
    assert answered > 0


def test_an_unclosed_comment_full_of_quotes_is_refused_at_once(ws: hw.Workspace) -> None:
    with client_of(ws) as client:
        began = time.monotonic()
        answer = client.post("/query", json={"query": "SELECT 1 /*" + "'" * 45_000})
        assert answer.status_code == 400
        assert time.monotonic() - began < SOON_S


# --- routes ----------------------------------------------------------------------------------------------------------

STATIC = ("/openapi.json", "/docs", "/", "/console/{file}")
STREAMED = ("/console/api/live",)
"""Their answer begins at once; what is looked for is an event of it."""


def places() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Every route that reads or writes something, with what it takes."""
    names = {"topic": "orders", "view": "v", "sink": "s", "hook": "h", "name": "orders", "tick": "1"}
    for method, path, _ in (*ROUTES, *CONSOLE_ROUTES):
        if path in (*STATIC, *STREAMED):
            continue
        options: dict[str, Any] = {}
        if path == "/query":
            options = {"json": COUNT}
        elif path == "/console/api/dead" and method == "POST":
            options = {"json": {"action": "drop", "letter": "x"}}
        elif method == "POST":
            options = {"json": {"id": 1}}
        yield method, path.format(**names), options


def test_every_route_answers_in_time_also_when_the_workspace_does_not(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.sql("CREATE TOPIC orders (id BIGINT)")
    stuck, there = threading.Event(), threading.get_ident()

    def hang(real: Any) -> Any:
        def wait(*args: Any, **options: Any) -> Any:
            if threading.get_ident() != there:
                stuck.wait()
            return real(*args, **options)

        return wait

    settings = ServerSettings(query_s=0.3, write_s=0.3)
    with client_of(ws, settings) as client:
        for name in ("topic", "topics", "entries", "partitions", "ends", "sequence", "append"):
            monkeypatch.setattr(ws.log, name, hang(getattr(ws.log, name)))
        for name in ("ticks", "latest", "manifest"):
            monkeypatch.setattr(
                inspect_workspace(ws).store, name, hang(getattr(inspect_workspace(ws).store, name))
            )
        try:
            for method, path, options in places():
                began = time.monotonic()
                answer = client.request(method, path, **options)
                assert time.monotonic() - began < SOON_S, path
                if path.startswith("/health"):  # a liveness check answers; what is not known is not ready
                    assert answer.status_code == (503 if path.endswith("/ready") else 200)
                    assert not answer.json()["ready"]
                    continue
                assert answer.headers["content-type"] == PROBLEM, (path, answer.text)
                assert answer.status_code == 504, (method, path, answer.text)
                assert answer.json()["seconds_max"] < SOON_S
            for path in STATIC:
                assert client.get(path.format(file="console.js")).status_code == 200
        finally:
            stuck.set()
            monkeypatch.undo()
        until = time.monotonic() + SOON_S
        while client.get("/topics/orders").status_code != 200:
            assert time.monotonic() < until, "threads that nobody waited for are used again"


# --- answers ---------------------------------------------------------------------------------------------------------


def asking(url: str, path: str) -> socket.socket:
    """A client that asks, and reads nothing."""
    at = httpx.URL(url)
    assert at.port is not None
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.settimeout(SOON_S)
    client.connect((at.host, at.port))
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    return client


@pytest.fixture
def large(tmp_path: Path) -> Iterator[hw.Workspace]:
    """A workspace with a topic of 20 MB."""
    with hw.open(tmp_path / "large", durability="os") as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT, who STRING)")
        ws.topic("orders").append([{"id": i, "who": "w" * 10_000} for i in range(2_000)])
        yield ws


def test_what_clients_have_not_taken_in_is_bounded_together(large: hw.Workspace) -> None:
    path = "topics/orders?limit=2000"
    with serve_in_thread(large, ServerSettings(port=0, answers_bytes_max=30 << 20)) as url:
        until = time.monotonic() + SOON_S
        with asking(url, f"/{path}") as slow:
            assert slow.recv(12) == b"HTTP/1.1 200"
            while (refused := httpx.get(f"{url}{path}", timeout=60)).status_code != 429:
                assert time.monotonic() < until, "no room is kept for what the slow client was promised"
            assert refused.headers["retry-after"] == "1"
            assert httpx.get(f"{url}topics/orders?limit=10").status_code == 200, "small answers need no room"
        while httpx.get(f"{url}{path}", timeout=60).status_code != 200:
            assert time.monotonic() < until, "the room of a client that is gone is not given back"


def test_a_client_that_takes_in_nothing_is_cut_off(large: hw.Workspace) -> None:
    with serve_in_thread(large, ServerSettings(port=0, stall_s=0.5)) as url:
        for idle_s in (
            1.0,
            2.0,
            4.0,
            8.0,
        ):  # longer on a machine that is busy: nothing is to be seen before the client reads
            with asking(url, "/topics/orders?limit=2000") as slow:
                slow.recv(1, socket.MSG_PEEK)
                threading.Event().wait(idle_s)
                if taken(slow) < 20_000_000:
                    return
    raise AssertionError("the answer was kept for a client that did not read")


def taken(client: socket.socket) -> int:
    """How many bytes a client still gets."""
    read = 0
    with suppress(ConnectionResetError):
        while piece := client.recv(1 << 20):
            read += len(piece)
    return read


def test_a_client_that_takes_too_long_for_an_answer_is_cut_off(large: hw.Workspace) -> None:
    with serve_in_thread(large, ServerSettings(port=0, answer_s=0.5)) as url:
        with asking(url, "/topics/orders?limit=2000") as slow:
            read, began = 0, time.monotonic()
            with suppress(ConnectionResetError):
                while piece := slow.recv(2_048):
                    read += len(piece)
                    threading.Event().wait(0.005)  # a slow one
            assert time.monotonic() - began < SOON_S
            assert read < 20_000_000
