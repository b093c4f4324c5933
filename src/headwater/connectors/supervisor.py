"""The supervisor of a workspace's sources, sinks and alerts: declares them, runs them next to an engine, and reports on
them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from headwater.catalog.connectors import SINK, SOURCE
from headwater.connectors.alerts.alert_conditions import Figures
from headwater.connectors.alerts.alerts import Alerts
from headwater.connectors.dead_letter_store.sink_letters import count_open
from headwater.connectors.dead_letters.dead_letters import Dead
from headwater.connectors.dead_letters.dead_queues import QueueShelf
from headwater.connectors.dead_letters.dead_sinks import Retrying, SinkShelf
from headwater.connectors.dead_letters.dead_sources import SourceShelf
from headwater.connectors.dead_letters.dead_views import ViewShelf
from headwater.connectors.deletion.erase_sinks import Erasure
from headwater.connectors.health.health import Health, health, with_health
from headwater.connectors.health.rejected_counts import RejectedRows, captured_rows, rejected_rows
from headwater.connectors.manage.sink_manager import Sinks
from headwater.connectors.manage.sink_probe import look_at
from headwater.connectors.manage.sink_statuses import SinkStatus
from headwater.connectors.manage.source_manager import SourceManager
from headwater.connectors.manage.status_board import Board, Bulletin
from headwater.connectors.manage.webhooks import FILE as HOOKS_FILE
from headwater.core.clock import Clock
from headwater.core.errors import EngineRunningError, HeadwaterError, UsageError
from headwater.core.positions import Receipt
from headwater.core.storage import File, Storage
from headwater.log.protocol import Log
from headwater.queues.queue_client import Ledgers
from headwater.sql import statements as s
from headwater.views.dead_letter_actions import Deeds, read_deeds

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

ALERTS_LOCK = "alerts.lock"
"""Lock file of the process that evaluates alerts while no engine runs."""
LOOK_EVERY_MS = 200.0
"""Interval at which the supervisor checks for new declarations, of this process or another."""


class Supervisor:
    """The sources, sinks and alerts of a workspace. An engine starts, checks and stops them."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        root: Path,
        views: Callable[[], Views],
        figures: Figures,
        queues: Callable[[], Ledgers],
    ) -> None:
        self.queues = queues
        self._board = Board(Storage(root), clock, faults=log.faults)
        hooks = Board(Storage(root), clock, HOOKS_FILE, log.faults)
        self.sources: SourceManager = SourceManager(log, clock, root, views, self._board, hooks)
        self.sinks = Sinks(log, clock, root, log.identity, views, self._board)
        self.alerts = Alerts(log, clock, views, figures, is_ours=self._is_ours)
        self._retrying = Retrying(log, self.sinks.retry)
        self.erasure = Erasure(log, clock, lambda: self.sinks)
        self._log = log
        self._clock = clock
        self._root = root
        self._views = views
        self._alerts_guard = threading.Lock()
        self._alerts_lock: File | None = None
        self._seen = -1
        self._looked_ms = 0.0
        self._letters: tuple[int, Deeds | None, Mapping[str, int]] | None = None
        """Number of open dead letters of each view, cached by tick and by the recorded dead-letter actions."""
        self._handlers: Mapping[type, Callable[[Any], pa.Table | None]] = {
            **self.alerts.handlers,
            s.AlterSource: self.sources.alter,
            s.CreateSink: self.sinks.declared.create,
            s.CreateSource: self.sources.declared.create,
            s.DropSink: self.sinks.drop,
            s.DropSource: self.sources.drop,
            s.SetSink: self.sinks.declared.set,
            s.SetSource: self.sources.declared.set,
            s.ShowSinks: lambda _: self._show_sinks(),
            s.ShowSources: lambda _: self._show_sources(),
        }

    def execute(self, statement: s.ConnectorStatement) -> pa.Table | None:
        """Run a statement about a source, a sink or an alert."""
        return self._handlers[type(statement)](statement)

    # --- next to an engine -----------------------------------------------------------------------------------------

    def look(self) -> None:
        """Start declared connectors that do not run; cheap if nothing was declared since the last call."""
        now = self._clock.steady_ms()
        if self._seen >= 0 and now - self._looked_ms < LOOK_EVERY_MS:
            return
        self._looked_ms = now
        sequence = self._log.sequence()
        if sequence != self._seen:
            self._seen = sequence
            self.sources.start()
            self.sinks.start()
            self._retrying.look()
            self.alerts.start()
        self.erasure.look()
        self._board.keep_telling(self._news)

    def look_at_alerts(self) -> None:
        """Evaluate alerts once and send their notifications. Meanwhile this process owns the engine (`Views.claim`), so that
        no other process does."""
        with suppress(EngineRunningError), self._views().claim():
            self.alerts.watch()
            self.alerts.tell()

    def _is_ours(self) -> bool:
        """Whether this process evaluates the alerts: the process that runs the engine or, without an engine, the first that
        asks."""
        engine = self._views().engine()
        if engine is not None:
            return engine.is_here
        # two handles of one process would exclude each other
        with self._alerts_guard:
            if self._alerts_lock is None:
                self._alerts_lock = Storage(self._root).open(ALERTS_LOCK, create=True)
            return self._alerts_lock.try_lock()

    def _news(self) -> Bulletin:
        return Bulletin(self._clock.now_us(), sources=self.sources.news(), sinks=self.sinks.news())

    def stop_sources(self) -> None:
        """Stop all sources."""
        self._seen = -1
        self.sources.stop()

    def stop_sinks(self) -> None:
        """Stop all sinks, alerts and retries, and the status board."""
        self._seen = -1
        self.alerts.stop()
        self._retrying.stop()
        self.sinks.stop()
        self._board.clear()

    def close(self) -> None:
        """Stop everything, and release the alerts lock."""
        self.stop_sources()
        self.stop_sinks()
        with self._alerts_guard:
            if self._alerts_lock is not None:
                self._alerts_lock.close()
                self._alerts_lock = None

    def health(self) -> Health:
        """The health of every component; see `headwater.connectors.health.health.health`."""
        return health(self._log, self._clock, self._views(), self)

    def dead(self) -> Dead:
        """Return access to the dead letters of sources, views, sinks and queues."""
        shelves = (
            ViewShelf(self._log, self._views),
            SinkShelf(self._log, self.sinks, self._clock),
            QueueShelf(self._log, self.queues),
            SourceShelf(self._log, self.sources.definitions),
        )
        return Dead(self._log, shelves)

    def rejected(self) -> Sequence[RejectedRows]:
        """Return the counts of rows that sources, views, sinks and queues left out so far."""
        return rejected_rows(self._log, self._views(), self)

    def captured_rows(self) -> int:
        """Return the number of records that sources ever added to their topics."""
        return captured_rows(self._log)

    def waiting_letters(self) -> dict[tuple[str, str], int]:
        """Return the number of open dead letters by kind and owner, without requests to external systems: for a sink, the
        log keeps the rows that its target rejected when it was last read. Views that are not part of the newest tick are
        omitted."""
        manifest = self._views().store.latest_whole()
        tick, deeds = 0 if manifest is None else manifest.tick, read_deeds(self._log)
        done = deeds if deeds.by_letter else None
        if self._letters is None or self._letters[0] != tick or self._letters[1] is not done:
            shelf, found = ViewShelf(self._log, self._views), dict[str, int]()
            for view in shelf.owners():
                with suppress(HeadwaterError):
                    found[view] = shelf.waiting(view, deeds)
            self._letters = tick, done, found
        waiting = {("view", view): count for view, count in self._letters[2].items()}
        waiting |= {("sink", sink): count_open(self._log, sink, deeds) for sink in self._log.entries(SINK)}
        queues, sources = QueueShelf(self._log, self.queues), SourceShelf(self._log, self.sources.definitions)
        waiting |= {("source", source): sources.waiting(source, deeds) for source in sources.owners()}
        return waiting | {("queue", queue): queues.waiting(queue, deeds) for queue in queues.owners()}

    # --- positions of sources --------------------------------------------------------------------------------------

    def captured(self, name: str, sequence: int, timeout_s: float) -> Receipt:
        """Wait until the log has everything of a source up to a sequence, and return a receipt for everything that the log
        has then."""
        self.sources.wait(name, sequence, timeout_s)
        # of all topics: the topics of an outbox are the user's own
        ends: Mapping[str, Mapping[int, int]] = self._log.ends(list(self._log.topics()))
        return Receipt({t: {p: (0, end) for p, end in parts.items() if end} for t, parts in ends.items()})

    def receipt(self, after: Receipt | str | int, timeout_s: float) -> Receipt:
        """Return the receipt of an append, or of everything in the only source up to a position."""
        if isinstance(after, Receipt):
            return after
        names = list(self.sources.definitions())
        if len(names) != 1:
            known = ", ".join(names)
            raise UsageError(
                f"after={after!r} is a position in a source, and there are {len(names)} sources",
                hint=f"ws.source(name).wait({after!r}) gives a receipt, for one of {known}"
                if names
                else "receipt = topic.append(rows)",
            )
        return self.captured(names[0], self.sources.position_of(after), timeout_s)

    def followed(self, sink: str, after: Receipt | str | int | None, timeout_s: float) -> int:
        """Wait until a sink has applied an append or source position, or the newest tick; return a tick that the sink has
        reached."""
        views = self._views()
        if after is not None:
            views.reach(self.receipt(after, timeout_s), timeout_s * 1_000)
        latest = views.store.latest()
        if latest is None:
            raise UsageError(
                f"sink {sink!r} has nothing to wait for: nothing has been run yet", hint="ws.run()"
            )
        self.sinks.wait(sink, latest.tick, timeout_s * 1_000)
        return latest.tick

    # --- showing ---------------------------------------------------------------------------------------------------

    def explain(self, name: str, kind: Literal["source", "sink"] | None = None) -> pa.Table | None:
        """EXPLAIN name: return the properties of a source or a sink; None if no kind was given and neither has that name."""
        from headwater.connectors.manage.explain_connectors import explained_sink, explained_source

        if kind == "source" or (kind is None and name in self._log.entries(SOURCE)):
            return explained_source(self.sources, self._log, self.sources.spelled(name))
        if kind == "sink" or name in self._log.entries(SINK):
            spelled = self.sinks.spelled(name)
            return explained_sink(self.sinks, spelled, self._looked_at([spelled])[spelled])
        return None

    def _looked_at(self, names: Sequence[str]) -> dict[str, SinkStatus]:
        """Return the statuses of sinks, from their targets and from the health of components."""
        asked = look_at(self.sinks, names)
        found = self.health()
        return {name: with_health(told, found.of("sink", name)) for name, told in asked.items()}

    def _show_sources(self) -> pa.Table:
        rows = []
        topics = self._log.topics().values()
        for name, made in self.sources.definitions().items():
            told, stopped = self.sources.told(name), ", ".join(self.sources.stopped_tables(name))
            rows.append(
                {
                    "source": name,
                    "kind": made.kind,
                    "topics": ", ".join(sorted(t.name for t in topics if t.captured_by == name)),
                    "state": told.state + (f"; stopped tables: {stopped}" if stopped else ""),
                    "position": told.position,
                    "options": ", ".join(f"{k} = {v}" for k, v in made.shown().items()),
                }
            )
        columns = ("source", "kind", "topics", "state", "position", "options")
        return pa.Table.from_pylist(rows, schema=pa.schema([(c, pa.string()) for c in columns]))

    def _show_sinks(self) -> pa.Table:
        rows = []
        declared = self.sinks.definitions()
        for name, told in self._looked_at(list(declared)).items():
            made = declared[name]
            rows.append(
                {
                    "sink": name,
                    "view": made.view,
                    "kind": made.kind,
                    "state": told.status.state,
                    "reason": told.status.reason,
                    "tick": told.status.tick,
                    "behind": told.lag.rows,
                    "withheld": told.status.withheld,
                    "dropped": told.dropped,
                    "options": ", ".join(f"{k} = {v}" for k, v in made.shown().items()),
                }
            )
        texts, numbers = pa.string(), pa.int64()
        schema = pa.schema(
            [
                ("sink", texts),
                ("view", texts),
                ("kind", texts),
                ("state", texts),
                ("reason", texts),
                ("tick", numbers),
                ("behind", numbers),
                ("withheld", numbers),
                ("dropped", numbers),
                ("options", texts),
            ]
        )
        return pa.Table.from_pylist(rows, schema=schema)
