"""The views of a workspace: the entry point by which they are declared, run, read and reported."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from headwater.core.clock import Clock
from headwater.core.errors import EngineRunningError
from headwater.core.positions import Receipt
from headwater.core.storage import Storage
from headwater.engine.collections.engine_context import EngineContext
from headwater.engine.collections.retention_holds import release_records
from headwater.engine.collections.workload import definitions
from headwater.engine.tick.listener import Listener
from headwater.log.commit_history import check_commit
from headwater.log.protocol import Log
from headwater.serving.follow import Arrivals
from headwater.spark.spark_session import ui_address
from headwater.state.base_ticks import Bases
from headwater.state.manifest import Manifest
from headwater.state.ownership import Owner, Ownership, owner
from headwater.state.store import StateStore
from headwater.udf.udf_registry import Functions
from headwater.views.pacing import Pace
from headwater.views.runner import EngineCompanions, EngineHost, Runner, RunReport, run, wait_for
from headwater.views.view_declarations import ViewDeclarations
from headwater.views.view_names import ViewNames
from headwater.views.view_reads import ViewReads
from headwater.views.view_reports import ViewReports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Views:
    """All operations on views. Spark starts at first need: a CREATE, a run, or a query that only Spark can answer."""

    def __init__(
        self,
        log: Log,
        storage: Storage,
        clock: Clock,
        spark: SparkSession | None = None,
        keep_ticks: int | None = None,
    ) -> None:
        self._log = log
        self._clock = clock
        self._given = spark
        self._made: EngineContext | None = None
        self.functions = Functions(log)
        self._guard = threading.RLock()
        self.store = StateStore(storage, clock)
        self.listener = Listener()
        self.arrivals = Arrivals(storage)
        self._room = EngineHost(
            log, storage, self.store, clock, self.tools, lambda: self.listener, keep_ticks=keep_ticks
        )
        self._runners: list[Runner] = []
        self.names = ViewNames(log)
        self.declarations = ViewDeclarations(self._room, self.functions, self.names)
        self.reads = ViewReads(self._room, self.names, self.arrivals, self.reach, spark)
        self.reports = ViewReports(self._room, self.names, self.reads)

    def tools(self) -> EngineContext:
        """Return the Spark session and the components that use it, started if needed."""
        with self._guard:
            if self._made is None:
                with self.listener.starting_spark():
                    self._made = EngineContext(self._log, self._given, self.functions)
            return self._made

    def close(self) -> None:
        """Stop running engines, and close everything."""
        for runner in self._runners:
            if runner.running:
                runner.stop()
        self._runners.clear()
        self._room.close()
        self.arrivals.close()

    def run(self, tick_rows: int | None = None) -> RunReport:
        """Bring every view up to what the log has now."""
        if self.engine() is None:
            self.declarations.resume(self.functions.here())
        return run(self._room, tick_rows)

    def claim(self) -> Ownership:
        """Acquire ownership of the engine before Spark and the engine start; EngineRunningError if another engine runs. The
        ownership is passed to `start`, or released."""
        return self._room.claim()

    def start(
        self,
        pace: Pace,
        tick_rows: int | None,
        ownership: Ownership | None = None,
        companions: EngineCompanions | None = None,
    ) -> Runner:
        """Keep every view up to date in the background; `ownership` is the ownership of the engine, if it was acquired
        before."""
        if ownership is not None or self.engine() is None:
            self.declarations.resume(self.functions.here())
        runner = Runner(self._room, pace, tick_rows, ownership, companions)
        self._runners.append(runner)
        return runner

    def release_records(self) -> None:
        """Let the log remove what every view has read. Does nothing if an engine runs, since the engine does it."""
        with suppress(EngineRunningError), self._room.claim():
            latest = self.store.latest_whole()
            if latest is not None:
                release_records(self._log, Bases(self.store.storage), latest, self._clock)

    def newest(self) -> Manifest | None:
        """Return the newest tick whose manifest is not damaged; cheap after a run of this process."""
        return self._room.newest()

    def drop_state(self) -> None:
        """Remove the state of views at once, because it may contain deleted data: the next run rebuilds them.
        EngineRunningError while an engine runs."""
        from headwater.engine.deletion.rebuild_after_delete import drop_state

        with self._room.claim():
            drop_state(self.store, Bases(self.store.storage))

    def engine(self) -> Owner | None:
        """Return the process that runs an engine on this workspace; None if no process does."""
        return owner(self._room.storage)

    def has_failed(self) -> bool:
        """Whether an error has ended the engine that was started last here."""
        return bool(self._runners) and self._runners[-1].failed

    def start_spark(self) -> str | None:
        """Start Spark now, if it is not running, and return the address of its web UI, if it has one."""
        return ui_address(self.tools().spark)

    def reach(self, receipt: Receipt, timeout_ms: float) -> None:
        """Wait until the views have an append; if no engine runs, run ticks here."""
        reached = self.reached(receipt)
        latest = self.store.latest()
        if latest is not None and reached(latest):
            return
        if owner(self._room.storage) is not None and wait_for(self._room, reached, timeout_ms) is not None:
            return
        self.run()

    def reached(self, receipt: Receipt) -> Callable[[Manifest], bool]:
        """Return a function that tells whether the tick of a manifest has an append. OtherHistoryError if the append is not
        of this log."""
        check_commit(self._log, receipt.commit)
        views = definitions(self._log).values()
        readers = {t: {v.name for v in views if t in v.reads} for t in receipt.positions}

        def reached(manifest: Manifest) -> bool:
            stopped = {name for name, view in manifest.views.items() if view.status == "stopped"}
            return all(
                manifest.positions.get(t, {}).get(p, -1) >= end
                for t, parts in receipt.positions.items()
                # stopped views will never have it
                if readers[t] - stopped
                for p, (_, end) in parts.items()
            )

        return reached
