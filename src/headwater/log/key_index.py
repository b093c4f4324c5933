"""An index from key to the offset of its last record, or of all its records: per partition, runs of (key, offset) sorted by the
128-bit hash of the key.

A run covers a span of offsets and has the newest record of each key (or all); the lowest bit of an entry marks a tombstone.
Small runs are in memory, runs of more than a few ten thousand keys in memory-mapped files. Adjacent runs of similar size are
merged, piece by piece, so that memory stays bounded for any number of keys. The index can be rebuilt from the log: it is
written without a journal, its files are recognized by name, and lookups are checked against the records found. If the disk has
no room for a run, it stays in memory: the records that it indexes are committed in any case.
"""

from __future__ import annotations

import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import HeadwaterError
from headwater.core.hashing import Hashes, identities
from headwater.core.storage import Storage, translated

MERGED_KEYS = 1 << 20
"""Number of keys merged at a time."""
FILE_KEYS = 1 << 16
"""Number of keys from which a run is written to a file."""
GROWTH = 3
"""Size ratio of adjacent runs: a run with fewer than GROWTH times the keys of the run after it is merged with it."""
MAPPED_KEYS = 1 << 22
"""Number of offsets from which the list returned by `PartitionIndex.live` is in a memory-mapped file."""

Offsets = npt.NDArray[np.int64]
_NAME = re.compile(r"^(\d+)-(\d+)-(\d+)-(\d+)-(\d+)\.keys\Z")
KEY_FILES = re.compile(r"\d+(?:-\d+){4}\.keys|[0-9a-f]{32}\.new")
"""Names of the files in the folder of an index."""


@dataclass(frozen=True)
class KeyRun:
    """The newest record of each key among offsets begin <= offset < end. Each entry of `places` is twice an offset, plus one
    for a tombstone."""

    begin: int
    end: int
    low: Hashes
    high: Hashes
    places: Offsets
    file: Path | None = None

    def find(self, low: Hashes, high: Hashes) -> Offsets:
        """Return the entry of `places` of each key, -1 for keys that are not in this run."""
        if not len(self.low):
            return np.full(len(low), -1)
        at = np.searchsorted(self.low, low)
        found = np.full(len(low), -1)
        open_ = np.flatnonzero(at < len(self.low))
        while len(open_):  # loops more than once only if two keys have the same upper half
            here = at[open_]
            same = self.low[here] == low[open_]
            hit = same & (self.high[here] == high[open_])
            found[open_[hit]] = self.places[here[hit]]
            open_ = open_[same & ~hit]
            at[open_] += 1
            open_ = open_[at[open_] < len(self.low)]
        return found

    def all_of(self, low: np.uint64, high: np.uint64) -> Offsets:
        """Return every entry of `places` of one key, ascending."""
        first, behind = np.searchsorted(self.low, low, "left"), np.searchsorted(self.low, low, "right")
        places: Offsets = self.places[first:behind][self.high[first:behind] == high]
        return places


