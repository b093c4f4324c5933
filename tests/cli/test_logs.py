"""The log of commands: lines of JSON, without passwords, and an error says where it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import headwater as hw
from headwater.cli.logs import JsonLines, file_of, logged, logger
from headwater.cli.output import print_error
from headwater.cli.program import cli
from headwater.core.errors import HeadwaterError, UsageError
from tests.raising import raises


def lines(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file_of(workspace).read_text().splitlines()]


def test_a_failure_is_logged_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        with logged(tmp_path, "run"):
            logger.debug("too fine")
            broken = HeadwaterError("it broke", hint="mend it", url="postgres://me:hidden@host/db")
            raise broken

    with pytest.raises(HeadwaterError) as failed:
        run()
    print_error(failed.value)
    told = capsys.readouterr().err.splitlines()
    assert told == [
        "error: it broke",
        "hint: mend it",
        "code: error (docs/error-codes.md)",
        f"log: {file_of(tmp_path)}",
    ]
    begun, broke = lines(tmp_path)
    assert (begun["message"], begun["level"]) == ("run begins", "info")
    assert broke["level"] == "error"
    assert broke["message"] == "run failed"
    assert "it broke" in broke["error"]
    assert broke["facts"] == {"url": "postgres://me:***@host/db"}
    assert "Traceback" in broke["trace"]
    assert "too fine" not in begun["message"]


def test_no_line_has_a_password_in_it() -> None:
    facts = {"url": "redis://me:hidden@host/", "nested": {"url": "redis://me:hidden@host/"}}
    try:
        raise ValueError("cannot reach postgres://me:hidden@host/db")
    except ValueError as error:
        trace = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("headwater", logging.ERROR, "", 0, "password=hidden %s", ("x",), trace)
    record.facts = facts
    line = JsonLines().format(record)
    assert "hidden" not in line
    assert json.loads(line)["level"] == "error"


def test_the_level_is_taken_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_LOG", "debug")
    with logged(tmp_path, "run"):
        logger.debug("tick", extra={"facts": {"tick": 7}})
    assert [line.get("tick") for line in lines(tmp_path)] == [None, 7, None]
    monkeypatch.setenv("HEADWATER_LOG", "off")
    with logged(tmp_path / "other", "run"):
        logger.error("nobody hears it")
    assert not (tmp_path / "other").exists()
    monkeypatch.setenv("HEADWATER_LOG", "loud")
    with raises(UsageError, variable="HEADWATER_LOG", value="loud"), logged(tmp_path, "run"):
        pass


def test_what_went_to_stderr_by_itself_still_does_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with logged(tmp_path, "run"):
        logging.getLogger("headwater").warning("too little memory")
        logger.error("logged alone")
    assert capsys.readouterr().err == "too little memory\n"
    assert [line["message"] for line in lines(tmp_path)][1:3] == ["too little memory", "logged alone"]
    assert not logging.getLogger("headwater").handlers


def test_a_folder_that_takes_no_log_is_no_reason_not_to_run(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("in the way")
    with logged(tmp_path, "run"):
        pass


# --- of commands ---------------------------------------------------------------------------------------------------


def invoke(workspace: Path, *arguments: str) -> Result:
    return CliRunner().invoke(cli, ["-w", str(workspace), *arguments])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A workspace with a bit in it that is not as it was."""
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.sql("CREATE TOPIC clicks (id BIGINT)")
        ws.topic("clicks").append([{"id": i} for i in range(50_000)])
        ws.maintain()
    (file, *_) = sorted((tmp_path / "w" / "topics").rglob("*.parquet"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    return tmp_path / "w"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["sql", "SELECT sum(id) FROM clicks"], "sql failed"),
        (["tail", "clicks", "--from", "earliest"], "tail failed"),
        (["verify"], "verify found differences"),
    ],
    ids=lambda given: given[0] if isinstance(given, list) else "",
)
def test_a_command_that_fails_says_what_to_do_and_where_its_log_is(
    damaged: Path, command: list[str], said: str
) -> None:
    result = invoke(damaged, *command)
    assert result.exit_code == 1
    told = result.stderr.splitlines()
    assert told[-1] == f"log: {file_of(damaged)}"
    (line,) = lines(damaged)
    assert (line["level"], line["message"]) == ("error", said)
    if command[0] != "verify":
        assert told[0].startswith("error: ")
        assert told[-3].startswith("hint: ")
        assert told[0].removeprefix("error: ") in line["error"]
        assert "Traceback" in line["trace"]
    else:
        assert "damaged" in result.stdout
        assert "parquet" in line["differences"][0]


def test_a_server_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os"):
        pass
    result = invoke(tmp_path / "w", "serve", "--host", "0.0.0.0", "--port", "0")
    assert result.exit_code == 2
    kinds = [line.partition(":")[0] for line in result.stderr.splitlines()]
    assert kinds == ["error", "hint", "code", "log"]
    assert [line["message"] for line in lines(tmp_path / "w")] == ["serve begins", "serve failed"]


def test_a_run_that_ends_by_itself_is_logged_too(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os"):
        pass
    assert invoke(tmp_path / "w", "run", "--once").exit_code == 0
    assert [line["message"] for line in lines(tmp_path / "w")] == ["run --once begins", "run --once ends"]


def test_an_error_in_what_was_asked_for_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hw.open(tmp_path / "w", durability="os"):
        pass
    for command in (["sql", "SELEC 1"], ["tail", "nobody"]):
        result = invoke(tmp_path / "w", *command)
        assert result.exit_code > 0
        assert "log: " not in result.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert CliRunner().invoke(cli, ["topics"]).exit_code == 1
    assert list(elsewhere.iterdir()) == []
    assert not (tmp_path / "w" / "logs").exists()


def test_where_no_log_is_wanted_none_is_named(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWATER_LOG", "off")
    result = invoke(damaged, "verify")
    assert result.exit_code == 1
    assert "log: " not in result.stderr
    assert not (damaged / "logs").exists()
