"""`/views/{view}`: its rows at a tick, by key or by any column; and its changes as they are committed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response

from headwater.errors import TickNotKeptError, UsageError
from headwater.web import parameters
from headwater.web.forms import Form, form_of, json_objects, rows_response
from headwater.web.reading import Found, manifest_at, rows_equal, view_relation
from headwater.web.served import Served, served
from headwater.web.streams import KEEP_ALIVE, RETRY_MS, ROWS_MAX, Silence, end, event, failed
from headwater.web.watching import LOOK_S

if TYPE_CHECKING:
    from headwater.runtime.following import Changes

ROWS = 1_000
ROWS_LIMIT_MAX = 1_000_000
WAIT_S = 30.0
WAIT_S_MAX = 300.0
RESERVED = ("limit", "as_of", "after", "timeout")
"""Parameters that are not columns: a column of such a name is for `POST /query`."""


async def read(request: Request) -> Response:
    """GET: the rows of a view."""
    here = served(request)
    form = form_of(request)
    limit = parameters.whole(request, "limit", ROWS, 1, ROWS_LIMIT_MAX)
    timeout_s = parameters.seconds(request, "timeout", WAIT_S, WAIT_S_MAX)
    await here.reach(parameters.after(request), timeout_s)
    return await here.run(_rows, request, here, form, limit)


def _rows(request: Request, here: Served, form: Form, limit: int) -> Response:
    manifest = manifest_at(here.views, parameters.as_of(request))
    relation = view_relation(here.log, here.views, request.path_params["view"], manifest)
    equal = parameters.equalities(request, relation.schema, RESERVED, f"view {relation.name!r}")
    found = rows_equal(relation, equal, limit + 1)
    assert manifest is not None, "a view without a tick was refused"
    return found_response(Found(found, manifest.tick), form, limit, {"view": relation.name})


def found_response(found: Found, form: Form, limit: int, about: dict[str, object]) -> Response:
    """Rows at a tick, of which there may be one more than is shown."""
    more = found.rows.num_rows > limit
    tick = {} if found.tick is None else {"Headwater-Tick": str(found.tick)}
    return rows_response(
        found.rows.slice(0, limit),
        form,
        {**about, "tick": found.tick, "more": more},
        {**tick, "Headwater-More": str(more).lower()},
    )


async def changes(request: Request) -> Response:
    """GET: a stream of what every tick changes, after the tick that the client has seen; without one, first all rows."""
    here = served(request)
    parameters.refuse_unknown(request, ("since",))
    form_of(request, (Form.EVENTS,))
    text = request.headers.get("last-event-id") or request.query_params.get("since")
    follower = await here.run(_begun, here, request.path_params["view"], text)
    return here.streams.respond(_pieces(here, *follower), Form.EVENTS)


def _begun(here: Served, name: str, text: str | None) -> tuple[str, Changes | None, str]:
    """A follower; none if the client has seen a tick that there is no going on from. It begins with `since`."""
    view = here.views.spelled(name)
    since: int | None = None
    if text == "latest":
        ticks = here.views.store.ticks()
        since = ticks[-1] if ticks else 0
    elif text is not None:
        if not text.isascii() or not text.isdigit() or len(text) > 18:
            raise UsageError(f"the last tick that was seen is a number, not {text!r}", hint="since=41")
        since = int(text)
    try:
        return view, here.views.follow(view, since, 0.0, resync=False), ""
    except TickNotKeptError as error:
        return view, None, error.message


async def _pieces(
    here: Served, view: str, follower: Changes | None, lost: str
) -> AsyncGenerator[bytes, None]:
    """Each event is (a part of) what one tick changed. Only the last part has the tick as its id: a client that was cut off
    in the middle says the tick before it, and is given all of it again."""
    bell = here.watch.ticking()
    silence = Silence(here.settings.keep_alive_s)
    yield f"retry: {RETRY_MS}\n\n".encode()
    while not here.streams.stopping.is_set():
        rung = bell.rung
        if follower is None:
            yield event("reset", {"view": view, "reason": lost})
        try:
            if follower is None:
                follower = await here.run(here.views.follow, view, None, 0.0, resync=False)
            rows = await here.run(next, follower, None)
        except TickNotKeptError as error:
            follower, lost = None, error.message
            continue
        except Exception as error:  # noqa: BLE001 - the answer has begun: its last event says what happened
            yield failed(error)
            return
        if rows is None:
            await bell.wait(LOOK_S, rung)
            if silence.too_long:
                silence.broken()
                yield KEEP_ALIVE
            continue
        silence.broken()
        kind, tick = "snapshot" if follower.snapshot else "change", follower.tick
        rows = rows.drop_columns(["_tick"])
        for start in range(0, max(1, rows.num_rows), ROWS_MAX):
            last = start + ROWS_MAX >= rows.num_rows
            yield await here.run(_event, kind, rows.slice(start, ROWS_MAX), tick, last)
    yield end("the server stops")


def _event(kind: str, rows: pa.Table, tick: int | None, last: bool) -> bytes:
    objects = ",".join(json_objects(rows))
    data = f'{{"tick":{tick},"more":{"false" if last else "true"},"rows":[{objects}]}}'
    return event(kind, data, str(tick) if last else None)
