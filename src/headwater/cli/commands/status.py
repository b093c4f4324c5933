"""`headwater status`: the status of the workspace on one screen. Exit status 1 if a component is unhealthy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.commands import queue
from headwater.cli.commands.views import LEFT_OUT, NO_VIEWS
from headwater.cli.output import print_json, print_listing, print_table, shown_bytes
from headwater.cli.session import CommandSession, json_option, outside_of, pass_session, views_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headwater import Workspace
    from headwater.connectors.health.health import ComponentHealth, Health
    from headwater.connectors.health.rejected_counts import RejectedRows
    from headwater.connectors.manage.sink_statuses import SinkStatus
    from headwater.log.protocol import Log


@click.command()
@json_option
@pass_session
@click.pass_context
def status(context: click.Context, session: CommandSession, as_json: bool) -> None:
    """Show the status of the workspace on one screen: health, alerts, engine, ticks, topics, views, sources, sinks,
    queues and disk.

    Exit status 1 if a view, source or sink is stopped or background work fails. An engine that is not running is no failure.
    """
    with session.open() as ws:
        about = _about(ws)
    if as_json:
        print_json(about)
    else:
        _print(about)
    # An engine that does not run, for whatever reason, is only shown: workspaces are also used without an engine.
    if any(one["kind"] != "engine" for one in about["health"]["unhealthy"]):
        context.exit(1)


def _print(about: dict[str, Any]) -> None:
    click.echo(f"workspace  {about['workspace']}")
    click.echo(f"health     {_health_line(about['health'])}")
    click.echo(f"engine     {_engine_line(about['engine'], about['health'])}")
    click.echo(f"tick       {_tick_line(about['tick'])}")
    disk = about["disk"]
    click.echo(
        f"disk       topics {shown_bytes(disk['topics_bytes'])}, state {shown_bytes(disk['state_bytes'])}, "
        + (f"bases {shown_bytes(disk['bases_bytes'])}, " if disk["bases_bytes"] else "")
        + f"{shown_bytes(disk['free_bytes'])} free"
    )
    _print_problems(about["health"])
    _print_alerts(about["alerts"])
    _print_rejected(about["rejected"])
    for kind, empty in (("topics", "no topics yet"), ("views", NO_VIEWS)):
        click.echo()
        left_out = [w for w in LEFT_OUT if any(row["ledger"][w] for row in about[kind] if "ledger" in row)]
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
    from headwater.connectors.health.rejected_counts import rejected_rows
    from headwater.core.clock import SystemClock, from_us
    from headwater.engine.collections.row_ledger import total
    from headwater.state import base_ticks, state_files
    from headwater.state.base_ticks import Bases
    from headwater.views.view_status import standings, waiting_rows

    assert ws.path is not None
    now = SystemClock().now_us()
    made, outside = views_of(ws), outside_of(ws)
    manifest, owner = made.store.latest(), made.engine()
    asked = _asked(ws)
    health = outside.health()
    return {
        "workspace": str(ws.path.absolute()),
        "health": _health(health),
        "alerts": [asdict(alert) | {"since": from_us(alert.since)} for alert in outside.alerts.active()],
        "rejected": rejected_rows(ws.log, made, outside),
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
            asdict(standing) | {"ledger": total(made.reports.ledger(standing.view))}
            for standing in standings(ws.log, manifest)
        ],
        "sources": _sources(ws, health),
        "sinks": _sinks(ws, health, asked),
        "queues": queue.standings(ws),
        "disk": {
            "topics_bytes": _size(ws.path / "topics"),
            "state_bytes": _size(ws.path / state_files.FOLDER),
            "bases_bytes": _size(ws.path / base_ticks.FOLDER),
            "free_bytes": shutil.disk_usage(ws.path).free,
        },
    }


def _health(found: Health) -> dict[str, Any]:
    """Return the health as JSON. Components in a normal state are left out; the engine is always included."""
    return {
        "healthy": found.healthy,
        "engine": found.engine.state,
        "unhealthy": [_problem(one) for one in found.unhealthy],
        "warnings": [_problem(one) for one in found.warnings],
    }


def _problem(one: ComponentHealth) -> dict[str, Any]:
    from headwater.core.clock import from_us

    since = None if one.since is None else from_us(one.since)
    return {**asdict(one), "subject": one.subject, "severity": one.severity, "since": since}


def _sources(ws: Workspace, health: Health) -> list[dict[str, Any]]:
    """Return the status of each source, as reported by the process that runs the source."""
    if not ws.log.entries("source"):
        return []
    sources = outside_of(ws).sources
    known = sources.facts()
    found = []
    for name, made in sources.definitions().items():
        told, facts = sources.status(name), known.get(name, {})
        found.append(
            {
                "source": name,
                "kind": made.kind,
                "state": _state_of(health.of("source", name), told.state),
                "position": told.position,
                "unconfirmed_bytes": facts.get("behind_bytes"),
                "retained_bytes": facts.get("retained_bytes"),
                "stopped_tables": dict(sources.stopped_tables(name)),
                "counts": facts.get("counts"),
                "last_refused": facts.get("last_refused"),
            }
        )
    return found


def _state_of(found: ComponentHealth | None, told: str) -> str:
    """Return the state of a source: the health's, or, if that is fine, the state that the source reports."""
    return told if found is None or found.severity == "ok" or found.state == "not running" else found.state


