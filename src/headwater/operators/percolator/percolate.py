"""Documents matched with stored queries, kept up to date as both come: the step of a view of matches.

With D the documents before a step, dD their change, and F(d) what a document meets by the records of queries so far,

    d(matches) = dD x F + D x (what the new queries that are asked of earlier documents add to F)

for a record of a query changes nothing for documents that came before it, but for `backfill`. What F is stands in
`standing.history`, which is held in memory and made anew from the state where it is not that of the state.
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
"""Documents that are matched together."""

Told = Callable[[Ints, Ints, Ints], Ints]
"""told(partitions, offsets, records): how many of some records of queries, by their offsets in their order, were committed
before each document or with it. It is asked where times do not tell."""


@dataclass(frozen=True, eq=False)
class PercolatorSpec:
    """What documents have in which column, and what is shown of them."""

    documents: pa.Schema
    """The columns of documents: at least those of the fields, and those that are named below."""
    fields: Fields
    partition: int
    offset: int
    committed: int
    """Where a document stands in the log, and when it was committed."""
    time: int
    """How old it is, for queries that are asked of earlier documents."""
    id: tuple[int, ...]
    """The columns that are its id; none if that is where it stands."""
    shown: tuple[int, ...]
    compile: Compile
    holds: HoldsFunction
    told: Told
    backfill: bool = True

    @property
    def id_type(self) -> pa.DataType:
        """The type of a document's id: that of its key, a struct of several columns, or `partition:offset` as text."""
        if not self.id:
            return pa.string()
        fields = [self.documents.field(column) for column in self.id]
        return fields[0].type if len(fields) == 1 else pa.struct([pa.field(f.name, f.type) for f in fields])

    @property
    def output(self) -> pa.Schema:
        """A match: the query and its version, the document, how well they meet, and what is shown of the document."""
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
        """The order in which documents are kept."""
        return (ColumnOrder(self.time, descending=False, nulls_first=True),)


class Percolator:
    """The step, with the history of queries in memory. Of one view; used by one thread at a time."""

    def __init__(self, spec: PercolatorSpec) -> None:
        self.spec = spec
        self._history: QueryHistory | None = None
        self._guard = threading.Lock()

    def step(
        self, queries: Sequence[Run], documents: Sequence[Run], d_queries: Delta, d_documents: Delta
    ) -> tuple[Delta, Run, Run]:
        """The change of the matches, and runs to add to what is kept of queries and documents."""
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
        """A history that has the records of the state and the new ones, and the offset that these end before. It may have
        later ones, from an attempt that came to nothing."""
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
        if before or history is None:  # else it is somebody's look at a few records
            self._history = made
        return made, upto

    def _matched(self, history: QueryHistory, piece: Delta, upto: int) -> Delta:
        reached, times = self._places(history, piece)
        return self._output(piece, history.matches(_fields(self.spec, piece), reached, times, upto))

    def _places(self, history: QueryHistory, piece: Delta) -> tuple[Ints, Ints]:
        """What documents have reached of the queries' topic, and how old they are."""
        spec, rows = self.spec, piece.rows
        partitions, offsets = (
            rows.column(c).to_numpy(zero_copy_only=False).astype(np.int64)
            for c in (spec.partition, spec.offset)
        )

        def told(documents: Ints, records: Ints) -> Ints:
            return spec.told(partitions[documents], offsets[documents], records)

        return history.reached(_micros(rows.column(spec.committed)), told), _micros(rows.column(spec.time))

    def _since(self, documents: Sequence[Run], since: int) -> Delta:
        """The documents that are kept and not older than a time."""
        parts = []
        for run in documents:
            times = _micros(run.rows.column(self.spec.time))
            start = int(np.searchsorted(times, since))
            parts.append(Delta(run.rows.slice(start), run.weights[start:]))
        return consolidate(concat(parts, self.spec.documents))

    def _output(self, piece: Delta, found: QueryMatches) -> Delta:
        return Delta(matches_of(self.spec, piece.rows, found), piece.weights[found.documents])


def matches_of(spec: PercolatorSpec, documents: pa.RecordBatch, found: QueryMatches) -> pa.RecordBatch:
    """What was found in documents, as the rows that show it."""
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
    """All matches of all documents, by all records of queries, from no state."""
    change, _, _ = Percolator(spec).step((), (), Delta.of(records), Delta.of(documents))
    return change.rows


def records_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Records of queries in their order."""
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
    """What matches know documents by."""
    columns = [rows.column(column) for column in spec.id]
    if len(columns) == 1:
        return columns[0]
    if columns:
        return pa.StructArray.from_arrays(columns, fields=list(spec.id_type))
    places = zip(rows.column(spec.partition).to_pylist(), rows.column(spec.offset).to_pylist(), strict=True)
    return pa.array([f"{partition}:{offset}" for partition, offset in places], pa.string())


def _micros(times: pa.Array) -> Ints:
    """Times in microseconds; one that is not there lies before all."""
    values = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    lowest = pa.scalar(np.iinfo(np.int64).min, pa.int64())
    made: Ints = values.fill_null(lowest).to_numpy(zero_copy_only=False)
    return made


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return concat_rows(pa.table({"c": column}).to_batches(), pa.schema([("c", column.type)])).column(0)
