"""Routes `/health` (liveness), `/health/ready` (whether the workspace is healthy) and `/metrics` (Prometheus)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response

from headwater.core.errors import HeadwaterError, WorkspaceMissingError
from headwater.engine.collections.workload import definitions
from headwater.web import parameters
from headwater.web.problems import Problem
from headwater.web.response_formats import json_response
from headwater.web.server_context import ServedWorkspace, served

if TYPE_CHECKING:
    from headwater.connectors.health.health import ComponentHealth

ANSWER_S = 10.0
"""Time limit of computing the health, in seconds."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
UNREADABLE = "the workspace cannot be read"


async def health(request: Request) -> Response:
    """GET: 200 as long as the process responds; with `?ready`, and at `/health/ready`, 503 while a component is unhealthy."""
    here = served(request)
    parameters.refuse_unknown(request, ("ready",))
    wanted = parameters.flag(request, "ready") or request.url.path.endswith("/ready")
    try:
        async with asyncio.timeout(ANSWER_S):
            found = await here.run(readiness, here, _may_name(here, request))
    except (TimeoutError, Problem):  # all threads are busy, or the disk does not respond
        found = _document(
            [f"the state of the workspace could not be read within {ANSWER_S:g} s"], [], "unknown"
        )
    return json_response(found, 503 if wanted and not found["ready"] else 200)


def _may_name(here: ServedWorkspace, request: Request) -> bool:
    """Whether a client may see names and reasons: every client if no token is needed, otherwise clients with a token."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return not here.guests.expected or (
        kind.lower() == "bearer" and here.guests.admit(secret.strip()) is not None
    )


def readiness(here: ServedWorkspace, named: bool) -> dict[str, Any]:
    """Return whether the server can receive requests, with reasons if not.

    The route is open to clients without a token. Unless `named`, the reasons count components instead of naming them:
    the reason of a stopped view may quote a row.
    """
    reasons: list[str] = []
    warnings: list[str] = []
    state = "unknown"
    if here.streams.stopping.is_set():
        reasons.append("the server stops")
    try:
        here.log.sequence()
        # open files could still be read after the folder was removed
        if not here.views.store.storage.root.is_dir():
            raise WorkspaceMissingError("the folder of the workspace is missing")
        found = here.supervisor.health()
        state = found.engine.state
        reasons += _sentences(found.unhealthy, named)
        warnings += _sentences(found.warnings, named)
        if definitions(here.log) and not here.views.store.ticks():
            reasons.append("there are views, and no tick was made yet")
    except (HeadwaterError, OSError):
        reasons.append(UNREADABLE)
    return _document(reasons, warnings, state)


def _document(reasons: list[str], warnings: list[str], engine: str) -> dict[str, Any]:
    return {
        "live": True,
        "ready": not reasons,
        "reasons": reasons,
        "warnings": warnings,
        "engine": engine == "running",
        "engine_state": engine,
    }


def _sentences(components: list[ComponentHealth], named: bool) -> Iterator[str]:
    if named:
        yield from (one.sentence() for one in components)
        return
    for (kind, state), count in Counter((one.kind, one.state) for one in components).items():
        yield f"the engine is {state}" if kind == "engine" else f"{kind}: {count} {state}"


async def metrics(request: Request) -> Response:
    """GET: return the metrics of the workspace in Prometheus' text format."""
    here = served(request)
    parameters.refuse_unknown(request, ())
    return Response(await here.run(here.workspace.metrics), media_type=METRICS_TYPE)
