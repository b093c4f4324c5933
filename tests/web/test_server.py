"""The server as a process: it starts, refuses to be open by accident, streams to many, stops in order and survives kill -9."""

import contextlib
import itertools
import os
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.commands.serve import settings_of
from headwater.cli.program import cli
from headwater.web.server import serve_in_thread
from headwater.web.server_settings import ServerSettings
from tests.web.serving import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


@pytest.fixture
def place(tmp_path: Path) -> Path:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql("CREATE TOPIC clicks (id BIGINT, who STRING) WITH (partitions = 2, partition_by = 'id')")
    return tmp_path / "ws"


def run(place: Path, *arguments: str) -> Any:
    return CliRunner().invoke(cli, ["-w", str(place), *arguments])


# --- starting --------------------------------------------------------------------------------------------------------


def test_it_does_not_listen_to_others_without_tokens(place: Path) -> None:
    refused = run(place, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.exit_code == 2
    assert "the workspace has no tokens" in refused.output
    assert "headwater token create" in refused.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--certificate", str(HERE / "localhost.crt")], "both --certificate and --key"),
        (
            ["--certificate", str(HERE / "localhost.key"), "--key", str(HERE / "localhost.key")],
            "cannot be used",
        ),
        (["--allow-origin", "shop.example"], "is not an origin"),
        (["--allow-origin", "https://shop.example/"], "is not an origin"),
        (["--body-limit", "much"], "is not a size"),
        (["--query-timeout", "long"], "long"),
        (["--body-timeout", "0 seconds"], "a timeout must be positive"),
        (["--connections", "0"], "--connections"),
        (["--host", "203.0.113.7", "--insecure"], "cannot listen"),
    ],
)
def test_what_cannot_be_served_is_said_at_once(place: Path, options: list[str], said: str) -> None:
    refused = run(place, "serve", "--port", "0", *options)
    assert refused.exit_code == 2, refused.output
    assert said in refused.output


def test_limits_are_said_in_sizes_and_spans() -> None:
    said = {"body_limit": "1 MB", "body_timeout": "5 minutes", "query_timeout": "500 ms", "connections": None}
    made = settings_of({"allow_origins": ()}, said)
    assert (made.body_bytes_max, made.body_s, made.query_s) == (1 << 20, 300.0, 0.5)
    assert made.connections_max == ServerSettings().connections_max


def test_a_port_that_is_taken_is_said(place: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refused = run(place, "serve", "--port", str(taken.getsockname()[1]))
    assert (refused.exit_code, "--port 0" in refused.output) == (2, True)


def test_tokens_are_made_listed_and_revoked(place: Path) -> None:
    assert run(place, "token", "list").output.startswith("no tokens")
    made = run(place, "token", "create", "loader", "--read", "--write").output.strip()
    assert made.startswith("hw_")
    assert orjson.loads(run(place, "token", "create", "page", "--json").output)["scopes"] == ["read"]
    listed = orjson.loads(run(place, "token", "list", "--json").output)
    assert [(t["token"], t["scopes"]) for t in listed] == [("loader", "read, write"), ("page", "read")]
    assert made not in run(place, "token", "list").output
    assert run(place, "token", "revoke", "page").exit_code == 0
    assert run(place, "token", "revoke", "page").exit_code == 2
    with serve_in_thread(hw.open(place), ServerSettings(host="127.0.0.1", port=0)) as url:
        assert httpx.get(f"{url}docs").status_code == 401
        assert httpx.get(f"{url}docs", headers={"authorization": f"Bearer {made}"}).status_code == 200
        assert httpx.get(f"{url}health").status_code == 200


def test_with_a_certificate_it_speaks_tls(place: Path) -> None:
    trusted = ssl.create_default_context(cafile=str(HERE / "localhost.crt"))
    settings = ServerSettings(
        port=0, certificate=str(HERE / "localhost.crt"), key=str(HERE / "localhost.key")
    )
    with hw.open(place) as ws, serve_in_thread(ws, settings) as url, httpx.Client(verify=trusted) as client:
        assert url.startswith("https://127.0.0.1:")
        own = url.rstrip("/")
        assert client.post(f"{own}/topics/clicks", json={"id": 1}, headers={"origin": own}).status_code == 200


# --- streams ---------------------------------------------------------------------------------------------------------


def lines(connection: socket.socket) -> Iterator[str]:
    """The lines of an answer in chunks, without what the chunks are framed by."""
    rest = b""
    while piece := connection.recv(65_536):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line.decode().strip() for line in whole)


