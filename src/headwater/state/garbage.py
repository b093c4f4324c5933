"""The rules of garbage collection: files of old ticks and of crashed attempts. `StateStore.collect` removes them."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headwater.state.manifest import Manifest
from headwater.state.state_files import FileOrigin


@dataclass(frozen=True)
class RemovedFiles:
    """The number and size of files removed by a collection."""

    files: int
    bytes: int


@dataclass
class NamedFiles:
    """The range of ticks that name each file: a single interval, because a run that was dropped never returns.

    Memory is proportional to the number of files, not to the number of manifests, each of which is read once.
    """

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def see(self, manifest: Manifest) -> None:
        """Record the files that a manifest names."""
        self.seen.add(manifest.tick)
        for file in manifest.files:
            first, last = self.spans.get(file, (manifest.tick, manifest.tick))
            self.spans[file] = (min(first, manifest.tick), max(last, manifest.tick))

    def named(self, file: str, kept: list[int]) -> bool:
        """Whether one of the kept ticks (ascending) may name the file."""
        span = self.spans.get(file)
        if span is None:
            return False
        place = bisect.bisect_left(kept, span[0])
        return place < len(kept) and kept[place] <= span[1]

    def forget(self, files: Iterable[str], ticks: Iterable[int]) -> None:
        """Drop removed files and ticks."""
        for file in files:
            self.spans.pop(file, None)
        self.seen.difference_update(ticks)


def ticks_to_keep(ticks: list[int], keep_ticks: int, protect: Iterable[int]) -> list[int]:
    """Return the ticks to keep, ascending: the last `keep_ticks`, at least the newest, and the protected ones."""
    kept = set(ticks[-max(keep_ticks, 1) :]) | set(protect)
    return [tick for tick in ticks if tick in kept]


def is_garbage(origin: FileOrigin | None, latest: Manifest, spared: Collection[str]) -> bool:
    """Whether a file that no manifest names can be removed; foreign files, without an origin, are kept."""
    return origin is not None and origin.attempt not in spared and origin.is_past(latest.tick, latest.epoch)
