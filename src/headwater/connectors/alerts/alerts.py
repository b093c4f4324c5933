"""The alerts of a workspace: declared, evaluated next to an engine, and reported.

Evaluation and notification are two threads of their own: a receiver that does not answer delays neither a tick nor another
alert's episodes. All state that survives the process is in `alert_episodes`, including the time since which a condition
holds that has not fired yet: the count continues after a restart. Only the process that runs the engine of the workspace
evaluates and notifies.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog.connectors import ALERT, AlertDefinition, altered_alert
from headwater.connectors.alerts.alert_conditions import WHOLE, CollectMetrics, MatchingRows, Observer
from headwater.connectors.alerts.alert_episodes import Episode, Episodes, Event, make_notices
from headwater.connectors.alerts.notify import Notices, check_notice, key_of
from headwater.connectors.manage.declarations import ConnectorDeclarations
from headwater.connectors.manage.sink_private_copies import refuse_plain_rows
from headwater.core.clock import Clock, Microseconds, format_span, from_us
from headwater.core.errors import AlertExistsError, AlertNotFoundError, HeadwaterError, StatementError
from headwater.core.faults import Component
from headwater.core.types import TIMESTAMP
from headwater.engine.collections.dependencies import below
from headwater.log.protocol import Log
from headwater.sql import statements as s

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

_log = logging.getLogger("headwater.alerts")
EVALUATE_EVERY_S = 1.0
GONE_AFTER_US: Microseconds = 60_000_000
"""Time without a sample after which a metric's episode is over: a source or sink that is being started has no samples for a
moment."""
PAUSE_MIN_MS, PAUSE_MAX_MS = 1_000.0, 300_000.0
"""First and longest pause between attempts to notify a receiver."""
Send = Callable[[AlertDefinition, Mapping[str, Any], str], None]


@dataclass
class _Trouble:
    """A receiver that could not be notified."""

    reason: str
    pause_ms: float
    until_ms: float


@dataclass(frozen=True)
class _PendingSince:
    """The time for which a condition had held when this process first saw it, and the steady-clock time of that."""

    episode: Microseconds
    before_us: Microseconds
    steady_ms: float


@dataclass(frozen=True)
class ActiveAlert:
    """An alert whose condition holds for a key, the time since when, and the row that met the condition, as JSON."""

    alert: str
    on: str
    condition: str
    key: str
    since: Microseconds
    row: str


class Alerts:
    """All operations on the alerts of a workspace."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        views: Callable[[], Views],
        metrics: CollectMetrics,
        *,
        evaluates_here: Callable[[], bool] = lambda: True,
        deliver: Send | None = None,
    ) -> None:
        """`evaluates_here` returns whether this process evaluates and notifies."""
        self._log = log
        self._evaluates_here = evaluates_here
        self._clock = clock
        self._views = views
        self._observer = Observer(log, views, metrics)
        self._send = deliver or Notices(clock).send
        self._declared = ConnectorDeclarations(
            log, ALERT, AlertDefinition.from_document, AlertExistsError, AlertNotFoundError
        )
        self._episodes = Episodes(log)
        self._turn = threading.RLock()
        self._pending: dict[tuple[str, str], _PendingSince] = {}
        """Pending episodes: conditions that hold and have not fired."""
        self._absent: dict[tuple[str, str], float] = {}
        self._unevaluated: dict[str, str] = {}
        """By alert, the reason why it could not be evaluated the last time."""
        self._trouble: dict[str, _Trouble] = {}
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

        self.handlers: Mapping[type, Callable[[Any], pa.Table | None]] = {
            s.CreateAlert: self.create,
            s.CreateDefaultAlerts: self.create_defaults,
            s.DropAlert: self.drop,
            s.SetAlert: self.set,
            s.ShowAlerts: lambda _: self.show(),
        }
        """Handlers by type of statement about alerts."""

    # --- declaring -------------------------------------------------------------------------------------------------

    def execute(self, statement: s.Alerting) -> pa.Table | None:
        """Run a statement about alerts."""
        return self.handlers[type(statement)](statement)

    def definitions(self) -> Mapping[str, AlertDefinition]:
        """Return the declared alerts, by name."""
        return self._declared.all()

    def of_view(self, view: str) -> list[str]:
        """Return the names of the alerts on a view."""
        declared = self.definitions().values()
        return [a.name for a in declared if not a.metric and a.on.lower() == view.lower()]

    def create(self, statement: s.CreateAlert) -> None:
        """CREATE ALERT: check that the condition can be evaluated and the notice be sent, then declare the alert."""
        if not self._declared.is_new(statement):
            return
        made = statement.definition
        self._observer.begin()
        self._observer.check(made)
        self._check(made)
        if not made.metric:
            keys = self._views().reports.keys(made.on)
            made = replace(
                made,
                on=self._views().names.canonical_name(made.on),
                key=min(keys, key=len) if keys else (WHOLE,),
            )
            refuse_plain_rows(self._log, made, made.on)
        existing = self._log.entries(ALERT).get(made.name)
        incarnation = None if existing is None else self._declared.read(existing).incarnation
        self._declared.put(
            replace(made, incarnation=self._clock.now_us() if incarnation is None else incarnation)
        )

    def create_defaults(self, statement: s.CreateDefaultAlerts) -> None:
        """CREATE DEFAULT ALERTS: create those that do not exist; existing alerts stay unchanged."""
        for made in statement.alerts:
            self.create(s.CreateAlert(made, if_not_exists=True))

    def set(self, statement: s.SetAlert) -> None:
        """ALTER ALERT ... SET: the alert continues with these options."""
        was = self._declared.read(self._declared.entry(statement.name))
        made = altered_alert(was, statement.options)
        self._check(made)
        if made != was:
            self._declared.put(made)
            self._trouble.pop(made.name, None)

    def drop(self, statement: s.DropAlert) -> None:
        """DROP ALERT: the end of its episodes is not reported."""
        if statement.if_exists and statement.name not in self._log.entries(ALERT):
            return
        entry = self._declared.entry(statement.name)
        self._log.drop_entry(ALERT, entry.name, expect=entry.sequence)

    def _check(self, made: AlertDefinition) -> None:
        check_notice(made)
        if made.kind == "topic":
            topic = str(made.options["topic"])
            if not made.metric:
                read = below(self._log, self._views().names.canonical_name(made.on))
                if topic.lower() in (name.lower() for name in read):
                    raise StatementError(
                        f"view {made.on!r} reads topic {topic!r}, to which alert {made.name!r} would write notices",
                        hint="write notices to another topic",
                        view=made.on,
                        topic=topic,
                        alert=made.name,
                    )
            make_notices(self._log, topic)

    # --- evaluating ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evaluate every alert once: begin and end episodes, and write notices for alerts that notify on a topic."""
        with self._turn:
            declared = self.definitions()
            known = dict(self._episodes.refresh())
            if not declared and not known:
                return
            self._observer.begin()
            changed: list[Episode] = []
            gone = [
                e
                for e in known.values()
                if e.alert not in declared or _is_of_dropped(e, declared[e.alert])
                # the end of a dropped alert's episodes is not reported
            ]
            for alert in declared.values():
                mine = {
                    e.key: e for e in known.values() if e.alert == alert.name and not _is_of_dropped(e, alert)
                }
                found, ended = self._evaluate(alert, mine)
                changed += found
                gone += ended
            pending = {(e.alert, e.key) for e in (*known.values(), *changed) if e.state == "pending"}
            self._pending = {place: held for place, held in self._pending.items() if place in pending}
            if changed or gone:
                self._write(declared, changed, gone)

    def _evaluate(
        self, alert: AlertDefinition, known: Mapping[str, Episode]
    ) -> tuple[list[Episode], list[Episode]]:
        """Return the episodes that have begun, fired or ended, and the episodes that ended before they fired."""
        try:
            if alert.kind == "topic":
                make_notices(self._log, str(alert.options["topic"]))
            matching = self._observer.matching(alert)
            self._unevaluated.pop(alert.name, None)
        except HeadwaterError as error:
            # state unknown: firing episodes stay, and pending ones start again
            self._unevaluated[alert.name] = error.message
            return [], [e for e in known.values() if e.state == "pending"]
        over = self._ended(alert, matching, known)
        ended = [replace(e, state="over", ended_at=self._clock.now_us()) for e in over if e.state == "firing"]
        return [*self._begun(alert, matching, known), *ended], [e for e in over if e.state == "pending"]

    def _begun(
        self, alert: AlertDefinition, matching: MatchingRows, known: Mapping[str, Episode]
    ) -> list[Episode]:
        now = self._clock.now_us()
        begun = []
        for key, row in matching.holding.items():
            was = known.get(key)
            # firing, or its end was not reported yet
            if was is not None and was.state != "pending":
                continue
            since = now if was is None else was.episode
            if self._held_us(alert.name, key, since) >= alert.held_us:
                begun.append(Episode(alert.name, key, since, alert.incarnation, "firing", now, row))
            elif was is None:
                begun.append(Episode(alert.name, key, since, alert.incarnation, "pending", now, row))
        return begun

    def _held_us(self, alert: str, key: str, episode: Microseconds) -> float:
        """Return the time for which a condition has held: until this process first saw it by the wall clock, since then by
        the steady clock."""
        steady = self._clock.steady_ms()
        held = self._pending.get((alert, key))
        if held is None or held.episode != episode:
            held = _PendingSince(episode, max(0, self._clock.now_us() - episode), steady)
            self._pending[alert, key] = held
        return held.before_us + (steady - held.steady_ms) * 1_000

    def _ended(
        self, alert: AlertDefinition, matching: MatchingRows, known: Mapping[str, Episode]
    ) -> list[Episode]:
        """Return the episodes whose condition no longer holds."""
        steady = self._clock.steady_ms()
        over = []
        for key, episode in known.items():
            place = (alert.name, key)
            absent = matching.present is not None and key not in matching.present
            since_ms = self._absent.setdefault(place, steady) if absent else self._absent.pop(place, steady)
            if episode.state == "over" or key in matching.holding or (matching.crowded and key != WHOLE):
                continue
            if absent and (steady - since_ms) * 1_000 < GONE_AFTER_US:
                continue
            self._absent.pop(place, None)
            over.append(episode)
        return over

    def _write(
        self, declared: Mapping[str, AlertDefinition], changed: list[Episode], gone: list[Episode]
    ) -> None:
        """Write all changes in one append; if another process was first, they are evaluated again the next time."""
        kept, done = [], list(gone)
        notices: dict[str, list[dict[str, Any]]] = {}
        for episode in changed:
            alert = declared[episode.alert]
            if alert.kind != "topic" or episode.state == "pending":
                kept.append(episode)
                continue
            event: Event = "fired" if episode.state == "firing" else "over"
            row = episode.notice(event, alert.subject, alert.condition)
            notices.setdefault(str(alert.options["topic"]), []).append(row)
            if event == "over":
                done.append(episode)
            else:
                kept.append(replace(episode, told="fired"))
        self._episodes.write(kept, done, notices)

    # --- notifying -------------------------------------------------------------------------------------------------

    def notify(self) -> None:
        """Send every notice that was not sent yet, once each; a receiver that cannot be notified is retried after a pause."""
        with self._turn:
            declared = self.definitions()
            known = sorted(self._episodes.refresh().values(), key=lambda e: (e.fired_at, e.key))
        for episode in known:
            alert = declared.get(episode.alert)
            if alert is None or _is_of_dropped(episode, alert):
                continue
            while (event := episode.unsent) is not None and not self._stop.is_set():
                trouble = self._trouble.get(alert.name)
                if trouble is not None and self._clock.steady_ms() < trouble.until_ms:
                    break
                if not self._evaluates_here():
                    return
                notice = episode.notice(event, alert.subject, alert.condition)
                try:
                    self._send(alert, notice, key_of(self._log.identity, notice))
                except HeadwaterError as error:
                    self._failed(alert.name, error)
                    break
                self._trouble.pop(alert.name, None)
                episode = replace(episode, told=event)
                self._record_sent(episode)

    def _failed(self, alert: str, error: HeadwaterError) -> None:
        before = self._trouble.get(alert)
        pause = PAUSE_MIN_MS if before is None else min(before.pause_ms * 2, PAUSE_MAX_MS)
        why = error.message + (f": {error.detail}" if error.detail else "")
        self._trouble[alert] = _Trouble(why, pause, self._clock.steady_ms() + pause)

    def _record_sent(self, sent: Episode) -> None:
        """Record that a notice was sent; the episode may have ended meanwhile."""
        with self._turn:
            while True:
                now = self._episodes.refresh().get((sent.alert, sent.key))
                if now is None or now.episode != sent.episode:
                    # dropped, or recorded by another process
                    return
                noted = replace(now, told=sent.told)
                is_done = noted.state == "over" and noted.told == "over"
                if self._episodes.write([] if is_done else [noted], [noted] if is_done else []):
                    return

    # --- next to an engine -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start to evaluate and notify, if there are alerts."""
        if any(thread.is_alive() for thread in self._threads) or not self._log.entries(ALERT):
            return
        self._stop.clear()
        works = (
            ("headwater-alerts", self.evaluate, "watching of alerts"),
            ("headwater-notices", self.notify, "notifying of alerts"),
        )
        self._threads = [
            threading.Thread(
                target=self._loop,
                args=(work, Component(self._log.faults, "background", what)),
                name=name,
                daemon=True,
            )
            for name, work, what in works
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the evaluation and notification under way."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._stop.clear()

    def _loop(self, work: Callable[[], None], component: Component) -> None:
        while True:
            try:
                if self._evaluates_here():
                    work()
                    component.works()
            except Exception as error:  # noqa: BLE001 - a thread that ended would leave alerts unnoticed
                # a full disk, a closed log, a defect: tried again
                _log.warning("alerts could not be evaluated or sent; this is retried", exc_info=True)
                if not self._stop.is_set():
                    component.failed(error)
            if self._stop.wait(EVALUATE_EVERY_S):
                return

    # --- showing ---------------------------------------------------------------------------------------------------

    def active(self) -> list[ActiveAlert]:
        """Return the firing alerts, the oldest first, one for each key."""
        with self._turn:
            known = dict(self._episodes.refresh())
        declared = self.definitions()
        found = [
            ActiveAlert(
                e.alert, declared[e.alert].subject, declared[e.alert].condition, e.key, e.episode, e.row
            )
            for e in known.values()
            if e.state == "firing" and e.alert in declared and not _is_of_dropped(e, declared[e.alert])
        ]
        return sorted(found, key=lambda one: (one.since, one.alert, one.key))

    def show(self) -> pa.Table:
        """SHOW ALERTS: return a row for each alert."""
        with self._turn:
            known = dict(self._episodes.refresh())
        rows = []
        for name, made in self.definitions().items():
            mine = [e for e in known.values() if e.alert == name and not _is_of_dropped(e, made)]
            firing = [e for e in mine if e.state == "firing"]
            begun = firing or [e for e in mine if e.state == "pending"]
            trouble = self._trouble.get(name)
            rows.append(
                {
                    "alert": name,
                    "on": made.subject,
                    "condition": made.condition,
                    "held_for": format_span(made.held_us) if made.held_us else None,
                    "state": begun[0].state if begun else "quiet",
                    "episodes": len(firing),
                    "since": from_us(min(e.episode for e in begun)) if begun else None,
                    "untold": sum(e.unsent is not None for e in mine),
                    "reason": self._unevaluated.get(name) or (trouble.reason if trouble else None),
                    "notify": made.kind,
                    "options": ", ".join(f"{k} = {v}" for k, v in made.shown().items()),
                }
            )
        return pa.Table.from_pylist(rows, schema=_SHOWN)


def _is_of_dropped(episode: Episode, alert: AlertDefinition) -> bool:
    """Whether an episode belongs to a dropped alert of the same name."""
    return episode.incarnation != alert.incarnation


_TEXTS = ("alert", "on", "condition", "held_for", "state")
_SHOWN = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("episodes", pa.int64()),
        ("since", TIMESTAMP),
        ("untold", pa.int64()),
        *((name, pa.string()) for name in ("reason", "notify", "options")),
    ]
)
