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
from headwater.cli.commands.views import LEFT_OUT
from headwater.cli.listings import QUEUES, SINKS, SOURCES, TOPICS, VIEWS
from headwater.cli.output import print_facts, print_json, print_table, shown_bytes, shown_seconds
from headwater.cli.session import CommandSession, json_option, pass_session, supervisor_of, views_of

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
    """Show the health and status of the workspace.

    Health, active alerts, engine, newest tick, topics, views, sources, sinks, queues and disk. Lag is the number of
    records, ticks or seconds that a view or sink is behind.

    Exit status 1 if a view, source or sink is stopped or background work fails. An engine that is not running is not a
    failure.
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
    disk = about["disk"]
    bases = f"bases {shown_bytes(disk['bases_bytes'])}, " if disk["bases_bytes"] else ""
    sizes = f"topics {shown_bytes(disk['topics_bytes'])}, state {shown_bytes(disk['state_bytes'])}, {bases}"
    print_facts(
        [
            ("workspace", about["workspace"]),
            ("health", _health_line(about["health"])),
            ("engine", _engine_line(about["engine"], about["health"])),
            ("tick", _tick_line(about["tick"])),
            ("disk", f"{sizes}{shown_bytes(disk['free_bytes'])} free"),
        ]
    )
    _print_problems(about["health"])
    _print_alerts(about["alerts"])
    _print_rejected(about["rejected"])
    click.echo()
    TOPICS.print(about["topics"])
    click.echo()
    VIEWS.print(_view_rows(about["views"]))
    for rows, listing in (
        (list(map(_source_row, about["sources"])), SOURCES),
        (about["sinks"], SINKS),
        (about["queues"], QUEUES),
    ):
        if rows:
            click.echo()
            listing.print(rows)


def _about(ws: Workspace) -> dict[str, Any]:
    from headwater.connectors.health.rejected_counts import rejected_rows
    from headwater.core.clock import SystemClock, from_us
    from headwater.engine.collections.row_ledger import total
    from headwater.state import base_ticks, state_files
    from headwater.state.base_ticks import Bases
    from headwater.views.view_status import standings, waiting_rows

    assert ws.path is not None
    now = SystemClock().now_us()
    views, supervisor = views_of(ws), supervisor_of(ws)
    manifest, owner = views.store.latest(), views.engine()
    sinks = _sink_statuses(ws)
    health = supervisor.health()
    return {
        "workspace": str(ws.path.absolute()),
        "health": _health(health),
        "alerts": [asdict(alert) | {"since": from_us(alert.since)} for alert in supervisor.alerts.active()],
        "rejected": rejected_rows(ws.log, views, supervisor),
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
            "first_kept": views.store.ticks()[0],
            "base": base.tick if (base := Bases(views.store.storage).newest()) is not None else None,
        },
        "topics": _topics(ws.log, waiting_rows(ws.log, manifest)),
        "views": [
            asdict(status) | {"ledger": total(views.reports.ledger(status.view))}
            for status in standings(ws.log, manifest)
        ],
        "sources": _sources(ws, health),
        "sinks": _sinks(ws, health, sinks),
        "queues": queue.queue_rows(ws),
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
    sources = supervisor_of(ws).sources
    known = sources.facts()
    found = []
    for name, source in sources.definitions().items():
        status, facts = sources.status(name), known.get(name, {})
        found.append(
            {
                "source": name,
                "kind": source.kind,
                "state": _state_of(health.of("source", name), status.state),
                "position": status.position,
                "unconfirmed_bytes": facts.get("behind_bytes"),
                "retained_bytes": facts.get("retained_bytes"),
                "stopped_tables": dict(sources.stopped_tables(name)),
                "counts": facts.get("counts"),
                "last_refused": facts.get("last_refused"),
            }
        )
    return found


def _state_of(found: ComponentHealth | None, reported: str) -> str:
    """Return the state of a source: the health's, or, if that is fine, the state that the source reports."""
    return (
        reported if found is None or found.severity == "ok" or found.state == "not running" else found.state
    )


def _sink_statuses(ws: Workspace) -> Mapping[str, SinkStatus]:
    """Return the status of sinks with their targets probed; targets that do not answer are not waited for."""
    if not ws.log.entries("sink"):
        return {}
    from headwater.connectors.manage.sink_probe import probe_sinks

    sinks = supervisor_of(ws).sinks
    return probe_sinks(sinks, sinks.definitions())


