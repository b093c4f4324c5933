"""Standing queries from programs: queries are stored, removed and listed. `ws.standing(name)` returns a `StandingQueries`.

The module needs the log alone: queries are records, and the engine matches documents with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.arguments import span_us
from headwater.core.arguments import text as text_of
from headwater.core.clock import Clock, format_span
from headwater.core.errors import HeadwaterError, UsageError, ViewNotFoundError
from headwater.core.positions import Receipt
from headwater.engine.collections.version_table import all_records
from headwater.engine.collections.workload import definitions
from headwater.log.protocol import Log
from headwater.log.topic import Topic
from headwater.plan.percolator.stored_query import StoredQueryReader
from headwater.serving.name_hints import suggest
from headwater.serving.spark_batch import current_rows
from headwater.sql.standing_statements import QUERIES, StandingDefinition, parse_standing


class StandingQueries:
    """The stored queries of one name. A query applies to the documents that are committed after it, or with it."""

    def __init__(self, log: Log, clock: Clock, name: str) -> None:
        self._log = log
        self._clock = clock
        self.name, self.standing = find_standing(log, name)
        self._read: tuple[object, StoredQueryReader] | None = None

    def __repr__(self) -> str:
        return f"<StandingQueries {self.name}>"

    def add(
        self,
        id: str,
        query: str,
        *,
        owner: str | None = None,
        kind: str = "lucene",
        backfill: str | timedelta | None = None,
        allow_scans: bool = False,
    ) -> Receipt:
        """Store a query, in place of an earlier one with this id. StatementError, underlining the mistake, if it cannot be
        parsed, or if every document would have to be matched against it and that is not allowed.

        `kind` is 'lucene' or 'sql', a condition over the columns of documents. `backfill`, such as '7 days', also applies
        the query to earlier documents, those no older than that now.
        """
        made = self.record(id, query, owner=owner, kind=kind, backfill=backfill, allow_scans=allow_scans)
        return self._topic.append([made])

    def add_all(self, queries: Iterable[Mapping[str, Any]] | pa.Table) -> Receipt:
        """Store many queries in one commit: mappings, or a table, with `id`, `query` and the other arguments of `add`. If
        one is rejected none is stored, and the error names it."""
        rows = queries.to_pylist() if isinstance(queries, pa.Table | pa.RecordBatch) else queries
        reader = self._reader()
        return self._topic.append([_one_of_many(reader, row) for row in rows])

    def record(
        self,
        id: str,
        query: str,
        *,
        owner: str | None = None,
        kind: str = "lucene",
        backfill: str | timedelta | None = None,
        allow_scans: bool = False,
    ) -> dict[str, Any]:
        """Return the validated record of a query, to be appended together with others: `ws.append({"news_queries": [...],
        ...})`."""
        return _record(self._reader(), _GivenQuery(id, query, owner, kind, backfill, allow_scans))

    def remove(self, id: str) -> Receipt:
        """Remove a query; its matches stay. Nothing changes if the id does not exist."""
        return self._topic.delete([{"id": text_of(id, "the id of a stored query")}])

    def list(self) -> pa.Table:
        """Return the current queries, by id, each with the time of its addition."""
        topic = self._log.topic(self.standing.queries)
        rows = current_rows(self._log, topic, None, ("_offset", "_appended_at"))
        return _listed(rows).drop_columns("removed").sort_by("id")

    def history(self, id: str | None = None) -> pa.Table:
        """Return every version of one query or of all, in order; `removed` marks removals."""
        records = all_records(self._log, self._log.topic(self.standing.queries), None)
        rows = _listed(pa.Table.from_batches([records]))
        return rows if id is None else rows.filter(pc.equal(rows.column("id"), id))

    @property
    def _topic(self) -> Topic:
        return Topic(self._log, self.standing.queries, self._clock)

    def _reader(self) -> StoredQueryReader:
        """Return the parser of queries over the columns that documents have for the view."""
        topic = self._log.topic(self.standing.topic)
        view = definitions(self._log)[self.name]
        known = (view.incarnation, topic.incarnation, topic.schema_version)
        if self._read is None or self._read[0] != known:
            schema = pa.schema([topic.schema.field(name) for name in view.inputs[topic.name]])
            self._read = (known, StoredQueryReader(self.standing, schema, topic.key))
        return self._read[1]


@dataclass(frozen=True)
class _GivenQuery:
    """A query to store, as a caller gives it: nothing of it was checked yet."""

    id: str
    query: str
    owner: str | None = None
    kind: str | None = None
    backfill: str | timedelta | None = None
    allow_scans: bool | None = False


def _record(reader: StoredQueryReader, given: _GivenQuery) -> dict[str, Any]:
    text_of(given.id, "the id of a stored query", hint='ws.standing("news").add("spark", "title:spark")')
    if given.owner is not None:
        text_of(given.owner, "owner")
    reader.query(given.query, given.kind, allow_scans=bool(given.allow_scans))
    span = None
    if given.backfill is not None:
        known_us = span_us(given.backfill, "backfill")
        span = given.backfill if isinstance(given.backfill, str) else format_span(known_us)
        reader.backfill_us(span)
    values = (given.id, given.query, given.kind or "lucene", given.owner, span, bool(given.allow_scans))
    return dict(zip(QUERIES.names, values, strict=True))


def _one_of_many(reader: StoredQueryReader, row: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(row, Mapping):
        raise UsageError(
            f"a stored query is given as a mapping, not {row!r}", hint=_ROW, reason="not-a-mapping"
        )
    if not {"id", "query"} <= row.keys() or not row.keys() <= set(QUERIES.names):
        wrong = next((name for name in row if name not in QUERIES.names), None)
        what = f"has no {wrong!r}" if wrong is not None else "needs 'id' and 'query'"
        raise UsageError(
            f"a stored query {what}: {dict(row)!r}",
            hint=_ROW,
            reason="unknown-key" if wrong is not None else "missing-key",
        )
    try:
        return _record(reader, _GivenQuery(**row))
    except HeadwaterError as error:
        message = f"query {row['id']!r} is invalid: {error.message}"
        raise type(error)(
            message, detail=error.detail, hint=error.hint, **error.facts, id=row["id"]
        ) from error


_ROW = 'such as {"id": "spark", "query": "title:spark", "owner": "ann"}'


def find_standing(log: Log, name: str) -> tuple[str, StandingDefinition]:
    """Return the standing queries of a name, with its spelling; ViewNotFoundError, or UsageError if it is another kind of
    view."""
    known = {view.name: parse_standing(view.query) for view in definitions(log).values()}
    names = [one for one, standing in known.items() if standing is not None]
    found = next((one for one in known if one.lower() == name.lower()), None)
    if found is None:
        near = suggest(name, names)
        hint = f"did you mean {near!r}?" if near else f"CREATE STANDING QUERY {name} ON topic (column, ...)"
        raise ViewNotFoundError(f"there is no standing query {name!r}", hint=hint, view=name)
    standing = known[found]
    if standing is None:
        raise UsageError(
            f"view {found!r} is not a standing query",
            hint="SHOW STANDING QUERIES",
            view=found,
            reason="not-a-standing-query",
        )
    return found, standing


def show_standing(log: Log) -> pa.Table:
    """SHOW STANDING QUERIES: return their topics, and the number of stored queries."""
    rows = []
    for view in definitions(log).values():
        if (standing := parse_standing(view.query)) is not None:
            stored = current_rows(log, log.topic(standing.queries), None).num_rows
            rows.append((view.name, standing.topic, standing.queries, stored, view.query))
    return pa.Table.from_arrays(
        [pa.array(column, t) for column, t in zip(zip(*rows, strict=True), _SHOWN.types, strict=True)]
        if rows
        else [pa.array([], t) for t in _SHOWN.types],
        schema=_SHOWN,
    )


_SHOWN = pa.schema(
    [
        ("standing_query", pa.string()),
        ("documents", pa.string()),
        ("queries", pa.string()),
        ("stored", pa.int64()),
        ("definition", pa.string()),
    ]
)


def _listed(rows: pa.Table) -> pa.Table:
    ops = rows.column("_op") if "_op" in rows.schema.names else None
    removed = pa.array([False] * rows.num_rows) if ops is None else pc.equal(ops, "delete")
    columns = [*(rows.column(name) for name in QUERIES.names), rows.column("_appended_at")]
    names = [*QUERIES.names, "added_at", "version", "removed"]
    return pa.Table.from_arrays([*columns, rows.column("_offset"), removed], names=names)
