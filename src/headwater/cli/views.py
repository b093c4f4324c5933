"""`headwater views` and `status`: what there is, and how it is doing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli import queue
from headwater.cli.output import print_json, print_listing, shown_bytes
from headwater.cli.session import Session, json_option, outside_of, pass_session, views_of

if TYPE_CHECKING:
    from headwater import Workspace
    from headwater.log.protocol import Log

NO_VIEWS = 'no views yet; make one with: headwater sql "CREATE MATERIALIZED VIEW ..."'

_LEFT_OUT = ("diverted", "dropped", "failed")


@click.command()
@json_option
@pass_session
def views(session: Session, as_json: bool) -> None:
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
                    for what in (*_LEFT_OUT, "watermark", "reason")
                    if any(r[what] for r in rows)
                },
            }
            for row in rows
        ]
    print_listing(rows, as_json=as_json, empty=NO_VIEWS)


@click.command()
@json_option
@pass_session
def status(session: Session, as_json: bool) -> None:
    """Show on one screen how the workspace is: engine, ticks, topics, views, sources, sinks, queues and disk."""
    with session.open() as ws:
        about = _about(ws)
    if as_json:
        print_json(about)
        return
    click.echo(f"workspace  {about['workspace']}")
    click.echo(f"engine     {_engine_line(about['engine'])}")
    click.echo(f"tick       {_tick_line(about['tick'])}")
    disk = about["disk"]
    click.echo(
        f"disk       topics {shown_bytes(disk['topics_bytes'])}, state {shown_bytes(disk['state_bytes'])}, "
        + (f"bases {shown_bytes(disk['bases_bytes'])}, " if disk["bases_bytes"] else "")
        + f"{shown_bytes(disk['free_bytes'])} free"
    )
    for kind, empty in (("topics", "no topics yet"), ("views", NO_VIEWS)):
        click.echo()
        left_out = [w for w in _LEFT_OUT if any(row["ledger"][w] for row in about[kind] if "ledger" in row)]
        rows = [_row(row, left_out) for row in about[kind]]
        for optional in ("watermark", "reason"):
            if not any(row.get(optional) for row in rows):
                rows = [{k: v for k, v in row.items() if k != optional} for row in rows]
        print_listing(rows, as_json=False, empty=empty)
    for kind in ("sources", "sinks"):
        if about[kind]:
            click.echo()
            print_listing(_outside_rows(about[kind]), as_json=False, empty="")
    if about["queues"]:
        click.echo()
        print_listing(about["queues"], as_json=False, empty="")


def _about(ws: Workspace) -> dict[str, Any]:
    from headwater.clock import SystemClock, from_us
    from headwater.runtime.standing import standings, waiting_rows
    from headwater.runtime.units import total
    from headwater.state import bases, layout
    from headwater.state.bases import Bases

    assert ws.path is not None
    now = SystemClock().now_us()
    made = views_of(ws)
    manifest, owner = made.store.latest(), made.engine()
    return {
        "workspace": str(ws.path.absolute()),
        "engine": None
        if owner is None
        else {
            "pid": owner.pid,
            "host": owner.host,
            "since": from_us(owner.started_at),
            "silent_seconds": max(0, now - owner.heartbeat) / 1e6,
        },
        "tick": None
        if manifest is None
        else {
            "tick": manifest.tick,
            "committed_at": from_us(manifest.committed_at),
            "age_seconds": max(0, now - manifest.committed_at) / 1e6,
            "first_kept": made.store.ticks()[0],
            "base": base.tick if (base := Bases(made.store.storage).newest()) is not None else None,
        },
        "topics": _topics(ws.log, waiting_rows(ws.log, manifest)),
        "views": [
            asdict(standing) | {"ledger": total(made.ledger(standing.view))}
            for standing in standings(ws.log, manifest)
        ],
        "sources": _sources(ws),
        "sinks": _sinks(ws),
        "queues": queue.standings(ws),
        "disk": {
            "topics_bytes": _size(ws.path / "topics"),
            "state_bytes": _size(ws.path / layout.FOLDER),
            "bases_bytes": _size(ws.path / bases.FOLDER),
            "free_bytes": shutil.disk_usage(ws.path).free,
        },
    }


def _sources(ws: Workspace) -> list[dict[str, Any]]:
    """How each source is doing, as far as the process that reads it tells."""
    if not ws.log.entries("source"):
        return []
    sources = outside_of(ws).sources
    known = sources.facts()
    found = []
    for name, made in sources.definitions().items():
        told, facts = sources.told(name), known.get(name, {})
        found.append(
            {
                "source": name,
                "kind": made.kind,
                "state": told.state,
                "position": told.position,
                "unconfirmed_bytes": facts.get("behind_bytes"),
                "retained_bytes": facts.get("retained_bytes"),
                "stopped_tables": dict(sources.stopped_tables(name)),
                "counts": facts.get("counts"),
                "last_refused": facts.get("last_refused"),
            }
        )
    return found


def _sinks(ws: Workspace) -> list[dict[str, Any]]:
    """How each sink is doing; a target that does not answer is not waited for."""
    if not ws.log.entries("sink"):
        return []
    from headwater.connected.looking import look_at

    sinks = outside_of(ws).sinks
    declared = sinks.definitions()
    return [
        {
            "sink": name,
            "view": declared[name].view,
            "kind": declared[name].kind,
            "state": "not running" if told.status.state == "new" else told.status.state,
            "tick": told.status.tick,
            "behind_ticks": told.lag.ticks,
            "behind_rows": told.lag.rows,
            "behind_seconds": round(told.lag.seconds, 3),
            "withheld": told.status.withheld,
            "circuit": told.status.circuit,
            "reason": told.status.reason,
        }
        for name, told in look_at(sinks, declared).items()
    ]


def _outside_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sources or sinks as people read them, without what is said of none."""
    named = {"behind_ticks": "ticks behind", "behind_rows": "rows behind", "behind_seconds": "seconds behind"}
    of_sources = ("unconfirmed_bytes", "retained_bytes", "stopped_tables", "counts", "last_refused")
    optional = (*of_sources, "withheld", "circuit", "reason")
    left_out = [name for name in optional if not any(row.get(name) for row in rows)]
    shown = []
    for row in rows:
        sizes = {k: shown_bytes(v) for k, v in row.items() if k.endswith("_bytes") and v is not None}
        lists = {k: "\n".join(v.values()) or None for k, v in row.items() if k == "stopped_tables"}
        if row.get("counts"):
            lists["counts"] = ", ".join(
                f"{n:,} {what.replace('_', ' ')}" for what, n in row["counts"].items()
            )
        if row.get("last_refused"):
            lists["last_refused"] = "\n".join(row["last_refused"])
        said = {k: v for k, v in (row | sizes | lists).items() if k not in left_out}
        shown.append({named.get(k, k.removesuffix("_bytes").replace("_", " ")): v for k, v in said.items()})
    return shown


