"""`/health` tells live from ready, `/metrics` what can be counted."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headwater.errors import HeadwaterError
from headwater.runtime.catalog import definitions
from headwater.web import parameters
from headwater.web.forms import json_response
from headwater.web.served import Served, served

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
    engine = False
    if here.streams.stopping.is_set():
        reasons.append("the server stops")
    try:
        here.log.sequence()
        views = definitions(here.log)
        engine = here.views.engine() is not None
        if views and not here.views.store.ticks():
            reasons.append("there are views, and no tick was made yet")
    except (HeadwaterError, OSError):
        reasons.append("the workspace cannot be read")
    return {"live": True, "ready": not reasons, "reasons": reasons, "engine": engine}


async def metrics(request: Request) -> Response:
    """GET: the figures of the workspace for Prometheus."""
    here = served(request)
    parameters.refuse_unknown(request, ())
    return Response(await here.run(here.workspace.metrics), media_type=METRICS_TYPE)
