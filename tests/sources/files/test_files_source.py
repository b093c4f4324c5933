"""Files as a source: rotations, last lines, formats, and lines that do not fit."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headwater as hw
from headwater.connectors.manage.source_schema_evolution import define
from headwater.core.clock import SystemClock
from headwater.core.errors import SourceError, UsageError
from headwater.log.memory import MemoryLog
from headwater.sources.files import scan_files, tracking
from headwater.sources.files.files_source import FilesSource
from headwater.sources.files.formats import LineReader, MalformedLine
from headwater.sources.files.lines import split
from headwater.sources.files.options import columns_topic, read_options
from headwater.sources.source_runner import Capture, producer_of
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


class MovedClock(SystemClock):
    """The machine's clock, some time later or earlier."""

    def __init__(self) -> None:
        self.later_us = 0

    def now_us(self) -> int:
        return super().now_us() + self.later_us


class Folder:
    """Files in a folder, and a source that follows them into a log."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder
        self.log = MemoryLog()
        self.clock = MovedClock()
        self.options = {"path": str(folder / "*"), "topic": "rows", **options}
        self.capture: Capture | None = None
        self.sleep: Any = lambda seconds: None

    def source(self) -> FilesSource:
        producer = lambda: self.log.producer(producer_of("files"))  # noqa: E731
        return FilesSource(
            "files", self.options, self.log.topics().get, producer, clock=self.clock, sleep=self.sleep
        )

    def start(self) -> Capture:
        """Another process."""
        source = self.source()
        for topic in source.check():
            define(self.log, pytest.fail, topic)
        source = self.source()
        self.capture = Capture(self.log, "files", source, pytest.fail, self.clock)
        return self.capture

    def catch_up(self) -> list[Row]:
        """The rows of the topic, with all that can be taken now."""
        capture = self.capture or self.start()
        capture.run(until=capture.end())
        return self.rows()

    def rows(self, topic: str = "rows") -> list[Row]:
        names = self.log.topic(topic).schema.names
        found: list[Row] = []
        for partition, info in self.log.partitions(topic).items():
            for batch in self.log.read(topic, partition, info.first, info.end, names):
                found += batch.to_pylist()
        return found

    def numbers(self) -> list[int]:
        return [row["n"] for row in self.catch_up()]

    def write(self, name: str, text: str | bytes, *, old: bool = False) -> Path:
        """Add to a file; an old one has not changed for long."""
        path = self.path / name
        with path.open("ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        if old:
            os.utime(path, (1_000_000_000, 1_000_000_000))
        return path


def lines_of(*numbers: int) -> str:
    return "".join(json.dumps({"n": n}) + "\n" for n in numbers)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    path = tmp_path / "in"
    path.mkdir()
    return Folder(path, format="json", columns="n BIGINT")


# --- last lines ------------------------------------------------------------------------------------------------------


def test_a_last_object_without_its_line_end_is_taken_and_half_an_object_waits(folder: Folder) -> None:
    folder.write("a.json", '{"n": 1}\n{"n": 2}')
    assert folder.numbers() == [1, 2]
    folder.write("a.json", '\n{"n": 3}\n{"n":')
    folder.options["settle"] = "1 hour"
    capture = folder.start()
    capture.run(until=0)
    assert [row["n"] for row in folder.rows()] == [1, 2, 3]
    folder.write("a.json", " 4}\n")
    assert folder.numbers() == [1, 2, 3, 4]


def test_half_an_object_in_a_file_that_is_still_keeps_nobody_waiting(folder: Folder) -> None:
    folder.write("a.json", '{"n": 1}\n{"n":', old=True)
    assert folder.numbers() == [1]
    assert folder.numbers() == [1]


def test_a_last_line_of_text_is_taken_once_the_file_is_still(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="csv", columns="n BIGINT", header=False, settle="4 seconds")
    folder.write("a.csv", "1\n2")

    def later(seconds: float) -> None:
        folder.clock.later_us += 1_000_000

    folder.sleep = later
    assert folder.numbers() == [1, 2]
    assert folder.clock.later_us >= 3_000_000
    folder.write("b.csv", "3\n4", old=True)
    assert folder.numbers() == [1, 2, 3, 4]


def test_a_run_does_not_wait_longer_for_a_line_than_a_few_seconds(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="lines", pattern=r"(?P<n>\d+)", columns="n BIGINT", settle="1 day")
    folder.write("a.log", "1\n2")

    def later(seconds: float) -> None:
        folder.clock.later_us += 1_000_000

    folder.sleep = later
    assert folder.numbers() == [1]
    assert folder.numbers() == [1]
    folder.write("a.log", "2\n")
    assert folder.numbers() == [1, 22]


def test_a_line_that_is_completed_meanwhile_is_one_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="lines", pattern=r"(?P<n>\d+)", columns="n BIGINT", settle="1 hour")
    folder.write("a.log", "1\n2")
    folder.sleep = lambda seconds: folder.write("a.log", "3\n") if "23" not in text() else None

    def text() -> str:
        return (tmp_path / "a.log").read_text()

    assert folder.numbers() == [1, 23]


# --- rotations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [False, True])
def test_a_file_that_is_renamed_is_read_to_its_end_though_its_name_is_not_followed(
    folder: Folder, restart: bool
) -> None:
    folder.options["path"] = str(folder.path / "app.json")
    log = folder.write("app.json", lines_of(1, 2))
    assert folder.numbers() == [1, 2]
    folder.write("app.json", lines_of(3))
    log.rename(folder.path / "app.json.1")
    folder.write("app.json", lines_of(10, 11))
    if restart:
        folder.start()
    assert sorted(folder.numbers()) == [1, 2, 3, 10, 11]
    folder.write("app.json.1", lines_of(4))  # who wrote it has not heard yet
    assert sorted(folder.numbers()) == [1, 2, 3, 4, 10, 11]


def test_the_rest_of_a_file_that_was_removed_is_read(folder: Folder) -> None:
    log = folder.write("a.json", lines_of(1))
    folder.start()
    reading = folder.source().read(None, -1)
    while type(next(reading)).__name__ != "Commit":
        pass
    folder.write("a.json", lines_of(2))
    log.unlink()
    events = [next(reading) for _ in range(3)]
    assert [event.batch.column("n").to_pylist() for event in events if hasattr(event, "batch")] == [[2]]
    reading.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("restart", [False, True])
def test_a_copy_that_was_made_before_truncation_is_read_on_from_where_the_log_is(
    folder: Folder, restart: bool
) -> None:
    log = folder.write("app.json", lines_of(1, 2))
    assert folder.numbers() == [1, 2]
    folder.write("app.json", lines_of(3))
    shutil.copyfile(log, folder.path / "app.json.1")
    os.truncate(log, 0)
    folder.write("app.json", lines_of(10))
    if restart:
        folder.start()
    assert sorted(folder.numbers()) == [1, 2, 3, 10]
    folder.start()
    assert len(folder.numbers()) == 4


def test_a_copy_is_not_read_while_its_original_may_be_about_to_go(folder: Folder) -> None:
    log = folder.write("app.json", lines_of(1, 2))
    assert folder.numbers() == [1, 2]
    shutil.copyfile(log, folder.path / "app.json.1")
    assert folder.numbers() == [1, 2]
    folder.clock.later_us = 60_000_000
    assert folder.numbers() == [1, 2, 1, 2]  # it did not go: so it is a file of its own


def test_a_copy_under_way_is_waited_for(folder: Folder) -> None:
    log = folder.write("app.json", lines_of(*range(200)))
    assert len(folder.numbers()) == 200
    text = log.read_bytes()
    folder.write("app.json.1", text[:700])
    assert len(folder.numbers()) == 200
    folder.write("app.json.1", text[700:] + lines_of(200).encode())
    os.truncate(log, 0)
    folder.write("app.json", lines_of(201))
    assert sorted(folder.numbers()) == list(range(202))


def test_a_new_file_and_its_copy_are_one_content(folder: Folder) -> None:
    log = folder.write("app.json", lines_of(1, 2))
    shutil.copyfile(log, folder.path / "app.json.1")
    assert folder.numbers() == [1, 2]
    os.truncate(log, 0)
    folder.write("app.json", lines_of(3))
    assert folder.numbers() == [1, 2, 3]
    folder.clock.later_us = 60_000_000
    assert folder.numbers() == [1, 2, 3]


def test_files_of_the_same_content_are_files(folder: Folder) -> None:
    folder.write("a.json", lines_of(1, 2))
    folder.write("b.json", lines_of(1, 2))
    assert folder.numbers() == [1, 2, 1, 2]
    folder.write("c.json", lines_of(1, 2))
    (folder.path / "a.json").unlink()
    assert folder.numbers() == [1, 2, 1, 2, 1, 2]


def test_a_file_that_is_compressed_after_rotation_is_not_read_again(folder: Folder) -> None:
    log = folder.write("app.json", lines_of(*range(1_000)))
    assert len(folder.numbers()) == 1_000
    folder.write("app.json", lines_of(1_000))
    with gzip.open(folder.path / "app.json.1.gz", "wb") as packed:
        packed.write(log.read_bytes())
    log.unlink()
    folder.start()
    assert folder.numbers() == list(range(1_001))
    folder.start()
    assert folder.numbers() == list(range(1_001))


def test_a_compressed_file_is_taken_when_it_is_whole(folder: Folder) -> None:
    whole = gzip.compress(lines_of(1, 2).encode())
    folder.write("a.json.gz", whole[:-6])
    assert folder.numbers() == []
    folder.write("a.json.gz", whole[-6:])
    assert folder.numbers() == [1, 2]


def test_another_file_with_the_number_of_an_old_one_is_another_file(folder: Folder) -> None:
    log = folder.write("a.json", lines_of(1, 2, 3))
    assert folder.numbers() == [1, 2, 3]
    with log.open("r+") as file:  # the same number, another content, and longer than the old one
        file.truncate()
        file.write(lines_of(*range(10, 20)))
    assert folder.numbers() == [1, 2, 3, *range(10, 20)]
    with log.open("r+") as file:
        file.truncate()
        file.write(lines_of(99))
    folder.start()
    assert folder.numbers() == [1, 2, 3, *range(10, 20), 99]


def test_a_file_that_comes_back_under_its_old_name_is_known(folder: Folder) -> None:
    log = folder.write("a.json", lines_of(1, 2), old=True)
    assert folder.numbers() == [1, 2]
    away = log.rename(folder.path.parent / "a.json.away")
    assert folder.numbers() == [1, 2]
    away.rename(log)
    folder.write("a.json", lines_of(3))
    folder.start()
    assert folder.numbers() == [1, 2, 3]


def test_files_that_are_gone_are_forgotten_after_a_while(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remembered() -> int:
        known = folder.log.producer(producer_of("files"))
        return len(known.note["files"]) if known and known.note else 0

    for number in range(20):
        folder.write(f"{number}.json", lines_of(number))
    assert len(folder.numbers()) == 20
    for number in range(20):
        (folder.path / f"{number}.json").unlink()
    monkeypatch.setattr(tracking, "FORMER_MAX", 5)
    folder.write("new.json", lines_of(20))
    assert len(folder.numbers()) == 21
    assert remembered() == 6
    folder.clock.later_us = 2 * tracking.FORGET_AFTER_US
    folder.write("new.json", lines_of(21))
    assert len(folder.numbers()) == 22
    assert remembered() == 1


def test_files_in_folders_below_are_found_by_a_pattern(folder: Folder) -> None:
    folder.options["path"] = str(folder.path / "**" / "*.json")
    (folder.path / "a" / "b").mkdir(parents=True)
    folder.write("1.json", lines_of(1), old=True)
    folder.write("a/b/2.json", lines_of(2))
    folder.write("a/b/2.txt", "no")
    assert folder.numbers() == [1, 2]


@pytest.mark.parametrize("path", ["", "[a-c]?.json", "*/../??.json"])
def test_a_path_may_be_a_folder_or_a_pattern(folder: Folder, path: str) -> None:
    folder.options["path"] = str(folder.path / path) if path else str(folder.path)
    (folder.path / "below").mkdir()
    folder.write("a1.json", lines_of(1))
    assert folder.numbers() == [1]


def test_a_clock_that_is_set_back_changes_nothing(folder: Folder) -> None:
    folder.write("a.json", lines_of(1))
    assert folder.numbers() == [1]
    folder.clock.later_us = -3_600_000_000
    folder.write("a.json", lines_of(2))
    assert folder.numbers() == [1, 2]
    folder.start()
    folder.write("a.json", lines_of(3))
    assert folder.numbers() == [1, 2, 3]


# --- formats ---------------------------------------------------------------------------------------------------------

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def test_json_has_the_types_of_the_topic(folder: Folder) -> None:
    folder.options["columns"] = (
        "i INT, d DECIMAL(10, 2), f DOUBLE, b BOOLEAN, s STRING, day DATE, at TIMESTAMP, raw BINARY, "
        "tags ARRAY<STRING>, who STRUCT<id: BIGINT, name: STRING>"
    )
    given = [
        '{"i": 1, "d": 1.50, "f": 2, "b": true, "s": "ü😀", "day": "2026-03-01", "at": "2026-03-01T12:00:00Z", '
        '"raw": "YQ==", "tags": ["a", null], "who": {"id": 1, "name": "x"}}',
        '{"at": "2026-03-01 13:00:00+01:00"}',
        '{"at": "2026-03-01T12:00:00"}',
        "",
        "{}",
    ]
    folder.write("a.json", b"\xef\xbb\xbf" + "\r\n".join(given).encode() + b"\r\n")
    first, *rest = folder.catch_up()
    assert first == {
        "i": 1,
        "d": Decimal("1.50"),
        "f": 2.0,
        "b": True,
        "s": "ü😀",
        "day": date(2026, 3, 1),
        "at": NOON,
        "raw": b"a",
        "tags": ["a", None],
        "who": {"id": 1, "name": "x"},
    }
    assert [row["at"] for row in rest] == [NOON, NOON, None]


BAD_JSON = [
    "no",
    '{"n": "1"}',
    '{"n": 1.5}',
    '{"n": 1, "m": 2}',
    '{"n": 1}{"n": 2}',
    "[1]",
    '{"n": 1',
    "5",
    "null",
]


def test_lines_that_do_not_fit_are_diverted_with_their_place_and_the_reason(folder: Folder) -> None:
    folder.options["on_error"] = "divert"
    text = "".join(f"{bad}\n{lines_of(at)}" for at, bad in enumerate(BAD_JSON))
    path = folder.write("a.json", text)
    assert folder.numbers() == list(range(len(BAD_JSON)))
    refused = folder.rows("files_errors")
    assert [row["line"] for row in refused] == BAD_JSON
    assert {row["file"] for row in refused} == {str(path)}
    for row in refused:
        assert text[row["byte"] :].startswith(row["line"])
        assert row["reason"]


def test_a_line_that_does_not_fit_stops_the_source_there(folder: Folder) -> None:
    folder.write("a.json", lines_of(1, 2) + "no\n" + lines_of(3))
    with raises(SourceError, source="files", file=str(folder.path / "a.json"), byte=18) as caught:
        folder.catch_up()
    assert str(caught.value.detail).endswith(": no")
    assert [row["n"] for row in folder.rows()] == [1, 2]
    folder.start()
    with pytest.raises(SourceError):
        folder.catch_up()
    folder.options["on_error"] = "divert"
    folder.start()
    assert folder.numbers() == [1, 2, 3]


def test_fields_that_are_no_columns_are_left_out_if_that_is_wanted(folder: Folder) -> None:
    folder.options["extra"] = "ignore"
    folder.write("a.json", '{"n": 1, "m": {"x": [1]}}\n')
    assert folder.numbers() == [1]


def test_rows_of_a_keyed_topic_may_be_tombstones(folder: Folder) -> None:
    folder.options |= {"columns": "n BIGINT, text STRING", "key": "n"}
    folder.write("a.json", '{"n": 1, "text": "a"}\n{"n": 1, "_op": "delete"}\n')
    folder.catch_up()
    topic = folder.log.topic("rows")
    assert topic.key == ("n",)
    assert topic.captured_by == "files"
    (batch,) = folder.log.read("rows", 0, 0, 2, ["n", "_op", "_source_time"])
    assert batch.column("_op").to_pylist() == ["upsert", "delete"]
    assert None not in batch.column("_source_time").to_pylist()


def test_csv_goes_by_its_header(tmp_path: Path) -> None:
    folder = Folder(
        tmp_path, format="csv", columns="n BIGINT, text STRING, at TIMESTAMP, day DATE, d DECIMAL(5,1)"
    )
    folder.write("a.csv", "TEXT,at,n,d,day\n")
    assert folder.catch_up() == []
    folder.write(
        "a.csv", '"a ""b"", c",2026-03-01T12:00:00Z,1,1.5,2026-03-01\n\n,2026-03-01 12:00:00,2,,\n"",,3,,\n'
    )
    folder.write("b.csv", "n\n4\n")
    rows = folder.catch_up()
    assert rows[0] == {"n": 1, "text": 'a "b", c', "at": NOON, "day": date(2026, 3, 1), "d": Decimal("1.5")}
    assert [(row["n"], row["text"], row["at"]) for row in rows[1:]] == [
        (2, None, NOON),
        (3, "", None),
        (4, None, None),
    ]


def test_csv_that_does_not_fit_is_found_line_by_line(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="csv", columns="n BIGINT, text STRING", on_error="divert")
    bad = ["x,a", "1,a,b", "1", '2,"open', "9999999999999999999,a"]
    folder.write("a.csv", "n,text\n1,a\n" + "".join(f"{line}\n7,b\n" for line in bad))
    assert folder.numbers() == [1, 7, 7, 7, 7, 7]
    assert [row["line"] for row in folder.rows("files_errors")] == bad


def test_csv_with_a_column_that_the_topic_does_not_have_is_refused_or_cut_down(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="csv", columns="n BIGINT")
    folder.write("a.csv", "n,other\n1,a\n")
    with raises(SourceError, file=str(tmp_path / "a.csv")) as caught:
        folder.catch_up()
    assert "'other'" in caught.value.facts["reason"]
    folder.options["on_error"] = "divert"
    folder.start()
    assert folder.numbers() == []
    assert [row["line"] for row in folder.rows("files_errors")] == ["1,a"]
    folder.options["extra"] = "ignore"
    folder.start()
    folder.write("a.csv", "2,b\n")
    assert folder.numbers() == [2]


def test_csv_fields_may_have_line_ends_if_they_are_said_to(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="csv", columns="n BIGINT, text STRING", multiline=True, settle="1 hour")
    folder.write("a.csv", 'n,text\n1,"a\nb"\n2,"c\n')
    capture = folder.start()
    capture.run(until=0)
    assert folder.rows() == [{"n": 1, "text": "a\nb"}]
    folder.write("a.csv", 'd"\n')
    assert folder.catch_up()[1] == {"n": 2, "text": "c\nd"}


def test_lines_are_taken_apart_by_a_pattern(tmp_path: Path) -> None:
    folder = Folder(
        tmp_path,
        format="lines",
        pattern=r'(?P<ip>\S+) \S+ \S+ \[(?P<at>[^\]]+)\] "(?P<request>[^"]*)" (?P<status>\d+) (?P<bytes>\d+|-)',
        columns="ip STRING, at TIMESTAMP, request STRING, status SMALLINT, bytes BIGINT",
        time_format="%d/%b/%Y:%H:%M:%S %z",
        null="-",
        on_error="divert",
    )
    folder.write("access.log", '10.0.0.1 - - [01/Mar/2026:05:00:00 -0700] "GET / HTTP/1.0" 200 512\n')
    folder.write("access.log", 'nonsense\n10.0.0.2 - - [01/Mar/2026:12:00:00 +0000] "-" 304 -\n\n')
    folder.write("access.log", b"\xff\xfe\n")
    folder.write("access.log", '10.0.0.3 - - [yesterday] "GET /" 99999 1\n')
    assert folder.catch_up() == [
        {"ip": "10.0.0.1", "at": NOON, "request": "GET / HTTP/1.0", "status": 200, "bytes": 512},
        {"ip": "10.0.0.2", "at": NOON, "request": None, "status": 304, "bytes": None},
    ]
    reasons = [row["reason"] for row in folder.rows("files_errors")]
    assert len(reasons) == 3
    assert reasons[0] == "it does not match the pattern"
    assert "'at' is not TIMESTAMP" in reasons[2]


def test_lines_without_a_pattern_are_one_column(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="lines")
    folder.write("a.log", "one\r\n\n  two\n")
    assert folder.catch_up() == [{"line": "one"}, {"line": ""}, {"line": "  two"}]


def test_lines_may_be_a_column_of_another_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="lines", columns="raw STRING")
    folder.write("a.log", "one\n")
    assert folder.catch_up() == [{"raw": "one"}]


def test_a_file_that_cannot_be_read_is_told(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder.write("a.json", lines_of(1))
    capture = folder.start()
    until = capture.end()

    def refuse(*arguments: Any) -> Any:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(scan_files, "open_content", refuse)
    with raises(SourceError, source="files", file=str(path)) as caught:
        capture.run(until=until)
    assert isinstance(caught.value.__cause__, PermissionError)


def parquet(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path)


def test_parquet_says_its_columns_itself_and_is_taken_once_and_whole(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="parquet")
    parquet(tmp_path / "a.parquet", n=pa.array([1, 2], pa.int32()), text=["a", "b"])
    assert folder.catch_up() == [{"n": 1, "text": "a"}, {"n": 2, "text": "b"}]
    parquet(tmp_path / ".b", n=pa.array(range(100_000), pa.int64()))
    data = (tmp_path / ".b").read_bytes()
    folder.write("b.parquet", data[:-5])
    assert len(folder.catch_up()) == 2
    folder.write("b.parquet", data[-5:])
    assert len(folder.catch_up()) == 100_002
    folder.start()
    assert len(folder.catch_up()) == 100_002
    os.utime(tmp_path / "b.parquet")
    assert len(folder.catch_up()) == 100_002


def test_parquet_that_does_not_fit_is_refused_by_file_or_by_row(tmp_path: Path) -> None:
    folder = Folder(tmp_path, format="parquet", columns="n INT NOT NULL", on_error="divert")
    parquet(tmp_path / "1.parquet", n=[1, None, 1 << 40, 4])
    parquet(tmp_path / "2.parquet", n=[5], other=[1])
    folder.write("3.parquet", b"this is not Parquet at all", old=True)
    parquet(tmp_path / "4.parquet", n=[6])
    assert sorted(folder.numbers()) == [1, 4, 6]
    told = {(Path(row["file"]).name, row["byte"]) for row in folder.rows("files_errors")}
    assert told == {("1.parquet", 1), ("1.parquet", 2), ("2.parquet", 0), ("3.parquet", 0)}
    folder.start()
    assert sorted(folder.numbers()) == [1, 4, 6]
    assert len(folder.rows("files_errors")) == 4
    folder.options["on_error"] = "stop"
    parquet(tmp_path / "5.parquet", n=[7])
    parquet(tmp_path / "6.parquet", n=[None])
    folder.start()
    with raises(SourceError, file=str(tmp_path / "6.parquet"), byte=0):
        folder.catch_up()
    assert sorted(row["n"] for row in folder.rows()) == [1, 4, 6, 7]


WORD = st.sampled_from(["1", "22", "-3", "x", '"', '"a"', '"a""b"', "", " ", "1.0", "null", "é", "0x1"])
TEXT_LINE = st.lists(WORD, min_size=1, max_size=3).map(",".join)
JSON_LINE = st.one_of(
    st.sampled_from(
        ["{}", "", "  ", "{", '{"n": 1', "[]", "null", '{"n": 1} {"n": 2}', '{"n": 1}}', '{"m": 1}']
    ),
    st.fixed_dictionaries(
        {},
        optional={
            "n": st.sampled_from([1, 2**63, 1.5, "1", None, True]),
            "text": st.sampled_from(["a", "", 1]),
        },
    ).map(json.dumps),
)


@pytest.mark.parametrize("format", ["json", "csv", "lines"])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_what_a_line_means_does_not_depend_on_the_lines_around_it(format: str, data: st.DataObject) -> None:
    pattern = {"pattern": "(?P<n>[^,]*),(?P<text>.*)"} if format == "lines" else {}
    options = read_options(
        "s", {"path": "x", "format": format, "columns": "n BIGINT, text STRING", **pattern}
    )
    topic = columns_topic("s", options)
    assert topic is not None
    reader = LineReader(options, topic)
    lines = data.draw(st.lists(JSON_LINE if format == "json" else TEXT_LINE, max_size=12))
    block = split("".join(line + "\n" for line in lines).encode(), 0)

    def flat(parts: Iterator[pa.RecordBatch | MalformedLine]) -> list[Any]:
        found: list[Any] = []
        for part in parts:
            found += [(part.byte, part.line)] if isinstance(part, MalformedLine) else part.to_pylist()
        return found

    one_by_one = [row for at in range(len(block)) for row in flat(reader.rows(block.part(at, at + 1)))]
    assert flat(reader.rows(block)) == one_by_one
    blank = sum(not line.strip() for line in lines)
    if format == "json":
        assert len(one_by_one) == len(lines) - blank


# --- declaring -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"format": "json"}, {"topic": "rows", "option": "columns"}),
        ({"format": "parquet"}, {"topic": "rows", "option": "columns"}),
        ({"format": "xml"}, {"option": "format", "value": "xml"}),
        ({"format": "json", "columns": "n BIGINT", "pattern": "x"}, {"option": "pattern", "format": "json"}),
        (
            {"format": "lines", "pattern": "(x", "columns": "n BIGINT"},
            {"option": "pattern", "reason": "syntax"},
        ),
        (
            {"format": "lines", "pattern": "x", "columns": "n BIGINT"},
            {"option": "pattern", "reason": "group-names"},
        ),
        (
            {"format": "lines", "pattern": "(?P<m>x)", "columns": "n BIGINT"},
            {"topic": "rows", "column": "m"},
        ),
        ({"format": "json", "columns": "m MAP<STRING, INT>"}, {"column": "m", "format": "json"}),
        ({"format": "csv", "columns": "m ARRAY<INT>"}, {"column": "m", "format": "csv"}),
        (
            {"format": "csv", "columns": "n BIGINT", "delimiter": "ab"},
            {"option": "delimiter", "value": "ab"},
        ),
        (
            {"format": "json", "columns": "n BIGINT", "on_error": "drop"},
            {"option": "on_error", "value": "drop"},
        ),
        ({"format": "json", "columns": "n BIGINT", "settle": 5}, {"argument": "settle", "value": 5}),
        ({"format": "json", "columns": "n BIGINT", "patth": "x"}, {"option": "patth"}),
        (
            {"format": "json", "columns": "n BIGINT", "path": "/no/such/folder/*"},
            {"folder": "/no/such/folder"},
        ),
        ({"path": "logs/*"}, {"option": "format"}),
    ],
)
def test_options_that_cannot_be_are_refused(
    tmp_path: Path, options: dict[str, Any], facts: dict[str, Any]
) -> None:
    with raises(UsageError, **facts):
        Folder(tmp_path, **options).start()


def test_a_topic_of_the_users_own_keeps_its_columns_and_its_other_writers(folder: Folder) -> None:
    from headwater.catalog.definitions import define_topic

    own = define_topic("rows", pa.schema([("n", pa.int64()), ("text", pa.string())]))
    folder.log.create_topic(own)
    folder.write("a.json", lines_of(1))
    with raises(UsageError, source="files", topic="rows"):
        folder.start()
    del folder.options["columns"]
    assert folder.catch_up() == [{"n": 1, "text": None}]
    assert folder.log.topic("rows").captured_by is None


def test_files_are_captured_into_views(tmp_path: Path, spark: SparkSession) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    path = logs / "a.json"
    path.write_text('{"user": 1, "amount": 5}\n{"user": 2, "amount": 7}\n')
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            f"CREATE SOURCE sales FROM FILES WITH (path = '{logs}/*.json', topic = 'sales', format = 'json', "
            "columns = 'user BIGINT, amount BIGINT', on_error = 'divert')"
        )
        ws.sql("CREATE MATERIALIZED VIEW totals AS SELECT sum(amount) AS total, count(*) AS n FROM sales")
        ws.run()
        assert ws.query("SELECT * FROM totals").to_pylist() == [{"total": 12, "n": 2}]
        with ws.start():
            for n in range(3, 6):
                with path.open("a") as file:
                    file.write(f'{{"user": 1, "amount": 1}}\nbad {n}\n')
                ws.run()
                assert ws.query("SELECT n FROM totals").to_pylist() == [{"n": n}]
        assert ws.sql("SELECT count(*) AS n FROM sales_errors").to_pylist() == [{"n": 3}]
        (shown,) = ws.sql("SHOW SOURCES").to_pylist()
        assert (shown["kind"], shown["topics"]) == ("files", "sales, sales_errors")
        with raises(UsageError, topic="sales", source="sales"):
            ws.topic("sales").append([{"user": 1, "amount": 1}])
        assert ws.verify().ok


def test_a_large_file_is_read_in_blocks(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.sources.files import lines

    monkeypatch.setattr(lines.read_blocks, "__kwdefaults__", {"quoted": False, "block_bytes": 64})
    monkeypatch.setattr(scan_files, "COMMIT_BYTES", 200)
    folder.write("a.json", lines_of(*range(500)) + '{"n":' + " " * 500 + "500}\n" + lines_of(501))
    assert folder.numbers() == list(range(502))
    assert folder.capture is not None
    assert folder.capture.progress.commits > 20
