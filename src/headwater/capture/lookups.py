"""What the log itself knows of a captured table: the keys that are live, and the last values of some rows.

Last values are looked for from the topic's end, in spans that grow: what changes now was mostly written not long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog import TopicDefinition
from headwater.hashing import equal_rows, hash_rows
from headwater.log.protocol import Log

SPAN_ROWS = 16_384
SPAN_ROWS_MAX = 1 << 20
"""How many records are looked through at once: the first time, and at most."""

FOUND = "_found"


class Lookups:
    """Questions to the log about its keyed topics."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        """The key columns of the rows that the topic's table has now."""
        definition = self._log.topic(topic)
        keys = list(definition.key)
        for partition, info in self._log.partitions(topic).items():
            batches = list(self._log.read(topic, partition, info.first, info.end, [*keys, "_op"]))
            if batches:
                records = pa.Table.from_batches(batches)
                records = records.append_column("_n", pa.array(np.arange(records.num_rows)))
                last = records.take(records.group_by(keys).aggregate([("_n", "max")]).column("_n_max"))
                live = last.filter(pc.not_equal(last.column("_op"), "delete")).select(keys)
                yield from live.combine_chunks().to_batches()

    def definition(self, topic: str) -> TopicDefinition | None:
        """A topic as it is declared now; None if there is none."""
        return self._log.topics().get(topic)

    def last_values(self, topic: str, keys: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Some columns of the rows with these keys, as the log has them last, in the order of the keys; and `_found`: whether
        a row is there. One that was deleted last is not."""
        definition = self._log.topic(topic)
        wanted = _Wanted(keys.select(list(definition.key)))
        found: list[tuple[pa.RecordBatch, npt.NDArray[np.int64]]] = []
        for partition in self._log.partitions(topic):
            for batch in self._backwards(definition, partition, columns):
                rows, places = wanted.among(batch)
                live = pc.not_equal(batch.column("_op").take(pa.array(rows)), "delete")
                is_live = live.to_numpy(zero_copy_only=False)
                wanted.done(places)
                found.append((batch.select(list(columns)).take(pa.array(rows[is_live])), places[is_live]))
                if wanted.is_empty:
                    return _in_order(found, keys.num_rows, columns, definition)
        return _in_order(found, keys.num_rows, columns, definition)

    def _backwards(
        self, definition: TopicDefinition, partition: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a partition in spans from its end, each in the order of the log."""
        info = self._log.partitions(definition.name)[partition]
        wanted = list(dict.fromkeys([*definition.key, *columns, "_op"]))
        end, size = info.end, SPAN_ROWS
        while end > info.first:
            begin = max(info.first, end - size)
            batches = list(self._log.read(definition.name, partition, begin, end, wanted))
            if batches:
                yield pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
            end, size = begin, min(size * 4, SPAN_ROWS_MAX)


class _Wanted:
    """Keys that are looked for, and which of them are still to be found."""

    def __init__(self, keys: pa.RecordBatch) -> None:
        self._keys = keys
        hashes = hash_rows(keys.columns, keys.num_rows)
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]
        self._left = np.ones(keys.num_rows, np.bool_)

    @property
    def is_empty(self) -> bool:
        return not self._left.any()

    def among(self, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The last row of each key that is wanted still, and the places of these keys."""
        names = self._keys.schema.names
        hashes = hash_rows([batch.column(name) for name in names], batch.num_rows)
        begins = np.searchsorted(self._hashes, hashes, "left")
        ends = np.searchsorted(self._hashes, hashes, "right")
        counts = ends - begins
        rows = np.repeat(np.arange(batch.num_rows), counts)
        firsts = np.cumsum(counts) - counts
        steps = np.arange(len(rows)) - np.repeat(firsts, counts)
        places = self._order[np.repeat(begins, counts) + steps]
        kept = self._left[places]
        rows, places = rows[kept], places[kept]
        left = [batch.column(name).take(pa.array(rows)) for name in names]
        right = [column.take(pa.array(places)) for column in self._keys.columns]
        same = equal_rows(left, right, len(rows))
        rows, places = rows[same], places[same]
        last = len(places) - 1 - np.unique(places[::-1], return_index=True)[1]
        return rows[last], places[last]

    def done(self, places: npt.NDArray[np.int64]) -> None:
        self._left[places] = False


def _in_order(
    found: Sequence[tuple[pa.RecordBatch, npt.NDArray[np.int64]]],
    rows: int,
    columns: Sequence[str],
    definition: TopicDefinition,
) -> pa.RecordBatch:
    schema = pa.schema([definition.schema.field(name).with_nullable(True) for name in columns])
    there, place = np.zeros(rows, np.bool_), np.full(rows, -1, np.int64)
    begin = 0
    for _, places in found:
        place[places] = np.arange(begin, begin + len(places))
        there[places] = True
        begin += len(places)
    given = [batch.cast(schema) for batch, _ in found]
    every = pa.Table.from_batches(given, schema=schema).combine_chunks()
    taken = every.take(pa.array(place, mask=~there))
    found_column = pa.field(FOUND, pa.bool_())
    arrays = [*(column.combine_chunks() for column in taken.columns), pa.array(there)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema.append(found_column))
