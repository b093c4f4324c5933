"""`headwater init`, `topics` and `sql`: make a workspace, see what is in it, change it."""

from __future__ import annotations

import sys

import click

import headwater as hw
from headwater.cli.output import print_json, print_listing, shown_bytes
from headwater.cli.results import print_facts, print_rows
from headwater.cli.session import Session, json_option, pass_session, views_of

_OF_VIEWS = {"CreateView", "CreateTopicAs", "DropView", "ShowViews", "Query", "ExplainQuery"}
"""Statements that need the modules of the runtime even where there is no view yet; the others do not load them."""


@click.command()
@click.argument("path", required=False, type=click.Path(file_okay=False))
@pass_session
def init(session: Session, path: str | None) -> None:
    """Make a workspace in PATH, by default in the current folder."""
    folder = path or session.path
    with hw.open(folder) as ws:
        count = len(ws.topics())
    click.echo(f"workspace {folder} is there" + (f", with {count} topics" if count else ""))
    if not count:
        prefix = "" if folder == "." else f"-w {folder} "
        click.echo(
            f'next: headwater {prefix}sql "CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP)"'
        )


@click.command()
@json_option
@pass_session
def topics(session: Session, as_json: bool) -> None:
    """List the topics."""
    with session.open() as ws:
        table = ws.sql("SHOW TOPICS")
        rows = table.to_pylist() if table is not None else []
    if not as_json:
        rows = [
            {
                "size" if k == "size_bytes" else k: shown_bytes(v) if k == "size_bytes" else v
                for k, v in r.items()
            }
            for r in rows
        ]
    print_listing(
        rows, as_json=as_json, empty='no topics yet; make one with: headwater sql "CREATE TOPIC ..."'
    )


@click.command()
@click.argument("statements")
@json_option
@pass_session
def sql(session: Session, statements: str, as_json: bool) -> None:
    """Run one or more STATEMENTS, separated by ; ("-" reads them from stdin), and print the result of the last.

    A SELECT is answered from one tick: all views and topics as they were at the same moment.
    """
    text = sys.stdin.read() if statements == "-" else statements
    with session.open() as ws:
        asked = _kinds(text)
        if ws.log.entries("view") or not _OF_VIEWS.isdisjoint(asked):
            from headwater.cli.watching import Quiet

            views_of(ws).listener = Quiet()
        table = ws.sql(text)
        waiting = "CreateView" in asked and not as_json and views_of(ws).engine() is None
    if table is None:
        if as_json:
            print_json({"ok": True})
        else:
            click.echo("done" + ("; `headwater run` builds the view" if waiting else ""))
    elif asked[-1] in ("Explain", "ExplainQuery"):
        print_facts(table, as_json=as_json)
    elif asked[-1] == "Query":
        print_rows(table, as_json=as_json)
    else:
        print_listing(table.to_pylist(), as_json=as_json, empty="no rows")


def _kinds(text: str) -> list[str]:
    """What kind of statement each one of a text is, by the names of `headwater.queries.statements`."""
    from headwater.queries.parsing import parse

    return [type(statement).__name__ for statement in parse(text)]
