"""Route `/views/{view}`: the rows of a view at a tick, by key or by any column; and its changes as they are committed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from headwater.core.errors import TickNotKeptError, UsageError
from headwater.core.positions import Token
from headwater.web import parameters
from headwater.web.commit_waiters import POLL_S
from headwater.web.committed_reads import ReadResult, is_lookup, manifest_at, rows_equal, view_relation
from headwater.web.event_streams import KEEP_ALIVE, RETRY_MS, ROWS_MAX, IdleTime, end, event, failed
from headwater.web.response_formats import ResponseFormat, form_of, json_objects, rows_response
from headwater.web.server_context import ServedWorkspace, served

if TYPE_CHECKING:
    from headwater.serving.follow import Changes

ROWS = 1_000
ROWS_LIMIT_MAX = 1_000_000
ROWS_AT_ONCE = 10_000
"""Number of rows above which responses have their own threads."""
WAIT_S = 30.0
WAIT_S_MAX = 300.0
RESERVED = ("limit", "as_of", "after", "timeout")
"""Parameters that are not columns; columns of these names can be compared only by `POST /query`."""


async def read(request: Request) -> Response:
    """GET: return the rows of a view."""
    here = served(request)
    form = form_of(request)
    limit = parameters.whole(request, "limit", ROWS, 1, ROWS_LIMIT_MAX)
    timeout_s = parameters.seconds(request, "timeout", WAIT_S, WAIT_S_MAX)
    await here.reach(parameters.after(request), timeout_s)
    found = await here.run(_rows, request, here, form, limit, through=False)
    return found if found is not None else await here.scan(_sure_rows, request, here, form, limit)


def _rows(
    request: Request, here: ServedWorkspace, form: ResponseFormat, limit: int, *, through: bool
) -> Response | None:
    """Return the response; None if all rows of the view must be read, and `through` is False."""
    manifest = manifest_at(here.views, parameters.as_of(request))
    relation = view_relation(here.log, here.views, request.path_params["view"], manifest)
    equal = parameters.equalities(request, relation.schema, RESERVED, f"view {relation.name!r}")
    if not through and (limit > ROWS_AT_ONCE or not is_lookup(relation, equal)):
        return None
    found = rows_equal(relation, equal, limit + 1)
    assert manifest is not None, "a view without a tick was refused"
    return found_response(ReadResult(found, manifest.tick), form, limit, {"view": relation.name})


def _sure_rows(request: Request, here: ServedWorkspace, form: ResponseFormat, limit: int) -> Response:
    found = _rows(request, here, form, limit, through=True)
    assert found is not None
    return found


def found_response(found: ReadResult, form: ResponseFormat, limit: int, about: dict[str, object]) -> Response:
    """Return rows at a tick as a response; one row more than `limit` means that there are more."""
    more = found.rows.num_rows > limit
    tick = {} if found.tick is None else {"Headwater-Tick": str(found.tick)}
    return rows_response(
        found.rows.slice(0, limit),
        form,
        {**about, "tick": found.tick, "more": more},
        {**tick, "Headwater-More": str(more).lower()},
    )


async def changes(request: Request) -> Response:
    """GET: stream the changes of every tick after the one that the client has seen; otherwise all rows first."""
    here = served(request)
    parameters.refuse_unknown(request, ("since",))
    form_of(request, (ResponseFormat.EVENTS,))
    text = request.headers.get("last-event-id") or request.query_params.get("since")
    begun = await here.stream_step(_begin, here, request.path_params["view"], text)
    return here.streams.respond(_pieces(here, *begun), ResponseFormat.EVENTS)


def _begin(here: ServedWorkspace, name: str, text: str | None) -> tuple[str, Changes | None, str]:
    """Return the view's name and a subscription from `since`; None instead of it, with the reason, if it cannot
    continue from there."""
    view = here.views.names.canonical_name(name)
    since: Token | None = None
    if text == "latest":
        latest = here.views.store.latest()
        since = latest.token if latest is not None else Token(0)
    elif text is not None:
        since = Token.parse(text)
        if since is None:
            raise UsageError(
                f"since is the id of an event, or the number of a tick, not {text!r}",
                hint="since=41",
            )
    try:
        return view, here.views.reads.follow(view, since, 0.0, resync=False), ""
    except TickNotKeptError as error:
        return view, None, error.message


async def _pieces(
    here: ServedWorkspace, view: str, subscription: Changes | None, lost: str
) -> AsyncGenerator[bytes, None]:
    """Yield events, each (a part of) the changes of one tick. Only the last part has the tick's token as its id: a
    client that was disconnected in between reconnects with the previous tick, and gets all parts again."""
    bell = here.watch.ticking()
    idle = IdleTime(here.settings.keep_alive_s)
    yield f"retry: {RETRY_MS}\n\n".encode()
    while not here.streams.stopping.is_set():
        rung = bell.rung
        if subscription is None:
            yield event("reset", {"view": view, "reason": lost})
        try:
            if subscription is None:
                subscription = await here.stream_step(here.views.reads.follow, view, None, 0.0, resync=False)
            rows = await here.stream_step(next, subscription, None)
        except TickNotKeptError as error:
            subscription, lost = None, error.message
            continue
        except Exception as error:  # noqa: BLE001 - the response has begun: its last event reports the error
            yield failed(error)
            return
        if rows is None:
            await bell.wait(POLL_S, rung)
            if idle.too_long:
                idle.broken()
                yield KEEP_ALIVE
            continue
        idle.broken()
        kind, tick = "snapshot" if subscription.snapshot else "change", subscription.tick
        token = subscription.token
        rows = rows.drop_columns(["_tick"])
        for start in range(0, max(1, rows.num_rows), ROWS_MAX):
            last = start + ROWS_MAX >= rows.num_rows
            yield await here.stream_step(
                _event, kind, rows.slice(start, ROWS_MAX), tick, token if last else None
            )
    yield end("the server stops")


def _event(kind: str, rows: pa.Table, tick: int | None, token: str | None) -> bytes:
    """Return rows of a tick as an event; with `token` they are its last part."""
    objects = ",".join(json_objects(rows))
    data = f'{{"tick":{tick},"more":{"true" if token is None else "false"},"rows":[{objects}]}}'
    return event(kind, data, token)
