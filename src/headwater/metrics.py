"""Prometheus metrics of a workspace: `ws.metrics()`, `headwater metrics`, and `GET /metrics`.

All metrics are computed on request from the log, the newest tick, and the status that the process running sources and
sinks publishes: every process returns the same values, connects to no external system, and starts no Spark. Metric
names state the quantity and its unit; `docs/metrics.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest

from headwater import __version__
from headwater.catalog.connectors import SINK, SOURCE, SourceDefinition
from headwater.connectors.health.health import STATES, Health, Kind
from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import TickNotKeptError
from headwater.engine.metrics.tick_totals import BOUNDS_S, totals_of
from headwater.log.lag import lag_report
from headwater.log.protocol import Log
from headwater.queues.queue_definition import QUEUE, STATE_TOPICS
from headwater.queues.queue_status import standing_of
from headwater.state.manifest import Manifest
from headwater.views.view_status import ViewStatus, account_of, standings

if TYPE_CHECKING:
    from headwater.connectors.supervisor import Supervisor
    from headwater.views.view_manager import Views

STATUSES = ("live", "backfilling", "stopped")
RECENT_US: Microseconds = 300_000_000
"""Period that the 'recent' metrics cover. Ticks are kept for this long."""
OUTCOMES = ("used", "diverted", "dropped", "failed")
LABELS: Mapping[str, str] = {
    "by": "where datagrams were lost: `kernel` or `source`",
    "cursor": "name of a cursor or consumer group",
    "kind": "kind of the component, or of the sink",
    "name": "name of the component",
    "outcome": "what happened to the rows, as the metric says",
    "owner": "name of the source, view, sink or queue",
    "phase": "phase of a tick",
    "queue": "name of a queue",
    "sink": "name of a sink",
    "source": "name of a source",
    "status": "state of the component, or status of the view",
    "topic": "name of a topic",
    "version": "version of Headwater",
    "view": "name of a view",
}
"""Meaning of each label."""


def exposition(families: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text format."""
    return generate_latest(_Registry(families)).decode()


