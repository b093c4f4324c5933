"""Threads beside an engine report what they meet, and clear it when they succeed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connectors.manage.status_board import PublishedStatus, StatusBoard
from headwater.core.clock import SystemClock
from headwater.core.storage import Storage
from headwater.events.reactions import EventFeed
from headwater.sources.statsd import udp_listener
from headwater.testing import inspect_workspace
from headwater.web.commit_waiters import Watch
from tests.events.accounts import Opened, accounts


def until(reached: Callable[[], bool]) -> None:
    deadline = SystemClock().steady_ms() + 20_000
    while not reached():
        assert SystemClock().steady_ms() < deadline


def names(ws: hw.Workspace) -> list[str]:
    return [fault.name for fault in ws.log.faults.current() if fault.kind == "background"]


class Defect(Exception):
    """An error of no kind that Headwater knows."""


class Switch:
    """A piece of work that fails until it is told otherwise."""

    def __init__(self) -> None:
        self.fails = True

    def __call__(self, *_: Any) -> Any:
        if self.fails:
            raise Defect("a defect")


@pytest.mark.parametrize(
    ("work", "name"), [("evaluate", "watching of alerts"), ("notify", "notifying of alerts")]
)
def test_alerts_that_cannot_be_evaluated_or_sent_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: str, name: str
) -> None:
    with hw.open(tmp_path / "ws") as ws:
        ws.sql("CREATE TOPIC numbers (n BIGINT)")
        alerts, switch = inspect_workspace(ws).alerts, Switch()
        ws.log.put_entry("alert", "any", {}, expect=None)
        for each in ("evaluate", "notify"):
            monkeypatch.setattr(alerts, each, switch if each == work else lambda: None)
        alerts.start()
        until(lambda: names(ws) == [name])
        switch.fails = False
        until(lambda: names(ws) == [])
        alerts.stop()


def test_a_status_board_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        switch, clock = Switch(), SystemClock()
        board = StatusBoard(Storage(tmp_path / "ws"), clock, faults=ws.log.faults)
        board.start_publishing(lambda: switch() or PublishedStatus(clock.now_us()))
        until(lambda: names(ws) == ["writing of outside.json"])
        switch.fails = False
        until(lambda: names(ws) == [])
        board.clear()


def test_deletions_that_do_not_reach_sinks_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path / "ws") as ws:
        erasure, switch = inspect_workspace(ws).supervisor.erasure, Switch()
        monkeypatch.setattr(erasure, "_due", lambda: [1])
        monkeypatch.setattr(erasure, "erase", switch)
        until(lambda: bool(erasure.start() or names(ws) == ["deletion in sinks"]))
        switch.fails = False
        until(lambda: bool(erasure.start() or names(ws) == []))


@pytest.mark.parametrize("way", ["it may pass", "it stops the reaction"])
def test_reactions_that_fail_are_reported(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    error = hw.DiskFullError("no space") if way == "it may pass" else Defect("a defect")
    fails = True

    def step(feed: EventFeed, timeout_s: float | None) -> Iterator[Any]:
        if fails:
            raise error
        return iter(())

    monkeypatch.setattr(EventFeed, "batches", step)

    @ws.reaction("welcome", ws.store(accounts))
    def welcome(event: Opened) -> None:
        """Never called."""

    welcome.start()
    until(lambda: names(ws) == ["reaction welcome"])
    (component,) = [one for one in inspect_workspace(ws).health().components if one.kind == "background"]
    assert component.severity == "unhealthy"
    if way == "it stops the reaction":
        with pytest.raises(Defect):
            welcome.stop()
        assert names(ws) == ["reaction welcome"]  # it is stopped, and stays so until it is started again
        fails = False
        welcome.start()
    fails = False
    until(lambda: names(ws) == [])
    welcome.stop()


def test_a_server_that_cannot_wait_for_commits_reports_it_and_goes_on(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        watch = Watch(ws.log, inspect_workspace(ws).views)
        switch = Switch()
        with monkeypatch.context() as patch, watch.topic("numbers") as bell:
            patch.setattr(ws.log, "wait_commit", switch)
            patch.setattr(watch._views.store, "ticks", switch)
            watch.ticking()
            while names(ws) != ["waiting for records", "waiting for ticks"]:
                await asyncio.sleep(0.01)
            patch.undo()
            while names(ws):
                await asyncio.sleep(0.01)
            rung = bell.rung
            ws.topic("numbers").append([{"n": 1}])
            await bell.wait(20, rung)
            assert bell.rung > rung
        watch.close()

    ws.sql("CREATE TOPIC numbers (n BIGINT)")
    asyncio.run(main())


def test_an_error_of_the_thread_that_receives_datagrams_stops_the_source(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(udp_listener.UdpListener, "_gather", Switch())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind(("127.0.0.1", 0))
        listener = udp_listener.UdpListener(bound.dup(), SystemClock(), 1_000)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.sendto(b"hits:1|c", bound.getsockname())
        listener._thread.join()
        monkeypatch.undo()
        with pytest.raises(Defect):
            listener.lines()
        with pytest.raises(Defect):
            listener.take()
        listener.close()
