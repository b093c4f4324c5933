"""Dead letters of sources: lines that a source of files diverted, listed, edited, dropped, and taken once when they are replayed."""

from __future__ import annotations

import dataclasses
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headwater as hw
from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.connectors.dead_letters.dead_letters import DeadLetters, Replayed
from headwater.core.positions import Receipt
from headwater.log.protocol import Append
from headwater.sources.clock_positions import captured, owned, rows_of
from headwater.sources.files.options import errors_topic
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PowerCut(OSError):
    """The end of an append."""


def source(ws: hw.Workspace, folder: Path, name: str = "logs", **options: str) -> None:
    """Make a source of the files in a folder that diverts lines, and take in what is there."""
    given = {"path": str(folder / "*"), "format": "json", "on_error": "divert", **options}
    said = ", ".join(f"{option} = '{value}'" for option, value in given.items())
    ws.sql(f"CREATE OR REPLACE SOURCE {name} FROM FILES WITH ({said})")
    ws.run()


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        yield ws


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "in"
    made.mkdir()
    return made


@pytest.fixture
def dead(ws: hw.Workspace, folder: Path) -> DeadLetters:
    """Three good lines and three that are not, of JSON."""
    (folder / "a.json").write_text(
        '{"id": 1}\n{"id": "x"}\n{"id": 2}\nnothing\n{"id": 3}\n{"id": 4, "at": 5}\n'
    )
    source(ws, folder, columns="id BIGINT")
    return ws.dead()


def ids(ws: hw.Workspace, topic: str = "logs") -> list[int]:
    return sorted(ws.query(f"SELECT id FROM {topic}").column("id").to_pylist())


def test_lines_that_a_source_diverted_are_dead_letters_with_file_byte_and_reason(dead: DeadLetters) -> None:
    found = dead.list("logs").to_pylist()
    assert [row["letter"] for row in found] == [f"logs/logs_errors-0-{n}" for n in (2, 1, 0)]
    assert {(row["kind"], row["owner"], row["state"]) for row in found} == {("source", "logs", "open")}
    one = dead.show("LOGS/logs_errors-0-1")
    assert '"byte":32,"line":"nothing"' in one.letter.row
    assert one.letter.error == "a line is one JSON object"
    assert dead.counts()["logs", "source"]["open"] == 3


def test_an_edited_line_is_read_by_the_sources_format_and_taken_once(
    ws: hw.Workspace, dead: DeadLetters
) -> None:
    with raises(hw.BadRowError):
        dead.edit("logs/logs_errors-0-1", {"line": "still nothing"})
    with raises(hw.UsageError, letter="logs/logs_errors-0-1", column="id"):
        dead.edit("logs/logs_errors-0-1", {"id": 7})
    one = dead.edit("logs/logs_errors-0-1", {"line": '{"id": 7}'}, by="anna")
    assert (one.state, one.actions[-1].who) == ("edited", "anna")
    assert dead.replay(one.id).taken == (one.id,)
    assert dead.replay(one.id).before == (one.id,)
    assert ids(ws) == [1, 2, 3, 7]
    assert dead.show(one.id).state == "replayed"
    assert dead.list("logs")["letter"].to_pylist() == ["logs/logs_errors-0-2", "logs/logs_errors-0-0"]


def test_a_line_that_is_still_refused_stays_with_the_reason(ws: hw.Workspace, dead: DeadLetters) -> None:
    done = dead.replay(of="logs")
    assert (done.taken, len(done.left)) == ((), 3)
    assert done.left["logs/logs_errors-0-1"] == "a line is one JSON object"
    assert ids(ws) == [1, 2, 3]


def test_an_unedited_line_is_taken_once_the_topic_has_its_column(
    ws: hw.Workspace, folder: Path, dead: DeadLetters
) -> None:
    source(ws, folder, columns="id BIGINT, at BIGINT")
    assert dead.replay(of="logs").taken == ("logs/logs_errors-0-2",)
    assert ws.query("SELECT at FROM logs WHERE id = 4").to_pylist() == [{"at": 5}]


