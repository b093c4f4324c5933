"""`headwater init`, `topics` and `sql`: make a workspace, see what is in it, change it."""

from __future__ import annotations

import sys

import click

import headwater as hw
from headwater.cli.output import print_json, print_listing, shown_bytes
from headwater.cli.session import Session, json_option, pass_session


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
    """Run one or more STATEMENTS, separated by ; ("-" reads them from stdin)."""
    text = sys.stdin.read() if statements == "-" else statements
    with session.open() as ws:
        table = ws.sql(text)
    if table is not None:
        print_listing(table.to_pylist(), as_json=as_json, empty="no rows")
    elif as_json:
        print_json({"ok": True})
    else:
        click.echo("done")
