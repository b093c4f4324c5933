"""Which files of old ticks and of crashed attempts can go. Removes nothing itself; that is `StateStore.collect`."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from headwater.state.manifest import Manifest
from headwater.state.state_files import FileOrigin


@dataclass(frozen=True)
class RemovedFiles:
    """What a collection removed."""

    files: int
    bytes: int


@dataclass
class NamedFiles:
    """From which to which tick each file is named: at most one interval, because a run that was dropped stays so.

    It grows with the number of files and not with that of manifests, each of which is looked at once.
    """

    spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)

    def see(self, manifest: Manifest) -> None:
        """Take in what a manifest names."""
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
        """Drop what was removed."""
        for file in files:
            self.spans.pop(file, None)
        self.seen.difference_update(ticks)


def ticks_to_keep(ticks: list[int], keep_ticks: int, protect: Iterable[int]) -> list[int]:
    """Of these ticks, ascending: the last `keep_ticks`, at least the newest, and the protected ones."""
    kept = set(ticks[-max(keep_ticks, 1) :]) | set(protect)
    return [tick for tick in ticks if tick in kept]


def is_garbage(origin: FileOrigin | None, latest: Manifest, spared: Collection[str]) -> bool:
    """Whether a file that no manifest names can go; what is not ours (no origin) stays."""
    return origin is not None and origin.attempt not in spared and origin.is_past(latest.tick, latest.epoch)
