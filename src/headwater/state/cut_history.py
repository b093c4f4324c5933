"""The cuts of all ticks, kept permanently: commit time and positions, long after a tick's manifest is collected.

Lines of text in append-only files. They are derived from the manifests and may lag behind them: `Cuts.extend` writes a
missing or torn line again, as long as the manifest exists; so extend and sync before collecting.
"""

from __future__ import annotations

import bisect
import contextlib
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import xxhash

from headwater.core.clock import Microseconds
from headwater.core.errors import CorruptionError
from headwater.core.positions import Ends
from headwater.core.storage import Storage
from headwater.state.state_files import CUTS

LINES_MAX = 4_096
"""Maximum number of lines of a file, which bounds the lines read to find one tick."""

_PAGES_KEPT = 8


@dataclass(frozen=True)
class TickCut:
    """The coverage of a tick: the log up to `positions`, whose last commit is number `sequence`."""

    tick: int
    committed_at: Microseconds
    sequence: int
    positions: Ends
    views: Mapping[str, ViewCut] = field(default_factory=dict)
    """Views that are part of the tick."""
    id: str = ""
    """Id of the tick; '' for ticks without an id."""


@dataclass(frozen=True)
class ViewCut:
    """A view in a tick: its incarnation, and the start offsets of the topics that it reads when it was built."""

    incarnation: int
    begins: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class _Line:
    tick: int
    committed_at: Microseconds
    sequence: int
    moved: Mapping[str, Any]
    views: Mapping[str, Any]
    """Changed views: incarnation and start offsets, None for a view that is no longer part of the tick."""
    id: str = ""


@dataclass
class _Page:
    """The valid lines at the beginning of a file, which fill its first `end` bytes."""

    name: str
    end: int
    checksum: int
    lines: list[_Line]

    def cut(self, tick: int) -> TickCut | None:
        """Return the cut of a tick; None if there is no line for it."""
        place = bisect.bisect_left(self.lines, tick, key=lambda line: line.tick)
        if place == len(self.lines) or self.lines[place].tick != tick:
            return None
        positions: dict[str, dict[int, int]] = {}
        views: dict[str, Any] = {}
        for line in self.lines[: place + 1]:
            _move(positions, line.moved)
            views |= line.views
        line = self.lines[place]
        parts = {name: ViewCut(*part) for name, part in views.items() if part is not None}
        return TickCut(tick, line.committed_at, line.sequence, positions, parts, line.id)

    def take(self, data: bytes) -> None:
        """Parse the bytes that follow, up to the first invalid line."""
        *whole, _ = data.split(b"\n")
        before = self.lines[-1] if self.lines else _Line(-1, 0, 0, {}, {})
        for text in whole:
            body = text[17:]
            checksum = xxhash.xxh3_64_intdigest(body, seed=self.checksum)
            if text[:17] != b"%016x " % checksum:
                return
            tick, at, sequence, moved, *more = orjson.loads(body)
            views, identity = (more + [{}, ""][len(more) :])[:2]
            before = _Line(tick, before.committed_at + at, before.sequence + sequence, moved, views, identity)
            self.lines.append(before)
            self.end += len(text) + 1
            self.checksum = checksum

    def text(self, cut: TickCut, before: TickCut | None) -> bytes:
        """Return the line for a cut that follows `before`, or that begins the file."""
        since = before or TickCut(-1, 0, 0, {})
        moved = _moves(since.positions, cut.positions)
        line: list[Any] = [
            cut.tick,
            cut.committed_at - since.committed_at,
            cut.sequence - since.sequence,
            moved,
        ]
        views = {name: None for name in since.views if name not in cut.views} | {
            name: [part.incarnation, part.begins]
            for name, part in cut.views.items()
            if part != since.views.get(name)
        }
        if views or cut.id:
            line.append(views)
        if cut.id:
            line.append(cut.id)
        body = orjson.dumps(line, option=orjson.OPT_NON_STR_KEYS)
        return b"%016x %b\n" % (xxhash.xxh3_64_intdigest(body, seed=self.checksum), body)


