"""Requests for the fuzzer: a grammar for every route of the server. A request follows from its seed alone, but for signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from urllib.parse import quote

from tests.web import fuzz_sql
from tests.web.fuzz_values import (
    BODIES,
    COLUMNS,
    TIMES,
    as_bytes,
    json_value,
    mutated,
    number,
    scalar_text,
    text,
)

SECRET = b"a secret of the fuzzer"
HOOK_COLUMNS = {
    "id": "BIGINT",
    "total": "DECIMAL(10, 2)",
    "at": "TIMESTAMP",
    "tags": "ARRAY<STRING>",
    "note": "STRING",
}
TOPICS = (
    "typed",
    "TYPED",
    "latest",
    "parted",
    "orders",
    "hooked",
    "copied",
    "_dead",
    "headwater_http_keys",
    "lost",
)
VIEWS = ("per_name", "priced", "priced.errors", "PER_NAME", "newest", "catalogue", "strict", "typed", "lost")
LETTERS = (
    "priced/orders-0-1",
    "priced/orders-0-2",
    "PRICED/orders-0-1",
    "priced/",
    "/",
    "lost/x",
    "priced",
    "a/b/c",
)
JSON_TYPE = "application/json"


@dataclass(frozen=True)
class Request:
    """One request, as the bytes that are sent."""

    method: str
    target: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes | None = None
    streams: bool = False
    """Whether a stream may be the answer: it is read for a moment only."""
    route: str = field(default="", compare=False)

    def encoded(self, host: str) -> bytes:
        """The request on the wire."""
        lines = [f"{self.method} ".encode() + self.target + b" HTTP/1.1", b"Host: " + host.encode()]
        lines += [name + b": " + value for name, value in self.headers]
        if self.body is not None:
            lines.append(f"Content-Length: {len(self.body)}".encode())
        return b"\r\n".join(lines) + b"\r\n\r\n" + (self.body or b"")


# --- parts ---------------------------------------------------------------------------------------------------------


def _name(rng: Random, known: tuple[str, ...]) -> str:
    found = rng.choice(known) if rng.random() < 0.85 else text(rng)
    return _escaped(rng, found)


def _escaped(rng: Random, said: str) -> str:
    """A part of a target: percent-encoded, at times more than it has to be, or with bytes that are no UTF-8."""
    if rng.random() < 0.03:
        return rng.choice(("%ff", "%00", "%2f", "%", "%zz", "%c0%af", "a%0d%0ab"))
    return quote(as_bytes(said), safe="" if rng.random() < 0.9 else "/")


def _query(rng: Random, parameters: dict[str, Callable[[Random], str]], often: float = 0.3) -> str:
    """A query string with some of the parameters, at times one of them twice, or one that there is not."""
    found = [
        f"{name}={_escaped(rng, make(rng))}" for name, make in parameters.items() if rng.random() < often
    ]
    if found and rng.random() < 0.08:
        found.append(rng.choice(found))
    if rng.random() < 0.04:
        found.append(f"{_escaped(rng, text(rng))}={_escaped(rng, scalar_text(rng))}")
    if rng.random() < 0.02:
        found.append(rng.choice(("&&", "=", "limit", "limit=", "?", ";a=b", "%")))
    return "?" + "&".join(found) if found else ""


def _from(*choices: str) -> Callable[[Random], str]:
    return lambda rng: rng.choice(choices) if rng.random() < 0.8 else scalar_text(rng)


_LIMIT = _from("1", "2", "10", "0", "-1", "1000000", "9223372036854775808", "9" * 30, "1e3", "+1", "١")
_TIME = _from(*TIMES)
_AFTER = _from(
    "typed:0@0-1",
    "typed:0@0-1;latest:0@0-9",
    "lost:0@0-1",
    "typed:0@5-2",
    "typed:0@0-" + "9" * 5_000,
    ";",
    "0/16B3748",
)
_TIMEOUT = _from("0", "0.01", "-1", "nan", "inf", "1e999", "301", "0x1")
_FLAG = _from("", "true", "false", "1", "maybe")


def _accept(rng: Random) -> list[tuple[bytes, bytes]]:
    if rng.random() < 0.6:
        return []
    choices = (
        *(
            "*/*",
            JSON_TYPE,
            "application/x-ndjson",
            "application/vnd.apache.arrow.stream",
            "text/event-stream",
            "text/html",
        ),
        *(
            "",
            ",",
            ";q=",
            "application/json;q=nan",
            "*/*;q=-1",
            "a/b, */*;q=0",
            "application/json;q=1e999",
            "x" * 3_000,
            "é",
        ),
    )
    return [(b"Accept", rng.choice(choices).encode())]


def _odd_headers(rng: Random) -> list[tuple[bytes, bytes]]:
    """Headers that a request may have, and that few have."""
    if rng.random() < 0.85:
        return []
    names = (
        "Last-Event-ID",
        "Idempotency-Key",
        "Range",
        "If-None-Match",
        "Authorization",
        "Origin",
        "Expect",
        "X-Odd",
        "Cookie",
    )
    names += (
        "Content-Encoding",
        "Access-Control-Request-Method",
        "Content-Type",
        "Forwarded",
        "Upgrade",
        "Accept-Encoding",
    )
    values = (
        "",
        "a",
        "0",
        "1",
        "bytes=0-1",
        "bytes=-9999999999999999999",
        "Bearer hw_x",
        "Bearer",
        "null",
        "http://localhost",
        "gzip",
    )
    values += (
        "\xff",
        "a\x01b",
        "x" * 8_000,
        "9" * 5_000,
        "100-continue",
        "identity",
        "0@1",
        "latest",
        "*",
        '"x"',
        "é\x80",
    )
    return [(rng.choice(names).encode(), rng.choice(values).encode("latin-1"))]


def _get(
    path: str,
    rng: Random,
    query: str = "",
    *,
    streams: bool = False,
    more: tuple[tuple[bytes, bytes], ...] = (),
) -> Request:
    headers = (*_accept(rng), *_odd_headers(rng), *more)
    return Request("GET", f"{path}{query}".encode("utf-8", "surrogatepass"), headers, streams=streams)


# --- topics, hooks, views, queries ---------------------------------------------------------------------------------


def _append(rng: Random) -> Request:
    media, make = rng.choice(list(BODIES.items()))
    body = make(rng)
    if rng.random() < 0.1:
        body = mutated(rng, body)
    if rng.random() < 0.04:
        media = rng.choice(
            (
                "text/plain",
                "",
                "application/jsonl",
                "application/json; charset=utf-16",
                "APPLICATION/JSON",
                *BODIES,
            )
        )
    topic = _name(rng, ("typed",) if rng.random() < 0.8 else TOPICS)
    headers = [(b"Content-Type", media.encode()), *_accept(rng), *_odd_headers(rng)]
    if rng.random() < 0.15:
        key = rng.choice(("a", "b", "x" * 256, "é", "", "k" + str(rng.randint(0, 50))))
        headers.append((b"Idempotency-Key", key.encode("latin-1")))
    return Request("POST", f"/topics/{topic}".encode(), tuple(headers), body)


def _read_topic(rng: Random) -> Request:
    columns = _from("id", "id,_offset", "nothing", "_sequence,_watermark", ",", "id,id", "*", *COLUMNS)
    follow = rng.random() < 0.1
    parameters: dict[str, Callable[[Random], str]] = {
        "from": _TIME,
        "limit": _LIMIT,
        "columns": columns,
        "partition": _from("0", "1", "-1", "99", "9" * 20),
        "by": _from("appended", "event", "x"),
        "on_gap": _from("fail", "earliest", "latest", "x"),
    }
    if follow:
        parameters["follow"] = _FLAG
    more = ((b"Last-Event-ID", rng.choice(TIMES).encode()),) if follow and rng.random() < 0.5 else ()
    return _get(f"/topics/{_name(rng, TOPICS)}", rng, _query(rng, parameters), streams=follow, more=more)


def _deliver(rng: Random) -> Request:
    parts = [f'"{name}":{json_value(rng, kind)}' for name, kind in HOOK_COLUMNS.items() if rng.random() < 0.6]
    body = as_bytes("{" + ",".join(parts) + "}") if rng.random() < 0.85 else BODIES[JSON_TYPE](rng)
    if rng.random() < 0.1:
        body = mutated(rng, body)
    name = rng.choice((f"msg_{rng.randint(0, 99_999)}", f"msg_{rng.randint(0, 9)}", "", "x" * 256, "\x7f"))
    at = int(time.time()) if rng.random() < 0.93 else rng.choice((0, -1, 10**11, 10**30))
    made = hmac.new(SECRET, f"{name}.{at}.".encode() + body, hashlib.sha256).digest()
    signature = (
        f"v1,{base64.b64encode(made).decode()}"
        if rng.random() < 0.93
        else rng.choice(("", "v1,", "v1,é", "v1,====", " " * 999))
    )
    headers = [
        (b"Content-Type", rng.choice((JSON_TYPE,) * 9 + ("text/plain",)).encode()),
        (b"webhook-id", name.encode("latin-1")),
        (b"webhook-timestamp", str(at).encode()),
        (b"webhook-signature", signature.encode()),
        (b"X-Price", number(rng).encode()[:4_000]),
        *_odd_headers(rng),
    ]
    return Request(
        "POST",
        f"/hooks/{_name(rng, ('hooked', 'hooked', 'HOOKED', 'unready', 'lost'))}".encode(),
        tuple(headers),
        body,
    )


def _changes(rng: Random) -> Request:
    more = ((b"Last-Event-ID", rng.choice(TIMES).encode()),) if rng.random() < 0.3 else ()
    path = f"/views/{_name(rng, VIEWS)}/changes"
    return _get(path, rng, _query(rng, {"since": _TIME}), streams=True, more=more)


def _read_view(rng: Random) -> Request:
    columns = dict.fromkeys((*COLUMNS, "n", "total", "amount"), scalar_text)
    chosen = {name: make for name, make in columns.items() if rng.random() < 0.15}
    own = {"limit": _LIMIT, "as_of": _TIME, "after": _AFTER, "timeout": _TIMEOUT}
    query = _query(rng, chosen, 0.9)
    rest = _query(rng, own, 0.2)
    return _get(f"/views/{_name(rng, VIEWS)}", rng, query + rest.replace("?", "&" if query else "?", 1))


def _ask(rng: Random) -> Request:
    said = fuzz_sql.query(rng)
    query = _query(rng, {"limit": _LIMIT, "as_of": _TIME, "after": _AFTER, "timeout": _TIMEOUT}, 0.08)
    if rng.random() < 0.3:
        return Request(
            "POST",
            f"/query{query}".encode(),
            ((b"Content-Type", b"application/sql"), *_accept(rng)),
            as_bytes(said),
        )
    members = [f'"query":{json.dumps(said)}']
    for name, make in (("limit", _LIMIT), ("as_of", _TIME), ("after", _AFTER), ("timeout", _TIMEOUT)):
        if rng.random() < 0.08:
            members.append(f'"{name}":{json.dumps(make(rng)) if rng.random() < 0.5 else json_value(rng)}')
    body = as_bytes("{" + ",".join(members) + "}")
    if rng.random() < 0.05:
        body = mutated(rng, body)
    headers = ((b"Content-Type", JSON_TYPE.encode()), *_accept(rng), *_odd_headers(rng))
    return Request("POST", f"/query{query}".encode(), headers, body)


def _search(rng: Random) -> Request:
    words = _from(
        "a",
        "shoe",
        '"red shoe"',
        "name:a",
        "+a -b",
        "a AND",
        "(",
        "a^1e99",
        "a~9",
        "name:[a TO b]",
        "*",
        "/(/",
        "IN [",
        "\\",
    )
    filters = _from(
        "id=1",
        "id<=9",
        "price>1e-999999999",
        "at<294247-01-01",
        "name=",
        "tags=a",
        "id",
        "=",
        "id!=" + "9" * 99,
        "day>0000-01-01",
    )
    parameters = {
        "q": words,
        "filter": filters,
        "limit": _LIMIT,
        "offset": _LIMIT,
        "highlight": _FLAG,
        "columns": _from("name", "id", "nothing", ",", "name,name"),
    }
    return _get(
        f"/sinks/{_name(rng, ('found', 'FOUND', 'copy', 'lost'))}/search", rng, _query(rng, parameters)
    )


# --- the console ---------------------------------------------------------------------------------------------------


def _order(rng: Random) -> Request:
    values = (
        "{"
        + ",".join(f"{json.dumps(name)}:{json_value(rng)}" for name in ("id", "amount") if rng.random() < 0.6)
        + "}"
    )
    members = {
        "action": json.dumps(rng.choice(("replay", "drop", "edit")))
        if rng.random() < 0.9
        else json_value(rng),
        "letter": json.dumps(rng.choice(LETTERS)) if rng.random() < 0.9 else json_value(rng),
        "values": values if rng.random() < 0.8 else json_value(rng),
        "reason": '"typo"' if rng.random() < 0.6 else json_value(rng),
        "expect": rng.choice(("0", "1", "-1", "1e9", "99999999999999999999", '"1"', "null", "true")),
        "force": rng.choice(("true", "false", json_value(rng))),
    }
    chosen = {n: v for n, v in members.items() if n in ("action", "letter") or rng.random() < 0.4}
    body = as_bytes("{" + ",".join(f'"{n}":{v}' for n, v in chosen.items()) + "}")
    if rng.random() < 0.05:
        body = mutated(rng, body)
    return Request(
        "POST", b"/console/api/dead", ((b"Content-Type", JSON_TYPE.encode()), *_odd_headers(rng)), body
    )


def _console(
    path: str, names: tuple[str, ...] = (), *, streams: bool = False, **parameters: Callable[[Random], str]
) -> Callable[[Random], Request]:
    def make(rng: Random) -> Request:
        place = path.replace("{}", _name(rng, names)) if names else path
        return _get(place, rng, _query(rng, parameters), streams=streams)

    return make


_API = "/console/api"
GRAMMARS: dict[tuple[str, str], tuple[float, Callable[[Random], Request]]] = {
    ("POST", "/topics/{topic}"): (30, _append),
    ("GET", "/topics/{topic}"): (12, _read_topic),
    ("POST", "/hooks/{hook}"): (8, _deliver),
    ("GET", "/views/{view}/changes"): (3, _changes),
    ("GET", "/views/{view}"): (12, _read_view),
    ("POST", "/query"): (14, _ask),
    ("GET", "/sinks/{sink}/search"): (5, _search),
    ("GET", "/metrics"): (0.5, _console("/metrics")),
    ("GET", "/health"): (0.5, _console("/health", ready=_FLAG)),
    ("GET", "/health/ready"): (0.5, _console("/health/ready")),
    ("GET", "/openapi.json"): (0.2, _console("/openapi.json")),
    ("GET", "/docs"): (0.2, _console("/docs")),
    ("GET", "/plain"): (0.5, _console("/plain")),
    ("GET", "/"): (0.2, _console("/")),
    ("GET", f"{_API}/live"): (0.5, _console(f"{_API}/live", streams=True)),
    ("GET", f"{_API}/graph"): (0.5, _console(f"{_API}/graph")),
    ("GET", f"{_API}/topics/{{name}}/tail"): (1, _console(f"{_API}/topics/{{}}/tail", TOPICS, streams=True)),
    ("GET", f"{_API}/topics/{{name}}/time"): (1, _console(f"{_API}/topics/{{}}/time", TOPICS, rows=_LIMIT)),
    ("GET", f"{_API}/topics/{{name}}"): (1, _console(f"{_API}/topics/{{}}", TOPICS)),
    ("GET", f"{_API}/views/{{name}}/rows"): (
        3,
        _console(
            f"{_API}/views/{{}}/rows",
            VIEWS,
            as_of=_TIME,
            search=text,
            sort=_from("id", "-id", "name", "n", "-"),
            limit=_LIMIT,
        ),
    ),
    ("GET", f"{_API}/views/{{name}}"): (1, _console(f"{_API}/views/{{}}", VIEWS)),
    ("GET", f"{_API}/sources/{{name}}"): (1, _console(f"{_API}/sources/{{}}", ("hooked", "unready", "lost"))),
    ("GET", f"{_API}/sinks/{{name}}"): (1, _console(f"{_API}/sinks/{{}}", ("found", "copy", "lost"))),
    ("GET", f"{_API}/ticks"): (0.5, _console(f"{_API}/ticks", limit=_LIMIT)),
    ("GET", f"{_API}/ticks/{{tick}}"): (1, _console(f"{_API}/ticks/{{}}", ("1", "2", "999", *TIMES))),
    ("GET", f"{_API}/dead"): (
        1,
        _console(
            f"{_API}/dead",
            of=_from("priced", "lost"),
            state=_from("open", "all", "edited", "x"),
            limit=_LIMIT,
        ),
    ),
    ("GET", f"{_API}/dead/letter"): (1, _console(f"{_API}/dead/letter", id=_from(*LETTERS))),
    ("POST", f"{_API}/dead"): (3, _order),
    ("GET", "/console/{file}"): (0.5, _console("/console/{}", ("index.html", "..", "..%2fapp.py", "a/b"))),
}
"""By method and path, as the application has them: how often a route is asked, and what makes a request for it."""

_METHODS = ("HEAD", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "POST", "GET", "BREW")


def request_of(seed: str) -> Request:
    """The request of a seed."""
    rng = Random(seed)
    routes = list(GRAMMARS)
    route = rng.choices(routes, [GRAMMARS[each][0] for each in routes])[0]
    made = GRAMMARS[route][1](rng)
    method, target, body = made.method, made.target, made.body
    if rng.random() < 0.02:
        method = rng.choice(_METHODS)
    if rng.random() < 0.01:
        target = rng.choice(
            (
                target + b"/",
                b"/" + target,
                target.replace(b"/", b"//"),
                target[:9],
                b"*",
                b"http://a/b",
                target + b"%",
            )
        )
    if rng.random() < 0.01 and body is None:
        body = BODIES[JSON_TYPE](rng)
    return Request(method, target.replace(b" ", b"%20"), made.headers, body, made.streams, " ".join(route))
