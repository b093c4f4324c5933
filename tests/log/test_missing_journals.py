"""A workspace whose journals are not all there, after half a restore or on a bad disk: it is refused, and says what is missing."""

import contextlib
from pathlib import Path

import pytest

from headwater.catalog.definitions import define_topic
from headwater.core.errors import CorruptionError
from headwater.core.storage import Storage
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal.journal_file import scan
from headwater.log.protocol import Finding
from headwater.testing import FaultyStorage
from tests.crash.script import ORDERS, SETTINGS, append, numbers, problems
from tests.raising import raises


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three journals, the last two of which have commits that no checkpoint has."""
    log = EmbeddedLog.open(tmp_path / "ws", settings=SETTINGS)
    log.create_topic(ORDERS)
    append(log, {"orders": numbers(0, 1)})
    for n in range(1, 3):
        with log.core.exclusive():
            log.core.checkpoint()
        append(log, {"orders": numbers(n, 1)})
    log.close()
    assert [path.name for path in sorted((tmp_path / "ws" / "journal").iterdir())] == [
        "00000001.log",
        "00000002.log",
        "00000003.log",
    ]
    return tmp_path / "ws"


@pytest.fixture(params=["this boot", "another boot"])
def boot(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(folder: Path, boot: str) -> EmbeddedLog:
    storage = FaultyStorage(folder, boot="another") if boot == "another boot" else None
    return EmbeddedLog.open(folder, settings=SETTINGS, storage=storage)


def orders(log: EmbeddedLog) -> list[int]:
    part = log.partitions("orders")[0]
    return [n for batch in log.read("orders", 0, 0, part.end, ["n"]) for n in batch.column("n").to_pylist()]


def test_the_newest_journal_is_missing(folder: Path, boot: str) -> None:
    (folder / "journal" / "00000003.log").rename(folder / "kept")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with raises(CorruptionError, file="journal/00000003.log", reason="missing"):
        opened(folder, boot)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    (folder / "kept").rename(folder / "journal" / "00000003.log")
    log = opened(folder, boot)
    assert orders(log) == [0, 1, 2]
    log.close()


def test_the_way_to_go_on_without_the_newest_journal(folder: Path, boot: str) -> None:
    """As the hint says it: who deletes `head` has the records before the missing commits, and can append."""
    (folder / "journal" / "00000003.log").unlink()
    with raises(CorruptionError, reason="missing") as caught:
        opened(folder, boot)
    assert "delete the file `head`" in str(caught.value.hint)
    (folder / "head").unlink()
    log = opened(folder, boot)
    assert orders(log) == [0, 1]
    append(log, {"orders": numbers(9, 1)})
    assert orders(log) == [0, 1, 9]
    assert problems(log) == []
    log.close()


def test_a_journal_between_others_is_missing(folder: Path, boot: str) -> None:
    for path in (folder / "checkpoints").glob("00000002-*"):
        path.unlink()
    (folder / "journal" / "00000002.log").unlink()
    with raises(CorruptionError, file="journal/00000002.log", reason="missing") as caught:
        opened(folder, boot)
    assert "00000003.log" in str(caught.value.hint)
    (folder / "journal" / "00000003.log").unlink()
    (folder / "head").unlink()
    log = opened(folder, boot)
    assert orders(log) == [0]
    log.close()


def test_the_first_record_of_the_newest_journal_is_damaged(folder: Path, boot: str) -> None:
    """It was taken for a journal that nobody had begun, begun again, and what was in it was gone."""
    newest = folder / "journal" / "00000003.log"
    data = newest.read_bytes()
    newest.write_bytes(data[:30] + bytes(12) + data[42:])
    with raises(CorruptionError, file=f"journal/{newest.name}", offset=0):
        opened(folder, boot)
    newest.write_bytes(data[:30] + bytes([data[30] ^ 4]) + data[31:])
    log = opened(folder, boot)
    assert orders(log) == [0, 1, 2]
    log.close()


def test_a_journal_ends_before_what_was_durable(folder: Path, boot: str) -> None:
    """An older copy of the newest journal: the rows are in the segments, and the finding says what may be lost."""
    newest = folder / "journal" / "00000003.log"
    newest.write_bytes(newest.read_bytes()[:-8])
    log = opened(folder, boot)
    assert orders(log) == [0, 1, 2]
    assert any("journal/00000003.log is damaged at byte" in said for said in log.findings)
    log.close()
    later = opened(folder, boot)
    (fault,) = later.faults.current()
    assert (fault.kind, fault.name) == ("background", "journal")
    assert "journal/00000003.log is damaged at byte" in fault.reason
    while newest.exists():  # until checkpoints have put it behind
        append(later, {"orders": numbers(3, 1)})
    assert later.faults.current() == [fault]
    assert [found for found in later.verify() if not isinstance(found, int)] == []
    assert later.faults.current() == []
    later.close()


@pytest.mark.parametrize("last", [False, True], ids=["with others after it", "the newest"])
def test_an_older_copy_of_a_journal(folder: Path, boot: str, last: bool) -> None:
    """It ends where it was whole at the time, before commits that were acknowledged since: what these were nobody knows."""
    name = "00000003.log" if last else "00000002.log"
    for path in (folder / "checkpoints").glob("00000002-*"):
        path.unlink()
    journal = folder / "journal" / name
    older, newer = folder.parent / "older", journal.read_bytes()
    if last:
        older.write_bytes(newer)
        log = opened(folder, boot)
        log.create_topic(define_topic("later", ORDERS.schema))
        append(log, {"orders": numbers(3, 1)})
        log.close()
    else:
        with contextlib.closing(Storage(folder).open(f"journal/{name}")) as file:
            older.write_bytes(newer[: next(scan(file, 0)).end])
    journal.write_bytes(older.read_bytes())
    with raises(CorruptionError, file=f"journal/{name}", offset=older.stat().st_size, reason="truncated"):
        opened(folder, boot)
    assert journal.read_bytes() == older.read_bytes(), "it was written to"
    (folder / "head").unlink()  # as the hint says it
    if not last:
        (folder / "journal" / "00000003.log").unlink()
    log = opened(folder, boot)
    assert orders(log) == ([0, 1, 2] if last else [0])
    append(log, {"orders": numbers(9, 1)})
    assert orders(log)[-1] == 9
    assert problems(log) == []
    log.close()


def test_verify_and_commits_of_an_open_workspace_say_that_a_journal_is_missing(folder: Path) -> None:
    log = opened(folder, "this boot")
    (folder / "journal" / "00000003.log").unlink()
    found = [one for one in log.verify() if isinstance(one, Finding)]
    assert [(one.file, "missing" in one.message) for one in found] == [("journal/00000003.log", True)]
    with raises(CorruptionError, file="journal/00000003.log", reason="missing"):
        append(log, {"orders": numbers(3, 1)})
    log.close()


def test_a_checkpoint_of_commits_that_were_voided_is_passed_over(folder: Path) -> None:
    """A writer that was stopped before it wrote the checkpoint, while another found that the sync before it had failed."""
    log = opened(folder, "this boot")
    with log.core.exclusive():
        core = log.core
        core.next_journal.fence(void=True)
    append(log, {"orders": numbers(3, 1)})
    log.close()
    (latest,) = (folder / "checkpoints").glob("00000002-*")
    (folder / "checkpoints" / "00000003-000009999999.json").write_bytes(latest.read_bytes())
    log = opened(folder, "this boot")
    assert orders(log) == [0, 1, 2, 3]
    assert any("voided" in said for said in log.findings)
    log.close()
