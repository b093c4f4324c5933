"""Route `/plain`: lists topics, views, sources and sinks with links, for browsers without scripts."""

from __future__ import annotations

import html
from collections.abc import Iterable
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from headwater.catalog.connectors import SINK, SOURCE
from headwater.web.routes.openapi import html_page
from headwater.web.server_context import ServedWorkspace, served


async def home(request: Request) -> Response:
    """GET: list topics, views, sources and sinks."""
    here = served(request)
    return await here.run(_home, here)


def _home(here: ServedWorkspace) -> Response:
    sinks = here.supervisor.sinks.definitions()
    searched = {name for name, made in sinks.items() if made.kind == "search"}
    lists: dict[str, list[tuple[str, list[tuple[str, str]]]]] = {
        "Topics": [(name, [("records", f"/topics/{_path(name)}?from=-20")]) for name in here.log.topics()],
        "Views": [
            (name, [("rows", f"/views/{_path(name)}"), ("changes", f"/views/{_path(name)}/changes")])
            for name in here.log.entries("view")
        ],
        "Sources": [(name, []) for name in here.log.entries(SOURCE)],
        "Sinks": [
            (name, [("search", f"/sinks/{_path(name)}/search")] if name in searched else [])
            for name in here.log.entries(SINK)
        ],
    }
    body = "".join(f"<h2>{title}</h2>{_listed(items)}" for title, items in lists.items())
    links = (
        '<p><a href="/docs">the API</a> · <a href="/metrics">metrics</a> · <a href="/health">health</a></p>'
    )
    return html_page("Headwater", body + links)


def _path(name: str) -> str:
    return quote(name, safe="")


def _listed(items: Iterable[tuple[str, Iterable[tuple[str, str]]]]) -> str:
    shown = "".join(
        f"<li>{html.escape(name)}"
        + "".join(f' · <a href="{html.escape(url)}">{html.escape(text)}</a>' for text, url in links)
        for name, links in items
    )
    return f"<ul>{shown}</ul>" if shown else "<p>none</p>"
