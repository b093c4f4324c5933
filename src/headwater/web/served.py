"""What the routes of one server share: the workspace, the threads, what waits, and whether it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from starlette.requests import Request

from headwater.errors import LogTimeoutError, UsageError
from headwater.positions import Receipt
from headwater.web.ingest import Ingest, Strangers
from headwater.web.keys import DELIVERIES, DELIVERIES_RETENTION, RETENTION, SCHEMA, TOPIC, Keys
from headwater.web.problems import Problem
from headwater.web.settings import ServerSettings
from headwater.web.streams import Streams
from headwater.web.tokens import Guests
from headwater.web.watching import LOOK_S, Watch

if TYPE_CHECKING:
    from headwater.catalog import TopicDefinition
    from headwater.connected.outside import Outside
    from headwater.log.protocol import Log
    from headwater.runtime.views import Views
    from headwater.workspace import Workspace

P = ParamSpec("P")
T = TypeVar("T")

TEND_EVERY_S = 1.0
"""How often the tokens are looked at again: one that is revoked works for so long at most."""

SOURCE_WAIT_S = 0.2
"""How long a wait for a source holds a thread in one piece."""


class Work:
    """Threads for what blocks, and a bound on what waits for one."""

    def __init__(self, threads: ThreadPoolExecutor, waiting_max: int, retry_after_s: int) -> None:
        self._threads = threads
        self._most = waiting_max
        self._retry_after_s = retry_after_s
        self._count = 0

    async def run(self, act: Callable[[], T]) -> T:
        """Do it in a thread; Problem 429 if too much waits."""
        if self._count >= self._most:
            raise Problem(
                429,
                "too-busy",
                "more is being read than there are threads for",
                hint="come again a little later",
                retry_after_s=self._retry_after_s,
            )
        self._count += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, act)
        finally:
            self._count -= 1

    async def close(self) -> None:
        """Forget what waits, and let the rest end."""
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)


class Served:
    """A workspace as it is served. Made, used and closed within one event loop."""

    def __init__(
        self, workspace: Workspace, settings: ServerSettings, *, beside_engine: bool = False
    ) -> None:
        """`beside_engine`: the engine, and with it the sources, run in this process."""
        self.workspace = workspace
        self.settings = settings
        self.log: Log = workspace.log
        self.views: Views = workspace._views
        self.outside: Outside = workspace._outside
        self.clock = workspace._clock
        self.guests = Guests(self.log)
        self.streams = Streams(settings.streams_max, settings.retry_after_s)
        self.watch = Watch(self.log, self.views)
        self._writers = ThreadPoolExecutor(settings.write_threads, "headwater-web-write")
        self._readings = Work(
            ThreadPoolExecutor(settings.read_threads, "headwater-web-read"),
            settings.reads_waiting_max,
            settings.retry_after_s,
        )
        self._queries = Work(
            ThreadPoolExecutor(settings.query_threads, "headwater-web-query"),
            settings.queries_waiting_max,
            settings.retry_after_s,
        )
        self._beside_engine = beside_engine
        keys = Keys(self.log, self.clock, partial(self._keys_topic, TOPIC, RETENTION))
        deliveries = Keys(
            self.log,
            self.clock,
            partial(self._keys_topic, DELIVERIES, DELIVERIES_RETENTION),
            DELIVERIES_RETENTION,
        )
        self.ingest = Ingest(self.log, keys, self._writers, settings, deliveries)
        self.strangers = Strangers(self.ingest, settings)
        self._tending: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Begin."""
        await self.run(self.guests.refresh)
        await self.run(self.outside.sources.hooks.serve)
        self._tending = asyncio.create_task(self._tend())

    def stop(self) -> None:
        """Tell the streams that the server stops; requests go on. From the loop's thread."""
        self.streams.stopping.set()
        self.watch.close()

    async def close(self) -> None:
        """Finish what was begun."""
        self.stop()
        if self._tending is not None:
            self._tending.cancel()
        await self.ingest.drain()
        await asyncio.to_thread(self._writers.shutdown)
        await self._readings.close()
        await self._queries.close()
        await asyncio.to_thread(self.outside.sources.hooks.rest)  # last: a look under way would begin it anew

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something that blocks for a moment, in a thread; Problem 429 if too much waits for one."""
        return await self._readings.run(lambda: act(*args, **kwargs))

    async def ask(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for what may take long."""
        return await self._queries.run(lambda: act(*args, **kwargs))

    async def reach(self, after: Receipt | str | None, timeout_s: float) -> None:
        """Wait until the views have seen an append, or a position of a source; Problem 503 if no engine runs."""
        if after is None:
            return
        receipt = after if isinstance(after, Receipt) else await self._captured(after, timeout_s)
        known = await self.run(self.log.topics)
        for topic in receipt.positions:
            if topic not in known:
                raise UsageError(f"after names topic {topic!r}, which is not there", topic=topic)
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
                    "the views have not seen that append, and no engine runs on this workspace that would make them",
                    hint="`headwater run` keeps the views up to date",
                    retry_after_s=self.settings.retry_after_s,
                )
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or self.streams.stopping.is_set():
                raise LogTimeoutError(
                    f"the views did not see that append within {timeout_s:g} s",
                    hint="timeout= waits longer; `headwater status` says how far they are behind",
                )
            await bell.wait(min(left, LOOK_S), rung)

    async def _captured(self, after: str, timeout_s: float) -> Receipt:
        """Everything of the one source up to a position of its own. Beside an engine of another process the log is watched."""
        sources = self.outside.sources
        names = list(await self.run(sources.definitions))
        if len(names) != 1:
            raise UsageError(
                f"after={after!r} is neither a receipt nor a position of the one source: there are {len(names)} sources",
                hint="pass the receipt that a post was answered with, such as clicks:0@17-20",
            )
        sequence = sources.position_of(after)
        if self._beside_engine:  # which has an idle server say where it stands
            return await self.run(self.outside.captured, names[0], sequence, timeout_s)
        deadline = asyncio.get_running_loop().time() + timeout_s
        while await self.run(sources.sequence, names[0]) < sequence:
            seen = self.log.sequence()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise LogTimeoutError(
                    f"source {names[0]!r} did not reach {after} within {timeout_s:g} s",
                    hint="it is read while `headwater run` runs; `headwater status` says how far it is",
                )
            await self.run(self.log.wait_commit, seen, min(left, SOURCE_WAIT_S) * 1_000)
        ends = await self.run(lambda: self.log.ends(list(self.log.topics())))
        return Receipt({t: {p: (0, end) for p, end in parts.items() if end} for t, parts in ends.items()})

    async def _tend(self) -> None:
        while True:
            await asyncio.sleep(TEND_EVERY_S)
            for look in (self.guests.refresh, self.outside.sources.hooks.serve):
                with contextlib.suppress(Exception):  # the next look may do better
                    await self.run(look)

    def _keys_topic(self, name: str, retention: str) -> TopicDefinition:
        return self.workspace.topic(name, SCHEMA, retention=retention).definition


def served(request: Request) -> Served:
    """What the route of a request shares with the others."""
    found: Served = request.app.state.served
    return found
