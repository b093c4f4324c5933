"""Searches of an index written by a SEARCH sink: full text, filters, highlighting. Works in any process, next to the sink."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import tantivy

from headwater.core.arguments import text as text_of
from headwater.core.arguments import whole_number
from headwater.core.errors import UsageError
from headwater.core.types import format_type
from headwater.core.values import UNFIT, array_of
from headwater.sinks.base.target import SinkCheckpoint, SinkError, TargetDownError
from headwater.sinks.search.search_schema import (
    HEAD,
    KEY,
    NULL,
    SLICE,
    SLICES,
    SOURCE,
    SearchColumn,
    SearchLayout,
    exact_values,
    ordered,
    read_head,
)
from headwater.sinks.search.versions import active_folder

Filters = Mapping[str, Any] | Sequence[tuple[str, str, Any]]
"""Conditions that rows must all meet: {column: value}, or (column, operator, value) with = != < <= > >= or in."""

Clause = tuple[tantivy.Occur, tantivy.Query]

SCORE = pa.field("_score", pa.float64())
HIGHLIGHT = "_highlight"
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=", "in")
_PAGE_ROWS = 200_000
"""Approximate number of documents addressed at a time when all are read."""
_BATCH_ROWS = 20_000
_ABSENT = re.compile(r"Field does not exist: '(.*)'")


@dataclass(frozen=True, eq=False)
class _Commit:
    """One commit of an index, opened. `seen` identifies the file that made the commit current."""

    seen: tuple[str, int, int]
    index: tantivy.Index
    searcher: tantivy.Searcher
    layout: SearchLayout | None
    checkpoint: SinkCheckpoint | None

    def fields(self) -> tantivy.Schema:
        return self.index.schema

    def term(self, field: str, value: Any) -> tantivy.Query:
        return tantivy.Query.term_query(self.index.schema, field, value)


class SearchIndex:
    """An index as readers see it: the newest commit at every call, whichever process wrote it. Thread-safe, and needs no
    lock.

    `path` is the folder of a sink, of which the active version is read; with `exact` it is the folder of one index.
    """

    def __init__(self, path: str | Path, *, exact: bool = False) -> None:
        self.path = str(path)
        self._exact = exact
        self._opened: _Commit | None = None
        self._newest()

    @property
    def layout(self) -> SearchLayout | None:
        """Layout of the index; None if the index has no head document."""
        return self._newest().layout

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint of the index."""
        return self._newest().checkpoint

    def __len__(self) -> int:
        commit = self._newest()
        return int(commit.searcher.num_docs) - (commit.layout is not None)

    def query(
        self,
        text: str | None = None,
        filters: Filters = (),
        limit: int = 10,
        highlight: bool = False,
        *,
        columns: Sequence[str] | None = None,
        offset: int = 0,
    ) -> pa.Table:
        """Return the matching rows, best first, with `_score` and, with `highlight`, a struct `_highlight` that has for each
        text column the fragment around the words found, as HTML with <b>, or NULL.

        `text` is words, "phrases", column:word, column:[a TO b], +must, -not, AND, OR and brackets; a row matches if it has
        one of the words, in one of `columns` (all text columns unless given). Without a text every row matches, with score
        1. UsageError names what cannot be parsed.
        """
        commit = self._newest()
        layout = commit.layout
        if layout is None:
            raise SinkError(f"the search index in {self.path} was not written by a sink")
        limit, offset = whole_number(limit, "limit", least=1), whole_number(offset, "offset")
        wanted = tantivy.Query.all_query() if text is None else _parse(commit, layout, text, columns)
        clauses = [(tantivy.Occur.Must, wanted), (tantivy.Occur.MustNot, commit.term(KEY, HEAD))]
        for occur, clause in _filters(commit, layout, filters):
            clauses.append((occur, tantivy.Query.const_score_query(clause, 0.0)))
        query = tantivy.Query.boolean_query(clauses)
        hits = commit.searcher.search(query, limit, count=False, offset=offset).hits
        rows = layout.rows(_sources(commit.searcher, hits))
        table = pa.Table.from_batches([rows])
        table = table.append_column(SCORE, pa.array([float(score) for score, _ in hits], pa.float64()))
        if highlight:
            words = None if text is None else wanted
            table = table.append_column(HIGHLIGHT, _highlights(commit, layout, words, rows))
        return table

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows of one commit."""
        commit = self._newest()
        if commit.layout is None:
            return
        found = commit.searcher.num_docs
        pages = min(SLICES, max(1, -(-found // _PAGE_ROWS)))
        bounds = [page * SLICES // pages for page in range(pages + 1)]
        for low, high in pairwise(bounds):
            part = tantivy.Query.range_query(
                commit.fields(), SLICE, tantivy.FieldType.Unsigned, low, high, include_upper=False
            )
            hits = commit.searcher.search(part, max(1, found), count=False).hits
            for start in range(0, len(hits), _BATCH_ROWS):
                yield commit.layout.rows(_sources(commit.searcher, hits[start : start + _BATCH_ROWS]))

    def _newest(self) -> _Commit:
        """Return the newest commit. A newer one is detected by the file that each commit puts in place.

        The index is opened again for a newer commit: an index restored from a backup reuses file names for other bytes, and
        an open index caches files by name.
        """
        try:
            folder = self.path if self._exact else str(active_folder(self.path))
            found = os.stat(os.path.join(folder, "meta.json"))
            seen = (folder, found.st_ino, found.st_mtime_ns)
            opened = self._opened
            if opened is None or opened.seen != seen:
                opened = self._opened = _open(folder, seen)
        except FileNotFoundError as error:
            raise TargetDownError(
                f"there is no search index in {self.path}", hint="start its sink, which creates the index"
            ) from error
        except (ValueError, OSError) as error:
            raise TargetDownError(
                f"the search index in {self.path} cannot be read",
                detail=str(error),
                hint="if its files are damaged, delete the folder and start the sink, which writes the index again",
            ) from error
        return opened


def _open(path: str, seen: tuple[str, int, int]) -> _Commit:
    index = tantivy.Index.open(path)
    index.config_reader("manual")
    searcher = index.searcher()
    hits = searcher.search(tantivy.Query.term_query(index.schema, KEY, HEAD), 1, count=False).hits
    layout, checkpoint = read_head(_sources(searcher, hits)[0]) if hits else (None, None)
    if layout is not None:
        layout.analysis.register(index)
    return _Commit(seen, index, searcher, layout, checkpoint)


def _parse(commit: _Commit, layout: SearchLayout, text: str, columns: Sequence[str] | None) -> tantivy.Query:
    text_of(text, "text")
    fields = [column.words for column in layout.columns if column.words and column.name in layout.text]
    if columns is not None:
        for name in columns:
            if name not in fields:
                raise UsageError(
                    f"column {name!r} has no full-text index",
                    hint=f"the text columns are {', '.join(fields) or 'none'}",
                    column=name,
                    reason="not-a-text-column",
                )
        fields = list(columns)
    try:
        return commit.index.parse_query(text, fields)
    except ValueError as error:
        raise _unreadable_text(text, str(error), layout) from None


def _unreadable_text(text: str, said: str, layout: SearchLayout) -> UsageError:
    if absent := _ABSENT.match(said):
        own = [c.name for c in layout.columns if c.words == c.name or c.exact == c.name]
        other = [c.name for c in layout.columns if c.exact is not None and c.name not in own]
        if absent[1] in other:
            return UsageError(
                f"column {absent[1]!r} is not a text column and cannot be used in the search text",
                hint=f"use a filter: filters=[({absent[1]!r}, '>=', ...)]",
                column=absent[1],
                reason="not-a-text-column",
            )
        return UsageError(
            f"the search index has no column {absent[1]!r}",
            hint=f"the columns are {', '.join(own)}; escape a colon in a word as \\:",
            column=absent[1],
            reason="no-column",
        )
    if said.startswith("Syntax Error"):
        return UsageError(
            f"the search text has a syntax error: {text}",
            hint='close every quote and bracket, or put the whole text in quotes: "..."',
            reason="syntax",
        )
    return UsageError(f"the search text cannot be parsed: {text}", detail=said, reason="search-text")


def _filters(commit: _Commit, layout: SearchLayout, filters: Filters) -> list[Clause]:
    given = [(c, "=", v) for c, v in filters.items()] if isinstance(filters, Mapping) else filters
    columns = {column.name: column for column in layout.columns}
    clauses: list[Clause] = []
    for one in given:
        try:
            name, operator, value = one
        except (TypeError, ValueError):
            raise UsageError(
                f"a filter must be (column, operator, value), not {one!r}",
                hint="write ('price', '<', 10)",
                reason="filter",
            ) from None
        if name not in columns:
            raise UsageError(
                f"the search index has no column {name!r} to filter by",
                hint=f"the columns are {', '.join(columns)}",
                column=name,
                reason="no-column",
            )
        if operator not in _OPERATORS:
            raise UsageError(
                f"{operator!r} is not an operator of a filter",
                hint=f"use one of {' '.join(_OPERATORS)}",
                operator=operator,
            )
        clauses += _filter(commit, columns[name], operator, value)
    return clauses


def _filter(commit: _Commit, column: SearchColumn, operator: str, value: Any) -> list[Clause]:
    """Return a filter as clauses that must or must not hold. As in SQL, a NULL never satisfies a comparison; to match NULLs,
    compare the column by = or != with None."""
    null = commit.term(NULL, column.place)
    must, never = tantivy.Occur.Must, tantivy.Occur.MustNot
    if value is None and operator in ("=", "!="):
        return [(must if operator == "=" else never, null)]
    if column.exact is None:
        raise UsageError(
            f"column {column.name!r} is {format_type(column.kind)}, which filters do not support",
            hint="filter by a scalar column",
            column=column.name,
            reason="not-a-scalar",
        )
    if operator == "in":
        if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
            raise UsageError(
                f"a filter with 'in' requires a list of values, not {value!r}",
                column=column.name,
                operator="in",
                value=value,
            )
        each = [(tantivy.Occur.Should, _equal(commit, column, _compared(column, one))) for one in value]
        return [(must, tantivy.Query.boolean_query(each) if each else tantivy.Query.empty_query())]
    exact = _compared(column, value)
    if operator == "=":
        return [(must, _equal(commit, column, exact))]
    if operator == "!=":
        return [(never, _equal(commit, column, exact)), (never, null)]
    if column.how == "term" and not ordered(value, column):
        raise UsageError(
            f"column {column.name!r} can be compared by {operator} only with values of fewer than {column.term_bytes} bytes",
            hint=f"shorten {value!r}, or search for words of it",
            column=column.name,
            operator=operator,
            bytes_max=column.term_bytes,
        )
    return [(must, _range(commit, column, operator, exact))]


def _equal(commit: _Commit, column: SearchColumn, exact: Any) -> tantivy.Query:
    if column.how == "number" and column.exact != column.name:
        return tantivy.Query.range_query(
            commit.fields(), str(column.exact), tantivy.FieldType.Integer, exact, exact
        )
    return commit.term(str(column.exact), exact)


def _range(commit: _Commit, column: SearchColumn, operator: str, exact: Any) -> tantivy.Query:
    lower, closed = operator.startswith(">"), operator.endswith("=")
    if column.how == "boolean":
        matching = [one for one in (False, True) if (one > exact if lower else one < exact)]
        return tantivy.Query.term_set_query(commit.fields(), str(column.exact), matching + [exact] * closed)
    if column.how == "term":
        # Hexadecimal, so that the parser sees no syntax in it. tantivy-py builds no other range of terms.
        begin, end = ("[", "]") if closed else ("{", "}")
        bounds = f"{exact} TO *" if lower else f"* TO {exact}"
        return commit.index.parse_query(f"{column.exact}:{begin}{bounds}{end}")
    kind = tantivy.FieldType.Integer if column.how == "number" else tantivy.FieldType.Float
    return tantivy.Query.range_query(
        commit.fields(),
        str(column.exact),
        kind,
        lower_bound=exact if lower else None,
        upper_bound=None if lower else exact,
        include_lower=closed or not lower,
        include_upper=closed or lower,
    )


def _compared(column: SearchColumn, value: Any) -> Any:
    """Return the value of a filter in the form of the column's exact field."""
    if value is None:
        raise UsageError(
            f"column {column.name!r} cannot be compared with None",
            hint="compare with None by = or != only",
            column=column.name,
            value=None,
            reason="none",
        )
    if pa.types.is_floating(column.kind) and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    try:
        fit = array_of([value], column.kind)
    except UNFIT:
        raise UsageError(
            f"column {column.name!r} is {format_type(column.kind)} and cannot be compared with {value!r}",
            column=column.name,
            value=value,
        ) from None
    return exact_values(fit, column)[0]


