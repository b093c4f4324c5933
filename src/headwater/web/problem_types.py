"""Problem types of the HTTP API: those of the server itself, and those that each route can answer, for the reference and for tests.

Only the list; a problem is raised where it occurs. The other types are codes of errors, whose statuses are in `problems`.
"""

from __future__ import annotations

from collections.abc import Mapping

SERVER_PROBLEMS: Mapping[str, tuple[tuple[int, ...], str]] = {
    "answer-too-large": ((422,), "The rows of the answer have more bytes than one answer may have."),
    "bad-idempotency-key": ((400,), "The `Idempotency-Key` is empty or too long."),
    "body-too-large": ((413,), "The body, or what it contains once it is decoded, exceeds a limit."),
    "body-too-slow": ((408,), "The body did not arrive in time."),
    "foreign-host": ((400, 421), "The `Host` header is missing, or is not a name of the server."),
    "foreign-origin": ((403,), "The request comes from a web page of an origin that is not allowed."),
    "head-too-slow": ((408,), "The head of the request did not arrive in time."),
    "hook-not-ready": (
        (503,),
        "The secret of the webhook source is not set in the environment of the server.",
    ),
    "idempotency-key-reused": ((422,), "The `Idempotency-Key` was used for another body."),
    "internal-error": (
        (500,),
        "An unexpected error, whose details are in the server's log under the `id` of the problem.",
    ),
    "no-engine": ((503,), "No engine runs that would make the tick that `after` waits for."),
    "no-such-file": ((404,), "The console has no file of that name."),
    "no-such-hook": ((404,), "There is no webhook source of that name."),
    "no-such-route": ((404,), "There is no route for the path."),
    "no-token": ((401,), "The request has no token, or one that is unknown or revoked."),
    "no-token-left": ((401,), "All tokens of the workspace were revoked."),
    "not-acceptable": ((406,), "The route has none of the media types of the `Accept` header."),
    "not-written-yet": (
        (504,),
        "The rows were not written in time, and may be written later; a repetition under the same key is safe.",
    ),
    "not-yours": ((403,), "Only the server itself writes to the topic."),
    "query-refused": ((422,), "The query cannot be answered over HTTP; the detail says why."),
    "query-too-slow": ((504,), "The query took too long, and was stopped."),
    "refused": ((400,), "The HTTP layer rejected the request; the status says why."),
    "starting": ((503,), "The server has not started yet."),
    "tick-not-kept": ((404, 410), "The tick does not exist yet, or is no longer kept."),
    "too-busy": ((429,), "Too much is being read or written; retry after `Retry-After`."),
    "too-many-connections": ((503,), "The server has as many connections as it allows."),
    "too-many-streams": ((429,), "The server has as many open streams as it allows."),
    "too-slow": ((504,), "The request took too long."),
    "unsupported-encoding": ((415,), "The `Content-Encoding` is not supported."),
    "unsupported-media-type": ((415,), "The `Content-Type` is missing or not supported."),
    "wrong-method": ((405,), "The route does not have the method."),
    "wrong-scope": ((403,), "The token is for reading and the route writes, or the other way round."),
}
"""Problem types that are raised in this package: their statuses and their meaning. `tick-not-kept` is an error's code too."""

EVERYWHERE = (
    "bad-request",
    "closed",
    "foreign-host",
    "foreign-origin",
    "head-too-slow",
    "internal-error",
    "no-such-route",
    "no-token",
    "no-token-left",
    "refused",
    "starting",
    "too-many-connections",
    "wrong-method",
    "wrong-scope",
)
"""Types that every route can answer."""

_POST = (
    "bad-row",
    "body-too-large",
    "body-too-slow",
    "backlog",
    "disk-full",
    "fenced",
    "log-timeout",
    "not-written-yet",
    "too-busy",
    "unsupported-media-type",
)
_READ = ("not-acceptable", "too-busy", "too-slow")
_TICK = (
    "log-timeout",
    "no-engine",
    "other-history",
    "source-unreachable",
    "tick-not-kept",
    "view-unavailable",
)
ROUTE_PROBLEMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("POST", "/topics/{topic}"): (
        *_POST,
        "bad-idempotency-key",
        "idempotency-key-reused",
        "not-yours",
        "schema",
        "topic-not-found",
        "unsupported-encoding",
    ),
    ("GET", "/topics/{topic}"): (*_READ, "gap", "other-history", "too-many-streams", "topic-not-found"),
    ("POST", "/hooks/{hook}"): (*_POST, "hook-not-ready", "no-such-hook", "signature"),
    ("GET", "/views/{view}"): (*_READ, *_TICK, "view-not-found"),
    ("GET", "/views/{view}/changes"): (
        *_READ,
        "too-many-streams",
        "view-not-found",
        "view-unavailable",
    ),
    ("POST", "/query"): (
        *_TICK,
        "answer-too-large",
        "body-too-large",
        "body-too-slow",
        "not-acceptable",
        "query-refused",
        "query-too-slow",
        "statement",
        "too-busy",
        "topic-not-found",
        "unsupported-media-type",
        "view-not-found",
    ),
    ("GET", "/sinks/{sink}/search"): (*_READ, "sink-not-found", "target-down"),
    ("GET", "/metrics"): ("too-busy", "too-slow"),
    ("GET", "/health"): (),
}
"""Types that a route can answer besides those of `EVERYWHERE`."""
