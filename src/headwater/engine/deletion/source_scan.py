"""Rereading of a view's sources: all rows as of a tick, in pieces, with private values only where they are needed.

Decrypting a value takes longer than all other processing of it. So records can first be read without private values,
and the relevant ones once more with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.hashing import Indices
from headwater.core.positions import Ends
from headwater.engine.collections.collections import ViewCollection
from headwater.engine.deletion.private_dataflow import Private
from headwater.engine.input.log_input import Inputs
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta


class ScanPiece(NamedTuple):
    """Records without private values, and a function that reads some of them completely, by their indices."""

    rows: Delta
    at: Callable[[Indices], Delta]


class Forgotten(NamedTuple):
    """Forgotten subjects, and by topic the records that were removed from it since the last tick.

    The private values of removed records are lost too, and may belong to the same subjects.
    """

    subjects: Sequence[str]
    removed: Mapping[str, Sequence[pa.RecordBatch]]


class SourceScan:
    """The sources of a view up to a cut. `contents` returns the rows of sources that are views."""

    def __init__(
        self,
        unit: ViewCollection,
        end: Ends,
        inputs: Inputs,
        contents: Callable[[str], Delta],
        forgotten: Forgotten,
    ) -> None:
        self._unit = unit
        self._end = end
        self._inputs = inputs
        self._contents = contents
        self._forgotten = forgotten
        self.private = private_of(unit, inputs.definition)
        self._topics = {name: topic for topic, name in unit.named.items()}

    def forgotten(self, source: g.SourceNode) -> frozenset[int]:
        """Return the private columns of a source if a subject was forgotten whose values they may contain; else an
        empty set."""
        return self.private(source) if self._forgotten.subjects else frozenset()

    def can_be_plain(self, source: g.SourceNode) -> bool:
        """Whether to find rows of a source without private values first; not if the view diverts rows, which needs all
        columns."""
        return bool(self.private(source)) and not self._unit.diverts

    def whole(self, source: g.SourceNode) -> Iterator[Delta]:
        """Yield all rows of a source, in the order of the log."""
        if source.name not in self._topics:
            yield self._contents(self._unit.sources[source.name])
            return
        for _, _, rows in self._read(source, self._all(source)):
            yield self._admitted(source, rows)

    def plain(self, source: g.SourceNode) -> Iterator[ScanPiece]:
        """Yield all rows of a source without private values, in the order of the log."""
        names, private = self._names(source), self.private(source)
        plain = [name for i, name in enumerate(names) if i not in private]
        for partition, offsets, rows in self._read(source, plain):

            def found(places: Indices, partition: int = partition, offsets: Indices = offsets) -> Delta:
                return self._admitted(source, self._at(source, partition, offsets[places], self._all(source)))

            yield ScanPiece(Delta.of(rows), found)

    def of_forgotten(self, source: g.SourceNode) -> Iterator[Delta]:
        """Yield the rows of forgotten subjects, without private values, and the records that were removed since the
        last tick."""
        private = self.private(source)
        names = [name for i, name in enumerate(self._names(source)) if i not in private]
        topic = self._inputs.definition(self._topics[source.name])
        by = sorted({column for _, column in topic.private})
        for partition, offsets, rows in self._read(source, by):
            theirs = of_subjects(rows, by, self._forgotten.subjects)
            if theirs.any():
                yield Delta.of(self._at(source, partition, offsets[theirs], names))
        yield from map(Delta.of, self._forgotten.removed.get(topic.name, ()))

    def _read(
        self, source: g.SourceNode, names: Sequence[str]
    ) -> Iterator[tuple[int, Indices, pa.RecordBatch]]:
        return self._inputs.pieces(self._unit, self._topics[source.name], self._end, names)

    def _at(
        self, source: g.SourceNode, partition: int, offsets: Indices, names: Sequence[str]
    ) -> pa.RecordBatch:
        return self._inputs.at(self._unit, self._topics[source.name], partition, offsets, names)

    def _admitted(self, source: g.SourceNode, rows: pa.RecordBatch) -> Delta:
        """Return the rows that the view does not divert."""
        return self._unit.admitted({source.name: Delta.of(rows)})[source.name]

    def _all(self, source: g.SourceNode) -> list[str]:
        """Return the columns to read of a source: all columns of the collection if the view diverts rows, because any
        part of its query may divert a row."""
        if not self._unit.diverts:
            return self._names(source)
        return self._inputs.columns(self._unit, self._topics[source.name])

    def _names(self, source: g.SourceNode) -> list[str]:
        return _names(source, self._inputs.definition(self._topics[source.name]))


def private_of(unit: ViewCollection, definition: Callable[[str], TopicDefinition]) -> Private:
    """Return the private columns of a view's sources, and the column that marks forgotten rows.

    A source has none if the view keeps no private values of its topic.
    """
    topics = {name: definition(topic) for topic, name in unit.named.items() if topic in unit.keeps}

    def private(source: g.SourceNode) -> frozenset[int]:
        if source.name not in topics:
            return frozenset()
        topic = topics[source.name]
        names = {column for column, _ in topic.private} | {FORGOTTEN}
        return frozenset(i for i, name in enumerate(_names(source, topic)) if name in names)

    return private


def _names(source: g.SourceNode, topic: TopicDefinition) -> list[str]:
    return [*(topic.schema.names[i] for i in source.columns), *source.hidden]


def of_subjects(rows: pa.RecordBatch, by: Sequence[str], subjects: Sequence[str]) -> np.ndarray:
    """Return a mask of the rows that belong to any of these subjects, according to the subject columns `by`."""
    found = np.zeros(rows.num_rows, np.bool_)
    for column in by:
        named = pc.is_in(rows.column(column).cast(pa.string()), pa.array(subjects, pa.string()))
        found |= named.to_numpy(zero_copy_only=False)
    return found
