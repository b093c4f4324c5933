"""`headwater views`: the views of a workspace."""

from __future__ import annotations

import click

from headwater.cli.listings import VIEWS
from headwater.cli.output import print_text
from headwater.cli.session import CommandSession, json_option, pass_session

LEFT_OUT = ("diverted", "dropped", "failed")
"""Outcomes of rows that a view leaves out."""


@click.command()
@json_option
@pass_session
def views(session: CommandSession, as_json: bool) -> None:
    """List the views.

    Status is live, backfilling or stopped; columns of rows that a view has left out (diverted, dropped, failed) are
    shown if there are such rows.
    """
    with session.open() as ws:
        table = ws.sql("SHOW VIEWS")
        rows = table.to_pylist() if table is not None else []
    VIEWS.print(rows, as_json=as_json)
    for row in rows if not as_json else ():
        if row["reason"]:
            click.echo()
            print_text(f"{row['view']} is {row['status']}: {row['reason']}", indent=2)
