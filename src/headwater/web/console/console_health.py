"""Health, active alerts and rejected rows of a workspace, as documents for the console."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from headwater.connectors.health.rejected_counts import rejected_rows

if TYPE_CHECKING:
    from headwater.connectors.health.health import ComponentHealth, Health
    from headwater.web.server_context import ServedWorkspace

Document = dict[str, Any]
DRAWN = ("view", "source", "sink")
"""Kinds of components that the dataflow graph shows."""


def health_document(found: Health) -> Document:
    """Return the health as a document: the engine, and every component with a problem."""
    problems = [*found.unhealthy, *found.warnings]
    return {
        "healthy": found.healthy,
        "engine": component_document(found.engine),
        "problems": [component_document(one) for one in problems if one.kind != "engine"],
    }


def component_document(one: ComponentHealth) -> Document:
    """Return the health of one component as a document."""
    since = None if one.since is None else one.since / 1_000
    return {**asdict(one), "since": since, "severity": one.severity}


def alerts_document(here: ServedWorkspace) -> list[Document]:
    """Return the active alerts, the oldest first."""
    return [asdict(one) | {"since": one.since / 1_000} for one in here.supervisor.alerts.active()]


def rejected_document(here: ServedWorkspace) -> list[Document]:
    """Return the rows that sources, views, sinks and queues left out."""
    return [asdict(one) for one in rejected_rows(here.log, here.views, here.supervisor)]


def with_health(metrics: Mapping[str, Document], found: Health) -> None:
    """Add the health to the metrics of views, sources and sinks. A component with a problem gets the health's state as
    its state."""
    for one in found.components:
        metric = metrics.get(f"{one.kind}:{one.name}") if one.kind in DRAWN else None
        if metric is not None:
            add_health(metric, one)


def add_health(metric: Document, one: ComponentHealth) -> None:
    """Add the health of one component to its metrics."""
    metric["health"] = component_document(one)
    if one.severity != "ok":
        metric["state" if one.kind != "view" else "status"] = one.state
        metric["reason"] = one.reason
