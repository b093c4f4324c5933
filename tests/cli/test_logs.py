"""The log of `headwater run` and `headwater serve`: lines of JSON, without passwords, and an error says where it is."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from headwater.cli.logs import JsonLines, file_of, logged, logger
from headwater.cli.output import print_error
from headwater.errors import HeadwaterError, UsageError


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
    assert told == ["error: it broke", "hint: mend it", f"log: {file_of(tmp_path)}"]
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
    with pytest.raises(UsageError, match="HEADWATER_LOG is one of"), logged(tmp_path, "run"):
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
