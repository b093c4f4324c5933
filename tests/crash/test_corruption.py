"""A byte of every kind is changed in every kind of file: the damage is named, never read, and the rest stays readable."""

import dataclasses
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest

from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError, NewerVersionError
from headwater.core.storage import Storage
from headwater.log.embedded import EmbeddedLog
from headwater.log.embedded.journal.journal_file import RECORD, Scanned, scan
from headwater.log.protocol import CursorMove, Finding, Producer
from tests.crash.script import CLICKS, CUSTOMERS, ORDERS, SETTINGS, append, clicks, numbers, people
from tests.raising import raises

ROOMY = dataclasses.replace(SETTINGS, checkpoint_bytes=60_000)
Rows = dict[tuple[str, int], dict[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Rows]:
    """A workspace with sealed, compacted and active segments, two checkpoints and a journal; and what is in it."""
    folder = tmp_path_factory.mktemp("truth") / "ws"
    clock = ManualClock()
    log = EmbeddedLog.open(folder, settings=ROOMY, clock=clock)
    for definition in (CLICKS, ORDERS, CUSTOMERS):
        log.create_topic(definition)
    log.create_cursor("orders", "mailer", {0: 0}, False)
    append(log, {"clicks": clicks(0, 60), "customers": people(0, 12, "a")})
    log.punctuate("clicks", {0: 1_700_000_500_000_000})
    append(log, {"customers": people(0, 3, "b")})
    log.maintain(force=True)
    for _ in range(4):
        append(log, {"orders": numbers(0, 3)})
        with log.core.exclusive():
            log.core.checkpoint()
    append(log, {"orders": numbers(3, 4), "clicks": clicks(60, 8)}, producer=Producer("loader", 1))
    append(log, {"clicks": clicks(68, 90)})
    append(log, {"orders": numbers(7, 2)}, moves=(CursorMove("orders", "mailer", {0: 5}),))
    append(log, {"customers": people(0, 4, "c")})
    append(log, {"orders": numbers(9, 3), "clicks": clicks(158, 5)}, producer=Producer("loader", 2))
    rows = readable(log)[0]
    log.close()
    return folder, rows


def readable(log: EmbeddedLog) -> tuple[Rows, list[CorruptionError]]:
    """Everything that can be read, going on after damage where the error says; and the errors."""
    rows: Rows = {}
    errors = []
    for topic in log.topics():
        for partition, info in log.partitions(topic).items():
            found = rows[topic, partition] = {}
            at = info.first
            while at < info.end:
                try:
                    for batch in log.read(topic, partition, at, info.end):
                        for row in batch.to_pylist():
                            found[row["_offset"]] = row
                            at = row["_offset"] + 1
                    break
                except CorruptionError as error:
                    errors.append(error)
                    at = max(at + 1, error.next_offset)
    return rows, errors


def copy(truth: tuple[Path, Rows], tmp_path: Path) -> Path:
    target = tmp_path / "ws"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(truth[0], target)
    return target


def flip(path: Path, byte: int, change: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= change
    path.write_bytes(data)


def files(folder: Path, pattern: str) -> list[Path]:
    found = sorted(folder.glob(pattern))
    assert found, f"the workspace has no {pattern}"
    return found


def judge(folder: Path, truth: Rows, damaged: Path) -> tuple[Rows, str]:
    """Open, read and verify: nothing untrue is returned and the damage is named. What was read, and what was said."""
    name = str(damaged.relative_to(folder))
    log = EmbeddedLog.open(folder, settings=ROOMY, clock=ManualClock())
    found, errors = readable(log)
    for place, rows in found.items():
        for offset, row in rows.items():
            assert truth[place].get(offset) == row, f"{place} offset {offset} is read as {row}"
    problems = [f for f in log.verify() if isinstance(f, Finding)]
    said = "\n".join([*(f"{f.file} byte {f.byte}: {f.message}" for f in problems), *log.findings])
    said += "\n".join(f"{e.file} byte {e.offset}" for e in errors)
    assert "byte" in said
    assert name in said, f"nobody speaks of {name}, only: {said or 'nothing'}"
    log.close()
    return found, said


def spots(size: int, count: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(range(size), min(count, size)))


def test_the_journal_is_mended(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """Header, text, frames and padding of every record since the checkpoint: one changed byte loses nothing."""
    journal = sorted((truth[0] / "journal").iterdir())[-1]
    with_file = Storage(truth[0]).open(f"journal/{journal.name}")
    records = [s for s in scan(with_file, 0) if isinstance(s, Scanned)]
    with_file.close()
    chooser = random.Random(7)
    for scanned in records[1:]:
        text = struct.unpack_from("<I", journal.read_bytes(), scanned.start + 16)[0]
        header = [*range(RECORD.size)]
        body = [RECORD.size + at for at in spots(text, 2, scanned.start)]
        blob = [*range(RECORD.size + text, scanned.end - scanned.start)]
        for at in [*chooser.sample(header, 6), *body, *chooser.sample(blob, min(3, len(blob)))]:
            folder = copy(truth, tmp_path)
            flip(folder / "journal" / journal.name, scanned.start + at, chooser.choice([1, 64, 255]))
            found, said = judge(folder, truth[1], folder / "journal" / journal.name)
            assert found == truth[1], f"rows were lost: {said}"
            again = EmbeddedLog.open(folder, settings=ROOMY, clock=ManualClock())
            assert dict(again.cursor("orders", "mailer").positions) == {0: 5}  # type: ignore[union-attr]
            receipt = append(
                again, {"orders": numbers(9, 3), "clicks": clicks(158, 5)}, producer=Producer("loader", 2)
            )
            assert receipt.positions["orders"][0][1] == again.partitions("orders")[0].end, "a second copy"
            append(again, {"orders": numbers(100, 1)})
            rows = readable(again)[0]
            assert {o: r for o, r in rows["orders", 0].items() if o in truth[1]["orders", 0]} == truth[1][
                "orders", 0
            ]
            assert len(rows["orders", 0]) == len(truth[1]["orders", 0]) + 1
            again.close()


def test_a_record_of_the_journal_is_wiped_out(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """Far more than a byte: the rows come back from the segments, what only the record knew is named as lost."""
    journal = sorted((truth[0] / "journal").iterdir())[-1]
    with_file = Storage(truth[0]).open(f"journal/{journal.name}")
    records = [s for s in scan(with_file, 0) if isinstance(s, Scanned)]
    with_file.close()
    for scanned in records[1:]:
        folder = copy(truth, tmp_path)
        path = folder / "journal" / journal.name
        data = bytearray(path.read_bytes())
        data[scanned.start : scanned.end] = bytes(scanned.end - scanned.start)
        path.write_bytes(data)
        found, said = judge(folder, truth[1], path)
        assert found == truth[1], f"record {scanned.record} is lost: {said}"
        assert f"byte {scanned.start}" in said
        log = EmbeddedLog.open(folder, settings=ROOMY, clock=ManualClock())
        append(log, {"orders": numbers(100, 1), "clicks": clicks(500, 3)})
        rows, _ = readable(log)
        for place, expected in truth[1].items():
            assert {o: r for o, r in rows[place].items() if o in expected} == expected
        log.close()


@pytest.mark.parametrize("pattern", ["topics/*/*/*.arrow"])
def test_a_frame_is_damaged(truth: tuple[Path, Rows], tmp_path: Path, pattern: str) -> None:
    """Schema, continuation, length, metadata, body: the rows of that frame are missing, all others are there."""
    for path in files(truth[0], pattern):
        size = path.stat().st_size
        first = 8 + struct.unpack_from("<I", path.read_bytes(), 4)[0]
        places = [0, 5, first // 2, first, first + 4, first + 6, first + 60, first + 400, size - 9, size - 1]
        for at in [p for p in places if p < size] + spots(size, 4, size):
            folder = copy(truth, tmp_path)
            damaged = folder / path.relative_to(truth[0])
            flip(damaged, at, 0x55)
            found, _ = judge(folder, truth[1], damaged)
            topic, partition = damaged.parts[-3].rpartition("-")[0], int(damaged.parts[-2])
            for place, rows in truth[1].items():
                if place != (topic, partition):
                    assert found[place] == rows, f"{place} lost rows to damage in {damaged.name}"
            if at >= first:
                lost = set(truth[1][topic, partition]) - set(found[topic, partition])
                assert 0 < len(lost) < max(len(truth[1][topic, partition]), 2)


def test_a_sealed_file_is_damaged(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """Magic, page headers, page data, footer, its length and the magic at the end; and the steps beside it."""
    for path in files(truth[0], "topics/*/*/*.parquet*"):
        size = path.stat().st_size
        footer = (
            size - 8 - struct.unpack("<I", path.read_bytes()[-8:-4])[0] if path.suffix == ".parquet" else 0
        )
        places = [0, 3, 4, 6, 30, footer + 1, size - 20, size - 8, size - 6, size - 1]
        for at in [p for p in places if 0 <= p < size] + spots(size, 4, size):
            folder = copy(truth, tmp_path)
            damaged = folder / path.relative_to(truth[0])
            flip(damaged, at, 0x55)
            found, _ = judge(folder, truth[1], damaged)
            topic, partition = damaged.parts[-3].rpartition("-")[0], int(damaged.parts[-2])
            later = {p: rows for p, rows in truth[1].items() if p != (topic, partition)}
            assert {p: found[p] for p in later} == later


def test_a_checkpoint_is_damaged(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """The newest: the one before it and the journals since give the same."""
    newest = files(truth[0], "checkpoints/*.json")[-1]
    for at in [0, -1, *spots(newest.stat().st_size, 6, 1)]:
        folder = copy(truth, tmp_path)
        damaged = folder / newest.relative_to(truth[0])
        flip(damaged, at, 0x55)
        assert judge(folder, truth[1], damaged)[0] == truth[1]


def test_no_checkpoint_is_left(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    folder = copy(truth, tmp_path)
    for path in files(folder, "checkpoints/*.json"):
        flip(path, 10, 0x55)
    with raises(CorruptionError, reason="no-checkpoint"):
        EmbeddedLog.open(folder, settings=ROOMY)


def test_the_head_is_damaged(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """It only says how far to look; it is written anew."""
    for at in range(0, 56, 5):
        folder = copy(truth, tmp_path)
        flip(folder / "head", at, 0x55)
        log = EmbeddedLog.open(folder, settings=ROOMY, clock=ManualClock())
        assert readable(log)[0] == truth[1]
        log.close()


def test_the_head_and_the_last_record_are_damaged(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    """Records prove that those before them were durable; only the very last one has no such witness."""
    folder = copy(truth, tmp_path)
    journal = sorted((folder / "journal").iterdir())[-1]
    with_file = Storage(folder).open(f"journal/{journal.name}")
    records = [s for s in scan(with_file, 0) if isinstance(s, Scanned)]
    with_file.close()
    (folder / "head").write_bytes(b"")
    flip(journal, records[-3].start + 40, 1)
    log = EmbeddedLog.open(folder, settings=ROOMY, clock=ManualClock())
    assert readable(log)[0] == truth[1]
    log.close()


def test_the_workspace_file_is_damaged(truth: tuple[Path, Rows], tmp_path: Path) -> None:
    size = (truth[0] / "headwater.json").stat().st_size
    for at in range(0, size, 7):
        folder = copy(truth, tmp_path)
        flip(folder / "headwater.json", at, 0x02)
        if (truth[0] / "headwater.json").read_bytes()[at : at + 1].isspace():
            continue  # that may be no damage at all
        with pytest.raises((CorruptionError, NewerVersionError)) as caught:
            EmbeddedLog.open(folder, settings=ROOMY).close()
        assert type(caught.value) is NewerVersionError or caught.value.file == "headwater.json"
