"""Maintenance does all that it can, reports what it cannot do, and clears the report when it can again."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import headwater as hw
from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import Clock, ManualClock
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.maintenance_round import RETRY_MAX_MS
from headwater.log.protocol import Append
from headwater.testing.faults import FaultyStorage

SETTINGS = LogSettings(maintenance_every_ms=0)
NUMBERS = pa.schema([pa.field("id", pa.int64()), pa.field("n", pa.int64())])
TOPICS = ("apples", "plums", "quinces")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000_000_000)


@pytest.fixture
def disk(tmp_path: Path) -> FaultyStorage:
    return FaultyStorage(tmp_path / "ws")


@pytest.fixture
def log(disk: FaultyStorage, tmp_path: Path, clock: ManualClock) -> Iterator[EmbeddedLog]:
    log = EmbeddedLog.open(tmp_path / "ws", settings=SETTINGS, clock=clock, storage=disk)
    for name in TOPICS:
        options = {"retention": "1 hour", "cleanup": "compact"} if name == "quinces" else {}
        log.create_topic(define_topic(name, NUMBERS, key=("id",), options=options))
        fill(log, name)
    yield log
    log.close()


def fill(log: EmbeddedLog, topic: str) -> None:
    rows = [{"id": n, "n": n} for n in range(200)]
    log.append(Append({topic: [conform(rows, log.topic(topic))]}))


def segments(log: EmbeddedLog, topic: str) -> list[Path]:
    state = log.core.journal.state.topics[topic]
    return [log.storage.root / s.name for p in state.partitions for s in p.segments]


def damage(log: EmbeddedLog, topic: str) -> bytes:
    """Change bytes in the middle of a topic's first segment; what it held before."""
    (path, *_) = segments(log, topic)
    before = path.read_bytes()
    path.write_bytes(before[: len(before) // 2] + b"\xff" * 8 + before[len(before) // 2 + 8 :])
    log.reader.forget([str(path.relative_to(log.storage.root))])
    return before


def names(log: EmbeddedLog) -> list[str]:
    return [fault.name for fault in log.faults.current()]


def kinds(log: EmbeddedLog, topic: str) -> list[str]:
    return [s.kind for p in log.core.journal.state.topics[topic].partitions for s in p.segments]


def test_a_damaged_segment_of_one_topic_holds_up_no_other_and_is_reported_until_it_is_repaired(
    log: EmbeddedLog,
) -> None:
    (path, *_) = segments(log, "apples")
    whole = damage(log, "apples")
    report = log.maintain(force=True)
    assert report.sealed == 2
    assert [failed.work for failed in report.failed] == ["sealing of apples-0"]
    assert kinds(log, "plums") == kinds(log, "quinces") == ["parquet"]
    (fault,) = log.faults.current()
    assert (fault.kind, fault.name) == ("background", "sealing of apples-0")
    assert "is damaged at byte" in fault.reason
    assert fault.hint is not None
    assert "headwater verify" in fault.hint

    path.write_bytes(whole)
    assert log.maintain(force=True).failed == ()
    assert names(log) == []
    assert kinds(log, "apples") == ["parquet"]


def test_the_segments_after_a_damaged_one_are_sealed(log: EmbeddedLog) -> None:
    damage(log, "apples")
    log.maintain(force=True)
    fill(log, "apples")
    assert log.maintain(force=True).sealed == 1
    assert kinds(log, "apples") == ["arrow", "parquet"]


def test_a_damaged_sealed_segment_is_reported_until_a_compaction_succeeds(log: EmbeddedLog) -> None:
    log.maintain(force=True)
    (path, *_) = segments(log, "quinces")
    whole = damage(log, "quinces")
    fill(log, "quinces")
    assert [f.work for f in log.maintain(force=True).failed] == ["compaction of quinces-0"]
    log.maintain()  # compaction may not be due now: nobody knows that it would succeed
    assert names(log) == ["compaction of quinces-0"]
    path.write_bytes(whole)
    log.reader.forget([str(path.relative_to(log.storage.root))])
    assert log.maintain(force=True).failed == ()
    assert names(log) == []


def test_a_missing_segment_is_reported_and_retention_removes_it_with_the_report(
    log: EmbeddedLog, clock: ManualClock
) -> None:
    (path, *_) = segments(log, "quinces")
    path.unlink()
    log.reader.forget([str(path.relative_to(log.storage.root))])
    report = log.maintain(force=True)
    assert [f.work for f in report.failed] == ["sealing of quinces-0"]
    assert report.sealed == 2
    clock.advance("2 hours")
    assert log.maintain(force=True).failed == ()
    assert names(log) == []


def test_the_faults_of_a_topic_end_when_it_is_dropped(log: EmbeddedLog) -> None:
    damage(log, "apples")
    log.maintain(force=True)
    log.drop_topic("apples")
    log.maintain()
    assert names(log) == []


def test_another_process_clears_what_it_finds_repaired(
    log: EmbeddedLog, tmp_path: Path, clock: ManualClock
) -> None:
    (path, *_) = segments(log, "apples")
    whole = damage(log, "apples")
    log.maintain(force=True)
    path.write_bytes(whole)
    other = EmbeddedLog.open(tmp_path / "ws", settings=SETTINGS, clock=clock)
    other.maintain()
    other.close()
    assert names(log) == []


def test_a_full_disk_leaves_no_half_written_segments(log: EmbeddedLog, disk: FaultyStorage) -> None:
    full = disk.fail(errno.ENOSPC, on="write_at", name="*.parquet", times=None)
    for _ in range(3):
        report = log.maintain(force=True)
    assert [f.work for f in report.failed] == [f"sealing of {name}-0" for name in TOPICS]
    assert "space" in report.failed[0].reason
    assert list((disk.root / "topics").glob("**/*.parquet")) == []
    full.lift()
    assert log.maintain(force=True).sealed == 3
    assert names(log) == []


def test_files_that_cannot_be_removed_are_reported_until_they_are_gone(
    log: EmbeddedLog, disk: FaultyStorage
) -> None:
    denied = disk.fail(errno.EACCES, on="remove", name="*apples*", times=None)
    assert "sealing of apples-0" in [f.work for f in log.maintain(force=True).failed]
    log.maintain()
    assert "removal of old segments" in names(log)
    denied.lift()
    log.maintain()
    assert names(log) == []
    assert [p.suffix for p in (disk.root / "topics").glob("apples*/0/*")] == [".parquet"]


def test_work_that_keeps_failing_is_tried_less_and_less_often(
    disk: FaultyStorage, tmp_path: Path, clock: ManualClock
) -> None:
    settings = LogSettings(maintenance_every_ms=1_000, segment_bytes_max=1_000)
    log = EmbeddedLog.open(tmp_path / "ws", settings=settings, clock=clock, storage=disk)
    log.create_topic(define_topic("apples", NUMBERS))
    fill(log, "apples")
    full = disk.fail(errno.ENOSPC, on="write_at", name="*.parquet", times=None)
    tries = 0
    for _ in range(600):
        before = full.met
        assert [f.work for f in log.maintain().failed] == ["sealing of apples-0"]
        tries += full.met > before
        clock.advance("1 second")
    assert tries <= 6 + 600_000 / RETRY_MAX_MS
    full.lift()
    clock.advance("1 minute")
    assert log.maintain().sealed == 1
    assert names(log) == []
    log.close()


def test_the_background_reports_whatever_ends_a_round_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path / "ws", settings=LogSettings(maintenance_every_ms=10)) as ws:
        assert isinstance(ws.log, EmbeddedLog)
        clock = ws.log.clock
        with monkeypatch.context() as broken:
            broken.setattr(ws.log.core.journal, "refresh", lambda: {}["gone"])
            until(clock, lambda: names(ws.log) == ["maintenance"])
            assert ws.log.faults.current()[0].reason.startswith("KeyError")
        until(clock, lambda: names(ws.log) == [])


def until(clock: Clock, reached: Callable[[], bool]) -> None:
    deadline = clock.steady_ms() + 20_000
    while not reached():
        assert clock.steady_ms() < deadline