def _topics(log: Log, waiting: dict[str, int | None]) -> list[dict[str, Any]]:
    found = []
    for name, rows in waiting.items():
        infos = log.partitions(name).values()
        found.append(
            {
                "topic": name,
                "rows": sum(i.rows for i in infos),
                "size_bytes": sum(i.size_bytes for i in infos),
                "waiting_rows": rows,
            }
        )
    return found


def _row(row: dict[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    """A row of the listings as people read it; `left_out` are the kinds of rows that some view has left out."""
    named = {
        "size_bytes": "size",
        "waiting_rows": "not in a tick",
        "behind_rows": "rows behind",
        "last_tick": "last tick",
    }
    facts = {k: v for k, v in row.items() if k not in ("ledger", "reason")}
    shown = {named.get(k, k): shown_bytes(v) if k == "size_bytes" else v for k, v in facts.items()}
    if left_out and "ledger" in row:
        shown |= {what: row["ledger"][what] for what in ("read", "used", *left_out)}
    return shown | ({"reason": row["reason"]} if "reason" in row else {})


def _engine_line(engine: dict[str, Any] | None) -> str:
    from headwater.state.ownership import STALE_AFTER_MS

    if engine is None:
        return "not running"
    said = f"process {engine['pid']} on {engine['host']}, since {engine['since']:%Y-%m-%d %H:%M:%S} UTC"
    silent = engine["silent_seconds"]
    return said + (
        f"; no sign of life for {shown_seconds(silent)}" if silent * 1_000 > STALE_AFTER_MS else ""
    )


def _tick_line(tick: dict[str, Any] | None) -> str:
    if tick is None:
        return "none yet; make one with: headwater run --once"
    said = f"{tick['tick']:,}, {shown_seconds(tick['age_seconds'])} ago; kept since {tick['first_kept']:,}"
    return said if tick["base"] is None else f"{said}; base at {tick['base']:,}"


def shown_seconds(seconds: float) -> str:
    """A span for people: one unit, two digits or so."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(folder: Path) -> int:
    """Bytes of the files below; one that is removed meanwhile has none."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
