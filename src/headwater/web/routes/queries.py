"""Route `POST /query`: one SELECT over views and topics at one tick."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from headwater.core.errors import UsageError, shown
from headwater.core.positions import Receipt
from headwater.web import committed_reads, parameters
from headwater.web.committed_reads import AnswerBounds, SelectRequest
from headwater.web.problems import Problem
from headwater.web.request_limits import in_time, whole
from headwater.web.response_formats import ResponseFormat, form_of
from headwater.web.routes.views import ROWS_LIMIT_MAX, WAIT_S, WAIT_S_MAX, found_response
from headwater.web.server_context import ServedWorkspace, served

TEXT_BYTES_MAX = 100_000
ROWS = 10_000
MEMBERS = ("query", "as_of", "after", "limit", "timeout")


async def query(request: Request) -> Response:
    """POST: return the result of a query. The body is its text (`application/sql`), or JSON with `query` and the
    parameters of the query string."""
    here = served(request)
    parameters.refuse_unknown(request, MEMBERS[1:])
    form = form_of(request)
    text, said = await _read_query(request)
    limit = said.get("limit", parameters.whole(request, "limit", ROWS, 1, ROWS_LIMIT_MAX))
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= ROWS_LIMIT_MAX:
        raise UsageError(f"limit is a whole number from 1 to {ROWS_LIMIT_MAX:,}, not {shown(limit)}")
    timeout_s = parameters.seconds(request, "timeout", WAIT_S, WAIT_S_MAX)
    after = _after(said["after"]) if said.get("after") is not None else parameters.after(request)
    as_of = _as_of(said["as_of"]) if said.get("as_of") is not None else parameters.as_of(request)
    await here.reach(after, timeout_s)
    until_s = time.monotonic() + here.settings.query_s
    found = await here.ask(_soon, here, text, as_of, limit, form, until_s)
    if isinstance(found, Response):
        return found
    return await here.run_query_process(until_s, _at_last, here, found, form, limit)


def _soon(
    here: ServedWorkspace,
    text: str,
    as_of: int | str | datetime | None,
    limit: int,
    form: ResponseFormat,
    until_s: float,
) -> Response | SelectRequest:
    """Return the response, if the query is answered at once; otherwise the request to run in a process."""
    settings = here.settings
    bounds = AnswerBounds(limit + 1, settings.answer_bytes_max, settings.query_s, until_s)
    asked = committed_reads.select_request(here.log, here.views, text, as_of, bounds)
    found = asked.soon(here.views, here.log, settings.light_query_s)
    return asked if found is None else found_response(found, form, limit, {})


def _at_last(here: ServedWorkspace, asked: SelectRequest, form: ResponseFormat, limit: int) -> Response:
    found = asked.at_last(here.views, here.log, here.processes)
    return found_response(found, form, limit, {})


async def _read_query(request: Request) -> tuple[str, dict[str, Any]]:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind not in ("application/json", "application/sql"):
        raise Problem(
            415,
            "unsupported-media-type",
            f"content type {kind!r} is not supported",
            hint='Content-Type: application/json with {"query": "SELECT ..."}, or application/sql',
        )
    body = await in_time(request, whole(request, TEXT_BYTES_MAX, "a query"))
    try:
        if kind != "application/json":
            return body.decode("utf-8"), {}
        said = orjson.loads(body)
    except ValueError as error:
        raise UsageError(f"the body is not JSON: {error}", hint='{"query": "SELECT ..."}') from None
    if not isinstance(said, dict) or not isinstance(said.get("query"), str):
        raise UsageError("the body has no query", hint='{"query": "SELECT ..."}')
    for name in said:
        if name not in MEMBERS:
            raise UsageError(f"there is no member {name!r}", hint=f"the members are {', '.join(MEMBERS)}")
    return said["query"], said


def _after(given: Any) -> Receipt | str:
    if not isinstance(given, str):
        raise UsageError("after is the text of a receipt, or a position of a source", hint="clicks:0@17-20")
    return parameters.after_text(given)


def _as_of(given: Any) -> int | str | datetime:
    if isinstance(given, str):
        return parameters.as_of_text(given)
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(f"as_of is a tick or a time, not {shown(given)}")
    return given
