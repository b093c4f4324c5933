"""`headwater cursors`, `lag`, `maintain` and `verify`: how things are, and keeping them so."""

from __future__ import annotations

import dataclasses

import click

from headwater.cli.output import plain, print_json, print_listing, progress, shown_bytes
from headwater.cli.session import Session, json_option, pass_session


@click.command()
@json_option
@pass_session
def cursors(session: Session, as_json: bool) -> None:
    """List the cursors and groups, with how far behind they are."""
    with session.open() as ws:
        table = ws.sql("SHOW CURSORS")
    print_listing(table.to_pylist() if table is not None else [], as_json=as_json, empty="no cursors yet")


@click.command()
@json_option
@pass_session
def lag(session: Session, as_json: bool) -> None:
    """Show how far each cursor is behind, when it falls off the tail, and when the disk is full, at present rates."""
    with session.open() as ws:
        report = ws.lag()
    if as_json:
        print_json(report)
        return
    rows = [
        {
            "topic": c.topic,
            "cursor": c.cursor,
            "rows": c.rows,
            "seconds": c.seconds,
            "reads/s": c.rows_per_second,
            "appends/s": c.appended_per_second,
            "lost": c.lost,
            "falls off": f"fell off, {c.missed:,} rows missed"
            if c.missed
            else (
                c.falls_off_at.replace(microsecond=0) if c.falls_off_at else ("held" if c.hold else "never")
            ),
        }
        for c in report
    ]
    print_listing(rows, as_json=False, empty="no cursors yet")
    if report.disk_free_bytes is not None:
        when = plain(report.disk_full_at.replace(microsecond=0)) if report.disk_full_at else "never"
        click.echo(f"disk: {shown_bytes(report.disk_free_bytes)} free; full at present rates: {when}")


@click.command()
@click.option("--override-holds", is_flag=True, help="Remove even what holding cursors have not read.")
@json_option
@pass_session
def maintain(session: Session, override_holds: bool, as_json: bool) -> None:
    """Seal segments, apply retention and compact, now."""
    with session.open() as ws:
        report = ws.maintain(override_holds=override_holds)
    if as_json:
        print_json(report)
        return
    click.echo(
        f"sealed {report.sealed:,} segments, removed {report.segments_removed:,} with {report.rows_removed:,} rows, "
        f"compacted {report.rows_compacted:,} rows, freed {shown_bytes(report.bytes_freed)} "
        f"in {report.seconds:.1f} s"
    )


@click.command()
@click.argument("topics", nargs=-1)
@json_option
@pass_session
def verify(session: Session, topics: tuple[str, ...], as_json: bool) -> None:
    """Read everything and check it; exit status 1 if something is wrong."""
    with session.open() as ws:
        chosen = topics or [t.name for t in ws.topics()]
        total = sum(i.size_bytes for t in chosen for i in ws.topic(t).partitions().values())
        with progress("verifying", total) as advance:
            result = ws.verify(topics or None, progress=lambda done: advance(done, ""))
    if as_json:
        found = [dataclasses.asdict(f) for f in result.differences]
        print_json({"ok": result.ok, "bytes_checked": result.bytes_checked, "differences": found})
    else:
        for finding in result.differences:
            at = f", byte {finding.byte}" if finding.byte is not None else ""
            click.echo(f"{finding.file}{at}: {finding.message}")
        said = "all is well" if result.ok else f"{len(result.differences)} findings"
        click.echo(f"{said}; {shown_bytes(result.bytes_checked)} checked")
    if not result.ok:
        click.get_current_context().exit(1)
