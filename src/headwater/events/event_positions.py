"""An index from keys to the offsets of their records in a topic, for repeated lookups, kept up to date with the log.

Recent records are in a dict; when it has grown it becomes a run of `headwater.log.key_index`. So neither a lookup nor an
update scans the topic: its key columns are read once, and then only from the last position. With a folder, runs are stored
on disk, and one process at a time writes them; others keep theirs in memory. All files can be deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.core.storage import File, Storage
from headwater.log.key_index import PartitionIndex
from headwater.log.protocol import Log

RECENT_MAX = 16_384
"""Maximum number of records in the dict; more become a run."""
TAKEN_ROWS = 1 << 18
"""Number of records that are read at a time."""
NEAR_ROWS = 4_096
"""Maximum distance of records of a key that are read together."""

CHECKED_ROWS = 16
"""Number of records by which files are checked to be of this log."""

Key = tuple[str, ...]


class KeyOffsets:
    """The offsets of every key of a topic. A key is the text of some columns; `a.b` is a field of a struct.

    Not thread-safe. `topic` is the definition at the time of creation: for a changed topic, create a new index.
    """

    def __init__(
        self, log: Log, topic: TopicDefinition, columns: Sequence[str], folder: Path | None = None
    ) -> None:
        self.topic = topic
        self._log = log
        self._columns = list(columns)
        self._lock: File | None = None
        mine = self._owned(folder)
        self._indexes = [PartitionIndex(mine, p, sync=log.sync, every=True) for p in range(topic.partitions)]
        ends = log.ends([topic.name])[topic.name]
        for partition, index in enumerate(self._indexes):
            if index.end > ends[partition] or not self._holds(partition, index):
                index.clear()  # the files are of another log
        self._read_to = [index.end for index in self._indexes]
        self._recent: list[dict[Key, list[int]]] = [{} for _ in self._indexes]
        self._kept: list[list[tuple[Key, int]]] = [[] for _ in self._indexes]
        self._torn = [False for _ in self._indexes]
        """By partition, whether an update was started and not finished."""

    def close(self) -> None:
        """Release the files to other processes."""
        if self._lock is not None:
            self._lock.close()

    def _owned(self, folder: Path | None) -> Path | None:
        """Lock the folder and return it; None if another process holds the lock."""
        if folder is None:
            return None
        storage = Storage(folder.parent)
        storage.make_dirs(folder.name)
        lock = Storage(folder).open("lock", create=True)
        if not lock.try_lock():
            lock.close()
            return None
        self._lock = lock
        return folder

    def _holds(self, partition: int, index: PartitionIndex) -> bool:
        """Whether files are of this log. A log that lost its last records in a power failure, and continued with others,
        differs from the files in the last records that they have."""
        wanted = list(dict.fromkeys([*(name.split(".")[0] for name in self._columns), "_offset"]))
        start = max(0, index.end - CHECKED_ROWS)
        for batch in self._log.read(self.topic.name, partition, start, index.end, wanted):
            columns = [_flat(batch, name) for name in self._columns]
            for place, offset in enumerate(batch.column("_offset").to_pylist()):
                key = [pa.array([column[place].as_py()], pa.string()) for column in columns]
                if offset not in index.find_every(key, offset - 1)[:1]:
                    return False
        return True

    def refresh(self) -> None:
        """Read what was appended since the last call."""
        for partition, end in self._log.ends([self.topic.name])[self.topic.name].items():
            if self._torn[partition]:
                self._restart(partition)
            self._torn[partition] = self._read_to[partition] < end
            while self._read_to[partition] < end:
                stop = min(end, self._read_to[partition] + TAKEN_ROWS)
                self._read_range(partition, self._read_to[partition], stop)
                self._read_to[partition] = stop
            self._torn[partition] = False

    def _restart(self, partition: int) -> None:
        """Drop what was read since the last run was created: some of it may be duplicated or incomplete. Runs are complete."""
        end = self._indexes[partition].end
        self._recent[partition], self._kept[partition], self._read_to[partition] = {}, [], end

    def note(self, partition: int, first: int, keys: Sequence[Key]) -> None:
        """Add records that this process has just appended, from an offset on; without effect if other records came before."""
        if self._torn[partition] or self._read_to[partition] != first:
            return
        self._torn[partition] = True
        for offset, key in enumerate(keys, first):
            self._remember(partition, key, offset)
        self._read_to[partition] = first + len(keys)
        self._flush_if_full(partition)
        self._torn[partition] = False

    def offsets(self, partition: int, key: Key, after: int = -1) -> npt.NDArray[np.int64]:
        """Return the offsets of a key's records after `after`, ascending, as far as read."""
        found = self._recent[partition].get(key, [])
        recent = found[bisect_right(found, after) :]
        index = self._indexes[partition]
        if index.end <= after + 1:
            return np.array(recent, np.int64)
        older = index.find_every([pa.array([value], pa.string()) for value in key], after)
        return np.concatenate([older, np.array(recent, np.int64)]) if recent else older

    def among(self, partition: int, keys: Sequence[Key]) -> set[Key]:
        """Return the keys which possibly have records, with a single lookup."""
        recent, index = self._recent[partition], self._indexes[partition]
        columns = [pa.array(values, pa.string()) for values in zip(*keys, strict=True)]
        older = index.find(columns, len(keys)) >= 0 if keys and index.end else np.zeros(len(keys), np.bool_)
        return {key for key, there in zip(keys, older.tolist(), strict=True) if there or key in recent}

    def read_to(self, partition: int) -> int:
        """Return the offset up to which records were read."""
        return self._read_to[partition]

    def records(
        self, partition: int, key: Key, offsets: npt.NDArray[np.int64], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of a key at these offsets, in order; other records between them are read and left out."""
        if not len(offsets):
            return
        wanted = [*columns, *({self._columns[0].split(".")[0], "_offset"} - set(columns))]
        cuts = np.flatnonzero(np.diff(offsets) > NEAR_ROWS) + 1
        for near in np.split(offsets, cuts):
            for batch in self._log.read(self.topic.name, partition, int(near[0]), int(near[-1]) + 1, wanted):
                here = np.isin(batch.column("_offset").to_numpy(), near)
                same = here
                for name, value in zip(self._columns, key, strict=True):
                    flat = _flat(batch, name)
                    # hashes may collide, so values are compared
                    if flat is not None:
                        same = same & pc.fill_null(pc.equal(flat, value), False).to_numpy(
                            zero_copy_only=False
                        )
                if same.any():
                    yield batch.filter(pa.array(same)).select(list(columns))

    def _read_range(self, partition: int, start: int, end: int) -> None:
        wanted = list(dict.fromkeys([*(name.split(".")[0] for name in self._columns), "_offset"]))
        for batch in self._log.read(self.topic.name, partition, start, end, wanted):
            columns = [_flat(batch, name) for name in self._columns]
            if batch.num_rows > RECENT_MAX:
                self._to_run(partition)
                behind = int(batch.column("_offset")[-1].as_py()) + 1
                self._add(partition, columns, batch.column("_offset").to_numpy(), behind)
                continue
            for offset, key in zip(
                batch.column("_offset").to_pylist(),
                zip(*(column.to_pylist() for column in columns), strict=True),
                strict=True,
            ):
                self._remember(partition, key, offset)
            self._flush_if_full(partition)

    def _remember(self, partition: int, key: Key, offset: int) -> None:
        self._recent[partition].setdefault(key, []).append(offset)
        self._kept[partition].append((key, offset))

    def _flush_if_full(self, partition: int) -> None:
        if len(self._kept[partition]) >= RECENT_MAX:
            self._to_run(partition)

    def _to_run(self, partition: int) -> None:
        kept = self._kept[partition]
        if not kept:
            return
        columns = [pa.array(values, pa.string()) for values in zip(*(key for key, _ in kept), strict=True)]
        self._add(partition, columns, np.array([offset for _, offset in kept], np.int64), kept[-1][1] + 1)
        self._recent[partition], self._kept[partition] = {}, []

    def _add(self, partition: int, columns: Sequence[Any], offsets: npt.NDArray[np.int64], end: int) -> None:
        self._indexes[partition].add(columns, offsets, np.zeros(len(offsets), np.bool_), end)


def _flat(batch: pa.RecordBatch, name: str) -> Any:
    """Return a column, or a field of a struct; None if it was not read."""
    column, *fields = name.split(".")
    if column not in batch.schema.names:
        return None
    found = batch.column(column)
    for field in fields:
        found = pc.struct_field(found, field)
    return found
