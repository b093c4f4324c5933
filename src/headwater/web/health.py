"""`/health` tells live from ready, `/metrics` what can be counted."""

from __future__ import annotations

from typing import Any, Literal

from starlette.requests import Request
from starlette.responses import Response

from headwater.errors import HeadwaterError, WorkspaceMissingError
from headwater.runtime.catalog import definitions
from headwater.state.ownership import alive, owner
from headwater.web import parameters
from headwater.web.forms import json_response
from headwater.web.served import Served, served

EngineState = Literal["running", "frozen", "stopped", "failed", "unknown"]
"""'frozen': it holds the workspace and gives no sign of life. 'failed': it was one of this process, and an error has ended it."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def health(request: Request) -> Response:
    """GET: 200 for as long as the process answers; with `?ready`, 503 while it should be given no requests."""
    here = served(request)
    parameters.refuse_unknown(request, ("ready",))
    wanted = parameters.flag(request, "ready") or request.url.path.endswith("/ready")
    found = await here.run(standing, here)
    return json_response(found, 503 if wanted and not found["ready"] else 200)


def standing(here: Served) -> dict[str, Any]:
    """How the server is. Names nothing of what the workspace holds: this is asked without a token."""
    reasons: list[str] = []
    state: EngineState = "unknown"
    if here.streams.stopping.is_set():
        reasons.append("the server stops")
    try:
        here.log.sequence()
        if not here.views.store.storage.root.is_dir():  # files that are open can still be read
            raise WorkspaceMissingError("its folder is gone")
        views = definitions(here.log)
        state = _engine(here)
        if state == "failed":
            reasons.append("the engine of this process was stopped by an error")
        if views and not here.views.store.ticks():
            reasons.append("there are views, and no tick was made yet")
    except (HeadwaterError, OSError):
        reasons.append("the workspace cannot be read")
    running = state == "running"
    return {
        "live": True,
        "ready": not reasons,
        "reasons": reasons,
        "engine": running,
        "engine_state": state,
    }


def _engine(here: Served) -> EngineState:
    """Of the workspace's, in whichever process it is. Who stopped in order cannot be told from who died elsewhere."""
    storage = here.views.store.storage
    if alive(storage, here.clock) is not None:
        return "running"
    if owner(storage) is not None:
        return "frozen"
    return "failed" if here.views.has_failed() else "stopped"


async def metrics(request: Request) -> Response:
    """GET: the figures of the workspace for Prometheus."""
    here = served(request)
    parameters.refuse_unknown(request, ())
    return Response(await here.run(here.workspace.metrics), media_type=METRICS_TYPE)