def opened(url: str, path: str, *headers: str) -> socket.socket:
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.sendall("\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode())
    return connection


def test_two_hundred_idle_streams_need_no_threads_and_all_hear_what_comes(place: Path) -> None:
    with (
        hw.open(place) as ws,
        serve_in_thread(ws, ServerSettings(port=0)) as url,
        contextlib.ExitStack() as stack,
    ):
        begin = threading.active_count()  # other tests of this process have left some
        made = [
            stack.enter_context(opened(url, "/topics/clicks?follow", "Accept: text/event-stream"))
            for _ in range(200)
        ]
        heard = [lines(connection) for connection in made]
        for one in heard:
            assert next(line for line in one if line.startswith("retry"))
        before = threading.active_count()
        assert httpx.get(f"{url}health").status_code == 200
        assert threading.active_count() <= before + 1 < begin + 40
        ws.topic("clicks").append([{"id": 7, "who": "<&>"}])
        for one in heard:
            data = next(line for line in one if line.startswith("data: "))
            assert orjson.loads(data[6:])["rows"][0]["who"] == "<&>"


def test_a_topic_is_followed_and_resumed_where_it_was_left(place: Path) -> None:
    with hw.open(place) as ws, serve_in_thread(ws, ServerSettings(port=0, keep_alive_s=2)) as url:
        topic = ws.topic("clicks")
        topic.append([{"id": i} for i in range(10)])
        with opened(url, "/topics/clicks?follow&from=earliest", "Accept: text/event-stream") as connection:
            said = lines(connection)
            found: list[int] = []
            place_seen = ""
            for line in said:
                if line.startswith("id: "):
                    place_seen = line[4:]
                if line.startswith("data: "):
                    found += [row["id"] for row in orjson.loads(line[6:])["rows"]]
                    if len(found) >= 10:
                        break
            assert next(line for line in said if line.startswith(": keep-alive"))
        topic.append([{"id": i} for i in range(10, 15)])
        with opened(url, "/topics/clicks?follow&limit=5", f"Last-Event-ID: {place_seen}") as connection:
            for line in lines(connection):
                if line.startswith("data: "):
                    document = orjson.loads(line[6:])
                    found += [row["id"] for row in document.get("rows", [])]
                    if "reason" in document:
                        break
        assert sorted(found) == list(range(15))
        plain = httpx.get(
            f"{url}topics/clicks?follow&from=earliest&limit=15&columns=id",
            headers={"accept": "application/x-ndjson"},
        )
        assert sorted(orjson.loads(line)["id"] for line in plain.text.splitlines()) == list(range(15))


def test_a_stream_ends_when_its_topic_does(place: Path) -> None:
    with hw.open(place) as ws, serve_in_thread(ws, ServerSettings(port=0)) as url:
        with opened(url, "/topics/clicks?follow", "Accept: text/event-stream") as connection:
            said = lines(connection)
            assert next(line for line in said if line.startswith("retry"))
            ws.sql("DROP TOPIC clicks")
            assert next(line for line in said if line == "event: error")
            problem = orjson.loads(next(line for line in said if line.startswith("data: "))[6:])
        assert problem["status"] == 404


def test_streams_are_bounded(place: Path) -> None:
    with hw.open(place) as ws, serve_in_thread(ws, ServerSettings(port=0, streams_max=1)) as url:
        with opened(url, "/topics/clicks?follow") as connection:
            assert next(line for line in lines(connection) if line.startswith("retry"))
            assert httpx.get(f"{url}topics/clicks?follow").status_code == 429


# --- stopping --------------------------------------------------------------------------------------------------------


def test_asked_to_stop_it_tells_streams_and_ends(place: Path) -> None:
    with ServerProcess(place) as server:
        with opened(server.url, "/topics/clicks?follow", "Accept: text/event-stream") as connection:
            said = lines(connection)
            assert next(line for line in said if line.startswith("retry"))
            server.process.send_signal(signal.SIGINT)
            assert next(line for line in said if line == "event: end")
        status, output = server.stop()
    assert (status, output.strip().endswith("stopped")) == (0, True)
    assert "Traceback" not in output


# --- kill -9 ---------------------------------------------------------------------------------------------------------


def test_killed_at_any_moment_nothing_acknowledged_is_lost_and_keys_make_retries_safe(place: Path) -> None:
    acknowledged: set[int] = set()
    sent: set[int] = set()
    numbers = itertools.count()

    def post(client: httpx.Client, number: int) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            answer = client.post(
                "/topics/clicks", json={"id": number}, headers={"Idempotency-Key": f"post {number}"}
            )
            if answer.status_code == 200:
                acknowledged.add(number)
                return True
        return False

    def load(url: str) -> None:
        with httpx.Client(base_url=url, timeout=20) as client:
            while True:
                number = next(numbers)
                sent.add(number)
                if not post(client, number):
                    return

    for goal in (40, 90):
        with ServerProcess(place) as server:
            threads = [threading.Thread(target=load, args=(server.url,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            while len(acknowledged) < goal:
                threading.Event().wait(0.005)
            os.kill(server.process.pid, signal.SIGKILL)
            for thread in threads:
                thread.join(60)
    with ServerProcess(place) as server, httpx.Client(base_url=server.url, timeout=20) as client:
        assert all(post(client, number) for number in sorted(sent - acknowledged))
        assert post(client, min(acknowledged))
    with hw.open(place) as ws:
        found = [row["id"] for batch in ws.topic("clicks").read() for row in batch.to_pylist()]
        assert sorted(found) == sorted(sent), "each is there once"
        assert ws.verify().ok


# --- beside an engine ------------------------------------------------------------------------------------------------


def test_the_port_belongs_to_the_console(place: Path) -> None:
    assert run(place, "run", "--port", "0").exit_code == 2
    assert run(place, "run", "--once", "--console").exit_code == 2


@pytest.mark.long
def test_an_engine_serves_beside_itself(place: Path, spark: "SparkSession") -> None:
    """What a server beside an engine does is tested in `test_views`; this is the command, whose Spark takes long to start."""
    with hw.open(place, spark=spark) as ws:
        ws.sql("CREATE MATERIALIZED VIEW counts AS SELECT who, count(*) AS n FROM clicks GROUP BY who")
    with ServerProcess(place, command=("run", "--console", "--port", "0")) as server:
        with httpx.Client(base_url=server.url, timeout=120) as client:
            receipt = client.post("/topics/clicks", json={"id": 1, "who": "me"}).json()["receipt"]
            while (answer := client.get("/views/counts", params={"after": receipt})).status_code == 503:
                pass  # Spark starts
            assert answer.json()["rows"] == [{"who": "me", "n": 1}]
        status, said = server.stop()
    assert status == 0, said
