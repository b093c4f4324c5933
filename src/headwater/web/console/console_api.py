"""Routes of the console: its page, and the data that the page requests. The application mounts `ROUTES`."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from headwater.core.errors import BadRowError, UsageError, shown
from headwater.core.json_csv import json_decoder, text_decoder
from headwater.core.types import format_type
from headwater.web import parameters
from headwater.web.console import console_data as data
from headwater.web.console.console_files import file, page
from headwater.web.console.console_live import Pulse, Tail, tail_events
from headwater.web.problems import Problem
from headwater.web.request_limits import in_time, whole
from headwater.web.response_formats import ResponseFormat, form_of, json_response
from headwater.web.server_context import ServedWorkspace, served
from headwater.web.tokens import tokens

Endpoint = Callable[[Request], Awaitable[Response]]

ROWS, ROWS_MAX = 200, 2_000
TICKS, TICKS_MAX = 160, 2_000
POINTS, POINTS_MAX = 2_000, 20_000
LETTERS, LETTERS_MAX = 200, 2_000
ORDER_BYTES_MAX = 1_000_000
ACTIONS = ("replay", "drop", "edit")


def _pulse(request: Request) -> Pulse:
    """Return the pulse of this server, created on first use."""
    state = request.app.state
    if not hasattr(state, "console_pulse"):
        state.console_pulse = Pulse(served(request))
    found: Pulse = state.console_pulse
    return found


# --- live ----------------------------------------------------------------------------------------------------------


async def live(request: Request) -> Response:
    """GET: stream the metrics of the workspace, about once a second."""
    form_of(request, (ResponseFormat.EVENTS,))
    return served(request).streams.respond(_pulse(request).follow(), ResponseFormat.EVENTS)


async def tail(request: Request) -> Response:
    """GET: stream the newest records of a topic, then new ones."""
    here = served(request)
    form_of(request, (ResponseFormat.EVENTS,))
    found = await here.run(Tail, here, request.path_params["name"])
    return here.streams.respond(tail_events(here, found), ResponseFormat.EVENTS)


# --- data ----------------------------------------------------------------------------------------------------------


def _asks(collect: Callable[[ServedWorkspace, Request, Pulse], data.Document], *known: str) -> Endpoint:
    """Return a route that answers with a document, computed in a thread; `known` are its parameters."""

    async def endpoint(request: Request) -> Response:
        parameters.refuse_unknown(request, known)
        here, pulse = served(request), _pulse(request)
        found = await (here.scan if collect is _rows else here.run)(collect, here, request, pulse)
        return json_response(found, headers={"Cache-Control": "no-store"})

    return endpoint


def _name(request: Request) -> str:
    return str(request.path_params["name"])


def _event_times(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    del pulse
    return data.event_times(here, _name(request), parameters.whole(request, "rows", POINTS, 1, POINTS_MAX))


def _rows(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    del pulse
    limit = parameters.whole(request, "limit", ROWS, 1, ROWS_MAX)
    query = request.query_params
    search, sort = query.get("search", ""), query.get("sort") or None
    return data.view_rows(here, _name(request), parameters.as_of(request), search, sort, limit)


def _ticks(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    count = parameters.whole(request, "limit", TICKS, 1, TICKS_MAX)
    kept = here.views.store.ticks()
    return {"kept": len(kept), "ticks": pulse.ticks.documents(count)}


def _tick(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    text = str(request.path_params["tick"])
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise UsageError(f"a tick is a number, not {text!r}", value=text)
    return data.tick(here, int(text), pulse.ticks)


# --- dead letters --------------------------------------------------------------------------------------------------


def _letters(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    del pulse
    query = request.query_params
    limit = parameters.whole(request, "limit", LETTERS, 1, LETTERS_MAX)
    return data.letters(here, query.get("of") or None, query.get("state", "open"), limit)


def _letter(here: ServedWorkspace, request: Request, pulse: Pulse) -> data.Document:
    del pulse
    return data.letter(here, request.query_params.get("id", ""))


async def act(request: Request) -> Response:
    """POST: replay, edit or drop a dead letter."""
    here = served(request)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "unsupported-media-type", f"content type {kind!r} is not supported")
    body = await in_time(request, whole(request, ORDER_BYTES_MAX, "the body"))
    try:
        order = orjson.loads(body)
    except ValueError as error:
        raise UsageError(f"the body is not valid JSON: {error}", reason="not-json") from None
    if not isinstance(order, dict) or order.get("action") not in ACTIONS:
        raise UsageError(f"the body needs an action: {', '.join(ACTIONS)}", field="action")
    return json_response(await here.run(_acted, here, order, str(request.scope.get("headwater.guest", ""))))


def _acted(here: ServedWorkspace, order: Mapping[str, Any], guest: str) -> data.Document:
    dead = here.workspace.dead()
    who = next((f"{token.name} (console)" for token in tokens(here.log) if token.digest == guest), "console")
    letter = order.get("letter")
    if not isinstance(letter, str):
        raise UsageError("the body needs the name of a dead letter", field="letter")
    reason = order.get("reason") or None
    expect = order.get("expect")
    match order["action"]:
        case "edit":
            values = _values(dead.columns(letter), order.get("values"))
            dead.edit(letter, values, by=who, reason=reason, expect=expect)
            done: data.Document = {}
        case "drop":
            dead.drop(letter, by=who, reason=reason, expect=expect)
            done = {}
        case _:
            found = dead.replay(letter, by=who, reason=reason, force=bool(order.get("force")))
            done = {"taken": list(found.taken), "before": list(found.before), "left": dict(found.left)}
    return {**done, "letter": data.letter(here, letter)}


def _values(schema: pa.Schema, given: Any) -> dict[str, Any]:
    """Return the values entered in the form, by column: decoded from their text, and None for null."""
    if not isinstance(given, dict):
        raise UsageError("an edit needs an object of columns and values", field="values")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in schema.names or value is None:
            found[name] = value
            continue
        kind = schema.field(name).type
        decode = text_decoder(kind) if isinstance(value, str) else (json_decoder(kind) or (lambda v: v))
        try:
            found[name] = decode(value)
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError):
            expected = format_type(kind)
            raise BadRowError(
                f"column {name!r} is {shown(value, 80)}, expected {expected}",
                column=name,
                value=value,
                expected=expected,
            ) from None
    return found


_API = "/console/api"
ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("GET", "/", page),
    ("GET", f"{_API}/live", live),
    ("GET", f"{_API}/graph", _asks(lambda here, request, pulse: data.graph(here))),
    ("GET", f"{_API}/topics/{{name}}/tail", tail),
    ("GET", f"{_API}/topics/{{name}}/time", _asks(_event_times, "rows")),
    ("GET", f"{_API}/topics/{{name}}", _asks(lambda here, request, pulse: data.topic(here, _name(request)))),
    ("GET", f"{_API}/views/{{name}}/rows", _asks(_rows, "as_of", "search", "sort", "limit")),
    (
        "GET",
        f"{_API}/views/{{name}}",
        _asks(lambda here, request, pulse: data.view(here, _name(request), pulse.ticks)),
    ),
    (
        "GET",
        f"{_API}/sources/{{name}}",
        _asks(lambda here, request, pulse: data.source(here, _name(request))),
    ),
    ("GET", f"{_API}/sinks/{{name}}", _asks(lambda here, request, pulse: data.sink(here, _name(request)))),
    ("GET", f"{_API}/ticks", _asks(_ticks, "limit")),
    ("GET", f"{_API}/ticks/{{tick}}", _asks(_tick)),
    ("GET", f"{_API}/dead", _asks(_letters, "of", "state", "limit")),
    ("GET", f"{_API}/dead/letter", _asks(_letter, "id")),
    ("POST", f"{_API}/dead", act),
    ("GET", "/console/{file}", file),
)
