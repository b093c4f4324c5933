"""Commands about views: run, sql, views, status, verify and rebuild, on real workspaces and a real Spark."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli import results
from headwater.cli.program import cli
from headwater.core.clock import SystemClock
from headwater.core.storage import Storage
from headwater.engine.tick.tick_engine import Engine, TickReport
from headwater.state.manifest import Manifest
from headwater.state.ownership import claim
from headwater.verify import verification
from headwater.views.view_manager import Views
from tests.cli.outcome import code_of
from tests.shared_spark import make_session

Run = Callable[..., Result]

FILE = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount BIGINT);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders
  FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country;
CREATE MATERIALIZED VIEW average AS SELECT country, revenue div (orders - 1) AS average FROM revenue;
"""


def invoke(folder: Path, *arguments: str, status: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(cli, ["-w", str(folder), *arguments], input=stdin, catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def orders(numbers: range, customer: int | None = None) -> str:
    return "".join(
        json.dumps({"id": n, "customer": n % 2 if customer is None else customer, "amount": 10}) + "\n"
        for n in numbers
    )


@pytest.fixture(scope="module", autouse=True)
def _spark() -> None:
    """The session that all tests of this worker share; commands in this process find it and use it."""
    make_session()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two views at tick 1, to be copied."""
    place = tmp_path_factory.mktemp("views")
    (place / "shop.sql").write_text(FILE)
    folder = place / "w"
    hw.open(folder, durability="os").close()
    invoke(folder, "sql", FILE.split("CREATE MATERIALIZED", maxsplit=1)[0])
    invoke(folder, "append", "orders", "-", stdin=orders(range(10)))
    invoke(
        folder, "append", "customers", "-", stdin='{"id": 0, "country": "ch"}\n{"id": 1, "country": "de"}\n'
    )
    result = invoke(folder, "run", str(place / "shop.sql"), "--once")
    assert result.stdout.startswith("tick 1: 12 rows in 1 tick, ")
    said = result.stderr.splitlines()
    assert said[:3] == ["topic orders: exists", "topic customers: exists", "starting Spark ..."]
    assert {"view revenue: created", "view average: created"} <= set(said)
    return place


@pytest.fixture
def shop(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the workspace `w` and the file `shop.sql`."""
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    shutil.copytree(made, tmp_path / "shop")
    return tmp_path / "shop"


@pytest.fixture
def run(shop: Path) -> Run:
    """Run a command on the workspace."""
    return lambda *arguments, **options: invoke(shop / "w", *arguments, **options)


def listed(result: Result) -> Any:
    return json.loads(result.stdout)


def after_each_tick(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Do something when a tick is committed."""
    from headwater.cli.live_progress import TickProgress

    ticked = TickProgress.ticked

    def acting(ticks: TickProgress, report: TickReport, manifest: Manifest) -> None:
        ticked(ticks, report, manifest)
        action()

    monkeypatch.setattr(TickProgress, "ticked", acting)


# --- run ---------------------------------------------------------------------------------------------------------------


def test_the_same_file_again_changes_nothing(run: Run, shop: Path) -> None:
    result = run("run", str(shop / "shop.sql"), "--once")
    assert result.stdout == "tick 1: no new records\n"
    assert "view revenue: exists" in result.stderr


def test_a_view_that_differs_is_refused_with_the_difference(run: Run, shop: Path) -> None:
    result = run("run", "-", "--once", stdin=FILE.replace("count(*)", "count(o.id)"), status=1)
    assert "error: view 'revenue' already exists and differs" in result.stderr
    assert "-SELECT c.country, sum(o.amount) AS revenue, count(*) AS orders" in result.stderr
    assert "+SELECT c.country, sum(o.amount) AS revenue, count(o.id) AS orders" in result.stderr
    assert "hint: CREATE OR REPLACE MATERIALIZED VIEW revenue" in result.stderr


def test_a_topic_that_differs_is_refused_with_the_difference(run: Run) -> None:
    result = run("run", "-", "--once", stdin=FILE.replace("amount BIGINT", "amount INT"), status=1)
    assert "error: topic 'orders' already exists with another definition" in result.stderr
    assert "amount INT" in result.stderr


def test_a_wrong_statement_in_a_file_runs_none_of_it(run: Run, shop: Path) -> None:
    (shop / "wrong.sql").write_text("CREATE TOPIC more (a INT);\nCREATE TOPIC less (a FROG)")
    result = run("run", str(shop / "wrong.sql"), "--once", status=2)
    assert result.stderr.startswith("error: type 'FROG' is not supported")
    assert f"(in {shop / 'wrong.sql'})\ndetail: line 2" in result.stderr
    assert [t["topic"] for t in listed(run("topics", "--json"))] == ["customers", "orders"]


def test_run_once_reports_as_json(run: Run) -> None:
    run("append", "orders", "-", "--chunk-rows", "2", stdin=orders(range(4)))
    report = listed(run("run", "--once", "--tick-rows", "2", "--json"))
    assert (report["tick"], report["rows"], report["ticks"], report["stopped"]) == (3, 4, 2, {})


def test_without_views_there_is_nothing_to_run(tmp_path: Path) -> None:
    hw.open(tmp_path / "w").close()
    result = invoke(tmp_path / "w", "run", "--once")
    assert result.stdout.startswith("no views yet")
    assert "Spark" not in result.stderr
    assert listed(invoke(tmp_path / "w", "run", "--once", "--json"))["tick"] is None


def test_options_that_make_no_sense_are_wrong_usage(run: Run) -> None:
    for options in (
        ["--once", "--every", "1 s"],
        ["--once", "--console"],
        ["--port", "1"],
        ["--every", "soon"],
    ):
        assert code_of(run("run", *options, status=2)) == "bad-request"
    run("run", "--once", "--tick-rows", "0", status=2)
    run("run", "nowhere.sql", status=2)


def test_a_stopped_view_is_reported_and_is_a_failure(run: Run) -> None:
    run("append", "customers", "-", stdin='{"id": 9, "country": "li"}\n')
    run("append", "orders", "-", stdin=orders(range(1), customer=9))
    result = run("run", "--once", status=1)
    assert "view average is stopped: " in result.stderr
    assert "hint: correct the cause, then headwater rebuild average" in result.stderr
    assert listed(run("run", "--once", "--json", status=1))["ticks"] == 0
    (average, revenue) = listed(run("status", "--json", status=1))["views"]
    assert (average["status"], average["last_tick"]) == ("stopped", 1)
    assert average["reason"]
    assert (revenue["status"], revenue["last_tick"]) == ("live", 2)
    assert "average is stopped: " in run("views").stdout
    assert code_of(run("sql", "SELECT * FROM average", status=1)) == "view-unavailable"
    found = run("verify", status=1).stdout
    assert "view average: not compared, the view is stopped: " in found
    assert "\n1 finding; " in found
    (average, revenue) = listed(run("verify", "--json", status=1))["views"]
    assert (average["ok"], average["equal"], average["status"]) == (False, None, "stopped")
    assert (revenue["ok"], revenue["equal"], revenue["status"]) == (True, True, "live")


def test_an_engine_says_which_views_are_stopped_when_it_starts_and_when_it_ends(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("append", "customers", "-", stdin='{"id": 9, "country": "li"}\n')
    run("append", "orders", "-", stdin=orders(range(1), customer=9))
    run("run", "--once", status=1)
    run("append", "orders", "-", stdin=orders(range(10)))
    after_each_tick(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = run("run", "--json")
    assert list(listed(result)["stopped"]) == ["average"]
    stopped = result.stderr.split("view average is stopped: ")
    assert len(stopped) == 3
    assert "running 2 views" in stopped[1]
    assert stopped[2].endswith(
        "\nhint: correct the cause, then headwater rebuild average; "
        "on_error = 'divert' leaves failed rows out, and records them in average.errors\n"
    )
    run("rebuild", "average", "--no-run")
    assert "is stopped" not in run("run").stderr.split("running")[0]


def test_beside_a_running_engine_another_is_refused_and_once_waits(run: Run, shop: Path) -> None:
    run("sql", "CREATE TOPIC unread (a INT)")
    run("append", "unread", "-", stdin='{"a": 1}')
    with claim(Storage(shop / "w"), SystemClock()):
        result = run("run", str(shop / "shop.sql"), status=1)
        assert result.stderr.startswith(
            f"error: another engine is running on this workspace: process {os.getpid()} "
        )
        assert "Spark" not in result.stderr
        result = run("run", "--once")
        assert f"process {os.getpid()}: waiting" in result.stderr
        assert result.stdout == "caught up: tick 1\n"
        assert f"engine     process {os.getpid()} on " in run("status").stdout


def test_the_place_of_the_engine_is_taken_before_anything_else_is_done(
    run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def looking(views: Views) -> str | None:
        seen.append(views.engine())
        raise hw.UsageError("enough was seen")

    monkeypatch.setattr(Views, "start_spark", looking)
    run("run", str(shop / "shop.sql"), status=2)
    (who,) = seen
    assert who is not None
    assert who.pid == os.getpid()
    assert "engine     not running" in run("status").stdout


def test_ctrl_c_ends_a_run_after_the_tick_at_hand(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run("append", "orders", "-", "--chunk-rows", "2", stdin=orders(range(10)))
    with monkeypatch.context() as patch:
        after_each_tick(patch, lambda: signal.raise_signal(signal.SIGINT))
        result = run("run", "--once", "--tick-rows", "2", status=130)
    assert "interrupted: tick 2: 2 rows in 1 tick, " in result.stderr
    assert result.stdout == ""
    assert run("run", "--once").stdout.startswith("tick 3: 8 rows ")


def test_an_engine_keeps_going_until_ctrl_c(run: Run, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("append", "orders", "-", stdin=orders(range(10)))
    after_each_tick(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = run("run", str(shop / "shop.sql"), "--every", "10 ms")
    assert "running 2 views; Ctrl-C stops\n" in result.stderr
    assert result.stdout.startswith("stopped at tick 2: 10 rows in 1 tick, ")
    assert "engine     not running" in run("status").stdout


def test_an_engine_that_fails_says_why(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise hw.DiskFullError("the disk is full", hint="free some space")

    monkeypatch.setattr(Engine, "tick", full)
    result = run("run", status=1)
    assert "error: the disk is full\nhint: free some space\n" in result.stderr
    assert "engine     not running" in run("status").stdout


@pytest.mark.slow
def test_an_engine_of_its_own_is_stopped_by_a_signal(shop: Path) -> None:
    environ = {**os.environ, "HEADWATER_WORKSPACE": str(shop / "w"), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "run"],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as in a terminal, Ctrl-C goes to all processes of the command
    )
    assert process.stderr is not None
    while (line := process.stderr.readline()) != "running 2 views; Ctrl-C stops\n":
        assert line
    invoke(shop / "w", "append", "orders", "-", stdin=orders(range(10)))
    assert invoke(shop / "w", "run", "--once").stdout == "caught up: tick 2\n"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert out.startswith("stopped at tick 2: 10 rows in 1 tick, ")
    assert "Traceback" not in err
    assert listed(invoke(shop / "w", "status", "--json"))["engine"] is None


# --- reading -----------------------------------------------------------------------------------------------------------


def test_select(run: Run) -> None:
    query = "SELECT country, revenue FROM revenue ORDER BY country"
    assert run("sql", query).stdout.splitlines() == [
        "country  revenue",
        "ch            50",
        "de            50",
    ]
    assert listed(run("sql", "--json", query)) == [
        {"country": "ch", "revenue": 50},
        {"country": "de", "revenue": 50},
    ]
    assert run("sql", "SELECT * FROM revenue WHERE country = 'fr'").stdout == "no rows\n"


def test_names_that_are_not_there_are_answered_with_what_was_probably_meant(run: Run) -> None:
    for statement, hint in {
        "SELECT * FROM ordres": "did you mean orders?",
        "CREATE MATERIALIZED VIEW v AS SELECT * FROM revenu": "did you mean revenue?",
        "EXPLAIN SELECT * FROM nothing_like_it": "existing topics and views: average, customers, orders, revenue",
    }.items():
        said = run("sql", statement, status=2).stderr
        assert said.startswith("error: there is no topic or view ")
        assert f"\nhint: {hint}\n" in said
    for statement, sentence, hint in [
        ("EXPLAIN avrage", "there is no topic or view 'avrage'", "did you mean average?"),
        (
            "DESCRIBE nope",
            "there is no topic or view 'nope'",
            "SHOW TOPICS and SHOW VIEWS list all names",
        ),
        ("DROP VIEW orders", "there is no view 'orders'", "orders is a topic: DROP TOPIC orders"),
        ("DROP TOPIC revenue", "there is no topic 'revenue'", "revenue is a view: DROP VIEW revenue"),
        ("DROP TOPIC order", "there is no topic 'order'", "did you mean orders?"),
    ]:
        kind = "view" if sentence.startswith("there is no view") else "topic"
        code = f"code: {kind}-not-found (docs/error-codes.md)"
        assert run("sql", statement, status=1).stderr == f"error: {sentence}\nhint: {hint}\n{code}\n"


def test_records_that_are_kept_for_views_are_no_cursor_that_is_behind(run: Run) -> None:
    assert run("cursors").stdout == "no cursors yet\n"
    lines = run("lag").stdout.splitlines()
    assert lines[:3] == [
        "no cursors yet",
        "",
        "kept for rebuilds of views: 2 rows of customers, 10 rows of orders",
    ]
    report = listed(run("lag", "--json"))
    assert (report["cursors"], report["kept_for_views"]) == ([], {"customers": 2, "orders": 10})


def test_a_wrong_query_is_wrong_usage(run: Run) -> None:
    result = run("sql", "SELECT nothing FROM revenue", status=2)
    assert result.stderr.startswith("error: ")
    assert "Traceback" not in result.output


def test_explain_is_lines_and_nothing_is_cut(run: Run) -> None:
    out = run("sql", "EXPLAIN revenue").stdout
    lines = out.splitlines()
    assert lines[0].split() == ["view", "revenue"]
    assert "  CREATE MATERIALIZED VIEW revenue AS" in lines
    assert "    FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country" in lines
    assert any("inner join on customer = id" in line for line in lines)
    assert "…" not in out
    facts = {fact["property"]: fact["value"] for fact in listed(run("sql", "--json", "EXPLAIN revenue"))}
    assert {"view", "statement", "columns", "status", "graph"} <= set(facts)
    assert "\ngraph\n  " in run("sql", "EXPLAIN SELECT country FROM revenue").stdout


def test_tail_of_a_view_says_how_to_read_it(run: Run) -> None:
    result = run("tail", "revenue", status=1)
    assert result.stderr.startswith("error: there is no topic 'revenue'\n")
    assert 'hint: revenue is a view: headwater sql "SELECT * FROM revenue"' in result.stderr


def test_views_are_listed(run: Run, tmp_path: Path) -> None:
    lines = run("views").stdout.splitlines()
    assert lines[0].split()[:3] == ["view", "status", "reads"]
    assert lines[2].split()[:4] == ["revenue", "live", "customers,", "orders"]
    assert [v["view"] for v in listed(run("views", "--json"))] == ["average", "revenue"]
    hw.open(tmp_path / "empty").close()
    assert invoke(tmp_path / "empty", "views").stdout.startswith("no views yet")


def test_status_is_one_screen(run: Run, shop: Path) -> None:
    run("append", "orders", "-", stdin=orders(range(3)))
    run("sql", "CREATE TOPIC unread (a INT)")
    about = listed(run("status", "--json"))
    assert about["workspace"] == str(shop / "w")
    assert about["engine"] is None
    assert about["tick"]["tick"] == 1
    waiting = {topic["topic"]: topic["waiting_rows"] for topic in about["topics"]}
    assert waiting == {"customers": 0, "orders": 3, "unread": None}
    assert {view["view"]: view["behind_rows"] for view in about["views"]} == {"average": 3, "revenue": 3}
    assert about["disk"]["topics_bytes"] > 0
    assert about["disk"]["state_bytes"] > 0
    text = run("status").stdout
    assert "engine     not running\ntick       1, " in text
    assert "lag (rows)" in text


def test_status_of_an_empty_workspace_says_what_is_next(tmp_path: Path) -> None:
    hw.open(tmp_path / "w").close()
    text = invoke(tmp_path / "w", "status").stdout
    assert "none yet; headwater run --once makes the first" in text
    assert "no topics yet" in text
    assert "no views yet" in text


# --- verify and rebuild ------------------------------------------------------------------------------------------------


def test_verify_compares_views(run: Run) -> None:
    result = run("verify")
    # a slow machine prints each view, too
    assert result.stderr.splitlines()[0] == "recomputing 2 views in batch"
    lines = result.stdout.splitlines()
    assert lines[:2] == ["view average: equal", "view revenue: equal"]
    assert lines[2].startswith("no differences; ")
    assert lines[2].endswith(" and 2 views checked")
    assert "view" not in run("verify", "orders").stdout


def test_verify_fails_if_a_view_differs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = verification.held_against
    monkeypatch.setattr(
        verification,
        "held_against",
        lambda has, past, name: "1 rows too many" if name == "average" else real(has, past, name),
    )
    lines = run("verify", status=1).stdout.splitlines()
    assert lines[:2] == ["view average: 1 rows too many", "view revenue: equal"]
    assert lines[2].startswith("1 finding; ")
    assert len(lines) == 3
    report = listed(run("verify", "--json", status=1))
    assert not report["ok"]
    assert [view["equal"] for view in report["views"]] == [False, True]
    assert len(report["differences"]) == 1


def test_rebuild_builds_a_view_and_those_above_it(run: Run) -> None:
    before = listed(run("sql", "--json", "SELECT * FROM average ORDER BY country"))
    result = run("rebuild", "revenue")
    assert result.stderr.startswith("rebuilding revenue, average\n")
    assert "comparing revenue with the SELECT in batch\n" in result.stderr
    assert result.stderr.endswith("is kept at tick 2; headwater rebuild revenue --drop-old removes it\n")
    assert result.stdout.startswith("tick 4: ")  # built, switched to and the other built, switched to
    assert listed(run("sql", "--json", "SELECT * FROM average ORDER BY country")) == before
    assert run("verify").stdout.startswith("view average: equal\nview revenue: equal\n")


def test_rebuild_can_be_left_to_the_next_run(run: Run) -> None:
    assert run("rebuild", "average", "--no-run").stdout == "the next run rebuilds average\n"
    assert listed(run("rebuild", "average", "--no-run", "--json")) == {"rebuilt": ["average"]}
    assert {v["view"]: v["status"] for v in listed(run("views", "--json"))} == {
        "average": "live",
        "revenue": "live",
    }
    run("run", "--once")
    assert listed(run("views", "--json"))[0]["last_tick"] == 3
    assert run("rebuild", "average", "--drop-old").stdout.startswith("removed the previous version; tick 2 ")
    for option in ("--drop-old", "--back"):
        assert code_of(run("rebuild", "average", option, status=2)) == "bad-request"
    done = listed(run("rebuild", "average", "--no-verify", "--json"))
    assert done == {"rebuilt": ["average"], "verified": False, "old": 3, "tick": 4}
    assert "hint: did you mean 'average'?" in run("rebuild", "averag", status=1).stderr


def test_views_complete(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.shell_completion import ShellComplete

    monkeypatch.setenv("HEADWATER_WORKSPACE", str(shop / "w"))
    complete = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")
    assert [item.value for item in complete.get_completions(["rebuild"], "rev")] == ["revenue"]


# --- what is printed ---------------------------------------------------------------------------------------------------

WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
MOMENT = datetime(2026, 1, 31, 12, 0, 0, 123456, UTC)
VALUES = pa.table(
    [
        pa.array([1234567, None], pa.int64()),
        pa.array([0.05, float("nan")]),
        pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        pa.array(["a\tb\x1b[31m", "ü"]),
        pa.array([MOMENT, None], pa.timestamp("us", "UTC")),
        pa.array([{"start": MOMENT, "end": None}, None], WINDOW),
        pa.array([True, None]),
        pa.array([b"\x00", None]),
    ],
    names=["n", "n", "price", "text", "at", "w", "yes", "raw"],
)


def test_values_of_a_result_are_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    results.print_rows(VALUES, as_json=False)
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["n", "n", "price", "text", "at", "w", "yes", "raw"]
    moment = "2026-01-31T12:00:00.123456Z"
    window = f'{{"start": "{moment}", "end": null}}'
    assert first.split("  ") == ["1234567", "0.05", " 1.50", "a\\tb\\x1b[31m", moment, window, "true", "AA=="]
    assert second.split() == ["NULL", "nan", "NULL", "ü", "NULL", "NULL", "NULL", "NULL"]
    results.print_rows(VALUES, as_json=True)
    first, _ = json.loads(capsys.readouterr().out)
    assert (first["n"], first["n_2"], first["price"], first["w"]["end"]) == (1234567, 0.05, "1.50", None)


def test_on_a_terminal_wide_values_are_folded_and_long_results_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    results.print_rows(pa.table({"text": ["x" * 100]}), as_json=False)
    lines = re.sub("\x1b\\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(len, lines)) <= 40
    assert sum(line.count("x") for line in lines[1:]) == 100
    results.print_rows(pa.table({"n": list(range(1_200))}), as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "the first 1,000 of 1,200 rows; a pipe or --json gets all"
    assert lines[-2].strip() == "999"


def test_functions_are_declared_by_the_users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "def declare(ws):\n    ws.function('twice', lambda x: 2 * x, returns='BIGINT', per_row=True)\n"
    (tmp_path / "my_functions.py").write_text(code)
    hw.open(tmp_path / "w", durability="os").close()
    invoke(tmp_path / "w", "sql", "CREATE TOPIC t (n BIGINT)")
    invoke(tmp_path / "w", "append", "t", "-", stdin='{"n": 4}\n')
    (tmp_path / "v.sql").write_text("CREATE MATERIALIZED VIEW v AS SELECT twice(n) AS d FROM t")
    given = ("--functions", "my_functions")
    result = CliRunner().invoke(cli, ["-w", "w", *given, "run", "v.sql", "--once"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert listed(invoke(tmp_path / "w", "sql", "--json", "SELECT * FROM v")) == [{"d": 8}]
    wrong = CliRunner().invoke(cli, ["-w", "w", "--functions", "nothing_there", "views"])
    assert wrong.exit_code == 2
    assert (code_of(wrong), "'nothing_there'" in wrong.output) == ("bad-request", True)


def test_an_order_without_effect_is_reported_where_statements_are_run(run: Run, shop: Path) -> None:
    statement = "CREATE MATERIALIZED VIEW sorted AS SELECT id FROM orders ORDER BY id"
    (shop / "more.sql").write_text(f"{statement};\n")
    told = "warning: view sorted: ORDER BY without LIMIT has no effect"
    made = run("sql", "--json", statement)
    assert (made.exit_code, listed(made), made.stderr.startswith(told)) == (0, {"ok": True}, True)
    again = run("run", str(shop / "more.sql"), "--once")
    assert (again.exit_code, told in again.stderr) == (0, True)