def test_what_is_dropped_is_listed_no_more_and_an_edit_takes_it_up_again(
    ws: hw.Workspace, dead: DeadLetters
) -> None:
    assert len(dead.drop(of="logs", reason="noise")) == 3
    assert dead.list("logs").num_rows == 0
    assert "was dropped by" in dead.replay("logs/logs_errors-0-0").left["logs/logs_errors-0-0"]
    dead.edit("logs/logs_errors-0-0", {"line": '{"id": 9}'})
    assert dead.replay(of="logs").taken == ("logs/logs_errors-0-0",)
    assert ids(ws) == [1, 2, 3, 9]


def test_two_who_replay_at_once_have_a_line_taken_once(ws: hw.Workspace, dead: DeadLetters) -> None:
    names = [f"logs/logs_errors-0-{n}" for n in range(3)]
    for number, name in enumerate(names):
        dead.edit(name, {"line": f'{{"id": {10 + number}}}'})
    begin, done = threading.Barrier(4), list[Replayed]()

    def replay() -> None:
        begin.wait()
        done.append(ws.dead().replay(of="logs"))

    threads = [threading.Thread(target=replay) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(ws) == [1, 2, 3, 10, 11, 12]
    assert sorted(letter for one in done for letter in one.taken) == names


def test_a_letter_is_taken_once_wherever_its_replay_breaks_off(
    ws: hw.Workspace, dead: DeadLetters, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead.edit("logs/logs_errors-0-1", {"line": '{"id": 7}'})
    append = ws.log.append

    def breaking(given: Append) -> Receipt:
        done = append(given) if is_written else None
        raise PowerCut(f"the append was made: {done is not None}")

    for is_written in (False, True):
        monkeypatch.setattr(ws.log, "append", breaking)
        with pytest.raises(PowerCut):
            dead.replay("logs/logs_errors-0-1")
        monkeypatch.setattr(ws.log, "append", append)
        assert ids(ws) == ([1, 2, 3, 7] if is_written else [1, 2, 3])
    assert dead.replay("logs/logs_errors-0-1").before == ("logs/logs_errors-0-1",)
    assert ids(ws) == [1, 2, 3, 7]


def test_a_line_of_csv_is_read_by_the_header_of_its_file(ws: hw.Workspace, folder: Path) -> None:
    (folder / "a.csv").write_text("name,id\nx,1\ny,oops\n")
    source(ws, folder, format="csv", columns="id BIGINT, name STRING")
    (folder / "a.csv").unlink()
    dead = ws.dead()
    dead.edit("logs/logs_errors-0-0", {"line": "y,2"})
    assert dead.replay(of="logs").ok
    assert ws.query("SELECT id, name FROM logs WHERE id = 2").to_pylist() == [{"id": 2, "name": "y"}]


def test_lines_that_an_earlier_version_stored_without_a_header_are_read_by_the_file_if_it_is_there(
    ws: hw.Workspace, folder: Path
) -> None:
    (folder / "a.csv").write_text("name,id\nx,1\n")
    usual = errors_topic("logs")
    ws.log.create_topic(owned("logs", define_topic("logs_errors", pa.schema(list(usual.schema)[:4]))))
    source(ws, folder, format="csv", columns="id BIGINT, name STRING")
    old = ws.log.topic("logs_errors")
    assert "header" in old.schema.names, "a source that is declared again adds the column"
    ws.log.alter_topic(old, dataclasses.replace(old, schema=old.schema))
    rows = [{"file": str(folder / "a.csv"), "byte": 12, "line": "y,oops", "reason": "no number"}]
    (folder / "a.csv").write_text("name,id\nx,1\ny,oops\n")
    ws.log.append(Append({"logs_errors": [captured(conform(rows, rows_of(old), captured=True), old, 1, 1)]}))
    dead = ws.dead()
    dead.edit("logs/logs_errors-0-0", {"line": "y,2"})
    (folder / "a.csv").write_text("id,name\n1,x\n")
    assert "header of" in dead.replay(of="logs").left["logs/logs_errors-0-0"]
    (folder / "a.csv").write_text("name,id\nx,1\ny,oops\n")
    assert dead.replay("logs/logs_errors-0-0").ok
    assert {"id": 2, "name": "y"} in ws.query("SELECT id, name FROM logs").to_pylist()


def test_a_row_of_a_parquet_file_is_edited_as_json(ws: hw.Workspace, folder: Path) -> None:
    pq.write_table(pa.table({"id": [1, None], "price": [1.5, float("nan")]}), folder / "a.parquet")
    source(ws, folder, format="parquet", columns="id BIGINT NOT NULL, price DOUBLE")
    (row,) = ws.dead().list().to_pylist()
    assert '{\\"id\\":null,\\"price\\":\\"nan\\"}' in row["row"]
    ws.dead().edit(row["letter"], {"line": '{"id": 2, "price": "nan"}'})
    assert ws.dead().replay(of="logs").ok
    (price,) = ws.query("SELECT price FROM logs WHERE id = 2").column("price").to_pylist()
    assert math.isnan(price)


def test_a_file_that_cannot_be_read_as_a_whole_is_neither_edited_nor_replayed(
    ws: hw.Workspace, folder: Path
) -> None:
    (folder / "a.parquet").write_bytes(b"PAR1 and nothing more")
    os.utime(folder / "a.parquet", (1, 1))
    source(ws, folder, format="parquet", columns="id BIGINT", settle="0 seconds")
    (row,) = ws.dead().list().to_pylist()
    with raises(hw.UsageError, letter=row["letter"], file=str(folder / "a.parquet")):
        ws.dead().edit(row["letter"], {"line": "{}"})
    assert "under another name" in ws.dead().replay(of="logs").left[row["letter"]]
    assert ws.dead().drop(of="logs") == (row["letter"],)


def test_a_line_does_not_replace_a_newer_record_of_its_key_unless_forced(
    ws: hw.Workspace, folder: Path
) -> None:
    (folder / "a.json").write_text('{"id": 1, "n": "x"}\n{"id": 2, "n": "x"}\n')
    source(ws, folder, columns="id BIGINT, n BIGINT, PRIMARY KEY (id)")
    (folder / "b.json").write_text('{"id": 1, "n": 5}\n')
    ws.run()
    dead = ws.dead()
    for number in (1, 2):
        dead.edit(f"logs/logs_errors-0-{number - 1}", {"line": f'{{"id": {number}, "n": 3}}'})
    done = dead.replay(of="logs")
    assert done.taken == ("logs/logs_errors-0-1",)
    assert "force replaces" in done.left["logs/logs_errors-0-0"]
    assert dead.replay("logs/logs_errors-0-0", force=True).ok
    assert sorted(ws.query("SELECT n FROM logs").column("n").to_pylist()) == [3, 3]


def test_letters_of_a_source_that_is_dropped_are_listed_and_only_dropped(
    ws: hw.Workspace, dead: DeadLetters
) -> None:
    ws.sql("DROP SOURCE logs")
    assert dead.list("logs").num_rows == 3
    with raises(hw.UsageError, source="logs"):
        dead.replay(of="logs")
    assert len(dead.drop(of="logs")) == 3


def test_of_many_letters_only_the_newest_are_read_and_all_are_counted(ws: hw.Workspace, folder: Path) -> None:
    (folder / "a.json").write_text("".join(f"bad {n}\n" for n in range(500)))
    source(ws, folder, columns="id BIGINT")
    dead = ws.dead()
    dead.drop([f"logs/logs_errors-0-{n}" for n in (3, 498, 499)])
    for state in ("open", "all", "dropped"):
        whole = dead.find("logs", state)
        for limit in (0, 1, 200, 1_000):
            page = dead.page("logs", state, limit)
            assert [one.id for one in page.letters] == [one.id for one in whole[:limit]]
            assert page.total == len(whole)
    assert inspect_workspace(ws).supervisor.open_letters()["source", "logs"] == 497
