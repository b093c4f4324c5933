"""Lookups of a captured table in the log: its live keys, and the last values of given rows.

An index (`key_index`) maps each key to its last record. The index is created at the first lookup, is stored next to the log,
and is extended with newly appended records at each lookup. So the cost of a lookup depends on the keys asked for, not on the
length of the topic.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import CorruptionError, HeadwaterError
from headwater.core.hashing import equal_rows
from headwater.core.storage import Storage
from headwater.log.key_index import KEY_FILES, Offsets, PartitionIndex
from headwater.log.protocol import Log
from headwater.sources.row_sizes import check_bytes

TAKEN_ROWS = 1 << 18
"""Number of records added to an index at a time."""
CHECKED_ROWS = 64
"""Number of records of each batch whose keys are compared with the index, to detect an index of a different log."""
NEAR_ROWS = 16_384
"""Records with a distance of fewer offsets than this are read in one range."""

FOUND = "_found"
Found = tuple[pa.RecordBatch, npt.NDArray[np.int64]]
"""Rows, and for each row the index of the requested key that it belongs to."""


class Lookups:
    """Looks up rows of keyed topics in the log."""

    def __init__(self, log: Log, folder: Path | None = None) -> None:
        """`folder` stores the indexes; without it, every process builds its own."""
        self._log = log
        self._folder = folder
        self._indexes: dict[tuple[str, int], dict[int, PartitionIndex]] = {}

    def live_keys(self, topic: str) -> Iterator[pa.RecordBatch]:
        """Yield the key columns of the current rows of the topic's table."""
        definition = self._log.topic(topic)
        keys = list(definition.key)
        for partition, index in self._index(definition).items():
            live = index.live(self._log.partitions(topic)[partition].first)
            for batch, places in self._at(definition.name, partition, live, keys):
                some = np.unique(np.linspace(0, len(places) - 1, CHECKED_ROWS, dtype=np.int64))
                if (index.find(batch.take(pa.array(some)).columns, len(some)) != live[places[some]]).any():
                    raise self._drop_foreign_index(definition)
                yield batch

    def definition(self, topic: str) -> TopicDefinition | None:
        """Return the current definition of a topic; None if the topic does not exist."""
        return self._log.topics().get(topic)

    def moment(self) -> int:
        """Return the number of the last commit in the log."""
        return self._log.sequence()

    def is_empty(self, topic: str) -> bool:
        """Whether a topic does not exist, or was never written to."""
        return topic not in self._log.topics() or all(
            info.end == 0 for info in self._log.partitions(topic).values()
        )

    def last_values(
        self, topic: str, keys: pa.RecordBatch, columns: Sequence[str], since: int = 0, after: int = 0
    ) -> pa.RecordBatch:
        """Return some columns of the last records with these keys, in the order of the keys, and the column `_found`: whether a
        record was found that was written after commit `since` and whose source position is greater than `after`. A key whose
        last record is a delete is not found. RowsTooLargeError if the values have too many bytes to be combined."""
        definition = self._log.topic(topic)
        wanted = keys.select(list(definition.key))
        where = ["_source_position"] if after else []
        read = list(dict.fromkeys([*definition.key, *columns, "_sequence", *where]))
        found: list[Found] = []
        count = size = 0
        for partition, index in self._index(definition).items():
            offsets = index.find(wanted.columns, wanted.num_rows)
            mine = np.flatnonzero(offsets >= self._log.partitions(topic)[partition].first)
            there, back = np.unique(offsets[mine], return_inverse=True)
            for batch, places in self._at(definition.name, partition, there, read):
                rows, of = _each(places, back)
                rows_of = batch.take(pa.array(rows))
                self._check(definition, rows_of, wanted.take(pa.array(mine[of])))
                new = np.asarray(rows_of.column("_sequence")) > since
                if after:
                    new &= np.asarray(pc.fill_null(rows_of.column("_source_position"), 0)) > after
                found.append((rows_of.select(list(columns)).filter(pa.array(new)), mine[of][new]))
                count, size = count + found[-1][0].num_rows, size + found[-1][0].nbytes
                check_bytes(size, count)
        return _in_order(found, keys.num_rows, columns, definition)

    def _index(self, definition: TopicDefinition) -> dict[int, PartitionIndex]:
        """Return the index of a topic, extended with all records in the log."""
        known = (definition.name, definition.incarnation)
        partitions = self._log.partitions(definition.name)
        if known not in self._indexes:
            folder = self._own_folder(definition)
            self._indexes[known] = {p: PartitionIndex(folder, p, sync=self._log.sync) for p in partitions}
        for partition, index in self._indexes[known].items():
            info = partitions[partition]
            if index.end > info.end:  # the index belongs to a different log
                index.clear()
            at = max(index.end, info.first)
            while at < info.end:
                end = min(info.end, at + TAKEN_ROWS)
                self._index_records(definition, partition, index, at, end)
                at = end
        return self._indexes[known]

    def _index_records(
        self, definition: TopicDefinition, partition: int, index: PartitionIndex, begin: int, end: int
    ) -> None:
        wanted = [*definition.key, "_offset", "_op"]
        batches = list(self._log.read(definition.name, partition, begin, end, wanted))
        if not batches:
            return
        table = pa.Table.from_batches(batches).combine_chunks()
        columns = [_flat(column) for column in table.columns]
        deleted = pc.equal(columns[-1], "delete").to_numpy(zero_copy_only=False)
        index.add(columns[:-2], columns[-2].to_numpy(), deleted, end)

    def _own_folder(self, definition: TopicDefinition) -> Path | None:
        """Return the folder of a topic's index, and remove the folders of earlier topics with the same name."""
        if self._folder is None:
            return None
        own = self._folder / f"{definition.name}.{definition.incarnation}"
        if self._folder.is_dir():
            storage = Storage(self._folder)
            for other in storage.folders("."):
                name, _, incarnation = other.rpartition(".")
                if name == definition.name and incarnation.isdecimal() and other != own.name:
                    with contextlib.suppress(HeadwaterError):
                        storage.remove_dir(other, KEY_FILES)
        own.mkdir(parents=True, exist_ok=True)
        return own

    def _at(self, topic: str, partition: int, offsets: Offsets, columns: Sequence[str]) -> Iterator[Found]:
        """Yield the records at ascending offsets, each batch with the indices of its records in `offsets`. Records close to
        each other are read together."""
        if not len(offsets):
            return
        wanted = list(dict.fromkeys([*columns, "_offset"]))
        ends = np.append(np.flatnonzero(np.diff(offsets) > NEAR_ROWS) + 1, len(offsets)).tolist()
        begin = 0
        for end in ends:
            first, last = int(offsets[begin]), int(offsets[end - 1])
            for batch in self._log.read(topic, partition, first, last + 1, wanted):
                here = batch.column("_offset").to_numpy()
                low, high = np.searchsorted(offsets[begin:end], [here[0], here[-1] + 1]) + begin
                at = np.searchsorted(here, offsets[low:high])
                there = here[np.minimum(at, len(here) - 1)] == offsets[low:high]
                if there.any():
                    yield batch.select(list(columns)).take(pa.array(at[there])), np.arange(low, high)[there]
            begin = end

    def _check(self, definition: TopicDefinition, rows: pa.RecordBatch, keys: pa.RecordBatch) -> None:
        mine = [rows.column(name) for name in definition.key]
        if not equal_rows(mine, keys.columns, rows.num_rows).all():
            raise self._drop_foreign_index(definition)

    def _drop_foreign_index(self, definition: TopicDefinition) -> CorruptionError:
        for index in self._indexes.pop((definition.name, definition.incarnation)).values():
            index.clear()
        return CorruptionError(
            f"the key index of topic {definition.name!r} does not belong to this log",
            hint="the index was removed; start the source again to rebuild it",
            topic=definition.name,
        )


def _each(places: Offsets, asked: Offsets) -> tuple[Offsets, Offsets]:
    """Return one entry for every occurrence of one of `places` in `asked`: the index in `places`, and the index in `asked`."""
    order = np.argsort(asked, kind="stable")
    begins = np.searchsorted(asked[order], places, "left")
    counts = np.searchsorted(asked[order], places, "right") - begins
    rows = np.repeat(np.arange(len(places)), counts)
    steps = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows, order[np.repeat(begins, counts) + steps]


def _flat(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


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
