"""The API as an OpenAPI 3.1 document, and as a page that needs no internet. Written by hand, and checked by a test."""

from __future__ import annotations

import html
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from headwater import __version__
from headwater.web.response_formats import json_response

Plain = dict[str, Any]

_ROWS_TYPES = ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream")


def _parameter(name: str, description: str, where: str = "query", *, kind: str = "string") -> Plain:
    return {
        "name": name,
        "in": where,
        "description": description,
        "required": where == "path",
        "schema": {"type": kind},
    }


def _problems(*statuses: int) -> Plain:
    return {str(status): {"$ref": "#/components/responses/Problem"} for status in (400, 401, 403, *statuses)}


def _rows(description: str) -> Plain:
    return {
        "200": {
            "description": description,
            "content": {
                kind: {"schema": {"$ref": "#/components/schemas/Rows"}} if kind == _ROWS_TYPES[0] else {}
                for kind in _ROWS_TYPES
            },
        }
    }


_AS_OF = _parameter("as_of", "an earlier tick, or a time: the last tick committed at or before it")
_AFTER = _parameter(
    "after", "the text of a receipt, or an LSN of the source: the response waits until the views have read it"
)
_TIMEOUT = _parameter("timeout", "maximum wait for `after`, in seconds; 30 by default", kind="number")
_LIMIT = _parameter("limit", "maximum number of rows", kind="integer")

PATHS: dict[str, Plain] = {
    "/topics/{topic}": {
        "post": {
            "summary": "Append rows",
            "description": "One body is one append: all of it is written, or nothing. The response is sent once the rows are durable.",
            "parameters": [
                _parameter("topic", "the topic's name", "path"),
                _parameter(
                    "Idempotency-Key", "a repeated key writes nothing and gets the same response", "header"
                ),
            ],
            "requestBody": {
                "required": True,
                "content": {
                    _ROWS_TYPES[0]: {"schema": {"oneOf": [{"type": "object"}, {"type": "array"}]}},
                    _ROWS_TYPES[1]: {"schema": {"type": "string"}},
                    _ROWS_TYPES[2]: {"schema": {"type": "string", "format": "binary"}},
                },
            },
            "responses": {
                "200": {
                    "description": "the receipt, also in the header Headwater-Receipt",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}},
                },
                **_problems(404, 408, 409, 413, 415, 422, 429, 503, 504, 507),
            },
        },
        "get": {
            "summary": "Read records",
            "description": "From a position on; with `follow`, new records too, as server-sent events or JSON lines.",
            "parameters": [
                _parameter("topic", "the topic's name", "path"),
                _parameter(
                    "from",
                    "earliest, latest, an offset, partition@offset,... (as `next` gives it), -10 for the last ten of each "
                    "partition, or a time",
                ),
                _LIMIT,
                _parameter("follow", "wait for new records", kind="boolean"),
                _parameter("columns", "names, separated by commas; also _appended_at, _watermark, _sequence"),
                _parameter("partition", "only this partition", kind="integer"),
                _parameter("by", "meaning of a time in `from`: appended, or event"),
                _parameter("on_gap", "what to do if records were removed: fail, earliest or latest"),
                _parameter("Last-Event-ID", "continue after the event with this id", "header"),
            ],
            "responses": {
                **_rows("records, with `next` to continue from"),
                **_problems(404, 406, 410, 429, 504),
            },
        },
    },
    "/hooks/{hook}": {
        "post": {
            "summary": "Deliver a webhook",
            "description": "Signed as the source is declared (Standard Webhooks, GitHub or Stripe), which needs no token. "
            "The response is sent once it is durable; a repeated delivery writes nothing and gets the same response.",
            "security": [],
            "parameters": [_parameter("hook", "the source's name", "path")],
            "requestBody": {"required": True, "content": {_ROWS_TYPES[0]: {"schema": {}}}},
            "responses": {
                "200": {
                    "description": "the receipt, also in the header Headwater-Receipt",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}}},
                },
                **_problems(404, 408, 409, 413, 415, 422, 429, 503, 504, 507),
            },
        }
    },
    "/views/{view}": {
        "get": {
            "summary": "Read a view",
            "description": "Any column is a parameter that filters by one or several values. A filter by the key reads only the "
            "rows that are found.",
            "parameters": [_parameter("view", "the view's name", "path"), _LIMIT, _AS_OF, _AFTER, _TIMEOUT],
            "responses": {**_rows("rows at one tick"), **_problems(404, 406, 410, 429, 503, 504)},
        }
    },
    "/views/{view}/changes": {
        "get": {
            "summary": "Follow a view",
            "description": "Server-sent events: snapshot, change, reset, error, end. The id is the tick.",
            "parameters": [
                _parameter("view", "the view's name", "path"),
                _parameter(
                    "since", "the last tick that was received, or latest; without it, all rows come first"
                ),
                _parameter("Last-Event-ID", "the same, as browsers send it", "header"),
            ],
            "responses": {
                "200": {"description": "events", "content": {"text/event-stream": {}}},
                **_problems(404, 406, 429, 503, 504),
            },
        }
    },
    "/query": {
        "post": {
            "summary": "One SELECT over topics and views",
            "description": "All relations are read at one tick. Functions that read files, use the network or inspect the server are rejected.",
            "parameters": [_LIMIT, _AS_OF, _AFTER, _TIMEOUT],
            "requestBody": {
                "required": True,
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "object",
                            "required": ["query"],
                            "properties": {
                                "query": {"type": "string"},
                                "as_of": {"type": ["integer", "string"]},
                                "after": {"type": "string"},
                                "limit": {"type": "integer"},
                            },
                        }
                    },
                    "application/sql": {"schema": {"type": "string"}},
                },
            },
            "responses": {
                **_rows("the result"),
                **_problems(404, 406, 408, 410, 413, 415, 422, 429, 503, 504),
            },
        }
    },
    "/sinks/{sink}/search": {
        "get": {
            "summary": "Search the index of a SEARCH sink",
            "parameters": [
                _parameter("sink", "the sink's name", "path"),
                _parameter("q", "words, phrases, column:word, +must, -not, AND, OR"),
                _parameter("filter", "price<=10, with = != < <= > >=; may be given several times"),
                _LIMIT,
                _parameter("offset", "number of hits to skip", kind="integer"),
                _parameter(
                    "highlight", "return the passage around the matching words, as HTML", kind="boolean"
                ),
                _parameter("columns", "text columns to search, separated by commas"),
            ],
            "responses": {**_rows("hits, best first, with _score"), **_problems(404, 406, 429, 503, 504)},
        }
    },
    "/metrics": {
        "get": {
            "summary": "Metrics for Prometheus",
            "responses": {
                "200": {"description": "text", "content": {"text/plain": {}}},
                **_problems(429, 504),
            },
        }
    },
    "/health": {
        "get": {
            "summary": "Liveness and readiness",
            "description": "200 as long as the process responds. /health/ready, or ?ready, is 503, with the reasons, while a component is unhealthy.",
            "security": [],
            "parameters": [_parameter("ready", "503 while it is not ready", kind="boolean")],
            "responses": {
                "200": {"description": "live", "content": {"application/json": {}}},
                "503": {"description": "not ready", "content": {"application/json": {}}},
            },
        }
    },
}