def _sink_state(found: ComponentHealth, sink: SinkStatus) -> str:
    """Return the state of a sink: the health's, or, for a sink that does not run, the state of its target if that
    failed to answer."""
    if found.state == "not running" and sink.status.state in ("retrying", "stopped"):
        return sink.status.state
    return found.state


def _sinks(ws: Workspace, health: Health, statuses: Mapping[str, SinkStatus]) -> list[dict[str, Any]]:
    """Return the status of each sink."""
    declared = supervisor_of(ws).sinks.definitions()
    return [
        {
            "sink": name,
            "view": declared[name].view,
            "kind": declared[name].kind,
            "state": _sink_state(found, sink),
            "tick": sink.status.tick,
            "behind_ticks": sink.lag.ticks,
            "behind_rows": sink.lag.rows,
            "behind_seconds": round(sink.lag.seconds, 3),
            "withheld": sink.status.withheld,
            "circuit": sink.status.circuit,
            "reason": found.reason if found.state != "not running" else sink.status.reason,
        }
        for name, sink in statuses.items()
        if name in declared and (found := health.of("sink", name)) is not None
    ]


def _source_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a source with its tables, counts and rejected rows as texts."""
    counts = (row["counts"] or {}).items()
    return {
        **row,
        "stopped_tables": "\n".join(row["stopped_tables"].values()) or None,
        "counts": ", ".join(f"{number:,} {what.replace('_', ' ')}" for what, number in counts) or None,
        "last_refused": "\n".join(row["last_refused"] or ()) or None,
    }


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


def _view_rows(views: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of views; with their ledgers if a view has left rows out."""
    if not any(row["ledger"][outcome] for row in views for outcome in LEFT_OUT):
        return [dict(row) for row in views]
    return [{**row, **row["ledger"]} for row in views]


def _health_line(health: dict[str, Any]) -> str:
    unhealthy, warnings = len(health["unhealthy"]), len(_shown_warnings(health))
    said = [f"{unhealthy} unhealthy"] if unhealthy else []
    said += [f"{warnings} {'warning' if warnings == 1 else 'warnings'}"] if warnings else []
    return ", ".join(said) or "ok"


def _shown_warnings(health: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the warnings without those caused by an engine that is not running, which the engine's line shows."""
    return [one for one in health["warnings"] if one["state"] != "not running"]


def _print_problems(health: dict[str, Any]) -> None:
    """Print each component with a problem: its state, the reason and the next step."""
    for one in (*health["unhealthy"], *_shown_warnings(health)):
        facts = [(one["severity"], f"{one['subject']} is {one['state']}")]
        facts += [(name, one[name]) for name in ("reason", "hint") if one[name]]
        click.echo()
        print_facts(facts)


def _print_alerts(alerts: list[dict[str, Any]]) -> None:
    if alerts:
        click.echo()
        print_table(
            [{"alert": one["alert"], "key": _key(one["key"]), "firing since": one["since"]} for one in alerts]
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
                    "open": one.open,
                    "listed by": one.where,
                }
                for one in rejected
            ]
        )


def _engine_line(engine: dict[str, Any] | None, health: dict[str, Any]) -> str:
    from headwater.state.ownership import STALE_AFTER_MS

    if engine is None:
        failed = [one["reason"] for one in health["unhealthy"] if one["kind"] == "engine"]
        return "not running" + (f"; it stopped with an error: {failed[0]}" if failed else "")
    said = f"process {engine['pid']} on {engine['host']}, since {engine['since']:%Y-%m-%d %H:%M:%S} UTC"
    idle_s = engine["silent_seconds"]
    return said + (f"; no heartbeat for {shown_seconds(idle_s)}" if idle_s * 1_000 > STALE_AFTER_MS else "")


def _tick_line(tick: dict[str, Any] | None) -> str:
    if tick is None:
        return "none yet; headwater run --once makes the first"
    said = f"{tick['tick']:,}, {shown_seconds(tick['age_seconds'])} ago; kept since {tick['first_kept']:,}"
    return said if tick["base"] is None else f"{said}; base at {tick['base']:,}"


def _size(folder: Path) -> int:
    """Return the size of all files in a folder, in bytes; files that are removed meanwhile count as 0."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total
