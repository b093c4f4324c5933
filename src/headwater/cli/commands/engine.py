"""`headwater run`: brings views up to date, once or continuously."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import INTERRUPTED
from headwater.cli.commands.serve import served
from headwater.cli.listings import VIEWS
from headwater.cli.logs import logged, print_log_path
from headwater.cli.output import print_json
from headwater.cli.session import CommandSession, json_option, pass_session, supervisor_of, views_of
from headwater.core.errors import (
    AlertExistsError,
    EngineRunningError,
    HeadwaterError,
    SinkExistsError,
    SourceExistsError,
    StatementError,
    TopicExistsError,
    UsageError,
    ViewExistsError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headwater import Workspace
    from headwater.state.manifest import Manifest
    from headwater.state.ownership import Ownership
    from headwater.views.runner import RunReport
    from headwater.views.view_manager import Views

_CREATES = {
    "CreateTopic": "topic",
    "CreateTopicAs": "topic",
    "CreateView": "view",
    "CreateStanding": "standing query",
    "CreateSource": "source",
    "CreateSink": "sink",
    "CreateAlert": "alert",
}

_EXIST = (TopicExistsError, ViewExistsError, SourceExistsError, SinkExistsError, AlertExistsError)


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--once", is_flag=True, help="Process all records that are in the log now, and exit.")
@click.option("--tick-rows", type=click.IntRange(1), metavar="N", help="Maximum number of records of a tick.")
@click.option(
    "--every",
    metavar="SPAN",
    help="Interval between ticks, such as '200 ms'. Default: auto, as soon as there are new records.",
)
@click.option(
    "--keep-ticks",
    type=click.IntRange(1),
    metavar="N",
    help="Number of past ticks that stay readable. Default: 100.",
)
@click.option(
    "--console", is_flag=True, help="Serve the console and the HTTP API, too, as `headwater serve` does."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    metavar="N",
    help="The port of --console. Default: 8321; 0: any free port.",
)
@json_option
@pass_session
def run(
    session: CommandSession,
    file: str | None,
    once: bool,
    tick_rows: int | None,
    every: str | None,
    keep_ticks: int | None,
    console: bool,
    port: int | None,
    as_json: bool,
) -> None:
    """Run the engine: keep all views up to date.

    The statements of FILE ("-" is stdin) are run first: a CREATE of an identical object does nothing, and one that differs
    from the existing object fails and shows the difference. The engine runs until Ctrl-C, which ends it after the current
    tick. With --once, exit status 1 means that a view, a source or a table of a source is stopped.
    """
    if every is not None:
        from headwater.views.pacing import pace_of

        if once:
            raise UsageError(
                "--every and --once exclude each other", hint="leave one of them out", option="every"
            )
        pace_of(every)
    if (once and console) or (port is not None and not console):
        raise UsageError(
            "--console is not possible with --once, and --port needs --console",
            hint="headwater run --console --port 8321",
            option="console",
        )
    with session.open(keep_ticks=keep_ticks) as ws:
        from headwater.cli.live_progress import TickProgress

        views_of(ws).listener = TickProgress(ws.log)
        if once:
            with logged(ws.path, "run --once"):
                _apply(ws, file, as_json)
                run_once(ws, tick_rows, as_json)
            return
        with logged(ws.path, "run"), _claimed(views_of(ws)) as ownership:
            _apply(ws, file, as_json)
            with served(ws, port) if console else nullcontext():
                _run_engine(ws, tick_rows, every or "auto", ownership, as_json)


def _claimed(views: Views) -> Ownership:
    """Acquire the engine's claim before anything is changed and Spark is started: of two engines started at the same
    time, one fails at once."""
    try:
        return views.claim()
    except EngineRunningError as error:
        hint = "`headwater status` shows its progress; `headwater run --once` waits until it has caught up"
        raise EngineRunningError(error.message, hint=hint, **error.facts) from None


def _apply(ws: Workspace, file: str | None, as_json: bool) -> None:
    """Run the statements of a file, if one is given; prints for each CREATE whether it created, replaced or found its
    object."""
    from headwater.cli.results import print_rows
    from headwater.execution import execute
    from headwater.sql.parser import parse

    if file is None:
        return
    text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    try:
        for statement in parse(text):
            what = _CREATES.get(type(statement).__name__)
            name = f"{what} {_name(statement)}"
            before = _existing(ws, statement)
            try:
                rows = execute(
                    ws.log, statement, ws.log.clock, lambda: views_of(ws), lambda: supervisor_of(ws)
                )
            except _EXIST as error:
                if not (error.facts.get("same") or error.facts.get("difference") == []):
                    raise
                rows = None
            if what is not None:
                same = _existing(ws, statement) == before
                outcome = "exists" if same else "created" if before is None else "replaced"
                click.echo(f"{name}: {outcome}", err=True)
            if rows is not None and not as_json:
                print_rows(rows, as_json=False)
    except StatementError as error:
        raise _placed(error, file) from None


def _existing(ws: Workspace, statement: Any) -> Any:
    """Return the object of the name in a CREATE, or None if it does not exist."""
    name = _name(statement)
    kinds = {"CreateSource": "source", "CreateSink": "sink", "CreateAlert": "alert"}
    kind = kinds.get(type(statement).__name__, "view")
    found = ws.log.topics().get(name) if kind == "view" else None
    return found or ws.log.entries(kind).get(name)


def _name(statement: Any) -> str:
    """Return the name in a CREATE."""
    named = statement if hasattr(statement, "name") else getattr(statement, "definition", None)
    return str(getattr(named, "name", ""))


def _placed(error: HeadwaterError, file: str) -> HeadwaterError:
    if file == "-":
        return error
    return type(error)(f"{error.message} (in {file})", detail=error.detail, hint=error.hint, **error.facts)


def run_once(
    ws: Workspace, tick_rows: int | None, as_json: bool, result: Callable[[], Mapping[str, Any]] | None = None
) -> None:
    """Bring every view up to date and print a report; exit status 1 if one is stopped. The listener must be a `TickProgress`.

    `result` returns the result of the command after the run: with --json it is printed instead of the report,
    with the tick.
    """
    from headwater.cli.live_progress import TickProgress, asked_to_stop, start_spark

    views = views_of(ws)
    if not (ws.log.entries("view") or ws.log.entries("source")) and views.store.latest() is None:
        _report(None, as_json, VIEWS.empty)
        return
    other = views.engine()
    if other is not None:
        click.echo(f"an engine is running, process {other.pid}: waiting until it has caught up", err=True)
        report = ws.run(tick_rows=tick_rows)
        _report(report, as_json, _with_rejected(f"caught up: tick {report.tick:,}", report), result)
        _fail_if_stopped(ws)
        return
    listener = views.listener
    assert isinstance(listener, TickProgress)
    start_spark(views)
    with asked_to_stop(listener) as asked, listener.as_progress(views.store.latest()):
        report = ws.run(tick_rows=tick_rows)
    if asked.is_set():
        click.echo(f"interrupted: {_summary(report)}; run it again to continue", err=True)
        click.get_current_context().exit(INTERRUPTED)
    _report(report, as_json, _summary(report), result)
    _fail_if_stopped(ws)


def _run_engine(
    ws: Workspace, tick_rows: int | None, every: str, ownership: Ownership, as_json: bool
) -> None:
    from headwater.cli.live_progress import TickProgress, asked_to_stop, start_spark
    from headwater.views.pacing import pace_of

    views = views_of(ws)
    listener = views.listener
    assert isinstance(listener, TickProgress)
    start_spark(views)
    with asked_to_stop() as asked:
        begin = views.store.latest()
        runner = views.start(pace_of(every), tick_rows, ownership, supervisor_of(ws))
        _print_stopped_views(ws, begin)
        _print_stopped_sources(ws)
        count = len(ws.log.entries("view"))
        click.echo(f"running {count} {'view' if count == 1 else 'views'}; Ctrl-C stops", err=True)
        listener.follow(runner, asked, supervisor_of(ws), begin)
        report = runner.stop()
    _report(report, as_json, f"stopped at {_summary(report)}")
    _print_stopped_views(ws, views.store.latest())


def _summary(report: RunReport) -> str:
    """Return the summary of a run for people; rows that were left out are listed with the command that shows them."""
    ticks = f"{report.ticks:,} ticks" if report.ticks > 1 else "1 tick"
    if report.ticks:
        work = f"{_rows(report.rows)} in {ticks}, {report.seconds:.1f} s"
    elif report.captured:
        work = f"sources captured {_rows(report.captured)}; no view reads them"
    else:
        work = "no new records"
    return _with_rejected(f"tick {report.tick:,}: {work}", report)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _with_rejected(sentence: str, report: RunReport) -> str:
    return "; ".join([sentence, *(one.sentence for one in report.rejected)])


def _report(
    report: RunReport | None,
    as_json: bool,
    sentence: str,
    result: Callable[[], Mapping[str, Any]] | None = None,
) -> None:
    if not as_json:
        click.echo(sentence)
    elif result is not None:
        print_json({**result(), "tick": None if report is None else report.tick})
    elif report is None:
        print_json({"tick": None, "rows": 0, "seconds": 0.0, "ticks": 0, "stopped": {}, "rejected": []})
    else:
        print_json(report)


def _fail_if_stopped(ws: Workspace) -> None:
    """Exit with status 1 if a view, a source or a table of a source is stopped, by this run or an earlier one."""
    if _print_stopped_sources(ws) | _print_stopped_views(ws, views_of(ws).store.latest()):
        print_log_path(ws.path)
        click.get_current_context().exit(1)


def _print_stopped_sources(ws: Workspace) -> bool:
    """Print which sources and tables of sources are stopped, with reason and remedy. Returns whether there are any."""
    found = supervisor_of(ws).sources.stopped() if ws.log.entries("source") else {}
    for what, why in found.items():
        click.echo(f"{what} is stopped: {why}", err=True)
    return bool(found)


def _print_stopped_views(ws: Workspace, manifest: Manifest | None) -> bool:
    """Print which views are stopped at a tick, with reason and remedy. Returns whether there are any."""
    from headwater.views.view_status import stopped_lines

    lines = stopped_lines(ws.log, manifest)
    for line in lines:
        click.echo(line, err=True)
    return bool(lines)