DOCUMENT: Plain = {
    "openapi": "3.1.0",
    "info": {
        "title": "Headwater",
        "version": __version__,
        "description": "A durable log and materialized views that are kept up to date with it.",
    },
    "paths": PATHS,
    "security": [{}, {"token": []}],
    "components": {
        "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        "responses": {
            "Problem": {
                "description": "the problem, with a hint (RFC 9457)",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
        },
        "schemas": {
            "Problem": {
                "type": "object",
                "required": ["type", "title", "status", "detail"],
                "properties": {
                    "type": {"type": "string"},
                    "title": {"type": "string"},
                    "status": {"type": "integer"},
                    "detail": {"type": "string"},
                    "hint": {"type": "string"},
                    "row": {"type": "integer"},
                    "column": {"type": "string"},
                },
            },
            "Receipt": {
                "type": "object",
                "required": ["receipt", "rows", "positions"],
                "properties": {
                    "receipt": {"type": "string"},
                    "rows": {"type": "integer"},
                    "positions": {"type": "object"},
                },
            },
            "Rows": {
                "type": "object",
                "required": ["rows"],
                "properties": {
                    "rows": {"type": "array", "items": {"type": "object"}},
                    "tick": {"type": ["integer", "null"]},
                    "more": {"type": "boolean"},
                    "next": {"type": "string"},
                },
            },
        },
    },
}


async def document(request: Request) -> Response:
    """GET /openapi.json: return the OpenAPI document."""
    del request
    return json_response(DOCUMENT)


async def page(request: Request) -> Response:
    """GET /docs: return the API as a page."""
    del request
    parts = []
    for path, methods in PATHS.items():
        for method, said in methods.items():
            rows = "".join(
                f"<tr><td><code>{html.escape(p['name'])}</code></td><td>{html.escape(p['in'])}</td>"
                f"<td>{html.escape(p['description'])}</td></tr>"
                for p in said.get("parameters", ())
            )
            body = "".join(
                f"<code>{html.escape(kind)}</code> "
                for kind in said.get("requestBody", {}).get("content", ())
            )
            answers = " ".join(f"<code>{status}</code>" for status in sorted(said["responses"]))
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(said['summary'])}. "
                f"{html.escape(said.get('description', ''))}</p>"
                + (f"<table>{rows}</table>" if rows else "")
                + (f"<p>Body: {body}</p>" if body else "")
                + f"<p>Answers: {answers}</p>"
            )
    return html_page(
        "Headwater over HTTP", "".join(parts) + '<p><a href="/openapi.json">openapi.json</a></p>'
    )


STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}"
    "table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;vertical-align:top}h2{margin-top:2rem;font-size:1.1rem}"
)


def html_page(title: str, body: str) -> HTMLResponse:
    """Return a page without scripts and external resources. `body` is HTML, with user input escaped."""
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style><h1>{html.escape(title)}</h1>{body}</html>",
        headers={
            "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
        },
    )
