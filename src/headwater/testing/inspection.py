"""Inspection of a workspace for tests: its committed ticks, its engine and its connectors. It is no way to run a workspace.

    from headwater.testing import inspect_workspace

    inspected = inspect_workspace(ws)
    before = inspected.ticks()
    inspected.on_progress(OneTick())
    ws.run()
    assert inspected.manifest().views["hits"].status == "live"

The names of `WorkspaceInspection` are public. What it returns are objects of modules that are not, and can change with any version.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from headwater.connectors.alerts.alerts import Alerts
    from headwater.connectors.health.health import Health
    from headwater.connectors.manage.sink_manager import Sinks
    from headwater.connectors.manage.source_manager import SourceManager
    from headwater.connectors.supervisor import Supervisor
    from headwater.core.clock import Clock
    from headwater.engine.collections.engine_context import EngineContext
    from headwater.engine.tick.listener import Listener
    from headwater.state.garbage import RemovedFiles
    from headwater.state.manifest import Manifest
    from headwater.state.ownership import Owner, Ownership
    from headwater.state.store import StateStore
    from headwater.views.runner import EngineHost
    from headwater.views.view_manager import Views
    from headwater.workspace import Workspace


def inspect_workspace(workspace: Workspace) -> WorkspaceInspection:
    """Return the inspection of an open workspace. It holds no state of its own: call it as often as needed."""
    return WorkspaceInspection(workspace)


class WorkspaceInspection:
    """The parts of an open workspace that tests observe and drive."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    # --- committed ticks -------------------------------------------------------------------------------------------

    @property
    def store(self) -> StateStore:
        """The store of committed ticks."""
        return self.views.store

    def ticks(self) -> list[int]:
        """Return the kept ticks, ascending."""
        return self.store.ticks()

    def manifest(self, tick: int | None = None) -> Manifest | None:
        """Return the manifest of a kept tick, by default of the newest; None before the first tick. TickNotKeptError for a
        tick that is not kept."""
        return self.store.latest() if tick is None else self.store.manifest(tick)

    def collect(self, keep_ticks: int, protect: Iterable[int] = ()) -> RemovedFiles:
        """Remove all but the newest `keep_ticks` ticks and the protected ones, as the engine does after a tick."""
        return self.store.collect(keep_ticks, protect)

    def drop_state(self) -> None:
        """Remove every tick, so that the next run rebuilds all views from the log."""
        self.store.drop()

    # --- views and the engine --------------------------------------------------------------------------------------

    @property
    def views(self) -> Views:
        """The manager of views."""
        return self._workspace._views

    def on_progress(self, listener: Listener) -> None:
        """Report the progress of engines of this workspace object to a listener, instead of the one before."""
        self.views.listener = listener

    def engine(self) -> Owner | None:
        """Return the process that runs an engine on the workspace; None if no process does."""
        return self.views.engine()

    def claim_engine(self) -> Ownership:
        """Acquire ownership of the engine, as an engine does when it starts; EngineRunningError while another engine runs."""
        return self.views.claim()

    @property
    def engine_host(self) -> EngineHost:
        """The parts of the workspace that an engine gets: log, state, clock and listener."""
        return self.views._room

    def engine_context(self) -> EngineContext:
        """Return the Spark session with planner, catalog and executor; starts Spark if needed."""
        return self.views.tools()

    def release_records(self) -> None:
        """Let retention remove the records that every view has read, as the engine does after a tick."""
        self.views.release_records()

    @property
    def spark(self) -> Any:
        """The Spark session that was given to `hw.open`; None if none was given."""
        return self._workspace._spark

    @property
    def clock(self) -> Clock:
        """The clock of the workspace."""
        return self._workspace._clock

    # --- connectors ------------------------------------------------------------------------------------------------

    @property
    def supervisor(self) -> Supervisor:
        """The supervisor of sources, sinks and alerts."""
        return self._workspace._supervisor

    @property
    def sources(self) -> SourceManager:
        """The manager of sources."""
        return self.supervisor.sources

    @property
    def sinks(self) -> Sinks:
        """The manager of sinks."""
        return self.supervisor.sinks

    @property
    def alerts(self) -> Alerts:
        """The manager of alerts."""
        return self.supervisor.alerts

    def reconcile_connectors(self) -> None:
        """Start connectors that were declared and stop those that were dropped, as an engine does between ticks."""
        self.supervisor.reconcile()

    def evaluate_alerts(self) -> None:
        """Evaluate alerts once and send their notifications, unless another process runs the engine."""
        self.supervisor.evaluate_alerts()

    def health(self) -> Health:
        """Return the health of every component, as `headwater status` shows it."""
        return self.supervisor.health()

    def metric_families(self) -> Iterable[Metric]:
        """Return the metrics that `ws.metrics()` prints, as objects with names and labels."""
        return self._workspace._collect_metrics()
