"""`headwater init`, `topics` and `sql`: create a workspace, list its topics, run statements."""

from __future__ import annotations

import sys
from pathlib import Path

import click

import headwater as hw
from headwater.cli.listings import TOPICS
from headwater.cli.results import print_result
from headwater.cli.session import CommandSession, json_option, pass_session, views_of
from headwater.core.errors import UsageError

_OF_VIEWS = {
    "CreateView",
    "CreateTopicAs",
    "CreateStanding",
    "DropView",
    "DropStanding",
    "ShowViews",
    "Query",
    "ExplainQuery",
}
"""Statements that need the modules of views even if there is no view yet; other statements do not import them."""


@click.command()
@click.argument("path", required=False, type=click.Path(file_okay=False))
@click.option(
    "--project",
    is_flag=True,
    help="Create a project: pipeline.sql, .env.example, README.md and a workspace.",
)
@pass_session
def init(session: CommandSession, path: str | None, project: bool) -> None:
    """Create a workspace, or a project around one.

    PATH is the folder. Default: the workspace of -w, or the current folder.
    """
    folder = path or session.path
    if project:
        _init_project(folder)
        return
    with hw.open(folder) as ws:
        count = len(ws.topics())
    click.echo(f"workspace {folder} is ready" + (f", with {count} topics" if count else ""))
    if not count:
        prefix = "" if folder == "." else f"-w {folder} "
        click.echo(
            f'next: headwater {prefix}sql "CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP)"'
        )


def _init_project(folder: str) -> None:
    from headwater.cli.project import WORKSPACE, make_project

    files = make_project(Path(folder))
    with hw.open(Path(folder) / WORKSPACE):
        pass
    click.echo(f"created project {folder}: {', '.join(files)}")
    if folder != ".":
        click.echo(f"next: cd {folder}")
    click.echo(f"next: headwater -w {WORKSPACE} run pipeline.sql --console")


@click.command()
@json_option
@pass_session
def topics(session: CommandSession, as_json: bool) -> None:
    """List the topics.

    A narrow terminal shows fewer columns; --json has all of them.
    """
    with session.open() as ws:
        table = ws.sql("SHOW TOPICS")
        rows = table.to_pylist() if table is not None else []
    TOPICS.print(rows, as_json=as_json)


@click.command()
@click.argument("statements", required=False)
@json_option
@pass_session
def sql(session: CommandSession, statements: str | None, as_json: bool) -> None:
    """Run SQL statements, or open a SQL prompt.

    STATEMENTS are separated by ;, "-" reads them from stdin. The result of the last one is printed. Without STATEMENTS, a
    terminal gets a prompt; \\? prints help there. A SELECT reads one tick: all views and topics at the same positions.
    """
    if statements is None and sys.stdin.isatty():
        from headwater.cli.commands.repl import converse
        from headwater.cli.live_progress import SparkStartNotice

        with session.open() as ws:
            views_of(ws).listener = SparkStartNotice()
            converse(ws, as_json=as_json)
        return
    text = sys.stdin.read() if statements in (None, "-") else statements
    assert text is not None
    if statements is None and not text.strip():
        raise UsageError("no statement was given", hint='headwater sql "SHOW TOPICS"', reason="no-statement")
    with session.open() as ws:
        asked = _kinds(text)
        if ws.log.entries("view") or not _OF_VIEWS.isdisjoint(asked):
            from headwater.cli.live_progress import SparkStartNotice

            views_of(ws).listener = SparkStartNotice()
        table = ws.sql(text)
        waiting = (
            {"CreateView", "CreateStanding"} & set(asked) and not as_json and views_of(ws).engine() is None
        )
    sentence = "done" + ("; `headwater run` builds the view" if waiting else "")
    print_result(asked[-1] if asked else "", table, as_json=as_json, sentence=sentence)


def _kinds(text: str) -> list[str]:
    """Return the kind of each statement of a text, as named in `headwater.sql.statements`."""
    from headwater.sql.parser import parse

    return [type(statement).__name__ for statement in parse(text)]
