"""Options of a declaration become targets, or are refused with a sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.connections import SINK_OPTIONS
from headwater.log.protocol import Log
from headwater.sinks.declared import MODES, mode_of, open_declared
from headwater.sinks.deliveries import LogKeeper
from headwater.sinks.target import SinkError, StandMovedError
from tests.sinks.samples import contents_at, follow, same_rows, shape


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log of a workspace."""
    with hw.open(tmp_path / "ws") as workspace:
        yield workspace.log


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("search", {"text": "word", "language": "english"}),
        ("search", {"path": "@/elsewhere"}),
        ("lake", {"file_rows": 100, "snapshots": 3}),
        ("lake", {"warehouse": "@/lake", "table": "sales.orders"}),
        ("lake", {"catalog": '{"type": "sql", "uri": "sqlite:///@/c.db", "warehouse": "file://@/files"}'}),
        ("parquet", {}),
        ("topic", {"topic": "copy", "partitions": 2}),
    ],
)
def test_each_kind_is_made_of_its_options_and_follows(
    tmp_path: Path, log: Log, kind: str, options: dict[str, Any]
) -> None:
    there = {k: v.replace("@", str(tmp_path)) if isinstance(v, str) else v for k, v in options.items()}
    assert set(options) <= set(SINK_OPTIONS[kind])
    target = open_declared(kind, "s", there, place=tmp_path / "place", log=log)
    target.prepare(shape())
    follow(target, range(1, 4))
    assert same_rows(target.contents(), [contents_at(3)])
    assert (tmp_path / "place").exists() == (
        kind != "topic" and not {"path", "warehouse", "catalog"} & set(options)
    )
    target.close()


def test_a_function_is_called_and_where_it_stands_is_in_the_log(tmp_path: Path, log: Log) -> None:
    keys: list[str] = []

    def made(function: str) -> Any:
        target = open_declared(
            "python",
            "s",
            {"function": function},
            place=tmp_path,
            log=log,
            function=lambda _, key: keys.append(key),
        )
        target.prepare(shape())
        return target

    stand = follow(made("send"), range(1, 4))
    assert len(keys) == 3
    assert made("send").stand() == stand
    assert made("other").stand() is None
    LogKeeper(log, "s", of="send").forget()
    assert made("send").stand() is None


def test_of_two_processes_that_write_a_stand_at_the_same_time_one_is_told(log: Log) -> None:
    one, other = LogKeeper(log, "s", of="send"), LogKeeper(log, "s", of="send")
    assert one.read() is other.read() is None
    one.write("first")
    with pytest.raises(StandMovedError):
        other.write("second")
    assert one.read() == "first"
    other.write("second")  # it has read since
    with pytest.raises(StandMovedError):
        LogKeeper(log, "s", of="send").write("third")
    assert other.read() == "second"


def test_a_webhook_takes_spans_and_counts(tmp_path: Path, log: Log) -> None:
    options = {"url": "http://127.0.0.1:1/x", "timeout": "2 seconds", "rows": 7, "secret": "s", "token": "t"}
    target: Any = open_declared("webhook", "s", options, place=tmp_path, log=log)
    assert (target._options.timeout_s, target._options.rows) == (2.0, 7)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("lake", {"file_rows": 0}, "file_rows is a whole number from 1 up"),
        ("lake", {"catalog": "{nonsense"}, "catalog is the name of a catalog"),
        ("topic", {}, "topic is a text"),
        ("webhook", {"url": "http://x", "timeout": 5}, "timeout is a span of time"),
        ("python", {"function": "f"}, "this process has no code for it"),
        ("fax", {}, "there are no sinks of kind 'fax'"),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, log: Log, kind: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(hw.UsageError, match=said):
        open_declared(kind, "s", options, place=tmp_path, log=log)


def test_a_catalog_that_nobody_configured_is_told(tmp_path: Path, log: Log) -> None:
    target = open_declared("lake", "s", {"catalog": "unheard_of"}, place=tmp_path, log=log)
    with pytest.raises(SinkError, match="cannot be read or written"):
        target.prepare(shape())


def test_modes_are_those_of_the_kind() -> None:
    assert [mode_of(kind, {}) for kind in MODES] == ["upsert"] * len(MODES)
    assert mode_of("lake", {"mode": "changelog"}) == "changelog"
    with pytest.raises(hw.UsageError, match="mode of a sink into SEARCH is 'upsert', not 'append'"):
        mode_of("search", {"mode": "append"})
    assert {*MODES, "postgres", "redis"} == set(SINK_OPTIONS)
