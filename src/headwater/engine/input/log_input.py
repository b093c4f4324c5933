"""The log records that a tick reads, each span once however many views read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import CAPTURED, TopicDefinition
from headwater.core.hashing import Indices
from headwater.core.parallel import side_by_side
from headwater.core.positions import Ends
from headwater.engine.collections.collections import Collection, TableCollection
from headwater.engine.dataflow.executor import LogScan
from headwater.engine.input.excised_records import records_at
from headwater.engine.metrics.rows_taken import ReadSpan, TakenIn
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta, concat_rows
from headwater.plan.relations.metadata_columns import EVERY, READABLE, read_records

Span = tuple[str, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""A topic with the begin and the end offsets of its partitions."""
PIECE_ROWS = 1 << 18
"""Number of records that are read at a time when history is read again."""


class Inputs:
    """Reads the records of topics between two cuts."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: dict[Span, list[tuple[frozenset[str], pa.RecordBatch]]] = {}
        """By span, the batches that were read, each with the names of the columns that were left out because no reader
        uses them."""
        self._made: dict[tuple[Span, tuple[str, ...], frozenset[str]], Delta] = {}
        """Changes as views read them, by span, by the metadata columns that they need, and by the columns that were
        left out."""
        self._topics: dict[str, TopicDefinition] = {}
        self._pieces: list[Span] = []
        """Spans of records that were read again, having been processed by earlier ticks, or that other processes may read."""
        self.reads: list[ReadSpan] = []
        """Spans of the records that this tick reads."""
        self._taken = TakenIn(log)

    @property
    def rows(self) -> int:
        """Number of distinct records that were read."""
        return self._taken.rows

    def changes(self, unit: Collection, start: Ends, end: Ends) -> dict[str, Delta | pa.RecordBatch]:
        """Return the records of all topics of a collection between two cuts, by the topic's name in the graph."""
        return {name: self.read(unit, topic, start, end) for topic, name in unit.named.items()}

    def read(self, unit: Collection, topic: str, start: Ends, end: Ends) -> Delta | pa.RecordBatch:
        """Return the records of a topic between two cuts: in the order of the log for a table, as a change for a view.

        They have the topic's columns, and then the metadata columns that the collection needs.
        """
        begins, stops = start.get(topic, {}), end[topic]
        span = (topic, tuple(begins.items()), tuple(stops.items()))
        unseen = self._unseen(unit, topic)
        if isinstance(unit, TableCollection):
            return self._found(span, self.columns(unit, topic), unseen)
        made = (span, unit.hidden.get(unit.named[topic], ()), unseen)
        if made not in self._made:
            self._made[made] = Delta.of(self._found(span, self.columns(unit, topic), unseen))
        return self._made[made]

    def scan(self, topic: str, start: Mapping[int, int], end: Mapping[int, int]) -> LogScan | None:
        """Return a range of a topic for other processes to read; None if the topic has private columns, whose keys are
        here."""
        definition = self.definition(topic)
        if definition.private:
            return None
        span = topic, tuple(start.items()), tuple(end.items())
        if span not in self._pieces:  # before others read it: an excision in between must be noticed
            self._pieces.append(span)
        return LogScan(topic, tuple(definition.schema.names), tuple(self._spans(topic, start, end)))

    def take_in(self, reads: Sequence[ReadSpan]) -> None:
        """Count the records of spans that were read, in this process or in another."""
        self.reads += reads
        self._taken.add(reads)

    def _found(self, span: Span, columns: list[str], unseen: frozenset[str]) -> pa.RecordBatch:
        """Return the records of a span with these columns, reading them unless an earlier read has them."""
        known = self._read.setdefault(span, [])
        found = next(
            (b for without, b in known if without <= unseen and set(columns) <= set(b.schema.names)), None
        )
        if found is None:
            topic, begins, stops = span
            found, reads = self._records(topic, columns, dict(begins), dict(stops), unseen)
            if not known:
                self.take_in(reads)
            known.append((unseen, found))
        return found if found.schema.names == columns else found.select(columns)

    def pieces(
        self, unit: Collection, topic: str, end: Ends, seen: Sequence[str]
    ) -> Iterator[tuple[int, Indices, pa.RecordBatch]]:
        """Yield all records of a topic up to a cut, in the order of the log, with partition and offsets, in pieces of
        one partition.

        Only the columns in `seen` have values; the others are NULL.
        """
        stops = end.get(topic, {})
        self._pieces.append((topic, (), tuple(stops.items())))
        for partition, stop in sorted(stops.items()):
            first = self._log.partitions(topic)[partition].first
            for begin in range(first, stop, PIECE_ROWS):
                span = begin, min(begin + PIECE_ROWS, stop)
                read = self._once_more(unit, topic, seen)
                batches = read_records(self._log, topic, partition, span, read)
                rows = concat_rows(list(batches), self.layout(topic, read))
                yield partition, rows.column("_offset").to_numpy(), self._filled(unit, topic, rows)

    def at(
        self, unit: Collection, topic: str, partition: int, offsets: Indices, seen: Sequence[str]
    ) -> pa.RecordBatch:
        """Return the records at some ascending offsets, with all columns of the collection; those not in `seen` are NULL."""
        read = self._once_more(unit, topic, seen)
        batches = records_at(self._log, topic, partition, offsets, read)
        return self._filled(unit, topic, concat_rows(list(batches), self.layout(topic, read)))

    def _once_more(self, unit: Collection, topic: str, seen: Sequence[str]) -> list[str]:
        unseen = self._unseen(unit, topic)
        wanted = [n for n in self.columns(unit, topic) if n in seen and n not in unseen]
        return list(dict.fromkeys([*wanted, "_offset"]))

    def _filled(self, unit: Collection, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = self.columns(unit, topic)
        return _with_nulls(rows, columns, self.layout(topic, columns))

    def clip(self, topic: str, start: Ends, end: Ends, sequence: int) -> dict[int, int]:
        """Return the positions of a topic at a commit of the log, which may be before the cut `end`."""
        clipped: dict[int, int] = {}
        for partition, stop in end[topic].items():
            begin = start.get(topic, {}).get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            clipped[partition] = stop
            for batch in self._log.read(topic, partition, begin, stop, ["_offset", "_sequence"]):
                later = np.flatnonzero(batch.column("_sequence").to_numpy() > sequence)
                if len(later):
                    clipped[partition] = int(batch.column("_offset")[int(later[0])].as_py())
                    break
        return clipped

    def shown(self, unit: Collection, topic: str, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return records of a topic with all columns as a collection reads them."""
        columns, unseen = self.columns(unit, topic), self._unseen(unit, topic)
        seen = rows.select([name for name in columns if name not in unseen])
        return _with_nulls(seen, columns, self._schema(topic))

    def has_met(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> bool:
        """Whether this tick has read any of these offsets of a topic."""
        for name, begins, stops in (*self._read, *self._pieces):
            starts = dict(begins)
            for partition, stop in stops if name == topic else ():
                mine = np.asarray(offsets.get(partition, ()), np.int64)
                if ((mine >= starts.get(partition, 0)) & (mine < stop)).any():
                    return True
        return False

    def columns(self, unit: Collection, topic: str) -> list[str]:
        """Return the columns that a collection reads of a topic: its own columns, followed by metadata columns."""
        own = self._schema(topic).names
        if isinstance(unit, TableCollection):
            hidden = (*READABLE.names, *CAPTURED.names)
            return [*own, *(n for n in hidden if (n in unit.schema.names or n == "_op") and n not in own)]
        return [*own, *unit.hidden.get(unit.named[topic], ())]

    def _unseen(self, unit: Collection, topic: str) -> frozenset[str]:
        """Return the private columns that a collection does not use: these are not decrypted, but NULL."""
        private = self.definition(topic).private
        return frozenset() if topic in unit.keeps else frozenset(column for column, _ in private)

    def layout(self, topic: str, columns: Sequence[str]) -> pa.Schema:
        """Return a schema of these columns of a topic, which may include metadata columns."""
        known = {field.name: field for field in (*EVERY, *self._schema(topic))}
        return pa.schema([known[name] for name in columns])

    def _schema(self, topic: str) -> pa.Schema:
        return self.definition(topic).schema

    def definition(self, topic: str) -> TopicDefinition:
        """Return the definition of a topic, the same for every view of the tick: the log is asked once."""
        if topic not in self._topics:
            self._topics[topic] = self._log.topic(topic)
        return self._topics[topic]

    def _records(
        self,
        topic: str,
        columns: Sequence[str],
        begins: Mapping[int, int],
        stops: Mapping[int, int],
        unseen: frozenset[str],
    ) -> tuple[pa.RecordBatch, list[ReadSpan]]:
        own = self._schema(topic)
        read = [name for name in columns if name not in unseen] if unseen else columns
        read = read or ["_offset"]
        spans = self._spans(topic, begins, stops)
        parts = side_by_side(
            lambda span: list(read_records(self._log, topic, span[0], span[1:], read)),
            spans,
            size=sum(stop - begin for _, begin, stop in spans) * 8 * len(columns),
        )
        incarnation = self.definition(topic).incarnation
        reads = [
            ReadSpan(topic, incarnation, *span, sum(batch.num_rows for batch in part))
            for span, part in zip(spans, parts, strict=True)
        ]
        batches = [_with_nulls(batch, columns, own) for part in parts for batch in part]
        if not batches:
            return Delta.empty(self.layout(topic, columns)).rows, reads
        return concat_rows(batches, batches[0].schema), reads

    def _spans(
        self, topic: str, begins: Mapping[int, int], stops: Mapping[int, int]
    ) -> list[tuple[int, int, int]]:
        """Return the partitions that have offsets between two positions, each with a half-open range."""
        spans: list[tuple[int, int, int]] = []
        for partition, stop in sorted(stops.items()):
            begin = begins.get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            if begin < stop:
                spans.append((partition, begin, stop))
        return spans


def _with_nulls(batch: pa.RecordBatch, columns: Sequence[str], own: pa.Schema) -> pa.RecordBatch:
    """Return a batch with all of these columns; columns that were not read are NULL."""
    there = set(batch.schema.names)
    if there == set(columns):
        return batch
    arrays = [batch.column(n) if n in there else pa.nulls(batch.num_rows, own.field(n).type) for n in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
