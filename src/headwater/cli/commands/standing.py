"""`headwater standing`: lists, adds and removes stored queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import headwater as hw
from headwater.cli.listings import STANDING
from headwater.cli.output import print_json
from headwater.cli.results import print_rows
from headwater.cli.session import CommandSession, json_option

if TYPE_CHECKING:
    from headwater.core.positions import Receipt


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names of standing queries for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        context.find_root().params.get("workspace")
    )
    try:
        with session.open() as ws:
            shown = ws.sql("SHOW STANDING QUERIES")
            names = [] if shown is None else shown.column("standing_query").to_pylist()
            return [name for name in names if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


class _Listing(click.Group):
    """A command group that runs `NAME --json` and `NAME --history` as `NAME list` with these options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if len(args) > 1 and not args[0].startswith("-") and all(word.startswith("-") for word in args[1:]):
            asks_help = any(word in ctx.help_option_names for word in args[1:])
            args = args[1:] if asks_help else [args[0], "list", *args[1:]]
        return super().parse_args(ctx, args)


@click.group(cls=_Listing, invoke_without_command=True)
@click.argument("name", required=False, shell_complete=_complete)
@json_option
@click.pass_context
def standing(context: click.Context, name: str | None, as_json: bool) -> None:
    """List standing queries; add and remove stored queries.

    Without NAME: the standing queries. With NAME: the queries stored in it. New documents are matched against the stored
    queries; the view NAME has the matches.
    """
    if context.invoked_subcommand is None:
        with context.ensure_object(CommandSession).open() as ws:
            found = ws.sql("SHOW STANDING QUERIES") if name is None else ws.standing(name).list()
        assert found is not None
        if name is None:
            STANDING.print(found.to_pylist(), as_json=as_json)
        else:
            print_rows(found, as_json=as_json)
    elif name is None:
        raise click.UsageError("missing NAME: headwater standing NAME list|add|remove")


def _name(context: click.Context) -> str:
    assert context.parent is not None
    return str(context.parent.params["name"])


@standing.command("list")
@click.option("--history", is_flag=True, help="Every version of every query, and removals.")
@json_option
@click.pass_context
def list_queries(context: click.Context, history: bool, as_json: bool) -> None:
    """List the stored queries."""
    with context.ensure_object(CommandSession).open() as ws:
        stored = ws.standing(_name(context))
        found = stored.history() if history else stored.list()
    print_rows(found, as_json=as_json)


@standing.command()
@click.argument("query_id", metavar="ID")
@click.argument("query")
@click.option("--owner", metavar="NAME", help="Owner of the query, shown with its matches.")
@click.option(
    "--sql", "is_sql", is_flag=True, help="QUERY is a SQL condition over the columns of the documents."
)
@click.option("--backfill", metavar="SPAN", help="Match older documents, too, such as those of '7 days'.")
@click.option("--allow-scans", is_flag=True, help="Accept a query that must be compared with every document.")
@json_option
@click.pass_context
def add(
    context: click.Context,
    query_id: str,
    query: str,
    owner: str | None,
    is_sql: bool,
    backfill: str | None,
    allow_scans: bool,
    as_json: bool,
) -> None:
    """Store QUERY under an id, or replace it."""
    with context.ensure_object(CommandSession).open() as ws:
        receipt = ws.standing(_name(context)).add(
            query_id,
            query,
            owner=owner,
            kind="sql" if is_sql else "lucene",
            backfill=backfill,
            allow_scans=allow_scans,
        )
    _print(f"stored {query_id}", query_id, receipt, as_json)


@standing.command()
@click.argument("query_id", metavar="ID")
@json_option
@click.pass_context
def remove(context: click.Context, query_id: str, as_json: bool) -> None:
    """Remove a stored query; its matches remain."""
    with context.ensure_object(CommandSession).open() as ws:
        receipt = ws.standing(_name(context)).remove(query_id)
    _print(f"removed {query_id}", query_id, receipt, as_json)


def _print(sentence: str, query_id: str, receipt: Receipt, as_json: bool) -> None:
    if as_json:
        print_json({"id": query_id, "receipt": str(receipt)})
    else:
        click.echo(sentence)
