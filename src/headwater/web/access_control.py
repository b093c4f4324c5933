"""Access control of the server: tokens, allowed hosts and origins; and the conversion of errors to problem responses.

Pure ASGI middleware around all routes. A request whose Host header is not a name of this server is rejected, so that a
web page cannot make its own name resolve to the server (DNS rebinding). A request from a page of another origin is
rejected unless the origin is allowed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headwater.web.console.console_files import open_paths
from headwater.web.problems import Problem, problem_of
from headwater.web.tokens import OPENING

if TYPE_CHECKING:
    from headwater.web.server_context import ServedWorkspace
    from headwater.web.tokens import Guests
    from headwater.web.tokens import Scope as TokenScope

OPEN_PATHS = frozenset({"/health", "/health/ready"})
HOOKS = "/hooks/"
METHODS = "GET, POST, OPTIONS"
REQUEST_HEADERS = "authorization, content-type, idempotency-key, last-event-id, accept"
ANSWER_HEADERS = "headwater-receipt, headwater-tick, headwater-next, idempotency-replayed, retry-after"
PREFLIGHT_S = "600"

_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
_OWN = (b"cross-origin-resource-policy", b"same-origin")
_OTHERS = (b"cross-origin-resource-policy", b"cross-origin")


class Gate:
    """Middleware that checks the host, origin and token of a request, and answers errors as problems."""

    def __init__(self, app: ASGIApp, served: Callable[[], ServedWorkspace]) -> None:
        self._app = app
        self._served = served

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun = False
        allowed: str | None = None

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [
                    *message.get("headers", ()),
                    *_SAFE,
                    _OWN if allowed is None else _OTHERS,
                ]
                if allowed is not None:
                    headers = MutableHeaders(scope=message)
                    headers["Access-Control-Allow-Origin"] = allowed
                    headers["Access-Control-Expose-Headers"] = ANSWER_HEADERS
                    headers.add_vary_header("Origin")
            await send(message)

        answer: Callable[[Scope, Receive, Send], Awaitable[None]]
        try:
            headers = Headers(scope=scope)
            self._check_host(headers, scope)
            allowed = self._check_origin(headers, scope)
            if allowed is not None and _is_preflight(scope, headers):
                answer = _preflight()
            else:
                self._check_token(headers, scope)
                answer = self._app
            await answer(scope, receive, guarded)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - a client must not see the details of an unexpected error
            problem = problem_of(error)
            if begun:  # the response has begun, so that it can only be aborted
                raise problem from None
            await problem.response()(scope, receive, guarded)

    def _check_host(self, headers: Headers, scope: Scope) -> None:
        """Raise Problem unless the Host header is a name of the server, or the address that the client connected to,
        which no page of another site can have as its name."""
        name = _name(headers.get("host", ""))
        if name not in self._served().settings.names and name != (scope.get("server") or ("",))[0]:
            raise Problem(
                421 if name else 400,
                "foreign-host",
                f"host {name!r} is not allowed" if name else "the request has no Host header",
                hint="headwater serve --allow-host NAME allows it",
            )

    def _check_origin(self, headers: Headers, scope: Scope) -> str | None:
        """Return the origin of another site's page that may read the response; None if the request is not from another
        site's page."""
        origin = headers.get("origin")
        if origin is None:
            return None
        if origin in self._served().settings.allow_origins:
            return origin
        own = f"{scope.get('scheme', 'http')}://{headers.get('host', '')}"
        if origin.lower() == own.lower():
            return None
        raise Problem(
            403,
            "foreign-origin",
            f"origin {origin} is not allowed",
            hint="headwater serve --allow-origin ORIGIN allows it",
        )

    def _check_token(self, headers: Headers, scope: Scope) -> None:
        guests = self._served().guests
        scope["headwater.guest"] = ""
        if not guests.expected or _needs_no_token(scope, guests):
            return
        kind, _, secret = headers.get("authorization", "").partition(" ")
        token = guests.admit(secret.strip()) if kind.lower() == "bearer" else None
        if not guests.has_tokens:
            raise Problem(
                401,
                "no-token-left",
                "all tokens of this workspace were revoked, so every request is rejected",
                hint=OPENING,
                headers={"WWW-Authenticate": 'Bearer realm="headwater"'},
            )
        if token is None:
            raise Problem(
                401,
                "no-token",
                "this server requires a token" if not secret else "the token is unknown",
                hint="Authorization: Bearer hw_...; `headwater token create` creates one",
                headers={"WWW-Authenticate": 'Bearer realm="headwater"'},
            )
        needed = needed_scope(scope)
        if needed not in token.scopes:
            raise Problem(
                403,
                "wrong-scope",
                f"the token does not have the scope {needed}",
                hint=f"headwater token create NAME --{needed}",
                headers={
                    "WWW-Authenticate": f'Bearer realm="headwater", error="insufficient_scope", scope="{needed}"'
                },
            )
        scope["headwater.guest"] = token.digest


def _needs_no_token(scope: Scope, guests: Guests) -> bool:
    """Whether a request needs no token: webhook deliveries are signed instead, and the page that asks for a token is
    public while a token exists."""
    path = scope["path"]
    if path in OPEN_PATHS or (scope["method"] == "POST" and path.startswith(HOOKS)):
        return True
    return guests.has_tokens and path in open_paths()


def needed_scope(scope: Scope) -> TokenScope:
    """Return the scope that a request needs: posts to topics and actions on dead letters write; everything else,
    including queries, reads."""
    writes = scope["method"] == "POST" and scope["path"].startswith(("/topics/", "/console/"))
    return "write" if writes else "read"


@lru_cache(maxsize=16)
def _name(host: str) -> str:
    """Return the name in a Host header, without the port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_preflight(scope: Scope, headers: Headers) -> bool:
    return scope["method"] == "OPTIONS" and "access-control-request-method" in headers


def _preflight() -> Response:
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": METHODS,
            "Access-Control-Allow-Headers": REQUEST_HEADERS,
            "Access-Control-Max-Age": PREFLIGHT_S,
        },
    )
