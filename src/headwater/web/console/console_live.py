"""Live metrics of the console: sampled once a second for all clients together, and not at all without clients."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.connectors import SINK, SOURCE
from headwater.core.errors import HeadwaterError, TopicNotFoundError
from headwater.views.view_status import standings, waiting_rows
from headwater.web.commit_waiters import POLL_S, Bell
from headwater.web.console import console_data as data
from headwater.web.console.console_health import (
    alerts_document,
    health_document,
    rejected_document,
    with_health,
)
from headwater.web.console.console_ticks import TickHistory
from headwater.web.event_streams import KEEP_ALIVE, RETRY_MS, end, event, failed
from headwater.web.problems import problem_of

if TYPE_CHECKING:
    from headwater.web.server_context import ServedWorkspace

EVERY_S = 1.0
RATE_S = 5.0
"""Period over which rates are computed, in seconds."""
TICKS_AT_ONCE = 200
TAIL_ROWS = 60
"""Maximum number of records in one event of a tail. Of more new records the newest are shown, and all are counted."""
TAIL_EVERY_S = 0.3


class Sampler:
    """Takes samples of a workspace's metrics; rates are computed from recent samples."""

    def __init__(self, here: ServedWorkspace, ticks: TickHistory) -> None:
        self._here = here
        self._ticks = ticks
        self._samples: deque[tuple[float, dict[str, float]]] = deque()
        self._changed: dict[str, float] = {}
        self._tick = 0

    def take(self) -> dict[str, Any]:
        """Return the current metrics."""
        here = self._here
        log, now = here.log, here.clock.now_us()
        manifest = here.views.store.latest()
        counts: dict[str, float] = {}
        metrics: dict[str, dict[str, Any]] = {}
        waiting = waiting_rows(log, manifest)
        for name in log.topics():
            if data.is_internal(name):
                continue
            try:
                infos = log.partitions(name).values()
            except TopicNotFoundError:  # dropped meanwhile
                continue
            marks = [info.watermark for info in infos]
            reached = [mark for mark in marks if mark is not None]
            mark = min(reached) if reached and len(reached) == len(marks) else None
            counts[f"topic:{name}"] = sum(info.end for info in infos)
            metrics[f"topic:{name}"] = {
                "rows": sum(info.rows for info in infos),
                "bytes": sum(info.size_bytes for info in infos),
                "lag_rows": waiting.get(name),
                "watermark": data.milliseconds(mark),
                "delay_s": None if mark is None else (now - mark) / 1e6,
            }
        new = self._count_changes()
        for standing in standings(log, manifest):
            of = data.view_metrics(standing, manifest)
            mark_ms = of["watermark"]
            of["delay_s"] = None if mark_ms is None else now / 1e6 - mark_ms / 1e3
            metrics[f"view:{standing.view}"] = of
            counts[f"view:{standing.view}"] = self._changed.get(standing.view, 0.0)
        self._connectors(metrics, counts)
        health = here.supervisor.health()
        with_health(metrics, health)
        self._rates(metrics, counts)
        last = self._ticks.get(manifest.tick) if manifest is not None else None
        engine = here.views.engine()
        return {
            "at": now // 1_000,
            "shape": data.shape(here),
            "engine": None if engine is None else {"pid": engine.pid, "since": engine.started_at // 1_000},
            "health": health_document(health),
            "alerts": alerts_document(here),
            "rejected": rejected_document(here),
            "tick": None
            if last is None
            else {
                "tick": last.tick,
                "at": last.committed_at // 1_000,
                "rows": last.rows,
                "seconds": 0.0 if last.totals.last is None else last.totals.last.seconds,
            },
            "ticks_per_s": self._rate("ticks"),
            "rows_per_s": self._rate("rows"),
            "ticks": new,
            "figures": metrics,
        }

    def _count_changes(self) -> list[dict[str, Any]]:
        """Add up the changes of the ticks since the last sample. Returns these ticks, and the one before, whose cost is
        complete only now."""
        kept = self._here.views.store.ticks()
        if not kept or kept[-1] == self._tick:
            return []
        new = [tick for tick in kept if tick > self._tick][-TICKS_AT_ONCE:] if self._tick else kept[-1:]
        for found in map(self._ticks.get, new):
            if found is not None and self._tick:
                for view, rows in found.changed.items():
                    self._changed[view] = self._changed.get(view, 0.0) + rows
        self._tick = kept[-1]
        return self._ticks.documents(len(new) + 1)

    def _connectors(self, metrics: dict[str, dict[str, Any]], counts: dict[str, float]) -> None:
        log, supervisor = self._here.log, self._here.supervisor
        if log.entries(SOURCE):
            known = supervisor.sources.facts()
            for name in supervisor.sources.definitions():
                facts = known.get(name)
                state = str(facts["state"]) if facts is not None else supervisor.sources.status(name).state
                metrics[f"source:{name}"] = data.source_metrics(facts, state)
                if facts is not None:
                    counts[f"source:{name}"] = float(facts.get("rows") or 0)
        if log.entries(SINK):
            kept = supervisor.sinks.facts()
            for name in supervisor.sinks.definitions():
                found = data.sink_metrics(kept.get(name))
                metrics[f"sink:{name}"] = found
                if found["applied_rows"] is not None:
                    counts[f"sink:{name}"] = float(found["applied_rows"])

    def _rates(self, metrics: dict[str, dict[str, Any]], counts: dict[str, float]) -> None:
        counts["rows"] = sum(count for name, count in counts.items() if name.startswith("topic:"))
        counts["ticks"] = float(self._tick)
        now = self._here.clock.steady_ms() / 1_000
        self._samples.append((now, counts))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_S:
            self._samples.popleft()
        for name, metric in metrics.items():
            metric["rate"] = self._rate(name)

    def _rate(self, name: str) -> float | None:
        """Return the rate per second; None if there is no earlier sample, or the count restarted."""
        now, counts = self._samples[-1]
        for then, before in self._samples:
            if name in before and name in counts and then < now:
                rate = (counts[name] - before[name]) / (now - then)
                return round(rate, 3) if rate >= 0 else None
        return None


class Pulse:
    """Samples the metrics once per second while clients are connected, and sends each sample to all clients."""

    def __init__(self, here: ServedWorkspace) -> None:
        self.ticks = TickHistory(here.views.store)
        self.samples = 0
        self._here = here
        self._sampler = Sampler(here, self.ticks)
        self._bell = Bell(asyncio.get_running_loop())
        self._subscribers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest = b""

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """Yield server-sent events, each a sample; the first at once."""
        self._subscribers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            if self._task is None or self._task.done():
                self._latest = b""
                self._task = asyncio.create_task(self._sample())
            seen = b""
            while not self._here.streams.stopping.is_set():
                rung = self._bell.rung
                if self._latest and self._latest is not seen:
                    seen = self._latest
                    yield seen
                else:
                    await self._bell.wait(POLL_S, rung)
            yield end("the server stops")
        finally:
            self._subscribers -= 1

    async def _sample(self) -> None:
        while self._subscribers and not self._here.streams.stopping.is_set():
            try:
                self._latest = event("figures", await self._here.run(self._sample_json))
            except Exception as error:  # noqa: BLE001 - clients get the error as an event, and the next sample may succeed
                self._latest = event("trouble", problem_of(error).document())
            self.samples += 1
            self._bell.ring()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._here.streams.stopping.wait(), EVERY_S)

    def _sample_json(self) -> str:
        return orjson.dumps(self._sampler.take()).decode()


