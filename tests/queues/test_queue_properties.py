"""Random work of several workers, with crashes before and after every write, equals a simple model of a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater.queues.queue_client as ledger_module
from headwater.core.clock import ManualClock
from headwater.core.errors import LeaseLostError
from headwater.log.memory import MemoryLog
from headwater.queues.excised_messages import excise_messages
from headwater.queues.message import Message
from headwater.queues.queue import Queue
from headwater.queues.queue_client import Ledgers
from headwater.workspace import Workspace
from tests.conftest import LONG
from tests.queues.model import Model

LEASE_US, LIMIT = 10_000_000, 3
WORKERS = ("a", "b", "c")


class Crash(Exception):
    """The process is no more."""


class Crashing:
    """A log whose process dies at the n-th append from now: before it is written, or after."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.left: int | None = None
        self.after = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, append: Any) -> Any:
        dies = self.left == 0
        if self.left is not None:
            self.left -= 1
        if dies and not self.after:
            raise Crash
        receipt = self._log.append(append)
        if dies:
            raise Crash
        return receipt


class Play:
    """Three processes with a worker each, on one log."""

    def __init__(self, *, in_order: bool, delays: bool) -> None:
        self.clock = ManualClock()
        self.log = MemoryLog(self.clock)
        ws = Workspace(self.log, self.clock, None)
        self.topic = ws.topic("outbox", "k BIGINT, seconds BIGINT")
        ws.queue(
            "work",
            topic="outbox",
            lease=timedelta(microseconds=LEASE_US),
            deliveries=LIMIT,
            key="k" if in_order else None,
            delay="seconds" if delays else None,
        )
        self.model = Model(LIMIT, in_order=in_order)
        self.delays = delays
        self.logs = {name: Crashing(self.log) for name in WORKERS}
        self.queues = {name: self.opened(name) for name in WORKERS}
        self.held: dict[str, list[Message]] = {name: [] for name in WORKERS}

    def opened(self, name: str) -> Queue:
        return Queue(self.logs[name], self.clock, Ledgers(self.logs[name], self.clock), "work", name)

    @property
    def now(self) -> int:
        return self.clock.now_us()

    def step(self, what: str, worker: str, number: int, crash: tuple[int, bool] | None) -> None:
        self.model.lapse(self.now)
        self.logs[worker].left, self.logs[worker].after = crash or (None, False)
        try:
            getattr(self, what)(worker, number)
        except Crash:
            self.queues[worker] = self.opened(worker)
            self.held[worker] = []
            self.resolve()
        self.logs[worker].left = None
        self.check()

    def append(self, worker: str, number: int) -> None:
        keys, seconds = [number % 3, number % 2], [number % 7, 0]
        self.topic.append([{"k": k, "seconds": s} for k, s in zip(keys, seconds, strict=True)])
        self.model.append(keys, [self.now + s * 1_000_000 if self.delays else 0 for s in seconds])

    def pass_time(self, worker: str, number: int) -> None:
        self.clock.advance(f"{number} seconds")
        self.model.lapse(self.now)

    def receive(self, worker: str, number: int) -> None:
        could = self.model.available(self.now)
        got = self.queues[worker].receive(number)
        numbers = [message.offset for message in got]
        assert set(numbers) <= could
        assert len(numbers) == min(number, len(could))
        for message in got:
            self.model.claim(message.offset, worker, self.now + LEASE_US)
            assert message.deliveries == self.model.items[message.offset].deliveries
            assert message.row["k"] == self.model.items[message.offset].key
        self.held[worker] += list(got)

    def ack(self, worker: str, number: int) -> None:
        self._settle("ack", worker, number)

    def nack(self, worker: str, number: int) -> None:
        self._settle("nack", worker, number, delay=f"{number} seconds", error="not yet")

    def give_up(self, worker: str, number: int) -> None:
        self._settle("nack", worker, number, final=True, error="never")

    def release(self, worker: str, number: int) -> None:
        self._settle("release", worker, number)

    def extend(self, worker: str, number: int) -> None:
        self._settle("extend", worker, number)

    def steal(self, worker: str, number: int) -> None:
        """A message that another worker holds cannot be acknowledged."""
        for other in WORKERS:
            if other != worker and self.held[other]:
                with pytest.raises(LeaseLostError):
                    self.queues[worker].ack(self.held[other][0])

    def excise(self, worker: str, number: int) -> None:
        """A record is removed, whatever its message is at: that is over."""
        gone = number * 7 % len(self.model.items)
        self.log.excise("outbox", {0: [gone]})
        excise_messages(self.log, "outbox", {0: [gone]})
        self.model.items[gone].at = "done"

    def _settle(self, what: str, worker: str, number: int, **options: Any) -> None:
        if not self.held[worker]:
            return
        message = self.held[worker][number % len(self.held[worker])]
        if not self.model.holds(message.offset, worker):
            with pytest.raises(LeaseLostError):
                getattr(self.queues[worker], what)(message, **options)
            return
        getattr(self.queues[worker], what)(message, **options)
        if what == "ack":
            self.model.ack(message.offset)
        elif "final" in options:
            self.model.give_up(message.offset)
        elif what == "nack":
            self.model.nack(message.offset, self.now + number * 1_000_000)
        elif what == "release":
            self.model.release(message.offset, self.now)
        else:
            self.model.extend(message.offset, self.now + LEASE_US)
        if what != "extend":
            self.held[worker].remove(message)

    def resolve(self) -> None:
        """What a dead process had under way was done as a whole or not at all: the log says which."""
        state = self.opened("a")._ledger().current()
        leased = {
            int(place): (grant.worker, int(until), int(times))
            for grant in state.leases.values()
            for place, until, times, held in zip(
                grant.places, grant.until, grant.deliveries, grant.open, strict=True
            )
            if held
        }
        again = (state.waiting.due.tolist(), state.waiting.deliveries.tolist())
        waiting = dict(zip(state.waiting.places.tolist(), zip(*again, strict=True), strict=True))
        for number, item in self.model.items.items():
            if number in leased:
                worker, item.time, times = leased[number]
                assert (item.at, item.worker) == ("leased", worker) or item.at in ("fresh", "waiting")
                assert times - item.deliveries in (0, 1)
                item.at, item.worker, item.deliveries = "leased", worker, times
            elif item.at == "leased":
                item.time, item.deliveries = waiting.get(number, (item.time, item.deliveries))
                item.at = "waiting" if number in waiting else "done"
                if number in state.dying or number in state.dead:
                    item.at = "dead"
        self.model.lapse(self.now)

    def check(self) -> None:
        for name in WORKERS:
            standing = self.queues[name].standing()
            counted = (standing.leased, standing.waiting + standing.delayed + standing.dead)
            assert counted == (self.model.count("leased"), self.model.count("fresh", "waiting", "dead"))


