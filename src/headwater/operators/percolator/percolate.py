"""The percolator operator: documents matched against stored queries, maintained incrementally as both change.

With D the documents before a step, dD their change, and F(d) the matches of a document by the query records so far,

    d(matches) = dD x F + D x (additions to F by new queries that backfill)

because a query record does not affect documents that came before it, except by `backfill`. F is computed by
`query_history`, which is held in memory and rebuilt from the state when the two differ.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.operators.percolator.fields import Fields
from headwater.operators.percolator.query_history import NEVER, RECORDS, Compile, QueryHistory, QueryMatches
from headwater.operators.percolator.query_index import HIGHLIGHT, HoldsFunction
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, take_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.runs import Run, arrange, contents

ROWS_MAX = 1 << 15
"""Maximum number of documents matched together."""

Preceding = Callable[[Ints, Ints, Ints], Ints]
"""preceding(partitions, offsets, records): returns, for each document, how many of some query records, given by their
ascending offsets, were committed before or together with it. Called only where commit times are equal."""


@dataclass(frozen=True, eq=False)
class PercolatorSpec:
    """The columns of documents, and the document columns included in matches."""

    documents: pa.Schema
    """Schema of documents: at least the columns of the fields, and those named below."""
    fields: Fields
    partition: int
    offset: int
    committed: int
    """Columns of a document's log position (`partition`, `offset`) and of its commit time (`committed`)."""
    time: int
    """Column of a document's time, which backfilling queries compare with their limit."""
    id: tuple[int, ...]
    """Columns of a document's id; empty if the id is its log position."""
    shown: tuple[int, ...]
    compile: Compile
    holds: HoldsFunction
    preceding: Preceding
    backfill: bool = True

    @property
    def id_type(self) -> pa.DataType:
        """Type of a document's id: that of its key, a struct of several columns, or `partition:offset` as text."""
        if not self.id:
            return pa.string()
        fields = [self.documents.field(column) for column in self.id]
        return fields[0].type if len(fields) == 1 else pa.struct([pa.field(f.name, f.type) for f in fields])

    @property
    def output(self) -> pa.Schema:
        """Schema of a match: the query and its version, the document, score and highlights, and the columns of the
        document."""
        return pa.schema(
            [
                pa.field("query_id", pa.string()),
                pa.field("document_id", self.id_type),
                pa.field("score", pa.float64()),
                pa.field("highlights", pa.list_(HIGHLIGHT)),
                pa.field("owner", pa.string()),
                pa.field("query_version", pa.int64()),
                *(pa.field(self.documents.field(c).name, self.documents.field(c).type) for c in self.shown),
            ]
        )

    @property
    def order(self) -> tuple[ColumnOrder, ...]:
        """Order in which documents are stored."""
        return (ColumnOrder(self.time, descending=False, nulls_first=True),)


