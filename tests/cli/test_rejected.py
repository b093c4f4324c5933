"""Rows that a source rejects are counted wherever people look: on a real workspace, through the command line."""

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli import live_progress
from headwater.cli.program import cli
from headwater.testing import inspect_workspace
from tests.shared_spark import make_session

pytestmark = pytest.mark.slow

GOOD, BAD = 60, 2_000
LOOKS_MAX = 3_000
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a workspace whose source has 60 good lines and 2,000 others before it."""
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    make_session()  # which the command finds
    (tmp_path / "in").mkdir()
    lines = [f'{{"id": {n}}}' for n in range(GOOD)] + [f"bad {n}" for n in range(BAD)]
    (tmp_path / "in" / "a.json").write_text("\n".join(lines) + "\n")
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.sql(
            f"CREATE SOURCE logs FROM FILES WITH (path = '{tmp_path}/in/*.json', columns = 'id BIGINT', on_error = 'divert')"
        )
        ws.sql("CREATE MATERIALIZED VIEW total AS SELECT count(*) AS n FROM logs")
        ws.sql("CREATE MATERIALIZED VIEW newest AS SELECT max(id) AS id FROM logs")

    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["-w", str(tmp_path / "w"), *arguments], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    return invoke


def test_lines_that_a_source_rejects_are_said_by_run_and_counted_by_dead_and_metrics(run: Run) -> None:
    said = run("run", "--once").stdout
    assert said.startswith("tick 1: 60 rows in 1 tick")
    assert "2,000 rows rejected by source logs (headwater dead list logs)" in said
    again = json.loads(run("run", "--once", "--json").stdout)
    assert (again["rows"], again["rejected"]) == (0, [])
    counted = json.loads(run("dead", "--json").stdout)
    assert [(row["of"], row["kind"], row["open"]) for row in counted] == [("logs", "source", BAD)]
    assert len(json.loads(run("dead", "list", "logs", "--json").stdout)) == BAD
    metrics = run("metrics").stdout
    assert 'headwater_rejected_rows_total{kind="source",outcome="diverted",owner="logs"} 2000.0' in metrics
    assert 'headwater_dead_letters{kind="source",owner="logs"} 2000.0' in metrics


def test_rows_that_sources_captured_are_said_by_run_where_no_view_reads_them(run: Run) -> None:
    run("sql", "DROP VIEW newest; DROP VIEW total")
    assert run("run", "--once").stdout.startswith(
        "tick 0: sources captured 60 rows; no view reads them; 2,000 "
    )
    assert json.loads(run("run", "--once", "--json").stdout)["captured"] == 0


def test_an_edited_line_is_replayed_on_the_command_line(run: Run) -> None:
    report = json.loads(run("run", "--once", "--json").stdout)
    assert report["rows"] == GOOD
    assert [(r["kind"], r["name"], r["outcome"], r["rows"]) for r in report["rejected"]] == [
        ("source", "logs", "diverted", BAD)
    ]
    run("dead", "edit", "logs/logs_errors-0-7", "--set", 'line={"id": 99}', "--by", "anna")
    assert "1 dead letter replayed" in run("dead", "replay", "logs/logs_errors-0-7").stdout
    assert "1,999 dead letters dropped" in run("dead", "drop", "--of", "logs").stdout
    assert run("dead", "list", "logs").stdout.startswith("no open dead letters")
    assert run("run", "--once").stdout.startswith("tick 2: 1 row in 1 tick")
    assert json.loads(run("sql", "SELECT id FROM newest", "--json").stdout)[0] == {"id": 99}


def test_an_engine_that_keeps_going_tells_what_was_rejected_also_without_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(live_progress, "PLAIN_LINE_SECONDS", 0.0)
    monkeypatch.setattr(live_progress, "LIVE_LINE_SECONDS", 0.01)
    monkeypatch.setattr(live_progress.click, "echo", lambda line, err: lines.append(line))
    (tmp_path / "in").mkdir()
    looks = 0

    class Asked(threading.Event):
        """Asks for the end once a line is told; the first look finds nothing yet."""

        def wait(self, timeout: float | None = None) -> bool:
            nonlocal looks
            looks += 1
            if looks == 1:
                (tmp_path / "in" / "a.json").write_text("bad\n")
            super().wait(timeout)
            return any("rejected" in line for line in lines) or looks > LOOKS_MAX

    with hw.open(tmp_path / "w", durability="os", spark=make_session()) as ws:
        ws.sql(
            f"CREATE SOURCE logs FROM FILES WITH (path = '{tmp_path}/in/*.json', columns = 'id BIGINT', on_error = 'divert')"
        )
        with ws.start() as runner:
            live_progress.TickProgress(ws.log).follow(runner, Asked(), inspect_workspace(ws).supervisor)
    assert lines == ["1 row rejected by source logs (headwater dead list logs)"]


def test_late_rows_are_counted_by_dead_which_points_to_where_they_are(tmp_path: Path) -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    with hw.open(tmp_path / "w", durability="os", spark=make_session()) as ws:
        ws.sql("CREATE TOPIC clicks (at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')")
        select = (
            "SELECT window(at, '1 minute') AS w, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
        )
        ws.sql(f"CREATE MATERIALIZED VIEW told WITH (late = 'divert') AS {select}")
        ws.sql(f"CREATE MATERIALIZED VIEW gone WITH (late = 'drop') AS {select}")
        ws.topic("clicks").append([{"at": noon + timedelta(minutes=m)} for m in (0, 10, 0)])
        ws.run()
    result = CliRunner().invoke(cli, ["-w", str(tmp_path / "w"), "dead"])
    assert "no dead letters" not in result.stdout
    assert "headwater late told" in result.stderr
    assert "1 late row dropped by view gone" in result.stderr
    counted = json.loads(CliRunner().invoke(cli, ["-w", str(tmp_path / "w"), "dead", "--json"]).stdout)
    assert [(row["of"], row["open"], row["late"], row["lost"]) for row in counted] == [
        ("gone", 0, 0, 1),
        ("told", 0, 1, 0),
    ]
    status = CliRunner().invoke(cli, ["-w", str(tmp_path / "w"), "status"]).stdout
    left_out = [line.split() for line in status.splitlines() if line.startswith("1 row")]
    assert [line[:5] for line in left_out] == [
        ["1", "row", "view", "gone", "dropped"],
        ["1", "row", "view", "told", "late"],
    ]
