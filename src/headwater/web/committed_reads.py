"""Reads views and topics from committed state: no engine, no Spark. Queries that only Spark could answer are rejected."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.errors import TickNotKeptError, UsageError
from headwater.serving.name_hints import names_hinted
from headwater.serving.query import QueryRelation, not_run_yet, relations
from headwater.sql import statements as s
from headwater.sql.duckdb.serve import (
    QUERY_CHARACTERS_MAX,
    HeavyError,
    TooLargeError,
    TooLongError,
    serve_or_reason,
)
from headwater.sql.lexer import words_of
from headwater.sql.parser import parse
from headwater.state.manifest import Manifest
from headwater.web.problems import Problem
from headwater.web.worker_threads import query_too_slow

if TYPE_CHECKING:
    from headwater.log.protocol import Log
    from headwater.sql.duckdb.query_processes import QueryProcesses
    from headwater.views.view_manager import Views

_UNKNOWN = re.compile(r"the relation '(.*)', which is not known$")
_LONG_NUMBER = re.compile(r"[0-9]{4001}")
"""Python rejects whole numbers of more than 4,300 digits."""
LOOKUPS_MAX = 100
"""Number of keys that are looked up one by one; for more, the whole view is read."""


@dataclass(frozen=True)
class ReadResult:
    """Rows, and the tick that they are read at; None if no tick was committed yet."""

    rows: pa.Table
    tick: int | None


def manifest_at(views: Views, as_of: int | str | datetime | None) -> Manifest | None:
    """Return the manifest of the tick to read; Problem 410 if the tick is no longer kept, so that only Spark could
    recompute it."""
    try:
        return views.reads.at(as_of)
    except TickNotKeptError as error:
        tick = error.facts.get("tick")
        kept = views.store.ticks()
        if isinstance(tick, int) and kept and tick < kept[0]:
            raise Problem(
                410,
                "tick-not-kept",
                f"the files of tick {tick} were removed: the first tick with files is {kept[0]}",
                hint=f"ws.query(..., as_of={tick}) recomputes it from the log, with Spark",
                facts={"tick": tick, "first_available": kept[0], "last_available": kept[-1]},
            ) from None
        raise


def view_relation(log: Log, views: Views, name: str, manifest: Manifest | None) -> QueryRelation:
    """Return a view, or a relation derived from it such as `<view>.late`, at a tick; ViewNotFoundError."""
    stored = views.names.canonical_name(name)
    found = relations(log, views.store, manifest, {stored.lower()})[stored.lower()]
    if manifest is None:
        raise not_run_yet(stored)
    return found


def is_lookup(relation: QueryRelation, equal: Mapping[str, list[Any]]) -> bool:
    """Whether rows with these column values are found without reading all rows: by the key, or because no value is
    required."""
    by_key = bool(relation.key) and all(name in equal for name in relation.key)
    return not equal or (by_key and prod(map(len, equal.values())) <= LOOKUPS_MAX)


def rows_equal(relation: QueryRelation, equal: Mapping[str, list[Any]], limit: int) -> pa.Table:
    """Return at most `limit` rows in which each column has one of its values. By the key, the cost is that of the rows
    found."""
    names = list(equal)
    if not equal:
        return relation.read(None, None, limit).slice(0, limit)
    if prod(map(len, equal.values())) > LOOKUPS_MAX:
        return _kept(relation.read(None, None), equal).slice(0, limit)
    parts = []
    for chosen in product(*(dict.fromkeys(equal[name]) for name in names)):
        wanted = dict(zip(names, chosen, strict=True))
        parts.append(_kept(relation.read(None, wanted or None), {n: [v] for n, v in wanted.items()}))
    return (parts[0] if len(parts) == 1 else pa.concat_tables(parts)).slice(0, limit)


def _kept(rows: pa.Table, equal: Mapping[str, list[Any]]) -> pa.Table:
    mask = None
    for name, values in equal.items():
        column = rows.column(name)
        if len(values) == 1:
            part = pc.equal(column, pa.scalar(values[0], column.type))
        else:
            part = pc.is_in(column, value_set=pa.array(values, column.type))
        mask = part if mask is None else pc.and_(mask, part)
    return rows if mask is None else rows.filter(mask)


@dataclass(frozen=True)
class AnswerBounds:
    """Bounds of an answer: its rows and bytes, and the time that the query may take."""

    rows_max: int
    bytes_max: int
    seconds: float
    """Time limit of the query, in seconds; `until_s` is its deadline on the monotonic clock."""
    until_s: float


@dataclass(frozen=True)
class SelectRequest:
    """One SELECT over views and topics, all at one tick, and its bounds."""

    text: str
    known: Mapping[str, QueryRelation]
    tick: int | None
    bounds: AnswerBounds

    def soon(self, views: Views, log: Log, seconds: float) -> ReadResult | None:
        """Return the result if it is computed in this thread within `seconds`; None if the query must run in a process.
        Problem 504 if the query's time is over.

        Only SQL that is known to have Spark's semantics is accepted: no function in it reads files, uses the network or
        accesses the server. Everything else is rejected.
        """
        left = self.bounds.until_s - time.monotonic()
        with names_hinted(log):
            try:
                answer = serve_or_reason(
                    self.text,
                    self.known,
                    rows_max=self.bounds.rows_max,
                    bytes_max=self.bounds.bytes_max,
                    seconds=min(left, seconds),
                    light=True,
                )
            except HeavyError:
                return None
            except TooLongError:
                if left > seconds:
                    return None
                raise query_too_slow(self.bounds.seconds) from None
            except TooLargeError:
                raise _too_large(self.bounds.bytes_max) from None
            return self._result(views, answer)

    def at_last(self, views: Views, log: Log, processes: QueryProcesses) -> ReadResult:
        """Return the result computed by a process; Problem 504 at the query's deadline, at which the process is killed
        if necessary."""
        with names_hinted(log):
            try:
                answer = processes.run(
                    self.text,
                    self.known,
                    rows_max=self.bounds.rows_max,
                    bytes_max=self.bounds.bytes_max,
                    until_s=self.bounds.until_s,
                )
            except TooLongError:
                raise query_too_slow(self.bounds.seconds) from None
            except TooLargeError:
                raise _too_large(self.bounds.bytes_max) from None
            return self._result(views, answer)

    def _result(self, views: Views, answer: pa.Table | str) -> ReadResult:
        if isinstance(answer, str):
            raise _refused(views, answer)
        return ReadResult(answer, self.tick)


def select_request(
    log: Log, views: Views, text: str, as_of: int | str | datetime | None, bounds: AnswerBounds
) -> SelectRequest:
    """Return the request of a query, parsed as far as needed to check that it is a SELECT and to find the relations
    that it reads."""
    if len(text) > QUERY_CHARACTERS_MAX:
        raise _refused(views, f"it has more than {QUERY_CHARACTERS_MAX:,} characters")
    if _LONG_NUMBER.search(text):
        raise UsageError("a number in the query has more than 4,000 digits", reason="long-number")
    statements = parse(text)
    if len(statements) != 1 or not isinstance(statements[0], s.QueryText):
        raise UsageError(
            "a query must be exactly one SELECT",
            hint="`headwater sql` runs other statements",
            reason="not-a-select",
        )
    names = {w.text.lower() for w in words_of(text) if w.is_name}
    manifest = manifest_at(views, as_of)
    with names_hinted(log):
        known = relations(log, views.store, manifest, names)
    tick = None if manifest is None else manifest.tick
    return SelectRequest(text, known, tick, bounds)


def _refused(views: Views, reason: str) -> Exception:
    if (unknown := _UNKNOWN.match(reason)) is not None:
        return views.names.no_relation(unknown[1])
    return Problem(
        422,
        "query-refused",
        f"this query cannot be answered over HTTP: {reason}",
        hint="`headwater sql` and ws.query run it with Spark; or create a view of it, and read the view",
        facts={"reason": reason},
    )


def _too_large(bytes_max: int) -> Problem:
    return Problem(
        422,
        "answer-too-large",
        f"the rows of the response have more than {bytes_max:,} bytes",
        hint="request fewer rows, with limit, or fewer columns",
        facts={"bytes_max": bytes_max},
    )
