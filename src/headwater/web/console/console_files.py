"""Static files of the console. They contain no data of a workspace, and are served without a token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import xxhash
from starlette.requests import Request
from starlette.responses import Response

from headwater.web.problems import Problem

TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'"
)
"""Scripts, styles and connections only from this server, none inline, and no text that becomes markup."""


@cache
def files() -> Mapping[str, bytes]:
    """Return the files of the page, by name."""
    folder = resources.files("headwater.web.console") / "static"
    return {f.name: f.read_bytes() for f in folder.iterdir() if f.name.rpartition(".")[2] in TYPES}


@cache
def open_paths() -> frozenset[str]:
    """Return the paths that are served without a token: the page that asks for a token must load before it has one."""
    return frozenset({"/", *(f"/console/{name}" for name in files())})


async def page(request: Request) -> Response:
    """GET /: return the page."""
    return _response(request, "index.html")


async def file(request: Request) -> Response:
    """GET /console/{file}: return a script, a style or a picture."""
    name = request.path_params["file"]
    if name not in files():
        raise Problem(404, "no-such-file", f"the console has no file {name!r}", hint="the console is at /")
    return _response(request, name)


def _response(request: Request, name: str) -> Response:
    body = files()[name]
    tag = f'"{xxhash.xxh3_64_hexdigest(body)}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=TYPES[name.rpartition(".")[2]], headers=headers)
