"""Health: the state of every component of a workspace, with the reason, from the log, the committed state and reported
faults.

`headwater status`, `/health/ready`, the console, the metrics and the default alerts all show what `health` returns, so they
never disagree. Computing it connects to no server, starts no Spark, and works in any process: the status of sources and
sinks that another process runs comes from its status board, and of those that have stopped from their faults.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from headwater.catalog.connectors import SINK, SOURCE
from headwater.catalog.definitions import TopicDefinition
from headwater.connectors.health.upstream import Connectors, below_stopped
from headwater.connectors.manage.sink_statuses import SinkStatus
from headwater.core.clock import Clock, Microseconds, to_us
from headwater.core.errors import CorruptionError
from headwater.core.faults import CLOCK, Fault, FaultKind
from headwater.log.lag import CursorLag, lag_report
from headwater.log.protocol import Log
from headwater.log.topic_names import VIEWS_HOLD
from headwater.queues.queue_definition import QUEUE, STATE_TOPICS, QueueDefinition
from headwater.queues.queue_status import QueueStanding, standing_of
from headwater.sinks.base.sink_status import State
from headwater.sources.base import AGAIN, AWAY
from headwater.state.ownership import alive, owner
from headwater.views.view_status import standings

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

Kind = Literal["engine", "view", "source", "sink", "queue", "cursor", "group", "background", "clock"]
Severity = Literal["ok", "warning", "unhealthy"]
UPSTREAM = "upstream stopped"

STATES: Mapping[Kind, Mapping[str, Severity]] = {
    "engine": {"running": "ok", "not running": "warning", "frozen": "unhealthy", "failed": "unhealthy"},
    "view": {"live": "ok", "backfilling": "ok", UPSTREAM: "unhealthy", "stopped": "unhealthy"},
    "source": {
        "capturing": "ok",
        "waiting": "warning",
        "not running": "warning",
        UPSTREAM: "unhealthy",
        "stopped": "unhealthy",
    },
    "sink": {
        "following": "ok",
        "waiting": "ok",
        "retrying": "warning",
        "behind": "warning",
        "not running": "warning",
        UPSTREAM: "unhealthy",
        "stopped": "unhealthy",
    },
    "queue": {"ok": "ok", "behind": "warning", UPSTREAM: "unhealthy"},
    "cursor": {
        "ok": "ok",
        "lagging": "warning",
        "falling off": "warning",
        "rows lost": "warning",
        UPSTREAM: "unhealthy",
    },
    "group": {
        "ok": "ok",
        "lagging": "warning",
        "falling off": "warning",
        "rows lost": "warning",
        UPSTREAM: "unhealthy",
    },
    "background": {"failing": "unhealthy"},
    "clock": {"in doubt": "warning"},
}
"""Every state that a component can be in, with its severity. An unhealthy component makes `headwater status` exit with 1 and
`/health/ready` answer 503; a warning is shown, and has a default alert."""

BEHIND_AFTER_S = 60.0
"""Age of the oldest tick not applied, in seconds, from which on a sink is behind."""
LAGS_AFTER_S = 300.0
"""Age of the oldest unread record, in seconds, from which on a cursor lags and a queue is behind."""
FALLS_OFF_WITHIN: Microseconds = 3_600_000_000
"""Time within which `retention_bytes` must remove a cursor's next record for the cursor to be about to fall off the tail;
with a retention by time, a quarter of that time is used."""


_VERBS = {"failing": "fails", "rows lost": "has lost rows", UPSTREAM: "receives no new rows"}


@dataclass(frozen=True)
class ComponentHealth:
    """The health of one component. `hint` is the next step; `since` is the time at which it began to fail, if known."""

    kind: Kind
    name: str
    state: str
    reason: str | None = None
    hint: str | None = None
    since: Microseconds | None = None

    @property
    def severity(self) -> Severity:
        """Severity of the state."""
        return STATES[self.kind][self.state]

    @property
    def subject(self) -> str:
        """The component as a noun phrase, such as `view revenue`. The engine and background work are named without their
        kind."""
        return self.name if self.kind in ("engine", "background", "clock") else f"{self.kind} {self.name}"

    def sentence(self) -> str:
        """Return the state with its reason, in one line."""
        subject = f"the {self.kind}" if self.kind in ("engine", "clock") else self.subject
        said = f"{subject} {_VERBS.get(self.state, f'is {self.state}')}"
        return f"{said}: {self.reason}" if self.reason else said


@dataclass(frozen=True)
class Health:
    """The health of a workspace at one point in time: the engine first, then every other component by kind and name."""

    components: Sequence[ComponentHealth]

    @property
    def engine(self) -> ComponentHealth:
        """The health of the engine."""
        return self.components[0]

    @property
    def healthy(self) -> bool:
        """Whether no component is unhealthy."""
        return not self.unhealthy

    @property
    def unhealthy(self) -> list[ComponentHealth]:
        """The components that are unhealthy."""
        return [one for one in self.components if one.severity == "unhealthy"]

    @property
    def warnings(self) -> list[ComponentHealth]:
        """The components that need attention and are not unhealthy."""
        return [one for one in self.components if one.severity == "warning"]

    def of(self, kind: Kind, name: str) -> ComponentHealth | None:
        """Return the health of a component; None if it does not exist."""
        return next((one for one in self.components if (one.kind, one.name) == (kind, name)), None)


def with_health(status: SinkStatus, found: ComponentHealth | None) -> SinkStatus:
    """Return the status of a sink, with the state from the health if that is unhealthy: a sink has no information on the
    components before it."""
    if found is None or found.severity != "unhealthy":
        return status
    state: State = "stopped"
    reason = found.reason if found.state == "stopped" else f"{found.state}: {found.reason}"
    return replace(status, status=replace(status.status, state=state, reason=reason))


def health(
    log: Log,
    clock: Clock,
    views: Views,
    connected: Connectors,
) -> Health:
    """Compute the health of every component."""
    faults = {(fault.kind, fault.name): fault for fault in log.faults.current()}
    engine = _engine(clock, views, faults)
    found = [engine, *_views(log, views)]
    found += _sources(log, connected, faults, engine)
    found += _sinks(log, connected, faults, engine)
    found += _queues(log, clock, connected)
    found += _cursors(log, clock)
    found += [
        ComponentHealth("background", fault.name, "failing", fault.reason, fault.hint, fault.since)
        for (kind, _), fault in faults.items()
        if kind == "background"
    ]
    found += [
        ComponentHealth("clock", fault.name, "in doubt", fault.reason, fault.hint, fault.since)
        for (kind, _), fault in faults.items()
        if kind == CLOCK
    ]
    return Health(_with_upstream(log, connected, found))


# --- the engine and views ------------------------------------------------------------------------------------------


def _engine(clock: Clock, views: Views, faults: Mapping[tuple[FaultKind, str], Fault]) -> ComponentHealth:
    storage = views.store.storage
    if alive(storage, clock) is not None:
        return ComponentHealth("engine", "engine", "running")
    frozen = owner(storage)
    if frozen is not None:
        idle_s = max(0, clock.now_us() - frozen.heartbeat) / 1e6
        reason = f"process {frozen.pid} on {frozen.host} has sent no heartbeat for {idle_s:.0f} s"
        return ComponentHealth("engine", "engine", "frozen", reason, "end that process, then headwater run")
    fault = faults.get(("engine", "engine"))
    if fault is not None:
        return ComponentHealth(
            "engine", "engine", "failed", fault.reason, fault.hint or "headwater run", fault.since
        )
    if views.has_failed():
        return ComponentHealth("engine", "engine", "failed", "it was stopped by an error", "headwater run")
    return ComponentHealth("engine", "engine", "not running", None, "headwater run")


def _views(log: Log, views: Views) -> Iterator[ComponentHealth]:
    try:
        manifest = views.store.latest()
    except CorruptionError as error:
        manifest = views.store.latest_whole()
        yield ComponentHealth("background", "reading the newest tick", "failing", error.message, error.hint)
    for view in standings(log, manifest):
        hint = None
        if view.status == "stopped":
            hint = f"correct the cause, then headwater rebuild {view.view}"
        yield ComponentHealth("view", view.view, view.status, view.reason, hint)


# --- sources and sinks ---------------------------------------------------------------------------------------------


def _sources(
    log: Log, connected: Connectors, faults: Mapping[tuple[FaultKind, str], Fault], engine: ComponentHealth
) -> Iterator[ComponentHealth]:
    if not log.entries(SOURCE):
        return
    running = connected.sources.facts()
    for name in sorted(connected.sources.definitions()):
        stopped = connected.sources.stopped_tables(name)
        yield _source(connected, name, running.get(name), stopped, faults.get(("source", name)), engine)


def _source(
    connected: Connectors,
    name: str,
    facts: Mapping[str, Any] | None,
    stopped: Mapping[str, str],
    fault: Fault | None,
    engine: ComponentHealth,
) -> ComponentHealth:
    restart = f"ALTER SOURCE {name} RESTART reads the source from the start"
    state = str(facts["state"]) if facts is not None else connected.sources.status(name).state
    if state.startswith(("stopped", "not taking deliveries")):
        return ComponentHealth("source", name, "stopped", _after_colon(state), restart)
    if stopped:
        tables = "; ".join(stopped.values())
        return ComponentHealth("source", name, "stopped", tables, f"ALTER SOURCE {name} RESTART <table>")
    if facts is not None:
        if state.startswith((AWAY, AGAIN)) or not facts.get("up", True):
            return ComponentHealth("source", name, "waiting", state)
        return ComponentHealth("source", name, "capturing")
    if fault is not None:
        return ComponentHealth("source", name, "stopped", fault.reason, fault.hint or restart, fault.since)
    if state in ("not running", "captured by another process"):
        return ComponentHealth("source", name, "not running", _not_run(engine))
    return ComponentHealth("source", name, "not running", state)


def _not_run(engine: ComponentHealth) -> str:
    """Return the reason why no process runs a source or a sink."""
    if engine.state == "running":
        return "the process that runs the engine does not report it"
    return "no engine runs" if engine.state == "not running" else f"the engine is {engine.state}"


def _after_colon(state: str) -> str:
    return state.partition(": ")[2] or state


def _sinks(
    log: Log,
    connected: Connectors,
    faults: Mapping[tuple[FaultKind, str], Fault],
    engine: ComponentHealth,
) -> Iterator[ComponentHealth]:
    if not log.entries(SINK):
        return
    running = {name: SinkStatus.from_facts(facts) for name, facts in connected.sinks.facts().items()}
    for name in sorted(connected.sinks.definitions()):
        found = running.get(name)
        fault = faults.get(("sink", name))
        if found is None and fault is not None:
            hint = fault.hint or "correct the cause; the engine retries when it starts"
            yield ComponentHealth("sink", name, "stopped", fault.reason, hint, fault.since)
            continue
        yield _sink(name, found, engine)


def _sink(name: str, reported: SinkStatus | None, engine: ComponentHealth) -> ComponentHealth:
    if reported is None:
        return ComponentHealth("sink", name, "not running", _not_run(engine))
    status, lag = reported.status, reported.lag
    if status.state == "stopped":
        hint = "correct the cause; the engine retries when it starts"
        return ComponentHealth("sink", name, "stopped", status.reason, hint)
    if lag.seconds > BEHIND_AFTER_S:
        rows = "" if lag.rows is None else f", {lag.rows:,} rows"
        why = f"; {status.reason}" if status.state == "retrying" and status.reason else ""
        return ComponentHealth("sink", name, "behind", f"{lag.seconds:.0f} s behind its view{rows}{why}")
    if status.state == "retrying":
        return ComponentHealth("sink", name, "retrying", status.reason)
    if status.state == "waiting":
        return ComponentHealth("sink", name, "waiting", "its view is part of no tick yet")
    return ComponentHealth("sink", name, "following")


# --- queues, cursors and groups --------------------------------------------------------------------------------------


def _queues(log: Log, clock: Clock, connected: Connectors) -> Iterator[ComponentHealth]:
    for name in sorted(log.entries(QUEUE)):
        yield _queue(standing_of(log, clock, connected.queues().of(name)))


def _queue(queue: QueueStanding) -> ComponentHealth:
    if queue.waiting > 0 and (queue.oldest_seconds or 0.0) > LAGS_AFTER_S:
        count = f"{queue.waiting:,} {'message waits' if queue.waiting == 1 else 'messages wait'}"
        reason = f"{count}, the oldest for {queue.oldest_seconds:.0f} s"
        return ComponentHealth("queue", queue.queue, "behind", reason, "start more workers")
    return ComponentHealth("queue", queue.queue, "ok")


def cursor_name(lag: CursorLag) -> str:
    """The name of a cursor or group as a component: cursors of one name may read several topics."""
    return f"{lag.topic}/{lag.cursor}"


def _cursors(log: Log, clock: Clock) -> Iterator[ComponentHealth]:
    topics = log.topics()
    queues = {
        (made.topic, made.cursor) for made in map(QueueDefinition.from_entry, log.entries(QUEUE).values())
    }
    for lag in lag_report(log, clock):
        is_internal = lag.cursor == VIEWS_HOLD or lag.topic.startswith(STATE_TOPICS)
        if is_internal or (lag.topic, lag.cursor) in queues or lag.topic not in topics:
            continue
        kind: Kind = "cursor" if log.group(lag.topic, lag.cursor) is None else "group"
        yield _cursor(kind, lag, topics[lag.topic], clock.now_us())


def _cursor(kind: Kind, lag: CursorLag, topic: TopicDefinition, now: Microseconds) -> ComponentHealth:
    name = cursor_name(lag)
    behind = f"{lag.rows:,} rows, {lag.seconds:.0f} s behind"
    if lag.missed:
        reason = f"retention has removed {lag.missed:,} rows that were not read"
        return ComponentHealth(kind, name, "rows lost", reason, "continue from the oldest record, or seek")
    if lag.falls_off_at is not None:
        by_time = lag.falls_off_by == "retention" and topic.retention_us is not None
        within = (topic.retention_us or 0) // 4 if by_time else FALLS_OFF_WITHIN
        left_us = to_us(lag.falls_off_at) - now
        if lag.rows and left_us <= within:
            reason = f"{lag.falls_off_by} removes its next row in {max(0, left_us) / 1e6:.0f} s; {behind}"
            hint = f"read faster, or set a longer {lag.falls_off_by}"
            return ComponentHealth(kind, name, "falling off", reason, hint)
    if lag.rows and lag.seconds > LAGS_AFTER_S:
        return ComponentHealth(kind, name, "lagging", behind, "is its reader running?")
    return ComponentHealth(kind, name, "ok")


# --- what is downstream of a stopped component -------------------------------------------------------------------------


def _with_upstream(
    log: Log, connected: Connectors, found: Sequence[ComponentHealth]
) -> list[ComponentHealth]:
    """Every component downstream of a stopped one is unhealthy, unless it has stopped itself."""
    stopped = {(one.kind, one.name) for one in found if one.state == "stopped"}
    if not stopped:
        return list(found)
    causes = below_stopped(log, connected, stopped)
    return [
        replace(one, state=UPSTREAM, reason=f"{cause} is stopped", hint=None)
        if one.state != "stopped" and (cause := causes.get((one.kind, one.name))) is not None
        else one
        for one in found
    ]
