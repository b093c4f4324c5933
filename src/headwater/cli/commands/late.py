"""`headwater late`: lists the rows that were late for views, and replays them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from headwater.cli.commands.engine import run_once
from headwater.cli.output import print_json, print_listing, shown_seconds
from headwater.cli.results import print_rows
from headwater.cli.session import CommandSession, complete_view, json_option, pass_session, views_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from headwater import Workspace
    from headwater.catalog.view_definitions import ViewDefinition

NONE_LATE = "no late rows"


class _Late(click.Group):
    """A command group that takes any word other than a subcommand as the name of a view."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand of a word, or `show` for a view's name, and the remaining arguments."""
        if args[0] in self.commands:
            return super().resolve_command(ctx, args)
        return args[0], show, args

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return completions: subcommands, options and views."""
        names = complete_view(ctx, self.params[0], incomplete)
        return [*super().shell_complete(ctx, incomplete), *map(CompletionItem, names)]


@click.group(cls=_Late, invoke_without_command=True, subcommand_metavar="[VIEW | replay VIEW]")
@json_option
@click.pass_context
def late(context: click.Context, as_json: bool) -> None:
    """List late rows, or replay them.

    Without VIEW: the views with late rows, with their counts. With VIEW: its late rows. A row is late for a window that the
    watermark had closed before the row arrived. Views with late = 'divert' or correct_for keep their late rows, those with
    late = 'drop' count them. `headwater late VIEW --help` describes the rows.
    """
    if context.invoked_subcommand is not None:
        return
    session = context.ensure_object(CommandSession)
    with session.open() as ws:
        rows = [row for name in sorted(ws.log.entries("view")) for row in _accounts(ws, name)]
    if not as_json:
        rows = [
            {
                "view": row["view"],
                "policy": row["policy"],
                "topic": row["topic"],
                "diverted": row["diverted"],
                "dropped": row["dropped"],
                "windows missed": row["windows_missed"],
                "max lateness": _span(row["lateness_max_us"]),
                "newest": row["newest_at"],
            }
            for row in rows
        ]
    print_listing(
        rows, as_json=as_json, empty=NONE_LATE, optional=("newest", "windows missed", "topic", "max lateness")
    )


@click.command()
@click.argument("view", shell_complete=complete_view)
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@json_option
@pass_session
@click.pass_context
def show(
    context: click.Context, session: CommandSession, view: str, limit: int | None, as_json: bool
) -> None:
    """Show the late rows of VIEW, the newest first.

    A line for every window that a row missed. The columns are the row's own, followed by the window, the lateness in
    microseconds, the watermark, and the position of the row in the log.
    """
    from headwater.views.late_replay import refuse_untold

    with session.open() as ws:
        definition = views_of(ws).names.describe(view)
        refuse_untold(definition)
        found = _newest_first(ws.view(f"{definition.name}.late").read())
    parent = context.parent
    as_json = as_json or bool(parent is not None and parent.params.get("as_json"))
    shown = found if limit is None else found.slice(0, limit)
    if not found.num_rows and not as_json:
        click.echo(NONE_LATE)
        return
    print_rows(shown, as_json=as_json)
    if shown.num_rows < found.num_rows and not as_json:
        click.echo(f"the newest {shown.num_rows:,} of {found.num_rows:,}", err=True)


@late.command()
@click.argument("view", shell_complete=complete_view)
@click.option("--no-run", is_flag=True, help="Only schedule the replay: the next run does it.")
@json_option
@pass_session
def replay(session: CommandSession, view: str, no_run: bool, as_json: bool) -> None:
    """Replay the late rows of a view, as if they were on time.

    VIEW is rebuilt from the log as a shadow build, next to the version that is served, and replaces it in one tick.
    Rows that are late from then on are left out as before.
    """
    with session.open() as ws:
        handle = ws.view(view)
        rows = handle.replay_late()
        name = handle.definition.name
        if no_run or not rows:
            _say_replayed(name, rows, as_json)
            return
        from headwater.cli.live_progress import TickProgress

        views_of(ws).listener = TickProgress(ws.log)
        if not as_json:
            click.echo(f"replaying {_rows(rows)} of {name}", err=True)
        run_once(ws, None, as_json, lambda: {"view": name, "rows": rows})


def _say_replayed(view: str, rows: int, as_json: bool) -> None:
    if as_json:
        print_json({"view": view, "rows": rows, "tick": None})
    elif rows:
        click.echo(f"the next run rebuilds {view} with {_rows(rows)}")
    else:
        click.echo(f"view {view} has {NONE_LATE} to replay")


def _rows(count: int) -> str:
    return f"{count:,} late {'row' if count == 1 else 'rows'}"


def _accounts(ws: Workspace, name: str) -> Iterator[dict[str, Any]]:
    """Yield the counts of a view's late rows, by topic; nothing if the view has none."""
    import pyarrow.compute as pc

    views = views_of(ws)
    definition = views.names.describe(name)
    late_rows = _late_rows(ws, definition)
    for topic, account in views.reports.ledger(name, by_hand=False).items():
        rows = None if late_rows is None else late_rows.filter(pc.equal(late_rows["_topic"], topic))
        if not (account["diverted"] or account["dropped"] or (rows is not None and rows.num_rows)):
            continue
        yield {
            "view": name,
            "policy": _policy(definition),
            "topic": topic,
            "diverted": account["diverted"],
            "dropped": account["dropped"],
            "windows_missed": None if rows is None else rows.num_rows,
            "lateness_max_us": None if rows is None else pc.max(rows["_lateness"]).as_py(),
            "newest_at": None if rows is None else pc.max(rows["_watermark"]).as_py(),
        }


def _late_rows(ws: Workspace, view: ViewDefinition) -> pa.Table | None:
    """Return the late rows that a view keeps, with the topic of each; None if it keeps none, or is in no tick yet."""
    from headwater.core.errors import ViewUnavailableError
    from headwater.views.late_replay import with_topic

    if view.late is None:
        return None
    try:
        return with_topic(ws.log, view, ws.view(f"{view.name}.late").read())
    except ViewUnavailableError:
        return None


def _policy(view: ViewDefinition) -> str:
    from headwater.core.clock import format_span

    span = view.options.correct_for_us
    return view.options.late if span is None else f"{view.options.late} for {format_span(span)}"


def _newest_first(rows: pa.Table) -> pa.Table:
    by = ("_watermark", "_partition", "_offset", "_window_start")
    return rows.sort_by([(name, "descending") for name in by])


def _span(lateness_us: int | None) -> str | None:
    return None if lateness_us is None else shown_seconds(lateness_us / 1e6)
