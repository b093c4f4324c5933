"""The commands and the metrics of the operating guide exist, and its systemd unit is one."""

import configparser
import re
import shlex
from pathlib import Path

import click
import pytest

from headwater.cli.program import cli
from headwater.sql.parser import parse
from tests.repo.tree import ROOT, blocks

PAGE = ROOT / "docs" / "operating.md"
TEXT = PAGE.read_text(encoding="utf-8")
COMMANDS = list(dict.fromkeys(re.findall(r"^\| [^|]+ \| `(headwater [^`]+)` \|", TEXT, re.MULTILINE)))
STATEMENTS = list(dict.fromkeys(re.findall(r"`(ALTER \w+ \w+ [^`.]+)`", TEXT)))


def test_there_is_a_runbook() -> None:
    assert len(COMMANDS) > 15
    assert STATEMENTS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_guide_parses(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.sql").touch()
    parent = click.Context(cli, info_name="headwater")
    program: click.Command = cli
    words = shlex.split(command)[1:]
    while isinstance(program, click.Group):
        while words and words[0] == "-w":
            words = words[2:]
        if not words and program.invoke_without_command:
            return
        found = program.get_command(parent, words[0])
        assert found is not None, f"there is no {words[0]}"
        program, words = found, words[1:]
    for word in words:
        if word.upper().startswith(("SHOW", "ALTER")):
            assert parse(word)
    program.make_context(program.name, words, parent=parent)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_of_the_guide_parses(statement: str) -> None:
    assert parse(statement)


def test_every_metric_of_the_guide_is_listed() -> None:
    listed = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    for name in set(re.findall(r"`(headwater_\w+)`", TEXT)):
        assert name in listed or name.removeprefix("headwater_sink_lag") in listed, name


def test_the_unit_starts_the_engine() -> None:
    (unit,) = (block.text for block in blocks(PAGE) if block.language == "ini")
    read = configparser.ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # type: ignore[assignment,method-assign]
    read.read_string(unit)
    assert " run " in read["Service"]["ExecStart"]
    assert {"Unit", "Service", "Install"} == set(read.sections())
