"""A workspace that ever had a token stays closed: with none left nobody comes in, until a token is made or the server is told to."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from headwater.web import tokens
from headwater.web.access_control import HOOKS, OPEN_PATHS
from headwater.web.app import ROUTES
from headwater.web.console.console_api import ROUTES as CONSOLE_ROUTES
from headwater.web.console.console_files import open_paths
from headwater.web.server_settings import ServerSettings
from tests.web.serving import PROBLEM, ServerProcess, client_of

NAMES = {"topic": "clicks", "view": "v", "sink": "s", "hook": "h", "name": "clicks", "tick": "1"}


def places() -> Iterator[tuple[str, str]]:
    """Every route, with names in the places of its parameters; and every file of the console."""
    for method, path, _ in (*ROUTES, *CONSOLE_ROUTES):
        yield method, path.format(**NAMES, file="console.js")
    for path in open_paths():
        yield "GET", path


def run(place: Path, *arguments: str) -> Any:
    return CliRunner().invoke(cli, ["-w", str(place), *arguments])


def next_line(server: ServerProcess) -> str:
    """What the server says after where it serves."""
    assert server.process.stderr is not None
    return server.process.stderr.readline()


def check_closed(client: Any) -> None:
    for method, path in places():
        answer = client.request(method, path)
        if path in OPEN_PATHS:
            assert answer.status_code == 200, path
        elif path.startswith(HOOKS):
            assert answer.status_code != 200, path
            assert answer.json()["type"] != "urn:headwater:problem:no-token-left"
        else:
            assert (answer.status_code, answer.headers["content-type"]) == (401, PROBLEM), (method, path)
            assert answer.json()["type"] == "urn:headwater:problem:no-token-left"
            assert "--insecure" in answer.json()["hint"]


def test_with_no_token_left_every_route_but_health_and_webhooks_is_closed(ws: hw.Workspace) -> None:
    ws.sql("CREATE TOPIC clicks (user BIGINT)")
    secret = tokens.create(ws.log, "last", ["read", "write"])
    with client_of(ws) as client:
        assert client.get("/docs", headers={"authorization": f"Bearer {secret}"}).status_code == 200
        assert client.get("/").status_code == 200, "the page that asks for a token"
        tokens.revoke(ws.log, "last")
        client.app._here.guests.refresh()
        check_closed(client)
        refused = client.get("/docs", headers={"authorization": f"Bearer {secret}"})
        assert refused.status_code == 401
    with client_of(ws) as client:  # another server
        check_closed(client)
        again = tokens.create(ws.log, "again", ["read"])
        client.app._here.guests.refresh()
        assert client.get("/docs", headers={"authorization": f"Bearer {again}"}).status_code == 200
        assert client.get("/docs").json()["type"] == "urn:headwater:problem:no-token"


def test_a_workspace_that_never_had_a_token_is_open(ws: hw.Workspace) -> None:
    with client_of(ws) as client:
        assert [client.get(path).status_code for path in ("/", "/docs", "/metrics")] == [200] * 3


def test_insecure_opens_a_closed_workspace_until_there_is_a_token(ws: hw.Workspace) -> None:
    tokens.create(ws.log, "last", ["read"])
    tokens.revoke(ws.log, "last")
    with client_of(ws, ServerSettings(insecure=True)) as client:
        assert client.get("/docs").status_code == 200
        tokens.create(ws.log, "new", ["read"])
        client.app._here.guests.refresh()
        assert client.get("/docs").status_code == 401


def test_tokens_of_a_version_that_did_not_remember_them_close_the_workspace_too(ws: hw.Workspace) -> None:
    def make(name: str) -> None:
        ws.log.put_entry(tokens.TOKEN, name, {"sha256": "00", "scopes": ["read"]}, expect=None)

    make("seen by a server")
    with client_of(ws) as client:
        ws.log.drop_entry(tokens.TOKEN, "seen by a server")
        client.app._here.guests.refresh()
        check_closed(client)
    with client_of(ws) as client:
        check_closed(client)
    ws.log.drop_entry(tokens.CLOSED, next(iter(ws.log.entries(tokens.CLOSED))))
    make("revoked while no server runs")
    tokens.revoke(ws.log, "revoked while no server runs")
    with client_of(ws) as client:
        check_closed(client)


def test_a_running_server_closes_when_another_process_revokes_the_last_token(tmp_path: Path) -> None:
    place = tmp_path / "ws"
    hw.open(place).close()
    secret = run(place, "token", "create", "last", "--read").output.strip()
    with ServerProcess(place) as server, httpx.Client(base_url=server.url, timeout=30) as web:
        header = {"authorization": f"Bearer {secret}"}
        assert web.get("/docs", headers=header).status_code == 200
        revoked = run(place, "token", "revoke", "last")
        assert "all tokens are revoked" in revoked.output
        assert "token create" in revoked.output
        while web.get("/docs", headers=header).status_code == 200:
            pass  # the server looks once a second
        check_closed(web)
    with ServerProcess(place) as server, httpx.Client(base_url=server.url, timeout=30) as web:
        check_closed(web)
        assert "all tokens of this workspace were revoked" in next_line(server)
    assert "all tokens are revoked" in run(place, "token", "list").output
    command = ("serve", "--port", "0", "--insecure")
    with ServerProcess(place, command=command) as server, httpx.Client(base_url=server.url) as web:
        assert web.get("/docs").status_code == 200
        assert "warning: --insecure" in next_line(server)


@pytest.mark.parametrize("path", ["/topics/clicks?follow", "/console/api/topics/clicks/tail"])
def test_a_stream_ends_when_its_token_is_revoked(tmp_path: Path, path: str) -> None:
    place = tmp_path / "ws"
    with hw.open(place) as ws:
        ws.sql("CREATE TOPIC clicks (user BIGINT)")
        ws.topic("clicks").append([{"user": 1}])
        secret = tokens.create(ws.log, "last", ["read"])
        header = {"authorization": f"Bearer {secret}", "accept": "text/event-stream"}
        with ServerProcess(place) as server, httpx.Client(base_url=server.url, timeout=30) as web:
            with web.stream("GET", path, headers=header) as events:
                lines = events.iter_lines()
                assert next(lines).startswith("retry: ")
                tokens.revoke(ws.log, "last")
                while web.get("/docs", headers=header).status_code != 401:
                    pass
                stop = threading.Event()

                def write() -> None:
                    while not stop.is_set():
                        ws.topic("clicks").append([{"user": 7_777_777}])
                        stop.wait(0.1)

                writing = threading.Thread(target=write)
                writing.start()
                try:
                    rest = list(lines)
                finally:
                    stop.set()
                    writing.join()
        assert "event: end" in rest
        assert not any("7777777" in line for line in rest)