class Cuts:
    """The cuts of a workspace. Any number of readers; `extend` and `sync` are reserved for the engine."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._guard = threading.RLock()
        self._pages: OrderedDict[str, _Page] = OrderedDict()
        self._starts: dict[str, Microseconds] = {}
        self._last: TickCut | None = None

    def last_tick(self) -> int | None:
        """Return the newest recorded tick."""
        with self._guard:
            page = self._newest()
            return page.lines[-1].tick if page else None

    def of(self, tick: int) -> TickCut | None:
        """Return the cut of a tick; None if it is not recorded."""
        with self._guard:
            names = self._names()
            for place in reversed(range(bisect.bisect_right(names, _name(tick)))):
                page = self._page(names[place])
                if (cut := page.cut(tick)) is not None:
                    return cut
                if page.lines:
                    break
            else:
                return None
            # A crash tears the end of a file, and the next file continues from its last tick. Damage leaves a gap.
            if place + 1 < len(names) and page.end < self._storage.size(f"{CUTS}/{page.name}"):
                raise _damaged(page, tick)
            return None

    def at(self, moment: Microseconds) -> int | None:
        """Return the last recorded tick committed at or before `moment`; None if there is none."""
        with self._guard:
            names = self._names()
            places = range(len(names))
            found = bisect.bisect_right(places, moment, key=lambda place: self._start(names, place))
            for place in reversed(places[:found]):
                for line in reversed(self._page(names[place]).lines):
                    if line.committed_at <= moment:
                        return line.tick
            return None

    def extend(self, cuts: Iterable[TickCut]) -> None:
        """Record cuts of ticks that are not recorded yet, ascending. They are durable after `sync`."""
        with self._guard:
            for cut in cuts:
                self._append(cut)

    def sync(self) -> None:
        """Make all recorded cuts durable."""
        with self._guard:
            page = self._newest()
            if page:
                with contextlib.closing(self._storage.open(f"{CUTS}/{page.name}")) as file:
                    file.sync()
                self._storage.sync_dir(CUTS)

    def _append(self, cut: TickCut) -> None:
        page, last = self._newest(), None
        if page:
            last = self._last
            if last is None or last.tick != page.lines[-1].tick:
                last = page.cut(page.lines[-1].tick)
            size = self._storage.size(f"{CUTS}/{page.name}")
            # Bytes after the valid lines were torn by a crash: keep them, and continue in another file.
            if len(page.lines) >= LINES_MAX or size != page.end:
                self.sync()  # otherwise these lines could be lost while the newer file survives
                page, last = None, None
        if page is None:
            self._storage.make_dirs(CUTS)
            page = _Page(_name(cut.tick), 0, 0, [])
            self._pages[page.name] = page
        text = page.text(cut, last)
        with contextlib.closing(self._storage.open(f"{CUTS}/{page.name}", create=True)) as file:
            if page.end == 0:
                file.truncate(0)
            file.write_at(page.end, text)
        page.take(text)
        self._last = cut

    def _names(self) -> list[str]:
        return [name for name in self._storage.files(CUTS) if _NAME.fullmatch(name)]

    def _newest(self) -> _Page | None:
        """Return the newest file that has a valid line."""
        for name in reversed(self._names()):
            if (page := self._page(name)).lines:
                return page
        return None

    def _start(self, names: list[str], place: int) -> Microseconds:
        """Return the commit time of the first tick of a file, or of the preceding file if this one has no valid line."""
        while place >= 0 and names[place] not in self._starts:
            if lines := self._page(names[place]).lines:
                self._starts[names[place]] = lines[0].committed_at
            else:
                place -= 1
        return self._starts[names[place]] if place >= 0 else -(2**63)

    def _page(self, name: str) -> _Page:
        page = self._pages.pop(name, None) or _Page(name, 0, 0, [])
        with contextlib.closing(self._storage.open(f"{CUTS}/{name}", read_only=True)) as file:
            size = file.size()
            if size > page.end:
                page.take(file.read_at(page.end, size - page.end))
        self._pages[name] = page
        while len(self._pages) > _PAGES_KEPT:
            self._pages.popitem(last=False)
        return page


def _damaged(page: _Page, tick: int) -> CorruptionError:
    name = f"{CUTS}/{page.name}"
    return CorruptionError(
        f"{name} is damaged at byte {page.end}: the cut of tick {tick} cannot be read",
        detail="the file has the times and the cuts of old ticks; views and the log are not affected",
        hint="restore the file from a backup if you need the times of old ticks",
        file=name,
        offset=page.end,
        tick=tick,
    )


_NAME = re.compile(r"\d{12}\.cuts")


def _name(tick: int) -> str:
    return f"{tick:012d}.cuts"


def _moves(before: Ends, after: Ends) -> dict[str, Any]:
    """Return the difference of two positions: the increment of each end, None for removed topics and partitions."""
    moved: dict[str, Any] = {topic: None for topic in before if topic not in after}
    for topic, ends in after.items():
        old = before.get(topic, {})
        if ends != old or topic not in before:
            steps: dict[int, int | None] = {
                partition: end - old.get(partition, 0)
                for partition, end in ends.items()
                if partition not in old or end != old[partition]
            }
            moved[topic] = steps | {partition: None for partition in old if partition not in ends}
    return moved


def _move(positions: dict[str, dict[int, int]], moved: Mapping[str, Any]) -> None:
    """Apply a difference returned by `_moves`."""
    for topic, steps in moved.items():
        if steps is None:
            positions.pop(topic, None)
            continue
        ends = positions.setdefault(topic, {})
        for key, step in steps.items():
            partition = int(key)
            if step is None:
                ends.pop(partition, None)
            else:
                ends[partition] = ends.get(partition, 0) + step
