"""Statements of other engines, each rejected with the equivalent statement of Headwater."""

from __future__ import annotations

from headwater.core.types import quote
from headwater.sql.lexer import Words

_SOURCE = "CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders')"
_SINK = "CREATE SINK name FROM view INTO POSTGRES WITH (url = env('SHOP_URL'), table = 'out', key = 'id')"
_STATEMENTS = {
    "INSERT": (
        "INSERT is not supported: rows are appended to topics, and views update themselves",
        f"ws.topic(name).append(rows) or `headwater append` writes rows; for INSERT INTO a sink, write {_SINK}",
    ),
    "COPY": (
        "COPY is not supported",
        "`headwater append TOPIC FILE` reads CSV, JSON and Parquet",
    ),
    "EXECUTE": (
        "statement sets are not supported: every view and sink runs by itself",
        f"write for each INSERT INTO: {_SINK}",
    ),
    "BEGIN": (
        "transactions of statements and statement sets are not supported",
        'ws.append({"orders": rows, "payments": rows}) is one atomic append over several topics',
    ),
    "SET": (
        "SET is not supported: sessions have no settings",
        "write options in WITH (...); ALTER TOPIC name SET (...) changes them",
    ),
    "FLUSH": (
        "FLUSH is not supported: views update themselves",
        "ws.run() or `headwater run --once` updates every view",
    ),
    "REFRESH": (
        "REFRESH is not supported: views update themselves",
        "ws.run() or `headwater run --once` updates every view",
    ),
    "USE": (
        "a workspace has one namespace",
        "hw.open(folder) and `headwater -w folder` choose the workspace",
    ),
    "TRUNCATE": (
        "TRUNCATE is not supported",
        "ALTER TOPIC name SET (retention = '7 days') removes older records",
    ),
}
_STATEMENTS["COMMIT"] = _STATEMENTS["ROLLBACK"] = _STATEMENTS["START"] = _STATEMENTS["BEGIN"]
_KINDS = {
    "INDEX": (
        "indexes are not supported: rows of a view are found by its key",
        "CREATE MATERIALIZED VIEW name AS SELECT ... GROUP BY <the columns to look up by>",
    ),
    "SECRET": ("secrets are not stored in the catalog", "write url = env('NAME') in WITH (...)"),
    "CONNECTION": ("connections are not supported: every source and sink has its own options", _SOURCE),
    "FUNCTION": ("functions are declared in Python", 'ws.function("name", fn, returns="BIGINT")'),
    "AGGREGATE": ("functions are declared in Python", 'ws.aggregate("name", ...)'),
    "DATABASE": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "SCHEMA": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "CATALOG": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "CLUSTER": ("clusters are not supported: a workspace has one engine", "`headwater run` starts it"),
    "USER": (
        "users are not supported: access tokens are",
        "`headwater serve` takes tokens with the scope read or write",
    ),
    "CONTINUOUS": ("views are always continuous", "write CREATE MATERIALIZED VIEW name AS SELECT ..."),
}


def refuse_statement(words: Words) -> None:
    """Reject a statement of another engine that begins at the next word, with its equivalent as a hint."""
    first = words.next
    if first.kind != "word":
        return
    if first.is_("SUBSCRIBE", "TAIL"):
        _refuse_subscription(words)
    if (known := _STATEMENTS.get(first.text.upper())) is not None:
        words.fail(known[0], hint=known[1], reason="other-dialect", keyword=words.next.text.upper())


def refuse_kind(words: Words, verb: str) -> None:
    """Reject a kind of object after CREATE or DROP that other engines have, with its equivalent as a hint."""
    word = words.next
    if word.kind != "word":
        return
    if word.is_("STREAM", "TABLE"):
        _refuse_table(words, verb)
    if (known := _KINDS.get(word.text.upper())) is not None and not words.ahead(1).is_("(", "."):
        words.fail(known[0], hint=known[1], reason="other-dialect", keyword=words.next.text.upper())


def _refuse_subscription(words: Words) -> None:
    query = words.statement()[1:]
    if query and query[0].is_("TO"):
        query = query[1:]
    if query and query[0].is_("("):
        query = query[1:-1]
    text = words.text[query[0].start : query[-1].end] if query else "view"
    if len(query) <= 1:
        text = f"SELECT * FROM {text}"
    words.fail(
        f"{words.next.text.upper()} is not a statement of Headwater; Python and HTTP have subscriptions",
        hint=f'ws.subscribe("{text}"); or GET /views/<view>/changes of `headwater serve`',
        reason="other-dialect",
        keyword=words.next.text.upper(),
    )


def _refuse_table(words: Words, verb: str) -> None:
    kind = words.next
    rest = words.statement()
    name = next(
        (word.text for word in rest[1:] if word.is_name and not word.is_("IF", "NOT", "EXISTS")), "name"
    )
    hint = f"write {verb} TOPIC {quote(name)}"
    if verb == "CREATE" and any(
        word.text.lower().strip("'") in ("connector", "kafka_topic") for word in rest
    ):
        hint = f"write CREATE TOPIC {quote(name)} (...), and append to it; or let a source make its topics: {_SOURCE}"
    elif verb == "CREATE":
        hint += " (...)"
    words.fail(
        f"Headwater has no {kind.text.lower()}s to {verb}",
        at=kind,
        hint=hint,
        reason="other-dialect",
        keyword=kind.text.upper(),
    )
