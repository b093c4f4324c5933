"""Statements about sources and sinks that are there: altered while they run, explained, and told of when their target is down."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.catalog.connectors import SINK, EnvValue, SinkDefinition
from headwater.cli.program import cli
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Path:
    """A workspace with a source, a view and two sinks, which the tests share."""
    root = tmp_path_factory.mktemp("outside")
    (root / "clicks.jsonl").write_text('{"id": 1, "url": "/a"}\n')
    with hw.open(root / "ws", durability="os", spark=spark) as ws:
        ws.sql(
            f"""
            CREATE SOURCE clicks FROM FILES WITH (path = '{root}/clicks.jsonl', columns = 'id BIGINT, url STRING');
            CREATE MATERIALIZED VIEW urls AS SELECT url, count(*) AS n FROM clicks GROUP BY url;
            CREATE SINK files FROM urls INTO PARQUET;
            CREATE SINK found FROM urls INTO SEARCH WITH (text = 'url');
            """
        )
        ws.run()
    return root / "ws"


@pytest.fixture
def ws(folder: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(folder, durability="os", spark=spark) as opened:
        yield opened


def at_work(ws: hw.Workspace) -> set[int]:
    inspected = inspect_workspace(ws)
    sources, sinks = inspected.sources.runners.all(), inspected.sinks.runners.running()
    return {id(one) for one in (*sources.values(), *sinks.values())}


def facts(table: Any) -> dict[str, str]:
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_a_sink_is_altered_where_it_goes_on_and_refused_where_it_would_be_another(ws: hw.Workspace) -> None:
    ws.sql("ALTER SINK files SET (on_error = 'divert')")
    assert ws.sink("files").definition.options == {"on_error": "divert"}
    assert "files_errors" in [topic.name for topic in ws.topics()]
    before = ws.log.entries(SINK)["files"].sequence
    ws.sql("ALTER SINK files SET (on_error = 'divert')")
    assert ws.log.entries(SINK)["files"].sequence == before, "the same again changes nothing"
    ws.sql("ALTER SINK FILES SET (on_error = NULL)")
    assert ws.sink("files").definition.options == {}
    with raises(hw.UsageError, option="path", reason="fixed-option") as fixed:
        ws.sql("ALTER SINK files SET (path = '/elsewhere')")
    assert (
        fixed.value.hint == "CREATE OR REPLACE SINK files FROM urls INTO PARQUET WITH (path = '/elsewhere')"
    )
    with raises(hw.UsageError, option="url", reason="unknown-option"):
        ws.sql("ALTER SINK files SET (url = 'x')")
    with raises(hw.UsageError, sink="files", option="on_error", value="ignore"):
        ws.sql("ALTER SINK files SET (on_error = 'ignore')")
    with pytest.raises(hw.SinkNotFoundError):
        ws.sql("ALTER SINK nothing SET (on_error = 'stop')")


def test_what_another_process_alters_is_taken_up_by_a_running_engine(
    ws: hw.Workspace, folder: Path, spark: SparkSession
) -> None:
    with ws.start():
        while not inspect_workspace(ws).sinks.statuses() or not inspect_workspace(ws).sources.statuses():
            ws.log.wait_commit(ws.log.sequence(), 20)
        source = inspect_workspace(ws).sources.runners.all()["clicks"]
        sink = inspect_workspace(ws).sinks.runners.running()["files"]
        with hw.open(folder, durability="os", spark=spark) as other:
            other.sql(
                "ALTER SOURCE clicks SET (settle = '1 second'); ALTER SINK files SET (on_error = 'divert')"
            )
            with raises(hw.UsageError, option="format", reason="fixed-option"):
                other.sql("ALTER SOURCE clicks SET (format = 'csv')")
            with raises(hw.UsageError, source="clicks", folder="/nowhere/at/all"):
                other.sql("ALTER SOURCE clicks SET (path = '/nowhere/at/all/*.jsonl')")
        while {id(source), id(sink)} & at_work(ws):
            ws.log.wait_commit(ws.log.sequence(), 20)
        with (folder.parent / "clicks.jsonl").open("a") as file:
            file.write('{"id": 2, "url": "/b"}\n')
        while ws.sink("files").lag.ticks or len(ws.query("SELECT url FROM urls")) < 2:
            ws.log.wait_commit(ws.log.sequence(), 20)
    assert ws.verify(cheap=True).ok


def test_sources_and_sinks_are_explained(ws: hw.Workspace) -> None:
    source = facts(ws.sql("EXPLAIN SOURCE clicks"))
    assert source["guarantee"].startswith("exactly once: every whole line once")
    assert (source["kind"], source["topics"], source["state"]) == ("files", "clicks", "not running")
    assert facts(ws.sql("EXPLAIN clicks"))["topic"] == "clicks", "a topic comes first"
    sink = facts(ws.sql("EXPLAIN found"))
    assert sink == facts(ws.sql("EXPLAIN SINK FOUND"))
    assert sink["follows"] == "view urls"
    assert sink["key"].startswith("url: unique in view urls")
    assert sink["mode"].startswith("upsert")
    assert sink["guarantee"].startswith("exactly once")
    assert sink["checkpoint"].startswith("tick ")
    assert sink["statement"] == "CREATE SINK found FROM urls INTO SEARCH WITH (text = 'url')"
    with pytest.raises(hw.SourceNotFoundError):
        ws.sql("EXPLAIN SOURCE found")
    with raises(hw.TopicNotFoundError, topic="nothing"):
        ws.sql("EXPLAIN nothing")


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as server:
        yield server.getsockname()[1]


def test_a_target_that_does_not_answer_and_a_function_that_is_missing_hold_up_nobody(
    ws: hw.Workspace, folder: Path, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.connectors.manage.sink_probe.PATIENCE_S", 0.5)
    declared = {
        "cache": SinkDefinition("cache", "redis", {"url": f"redis://:geheim@127.0.0.1:{silent}"}, "urls"),
        "told": SinkDefinition("told", "python", {"function": "nowhere:at_all"}, "urls"),
        "locked": SinkDefinition("locked", "redis", {"url": EnvValue("NOT_SET_ANYWHERE")}, "urls"),
    }
    try:
        for name, made in declared.items():
            ws.log.put_entry(SINK, name, replace(made, key=("url",)).to_document(), expect=None)
        began = time.monotonic()
        result = CliRunner().invoke(cli, ["-w", str(folder), "status", "--json"], catch_exceptions=False)
        assert time.monotonic() - began < 20
        about = json.loads(result.stdout)
        states = {sink["sink"]: (sink["state"], sink["reason"]) for sink in about["sinks"]}
        assert states["cache"] == ("retrying", "its target has not answered within 0.5 s")
        assert states["told"][0] == "stopped"
        assert "has no function 'nowhere:at_all'" in states["told"][1]
        assert states["locked"] == ("stopped", "the environment variable NOT_SET_ANYWHERE is not set")
        assert states["found"][1] is None
        assert [source["source"] for source in about["sources"]] == ["clicks"]
        wide = CliRunner(env={"COLUMNS": "300"})
        text = wide.invoke(cli, ["-w", str(folder), "status"], catch_exceptions=False).stdout
        assert "no function 'nowhere:at_all'" in text
        assert "geheim" not in text + result.stdout
        explained = facts(ws.sql("EXPLAIN SINK cache"))
        assert explained["state"] == "retrying: its target has not answered within 0.5 s"
        assert explained["checkpoint"] == "unknown"
        ws.log.drop_entry(SINK, "cache")
        with (folder.parent / "clicks.jsonl").open("a") as file:
            file.write('{"id": 3, "url": "/c"}\n')
        with pytest.raises(hw.HeadwaterError) as failed:
            ws.run()
        assert failed.value.facts.keys() & {"variable", "function"}
        assert ws.sink("found").search("c").num_rows == 1, "the others were reconciled"
        with ws.start():
            while not inspect_workspace(ws).sinks.statuses():
                ws.log.wait_commit(ws.log.sequence(), 20)
            assert ws.sink("told").status.state == "stopped"
        ws.sink_function("nowhere:at_all", lambda change, key: None)
        ws.log.drop_entry(SINK, "locked")
        ws.run()
        assert ws.sink("told").status.tick is not None
    finally:
        for name in declared:
            if name in ws.log.entries(SINK):
                ws.log.drop_entry(SINK, name)


def test_an_index_is_searched_from_the_command_line(ws: hw.Workspace, folder: Path) -> None:
    def run(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(cli, ["-w", str(folder), "search", *arguments], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result.output

    (hit,) = json.loads(run("found", "a", "--highlight", "--json"))
    assert (hit["url"], hit["n"], hit["_highlight"]) == ("/a", 1, {"url": "/<b>a</b>"})
    assert run("found", "a", "--highlight").split() == ["url", "n", "_score", "/a", "1", str(hit["_score"])]
    assert json.loads(run("found", "a", "--filter", "n>=2", "--json")) == []
    assert len(json.loads(run("found", "--filter", "n=1", "--limit", "1", "--json"))) == 1
    assert "'x' is not a value of column 'n', which is BIGINT" in run("found", "--filter", "n=x", status=2)
    assert "is not a filter" in run("found", "--filter", "n", status=2)
    assert "is of kind PARQUET, which cannot be searched" in run("files", "a", status=2)
    assert "there is no sink 'nothing'" in run("nothing", "a", status=1)
