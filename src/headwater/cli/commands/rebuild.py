"""`headwater rebuild`: rebuilds a view or a sink as a shadow build, and activates the new version in one step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.output import print_json
from headwater.cli.session import CommandSession, complete_built, json_option, pass_session, views_of
from headwater.core.errors import UsageError

if TYPE_CHECKING:
    from headwater import Workspace
    from headwater.connectors.handles import SinkHandle
    from headwater.sinks.base.sink_rebuild import Rebuilt, Step

_STEPS = {
    "filling": "filling a new version, next to the active one",
    "verifying": "comparing the new version with the view",
    "switching": "activating the new version",
}


@click.command()
@click.argument("name", metavar="VIEW|SINK", shell_complete=complete_built)
@click.option("--no-verify", is_flag=True, help="Activate the new version without comparing it.")
@click.option("--no-run", is_flag=True, help="Only schedule the rebuild of a view: the next run does it.")
@click.option("--back", is_flag=True, help="Activate the previous version of a sink again.")
@click.option("--drop-old", is_flag=True, help="Remove the previous version.")
@click.option("--sink", "is_sink", is_flag=True, help="Rebuild the sink if a view has the same name.")
@json_option
@pass_session
def rebuild(
    session: CommandSession,
    name: str,
    no_verify: bool,
    no_run: bool,
    back: bool,
    drop_old: bool,
    is_sink: bool,
    as_json: bool,
) -> None:
    """Rebuild a view or a sink, then switch to the new version.

    The active version is served meanwhile. The new version catches up, is compared (a view with its SELECT in batch, a sink
    with its view), and is activated in one step. The previous version is kept until --drop-old: for a view, the last tick
    that has it stays readable; for a sink, its target keeps it under another name. Views that read a rebuilt view are
    rebuilt too.
    """
    if back + drop_old + no_run > 1 or (no_verify and drop_old):
        raise UsageError(
            "these options exclude each other",
            hint="give one of --back, --drop-old and --no-run; --drop-old without --no-verify",
            reason="exclusive-options",
        )
    with session.open() as ws:
        if is_sink or (name not in ws.log.entries("view") and name in ws.log.entries("sink")):
            sink = ws.sink(name)
            if no_run:
                raise UsageError(
                    "--no-run is for views",
                    hint="leave --no-run out: this command rebuilds a sink itself",
                    option="no_run",
                )
            if drop_old:
                _drop_sink(sink, as_json)
            else:
                _sink(sink, verify=not no_verify, back=back, as_json=as_json)
            return
        _refuse_unknown(ws, name)
        if back:
            raise UsageError(
                f"--back is for sinks: the versions of view {name!r} are the same SELECT over the same log",
                hint=f"ws.view({name!r}).old is a tick at which the previous version can be read, with as_of",
                option="back",
                view=name,
            )
        if drop_old:
            _drop_view(ws, name, as_json)
        else:
            _view(ws, name, verify=not no_verify, no_run=no_run, as_json=as_json)


def _refuse_unknown(ws: Workspace, name: str) -> None:
    from headwater.core.errors import ViewNotFoundError
    from headwater.serving.name_hints import suggest

    known = [*ws.log.entries("view"), *ws.log.entries("sink")]
    if name in ws.log.entries("view"):
        return
    near = suggest(name, known)
    hint = f"did you mean {near!r}?" if near else "`headwater views` and SHOW SINKS list them"
    raise ViewNotFoundError(f"there is no view or sink {name!r}", hint=hint, view=name)


def _view(ws: Workspace, name: str, *, verify: bool, no_run: bool, as_json: bool) -> None:
    view = ws.view(name)
    names = view.rebuild(verify=verify)
    if no_run:
        if as_json:
            print_json({"rebuilt": names})
        else:
            click.echo(f"the next run rebuilds {', '.join(names)}")
        return
    from headwater.cli.commands.engine import run_once
    from headwater.cli.live_progress import TickProgress

    class Building(TickProgress):
        """Tick progress that also prints the comparison of views."""

        def verifying(self, views: Sequence[str]) -> None:
            if views:
                click.echo(f"comparing {', '.join(views)} with the SELECT in batch", err=True)

    views_of(ws).listener = Building(ws.log)
    if not as_json:
        click.echo(f"rebuilding {', '.join(names)}", err=True)
    run_once(ws, None, as_json, lambda: {"rebuilt": names, "verified": verify, "old": view.old})
    if not as_json and view.old is not None:
        click.echo(
            f"the previous version is kept at tick {view.old}; headwater rebuild {view.name} --drop-old removes it",
            err=True,
        )


def _drop_view(ws: Workspace, name: str, as_json: bool) -> None:
    view = ws.view(name)
    tick = view.drop_old()
    if tick is None:
        raise UsageError(
            f"view {view.name!r} has no previous version",
            hint=f"headwater rebuild {view.name} keeps one",
            reason="no-previous-version",
            view=view.name,
        )
    if as_json:
        print_json({"view": view.name, "dropped": tick})
    else:
        click.echo(f"removed the previous version; tick {tick} is no longer kept for it")


def _drop_sink(sink: SinkHandle, as_json: bool) -> None:
    dropped = sink.drop_old()
    if as_json:
        print_json({"sink": sink.name, "dropped": dropped})
    else:
        click.echo(f"dropped {dropped}")


def _sink(sink: SinkHandle, *, verify: bool, back: bool, as_json: bool) -> None:
    with _steps() as report:
        rebuilt: Rebuilt = (sink.back if back else sink.rebuild)(verify=verify, on_step=report)
    if as_json:
        print_json(rebuilt)
        return
    compared = "compared and " if rebuilt.verified else ""
    click.echo(
        f"sink {rebuilt.sink}: {rebuilt.rows:,} rows of tick {rebuilt.tick:,} {compared}activated, {rebuilt.seconds:.1f} s"
    )
    click.echo(
        f"the previous version is kept as {rebuilt.old}; headwater rebuild {rebuilt.sink} --drop-old removes it",
        err=True,
    )


@contextmanager
def _steps() -> Iterator[Callable[[Step], None]]:
    """Yield a callback that shows steps: a spinner on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():

        def report(step: Step) -> None:
            if step in _STEPS:
                click.echo(_STEPS[step], err=True)

        yield report
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        spinner: Any = status
        yield lambda step: spinner.update(_STEPS.get(step, ""))
