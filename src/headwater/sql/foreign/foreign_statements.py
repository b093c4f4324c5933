"""Statements of other engines, each rejected with the equivalent statement of Headwater."""

from __future__ import annotations

from headwater.core.types import quote
from headwater.sql.lexer import Words

_SOURCE = "CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders')"
_SINK = "CREATE SINK name FROM view INTO POSTGRES WITH (url = env('SHOP_URL'), table = 'out', key = 'id')"
_STATEMENTS = {
    "INSERT": (
        "rows are appended, not inserted, and a view keeps itself up to date",
        f"ws.topic(name).append(rows) or `headwater append` writes rows; what INSERT INTO a sink does is {_SINK}",
    ),
    "COPY": (
        "rows are appended by the command line",
        "`headwater append TOPIC FILE` reads CSV, JSON and Parquet",
    ),
    "EXECUTE": (
        "there are no statement sets: every view and sink runs by itself",
        f"for each INSERT INTO: {_SINK}",
    ),
    "BEGIN": (
        "there are no transactions of statements, and no statement sets",
        'ws.append({"orders": rows, "payments": rows}) is one atomic append over several topics',
    ),
    "SET": (
        "there are no settings of a session",
        "options stand in WITH (...), and ALTER TOPIC name SET (...) changes them",
    ),
    "FLUSH": ("there is nothing to flush", "ws.run() or `headwater run --once` brings every view up to date"),
    "REFRESH": (
        "views are kept up to date",
        "ws.run() or `headwater run --once` brings every view up to date",
    ),
    "USE": (
        "a workspace has one namespace",
        "hw.open(folder) and `headwater -w folder` choose the workspace",
    ),
    "TRUNCATE": (
        "a log is not truncated",
        "ALTER TOPIC name SET (retention = '7 days') removes what is older",
    ),
}
_STATEMENTS["COMMIT"] = _STATEMENTS["ROLLBACK"] = _STATEMENTS["START"] = _STATEMENTS["BEGIN"]
_KINDS = {
    "INDEX": (
        "views need no index: their rows are found by their key",
        "CREATE MATERIALIZED VIEW name AS SELECT ... GROUP BY <the columns to look up by>",
    ),
    "SECRET": ("secrets stay outside of the catalog", "write url = env('NAME') in WITH (...)"),
    "CONNECTION": ("a source and a sink have their own options", _SOURCE),
    "FUNCTION": ("functions are declared in Python", 'ws.function("name", fn, returns="BIGINT")'),
    "AGGREGATE": ("functions are declared in Python", 'ws.aggregate("name", ...)'),
    "DATABASE": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "SCHEMA": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "CATALOG": ("a workspace has one namespace", "hw.open(folder) makes another workspace"),
    "CLUSTER": ("a workspace has one engine", "`headwater run` starts it"),
    "USER": ("tokens stand for users", "`headwater serve` takes tokens for reading and for writing"),
    "CONTINUOUS": ("every view is continuous", "write CREATE MATERIALIZED VIEW name AS SELECT ..."),
}


def refuse_statement(words: Words) -> None:
    """Reject a statement of another engine that begins at the next word, with its equivalent as a hint."""
    first = words.next
    if first.kind != "word":
        return
    if first.is_("SUBSCRIBE", "TAIL"):
        _refuse_subscription(words)
    if (told := _STATEMENTS.get(first.text.upper())) is not None:
        words.fail(told[0], hint=told[1])


def refuse_kind(words: Words, verb: str) -> None:
    """Reject a kind of object after CREATE or DROP that other engines have, with its equivalent as a hint."""
    word = words.next
    if word.kind != "word":
        return
    if word.is_("STREAM", "TABLE"):
        _refuse_table(words, verb)
    if (told := _KINDS.get(word.text.upper())) is not None and not words.ahead(1).is_("(", "."):
        words.fail(told[0], hint=told[1])


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
        f"{words.next.text.upper()} is a call of Python, or a stream of HTTP",
        hint=f'ws.subscribe("{text}"); or GET /views/<view>/changes of `headwater serve`',
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
    words.fail(f"Headwater has no {kind.text.lower()}s to {verb}", at=kind, hint=hint)