@dataclass(frozen=True)
class _Registry:
    """The registry that `generate_latest` collects from."""

    families: Iterable[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return every metric family."""
        return self.families


class CollectedMetrics:
    """The metrics of a workspace at one moment. Every family is present, also without samples."""

    def __init__(
        self, log: Log, clock: Clock, views: Views, supervisor: Supervisor, free_bytes: int | None
    ) -> None:
        self._log = log
        self._clock = clock
        self._views = views
        self._supervisor = supervisor
        self._free_bytes = free_bytes
        self._now = clock.now_us()

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family once."""
        yield _gauge(
            "headwater_info",
            "Always 1; the label is the version of Headwater.",
            ("version",),
            {(__version__,): 1},
        )
        manifest = self._views.store.latest()
        yield from self._healths()
        yield from self._topics()
        yield from self._cursors()
        yield from self._ticks(manifest)
        yield from self._of_views(manifest)
        yield from self._sources()
        yield from self._sinks()
        yield from self._queues()
        waiting: Mapping[Any, float] = self._supervisor.open_letters()
        yield _gauge(
            "headwater_dead_letters",
            "Open dead letters of a source, view, sink or queue.",
            ("kind", "owner"),
            waiting,
        )
        left_out = {(one.kind, one.name, one.outcome): one.rows for one in self._supervisor.rejected()}
        yield _counter(
            "headwater_rejected_rows",
            "Rows that a source, view, sink or queue left out: rejected (only counted), diverted (kept as dead letters), "
            "late (in <view>.late) or dropped (not kept).",
            ("kind", "owner", "outcome"),
            left_out,
        )
        free = {} if self._free_bytes is None else {(): self._free_bytes}
        yield _gauge("headwater_disk_free_bytes", "Free space on the disk of the workspace.", (), free)

    def _seconds_since(self, moment: Microseconds) -> float:
        return max(0, self._now - moment) / 1e6

    @cached_property
    def _health(self) -> Health:
        return self._supervisor.health()

    def _healths(self) -> Iterator[Metric]:
        """Yield the health of every component, as `headwater status` shows it."""
        healthy = {(): int(self._health.healthy)}
        yield _gauge("headwater_healthy", "1 if no component is unhealthy, else 0.", (), healthy)
        status = {
            (one.kind, one.name, state): int(state == one.state)
            for one in self._health.components
            for state in STATES[one.kind]
        }
        yield _gauge(
            "headwater_component_status",
            "1 for the state that a component is in, 0 for its other states.",
            ("kind", "name", "status"),
            status,
        )

    def _is_up(self, kind: Kind, name: str) -> int:
        """Whether a source or sink runs. A waiting source does not; a sink that waits for its view, or is behind, does."""
        found = self._health.of(kind, name)
        up = ("capturing",) if kind == "source" else ("following", "waiting", "behind")
        return int(found is not None and found.state in up)

    # --- the log ---------------------------------------------------------------------------------------------------

    def _topics(self) -> Iterator[Metric]:
        appended, rows, size, delay = {}, {}, {}, {}
        for name in sorted(self._log.topics()):
            infos = self._log.partitions(name).values()
            appended[name,] = sum(i.end for i in infos)
            rows[name,] = sum(i.rows for i in infos)
            size[name,] = sum(i.size_bytes for i in infos)
            reached = [i.watermark for i in infos]
            known = [moment for moment in reached if moment is not None]
            if known and len(known) == len(reached):
                delay[name,] = self._seconds_since(min(known))
        of = ("topic",)
        yield _counter(
            "headwater_topic_appended_rows", "Rows appended to a topic since it was created.", of, appended
        )
        yield _gauge("headwater_topic_rows", "Rows that a topic holds now.", of, rows)
        yield _gauge("headwater_topic_bytes", "Bytes of a topic on disk now.", of, size)
        yield _gauge(
            "headwater_topic_watermark_delay_seconds",
            "How far the watermark of a topic is behind the clock.",
            of,
            delay,
        )

    def _cursors(self) -> Iterator[Metric]:
        rows, seconds, lost = {}, {}, {}
        for lag in lag_report(self._log, self._clock):
            if lag.topic.startswith(STATE_TOPICS):
                continue  # the cursor at which reading of a queue's own records begins, not one of a reader
            at = (lag.topic, lag.cursor)
            rows[at], seconds[at], lost[at] = lag.rows, lag.seconds, lag.missed
        of = ("topic", "cursor")
        yield _gauge("headwater_cursor_lag_rows", "Rows that a cursor has not read.", of, rows)
        yield _gauge(
            "headwater_cursor_lag_seconds", "Age of the first row that a cursor has not read.", of, seconds
        )
        yield _gauge(
            "headwater_cursor_missed_rows", "Rows that retention removed before a cursor read them.", of, lost
        )

    # --- ticks and views -------------------------------------------------------------------------------------------

    def _ticks(self, manifest: Manifest | None) -> Iterator[Metric]:
        running = {(): int(self._health.engine.state == "running")}
        yield _gauge(
            "headwater_engine_running",
            "1 while an engine runs on the workspace, in any process.",
            (),
            running,
        )
        tick = {} if manifest is None else {(): manifest.tick}
        yield _gauge("headwater_tick", "Number of the newest tick.", (), tick)
        age = {} if manifest is None else {(): self._seconds_since(manifest.committed_at)}
        yield _gauge("headwater_tick_age_seconds", "Time since the newest tick was committed.", (), age)
        kept = {} if manifest is None else {(): len(self._views.store.ticks())}
        yield _gauge(
            "headwater_ticks_kept", "Number of ticks that can be read without being recomputed.", (), kept
        )
        totals = totals_of(manifest)
        durations = HistogramMetricFamily("headwater_tick_seconds", "Duration of ticks.")
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        counts = list(accumulate(totals.counts))
        durations.add_metric([], list(zip(bounds, counts, strict=True)), totals.seconds)
        yield durations
        phases = {(name,): seconds for name, seconds in totals.phases.items()}
        yield _counter(
            "headwater_tick_phase_seconds",
            "Time that ticks spent in each phase: plan, read, compute, write, merge, commit, tidy.",
            ("phase",),
            phases,
        )
        yield _counter(
            "headwater_tick_rows",
            "Rows of the log read by ticks, each once in a tick however many views read it.",
            (),
            {(): totals.rows},
        )
        held = () if manifest is None else manifest.arrangements.values()
        size = {} if manifest is None else {(): sum(ref.length for refs in held for ref in refs)}
        yield _gauge("headwater_state_bytes", "Bytes of state that the newest tick refers to.", (), size)

    def _of_views(self, manifest: Manifest | None) -> Iterator[Metric]:
        found = standings(self._log, manifest)
        of = ("view",)
        status = {(v.view, s): int(v.status == s) for v in found for s in STATUSES}
        yield _gauge(
            "headwater_view_status",
            "1 for the status that a view has (live, backfilling or stopped), 0 for the others.",
            ("view", "status"),
            status,
        )
        behind = {(v.view,): v.behind_rows for v in found}
        yield _gauge("headwater_view_lag_rows", "Rows of the log that a view has not read.", of, behind)
        ended = {(v.view, outcome): v.ledger[outcome] for v in found for outcome in OUTCOMES}
        yield _counter(
            "headwater_view_input_rows",
            "Rows that a view has read, by outcome: used, diverted, dropped or failed.",
            ("view", "outcome"),
            ended,
        )
        delay = {(v.view,): self._delay(v) for v in found if v.watermark is not None}
        yield _gauge(
            "headwater_view_watermark_delay_seconds",
            "How far the watermark of a view is behind the clock, for views that depend on one.",
            of,
            delay,
        )
        share = {(v.view,): v.ledger["dropped"] / v.ledger["read"] for v in found if v.ledger["read"]}
        yield _gauge(
            "headwater_view_dropped_share",
            "Share of the rows read by a view that it dropped because they were late.",
            of,
            share,
        )
        recent = {(v.view,): self._recent_share(v, manifest, "dropped") for v in found if v.ledger["read"]}
        yield _gauge(
            "headwater_view_recent_dropped_share",
            "Share of the rows read by a view in the last five minutes that it dropped because they were late.",
            of,
            recent,
        )
        late = {(v.view,): self._recent_share(v, manifest, "diverted") for v in found if v.ledger["read"]}
        yield _gauge(
            "headwater_view_recent_late_share",
            "Share of the rows read by a view in the last five minutes that were late and went to <view>.late.",
            of,
            late,
        )
        size = {} if manifest is None else {(v.view,): _size(manifest, v.view) for v in found}
        yield _gauge("headwater_view_state_bytes", "Bytes of state of a view.", of, size)

    def _recent_share(self, view: ViewStatus, manifest: Manifest | None, outcome: str) -> float:
        """Return the share of rows with an outcome, among the rows that a view has read within `RECENT_US`."""
        now = manifest.views.get(view.view) if manifest is not None else None
        then = self._before.views.get(view.view) if self._before is not None else None
        is_same = now is not None and then is not None and now.incarnation == then.incarnation
        was = account_of(then if is_same else None)
        read, part = (view.ledger[name] - was[name] for name in ("read", outcome))
        return part / read if read > 0 else 0.0

    @cached_property
    def _before(self) -> Manifest | None:
        """The newest tick of `RECENT_US` ago, or the first kept tick after it."""
        store = self._views.store
        tick = store.tick_at(self._now - RECENT_US)
        if tick is None:
            return None
        kept = [each for each in store.ticks() if each >= tick]
        with suppress(TickNotKeptError):
            return store.manifest(kept[0]) if kept else None
        return None

    def _delay(self, view: ViewStatus) -> float:
        assert view.watermark is not None
        return self._seconds_since(int(view.watermark.timestamp() * 1e6))

    # --- external systems ------------------------------------------------------------------------------------------

    def _sources(self) -> Iterator[Metric]:
        known = self._supervisor.sources.definitions() if self._log.entries(SOURCE) else {}
        facts: Mapping[str, Mapping[str, Any]] = self._supervisor.sources.facts() if known else {}
        of = ("source",)

        def each(what: str) -> dict[tuple[str, ...], float]:
            return {(s,): float(f[what]) for s, f in facts.items() if f.get(what) is not None}

        up = {(s,): self._is_up("source", s) for s in known}
        yield _gauge("headwater_source_up", "1 while a source is captured.", of, up)
        yield _counter(
            "headwater_source_rows", "Rows that a source has appended since it was started.", of, each("rows")
        )
        yield _counter(
            "headwater_source_commits", "Commits of a source since it was started.", of, each("commits")
        )
        age = {
            (s,): self._seconds_since(f["committed_at"])
            for s, f in facts.items()
            if f.get("committed_at") is not None
        }
        yield _gauge(
            "headwater_source_last_commit_age_seconds", "Time since the last commit of a source.", of, age
        )
        retained, behind = each("retained_bytes"), each("behind_bytes")
        yield _gauge(
            "headwater_source_retained_wal_bytes",
            "Bytes of WAL that the Postgres server retains for the replication slot of a source.",
            of,
            retained,
        )
        yield _gauge(
            "headwater_source_unconfirmed_wal_bytes", "Bytes of WAL that are not in the log yet.", of, behind
        )
        over = each("over_budget")
        yield _gauge(
            "headwater_source_over_wal_budget",
            "1 if more WAL is retained for a source than max_wal.",
            of,
            over,
        )
        yield from self._sent_to(known, facts)
        yield _gauge(
            "headwater_source_recent_rejected",
            "Deliveries, lines and datagrams that a source rejected or lost in the last five minutes.",
            of,
            each("recent_rejected"),
        )
        stopped = {(s,): len(f["stopped_tables"]) for s, f in facts.items()}
        yield _gauge(
            "headwater_source_stopped_tables",
            "Number of tables of a source that are no longer captured.",
            of,
            stopped,
        )

    def _sent_to(
        self, known: Mapping[str, SourceDefinition], facts: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[Metric]:
        """Yield metrics of sources that receive pushed data: deliveries, packets and lines received, lost or rejected."""

        def each(kind: str) -> dict[str, Mapping[str, int]]:
            return {s: f["counts"] for s, f in facts.items() if s in known and known[s].kind == kind}

        delivered = {(s, outcome): n for s, c in each("webhook").items() for outcome, n in c.items()}
        yield _counter(
            "headwater_source_deliveries",
            "Deliveries to a webhook source since the server was started, by outcome: taken, repeated, unsigned, stale, "
            "malformed, too-large or failed.",
            ("source", "outcome"),
            delivered,
        )
        stats = each("statsd")
        packets = {(s,): c["packets"] for s, c in stats.items() if "packets" in c}
        yield _counter(
            "headwater_source_packets", "Datagrams that a StatsD source has received.", ("source",), packets
        )
        lines = {
            (s, outcome): c[what]
            for s, c in stats.items()
            for what, outcome in (("lines", "taken"), ("malformed", "malformed"))
            if what in c
        }
        yield _counter(
            "headwater_source_lines",
            "Lines that a StatsD source has received, by outcome: taken or malformed.",
            ("source", "outcome"),
            lines,
        )
        dropped = {
            (s, by): c[f"dropped_{what}"]
            for s, c in stats.items()
            for what, by in (("by_kernel", "kernel"), ("here", "source"))
            if f"dropped_{what}" in c
        }
        yield _counter(
            "headwater_source_dropped_packets",
            "Datagrams that a StatsD source lost for lack of buffer space, in the kernel or in the source.",
            ("source", "by"),
            dropped,
        )

    def _sinks(self) -> Iterator[Metric]:
        known = self._supervisor.sinks.definitions() if self._log.entries(SINK) else {}
        facts = self._supervisor.sinks.facts() if known else {}
        of = ("sink", "view", "kind")
        named = {name: (name, made.view, made.kind) for name, made in known.items()}

        def each(part: str, what: str) -> dict[tuple[str, ...], float]:
            reported = {name: facts[name][part][what] for name in named if name in facts}
            return {named[name]: float(value) for name, value in reported.items() if value is not None}

        up = {labels: self._is_up("sink", name) for name, labels in named.items()}
        yield _gauge(
            "headwater_sink_up",
            "1 while a sink runs; 0 if it is stopped, is retrying, or no process runs it.",
            of,
            up,
        )
        for what in ("rows", "ticks", "seconds"):
            lag = each("lag", what)
            yield _gauge(f"headwater_sink_lag_{what}", f"Lag of a sink behind its view, in {what}.", of, lag)
        rejected = each("status", "withheld")
        yield _gauge("headwater_sink_refused_rows", "Rows that the target of a sink rejects.", of, rejected)
        applied = each("status", "applied_rows")
        yield _counter(
            "headwater_sink_applied_rows", "Rows that a sink has written since it was started.", of, applied
        )
        tries = each("status", "attempts")
        yield _gauge(
            "headwater_sink_failed_attempts",
            "Failed attempts of a sink since the last successful one.",
            of,
            tries,
        )
        circuits = {name: facts[name]["status"].get("circuit") for name in named if name in facts}
        left = {named[name]: int(state != "closed") for name, state in circuits.items() if state is not None}
        yield _gauge(
            "headwater_sink_circuit_open",
            "1 while the circuit of a webhook sink is open or half-open after failures in a row.",
            of,
            left,
        )

    def _queues(self) -> Iterator[Metric]:
        ledgers = self._supervisor.queues()
        found = [
            standing_of(self._log, self._clock, ledgers.of(name)) for name in sorted(self._log.entries(QUEUE))
        ]
        of = ("queue", "topic")

        def each(what: str) -> dict[tuple[str, ...], float]:
            reported = {(q.queue, q.topic): getattr(q, what) for q in found}
            return {at: float(value) for at, value in reported.items() if value is not None}

        for what, said in (
            ("waiting", "Messages that can be received now."),
            ("leased", "Messages that are leased to workers."),
            ("delayed", "Messages that are delayed to a later time."),
            ("dead", "Messages that are dead letters."),
        ):
            yield _gauge(f"headwater_queue_{what}_messages", said, of, each(what))
        yield _gauge(
            "headwater_queue_oldest_seconds",
            "Age of the oldest message that is not acknowledged.",
            of,
            each("oldest_seconds"),
        )
        yield _gauge("headwater_queue_workers", "Number of workers that hold messages.", of, each("workers"))
        for what, said in (
            ("delivered", "Deliveries of messages."),
            ("acknowledged", "Messages acknowledged."),
            ("returned", "Messages that workers gave back."),
            ("lapsed", "Messages whose lease expired."),
        ):
            yield _counter(f"headwater_queue_{what}_messages", said, of, each(what))


def _size(manifest: Manifest, view: str) -> int:
    state = manifest.views.get(view)
    if state is None:
        return 0
    return sum(ref.length for refs in manifest.kept_for(state).values() for ref in refs)


def _gauge(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, help, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family


def _counter(
    name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> CounterMetricFamily:
    family = CounterMetricFamily(name, help, labels=labels)
    for each, value in values.items():
        family.add_metric(each, value)
    return family
