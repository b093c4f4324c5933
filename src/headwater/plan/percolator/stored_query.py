"""Parsing of stored queries: queries passed to `add` and records on their topic are parsed by the same rules."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.clock import parse_span_us
from headwater.core.errors import SchemaError, StatementError, UsageError
from headwater.core.extras import require
from headwater.core.text_analysis import Analysis
from headwater.core.types import quote
from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.lucene_syntax import Parser
from headwater.operators.percolator.query_history import Stored
from headwater.operators.percolator.query_nodes import ParsedQuery
from headwater.operators.zset.exact_sums import Ints
from headwater.plan.percolator.sql_predicates import check_predicate, holds, necessary
from headwater.sql.lexer import pointing
from headwater.sql.standing_statements import StandingDefinition

_QUERY_KINDS = ("lucene", "sql")
_REMEMBERED_MAX = 1 << 17
"""Maximum number of checked queries that are cached until they are stored."""


class StoredQueryReader:
    """Parses stored queries over the documents of a topic."""

    def __init__(self, standing: StandingDefinition, documents: pa.Schema, key: Sequence[str]) -> None:
        """`documents` are the topic's columns."""
        require("search", f"a standing query over topic {standing.topic!r}")
        self._standing = standing
        self.schema = _chosen(standing, documents)
        text = standing.text
        if text is None:
            text = tuple(f.name for f in self.schema if _is_text(f.type) and f.name not in key)
        self.fields = Fields.of(
            self.schema, text=text, analysis=Analysis(standing.language, accents=standing.accents)
        )
        if not self.fields.columns:
            raise SchemaError(
                f"topic {standing.topic!r} has no column that a standing query can search",
                topic=standing.topic,
            )
        self._parser = Parser(self.fields, "and" if standing.operator == "and" else "or")
        self._checked: dict[tuple[Any, ...], ParsedQuery] = {}

    def query(self, text: Any, kind: Any = None, *, allow_scans: bool = False) -> ParsedQuery:
        """Parse the text of a query; StatementError, underlining the mistake, if it is invalid."""
        kind = "lucene" if kind is None else kind
        if kind not in _QUERY_KINDS:
            raise UsageError(
                f"kind is 'lucene' or 'sql', not {kind!r}",
                hint="kind='lucene'",
                reason="unknown-kind",
                kind=kind,
            )
        if not isinstance(text, str) or not text.strip():
            raise UsageError(
                "the query is empty", hint="query='title:spark AND stream*'", reason="empty-query"
            )
        made = self._parser.parse(text) if kind == "lucene" else self._condition(text)
        if made.scans and not (allow_scans or self._standing.allow_scans):
            raise pointing(
                text,
                0,
                len(text),
                "no term or range of this query can be indexed: every document would be evaluated",
                hint="add a word or range that must match, or use allow_scans=True",
                reason="needs-scan",
            )
        return made

    def _condition(self, text: str) -> ParsedQuery:
        check_predicate(text, self.schema)
        return ParsedQuery.of_predicate(text, text, necessary(text, self.fields))

    def check(self, record: dict[str, Any]) -> None:
        """Raise HeadwaterError if a record cannot be parsed; otherwise cache the result, so that `stored` does not parse it
        again."""
        if len(self._checked) >= _REMEMBERED_MAX:  # the caller checks queries without storing them
            self._checked.clear()
        self._checked[_cache_key(record)] = self.stored(record).query

    def stored(self, record: dict[str, Any]) -> Stored:
        """Return the stored query of a record; HeadwaterError if the record is invalid."""
        query = self._checked.pop(_cache_key(record), None)
        if query is None:
            query = self.query(record["query"], record["kind"], allow_scans=bool(record["allow_scans"]))
        backfill_us = None if record["backfill"] is None else self.backfill_us(record["backfill"])
        return Stored(str(record["id"]), query, record["owner"], backfill_us)

    def backfill_us(self, span: str) -> int:
        """Return how far back a query is matched against earlier documents, in microseconds."""
        if not self._standing.backfill:
            raise UsageError(
                "this standing query has backfill = FALSE: earlier documents are not matched",
                hint="CREATE OR REPLACE STANDING QUERY without this option keeps earlier documents",
                reason="no-backfill",
            )
        found = parse_span_us(span)
        if found <= 0:
            raise UsageError(
                f"backfill is a positive span of time, not {span!r}", hint="backfill='7 days'", backfill=span
            )
        return found

    def holds(
        self, asked: Sequence[tuple[Hashable, Ints]], documents: pa.Table
    ) -> list[npt.NDArray[np.bool_]]:
        """Return, for each SQL condition, identified by its text, a mask of the given rows that match it."""
        return [holds(str(text), documents.take(pa.array(rows))) for text, rows in asked]


def _cache_key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["query"], record["kind"], record["allow_scans"]


def one_line(error: StatementError) -> str:
    """Return an error message on one line, with the column of the mistake."""
    column = error.facts.get("column")
    return error.message if column is None else f"{error.message} (column {column})"


def _chosen(standing: StandingDefinition, documents: pa.Schema) -> pa.Schema:
    names = {name.lower(): name for name in documents.names}
    for name in (*standing.fields, *(standing.text or ()), *standing.show):
        if name.lower() not in names:
            raise SchemaError(
                f"topic {standing.topic!r} has no column {name!r}",
                hint=f"columns: {', '.join(map(quote, documents.names))}",
                topic=standing.topic,
                name=name,
            )
    chosen = [names[name.lower()] for name in standing.fields] or documents.names
    return pa.schema([documents.field(name) for name in dict.fromkeys(chosen)])


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_list(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind))