def _asked(ws: Workspace) -> Mapping[str, SinkStatus]:
    """Return the status of sinks with their targets probed; targets that do not answer are not waited for."""
    if not ws.log.entries("sink"):
        return {}
    from headwater.connectors.manage.sink_probe import probe_sinks

    sinks = outside_of(ws).sinks
    return probe_sinks(sinks, sinks.definitions())


def _sink_state(found: ComponentHealth, told: SinkStatus) -> str:
    """Return the state of a sink: the health's, or, for a sink that does not run, the state of its target if that
    failed to answer."""
    if found.state == "not running" and told.status.state in ("retrying", "stopped"):
        return told.status.state
    return found.state


def _sinks(ws: Workspace, health: Health, asked: Mapping[str, SinkStatus]) -> list[dict[str, Any]]:
    """Return the status of each sink."""
    declared = outside_of(ws).sinks.definitions()
    return [
        {
            "sink": name,
            "view": declared[name].view,
            "kind": declared[name].kind,
            "state": _sink_state(found, told),
            "tick": told.status.tick,
            "behind_ticks": told.lag.ticks,
            "behind_rows": told.lag.rows,
            "behind_seconds": round(told.lag.seconds, 3),
            "withheld": told.status.withheld,
            "circuit": told.status.circuit,
            "reason": found.reason if found.state != "not running" else told.status.reason,
        }
        for name, told in asked.items()
        if name in declared and (found := health.of("sink", name)) is not None
    ]


def _outside_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of sources or sinks formatted for people, without columns that are empty in all rows."""
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
    """Return a row of the listings formatted for people; `left_out` lists the ledger outcomes that some view has."""
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


def _health_line(health: dict[str, Any]) -> str:
    unhealthy, warnings = len(health["unhealthy"]), len(_shown_warnings(health))
    said = [f"{unhealthy} unhealthy"] if unhealthy else []
    said += [f"{warnings} {'warning' if warnings == 1 else 'warnings'}"] if warnings else []
    return ", ".join(said) or "ok"


def _shown_warnings(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings without those caused by an engine that is not running, which the engine's line shows."""
    return [one for one in health["warnings"] if one["state"] != "not running"]


def _print_problems(health: dict[str, Any]) -> None:
    rows = [
        {
            "": one["severity"],
            "what": one["subject"],
            "is": one["state"],
            "because": one["reason"],
            "next": one["hint"],
        }
        for one in (*health["unhealthy"], *_shown_warnings(health))
    ]
    if rows:
        click.echo()
        print_table(rows)


def _print_alerts(alerts: list[dict[str, Any]]) -> None:
    if alerts:
        click.echo()
        print_table(
            [{"alert": one["alert"], "of": _key(one["key"]), "since": one["since"]} for one in alerts]
        )


def _key(key: str) -> str:
    """Return the key of an alert's episode formatted for people."""
    try:
        return ", ".join(f"{name} {value}" for name, value in json.loads(key).items())
    except (ValueError, AttributeError):
        return key


def _print_rejected(rejected: list[RejectedRows]) -> None:
    if rejected:
        click.echo()
        print_table(
            [
                {
                    "left out": f"{one.rows:,} {one.noun}",
                    "by": f"{one.kind} {one.name}",
                    "outcome": one.outcome,
                    "waiting": one.open,
                    "shown by": one.where,
                }
                for one in rejected
            ]
        )


def _engine_line(engine: dict[str, Any] | None, health: dict[str, Any]) -> str:
    from headwater.state.ownership import STALE_AFTER_MS

    if engine is None:
        failed = [one["reason"] for one in health["unhealthy"] if one["kind"] == "engine"]
        return "not running" + (f": an error has ended it: {failed[0]}" if failed else "")
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
    """Return a duration formatted for people: one unit, about two digits."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _size(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes; files that are removed meanwhile count as 0."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
