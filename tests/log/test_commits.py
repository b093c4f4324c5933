"""The ids of commits of the embedded log: over checkpoints, damage, versions without ids, and copies that are put back."""

import shutil
from pathlib import Path

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import ManualClock
from headwater.core.errors import OtherHistoryError, WorkspaceMissingError
from headwater.core.positions import Receipt
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.log.commit_history import check_commit
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal import commit_ids
from headwater.log.protocol import Append
from headwater.testing.contract.contract_base import refused

GOLDEN = Path(__file__).parents[1] / "golden" / "format-1" / "workspace"


def opened(folder: Path, **settings: int) -> EmbeddedLog:
    """The log in a folder."""
    return EmbeddedLog.open(folder, settings=LogSettings(**settings), clock=ManualClock())


def append(log: EmbeddedLog, *numbers: int) -> Receipt:
    """One append of numbers."""
    if "clicks" not in log.topics():
        log.create_topic(TopicDefinition("clicks", pa.schema([("n", pa.int64())])))
    topic = log.topic("clicks")
    return log.append(Append({"clicks": [conform([{"n": n} for n in numbers], topic)]}))


def test_ids_are_found_over_many_checkpoints_and_by_other_processes(tmp_path: Path) -> None:
    log, other = (
        opened(tmp_path / "log", checkpoint_records=5),
        opened(tmp_path / "log", checkpoint_records=5),
    )
    receipts = [append(log if n % 3 else other, n) for n in range(60)]
    assert len(list((tmp_path / "log" / "commits").iterdir())) > 8
    for one in (log, other, opened(tmp_path / "log")):
        for receipt in receipts:
            check_commit(one, receipt.commit)
        ids = [one.commit_id(n) for n in range(1, one.sequence() + 1)]
        assert all(ids)
        assert len(set(ids)) == len(ids)
        one.close()


def test_a_copy_that_is_put_back_gives_the_numbers_other_ids(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", checkpoint_records=5)
    before = append(log, 1)
    log.close()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    log = opened(tmp_path / "log", checkpoint_records=5)
    lost = [append(log, n) for n in range(20)]
    log.close()
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    log = opened(tmp_path / "log", checkpoint_records=5)
    check_commit(log, before.commit)
    for made in range(30):
        for receipt in lost:
            assert Receipt.parse(str(receipt)) == receipt
            with refused(OtherHistoryError):
                check_commit(log, receipt.commit)
        append(log, 100 + made)
        check_commit(log, before.commit)
    log.close()


def test_files_of_another_history_that_were_left_in_place_count_for_nothing(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", checkpoint_records=5)
    append(log, 1)
    log.close()
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    log = opened(tmp_path / "log", checkpoint_records=5)
    lost = [append(log, n) for n in range(20)]
    log.close()
    shutil.copytree(tmp_path / "log" / "commits", tmp_path / "copy" / "commits", dirs_exist_ok=True)
    log = opened(tmp_path / "copy", checkpoint_records=5)
    kept = [append(log, n) for n in range(40)]
    for receipt in kept:
        check_commit(log, receipt.commit)
    for receipt in lost:
        with refused(OtherHistoryError):
            check_commit(log, receipt.commit)
    log.close()


def test_what_is_damaged_or_was_never_given_an_id_is_not_known(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "old")
    log = opened(tmp_path / "old", checkpoint_records=3)
    old = log.sequence()
    assert old > 3
    log.close()
    for n in range(10):  # a commit of its own each time, and a checkpoint once in a while
        log = opened(tmp_path / "old", checkpoint_records=3)
        log.put_entry("alert", f"a{n}", {"n": n}, expect=None)
        log.close()
    log = opened(tmp_path / "old")
    assert [log.commit_id(n) for n in range(1, old + 1)] == [None] * old
    assert log.commit_id(log.sequence())
    folder = tmp_path / "old" / "commits"
    file = sorted(folder.iterdir())[-1]
    first, count = (int(part) for part in file.name.split("-")[:2])
    assert log.commit_id(first + count - 1)
    file.write_bytes(b"x" + file.read_bytes()[1:])
    assert log.commit_id(first + count - 1) is None
    file.unlink()
    assert log.commit_id(first + count - 1) is None
    log.close()


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for n in range(commit_ids.FILES_MAX + 3):
        (tmp_path / "commits").mkdir(exist_ok=True)
        (tmp_path / "commits" / f"{n:012d}-1-{'0' * 16}.ids").write_bytes(bytes(8))
    commit_ids.keep(
        storage, commit_ids.CommitIds(commit_ids.FILES_MAX + 3, ["ab" * 8]), commit_ids.stored(storage)
    )
    left = sorted(path.name for path in (tmp_path / "commits").iterdir())
    assert len(left) == commit_ids.FILES_MAX
    assert left[0].startswith(f"{4:012d}-")
    assert commit_ids.find(storage, commit_ids.FILES_MAX + 3) == "ab" * 8
    assert commit_ids.find(storage, 2) == ""


def test_a_process_whose_folder_is_replaced_stops(tmp_path: Path) -> None:
    log = opened(tmp_path / "log")
    append(log, 1)
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    append(log, 2)
    shutil.rmtree(tmp_path / "log")
    shutil.copytree(tmp_path / "copy", tmp_path / "log")
    for _ in range(2):
        with refused(WorkspaceMissingError):
            append(log, 3)
        with refused(WorkspaceMissingError):
            log.sequence()
    log.close()
