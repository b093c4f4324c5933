"""`headwater cursors`, `lag`, `maintain` and `verify`: consumer lag, maintenance and verification."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.commands.queue import queue_rows
from headwater.cli.listings import CURSORS, QUEUES, SINKS
from headwater.cli.logs import log_failure, print_log_path
from headwater.cli.output import (
    plain,
    print_json,
    print_listing,
    print_text,
    progress,
    shown_bytes,
    shown_seconds,
)
from headwater.cli.session import (
    CommandSession,
    complete_topic,
    json_option,
    pass_session,
    supervisor_of,
    views_of,
)

if TYPE_CHECKING:
    from headwater import Workspace
    from headwater.log.lag import CursorLag
    from headwater.log.protocol import MaintenanceReport
    from headwater.sinks.base.sink_verify import SinkCheck
    from headwater.verify.verification import ViewCheck
    from headwater.workspace import Verification

OF_QUEUES = "_queue_"
"""Prefix of the topics in which queues record operations; the cursors on these topics are not those of readers."""


@click.command()
@json_option
@pass_session
def cursors(session: CommandSession, as_json: bool) -> None:
    """List the cursors and consumer groups, with their lag."""
    with session.open() as ws:
        table, hold = ws.sql("SHOW CURSORS"), _hold(ws)
    rows = table.to_pylist() if table is not None else []
    rows = [row for row in rows if row["cursor"] != hold and not row["topic"].startswith(OF_QUEUES)]
    CURSORS.print(rows, as_json=as_json)


@click.command()
@json_option
@pass_session
def lag(session: CommandSession, as_json: bool) -> None:
    """Show the lag of cursors, sinks and queues.

    Also when retention overtakes each cursor and when the disk is full, at present rates. Views are not cursors:
    `headwater status` shows their lag. Records that retention and compaction keep for views are listed separately.
    """
    with session.open() as ws:
        report, hold, behind, waiting = ws.lag(), _hold(ws), _sinks_behind(ws), queue_rows(ws)
    kept = [c for c in report if c.cursor == hold]
    own = {hold, *(f"queue:{row['queue']}" for row in waiting)}
    others = (c for c in report if c.cursor not in own and not c.topic.startswith(OF_QUEUES))
    report = dataclasses.replace(report, cursors=tuple(others))
    if as_json:
        kept_rows = {c.topic: c.rows for c in kept}
        more = {"kept_for_views": kept_rows, "sinks": behind, "queues": waiting}
        print_json({**dataclasses.asdict(report), **more})
        return
    rows = [
        {
            "cursor": c.cursor,
            "topic": c.topic,
            "lag (rows)": c.rows,
            "lag (time)": shown_seconds(c.seconds),
            "reads/s": c.rows_per_second,
            "appends/s": c.appended_per_second,
            "lost": c.lost,
            "retention": _overtaken(c),
        }
        for c in report
    ]
    if rows or not (behind or waiting):
        print_listing(rows, as_json=False, empty=CURSORS.empty, optional=("lost", "appends/s", "reads/s"))
    for listing, found in ((SINKS, behind), (QUEUES, waiting)):
        if found:
            click.echo()
            listing.print(found)
    if kept:
        click.echo()
        print_text(
            f"kept for rebuilds of views: {', '.join(f'{_rows(c.rows)} of {c.topic}' for c in kept)}",
            indent=2,
        )
    if report.disk_free_bytes is not None:
        when = plain(report.disk_full_at.replace(microsecond=0)) if report.disk_full_at else "never"
        click.echo(f"disk: {shown_bytes(report.disk_free_bytes)} free; full at present rates: {when}")


@click.command()
@click.option(
    "--override-holds", is_flag=True, help="Remove also records that a holding cursor has not read."
)
@json_option
@pass_session
def maintain(session: CommandSession, override_holds: bool, as_json: bool) -> None:
    """Seal segments, apply retention and compact, now.

    A running engine does this by itself. A failure for one partition or topic does not stop the work on others; the exit
    status is 1 then.
    """
    with session.open() as ws:
        report = ws.maintain(override_holds=override_holds)
    if as_json:
        print_json(report)
    else:
        _print_maintained(report)
    if report.failed:
        failed = {f.work: f.reason for f in report.failed}
        log_failure(ws.path, "maintain failed in part", failed)
        print_log_path(ws.path)
        click.get_current_context().exit(1)


def _overtaken(lag: CursorLag) -> Any:
    """Return when retention removes records that a cursor has not read, or what it did."""
    if lag.missed:
        return f"{_rows(lag.missed)} missed"
    if lag.falls_off_at:
        return lag.falls_off_at.replace(microsecond=0)
    return "held" if lag.hold else "never"


def _rows(count: int | None) -> str:
    return "1 row" if count == 1 else f"{count or 0:,} rows"


def _print_maintained(report: MaintenanceReport) -> None:
    click.echo(
        f"sealed {report.sealed:,} segments, removed {report.segments_removed:,} with {report.rows_removed:,} rows, "
        f"compacted {report.rows_compacted:,} rows, freed {shown_bytes(report.bytes_freed)} "
        f"in {report.seconds:.1f} s"
    )
    for left in report.waiting:
        why = f", {left.reason}" if left.reason else ""
        click.echo(f"{left.topic}: records are kept for view {left.view}, which is {left.status}{why}")
        click.echo(f"hint: {left.hint}")
    for failed in report.failed:
        click.echo(f"{failed.work} failed: {failed.reason}", err=True)
        if failed.hint:
            click.echo(f"hint: {failed.hint}", err=True)


@click.command()
@click.argument("topics", nargs=-1, shell_complete=complete_topic)
@click.option("--repair", is_flag=True, help="Reconcile sinks that differ from their views.")
@click.option("--cheap", is_flag=True, help="Check only bytes, and sinks by their stored checksums.")
@json_option
@pass_session
def verify(
    session: CommandSession, topics: tuple[str, ...], repair: bool, cheap: bool, as_json: bool
) -> None:
    """Check the log, recompute the views, compare the sinks.

    All bytes of the log are compared with their checksums, then each view with the result of its SELECT that Spark computes
    in batch over the log, then each sink with its view. With TOPICS, only the bytes of these topics are checked.

    Exit status 1 if there is a difference, or a view is stopped.
    """
    with session.open() as ws:
        chosen = topics or [t.name for t in ws.topics()]
        total = sum(i.size_bytes for t in chosen for i in ws.topic(t).partitions().values())
        views: list[dict[str, Any]] = []
        if topics or not ws.log.entries("view"):
            with progress("checking bytes", total) as advance:
                result = ws.verify(topics or None, progress=lambda done: advance(done, ""))
        else:
            from headwater.cli.live_progress import Verifying

            listener = views_of(ws).listener = Verifying()
            with listener.shown(total):
                result = ws.verify(repair=repair, cheap=cheap, progress=listener.checked)
            views = [_view(check) for check in result.views]
    if as_json:
        found = [dataclasses.asdict(f) for f in result.differences]
        sinks = [_sink(check) for check in result.sinks]
        checked = {"bytes_checked": result.bytes_checked, "views": views, "sinks": sinks}
        print_json({"ok": result.ok, **checked, "differences": found})
    else:
        _print_verified(result, views)
    if not result.ok:
        log_failure(ws.path, "verify found differences", {"differences": list(map(str, result.differences))})
        print_log_path(ws.path)
        click.get_current_context().exit(1)


def _sinks_behind(ws: Workspace) -> list[dict[str, Any]]:
    """Return the lag of each sink behind its view."""
    if not ws.log.entries("sink"):
        return []
    from headwater.connectors.manage.sink_probe import probe_sinks

    sinks = supervisor_of(ws).sinks
    declared = sinks.definitions()
    found = []
    for name, status in probe_sinks(sinks, declared).items():
        lag = status.lag
        about = {"sink": name, "view": declared[name].view, "ticks": lag.ticks, "rows": lag.rows}
        seconds = round(lag.seconds, 3)
        found.append({**about, "seconds": seconds, "tick": status.status.tick, "state": status.status.state})
    return found


def _hold(ws: Workspace) -> str | None:
    """Return the name of the cursors that hold records for views, which no reader uses; None if there are no views."""
    if not ws.log.entries("view"):
        return None
    from headwater.engine.collections.retention_holds import HOLD

    return HOLD


def _view(check: ViewCheck) -> dict[str, Any]:
    """Return the result for a view; `equal` is None if the view was not compared, `on_base` if older records were removed."""
    detail, compared = check.detail, check.status == "live"
    if not compared:
        detail = f"not compared, the view is {check.status}" + (f": {detail}" if detail else "")
    return {
        "view": check.view,
        "ok": check.ok,
        "status": check.status,
        "equal": check.ok if compared else None,
        "detail": detail,
        "on_base": check.on_base,
    }


def _sink(check: SinkCheck) -> dict[str, Any]:
    return {
        "sink": check.sink,
        "view": check.view,
        "ok": check.ok,
        "tick": check.tick,
        "rows": check.rows,
        "withheld": check.withheld,
        "detail": check.detail,
        "repaired": check.repaired,
    }


def _print_verified(result: Verification, views: list[dict[str, Any]]) -> None:
    for view in views:
        equal = "equal, recomputed from its base and the log" if view["on_base"] else "equal"
        print_text(f"view {view['view']}: {view['detail'] or equal}", indent=2)
    for sink in result.sinks:
        detail = sink.detail
        if sink.ok is True and not sink.repaired:
            detail = f"equal, {_rows(sink.rows)} at tick {sink.tick}"
        print_text(f"sink {sink.sink}: {detail}" + (" (repaired)" if sink.repaired else ""), indent=2)
    printed = {f"view {view['view']}" for view in views} | {f"sink {sink.sink}" for sink in result.sinks}
    for finding in result.differences:
        if finding.file not in printed:
            at = f", byte {finding.byte}" if finding.byte is not None else ""
            print_text(f"{finding.file}{at}: {finding.message}", indent=2)
    count = len(result.differences)
    verdict = "no differences" if result.ok else f"{count} findings" if count > 1 else "1 finding"
    compared = sum(view["equal"] is not None for view in views)
    more = f" and {compared} {'views' if compared > 1 else 'view'}" if compared else ""
    click.echo(f"{verdict}; {shown_bytes(result.bytes_checked)}{more} checked")
