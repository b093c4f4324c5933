"""A look at sinks: what is known is told at once, and a target that does not answer holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, cast

import pytest

from headwater.connectors.manage import sink_probe
from headwater.connectors.manage.sink_manager import Sinks
from headwater.connectors.manage.sink_probe import probe_sinks
from headwater.connectors.manage.sink_statuses import SinkStatus
from headwater.sinks.base.sink_status import SinkLag, Status

KEPT = SinkStatus(Status("few", "following", tick=7, withheld=2), SinkLag(0, 7, 0.0))


class Slow:
    """Sinks of which one is kept in step, and has refused rows; its target says nothing until it is told to."""

    def __init__(self, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        self.answers = threading.Event()
        self.stopped = 0
        self.has_closed = False

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        return {"few": {"status": asdict(KEPT.status), "lag": asdict(KEPT.lag)}} if self.is_kept else {}

    def may_have_dropped(self, told: SinkStatus) -> bool:
        return bool(told.status.withheld)

    def is_open(self, name: str) -> bool:
        is_open, self.has_closed = not self.has_closed, True
        return is_open

    def apart(self) -> Slow:
        raise AssertionError("it is open")

    def status(self, name: str) -> SinkStatus:
        self.answers.wait(60)
        return SinkStatus(KEPT.status, KEPT.lag, dropped=1)

    def stop(self) -> None:
        self.stopped += 1


def test_one_that_is_kept_in_step_is_told_of_though_its_target_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink_probe, "PATIENCE_S", 0.01)
    sinks = Slow()
    assert probe_sinks(cast("Sinks", sinks), ["few"]) == {"few": KEPT}
    sinks.answers.set()
    monkeypatch.setattr(sink_probe, "PATIENCE_S", 60.0)
    assert probe_sinks(cast("Sinks", answering()), ["few"])["few"].dropped == 1


def test_one_that_closes_meanwhile_does_not_stop_the_others() -> None:
    sinks = answering()
    before = set(threading.enumerate())
    assert probe_sinks(cast("Sinks", sinks), ["few"])["few"].dropped == 1
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert sinks.stopped == 0


def answering() -> Slow:
    sinks = Slow(is_kept=False)
    sinks.answers.set()
    return sinks
