"""The context that the routes of one server share: the workspace, worker threads, streams, and shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.requests import Request

from headwater.core.errors import LogTimeoutError, UsageError
from headwater.core.positions import Receipt
from headwater.sql.duckdb.query_processes import QueryProcesses
from headwater.web.commit_waiters import POLL_S, Watch
from headwater.web.event_streams import Streams
from headwater.web.idempotency_keys import (
    DELIVERIES,
    DELIVERIES_RETENTION,
    RETENTION,
    SCHEMA,
    TOPIC,
    IdempotencyKeys,
)
from headwater.web.ingest import Ingest, Strangers
from headwater.web.large_responses import ResponseSender
from headwater.web.problems import Problem, retry_after
from headwater.web.server_settings import ServerSettings
from headwater.web.tokens import Guests
from headwater.web.worker_threads import WorkerPool, query_too_slow

if TYPE_CHECKING:
    from headwater.catalog.definitions import TopicDefinition
    from headwater.connectors.supervisor import Supervisor
    from headwater.log.protocol import Log
    from headwater.views.view_manager import Views
    from headwater.workspace import Workspace

P = ParamSpec("P")
T = TypeVar("T")

TEND_EVERY_S = 1.0
"""Interval at which tokens are read again, in seconds: a revoked one stays valid for at most this long."""

QUERY_GRACE_S = 2.0
"""Seconds after its deadline that a query is given to stop, or its process to be killed, before its client gets an
error anyway."""

SOURCE_WAIT_S = 0.2
"""Longest time that one wait for a source occupies a thread, in seconds."""


class ServedWorkspace:
    """A workspace that is being served. Created, used and closed within one event loop."""

    def __init__(self, workspace: Workspace, settings: ServerSettings, *, with_engine: bool = False) -> None:
        """`with_engine`: the engine, and with it the sources, run in this process."""
        self.workspace = workspace
        self.settings = settings
        self.log: Log = workspace.log
        self.views: Views = workspace._views
        self.supervisor: Supervisor = workspace._supervisor
        self.clock = workspace._clock
        self.guests = Guests(self.log, insecure=settings.insecure)
        self.streams = Streams(settings.streams_max, settings.retry_after_s, self.guests.may_stay)
        self.watch = Watch(self.log, self.views)
        self._writers = ThreadPoolExecutor(settings.write_threads, "headwater-web-write")
        self._large_writers = ThreadPoolExecutor(settings.write_threads, "headwater-web-write-large")
        self.processes = QueryProcesses(settings.query_processes, settings.query_memory_bytes)
        self.answers = ResponseSender(settings)
        bounds = settings.query_s, settings.retry_after_s
        reads, queries = settings.reads_waiting_max, settings.queries_waiting_max
        self._readings = WorkerPool("read", settings.read_threads, reads, *bounds)
        self._scans = WorkerPool("scan", settings.scan_threads, queries, *bounds)
        self._queries = WorkerPool("query", settings.query_threads, queries, *bounds)
        self._heavy = WorkerPool("process", settings.query_processes, queries, *bounds)
        self._stream_steps = WorkerPool(
            "stream", settings.stream_threads, 2 * settings.streams_max, *bounds, spare=1
        )
        self._with_engine = with_engine
        keys = IdempotencyKeys(self.log, self.clock, partial(self._keys_topic, TOPIC, RETENTION))
        deliveries = IdempotencyKeys(
            self.log,
            self.clock,
            partial(self._keys_topic, DELIVERIES, DELIVERIES_RETENTION),
            DELIVERIES_RETENTION,
        )
        self.ingest = Ingest(self.log, keys, self._writers, settings, deliveries, self._large_writers)
        self.strangers = Strangers(self.ingest, settings)
        self._tending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read the tokens, and start the background work."""
        await self.run(self.guests.refresh)
        await self.run(self.supervisor.sources.hooks.serve)
        self._tending = asyncio.create_task(self._tend())

    def stop(self) -> None:
        """End the streams; other requests continue. Called from the event loop's thread."""
        self.streams.stopping.set()
        self.watch.close()

    async def close(self) -> None:
        """Finish the accepted posts, and stop all threads and processes."""
        self.stop()
        if self._tending is not None:
            self._tending.cancel()
        await self.ingest.drain()
        await asyncio.to_thread(self._writers.shutdown)
        await asyncio.to_thread(self._large_writers.shutdown)
        self.processes.close()  # first: threads wait for the processes
        for work in (self._readings, self._scans, self._queries, self._heavy, self._stream_steps):
            await work.close()
        if not self._with_engine:
            await asyncio.to_thread(self.supervisor.alerts.stop)
        # last: a background refresh in progress would start the hooks again
        await asyncio.to_thread(self.supervisor.sources.hooks.rest)

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a short blocking function in a thread; Problem 429 if too many requests wait for one, 504 if it takes too
        long."""
        return await self._readings.run(lambda: act(*args, **kwargs))

    async def scan(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a function that reads all rows of a view or an index, in a thread; Problem 429 or 504 as in `run`."""
        return await self._scans.run(lambda: act(*args, **kwargs))

    async def ask(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that is likely to be short, and that stops itself at its deadline, in a thread; Problem 429 or 504."""
        return await self._queries.run(
            lambda: act(*args, **kwargs), self.settings.query_s + QUERY_GRACE_S, query_too_slow
        )

    async def run_query_process(
        self, until_s: float, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run a function that waits for a query process, in a thread, until a time of the monotonic clock; Problem 429
        or 504."""
        left = max(0.0, until_s - time.monotonic())
        return await self._heavy.run(lambda: act(*args, **kwargs), left + QUERY_GRACE_S, query_too_slow)

    async def stream_step(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the next step of a stream in a thread; Problem 429 or 504 as in `run`."""
        return await self._stream_steps.run(lambda: act(*args, **kwargs))

    async def reach(self, after: Receipt | str | None, timeout_s: float) -> None:
        """Wait until the views include an append, or a position of a source; Problem 503 if no engine runs."""
        if after is None:
            return
        receipt = after if isinstance(after, Receipt) else await self._captured(after, timeout_s)
        known = await self.run(self.log.topics)
        for topic in receipt.positions:
            if topic not in known:
                raise UsageError(f"after names topic {topic!r}, which does not exist", topic=topic)
        reached = await self.run(self.views.reached, receipt)
        deadline = asyncio.get_running_loop().time() + timeout_s
        bell = self.watch.ticking()
        while True:
            rung = bell.rung
            latest = await self.run(self.views.store.latest)
            if latest is not None and reached(latest):
                return
            if await self.run(self.views.engine) is None:
                raise Problem(
                    503,
                    "no-engine",
                    "the views have not read that append, and no engine runs on this workspace",
                    hint="`headwater run` keeps the views up to date",
                    headers=retry_after(self.settings.retry_after_s),
                )
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self.streams.stopping.is_set():
                raise LogTimeoutError(
                    f"the views did not read that append within {timeout_s:g} s",
                    hint="timeout= waits longer; `headwater status` shows how far they are behind",
                )
            await bell.wait(min(left, POLL_S), rung)

    async def _captured(self, after: str, timeout_s: float) -> Receipt:
        """Return a receipt of all records of the only source up to a position. If the engine is in another process,
        waits for commits."""
        sources = self.supervisor.sources
        names = list(await self.run(sources.definitions))
        if len(names) != 1:
            raise UsageError(
                f"after={after!r} is neither a receipt nor a position of the only source: there are {len(names)} sources",
                hint="pass the receipt of an append, such as clicks:0@17-20",
            )
        sequence = sources.position_of(after)
        if self._with_engine:  # this process can request the position of an idle server
            return await self._scans.run(
                lambda: self.supervisor.wait_captured(names[0], sequence, timeout_s),
                timeout_s + self.settings.query_s,
            )
        deadline = asyncio.get_running_loop().time() + timeout_s
        while await self.run(sources.sequence, names[0]) < sequence:
            seen = self.log.sequence()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise LogTimeoutError(
                    f"source {names[0]!r} did not reach {after} within {timeout_s:g} s",
                    hint="the source is read while `headwater run` runs; `headwater status` shows its position",
                )
            await self.run(self.log.wait_commit, seen, min(left, SOURCE_WAIT_S) * 1_000)
        ends = await self.run(lambda: self.log.ends(list(self.log.topics())))
        return Receipt({t: {p: (0, end) for p, end in parts.items() if end} for t, parts in ends.items()})

    async def _tend(self) -> None:
        steps = [self.guests.refresh, self.supervisor.sources.hooks.serve]
        if not self._with_engine:
            # Without an engine the server checks the alerts: one of them may be that no engine runs.
            steps.append(self.supervisor.alerts.start)
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            for step in steps:
                with contextlib.suppress(Exception):  # the next attempt may succeed
                    await self.run(step)

    def _keys_topic(self, name: str, retention: str) -> TopicDefinition:
        return self.workspace.topic(name, SCHEMA, retention=retention).definition


def served(request: Request) -> ServedWorkspace:
    """Return the context of a request's server."""
    found: ServedWorkspace = request.app.state.served
    return found
