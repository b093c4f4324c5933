"""`headwater dead` on a real workspace and a real Spark."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.commands import dead
from headwater.cli.program import cli
from tests.cli.outcome import code_of
from tests.shared_spark import make_session

pytestmark = pytest.mark.slow

Run = Callable[..., Result]

DECLARED = """
CREATE TOPIC orders (id BIGINT, customer BIGINT, amount STRING, price DECIMAL(9, 2), tags ARRAY<STRING>);
CREATE MATERIALIZED VIEW revenue WITH (on_error = 'divert') AS
  SELECT customer, sum(CAST(amount AS BIGINT)) AS revenue FROM orders GROUP BY customer;
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two dead letters, to be copied."""
    folder = tmp_path_factory.mktemp("dead") / "w"
    with hw.open(folder, durability="os", spark=make_session()) as ws:
        ws.sql(DECLARED)
        amounts = ("10", "n/a", "1O")
        ws.topic("orders").append([{"id": i, "customer": 7, "amount": a} for i, a in enumerate(amounts)])
        ws.run()
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command on a workspace of its own."""
    monkeypatch.delenv("HEADWATER_WORKSPACE", raising=False)
    monkeypatch.setattr("getpass.getuser", lambda: "carla")
    folder = tmp_path / "w"
    shutil.copytree(made, folder)

    def invoke(*arguments: str, status: int = 0, **options: Any) -> Result:
        result = CliRunner().invoke(cli, ["-w", str(folder), *arguments], catch_exceptions=False, **options)
        assert result.exit_code == status, result.output
        return result

    return invoke


def listed(result: Result) -> Any:
    return json.loads(result.stdout)


def test_it_counts_and_lists_what_waits_for_somebody(run: Run) -> None:
    header, only = run("dead").stdout.splitlines()
    assert header.split() == ["of", "kind", "open", "dropped"]
    assert only.split() == ["revenue", "view", "2", "0"]
    header, *lines = run("dead", "list").stdout.splitlines()
    assert header.split() == ["letter", "state", "error", "row"]
    assert {line.split()[0] for line in lines} == {"revenue/orders-0-1", "revenue/orders-0-2"}
    limited = run("dead", "list", "REVENUE", "-n", "1")
    assert limited.stderr == "the newest 1 of 2\n"
    (row,) = (r for r in listed(run("dead", "list", "--json")) if r["letter"] == "revenue/orders-0-2")
    assert (row["kind"], row["owner"], row["state"], row["version"]) == ("view", "revenue", "open", 0)
    assert "'1O'" in row["error"]


def test_a_workspace_without_letters_says_so(run: Run, tmp_path: Path) -> None:
    with hw.open(tmp_path / "empty"):
        pass
    for arguments in (["dead"], ["dead", "list"]):
        result = CliRunner().invoke(cli, ["-w", str(tmp_path / "empty"), *arguments])
        assert (result.exit_code, result.stdout) == (0, "no dead letters\n")
    run("dead", "drop", "--of", "revenue")
    assert run("dead", "list").stdout.startswith("no open dead letters; --all")


def test_a_letter_is_shown_with_the_actions_on_it(run: Run) -> None:
    name = "revenue/orders-0-2"
    text = run("dead", "show", name).stdout
    assert "state        open" in text
    assert "rejected by  view revenue" in text
    said = run("dead", "edit", name, "--set", "amount=10", "--reason", "the letter O").stdout
    assert said.startswith(f"{name} is edited: ")
    assert said.endswith(f"next: headwater dead replay {name}\n")
    text = run("dead", "show", name).stdout
    assert "state        edited" in text
    (line,) = (line for line in text.splitlines() if "carla" in line)
    assert "the letter O" in line
    assert run("dead", "replay", name, "--by", "ben").stdout == "1 dead letter replayed\n"
    told = listed(run("dead", "show", name, "--json"))
    assert (told["state"], told["version"]) == ("replayed", 2)
    assert [(d["who"], d["action"], d["settled"]) for d in told["deeds"]] == [
        ("carla", "edit", False),
        ("ben", "replay", True),
    ]
    assert '"1O"' in told["original"]
    assert '"10"' in told["deeds"][0]["edited"]
    assert run("dead", "replay", name).stdout == f"0 dead letters replayed\nreplayed before: {name}\n"
    assert [row["state"] for row in listed(run("dead", "list", "--all", "--json"))].count("replayed") == 1


