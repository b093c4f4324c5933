"""Reads of views and topics from what is committed: no engine, no Spark. A query that only Spark could answer is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import TickNotKeptError, UsageError
from headwater.queries import statements as s
from headwater.queries.dialect import words_of
from headwater.queries.parsing import parse
from headwater.queries.serving import TooLongError, decline_reason, serve
from headwater.runtime.nearest import names_hinted
from headwater.runtime.reading import Relation, not_run_yet, relations
from headwater.state.manifest import Manifest
from headwater.web.problems import Problem

if TYPE_CHECKING:
    from headwater.log.protocol import Log
    from headwater.runtime.views import Views

_UNKNOWN = re.compile(r"the relation '(.*)', which is not known$")
LOOKUPS_MAX = 100
"""So many keys are looked up one by one; for more the view is read whole."""


@dataclass(frozen=True)
class Found:
    """Rows, and the tick that they are of; None if no tick was made yet."""

    rows: pa.Table
    tick: int | None


def manifest_at(views: Views, as_of: int | datetime | None) -> Manifest | None:
    """The tick to read; Problem 410 if it is not kept, and could only be computed by Spark."""
    try:
        return views.at(as_of)
    except TickNotKeptError as error:
        tick = error.facts.get("tick")
        kept = views.store.ticks()
        if isinstance(tick, int) and kept and tick < kept[0]:
            raise Problem(
                410,
                "tick-not-kept",
                f"tick {tick} is read from its own files no more: the first that is, is {kept[0]}",
                hint=f"ws.query(..., as_of={tick}) computes it from the log, with Spark",
                facts={"tick": tick, "first_available": kept[0], "last_available": kept[-1]},
            ) from None
        raise


def view_relation(log: Log, views: Views, name: str, manifest: Manifest | None) -> Relation:
    """A view, or what it gives beside its rows, at a tick; ViewNotFoundError."""
    spelled = views.spelled(name)
    found = relations(log, views.store, manifest, {spelled.lower()})[spelled.lower()]
    if manifest is None:
        raise not_run_yet(spelled)
    return found


def rows_equal(relation: Relation, equal: Mapping[str, list[Any]], limit: int) -> pa.Table:
    """The rows in which each of these columns has one of its values, so many at most. By the key it costs what is found."""
    names = list(equal)
    combinations = 1
    for values in equal.values():
        combinations *= len(values)
    if combinations > LOOKUPS_MAX:
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


def query(
    log: Log, views: Views, text: str, as_of: int | datetime | None, *, rows_max: int, seconds: float
) -> Found:
    """The answer to one SELECT over views and topics, all at one tick: its first rows; Problem 504 if it takes longer than it may.

    It is answered in this process, out of parts that are each known to mean what they mean in Spark: there is no function
    among them that reads files, talks to a network or reaches into the server. What is not among them is refused.
    """
    statements = parse(text)
    if len(statements) != 1 or not isinstance(statements[0], s.Query):
        raise UsageError("a query is one SELECT", hint="other statements are for `headwater sql`")
    names = {w.text.lower() for w in words_of(text) if w.is_name}
    manifest = manifest_at(views, as_of)
    with names_hinted(log):
        known = relations(log, views.store, manifest, names)
        try:
            answer = serve(text, known, rows_max=rows_max, seconds=seconds)
        except TooLongError:
            raise Problem(
                504,
                "query-too-slow",
                f"this query took longer than {seconds:g} s, and was broken off",
                hint="make it a view and read that; or let queries take longer: headwater serve --query-timeout '2 minutes'",
                facts={"seconds_max": seconds},
            ) from None
    if answer is None:
        reason = decline_reason(text, known) or "it fails on the rows that are there"
        if (unknown := _UNKNOWN.match(reason)) is not None:
            raise views.no_relation(unknown[1])
        raise Problem(
            422,
            "query-refused",
            f"this query is not answered over HTTP: {reason}",
            hint="`headwater sql` and ws.query run it with Spark; or make it a view and read that",
            facts={"reason": reason},
        )
    return Found(answer, None if manifest is None else manifest.tick)
