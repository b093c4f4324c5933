"""Cache of runs: files mapped without a copy and without an open handle, and runs that were opened or just written.

File names are never reused, so that entries never become stale.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from headwater.core.errors import CorruptionError
from headwater.core.hashing import Hashes
from headwater.core.storage import Stamp, Storage, translated
from headwater.operators.zset.runs import Run, same_hashes
from headwater.state.run_files import check, decode
from headwater.state.run_refs import RunRef
from headwater.state.state_files import RUNS

CHECK_BYTES_MAX = 1 << 20
"""Size below which runs are verified in full when first opened; of a larger run, a probe reads only few pages."""
FILES_MAX = 1_024
RUNS_MAX = 8_192
SAME_ROWS_MAX = 1 << 17
"""Maximum number of rows of runs whose hashes are compared with those of other runs when opened, to share equal arrays."""
HELD_BYTES_MAX = 256 << 20
"""Maximum memory for runs cached as they were written; beyond it, runs are mapped from their files."""
TOUCHED_SHARE = 0.25
"""Maximum share of the physical memory for a touched run: a larger one may be partly evicted by the time it is written."""

_Key = tuple[str, int, int]
"""File, offset of a stream in it, and index of the run's first row in the stream."""


@dataclass
class _Stream:
    """The size of a stream shared by runs in memory, and the number of these runs that are cached."""

    bytes: int
    runs: int = 0


class RunCache:
    """An LRU cache of runs. Runs in use by a caller remain valid even if the file is removed. Thread-safe."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._guard = threading.Lock()
        self._maps: OrderedDict[str, pa.Buffer] = OrderedDict()
        self._runs: OrderedDict[_Key, Run] = OrderedDict()
        self._hashes: WeakValueDictionary[tuple[object, ...], Hashes] = WeakValueDictionary()
        """Hashes of opened runs, by file: a run shares hashes only within a file, so that it never keeps another file
        mapped."""
        self._held: OrderedDict[_Key, None] = OrderedDict()
        self._held_bytes = 0
        self._released: set[tuple[str, int]] = set()
        """Streams of runs that were cached in memory, evicted, and not opened since."""
        self._stamps: dict[str, Stamp | None] = {}
        """Stamps of files when this process wrote or first read them; None for files found damaged."""
        self._streams: dict[tuple[str, int], _Stream] = {}
        """Streams of the cached runs. In memory too, runs of one stream are slices of a whole, which is freed with the
        last one."""

    def open(self, ref: RunRef) -> Run:
        """Return a run; raises WorkspaceMissingError if its file is gone, CorruptionError if it is damaged."""
        key = (ref.file, ref.offset, ref.first)
        with self._guard:
            if (run := self._runs.get(key)) is not None:
                self._runs.move_to_end(key)
                return run
        mapped = self.map(ref.file)
        if key[:2] in self._released:
            self.touch(ref)
        try:
            if ref.length < CHECK_BYTES_MAX:
                check(mapped, ref)
            run = decode(mapped, ref)
        except CorruptionError:
            self.suspect(ref.file)
            raise
        with self._guard:
            if ref.rows <= SAME_ROWS_MAX:
                run = same_hashes(run, self._hashes, ref.file)
            self._runs[key] = run
            self._shrink()
        return run

    def open_all(self, refs: Sequence[RunRef]) -> list[Run]:
        """Return several runs."""
        found: list[Run | None] = []
        with self._guard:
            for ref in refs:
                key = (ref.file, ref.offset, ref.first)
                run = self._runs.get(key)
                if run is not None:
                    self._runs.move_to_end(key)
                found.append(run)
        return [self.open(ref) if run is None else run for ref, run in zip(refs, found, strict=True)]

    def remember(self, ref: RunRef, run: Run) -> None:
        """Cache a run that is already in memory."""
        key = (ref.file, ref.offset, ref.first)
        with self._guard:
            if key not in self._runs:
                self._runs[key] = run
                self._hold(key, ref.bytes * ref.shared // ref.rows if ref.shared else ref.bytes)
                self._shrink()

    def map(self, file: str) -> pa.Buffer:
        """Return the bytes of a file of runs, memory-mapped."""
        with self._guard:
            if (mapped := self._maps.get(file)) is not None:
                self._maps.move_to_end(file)
                return mapped
        name = f"{RUNS}/{file}"
        self.record_stamp(file)
        with translated(name), pa.memory_map(self._storage.path(name)) as opened:
            mapped = opened.read_buffer()
        with self._guard:
            self._maps[file] = mapped
            while len(self._maps) > FILES_MAX:
                self._maps.popitem(last=False)
        return mapped

    def record_stamp(self, file: str) -> None:
        """Record the stamp of a file that this process has written, or is about to read for the first time."""
        if file not in self._stamps:
            stamp = self._storage.stamp(f"{RUNS}/{file}")
            with self._guard:
                self._stamps.setdefault(file, stamp)

    def suspect(self, file: str) -> None:
        """Mark a file as changed, because data read from it is damaged."""
        with self._guard:
            self._stamps[file] = None

    def changed(self, file: str) -> bool:
        """Whether a file was modified since its stamp was recorded, or was found damaged; files are never written twice."""
        if file not in self._stamps:
            return False
        stamp = self._storage.stamp(f"{RUNS}/{file}")
        return stamp is None or stamp != self._stamps[file]

    def touch(self, ref: RunRef) -> None:
        """Page in a run that this process has written: otherwise the first probe of each page pays for the page fault,
        which costs more than the search."""
        mapped = self.map(ref.file).slice(ref.offset, ref.length)
        self._released.discard((ref.file, ref.offset))
        if 0 < mapped.size < TOUCHED_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
            np.frombuffer(mapped, np.uint8)[:: os.sysconf("SC_PAGE_SIZE")].max()

    def forget(self, gone: Callable[[str], bool]) -> None:
        """Release files that are gone, so that their disk space is freed once no reader uses them."""
        with self._guard:
            files = (
                {key[0] for key in self._runs} | {*self._maps, *self._stamps} | {f for f, _ in self._released}
            )
        lost = {file for file in files if gone(file)}
        with self._guard:
            for file in lost:
                self._maps.pop(file, None)
                self._stamps.pop(file, None)
            for key in [key for key in self._runs if key[0] in lost]:
                self._drop(key)
            self._released = {stream for stream in self._released if stream[0] not in lost}

    def _hold(self, key: _Key, size: int) -> None:
        self._held[key] = None
        stream = self._streams.get(key[:2])
        if stream is None:
            stream = self._streams[key[:2]] = _Stream(size)
            self._held_bytes += size
        stream.runs += 1

    def _shrink(self) -> None:
        while len(self._runs) > RUNS_MAX:
            self._drop(next(iter(self._runs)))
        while self._held_bytes > HELD_BYTES_MAX:
            self._drop(next(iter(self._held)))

    def _drop(self, key: _Key) -> None:
        del self._runs[key]
        if key in self._held:
            self._released.add(key[:2])
            del self._held[key]
            stream = self._streams[key[:2]]
            stream.runs -= 1
            if not stream.runs:
                del self._streams[key[:2]]
                self._held_bytes -= stream.bytes
