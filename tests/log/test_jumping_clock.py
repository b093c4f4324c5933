"""The wall clock jumps, and jumps back: nothing is removed for it, append times stay where they were, leases run out as before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater import Workspace
from headwater.connectors.health.health import health
from headwater.core.clock import Clock, ManualClock, SystemClock, parse_span_us
from headwater.core.settings import LogSettings
from headwater.core.storage import File
from headwater.core.trusted_clock import DAY_US, HOLDS_US, TOLERANCE_US, Anchor, TrustedClock
from headwater.log.embedded import EmbeddedLog
from headwater.testing import inspect_workspace

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
TEN_YEARS = parse_span_us("3650 days")
HOUR, MINUTE = parse_span_us("1 hour"), parse_span_us("1 minute")
START = 1_700_000_000_000_000


class Machine(SystemClock):
    """The clocks of a machine: a wall clock that may be set, and a monotonic one from the start of the machine."""

    def __init__(self, now_us: int = START, elapsed_us: int = HOUR) -> None:
        self.true_us = now_us
        self.elapsed_us = elapsed_us
        self.asleep_us = 0
        self.wrong_by_us = 0

    def now_us(self) -> int:
        return self.true_us + self.wrong_by_us

    def steady_ms(self) -> float:
        return (self.elapsed_us - self.asleep_us) / 1e3

    def elapsed_ms(self) -> float:
        return self.elapsed_us / 1e3

    def passes(self, span_us: int) -> None:
        """Time passes, on every clock."""
        self.true_us += span_us
        self.elapsed_us += span_us

    def sleeps(self, span_us: int) -> None:
        """The machine is suspended: what waits are measured by stands still."""
        self.passes(span_us)
        self.asleep_us += span_us

    def process(self, wrong_by_us: int = 0) -> Clock:
        """The clocks as another process of the machine reads them."""
        return _Process(self, wrong_by_us)


class _Process(SystemClock):
    def __init__(self, machine: Machine, wrong_by_us: int) -> None:
        self.machine, self.wrong_by_us = machine, wrong_by_us

    def now_us(self) -> int:
        return self.machine.true_us + self.wrong_by_us

    def steady_ms(self) -> float:
        return self.machine.steady_ms()

    def elapsed_ms(self) -> float:
        return self.machine.elapsed_ms()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(params=["memory", "embedded"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> Iterator[Workspace]:
    place = "memory:" if request.param == "memory" else tmp_path / "ws"
    with hw.open(place, clock=machine, settings=SETTINGS) as workspace:
        yield workspace


def at(ws: Workspace, topic: str = "events") -> list[int]:
    """When the records of a topic were appended."""
    info = ws.log.partitions(topic)[0]
    found = ws.log.read(topic, 0, info.first, info.end, ["_appended_at"])
    return [moment for batch in found for moment in batch.column(0).cast("int64").to_pylist()]


def test_a_jump_for_a_moment_removes_nothing_and_leaves_no_trace(shop: Workspace, machine: Machine) -> None:
    shop.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
    shop.sql("CREATE TOPIC jobs (n BIGINT)")
    shop.sql(
        "CREATE TOPIC table_ (id BIGINT, n BIGINT, PRIMARY KEY (id)) WITH (cleanup = 'compact', tombstone_retention = '1 day')"
    )
    events, queue = shop.topic("events"), shop.queue("work", topic="jobs", lease="1 minute")
    events.append([{"n": 1}])
    shop.topic("jobs").append([{"n": 1}])
    shop.topic("table_").append([{"id": 1, "n": 1}])
    shop.topic("table_").delete([{"id": 1}])
    (held,) = queue.receive(1)
    assert held.row["n"] == 1

    machine.passes(2_000_000)
    machine.wrong_by_us = TEN_YEARS
    report = shop.maintain(force=True)
    assert (report.segments_removed, report.rows_removed, report.failed) == (0, 0, ())
    shop.maintain(force=True)
    events.append([{"n": 2}])
    (fault,) = shop.log.faults.current()
    assert (fault.kind, fault.name) == ("clock", "clock")
    assert "jumped 10 years ahead" in fault.reason
    assert machine.true_us - fault.since < MINUTE

    assert len(queue.receive(1)) == 0, "the lease has not run out"
    machine.passes(3_000_000)
    machine.wrong_by_us = 0
    events.append([{"n": 3}])
    shop.maintain(force=True)
    assert at(shop) == [START, START + 2_000_000, START + 5_000_000]
    assert len(at(shop, "table_")) == 1  # the tombstone is there still
    assert shop.log.faults.current() == []

    machine.passes(MINUTE)
    (again,) = queue.receive(3)
    assert again.row == held.row, "the lease has run out"
    for _ in range(8 * 24):
        machine.passes(HOUR)
        events.append([{"n": 4}])
    assert shop.maintain(force=True).rows_removed > 0


def test_a_jump_that_holds_becomes_the_time(shop: Workspace, machine: Machine) -> None:
    """A virtual machine that was stopped for a month goes on: its monotonic clock has not run meanwhile."""
    shop.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
    events = shop.topic("events")
    events.append([{"n": 1}])
    machine.true_us += 30 * DAY_US
    events.append([{"n": 2}])
    assert at(shop)[-1] == START
    shop.maintain(force=True)
    for _ in range(11):
        machine.passes(MINUTE)
        shop.log.clock.now_us()
    events.append([{"n": 3}])
    assert at(shop)[-1] == machine.true_us
    assert shop.maintain(force=True).rows_removed == 0
    assert "nothing is removed by age" in shop.log.faults.current()[0].reason
    for _ in range(25):
        machine.passes(HOUR)
        shop.log.clock.now_us()
    assert shop.maintain(force=True).rows_removed == 2
    assert shop.log.faults.current() == []


def test_a_clock_that_is_set_back_is_caught_up_with(shop: Workspace, machine: Machine) -> None:
    shop.sql("CREATE TOPIC events (n BIGINT)")
    events = shop.topic("events")
    events.append([{"n": 0}])
    machine.true_us -= HOUR
    for n in range(1, 300):
        machine.passes(MINUTE)
        events.append([{"n": n}])
        if n <= 9:
            assert at(shop)[-1] == START + n * MINUTE, "the last time and what has passed since"
    times = at(shop)
    assert all(one <= two for one, two in itertools.pairwise(times)), "time never falls"
    assert abs(times[-1] - machine.true_us) <= TOLERANCE_US
    assert shop.log.faults.current() == []


def test_a_machine_that_was_off_for_a_month_needs_nobody(tmp_path: Path, machine: Machine) -> None:
    with hw.open(tmp_path / "ws", clock=machine, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
        ws.topic("events").append([{"n": 1}])
        ws.maintain(force=True)
    (tmp_path / "ws" / "clock").write_bytes(b"HWC1" + bytes(52))  # of another boot
    later = Machine(START + 30 * DAY_US, elapsed_us=MINUTE)
    with hw.open(tmp_path / "ws", clock=later, settings=SETTINGS) as ws:
        ws.topic("events").append([{"n": 2}])
        assert at(ws)[-1] == later.true_us
        assert ws.maintain(force=True).rows_removed == 0
        later.passes(HOLDS_US)
        assert ws.maintain(force=True).rows_removed == 1
        assert ws.log.faults.current() == []


def test_a_machine_that_starts_with_an_old_time_goes_on_from_the_last_commit(
    tmp_path: Path, machine: Machine
) -> None:
    with hw.open(tmp_path / "ws", clock=machine, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT)")
        ws.topic("events").append([{"n": 1}])
    (tmp_path / "ws" / "clock").unlink()
    later = Machine(0, elapsed_us=MINUTE)  # its battery is empty
    with hw.open(tmp_path / "ws", clock=later, settings=SETTINGS) as ws:
        later.passes(MINUTE)
        ws.topic("events").append([{"n": 2}])
        assert at(ws) == [START, START + MINUTE]
        assert [fault.kind for fault in ws.log.faults.current()] == ["clock"]
        later.true_us = START + DAY_US  # a time server has answered
        for _ in range(11):
            later.passes(MINUTE)
            ws.log.clock.now_us()
        ws.topic("events").append([{"n": 3}])
        assert at(ws)[-1] == later.true_us


def test_a_process_whose_clock_is_wrong_goes_by_the_others(tmp_path: Path, machine: Machine) -> None:
    with (
        hw.open(tmp_path / "ws", clock=machine.process(), settings=SETTINGS) as right,
        hw.open(tmp_path / "ws", clock=machine.process(TEN_YEARS), settings=SETTINGS) as wrong,
    ):
        right.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
        for n in range(60 * 26):
            machine.passes(MINUTE)
            if n % 60 == 0:
                wrong.topic("events").append([{"n": n}])
                right.topic("events").append([{"n": n}])
            for ws in (right, wrong):
                ws.log.clock.now_us()
        assert max(at(right)) <= machine.true_us
        assert wrong.maintain(force=True).rows_removed == 0
        assert [fault.kind for fault in right.log.faults.current()] == ["clock"]
        assert wrong.log.clock.doubt is not None
        assert right.log.clock.doubt is None


def test_a_wrong_clock_stays_wrong_for_a_process_that_is_opened_in_the_meantime(
    tmp_path: Path, machine: Machine
) -> None:
    with hw.open(tmp_path / "ws", clock=machine.process(), settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
        ws.topic("events").append([{"n": 1}])
    machine.passes(HOUR)
    with hw.open(tmp_path / "ws", clock=machine.process(TEN_YEARS), settings=SETTINGS) as ws:
        ws.topic("events").append([{"n": 2}])
        assert at(ws) == [START, START + HOUR]
        assert ws.maintain(force=True).rows_removed == 0
        found = health(
            ws.log, ws.log.clock, inspect_workspace(ws).views, inspect_workspace(ws).supervisor
        ).of("clock", "clock")
        assert found is not None
        assert (found.state, found.severity) == ("in doubt", "warning")
        assert "the wall clock of this machine jumped 10 years ahead" in found.sentence()


def test_records_of_a_time_to_come_do_not_keep_leases_from_running_out(
    tmp_path: Path, machine: Machine
) -> None:
    """What an older version has left: the last commit is ten years ahead."""
    with hw.open(tmp_path / "ws", clock=Machine(START + TEN_YEARS), settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT)")
        ws.queue("work", topic="events", lease="1 minute")
        ws.topic("events").append([{"n": 1}])
    (tmp_path / "ws" / "clock").unlink()
    with hw.open(tmp_path / "ws", clock=machine, settings=SETTINGS) as ws:
        (first,) = ws.queue("work").receive(1)
        machine.passes(2 * MINUTE)
        (again,) = ws.queue("work").receive(1)
        assert first.row == again.row
        assert again.deliveries == 2


def test_what_clocks_drift_and_are_corrected_by_is_no_jump(machine: Machine) -> None:
    clock = TrustedClock(machine)
    clock.begin(0)
    for step in (TOLERANCE_US // 2, -TOLERANCE_US // 2, 5_000_000, -1):
        machine.wrong_by_us += step
        assert clock.now_us() == machine.now_us()
        machine.passes(1_000_000)
    machine.passes(20 * DAY_US)
    machine.wrong_by_us += parse_span_us("20 minutes")  # 0.07% of 20 days
    assert clock.now_us() == machine.now_us()
    assert clock.doubt is None


def test_a_suspend_is_no_jump() -> None:
    """CLOCK_BOOTTIME runs on while the machine sleeps; what waits are measured by does not."""
    clock = SystemClock()
    assert abs(clock.elapsed_ms() - clock.elapsed_ms()) < 1_000
    assert clock.elapsed_ms() >= clock.steady_ms() - 1_000
    assert Anchor(0, 0).bears_out(TOLERANCE_US, 0)
    assert not Anchor(0, 0).bears_out(TOLERANCE_US + 1, 0)


def test_an_append_in_which_the_machine_is_suspended_counts_once_and_the_next_one_has_the_time(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the time at which it was begun. Time went on meanwhile: leases have run out, and records are as old as they are."""
    with hw.open(tmp_path / "ws", clock=machine, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '1 hour')")
        jobs = ws.topic("jobs", "n BIGINT")
        events, queue, write = ws.topic("events"), ws.queue("work", topic="jobs"), File.write_at
        events.append([{"n": 0}])
        jobs.append([{"n": 7}])
        (held,) = queue.receive(1)

        def suspended(self: File, offset: int, data: bytes) -> None:
            if self.name.startswith("journal/") and not machine.asleep_us:
                machine.sleeps(8 * HOUR)
            write(self, offset, data)

        monkeypatch.setattr(File, "write_at", suspended)
        receipt = events.append([{"n": 1}], producer="loader", sequence=1)
        assert machine.asleep_us == 8 * HOUR
        assert events.append([{"n": 1}], producer="loader", sequence=1) == receipt
        events.append([{"n": 2}])
        assert at(ws) == [START, START, START + 8 * HOUR]
        assert ws.log.faults.current() == []
        assert [message.row for message in queue.receive(1)] == [held.row]
        with hw.open(tmp_path / "ws", clock=machine.process(), settings=SETTINGS) as other:
            other.topic("events").append([{"n": 3}])
        machine.sleeps(2 * HOUR)
        assert ws.maintain(force=True).rows_removed == 4
        assert ws.verify().ok


def test_a_clock_of_a_test_is_trusted_when_it_is_moved(tmp_path: Path) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "ws", clock=clock, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC events (n BIGINT) WITH (retention = '7 days')")
        ws.topic("events").append([{"n": 1}])
        clock.advance(timedelta(days=8))
        assert ws.maintain(force=True).rows_removed == 1
        assert isinstance(ws.log, EmbeddedLog)