class Percolator:
    """The operator's step, with the history of queries in memory. Belongs to one view; steps are for one thread at a time."""

    def __init__(self, spec: PercolatorSpec) -> None:
        self.spec = spec
        self._history: QueryHistory | None = None
        self._guard = threading.Lock()

    def step(
        self, queries: Sequence[Run], documents: Sequence[Run], d_queries: Delta, d_documents: Delta
    ) -> tuple[Delta, Run, Run]:
        """Return the change of the matches, and the runs to add to the state of queries and of documents."""
        spec = self.spec
        new = records_of(d_queries.rows)
        with self._guard:
            history, upto = self._at(queries, new)
            parts = [self._matched(history, piece, upto) for piece in _pieces(d_documents)]
            fresh = new.column("_offset").to_pylist()
            since = history.asked_back(fresh)
            if since != NEVER:
                for piece in _pieces(self._since(documents, since)):
                    reached, times = self._places(history, piece)
                    found = history.backfilled(fresh, _fields(spec, piece), reached, times, upto)
                    parts.append(self._output(piece, found))
        kept = d_documents if spec.backfill else Delta.empty(spec.documents)
        return (
            concat(parts, spec.output),
            arrange(d_queries, (0,)),
            arrange_ordered(kept, (), spec.order),
        )

    def _at(self, queries: Sequence[Run], new: pa.RecordBatch) -> tuple[QueryHistory, int]:
        """Return a history with the records of the state and the new ones, and the end offset of these.

        The history may contain later records, from a failed attempt.
        """
        place = RECORDS.get_field_index("_offset")
        before = [run.rows.column(place).to_numpy() for run in queries if len(run)]
        after: Ints = new.column("_offset").to_numpy()
        offsets = np.concatenate([*before, after]) if before else after
        upto = int(offsets.max()) + 1 if len(offsets) else 0
        history = self._history
        if history is not None:
            history.take(new)
            if history.counted(upto) == len(offsets):
                return history, upto
        spec = self.spec
        made = QueryHistory(spec.fields, spec.compile, spec.holds, backfill=spec.backfill)
        if before:
            made.take(records_of(contents(list(queries), queries[0].rows.schema).rows))
        made.take(new)
        if before or history is None:  # otherwise this may be a query over a few records only
            self._history = made
        return made, upto

    def _matched(self, history: QueryHistory, piece: Delta, upto: int) -> Delta:
        reached, times = self._places(history, piece)
        return self._output(piece, history.matches(_fields(self.spec, piece), reached, times, upto))

    def _places(self, history: QueryHistory, piece: Delta) -> tuple[Ints, Ints]:
        """Return the offset that each document has reached in the topic of queries, and the time of each document."""
        spec, rows = self.spec, piece.rows
        partitions, offsets = (
            rows.column(c).to_numpy(zero_copy_only=False).astype(np.int64)
            for c in (spec.partition, spec.offset)
        )

        def visible(documents: Ints, records: Ints) -> Ints:
            return spec.preceding(partitions[documents], offsets[documents], records)

        return history.reached(_micros(rows.column(spec.committed)), visible), _micros(rows.column(spec.time))

    def _since(self, documents: Sequence[Run], since: int) -> Delta:
        """Return the stored documents that are not older than a time."""
        parts = []
        for run in documents:
            times = _micros(run.rows.column(self.spec.time))
            start = int(np.searchsorted(times, since))
            parts.append(Delta(run.rows.slice(start), run.weights[start:]))
        return consolidate(concat(parts, self.spec.documents))

    def _output(self, piece: Delta, found: QueryMatches) -> Delta:
        return Delta(matches_of(self.spec, piece.rows, found), piece.weights[found.documents])


def matches_of(spec: PercolatorSpec, documents: pa.RecordBatch, found: QueryMatches) -> pa.RecordBatch:
    """Return matches found in documents as output rows."""
    rows = take_rows(documents, found.documents)
    columns = [
        pa.array([version.id for version in found.versions], pa.string()),
        document_ids(spec, rows),
        _whole(found.scores),
        _whole(found.highlights),
        pa.array([version.owner for version in found.versions], pa.string()),
        pa.array([version.offset for version in found.versions], pa.int64()),
        *(rows.column(column) for column in spec.shown),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=spec.output)


def all_matches(spec: PercolatorSpec, records: pa.RecordBatch, documents: pa.RecordBatch) -> pa.RecordBatch:
    """Return all matches of all documents, computed from all query records without state."""
    change, _, _ = Percolator(spec).step((), (), Delta.of(records), Delta.of(documents))
    return change.rows


def records_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return query records in offset order."""
    made = pa.RecordBatch.from_arrays(rows.columns, schema=RECORDS)
    offsets = made.column("_offset").to_numpy()
    if (offsets[1:] > offsets[:-1]).all():
        return made
    return take_rows(made, np.argsort(offsets, kind="stable"))


def _pieces(delta: Delta) -> Iterator[Delta]:
    for start in range(0, len(delta), ROWS_MAX):
        yield delta.slice(start, min(ROWS_MAX, len(delta) - start))


def _fields(spec: PercolatorSpec, piece: Delta) -> pa.Table:
    return pa.Table.from_batches([piece.rows.select([field.name for field in spec.fields.columns])])


def document_ids(spec: PercolatorSpec, rows: pa.RecordBatch) -> pa.Array:
    """Return the ids of documents, as used in matches."""
    columns = [rows.column(column) for column in spec.id]
    if len(columns) == 1:
        return columns[0]
    if columns:
        return pa.StructArray.from_arrays(columns, fields=list(spec.id_type))
    places = zip(rows.column(spec.partition).to_pylist(), rows.column(spec.offset).to_pylist(), strict=True)
    return pa.array([f"{partition}:{offset}" for partition, offset in places], pa.string())


def _micros(times: pa.Array) -> Ints:
    """Return times in microseconds; NULL becomes the minimum."""
    values = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    lowest = pa.scalar(np.iinfo(np.int64).min, pa.int64())
    made: Ints = values.fill_null(lowest).to_numpy(zero_copy_only=False)
    return made


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return concat_rows(pa.table({"c": column}).to_batches(), pa.schema([("c", column.type)])).column(0)
