"""`headwater sql` without a statement: a conversation at a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.cli.commands.repl import (
    MORE,
    PROMPT,
    Repl,
    completions,
    history_file,
    is_complete,
    may_be_kept,
    statements_of,
)
from tests.cli.outcome import code_of

Talk = Callable[..., str]


@pytest.fixture
def ws() -> Iterator[hw.Workspace]:
    with hw.open("memory:") as workspace:
        workspace.sql("CREATE TOPIC clicks (user BIGINT, url STRING)")
        yield workspace


@pytest.fixture
def talk(ws: hw.Workspace, capsys: pytest.CaptureFixture[str]) -> Talk:
    """Say some lines; what was answered. Prompts are shown as they are asked with."""

    def said(*lines: str | type[BaseException], kept: list[str] | None = None) -> str:
        left = list(lines)

        def ask(prompt: str) -> str:
            print(prompt, end="")
            line = left.pop(0) if left else EOFError
            if isinstance(line, str):
                return line
            raise line

        remember = (lambda text: None) if kept is None else kept.append
        Repl(ws, ask, remember=remember).run()
        assert not left, "it was left before everything was said"
        told = capsys.readouterr()
        return told.out + told.err

    return said


def test_a_statement_goes_on_until_its_semicolon(talk: Talk, ws: hw.Workspace) -> None:
    told = talk("CREATE TOPIC b", "(a INT)", ";")
    assert told.count(PROMPT) == 2
    assert told.count(MORE) == 2
    assert "done" in told
    assert "b" in ws.log.topics()


def test_several_statements_of_a_line_are_answered_each(talk: Talk) -> None:
    told = talk("CREATE TOPIC b (a INT); SHOW TOPICS;")
    assert "done" in told
    assert "clicks" in told


def test_nothing_is_run_if_one_of_them_cannot_be_read(talk: Talk, ws: hw.Workspace) -> None:
    told = talk("CREATE TOPIC b (a INT); SHOW FROGS;")
    assert "SHOW FROGS is not supported" in told
    assert "b" not in ws.log.topics()


def test_an_error_is_underlined_and_ends_nothing(talk: Talk) -> None:
    told = talk("CREATE TOPIC b (a FROG);", "SHOW TOPICS;")
    assert "error: " in told
    assert "^^^^" in told
    assert "hint: " in told or "detail: " in told
    assert "clicks" in told


def test_ctrl_c_clears_what_was_typed(talk: Talk, ws: hw.Workspace) -> None:
    told = talk("CREATE TOPIC b", KeyboardInterrupt, "SHOW TOPICS;")
    assert "clicks" in told
    assert "error" not in told
    assert "b" not in ws.log.topics()


def test_backslash_d_lists_and_describes(talk: Talk) -> None:
    assert "clicks" in talk("\\d")
    described = talk("\\d clicks")
    assert "url" in described
    assert "STRING" in described
    assert "there is no topic" in talk("\\d nothing")
    assert "\\d NAME" in talk("\\?")
    assert "there is no command \\x" in talk("\\x")


@pytest.mark.parametrize("word", ["\\q", "exit", "quit"])
def test_it_can_be_left(ws: hw.Workspace, word: str) -> None:
    lines = iter([word])
    Repl(ws, lambda prompt: next(lines)).run()


def test_statements_are_remembered_unless_they_have_a_password(talk: Talk) -> None:
    kept: list[str] = []
    talk(
        "SHOW",
        "TOPICS;",
        "\\d",
        "SHOW FROGS;",
        "SELECT 'password = x' WHERE a =",
        KeyboardInterrupt,
        kept=kept,
    )
    assert kept == ["SHOW TOPICS;", "SHOW FROGS;"]
    assert may_be_kept("CREATE SINK s FROM v INTO REDIS WITH (url = env('URL'), secret = env('S'));")
    assert not may_be_kept("CREATE SINK s FROM v INTO REDIS WITH (url = 'redis://me:pw@host/');")
    assert not may_be_kept("ALTER SINK s SET (secret = 'pw');")
    assert not may_be_kept("ALTER SINK s SET (Token='pw');")


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        ("SHOW TOPICS;", True),
        ("SHOW TOPICS", False),
        ("SELECT ';'", False),
        ("SELECT ';", False),
        ("SELECT 1 -- ;", False),
        ("SELECT 1 /* ;", False),
        ("SELECT 1; -- that is all", True),
    ],
)
def test_a_semicolon_counts_where_it_ends_a_statement(text: str, complete: bool) -> None:
    assert is_complete(text) is complete


def test_statements_are_told_apart_as_they_stand() -> None:
    assert statements_of("SELECT ';' ; ;SHOW  TOPICS;") == ["SELECT ';' ", "SHOW  TOPICS"]


def test_names_columns_and_keywords_are_completed(ws: hw.Workspace) -> None:
    assert completions(ws, "cl") == ["clicks"]
    assert completions(ws, "ur") == ["url"]
    assert completions(ws, "sel") == ["select"]
    assert completions(ws, "SEL") == ["SELECT"]


def test_history_is_kept_where_state_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "headwater" / "sql_history"
    monkeypatch.delenv("XDG_STATE_HOME")
    assert history_file().parts[-4:] == (".local", "state", "headwater", "sql_history")


def test_at_a_terminal_there_is_a_prompt_and_a_history_that_others_cannot_read(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws", durability="os") as made:
        made.sql("CREATE TOPIC clicks (user BIGINT)")
    outer, inner = pty.openpty()
    environ = {**os.environ, "TERM": "dumb", "XDG_STATE_HOME": str(tmp_path / "state")}
    process = subprocess.Popen(
        [sys.executable, "-m", "headwater", "-w", str(tmp_path / "ws"), "sql"],
        stdin=inner, stdout=inner, stderr=inner, env=environ, start_new_session=True,
    )  # fmt: skip
    os.close(inner)
    try:
        _read_until(outer, PROMPT)
        os.write(outer, b"EXPL\t cli\t;\n")
        _read_until(outer, f"BIGINT.*{PROMPT}")  # what comes before it is asked again is not for it
        os.write(outer, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(outer)
    file = tmp_path / "state" / "headwater" / "sql_history"
    assert "EXPLAIN clicks" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0


def _read_until(terminal: int, wanted: str) -> None:
    text = ""
    while not re.search(wanted, text, re.DOTALL):
        assert select.select([terminal], [], [], 60)[0], text
        text += os.read(terminal, 65_536).decode(errors="replace")


def test_without_a_terminal_statements_are_read_from_the_pipe(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from headwater.cli.program import cli

    with hw.open(tmp_path / "ws", durability="os"):
        pass
    arguments = ["-w", str(tmp_path / "ws"), "sql"]
    done = CliRunner().invoke(cli, arguments, input="CREATE TOPIC a (b INT); SHOW TOPICS")
    assert done.exit_code == 0
    assert "a" in done.output
    nothing = CliRunner().invoke(cli, arguments, input="")
    assert nothing.exit_code == 2
    assert code_of(nothing) == "bad-request"