class PartitionIndex:
    """The index of one partition."""

    def __init__(
        self,
        folder: Path | None,
        partition: int,
        *,
        sync: Callable[[], None] = lambda: None,
        every: bool = False,
    ) -> None:
        """Open the index of a partition, with the files that are already in `folder`.

        `folder` is for files that persist; None keeps the index in memory. `every` indexes all records of a key, not only the
        last. `sync` makes the log durable (`Log.sync`). It is called before a file is written: after a loss of power, other
        records may get the offsets of the records that were lost.
        """
        self._folder = folder
        self._sync = sync
        self._partition = partition
        self._every = every
        self._runs = self._stored()

    @property
    def end(self) -> int:
        """The offset up to which records are indexed."""
        return self._runs[-1].end if self._runs else 0

    def add(
        self, keys: Sequence[pa.Array], offsets: Offsets, deleted: npt.NDArray[np.bool_], end: int
    ) -> None:
        """Index the records from `self.end` up to the offset `end`."""
        low, high = identities(keys, len(offsets), exact=False)
        places = offsets * 2 + deleted
        self._push(KeyRun(self.end, end, *_sorted(low, high, places, every=self._every)))

    def find(self, keys: Sequence[pa.Array], rows: int) -> Offsets:
        """Return the offset of the last record of each key; -1 if the key has no record, or its last one is a tombstone."""
        low, high = identities(keys, rows, exact=False)
        places, missing = np.full(rows, -1), np.arange(rows)
        for run in reversed(self._runs):
            found = run.find(low[missing], high[missing])
            places[missing] = found
            missing = missing[found < 0]
            if not len(missing):
                break
        return np.where((places < 0) | (places & 1 == 1), -1, places >> 1)

    def find_every(self, keys: Sequence[pa.Array], after: int = -1) -> Offsets:
        """Return the offsets of all records of one key after an offset, ascending; `keys` has one row."""
        low, high = identities(keys, 1, exact=False)
        found = [run.all_of(low[0], high[0]) for run in self._runs if run.end > after + 1]
        places = np.concatenate(found) >> 1 if found else np.empty(0, np.int64)
        return places[places > after]

    def live(self, first: int = 0) -> Offsets:
        """Return the offsets, from `first` on, of the last records of all keys that are not deleted, ascending. Large lists are
        in an unnamed temporary file."""
        size = sum(len(run.low) for run in self._runs)
        with tempfile.TemporaryFile(dir=self._folder) as file:
            if size > MAPPED_KEYS:
                offsets: Offsets = np.memmap(file, dtype=np.int64, mode="w+", shape=(size,))
            else:
                offsets = np.empty(size, dtype=np.int64)
            count = 0
            for _, _, places in _merged(self._runs, every=self._every):
                here = places[(places & 1 == 0) & (places >= 2 * first)] >> 1
                offsets[count : count + len(here)] = here
                count += len(here)
        offsets[:count].sort()
        return offsets[:count]

    def clear(self) -> None:
        """Remove every run and its file."""
        for run in self._runs:
            _remove(run)
        self._runs = []

    def _push(self, run: KeyRun) -> None:
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2].low) < GROWTH * len(self._runs[-1].low):
            self._merge()
        if len(self._runs[-1].low) >= FILE_KEYS and self._runs[-1].file is None:
            self._merge(count=1)

    def _merge(self, count: int = 2) -> None:
        """Merge the last `count` runs into one; in a file, if it is large."""
        olds = self._runs[-count:]
        begin, end = olds[0].begin, olds[-1].end
        size = sum(len(run.low) for run in olds)
        is_first = len(self._runs) == count
        new: KeyRun | None = None
        if size >= FILE_KEYS and self._folder is not None:
            with suppress(HeadwaterError), translated(str(self._folder)):
                new = self._write(self._folder, olds, begin, end, size, is_first)
        if new is None:
            parts = list(_merged(olds, drop=is_first, every=self._every))
            low, high, places = (np.concatenate(columns) for columns in zip(*parts, strict=True))
            new = KeyRun(begin, end, low, high, places)
        self._runs[-count:] = [new]
        for old in olds:
            _remove(old)

    def _write(
        self, folder: Path, olds: Sequence[KeyRun], begin: int, end: int, size: int, drop: bool
    ) -> KeyRun:
        self._sync()
        folder.mkdir(parents=True, exist_ok=True)
        storage, name = Storage(folder), f"{uuid.uuid4().hex}.new"
        try:
            with closing(storage.open(name, exclusive=True)) as file:
                count = 0
                for columns in _merged(olds, drop=drop, every=self._every):
                    for place, column in enumerate(
                        columns
                    ):  # an explicit write, not a memory map: on a full disk a map would kill the process with a signal
                        file.write_at(8 * (place * size + count), column.tobytes())
                    count += len(columns[0])
                file.truncate(24 * size)
                file.sync()
            made = f"{self._partition}-{begin}-{end}-{count}-{size}.keys"
            storage.rename(name, made)
        except HeadwaterError:
            with suppress(HeadwaterError):
                storage.remove(name)
            raise
        return _opened(folder / made)

    def _stored(self) -> list[KeyRun]:
        """Return the runs of the partition's files that cover consecutive spans from offset 0 on; delete its other files, which
        are outdated or unreadable."""
        if self._folder is None or not self._folder.is_dir():
            return []
        spans = {}
        for path in self._folder.iterdir():
            match = _NAME.match(path.name)
            if match is not None and int(match[1]) == self._partition:
                spans[int(match[2]), int(match[3])] = path
        runs: list[KeyRun] = []
        at = 0
        while found := [end for begin, end in spans if begin == at and end > at]:
            path = spans.pop((at, max(found)))
            try:
                runs.append(_opened(path))
            except (OSError, ValueError):
                path.unlink(missing_ok=True)
                break
            at = max(found)
        for path in spans.values():
            path.unlink(missing_ok=True)
        return runs


def _opened(path: Path) -> KeyRun:
    match = _NAME.match(path.name)
    assert match is not None
    _, begin, end, count, size = map(int, match.groups())
    columns = np.memmap(path, dtype=np.uint64, mode="r", shape=(3, size))
    return KeyRun(begin, end, columns[0, :count], columns[1, :count], columns[2, :count].view(np.int64), path)


def _remove(run: KeyRun) -> None:
    if run.file is not None:
        run.file.unlink(missing_ok=True)


def _sorted(low: Hashes, high: Hashes, places: Offsets, *, every: bool) -> tuple[Hashes, Hashes, Offsets]:
    """Return the arrays sorted by key, with the last entry of each key, or with every entry in its order."""
    if every:
        order = np.lexsort((places, high, low))
        return low[order], high[order], places[order]
    order = np.argsort(low, kind="stable")
    low, high, places = low[order], high[order], places[order]
    differs = np.ones(len(low), dtype=np.bool_)
    differs[:-1] = low[1:] != low[:-1]
    if bool((~differs[:-1] & (high[1:] != high[:-1])).any()):  # two keys have the same upper half
        order = np.lexsort((np.arange(len(low)), high, low))
        low, high, places = low[order], high[order], places[order]
        differs[:-1] = (low[1:] != low[:-1]) | (high[1:] != high[:-1])
    return (low, high, places) if differs.all() else (low[differs], high[differs], places[differs])


def _merged(
    runs: Sequence[KeyRun], *, drop: bool = False, every: bool = False
) -> Iterator[tuple[Hashes, Hashes, Offsets]]:
    """Yield the keys of several runs in order, in pieces, each with its newest entry or all; `drop` leaves out tombstones."""
    if not runs:
        return
    pieces = max(1, sum(len(run.low) for run in runs) // MERGED_KEYS)
    bounds = [np.uint64(((1 << 64) * piece) // pieces) for piece in range(1, pieces)]
    cuts = [[0, *np.searchsorted(run.low, bounds).tolist(), len(run.low)] for run in runs]
    for piece in range(pieces):
        parts = [slice(cut[piece], cut[piece + 1]) for cut in cuts]
        columns = [
            np.concatenate([getattr(run, name)[part] for run, part in zip(runs, parts, strict=True)])
            for name in ("low", "high", "places")
        ]
        low, high, places = _sorted(*columns, every=every) if len(runs) > 1 else columns
        if drop and len(low):
            kept = places & 1 == 0
            low, high, places = low[kept], high[kept], places[kept]
        yield low, high, places
