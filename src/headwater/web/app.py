"""The ASGI application of the server, with all routes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from starlette.datastructures import State
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router

from headwater.web.access_control import Gate
from headwater.web.console import console_api
from headwater.web.large_responses import ResponseSender
from headwater.web.problems import Problem, problem_of, retry_after
from headwater.web.routes import health, hooks, openapi, pages, queries, searching, topics, views
from headwater.web.server_context import ServedWorkspace
from headwater.web.server_settings import ServerSettings

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from headwater.workspace import Workspace

Endpoint = Callable[[Request], Awaitable[Response]]

ROUTES: tuple[tuple[str, str, Endpoint], ...] = (
    ("POST", "/topics/{topic}", topics.append),
    ("GET", "/topics/{topic}", topics.read),
    ("POST", "/hooks/{hook}", hooks.take),
    ("GET", "/views/{view}/changes", views.changes),
    ("GET", "/views/{view}", views.read),
    ("POST", "/query", queries.query),
    ("GET", "/sinks/{sink}/search", searching.search),
    ("GET", "/metrics", health.metrics),
    ("GET", "/health", health.health),
    ("GET", "/health/ready", health.health),
    ("GET", "/openapi.json", openapi.document),
    ("GET", "/docs", openapi.page),
    ("GET", "/plain", pages.home),
)


class App:
    """The ASGI application; `stop` ends its streams before the server stops."""

    def __init__(
        self, workspace: Workspace, settings: ServerSettings | None = None, *, with_engine: bool = False
    ) -> None:
        self._workspace = workspace
        self._settings = settings or ServerSettings()
        self._with_engine = with_engine
        self._served: ServedWorkspace | None = None
        self.state = State()
        self._router = Router(
            [
                Route(path, _Answering(act), methods=[method])
                for method, path, act in (*ROUTES, *console_api.ROUTES)
            ],
            redirect_slashes=False,
            lifespan=self._lifespan,
        )
        self._gate = Gate(self._route, lambda: self._here)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI event."""
        await self._gate(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # Starlette reads it as `request.app`
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            await _not_found(Request(scope), error)(scope, receive, send)

    def stop(self) -> None:
        """End the streams; other requests continue. Called from the event loop's thread."""
        if self._served is not None:
            self._served.stop()

    @property
    def _here(self) -> ServedWorkspace:
        if self._served is None:
            raise Problem(503, "starting", "the server is starting", headers=retry_after(1))
        return self._served

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: App) -> AsyncIterator[None]:
        made = ServedWorkspace(self._workspace, self._settings, with_engine=self._with_engine)
        await made.open()
        app.state.served = self._served = made
        try:
            yield
        finally:
            await made.close()


class _Answering:
    """A route whose errors become problem responses."""

    def __init__(self, act: Endpoint) -> None:
        self._act = act

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await self._act(Request(scope, receive))
        except ClientDisconnect:
            raise
        except Exception as error:  # noqa: BLE001 - a client must not see the details of an unexpected error
            response = problem_of(error).response()
        answers: ResponseSender = scope["app"].state.served.answers
        await answers.send(response, scope, receive, send)


def _not_found(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        problem = Problem(
            404, "no-such-route", f"there is no route {request.url.path}", hint="/docs lists the routes"
        )
    elif error.status_code == 405:
        problem = Problem(
            405, "wrong-method", f"method {request.method} is not allowed at {request.url.path}"
        )
    else:
        problem = Problem(error.status_code, "refused", error.detail)
    problem.headers.update(error.headers or {})
    return problem.response()