class Tail:
    """Reads the newest records of a topic, then new ones. Its methods block."""

    def __init__(self, here: ServedWorkspace, name: str) -> None:
        self._log = here.log
        self.topic = here.log.topic(name)
        hidden = ("_offset", "_appended_at", "_watermark")
        self._columns = [*hidden, *(("_op",) if self.topic.keyed else ()), *self.topic.schema.names]
        infos = self._log.partitions(self.topic.name)
        share = -(-TAIL_ROWS // len(infos))
        self._positions = {p: max(info.first, info.end - share) for p, info in infos.items()}

    def next(self) -> str | None:
        """Return the records since the last call, the newest first; None if there are none."""
        infos = self._log.partitions(self.topic.name)
        received = sum(info.end - self._positions[p] for p, info in infos.items())
        if not received:
            return None
        share = -(-TAIL_ROWS // len(infos))
        starts = {p: max(self._positions[p], info.end - share) for p, info in infos.items()}
        rows = data.newest_first(data.read(self._log, self.topic, starts, infos, self._columns))
        self._positions = {p: info.end for p, info in infos.items()}
        late = [0] * rows.num_rows
        if self.topic.time is not None:
            behind = pc.less(rows[self.topic.time].cast(pa.int64()), rows["_watermark"].cast(pa.int64()))
            late = [int(value) for value in pc.fill_null(behind, False).to_pylist()]
        shown = rows.drop_columns(["_watermark"])
        document: Mapping[str, Any] = {
            "columns": data.columns_of(shown.schema, self.topic.key),
            "received": received,
            "late": late,
            "rows": data.rows_of(shown),
        }
        return orjson.dumps(document).decode()


async def tail_events(here: ServedWorkspace, tail: Tail) -> AsyncGenerator[bytes, None]:
    """Yield new records as events, a few times a second at most."""
    yield f"retry: {RETRY_MS}\n\n".encode()
    idle_s = 0.0
    with here.watch.topic(tail.topic.name) as bell:
        while not here.streams.stopping.is_set():
            rung = bell.rung
            try:
                found = await here.stream_step(tail.next)
            except HeadwaterError as error:
                yield failed(error)
                return
            if found is not None:
                idle_s = 0.0
                yield event("records", found)
                await asyncio.sleep(TAIL_EVERY_S)
                continue
            await bell.wait(POLL_S, rung)
            idle_s += POLL_S
            if idle_s >= here.settings.keep_alive_s:
                idle_s = 0.0
                yield KEEP_ALIVE
    yield end("the server stops")
