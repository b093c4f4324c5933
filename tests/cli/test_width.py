"""What the command line prints fits 80 columns: the help of every command, and every listing of a workspace with some of everything."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from headwater.cli.program import GROUPS, cli
from tests.cli.busy_workspace import build
from tests.shared_spark import make_session

WIDTH = 80
STORED_NAMES = re.compile(
    r"\b(size_bytes|last_tick|behind_rows|oldest_seconds|lag_seconds|withheld|untold)\b"
)
LISTINGS = (
    ["topics"],
    ["views"],
    ["status"],
    ["late"],
    ["dead"],
    ["dead", "list"],
    ["dead", "list", "--all"],
    ["dead", "show", "priced_orders/orders-1-1"],
    ["queue"],
    ["queue", "list"],
    ["queue", "show", "mails_to_send"],
    ["standing"],
    ["cursors"],
    ["lag"],
    ["token", "list"],
    ["deletions"],
    ["deletions", "forget-1"],
    ["doctor"],
    ["verify", "orders"],
    ["maintain"],
    *(["sql", f"SHOW {what}"] for what in ("TOPICS", "VIEWS", "SOURCES", "SINKS", "ALERTS", "CURSORS")),
    ["sql", "SHOW STANDING QUERIES"],
    ["sql", "DESCRIBE customers"],
)
FAILING = {"status"}
"""The workspace has a stopped view."""


def commands(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """A command, and those below it."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, (*path, name))


def too_wide(text: str) -> list[str]:
    return [line for line in text.splitlines() if len(line) > WIDTH]


# --- help --------------------------------------------------------------------------------------------------------------


def test_help_fits_and_no_summary_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    wrong = []
    for path, _ in commands(cli):
        if path == ("standing",) or path[:1] != ("standing",):
            text = CliRunner().invoke(cli, [*path, "--help"]).stdout
            wrong += [f"{path}: {line}" for line in too_wide(text)]
            # of a list of commands: the name and its summary; the usage ends with "...", too
            wrong += [f"{path}: {line}" for line in text.splitlines() if re.match(r"  \S.*\.\.\.$", line)]
    assert not wrong, "\n".join(wrong)


def test_every_command_and_option_has_a_help_text() -> None:
    wrong = []
    for path, command in commands(cli):
        wrong += [] if command.help else [f"{path}: no text"]
        wrong += [
            f"{path}: {option.name}"
            for option in command.params
            if isinstance(option, click.Option) and not (option.help or option.name == "help")
        ]
    assert not wrong, "\n".join(wrong)


def test_the_help_lists_the_commands_in_groups() -> None:
    text = CliRunner().invoke(cli, ["--help"]).stdout
    at = [text.index(f"\n{title}:\n") for title in GROUPS]
    assert at == sorted(at)
    listed = [command.name for group in GROUPS.values() for command in group]
    assert sorted(map(str, listed)) == sorted(cli.commands)
    assert all(f"\n  {name} " in text for name in listed)


# --- listings ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("busy"), make_session())


def invoke(workspace: Path, *arguments: str) -> Result:
    keys = {"HEADWATER_KEYS": str(workspace.parent / "keys"), "COLUMNS": str(WIDTH)}
    return CliRunner(env=keys).invoke(cli, ["-w", str(workspace), *arguments], catch_exceptions=False)


@pytest.mark.slow
def test_every_listing_fits(busy: Path) -> None:
    wrong = []
    for arguments in LISTINGS:
        result = invoke(busy, *arguments)
        assert result.exit_code == (1 if arguments[0] in FAILING else 0), result.output
        lines = result.stdout.splitlines()
        assert lines, arguments
        wrong += [f"{' '.join(arguments)}: {line}" for line in too_wide(result.stdout)]
        wrong += [f"{' '.join(arguments)}: {line}" for line in lines if STORED_NAMES.search(line)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_a_listing_shows_what_is_there(busy: Path) -> None:
    status = invoke(busy, "status").stdout
    for part in (
        "view urls_as_numbers is stopped",
        "hint ",
        "high_revenue  country ch",
        "2 rows",
        "revenue_topic",
        "mails_to_send",
        "catalogue",
    ):
        assert part in status, part
    assert "urls_as_numbers is stopped: " in invoke(busy, "views").stdout
    late = [line.split()[:2] for line in invoke(busy, "late").stdout.splitlines()]
    assert late[-2:] == [["clicks_per_hour", "drop"], ["clicks_per_minute", "divert"]]
    described = invoke(busy, "sql", "DESCRIBE orders").stdout
    assert {line.split()[1] for line in described.splitlines()[1:]} == {"BIGINT", "STRING"}
    explained = invoke(busy, "sql", "EXPLAIN revenue_by_country").stdout
    assert "country STRING, revenue DECIMAL(20,2), orders BIGINT" in " ".join(explained.split())


@pytest.mark.slow
def test_json_has_every_column_under_its_stored_name(busy: Path) -> None:
    views = invoke(busy, "views", "--json").stdout
    assert '"state_bytes"' in views
    assert '"committed_at"' in views
    assert '"last_appended_at"' in invoke(busy, "topics", "--json").stdout
