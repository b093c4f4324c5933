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
    "filling": "filling a new version beside the one in force",
    "verifying": "comparing it with the view",
    "switching": "putting it in force",
}


@click.command()
@click.argument("name", metavar="VIEW|SINK", shell_complete=complete_built)
@click.option("--no-verify", is_flag=True, help="Do not compare the new version before it is put in place.")
@click.option("--no-run", is_flag=True, help="Of a view: leave the work to the next run.")
@click.option("--back", is_flag=True, help="Of a sink: put the version from before in force again.")
@click.option("--drop-old", is_flag=True, help="Keep the version from before no longer.")
@click.option("--sink", "is_sink", is_flag=True, help="Where a view and a sink have the name: the sink.")
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
    """Rebuild VIEW or SINK next to the active version: when you doubt its content, or others have changed it.

    The active version stays in use meanwhile. The new version catches up, is compared (a view with its SELECT in batch, a sink
    with its view), and is activated in one step. The old version is kept until --drop-old: for a view, the last tick that has
    it stays readable; for a sink, its target keeps it under another name. Views that read a rebuilt view are rebuilt too.
    """
    if back + drop_old + no_run > 1 or (no_verify and drop_old):
        raise UsageError(
            "these options do not go together", hint="give one of --back, --drop-old and --no-run"
        )
    with session.open() as ws:
        if is_sink or (name not in ws.log.entries("view") and name in ws.log.entries("sink")):
            sink = ws.sink(name)
            if no_run:
                raise UsageError("--no-run is for views: a sink is built anew by this command itself")
            if drop_old:
                _drop_sink(sink, as_json)
            else:
                _sink(sink, verify=not no_verify, back=back, as_json=as_json)
            return
        _refuse_unknown(ws, name)
        if back:
            raise UsageError(
                f"view {name!r} has no version to go back to: both are the same SELECT over the same log",
                hint="ws.view(name).old is a tick at which the version from before can be read, with as_of",
            )
        if drop_old:
            _drop_view(ws, name, as_json)
        else:
            _view(ws, name, verify=not no_verify, no_run=no_run, as_json=as_json)


def _refuse_unknown(ws: Workspace, name: str) -> None:
    from headwater.core.errors import ViewNotFoundError
    from headwater.serving.name_hints import nearest

    known = [*ws.log.entries("view"), *ws.log.entries("sink")]
    if name in ws.log.entries("view"):
        return
    near = nearest(name, known)
    hint = f"did you mean {near!r}?" if near else "`headwater views` and SHOW SINKS list what is there"
    raise ViewNotFoundError(f"there is no view or sink {name!r}", hint=hint, view=name)


def _view(ws: Workspace, name: str, *, verify: bool, no_run: bool, as_json: bool) -> None:
    view = ws.view(name)
    names = view.rebuild(verify=verify)
    if no_run:
        if as_json:
            print_json({"rebuilt": names})
        else:
            click.echo(f"the next run builds {', '.join(names)} anew")
        return
    from headwater.cli.commands.engine import run_once
    from headwater.cli.live_progress import TickProgress

    class Building(TickProgress):
        """Tick progress that also prints the comparison of views."""

        def verifying(self, views: Sequence[str]) -> None:
            if views:
                click.echo(f"comparing {', '.join(views)} with what the SELECT gives in batch", err=True)

    views_of(ws).listener = Building(ws.log)
    if not as_json:
        click.echo(f"rebuilding {', '.join(names)}", err=True)
    run_once(ws, None, as_json, lambda: {"rebuilt": names, "verified": verify, "old": view.old})
    if not as_json and view.old is not None:
        click.echo(
            f"the version before is kept at tick {view.old}; headwater rebuild {view.name} --drop-old lets it go",
            err=True,
        )


def _drop_view(ws: Workspace, name: str, as_json: bool) -> None:
    view = ws.view(name)
    tick = view.drop_old()
    if tick is None:
        raise UsageError(
            f"view {view.name!r} has no version that was kept",
            hint=f"headwater rebuild {view.name} makes one",
        )
    if as_json:
        print_json({"view": view.name, "dropped": tick})
    else:
        click.echo(f"tick {tick} is kept no longer than others")


def _drop_sink(sink: SinkHandle, as_json: bool) -> None:
    dropped = sink.drop_old()
    if as_json:
        print_json({"sink": sink.name, "dropped": dropped})
    else:
        click.echo(f"dropped {dropped}")


def _sink(sink: SinkHandle, *, verify: bool, back: bool, as_json: bool) -> None:
    with _steps() as on_step:
        done: Rebuilt = (sink.back if back else sink.rebuild)(verify=verify, on_step=on_step)
    if as_json:
        print_json(done)
        return
    compared = "compared and " if done.verified else ""
    click.echo(
        f"sink {done.sink}: {done.rows:,} rows of tick {done.tick:,} {compared}put in force, {done.seconds:.1f} s"
    )
    click.echo(
        f"the version before is kept as {done.old}; headwater rebuild {done.sink} --drop-old removes it",
        err=True,
    )


@contextmanager
def _steps() -> Iterator[Callable[[Step], None]]:
    """Yield a callback that shows steps: a spinner on a terminal, plain lines elsewhere."""
    if not sys.stderr.isatty():

        def told(step: Step) -> None:
            if step in _STEPS:
                click.echo(_STEPS[step], err=True)

        yield told
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        moving: Any = status
        yield lambda step: moving.update(_STEPS.get(step, ""))
