"""`headwater late`, and what `status` and `views` say of late rows, on a real workspace and a real Spark."""

import json
import shutil
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.program import cli
from tests.cli.outcome import code_of
from tests.shared_spark import make_session

pytestmark = pytest.mark.slow

Run = Callable[..., Result]

DECLARED = """
CREATE TOPIC clicks (user BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute');
CREATE MATERIALIZED VIEW per_minute WITH (late = 'divert') AS
  SELECT window(at, '1 minute').start AS minute, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')
  EMIT ON WINDOW CLOSE;
CREATE MATERIALIZED VIEW hops WITH (correct_for = '30 seconds') AS
  SELECT window(at, '2 minutes', '1 minute').start AS minute, count(*) AS n FROM clicks
  GROUP BY window(at, '2 minutes', '1 minute');
CREATE MATERIALIZED VIEW dropping WITH (late = 'drop') AS
  SELECT window(at, '1 minute').start AS minute, count(*) AS n FROM clicks GROUP BY window(at, '1 minute');
CREATE MATERIALIZED VIEW everything AS SELECT count(*) AS n FROM clicks;
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two late rows, to be copied."""
    folder = tmp_path_factory.mktemp("late") / "w"
    with hw.open(folder, durability="os", spark=make_session()) as ws:
        ws.sql(DECLARED)
        seconds = (10, 300, 20, 30)
        ws.topic("clicks").append([{"user": s, "at": NOON + timedelta(seconds=s)} for s in seconds])
        ws.run()
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a workspace of its own."""
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    folder = tmp_path / "w"
    shutil.copytree(made, folder)

    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, ["-w", str(folder), *arguments], catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    return invoke


def listed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_it_lists_the_views_that_have_left_out_late_rows(run: Run) -> None:
    lines = run("late").stdout.splitlines()
    assert lines[0].split("  ")[0] == "view"
    assert [line.split()[0] for line in lines[1:]] == ["dropping", "hops", "per_minute"]
    assert "correct for 30 seconds" in lines[2]
    assert "4 minutes" in lines[3]
    dropping, hops, per_minute = listed(run("late", "--json"))
    assert (dropping["diverted"], dropping["dropped"], dropping["windows_missed"]) == (0, 2, None)
    assert hops["windows_missed"] == 4
    assert per_minute == {
        "view": "per_minute",
        "policy": "divert",
        "topic": "clicks",
        "diverted": 2,
        "dropped": 0,
        "windows_missed": 2,
        "lateness_max_us": 220_000_000,
        "newest_at": "2026-01-01T12:04:00Z",
    }


def test_it_shows_the_late_rows_of_a_view_the_newest_first(run: Run) -> None:
    rows = listed(run("late", "per_minute", "--json"))
    assert [row["user"] for row in rows] == [30, 20]
    assert (rows[0]["_lateness"], rows[0]["_partition"], rows[0]["_offset"]) == (210_000_000, 0, 3)
    assert rows[0]["_window_end"] == "2026-01-01T12:01:00Z"
    assert listed(run("late", "--json", "per_minute.late")) == rows
    limited = run("late", "PER_MINUTE", "--limit", "1")
    header, only = limited.stdout.splitlines()
    assert header.split()[0] == "user"
    assert only.split()[0] == "30"
    assert limited.stderr == "the newest 1 of 2\n"


def test_a_view_that_keeps_no_late_rows_says_what_would(run: Run) -> None:
    result = run("late", "dropping", status=2)
    assert code_of(result) == "bad-request"
    assert "CREATE OR REPLACE MATERIALIZED VIEW dropping WITH (late = 'divert')" in result.stderr
    assert code_of(run("late", "replay", "everything", status=2)) == "bad-request"
    assert code_of(run("late", "per_hour", status=1)) == "view-not-found"


def test_the_shell_completes_views_and_commands(run: Run, tmp_path: Path) -> None:
    from click.shell_completion import ShellComplete

    shell = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")
    words = [item.value for item in shell.get_completions(["-w", str(tmp_path / "w"), "late"], "")]
    assert {"replay", "per_minute", "hops"} <= set(words)


@pytest.mark.long
def test_with_a_policy_the_state_of_windows_is_bounded(run: Run) -> None:
    select = (
        "SELECT window(at, '1 minute').start AS m, count(*) AS n FROM clicks GROUP BY window(at, '1 minute')"
    )
    refused = run("sql", f"CREATE MATERIALIZED VIEW b WITH (state = 'bounded') AS {select}", status=2).stderr
    assert "the state of this view would grow with clicks" in refused
    assert "hint: late = 'divert', late = 'drop' or correct_for removes closed windows" in refused
    run("sql", f"CREATE MATERIALIZED VIEW b WITH (state = 'bounded', correct_for = '1 day') AS {select}")


def test_replay_counts_them_and_rebuilds_the_view(run: Run) -> None:
    result = run("late", "replay", "per_minute")
    assert "replaying 2 late rows of per_minute" in result.stderr
    assert result.stdout.startswith("tick 2: ")
    assert run("late", "per_minute").stdout == "no late rows\n"
    assert listed(run("sql", "SELECT n FROM per_minute", "--json")) == [{"n": 3}]
    assert [row["view"] for row in listed(run("late", "--json"))] == ["dropping", "hops"]
    assert run("late", "replay", "per_minute").stdout == "view per_minute has no late rows to replay\n"
    assert listed(run("late", "replay", "hops", "--json")) == {"view": "hops", "rows": 2, "tick": 3}
    assert run("verify").stdout.splitlines()[-1].startswith("no differences")


@pytest.mark.long
def test_replay_can_leave_the_work_to_the_next_run(run: Run) -> None:
    said = run("late", "replay", "hops", "--no-run").stdout
    assert said == "the next run rebuilds hops with 2 late rows\n"
    again = listed(run("late", "replay", "hops", "--no-run", "--json"))
    assert again == {"view": "hops", "rows": 0, "tick": None}
    assert listed(run("run", "--once", "--json"))["ticks"] == 1
    assert "hops" not in run("late").stdout


def test_status_and_views_show_the_ledger_and_the_watermark(run: Run) -> None:
    text = run("status").stdout
    (header,) = (line for line in text.splitlines() if line.startswith("view"))
    for column in ("read", "diverted", "dropped"):
        assert column in header
    assert "failed" not in header
    views = {view["view"]: view for view in listed(run("status", "--json"))["views"]}
    assert views["per_minute"]["ledger"] == {"read": 4, "used": 2, "diverted": 2, "dropped": 0, "failed": 0}
    assert views["per_minute"]["watermark"] == "2026-01-01T12:04:00Z"
    assert views["everything"]["watermark"] is None
    (header, *rows) = run("views").stdout.splitlines()
    assert "diverted  dropped" in header
    assert "2026-01-01T12:04:00Z" in rows[-1]


@pytest.mark.long
def test_explain_says_the_policy_and_when_rows_are_final(run: Run) -> None:
    facts = {row["property"]: row["value"] for row in listed(run("sql", "EXPLAIN per_minute", "--json"))}
    assert facts["late rows"] == (
        "a row that is late for its window is left out, and recorded in per_minute.late"
    )
    assert facts["final"] == "a row is shown when the watermark of clicks has reached the end of its window"
    assert facts["watermark"] == "2026-01-01T12:04:00+00:00"
    assert facts["state"].startswith("bounded by time: it keeps a row for every group")
    assert "wait until final, by the watermark of clicks" in facts["graph"]
    run("late", "replay", "per_minute", "--no-run")
    facts = {row["property"]: row["value"] for row in listed(run("sql", "EXPLAIN per_minute", "--json"))}
    assert facts["replayed"] == "late rows of partition 0 of clicks before offset 4"
    facts = {row["property"]: row["value"] for row in listed(run("sql", "EXPLAIN hops", "--json"))}
    assert "until the watermark is 30 seconds past its window" in facts["late rows"]
    facts = {row["property"]: row["value"] for row in listed(run("sql", "EXPLAIN dropping", "--json"))}
    assert facts["late rows"].endswith("is left out, and counted")
    facts = {row["property"]: row["value"] for row in listed(run("sql", "EXPLAIN everything", "--json"))}
    assert "late rows" not in facts
