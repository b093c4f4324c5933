"""Strange files in every folder of a log: none is removed, and none stands in the way of anything."""

from pathlib import Path

import pytest

from headwater.catalog.conform import conform
from headwater.core.clock import ManualClock
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Finding
from tests.crash.script import (
    CLICKS,
    CUSTOMERS,
    ORDERS,
    SETTINGS,
    append,
    clicks,
    numbers,
    people,
    problems,
)
from tests.strangers import Strangers


@pytest.fixture
def strangers(tmp_path: Path) -> Strangers:
    return Strangers(tmp_path / "outside")


def checkpoints(log: EmbeddedLog, count: int) -> None:
    for _ in range(count):
        with log.core.exclusive():
            log.core.checkpoint()


def test_files_of_others_stay_and_stand_in_nobodys_way(tmp_path: Path, strangers: Strangers) -> None:
    root, clock = tmp_path / "ws", ManualClock()
    log = EmbeddedLog.open(root, settings=SETTINGS, clock=clock)
    for definition in (ORDERS, CLICKS, CUSTOMERS):
        log.create_topic(definition)
    log.beat("orders", "workers", "one", 60_000)
    for n in range(3):
        append(log, {"orders": numbers(n, 1), "clicks": clicks(9 * n, 9), "customers": people(0, 3, str(n))})
        log.maintain(force=True)
    checkpoints(log, 1)
    stage = log.stage()
    for row in range(40):
        stage.add("orders", conform(numbers(100 + row, 20), log.topic("orders")))
    assert strangers.fill(root, Path(f"{root}.keys")) > 8
    for n in range(3, 6):
        append(log, {"orders": numbers(n, 1), "clicks": clicks(9 * n, 9), "customers": people(0, 3, str(n))})
        report = log.maintain(force=True)
        assert report.failed == ()
        checkpoints(log, 2)
    stage.abort()
    strangers.fill(root)
    log.excise("orders", {0: [1]})
    assert strangers.gone() == []
    rows = log.partitions("customers")[0].rows
    log.close()
    log = EmbeddedLog.open(root, settings=SETTINGS, clock=clock)
    assert log.partitions("customers")[0].rows == rows
    assert problems(log) == []
    assert log.findings == []
    assert [one for one in log.verify() if isinstance(one, Finding)] == []
    clock.advance("2 hours")
    assert log.maintain(force=True).rows_removed
    log.drop_topic("clicks")
    log.leave("orders", "workers", "one")
    assert log.maintain(force=True).failed == ()
    assert log.faults.current() == []
    assert strangers.gone() == []
    assert list((root / "topics" / "clicks-2" / "0").glob("0000*[0-9].parquet")) == [], (
        "its own files are left"
    )
    log.close()


def test_what_dead_processes_left_is_removed_and_copies_of_it_are_not(tmp_path: Path) -> None:
    root = tmp_path / "ws"
    log = EmbeddedLog.open(root, settings=SETTINGS)
    log.create_topic(ORDERS)
    append(log, {"orders": numbers(0, 1)})
    dead = 2**22 + 1  # above any process number
    own = [
        root / "topics" / "orders-1" / "0" / f"{5:020d}-1-9.arrow",
        root / "topics" / "orders-1" / "0" / f"{5:020d}-1-9s0123456789ab.parquet.steps.{dead}-a.tmp",
        root / "staging" / f"{dead}-{'0' * 32}" / "orders-0.arrow",
        root / "checkpoints" / f"00000001-000000000999.json.{dead}-a.tmp",
        root / "journal" / f"00000002.log.{dead}-a.tmp",
        root / "topics" / "gone-7" / "wake",
    ]
    for path in own:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"left")
    (root / "staging" / "99999999999999999999-x").mkdir()
    (root / "topics" / "gone-0").mkdir()
    (root / "topics" / "gone-0" / "thoughts.txt").write_text("mine")
    log.maintain(force=True)
    checkpoints(log, 1)
    assert [path for path in own if path.exists()] == []
    assert (root / "staging" / "99999999999999999999-x").exists()
    assert (root / "topics" / "gone-0" / "thoughts.txt").read_text() == "mine"
    assert log.faults.current() == []
    log.close()