def test_values_are_read_as_the_columns_have_them(run: Run) -> None:
    name = "revenue/orders-0-1"
    run("dead", "edit", name, "--set", "price=1.50", "--set", "amount=3", "--set", 'tags=["a", "b"]')
    row = listed(run("dead", "show", name, "--json"))["row"]
    assert json.loads(row) == {"id": 1, "customer": 7, "amount": "3", "price": "1.50", "tags": ["a", "b"]}
    run("dead", "edit", name, "--row", "-", "--null", "tags", input='{"price": 2.25, "customer": 8}')
    row = listed(run("dead", "show", name, "--json"))["row"]
    assert json.loads(row) == {"id": 1, "customer": 8, "amount": "3", "price": "2.25", "tags": None}
    assert "is not a value of column 'id'" in run("dead", "edit", name, "--set", "id=x", status=2).stderr
    assert "did you mean amount?" in run("dead", "edit", name, "--set", "amout=1", status=2).stderr
    assert "--set takes COLUMN=VALUE" in run("dead", "edit", name, "--set", "amount", status=2).stderr
    assert code_of(run("dead", "edit", name, "--row", "-", status=2, input="x")) == "bad-request"
    assert code_of(run("dead", "edit", name, status=2)) == "bad-request"
    older = run("dead", "edit", name, "--set", "amount=1", "--expect", "0", status=1)
    assert (code_of(older), name in older.stderr) == ("conflict", True)


def test_what_is_dropped_is_counted_in_the_ledger(run: Run) -> None:
    assert run("dead", "drop", "revenue/orders-0-1", "--reason", "a test").stdout == "1 dead letter dropped\n"
    assert listed(run("dead", "drop", "--of", "revenue", "--json")) == {"dropped": ["revenue/orders-0-2"]}
    views = {view["view"]: view["ledger"] for view in listed(run("status", "--json"))["views"]}
    assert views["revenue"] == {"read": 3, "used": 1, "diverted": 0, "dropped": 2, "failed": 0}
    assert run("late").stdout == "no late rows\n"
    states = {row["letter"]: row["who"] for row in listed(run("dead", "list", "--all", "--json"))}
    assert states == {"revenue/orders-0-1": "carla", "revenue/orders-0-2": "carla"}


def test_what_is_left_makes_the_command_fail_and_says_why(run: Run) -> None:
    result = run("dead", "replay", "--of", "revenue", status=1)
    assert result.stdout == "0 dead letters replayed\n"
    assert "revenue/orders-0-1 was not replayed: " in result.stderr
    missing = run("dead", "show", "revenue/orders-0-9", status=1)
    assert (code_of(missing), "revenue/orders-0-" in missing.stderr) == ("letter-not-found", True)
    assert code_of(run("dead", "drop", status=2)) == "bad-request"
    assert "did you mean revenue?" in run("dead", "list", "revenu", status=1).stderr


def test_the_shell_completes_whose_letters_are_meant(run: Run, tmp_path: Path) -> None:
    from click.shell_completion import ShellComplete

    shell = ShellComplete(cli, {}, "headwater", "_HEADWATER_COMPLETE")
    words = [i.value for i in shell.get_completions(["-w", str(tmp_path / "w"), "dead", "list"], "re")]
    assert words == ["revenue"]


def test_a_letter_is_a_line_with_its_name_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    row = {"letter": "revenue/orders-0-17", "state": "dropped", "error": "no " * 50, "row": '{"id": 1}'}
    (shown,) = dead._fitting([row])
    assert (shown["letter"], shown["row"]) == ("revenue/orders-0-17", '{"id": 1}')
    assert shown["error"].endswith("...")
    assert sum(map(len, shown.values())) <= 80 - 6
