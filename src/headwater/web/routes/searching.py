"""Route `GET /sinks/{sink}/search`: full text search and filters on the index of a SEARCH sink."""

from __future__ import annotations

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from headwater.connectors.manage.search_filters import read_filter
from headwater.web import parameters
from headwater.web.response_formats import ResponseFormat, form_of, rows_response
from headwater.web.server_context import ServedWorkspace, served

HITS = 10
HITS_MAX = 1_000
OFFSET_MAX = 10_000
PARAMETERS = ("q", "filter", "limit", "offset", "highlight", "columns")


async def search(request: Request) -> Response:
    """GET: return the rows that match, best first, with `_score`."""
    here = served(request)
    parameters.refuse_unknown(request, PARAMETERS)
    form = form_of(request)
    return await here.scan(_hits, request, here, form)


def _hits(request: Request, here: ServedWorkspace, form: ResponseFormat) -> Response:
    index = here.supervisor.sinks.index(request.path_params["sink"])
    layout, checkpoint = index.layout, index.checkpoint()
    schema = pa.schema([]) if layout is None else layout.schema
    columns = request.query_params.get("columns")
    rows = index.query(
        request.query_params.get("q"),
        [read_filter(text, schema) for text in request.query_params.getlist("filter")],
        parameters.whole(request, "limit", HITS, 1, HITS_MAX),
        parameters.flag(request, "highlight"),
        columns=None if columns is None else [name.strip() for name in columns.split(",")],
        offset=parameters.whole(request, "offset", 0, 0, OFFSET_MAX),
    )
    tick = None if checkpoint is None else checkpoint.tick
    about = {"sink": request.path_params["sink"], "tick": tick}
    return rows_response(rows, form, about, {} if tick is None else {"Headwater-Tick": str(tick)})
