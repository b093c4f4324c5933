"""Faults outlive the process that reports them, and end when the work succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import DiskFullError, HeadwaterError
from headwater.core.faults import FOLDER, Faults
from headwater.core.storage import Storage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


def test_a_fault_is_seen_by_another_process_until_it_is_cleared(tmp_path: Path, clock: ManualClock) -> None:
    here, there = Faults(Storage(tmp_path), clock), Faults(Storage(tmp_path), clock)
    here.report(
        "background", "maintenance of orders-0", HeadwaterError("damaged", detail="at 7", hint="verify")
    )
    (found,) = there.current()
    assert (found.kind, found.name, found.reason, found.hint) == (
        "background",
        "maintenance of orders-0",
        "damaged: at 7",
        "verify",
    )
    there.clear("background", "maintenance of orders-0")
    assert here.current() == []


def test_the_time_of_the_first_failure_is_kept(tmp_path: Path, clock: ManualClock) -> None:
    faults = Faults(Storage(tmp_path), clock)
    faults.report("source", "shop", "the server is away")
    clock.advance("5 seconds")
    Faults(Storage(tmp_path), clock).report("source", "shop", ValueError("another reason"))
    (found,) = faults.current()
    assert (found.since, found.reason) == (1_000_000, "ValueError: another reason")


def test_a_full_disk_does_not_hide_a_fault_in_the_process_that_reports_it(
    tmp_path: Path, clock: ManualClock
) -> None:
    class Full(Storage):
        def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
            raise DiskFullError("no space left")

    faults = Faults(Full(tmp_path), clock)
    faults.report("background", "merges", DiskFullError("no space left"))
    assert [fault.name for fault in faults.current()] == ["merges"]
    faults.clear("background", "merges")
    assert faults.current() == []


def test_a_file_that_is_torn_or_not_ours_is_left_out(tmp_path: Path, clock: ManualClock) -> None:
    faults = Faults(Storage(tmp_path), clock)
    faults.report("sink", "cache", "stopped")
    (tmp_path / FOLDER / "note.txt").write_text("mine")
    (tmp_path / FOLDER / "sink-0.json").write_text('{"kind": "si')
    assert [fault.name for fault in faults.current()] == ["cache"]


def test_a_workspace_in_memory_keeps_faults_in_memory(clock: ManualClock) -> None:
    faults = Faults(None, clock)
    faults.report("engine", "engine", "failed")
    assert [fault.kind for fault in faults.current()] == ["engine"]
    faults.clear("engine", "engine")
    assert faults.current() == []


def test_a_process_that_changes_its_folder_reports_to_its_own_workspace(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name / "shop").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here")
    faults = Faults(Storage("shop"), clock)
    monkeypatch.chdir(tmp_path / "there")
    faults.report("background", "maintenance", "it fails")
    assert (tmp_path / "here" / "shop" / FOLDER).is_dir()
    assert not (tmp_path / "there" / "shop" / FOLDER).exists()