def _highlights(
    commit: _Commit, layout: SearchLayout, query: tantivy.Query | None, rows: pa.RecordBatch
) -> pa.Array:
    columns = [c for c in layout.columns if c.words and c.name in layout.text and pa.types.is_string(c.kind)]
    parts = []
    for column in columns:
        values = rows.column(column.place).to_pylist()
        if query is None:
            parts.append(pa.nulls(len(values), pa.string()))
            continue
        field = str(column.words)
        generator = tantivy.SnippetGenerator.create(commit.searcher, query, commit.fields(), field)
        parts.append(pa.array([_snippet(generator, field, value) for value in values], pa.string()))
    if not columns:
        return pa.nulls(rows.num_rows, pa.struct([]))
    return pa.StructArray.from_arrays(parts, names=[column.name for column in columns])


def _sources(searcher: tantivy.Searcher, hits: Sequence[tuple[Any, tantivy.DocAddress]]) -> list[bytes]:
    return [searcher.doc(place)[SOURCE][0] for _, place in hits]


def _snippet(generator: tantivy.SnippetGenerator, field: str, value: str | None) -> str | None:
    if value is None:
        return None
    document = tantivy.Document()
    document.add_text(field, value)
    snippet = generator.snippet_from_doc(document)
    return snippet.to_html() if snippet.highlighted() else None
