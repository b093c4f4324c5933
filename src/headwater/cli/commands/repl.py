"""`headwater sql` at a terminal, without a statement: an interactive prompt. Input is collected until a `;`, and Tab
completes names."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.catalog.connectors import ALERT, SINK, SOURCE, without_password
from headwater.cli.output import print_error, print_listing
from headwater.cli.results import print_result
from headwater.core.errors import HeadwaterError, StatementError

if TYPE_CHECKING:
    from headwater import Workspace

PROMPT, MORE = "headwater> ", "       ... "
HISTORY_LINES_MAX = 1_000
HELP = """\
\\d          list topics, views, sources, sinks and alerts
\\d NAME     describe a topic or a view; explain a source or a sink
\\?          this help
\\q          leave; Ctrl-D, too
A statement can have several lines and ends with ;
Tab completes names and keywords, Ctrl-C clears the input"""
KEYWORDS = (
    *(
        "ALERT",
        "ALERTS",
        "ALTER",
        "AND",
        "AS",
        "BETWEEN",
        "BY",
        "CASCADE",
        "CASE",
        "COLUMN",
        "COUNT",
        "CREATE",
    ),
    *(
        "CURSORS",
        "DEFAULT",
        "DESCRIBE",
        "DISTINCT",
        "DROP",
        "ELSE",
        "EMIT",
        "END",
        "EXISTS",
        "EXPLAIN",
        "FOR",
    ),
    *("FROM", "FULL", "GROUP", "HAVING", "INNER", "INTERVAL", "INTO", "IS", "JOIN", "LEFT", "LIMIT", "LIKE"),
    *(
        "MATERIALIZED",
        "METRIC",
        "NOT",
        "NOTIFY",
        "NULL",
        "ON",
        "ORDER",
        "OVER",
        "PARTITION",
        "PRIMARY",
        "REPLACE",
    ),
    *("RIGHT", "SELECT", "SET", "SHOW", "SINK", "SINKS", "SOURCE", "SOURCES", "SUM", "SYSTEM_TIME", "THEN"),
    *("TOPIC", "TOPICS", "UNION", "VALUES", "VIEW", "VIEWS", "WATERMARK", "WHEN", "WHERE", "WINDOW", "WITH"),
)
_SECRET = re.compile(r"\b\w*(password|secret|token)\w*\s*=\s*['\"]", re.IGNORECASE)
_DELIMITERS = " \t\n,;()=<>'\"`+-*/"


class Repl:
    """The interactive prompt. `ask` shows a prompt and returns a line; EOFError ends it, KeyboardInterrupt clears the
    current input. `remember` is called with every statement that may be stored in the history."""

    def __init__(
        self,
        ws: Workspace,
        ask: Callable[[str], str],
        *,
        as_json: bool = False,
        remember: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._ws = ws
        self._ask = ask
        self._as_json = as_json
        self._remember = remember

    def run(self) -> None:
        """Read and execute until the user leaves. An error is printed, and does not end the prompt."""
        lines: list[str] = []
        while True:
            try:
                line = self._ask(MORE if lines else PROMPT)
            except EOFError:
                click.echo()
                return
            except KeyboardInterrupt:
                logging.disable(logging.NOTSET)
                click.echo()
                lines = []
                continue
            if not lines and not line.strip():
                continue
            if not lines and (line.strip().startswith("\\") or line.strip().lower() in ("exit", "quit")):
                if self._command(line.strip()):
                    return
                continue
            lines.append(line)
            text = "\n".join(lines)
            if is_complete(text):
                lines = []
                if may_be_kept(text):
                    self._remember(" ".join(text.split()) if "--" not in text else text)
                self._guarded(partial(self._execute, text))

    def _command(self, line: str) -> bool:
        """Execute a line that is not a statement. Returns whether it was the command to leave."""
        word, _, rest = line.partition(" ")
        if word in ("\\q", "exit", "quit"):
            return True
        name = rest.strip().rstrip(";")
        if word == "\\d":
            self._guarded(lambda: self._describe(name) if name else self._list())
        else:
            if word != "\\?":
                click.echo(f"there is no command {word}", err=True)
            click.echo(HELP)
        return False

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except HeadwaterError as error:
            print_error(error)
        except KeyboardInterrupt:
            logging.disable(logging.NOTSET)
            click.echo("interrupted", err=True)

    def _execute(self, text: str) -> None:
        from headwater.sql.parser import parse

        read = parse(text)  # all statements are parsed before the first is run, as everywhere
        for part, statement in zip(statements_of(text), read, strict=True):
            table = self._ws.sql(part)
            print_result(type(statement).__name__, table, as_json=self._as_json)

    def _list(self) -> None:
        rows = [{"kind": kind, "name": name} for kind, name in names_of(self._ws)]
        print_listing(rows, as_json=self._as_json, empty="no objects yet; CREATE TOPIC creates a topic")

    def _describe(self, name: str) -> None:
        from headwater.core.types import quote

        name = name.strip("`")
        kinds = {kind for kind, found in names_of(self._ws) if found.lower() == name.lower()}
        quoted = ".".join(map(quote, name.split(".")))
        is_connector = kinds and kinds <= {"source", "sink"}
        self._execute(f"EXPLAIN {kinds.pop()} {quoted}" if is_connector else f"DESCRIBE {quoted}")


def is_complete(text: str) -> bool:
    """Whether a text ends with a `;` outside of quotes and comments."""
    from headwater.sql.lexer import words_of

    try:
        words = words_of(text)
    except StatementError:  # a quote or a comment is not closed
        return False
    return len(words) > 1 and words[-2].is_(";")


def statements_of(text: str) -> list[str]:
    """Return the statements of a text, each unchanged."""
    from headwater.sql.lexer import words_of

    found, start, empty = [], 0, True
    for word in words_of(text):
        if word.is_(";") or word.kind == "end":
            if not empty:
                found.append(text[start : word.start])
            start, empty = word.end, True
        else:
            empty = False
    return found


def may_be_kept(text: str) -> bool:
    """Whether a text may be stored in the history: it contains no password."""
    return without_password(text) == text and _SECRET.search(text) is None


def names_of(ws: Workspace) -> list[tuple[str, str]]:
    """Return the names of all topics, views, sources, sinks and alerts, each with its kind."""
    found = [("topic", name) for name in sorted(ws.log.topics())]
    for kind in ("view", SOURCE, SINK, ALERT):
        found += [(kind, name) for name in sorted(ws.log.entries(kind))]
    return found


def completions(ws: Workspace, begun: str) -> list[str]:
    """Return completions of a word: names and columns as they are spelled, keywords in the case of the word."""
    names = {name for _, name in names_of(ws)}
    for topic in ws.log.topics().values():
        names |= set(topic.schema.names)
    for entry in ws.log.entries("view").values():
        names |= set(_columns(entry.document))
    lower = begun.lower()
    words = [name for name in sorted(names) if name.lower().startswith(lower)]
    keywords = (word.lower() if begun.islower() else word for word in KEYWORDS)
    return list(dict.fromkeys([*words, *(word for word in keywords if word.lower().startswith(lower))]))


def _columns(document: Mapping[str, Any]) -> Iterable[str]:
    from headwater.catalog.view_definitions import ViewDefinition

    with suppress(HeadwaterError, KeyError, TypeError, ValueError):
        return list(ViewDefinition.from_document(document).columns.names)
    return ()


def history_file() -> Path:
    """Return the file that stores statements between sessions."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "headwater" / "sql_history"


def converse(ws: Workspace, *, as_json: bool) -> None:
    """Run the interactive prompt, with a history and completion if readline is installed."""
    click.echo(f"workspace {ws.path}; \\? is help, \\q leaves", err=True)
    try:
        import readline
    except ImportError:  # without readline there is no line editing
        Repl(ws, input, as_json=as_json).run()
        return
    file = history_file()
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file.touch(mode=0o600)
        readline.read_history_file(file)
    found: list[str] = []

    def complete(begun: str, number: int) -> str | None:
        nonlocal found
        if number == 0:
            try:
                found = completions(ws, begun)
            except HeadwaterError:
                found = []
        return found[number] if number < len(found) else None

    readline.set_auto_history(False)
    readline.set_completer(complete)
    readline.set_completer_delims(_DELIMITERS)
    edits = "bind ^I rl_complete" if "libedit" in (readline.__doc__ or "") else "tab: complete"
    readline.parse_and_bind(edits)
    try:
        Repl(ws, input, as_json=as_json, remember=readline.add_history).run()
    finally:
        readline.set_completer(None)
        readline.set_history_length(HISTORY_LINES_MAX)
        with suppress(OSError):
            readline.write_history_file(file)
        sys.stdout.flush()
