"""The index is a shortcut, not the truth: segments alone are enough to make it again."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import to_us
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog

START = datetime(2026, 1, 1, tzinfo=UTC)


def filled(path: Path) -> EmbeddedLog:
    """Many frames of a few kilobytes, so that the index has several entries and leaves most frames out."""
    with hw.open(path, settings=LogSettings(durability="os", maintenance_every_ms=0)) as ws:
        topic = ws.topic("t", "at TIMESTAMP, text STRING", time="at", lateness="1 minute")
        for n in range(120):
            topic.append([{"at": START + timedelta(minutes=n), "text": "x" * 3_000}])
            if n % 40 == 7:
                topic.punctuate(START + timedelta(minutes=n + 1))
    return EmbeddedLog.open(path)


def answers(log: EmbeddedLog) -> list[object]:
    """What goes through the index: reads from the middle, watermarks, and seeks by both times."""
    end = log.partitions("t")[0].end
    rows = [offset for b in log.read("t", 0, end // 2, end) for offset in b.column("_offset").to_pylist()]
    watermarks = [log.watermark("t", 0, offset) for offset in range(end + 1)]
    seeks = [log.offset_at("t", 0, to_us(START + timedelta(minutes=n)), "event") for n in range(0, 120, 7)]
    appended = [log.appended_at("t", 0, offset) for offset in range(end)]
    return [rows, watermarks, seeks, appended]


def test_the_stored_index_is_a_part_of_what_the_frames_say(tmp_path: Path) -> None:
    log = filled(tmp_path / "w")
    (segment,) = log.core.journal.state.topics["t"].partitions[0].segments
    rebuilt = log.reader.rebuilt_index(segment)
    assert len(rebuilt) == 123
    assert 3 < len(segment.index) < 30
    assert all(entry in rebuilt for entry in segment.index)
    log.close()


@pytest.mark.parametrize("kept", ["first", "all"])
def test_an_index_made_again_gives_the_same_answers(tmp_path: Path, kept: str) -> None:
    log = filled(tmp_path / "w")
    before = answers(log)
    (segment,) = log.core.journal.state.topics["t"].partitions[0].segments
    rebuilt = log.reader.rebuilt_index(segment)
    segment.index[:] = rebuilt[:1] if kept == "first" else rebuilt
    assert answers(log) == before
    log.close()


def test_sealed_segments_need_no_index_but_their_own_columns(tmp_path: Path) -> None:
    log = filled(tmp_path / "w")
    before = answers(log)
    log.maintain(force=True)
    (segment,) = log.core.journal.state.topics["t"].partitions[0].segments
    assert (segment.kind, segment.index) == ("parquet", [])
    assert answers(log) == before
    log.close()


def test_verify_finds_an_index_that_no_frame_bears_out(tmp_path: Path) -> None:
    log = filled(tmp_path / "w")
    (segment,) = log.core.journal.state.topics["t"].partitions[0].segments
    segment.index[1][4] += 1
    findings = [found for found in log.verify() if not isinstance(found, int)]
    assert [found.file for found in findings] == [segment.name]
    assert "index" in findings[0].message
    log.close()