STEPS = st.tuples(
    st.sampled_from(
        [
            "append",
            "receive",
            "receive",
            "ack",
            "ack",
            "nack",
            "give_up",
            "release",
            "extend",
            "pass_time",
            "steal",
            "excise",
        ]
    ),
    st.sampled_from(WORKERS),
    st.integers(1, 6),
    st.one_of(st.none(), st.none(), st.tuples(st.integers(0, 1), st.booleans())),
)


@settings(max_examples=1_000 if LONG else 25)
@given(st.lists(STEPS, max_size=40), st.booleans(), st.booleans())
def test_random_work_with_crashes_equals_a_simple_queue(
    steps: list[tuple[str, str, int, tuple[int, bool] | None]], in_order: bool, delays: bool
) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(ledger_module, "CHECKPOINT_OPS", 7)
    with patch.context():
        play = Play(in_order=in_order, delays=delays)
        play.append("a", 1)
        play.append("a", 2)
        for step in steps:
            play.step(*step)
        _finish(play)
    patch.undo()


def _finish(play: Play) -> None:
    """In the end every message is done or dead, whatever was left half-way."""
    for _ in range(200):
        if play.model.count("done", "dead") == len(play.model.items):
            break
        play.clock.advance("60 seconds")
        play.model.lapse(play.now)
        play.held["a"] = []
        play.receive("a", 6)
        for message in list(play.held["a"]):
            play.queues["a"].ack(message)
            play.model.ack(message.offset)
    assert play.model.count("done", "dead") == len(play.model.items)
    assert play.queues["b"].standing().dead == play.model.count("dead")
    letters = [
        row
        for batch in Workspace(play.log, play.clock, None).topic("work.dead").read()
        for row in batch.to_pylist()
    ]
    assert {row["offset"] for row in letters} == {n for n, i in play.model.items.items() if i.at == "dead"}
