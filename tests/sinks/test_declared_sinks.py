"""Options of a declaration become targets, or are refused with a sentence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import headwater as hw
from headwater.catalog.connector_kinds import MODES, SINK_KINDS
from headwater.catalog.connectors import SINK_OPTIONS, SinkDefinition
from headwater.log.protocol import Log
from headwater.sinks.base.at_least_once import LogKeeper
from headwater.sinks.base.target import CheckpointConflictError, Mode, SinkError
from headwater.sinks.registry import mode_of, open_target, place_of
from tests.raising import raises
from tests.sinks.samples import contents_at, follow, same_rows, shape


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """The log of a workspace."""
    with hw.open(tmp_path / "ws") as workspace:
        yield workspace.log


def declared(kind: str, options: dict[str, Any]) -> SinkDefinition:
    """A declaration of a sink."""
    return SinkDefinition("s", kind, options, "v")


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
    made = declared(kind, there)
    target = open_target(made, tmp_path, log, {})
    target.prepare(shape())
    follow(target, range(1, 4))
    assert same_rows(target.contents(), [contents_at(3)])
    assert place_of(made, tmp_path).exists() == (
        kind != "topic" and not {"path", "warehouse", "catalog"} & set(options)
    )
    target.close()


def test_a_function_is_called_and_where_it_stands_is_in_the_log(tmp_path: Path, log: Log) -> None:
    keys: list[str] = []

    def made(function: str) -> Any:
        functions = {function: lambda _, key: keys.append(key)}
        target = open_target(declared("python", {"function": function}), tmp_path, log, functions)
        target.prepare(shape())
        return target

    checkpoint = follow(made("send"), range(1, 4))
    assert len(keys) == 3
    assert made("send").checkpoint() == checkpoint
    assert made("other").checkpoint() is None
    LogKeeper(log, "s", of="send").forget()
    assert made("send").checkpoint() is None


def test_of_two_processes_that_write_a_stand_at_the_same_time_one_is_told(log: Log) -> None:
    one, other = LogKeeper(log, "s", of="send"), LogKeeper(log, "s", of="send")
    assert one.read() is other.read() is None
    one.write("first")
    with pytest.raises(CheckpointConflictError):
        other.write("second")
    assert one.read() == "first"
    other.write("second")  # it has read since
    with pytest.raises(CheckpointConflictError):
        LogKeeper(log, "s", of="send").write("third")
    assert other.read() == "second"


def test_a_webhook_takes_spans_and_counts(tmp_path: Path, log: Log) -> None:
    options = {"url": "http://127.0.0.1:1/x", "timeout": "2 seconds", "rows": 7, "secret": "s", "token": "t"}
    target: Any = open_target(declared("webhook", options), tmp_path, log, {})
    assert (target._options.timeout_s, target._options.rows) == (2.0, 7)


@pytest.mark.parametrize(
    ("kind", "options", "error", "facts"),
    [
        ("lake", {"file_rows": 0}, hw.UsageError, {"argument": "file_rows", "value": 0}),
        ("lake", {"catalog": "{nonsense"}, hw.UsageError, {"option": "catalog"}),
        ("topic", {}, hw.UsageError, {"argument": "topic", "value": None}),
        ("webhook", {"url": "http://x", "timeout": 5}, hw.UsageError, {"argument": "timeout", "value": 5}),
        ("python", {"function": "f"}, SinkError, {"sink": "s", "function": "f"}),
        ("fax", {}, hw.UsageError, {"sink": "s", "kind": "fax"}),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path,
    log: Log,
    kind: str,
    options: dict[str, Any],
    error: type[hw.HeadwaterError],
    facts: dict[str, Any],
) -> None:
    with raises(error, **facts):
        open_target(declared(kind, options), tmp_path, log, {})


def test_a_catalog_that_nobody_configured_is_told(tmp_path: Path, log: Log) -> None:
    target = open_target(declared("lake", {"catalog": "unheard_of"}), tmp_path, log, {})
    with raises(SinkError, table="headwater.s"):
        target.prepare(shape())


def test_modes_are_those_of_the_kind() -> None:
    assert {mode_of(kind, {}) for kind in SINK_KINDS} == {"upsert"}
    assert set(MODES) == set(get_args(Mode))
    assert mode_of("lake", {"mode": "changelog"}) == "changelog"
    with raises(hw.UsageError, kind="search", option="mode", value="append"):
        mode_of("search", {"mode": "append"})
