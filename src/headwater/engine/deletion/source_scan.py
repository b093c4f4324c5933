"""What a view reads, read once more: all of it as it is after a tick, in pieces, with private values only where they are wanted.

To decrypt a value takes longer than everything else that is done with it. So records can be had without theirs first, and those of
which more is wanted once more with them.
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
    """Records without private values, and how to have some of them with all, by their places."""

    rows: Delta
    at: Callable[[Indices], Delta]


class Forgotten(NamedTuple):
    """Subjects that were forgotten, and by topic the records that were removed from it since the last tick: what these held of private values is
    as unknown, and they may be of the same subjects."""

    subjects: Sequence[str]
    removed: Mapping[str, Sequence[pa.RecordBatch]]


class SourceScan:
    """The sources of a view up to a cut. `contents` has those that are views."""

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
        """The same if somebody was forgotten whose values these may be."""
        return self.private(source) if self._forgotten.subjects else frozenset()

    def can_be_plain(self, source: g.SourceNode) -> bool:
        """Whether rows of a source are worth finding without private values first; not if some of them may fail, which takes all of a row to tell."""
        return bool(self.private(source)) and not self._unit.diverts

    def whole(self, source: g.SourceNode) -> Iterator[Delta]:
        """All rows of a source, in the order of the log."""
        if source.name not in self._topics:
            yield self._contents(self._unit.sources[source.name])
            return
        for _, _, rows in self._read(source, self._all(source)):
            yield self._admitted(source, rows)

    def plain(self, source: g.SourceNode) -> Iterator[ScanPiece]:
        """The same without private values."""
        names, private = self._names(source), self.private(source)
        plain = [name for i, name in enumerate(names) if i not in private]
        for partition, offsets, rows in self._read(source, plain):

            def found(places: Indices, partition: int = partition, offsets: Indices = offsets) -> Delta:
                return self._admitted(source, self._at(source, partition, offsets[places], self._all(source)))

            yield ScanPiece(Delta.of(rows), found)

    def of_forgotten(self, source: g.SourceNode) -> Iterator[Delta]:
        """The rows of those who were forgotten, without private values; and those that were removed beside."""
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
        """Rows without those that the view diverts."""
        return self._unit.admitted({source.name: Delta.of(rows)})[source.name]

    def _all(self, source: g.SourceNode) -> list[str]:
        """What is read of a source: everything if one part of a query may divert a row because of what another looks at."""
        if not self._unit.diverts:
            return self._names(source)
        return self._inputs.columns(self._unit, self._topics[source.name])

    def _names(self, source: g.SourceNode) -> list[str]:
        return _names(source, self._inputs.definition(self._topics[source.name]))


def private_of(unit: ViewCollection, definition: Callable[[str], TopicDefinition]) -> Private:
    """The columns of a view's sources that are encrypted in the log, or tell of that; none of a topic whose the view looks at none of."""
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
    """Which rows are of one of some subjects, by the columns that say whose they are."""
    found = np.zeros(rows.num_rows, np.bool_)
    for column in by:
        named = pc.is_in(rows.column(column).cast(pa.string()), pa.array(subjects, pa.string()))
        found |= named.to_numpy(zero_copy_only=False)
    return found
