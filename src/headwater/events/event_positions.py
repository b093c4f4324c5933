"""Where the records of a key are in a topic, for those who ask again and again: an index that follows the log.

What was appended lately is in a dict; when that has grown it becomes a run of `headwater.log.key_index`. So neither finding a key
nor keeping up scans the topic: it is read once, its key columns alone, and then from where it was read to. With a folder
runs stay on disk, and one process at a time writes them; the others keep theirs in memory. All of it can be deleted.
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
"""Records that are looked up in a dict; more become a run."""
TAKEN_ROWS = 1 << 18
"""Records that are read at a time."""
NEAR_ROWS = 4_096
"""Records of a key that are nearer to each other than this are read in one go."""

CHECKED_ROWS = 16
"""Records by which it is seen whether files are of this log."""

Key = tuple[str, ...]


class Places:
    """The offsets of every key of a topic. A key is the text of some columns; `a.b` is a field of a struct.

    Used by one thread at a time. `topic` is as it was when this was made: who needs another makes another.
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
                index.clear()  # of a log that is not this one
        self._read_to = [index.end for index in self._indexes]
        self._recent: list[dict[Key, list[int]]] = [{} for _ in self._indexes]
        self._kept: list[list[tuple[Key, int]]] = [[] for _ in self._indexes]
        self._torn = [False for _ in self._indexes]
        """While records are taken in: if it is so before, that was interrupted."""

    def close(self) -> None:
        """Let others write the files."""
        if self._lock is not None:
            self._lock.close()

    def _owned(self, folder: Path | None) -> Path | None:
        """The folder, if no other process writes there."""
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
        """Whether files are of this log. One that lost its last records with the power, and went on with others, differs from them
        in the last records that they know of."""
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
        """Take in what was appended since."""
        for partition, end in self._log.ends([self.topic.name])[self.topic.name].items():
            if self._torn[partition]:
                self._start_again(partition)
            self._torn[partition] = self._read_to[partition] < end
            while self._read_to[partition] < end:
                stop = min(end, self._read_to[partition] + TAKEN_ROWS)
                self._take_in(partition, self._read_to[partition], stop)
                self._read_to[partition] = stop
            self._torn[partition] = False

    def _start_again(self, partition: int) -> None:
        """Forget what was taken in since the last run was made: some of it may be there twice, or in part. Runs are whole."""
        end = self._indexes[partition].end
        self._recent[partition], self._kept[partition], self._read_to[partition] = {}, [], end

    def note(self, partition: int, first: int, keys: Sequence[Key]) -> None:
        """Records that this process has just appended, from an offset on: they need not be read, if no others came before."""
        if self._torn[partition] or self._read_to[partition] != first:
            return
        self._torn[partition] = True
        for offset, key in enumerate(keys, first):
            self._remember(partition, key, offset)
        self._read_to[partition] = first + len(keys)
        self._settle(partition)
        self._torn[partition] = False

    def offsets(self, partition: int, key: Key, after: int = -1) -> npt.NDArray[np.int64]:
        """Where the records of a key are behind an offset, ascending, as far as was taken in."""
        found = self._recent[partition].get(key, [])
        recent = found[bisect_right(found, after) :]
        index = self._indexes[partition]
        if index.end <= after + 1:
            return np.array(recent, np.int64)
        older = index.find_every([pa.array([value], pa.string()) for value in key], after)
        return np.concatenate([older, np.array(recent, np.int64)]) if recent else older

    def among(self, partition: int, keys: Sequence[Key]) -> set[Key]:
        """Those of several keys that may have records, all looked up at once."""
        recent, index = self._recent[partition], self._indexes[partition]
        columns = [pa.array(values, pa.string()) for values in zip(*keys, strict=True)]
        older = index.find(columns, len(keys)) >= 0 if keys and index.end else np.zeros(len(keys), np.bool_)
        return {key for key, there in zip(keys, older.tolist(), strict=True) if there or key in recent}

    def read_to(self, partition: int) -> int:
        """Up to where records were taken in."""
        return self._read_to[partition]

    def records(
        self, partition: int, key: Key, offsets: npt.NDArray[np.int64], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a key at these offsets, in order: other records that lie between are read over, and left out."""
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
                    if flat is not None:  # hashes may be alike, records are not
                        same = same & pc.fill_null(pc.equal(flat, value), False).to_numpy(
                            zero_copy_only=False
                        )
                if same.any():
                    yield batch.filter(pa.array(same)).select(list(columns))

    def _take_in(self, partition: int, start: int, end: int) -> None:
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
            self._settle(partition)

    def _remember(self, partition: int, key: Key, offset: int) -> None:
        self._recent[partition].setdefault(key, []).append(offset)
        self._kept[partition].append((key, offset))

    def _settle(self, partition: int) -> None:
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
    """A column, or a field of a struct; None if it was not read."""
    column, *fields = name.split(".")
    if column not in batch.schema.names:
        return None
    found = batch.column(column)
    for field in fields:
        found = pc.struct_field(found, field)
    return found
