"""`ws.sink(name).rebuild()` and `headwater rebuild`: a follower built anew while it is kept in step, whoever keeps it so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import redis
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTRIES = ("de", "fr", "it")


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        workspace.sql(
            """
            CREATE TOPIC sales (country STRING, note STRING, amount BIGINT);
            CREATE MATERIALIZED VIEW revenue AS
              SELECT country, max(note) AS note, sum(amount) AS amount FROM sales GROUP BY country;
            """
        )
        sell(workspace)
        yield workspace


def sell(ws: hw.Workspace, amount: int = 1) -> hw.Receipt:
    """The same in every country: what is not so is of no tick."""
    return ws.topic("sales").append([{"country": c, "note": "sold", "amount": amount} for c in COUNTRIES])


def options(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if kind in ("postgres", "redis"):
        return f"url = '{request.getfixturevalue(f'{kind}_url')}', key = 'country'"
    return {
        "search": "text = 'note'",
        "lake": f"warehouse = '{tmp_path / 'lake'}'",
        "parquet": f"path = '{tmp_path / 'files'}'",
        "topic": "topic = 'totals', key = 'country'",
    }[kind]


@pytest.mark.parametrize("kind", ["postgres", "redis", "search", "lake", "parquet", "topic"])
def test_a_sink_of_every_kind_is_built_anew(
    kind: str, ws: hw.Workspace, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    ws.sql(f"CREATE SINK f FROM revenue INTO {kind} WITH ({options(kind, tmp_path, request)})")
    ws.run()
    steps: list[str] = []
    done = ws.sink("f").rebuild(on_step=steps.append)
    assert (done.sink, done.rows, done.verified) == ("f", 3, True)
    assert steps == ["filling", "verifying", "switching", "switched"]
    assert ws.sink("f").old == done.old
    sell(ws)
    ws.run()
    found = ws.verify()
    assert found.ok, found.differences
    assert [check.rows for check in found.sinks] == [3]
    assert ws.sink("f").lag.rows == 0
    if kind == "search":
        assert set(ws.sink("f").search("sold").column("amount").to_pylist()) == {2}
    if kind == "topic":
        assert ws.sink("f").definition.options["topic"] == "totals"  # as it was declared
        explained = ws.sql("EXPLAIN f")
        assert explained is not None
        assert {"property": "writes to", "value": "topic totals_2"} in explained.to_pylist()
        assert ws.query("SELECT DISTINCT amount FROM totals_2").to_pylist() == [{"amount": 2}]
    ws.sink("f").back()
    sell(ws)
    ws.run()
    assert ws.verify().ok
    ws.sink("f").drop_old()
    assert ws.sink("f").old is None


def test_who_reads_while_it_is_built_anew_sees_whole_ticks(ws: hw.Workspace, redis_url: str) -> None:
    """An engine keeps the sink in step, another handle builds it anew, and somebody reads all the while."""
    ws.sql(f"CREATE SINK cache FROM revenue INTO REDIS WITH (url = '{redis_url}', key = 'country')")
    ws.run()
    ends = threading.Event()
    seen: list[list[int]] = []

    def read() -> None:
        client = redis.Redis.from_url(redis_url)
        while not ends.is_set():
            with client.pipeline(transaction=True) as asked:
                for country in COUNTRIES:
                    asked.hget(f"cache:{country}", "amount")
                seen.append([int(n or -1) for n in asked.execute()])
        client.close()

    reader = threading.Thread(target=read)
    runner = ws.start(every="20 ms")
    assert ws.path is not None
    reader.start()
    try:
        with hw.open(ws.path, durability="os") as other:
            for _ in range(3):
                for _ in range(5):
                    sell(ws)
                other.sink("cache").rebuild()
                other.sink("cache").drop_old()
                ws.sink("cache").wait(after=sell(ws))
        with redis.Redis.from_url(redis_url) as client:
            assert {client.hget(f"cache:{country}", "amount") for country in COUNTRIES} == {b"19"}
    finally:
        ends.set()
        reader.join()
        runner.stop()
    assert all(len(set(amounts)) == 1 for amounts in seen)
    assert [a[0] for a in seen] == sorted(a[0] for a in seen), "nobody is taken back in time"
    assert ws.verify().ok


def test_a_topic_that_views_read_is_not_moved_away_from_them(ws: hw.Workspace) -> None:
    ws.sql("CREATE SINK f FROM revenue INTO TOPIC WITH (topic = 'totals', key = 'country')")
    ws.run()
    ws.sql("CREATE MATERIALIZED VIEW most AS SELECT max(amount) AS most FROM totals")
    with raises(hw.UsageError, sink="f", topic="totals", readers=["most", "cursor headwater_views"]):
        ws.sink("f").rebuild()
    ws.sql("DROP VIEW most")
    ws.log.create_cursor("totals", "mine", {0: 0}, hold=False)
    with raises(hw.UsageError, sink="f", readers=["cursor mine"]):
        ws.sink("f").rebuild()
    ws.log.drop_cursor("totals", "mine")
    ws.sink("f").rebuild()
    with pytest.raises(hw.SinkExistsError) as same:
        ws.sql("CREATE SINK f FROM revenue INTO TOPIC WITH (topic = 'totals', key = 'country')")
    assert same.value.facts["difference"] == []
    ws.sql("CREATE MATERIALIZED VIEW most AS SELECT max(amount) AS most FROM totals")
    with raises(hw.UsageError, topic="totals", readers=["most", "cursor headwater_views"]):
        ws.sink("f").drop_old()
    ws.sql("DROP VIEW most")
    ws.sink("f").drop_old()
    sell(ws)
    ws.run()
    assert "totals" not in ws.log.topics()
    assert ws.query("SELECT DISTINCT amount FROM totals_2").to_pylist() == [{"amount": 2}]
    assert ws.sink("f").rebuild().old == "topic totals_2"
    assert ws.verify().ok


def test_what_a_function_was_told_cannot_be_built_anew(ws: hw.Workspace) -> None:
    ws.sink_function("follow", lambda change, key: None)
    ws.sql("CREATE SINK called FROM revenue INTO PYTHON WITH (function = 'follow', key = 'country')")
    ws.run()
    with raises(hw.UsageError, sink="called"):
        ws.sink("called").rebuild()


def test_the_command_builds_a_sink_anew(ws: hw.Workspace, tmp_path: Path) -> None:
    ws.sql(f"CREATE SINK files FROM revenue INTO PARQUET WITH (path = '{tmp_path / 'files'}')")
    ws.run()
    folder = str(ws.path)
    ws.close()

    def run(*arguments: str, status: int = 0) -> Any:
        result = CliRunner().invoke(cli, ["-w", folder, "rebuild", *arguments], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    told = run("files")
    assert told.stdout.startswith("sink files: 3 rows of tick 1 compared and activated")
    assert told.stderr.startswith(
        "filling a new version, next to the active one\ncomparing the new version with the view\n"
    )
    assert f"kept as folder {tmp_path / 'files~old'}" in told.stderr
    assert "still exists as folder" in run("files", status=2).stderr
    done = json.loads(run("files", "--back", "--json").stdout)
    assert {"sink": "files", "rows": 3, "tick": 1, "verified": True}.items() <= done.items()
    assert run("files", "--drop-old").stdout == f"dropped folder {tmp_path / 'files~old'}\n"
    assert "has no previous version" in run("files", "--back", status=2).stderr
    assert "did you mean 'files'?" in run("file", status=1).stderr
    assert "--no-run is for views" in run("files", "--no-run", status=2).stderr
    assert json.loads(run("files", "--no-verify", "--json").stdout)["verified"] is False
