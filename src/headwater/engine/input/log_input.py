"""The records of the log that a tick takes in, each span read once however many views read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import CAPTURED, TopicDefinition
from headwater.core.hashing import Indices
from headwater.core.parallel import side_by_side
from headwater.core.positions import Ends
from headwater.engine.collections.collections import Collection, TableCollection
from headwater.engine.input.excised_records import records_at
from headwater.engine.metrics.rows_taken import ReadSpan, TakenIn
from headwater.log.protocol import Log
from headwater.operators.zset.delta import Delta, concat_rows
from headwater.plan.relations.metadata_columns import EVERY, READABLE, read_records

Span = tuple[str, tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""A topic, and where in it: by partition, its begin and its end."""
PIECE_ROWS = 1 << 18
"""Records that are read at a time of those that are read once more."""


class Inputs:
    """Reads topics between two cuts."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._read: dict[Span, list[tuple[frozenset[str], pa.RecordBatch]]] = {}
        """By span, what was read of it: without the values of these columns, which nobody looks at."""
        self._made: dict[tuple[Span, tuple[str, ...], frozenset[str]], Delta] = {}
        """Changes as views read them, by what is hidden that they need, and by what they do not look at."""
        self._topics: dict[str, TopicDefinition] = {}
        self._pieces: list[Span] = []
        """Where records were read that were taken in before."""
        self.reads: list[ReadSpan] = []
        """Where records were taken in."""
        self._taken = TakenIn(log)

    @property
    def rows(self) -> int:
        """Records that were taken in, each once."""
        return self._taken.rows

    def changes(self, unit: Collection, start: Ends, end: Ends) -> dict[str, Delta | pa.RecordBatch]:
        """The records of all topics of a unit between two cuts, by what it knows them by."""
        return {name: self.read(unit, topic, start, end) for topic, name in unit.named.items()}

    def read(self, unit: Collection, topic: str, start: Ends, end: Ends) -> Delta | pa.RecordBatch:
        """The records of a topic between two cuts: in the order of the log for a table, as a change for a view.

        They have the topic's columns, and then the hidden ones that the unit needs.
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

    def take_in(self, reads: Sequence[ReadSpan]) -> None:
        """Count the records of spans that were read, in this process or in another."""
        self.reads += reads
        self._taken.add(reads)

    def _found(self, span: Span, columns: list[str], unseen: frozenset[str]) -> pa.RecordBatch:
        """The records of a span with these columns, read unless they were."""
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
        """All records of a topic up to a cut, in the order of the log, some of a partition at a time, with their offsets; of its columns
        those that are `seen` have values."""
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
        """The records at some offsets, which ascend, in the same way."""
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
        """Positions of a topic at a commit of the log, where a cut went beyond it."""
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
        """Records of a topic with every column as a unit would have read them."""
        columns, unseen = self.columns(unit, topic), self._unseen(unit, topic)
        seen = rows.select([name for name in columns if name not in unseen])
        return _with_nulls(seen, columns, self._schema(topic))

    def has_met(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> bool:
        """Whether some of these offsets are in what was read of a topic."""
        for name, begins, stops in (*self._read, *self._pieces):
            starts = dict(begins)
            for partition, stop in stops if name == topic else ():
                mine = np.asarray(offsets.get(partition, ()), np.int64)
                if ((mine >= starts.get(partition, 0)) & (mine < stop)).any():
                    return True
        return False

    def columns(self, unit: Collection, topic: str) -> list[str]:
        """What a unit reads of a topic: its own columns, and hidden ones behind them."""
        own = self._schema(topic).names
        if isinstance(unit, TableCollection):
            hidden = (*READABLE.names, *CAPTURED.names)
            return [*own, *(n for n in hidden if (n in unit.schema.names or n == "_op") and n not in own)]
        return [*own, *unit.hidden.get(unit.named[topic], ())]

    def _unseen(self, unit: Collection, topic: str) -> frozenset[str]:
        """The private columns that a unit does not look at: what need not be decrypted for it is NULL."""
        private = self.definition(topic).private
        return frozenset() if topic in unit.keeps else frozenset(column for column, _ in private)

    def layout(self, topic: str, columns: Sequence[str]) -> pa.Schema:
        """Columns of a topic, hidden ones among them, with their types."""
        known = {field.name: field for field in (*EVERY, *self._schema(topic))}
        return pa.schema([known[name] for name in columns])

    def _schema(self, topic: str) -> pa.Schema:
        return self.definition(topic).schema

    def definition(self, topic: str) -> TopicDefinition:
        """A topic, the same for every view of the tick: the log is asked once."""
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
        spans: list[tuple[int, int, int]] = []
        for partition, stop in sorted(stops.items()):
            begin = begins.get(partition)
            if begin is None:
                begin = self._log.partitions(topic)[partition].first
            if begin < stop:
                spans.append((partition, begin, stop))
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


def _with_nulls(batch: pa.RecordBatch, columns: Sequence[str], own: pa.Schema) -> pa.RecordBatch:
    """A batch with all of these columns, those that were not read as NULL."""
    there = set(batch.schema.names)
    if there == set(columns):
        return batch
    arrays = [batch.column(n) if n in there else pa.nulls(batch.num_rows, own.field(n).type) for n in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))
