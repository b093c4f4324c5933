"""`headwater views`: the views of a workspace."""

from __future__ import annotations

import click

from headwater.cli.output import print_listing, shown_bytes
from headwater.cli.session import CommandSession, json_option, pass_session

NO_VIEWS = 'no views yet; make one with: headwater sql "CREATE MATERIALIZED VIEW ..."'

LEFT_OUT = ("diverted", "dropped", "failed")
"""Outcomes of rows that a view leaves out."""


@click.command()
@json_option
@pass_session
def views(session: CommandSession, as_json: bool) -> None:
    """List the views."""
    with session.open() as ws:
        table = ws.sql("SHOW VIEWS")
        rows = table.to_pylist() if table is not None else []
    if not as_json:
        rows = [
            {
                "view": row["view"],
                "status": row["status"],
                "reads": row["reads"],
                "columns": row["columns"],
                "state": shown_bytes(row["state_bytes"]),
                "last tick": row["last_tick"],
                **{
                    what: row[what]
                    for what in (*LEFT_OUT, "watermark", "reason")
                    if any(r[what] for r in rows)
                },
            }
            for row in rows
        ]
    print_listing(rows, as_json=as_json, empty=NO_VIEWS)
