"""Maintenance: close full segments, seal them as Parquet, apply retention, compact keyed topics.

Every step writes new files first, swaps them in with one record of the journal, and deletes old files last, so that a crash at
any point leaves the log as it was before or after the step, and at most some unreferenced files. Reads and appends continue
meanwhile. One process at a time runs maintenance; it can be interrupted between steps. A failed step ends neither the round nor
the steps of other partitions and topics: see `maintenance_round`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from headwater.core.clock import FOREVER_US, parse_span_us
from headwater.core.errors import CorruptionError, HeadwaterError, StorageError
from headwater.core.faults import Faults
from headwater.core.trusted_clock import TrustedClock
from headwater.log.backpressure import rows_kept
from headwater.log.embedded import staging
from headwater.log.embedded.commit import Core
from headwater.log.embedded.journal.file_names import TOPIC_FILES, WAKE_FILE, is_segment, topic_id
from headwater.log.embedded.journal.journal_state import JournalState, Segment, TopicState
from headwater.log.embedded.maintenance_round import Partly, Pieces, Work
from headwater.log.embedded.rewrite_segments import Mask, Rewriter
from headwater.log.embedded.segments.compaction import Batches, select_latest
from headwater.log.embedded.segments.sealed_segments import steps_name
from headwater.log.embedded.segments.segment_reader import SegmentReader
from headwater.log.protocol import MaintenanceReport
from headwater.log.topic_names import is_own

ACTIVE_AGE_MAX_US = parse_span_us("1 day")
"""An active segment is closed at this age, or at an eighth of the retention, so that idle topics are maintained too."""
DIRTY_SHARE = 0.5
"""Without `force`, a partition is compacted once this share of its sealed bytes has never been compacted."""
WHOLE = "maintenance"
"""Name of the fault that prevents a whole round, such as a journal that cannot be read."""


class Maintenance:
    """Maintenance of one workspace, on demand or in a background thread."""

    def __init__(self, core: Core, reader: SegmentReader, clock: TrustedClock, faults: Faults) -> None:
        self._core = core
        self._journal = core.journal
        self._reader = reader
        self._clock = clock
        self._rewriter = Rewriter(core.storage, reader)
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._running = threading.Lock()
        self._pieces = Pieces(faults, clock.steady_ms, core.settings.maintenance_every_ms, self._stop)
        self._unremoved = False
        """Whether removing unreferenced files failed."""

    # --- by itself -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the background thread, once, unless the settings disable it."""
        if self._thread is None and self._core.settings.maintenance_every_ms > 0:
            self._thread = threading.Thread(target=self._loop, name="headwater-maintain", daemon=True)
            self._thread.start()

    @property
    def started(self) -> bool:
        """Whether the background thread was started."""
        return self._thread is not None

    def stop(self, *, wait: bool = True) -> None:
        """Stop the background thread at the next step."""
        self._stop.set()
        if wait and self._thread is not None:
            self._thread.join(timeout=30)

    def _loop(self) -> None:
        while not self._stop.wait(self._core.settings.maintenance_every_ms / 1e3):
            try:
                self.run(force=False, override_holds=False)
            except Exception as error:  # noqa: BLE001 - `run` reports it; the next round tries again
                self._pieces.fail(WHOLE, error)

    # --- one round -----------------------------------------------------------------------------------------------

    def run(self, *, force: bool, override_holds: bool) -> MaintenanceReport:
        """Run one round. If another process or thread is running one, wait for it only with `force`."""
        started = self._journal.clock_ms()
        if not self._running.acquire(blocking=force):
            return MaintenanceReport()
        try:
            with contextlib.closing(self._core.storage.open("maintain.lock", create=True)) as lock:
                while not lock.try_lock():
                    if not force or self._stop.wait(0.01):
                        return MaintenanceReport()
                report = self._round(force, override_holds)
        finally:
            self._running.release()
        return dataclasses.replace(report, seconds=(self._journal.clock_ms() - started) / 1e3)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Exclude every other maintenance of the workspace, in this and in other processes."""
        with self._running, contextlib.closing(self._core.storage.open("maintain.lock", create=True)) as lock:
            while not lock.try_lock():
                self._stop.wait(0.01)
            self._journal.refresh()
            yield

    def offsets(self, topic: TopicState, segment: Segment) -> npt.NDArray[np.int64]:
        """Return the offsets of a segment's records."""
        batches = self._reader.read(segment, topic.definition, segment.first, segment.end, ["_offset"])
        found = [np.asarray(batch.column("_offset").to_numpy()) for batch in batches]
        return np.concatenate([np.empty(0, np.int64), *found])

    def replace_segment(self, topic: TopicState, number: int, segment: Segment, keep: Mask) -> None:
        """Under `exclusive`: replace a closed segment by a sealed one with the records that `keep` marks."""
        new = self._rewriter.rewrite(
            self._name(topic, number, segment), topic.definition, number, [segment], [keep]
        )
        new.compacted = segment.compacted
        self._swap(topic, number, [segment], [new])

    def _round(self, force: bool, override_holds: bool) -> MaintenanceReport:
        self._journal.refresh()
        self._pieces.begin()
        attempt = functools.partial(self._pieces.attempt, force=force)
        total = attempt("removal of staged files", self._remove_leftovers)
        total = _add(total, attempt("closing of segments", functools.partial(self._close_active, force)))
        steps = {"retention": self._retain, "sealing": self._seal, "compaction": self._compact}
        present = set()
        for topic in list(self._journal.state.topics.values()):
            override = override_holds and not is_own(topic.definition)
            for number in range(len(topic.partitions)):
                for verb, step in steps.items():
                    if self._stop.is_set() and not force:
                        return total
                    name = f"{verb} of {topic.definition.name}-{number}"
                    present.add(name)
                    work = functools.partial(step, topic, number, force, override)
                    total = _add(total, attempt(name, functools.partial(self._unless_dropped, topic, work)))
        if force or self._unremoved:
            total = _add(total, attempt("removal of old segments", self._sweep))
        self._pieces.clear_others(steps, present)
        self._pieces.succeed(WHOLE)
        return total

    def _unless_dropped(self, topic: TopicState, work: Work) -> MaintenanceReport | Partly | None:
        """Run a step. Errors are ignored if its topic, with its files, was dropped meanwhile."""
        try:
            done = work()
            if not isinstance(done, Partly):
                return done
        except Exception as error:  # noqa: BLE001 - reported as it is
            done = Partly(MaintenanceReport(), error)
        self._journal.refresh()
        return done if topic.id in self._journal.state.ids else done.done

    def _remove_leftovers(self) -> MaintenanceReport:
        staging.remove_leftovers(self._core)
        return MaintenanceReport()

    def _sweep(self) -> MaintenanceReport:
        self.sweep()
        self._unremoved = False
        return MaintenanceReport()

    def _close_active(self, force: bool) -> MaintenanceReport:
        now = self._clock.now_us()

        def change(state: JournalState) -> dict[str, Any] | None:
            parts = [
                [topic.id, number]
                for topic in state.topics.values()
                for number, partition in enumerate(topic.partitions)
                if (active := partition.active) is not None and (force or self._due(active, topic, now))
            ]
            return {"k": "close", "parts": parts} if parts else None

        self._core.change(change, sync=True)
        return MaintenanceReport()

    def _due(self, active: Segment, topic: TopicState, now: int) -> bool:
        retention = topic.definition.retention_us
        age = min(ACTIVE_AGE_MAX_US, retention // 8) if retention else ACTIVE_AGE_MAX_US
        return active.size >= self._core.settings.segment_bytes_max or now - active.at0 > age

    # --- sealing -------------------------------------------------------------------------------------------------

    def _seal(
        self, topic: TopicState, number: int, force: bool, override_holds: bool
    ) -> MaintenanceReport | Partly:
        sealed = 0
        partition = topic.partitions[number]
        failed: Exception | None = None
        for segment in [s for s in partition.segments if s.kind == "arrow" and s.closed]:
            if self._stop.is_set() and not force:
                break
            name = self._name(topic, number, segment)
            try:
                new = self._rewriter.rewrite(name, topic.definition, number, [segment])
            except (
                CorruptionError,
                StorageError,
                OSError,
            ) as error:  # the segments after it can still be sealed
                failed = failed or error
                continue
            if self._swap(topic, number, [segment], [new]):
                sealed += 1
        report = MaintenanceReport(sealed=sealed)
        return report if failed is None else Partly(report, failed)

    def _name(self, topic: TopicState, number: int, segment: Segment) -> str:
        return f"{topic.folder}/{number}/{segment.first:020d}-{self._journal.number}-{self._next_number()}.parquet"

    def _next_number(self) -> str:
        """Return a unique number, so that two maintainers never write the same file."""
        return f"{self._journal.state.seq}s{uuid.uuid4().hex[:12]}"

    # --- retention -----------------------------------------------------------------------------------------------

    def _retain(self, topic: TopicState, number: int, force: bool, override_holds: bool) -> MaintenanceReport:
        definition, partition = topic.definition, topic.partitions[number]
        rows_max = rows_kept(definition)
        if definition.retention_us is None and definition.retention_bytes is None and rows_max is None:
            return MaintenanceReport()
        limit = partition.end if override_holds else hold_limit(self._journal.state, topic, number)
        now = self._clock.old_enough_us()
        oldest = now - definition.retention_us if definition.retention_us else None
        size = sum(s.size for s in partition.segments)
        rows = sum(s.rows for s in partition.segments)
        gone: list[Segment] = []
        for segment in partition.segments:
            too_old = oldest is not None and segment.at1 < oldest
            is_newest = 0 < segment.rows == rows  # the segments after it have no records
            too_much = (
                definition.retention_bytes is not None
                and size - segment.size >= definition.retention_bytes
                and not is_newest
            )
            too_many = rows_max is not None and rows - segment.rows >= rows_max
            if not segment.closed or segment.end > limit or not (too_old or too_much or too_many):
                break
            gone.append(segment)
            size -= segment.size
            rows -= segment.rows
        if not gone:
            return MaintenanceReport()
        first = gone[-1].end
        if not self._swap(topic, number, gone, [], first=first, free_to=None if override_holds else first):
            return MaintenanceReport()
        return MaintenanceReport(
            segments_removed=len(gone),
            rows_removed=sum(s.rows for s in gone),
            bytes_freed=sum(s.size for s in gone),
        )

    # --- compaction ----------------------------------------------------------------------------------------------

    def _compact(
        self, topic: TopicState, number: int, force: bool, override_holds: bool
    ) -> MaintenanceReport | None:
        """Compact a partition. Returns None if compaction is not due: whether it would succeed is then unknown."""
        definition, partition = topic.definition, topic.partitions[number]
        if definition.cleanup != "compact":
            return MaintenanceReport()
        bound = partition.end if override_holds else hold_limit(self._journal.state, topic, number)
        segments = [s for s in partition.segments if s.kind == "parquet" and s.first < bound]
        if not segments or not (force or _dirty(segments) >= DIRTY_SHARE):
            return None
        now = self._clock.old_enough_us()
        keep = select_latest(
            [self._keys(topic, s) for s in segments],
            [s.rows for s in segments],
            bound=bound,
            before=FOREVER_US if definition.versions_for_us is None else now - definition.versions_for_us,
            tombstones_before=now - definition.tombstone_retention_us,
            rows_max=self._core.settings.compaction_rows_max,
        )
        removed = freed = 0
        for group, masks in self._groups(segments, keep):
            new = self._rewriter.rewrite(
                self._name(topic, number, group[0]), definition, number, group, masks
            )
            new.compacted = True
            if self._swap(topic, number, group, [new], free_to=None if override_holds else bound):
                removed += sum(int((~m).sum()) for m in masks)
                freed += sum(s.size for s in group) - new.size
        return MaintenanceReport(rows_compacted=removed, bytes_freed=freed)

    def _keys(self, topic: TopicState, segment: Segment) -> Batches:
        columns = [*topic.definition.key, "_op", "_offset", "_appended_at"]
        return lambda: self._reader.read(segment, topic.definition, segment.first, segment.end, columns)

    def _groups(
        self, segments: list[Segment], keep: list[Mask]
    ) -> Iterator[tuple[list[Segment], list[Mask]]]:
        """Yield adjacent segments that together make one segment of the usual size; unchanged ones are left out."""
        group: list[Segment] = []
        masks: list[Mask] = []
        size = 0.0
        for segment, mask in [*zip(segments, keep, strict=True), (None, None)]:
            left = (
                segment.size * int(mask.sum()) / max(1, segment.rows) if segment and mask is not None else 0
            )
            if group and (segment is None or size + left > self._core.settings.segment_bytes_max):
                if len(group) > 1 or not all(m.all() for m in masks) or not group[0].compacted:
                    yield group, masks
                group, masks, size = [], [], 0.0
            if segment is not None and mask is not None:
                group.append(segment)
                masks.append(mask)
                size += left

    # --- committing ----------------------------------------------------------------------------------------------

    def _swap(
        self,
        topic: TopicState,
        number: int,
        old: list[Segment],
        new: list[Segment],
        *,
        first: int | None = None,
        free_to: int | None = None,
    ) -> bool:
        """Replace `old` by `new` and delete the old files; return False if the segments have changed since.

        `first` is where the partition begins afterwards. `free_to` is an offset before which no cursor may hold records: a hold
        that was created or moved back since prevents the swap.
        """
        names = [s.name for s in old]

        def change(state: JournalState) -> dict[str, Any] | None:
            found = state.ids.get(topic.id)
            there = {s.name for s in found.partitions[number].segments} if found else set()
            if found is None or not there.issuperset(names):
                return None
            if free_to is not None and hold_limit(state, found, number) < free_to:
                return None
            self._core.storage.sync_dir(f"{topic.folder}/{number}")
            record = {
                "k": "replace",
                "t": topic.id,
                "p": number,
                "old": names,
                "new": [s.to_json() for s in new],
            }
            return record if first is None else {**record, "first": first}

        done = self._core.change(change, sync=True) is not None
        self._delete(names if done else [s.name for s in new])
        return done

    def _delete(self, names: list[str]) -> None:
        self._reader.forget(names)
        self._core.segments.release(names)
        try:
            for name in names:
                self._core.storage.remove(name)
                self._core.storage.remove(steps_name(name))
        except HeadwaterError:
            self._unremoved = True
            raise

    def sweep(self) -> None:
        """Delete unreferenced files, which a crash left behind.

        The files are listed before the check that no other process has continued with the log: this process may be suspended at
        any point, and files that others write meanwhile must not be in the list.
        """
        storage = self._core.storage
        with self._core.exclusive() as state:
            unknown: list[str] = []
            for topic in state.topics.values():
                for number, partition in enumerate(topic.partitions):
                    folder = f"{topic.folder}/{number}"
                    known = {s.name for s in partition.segments}
                    names = [f"{folder}/{entry}" for entry in storage.files(folder) if is_segment(entry)]
                    unknown += [name for name in names if name.removesuffix(".steps") not in known]
            live = {topic.folder.removeprefix("topics/") for topic in state.topics.values()}
            folders = [entry for entry in storage.folders("topics") if entry not in live]
            if self._journal.left_behind():
                return
            for name in unknown:
                storage.remove(name)
            for entry in folders:
                dropped_id = topic_id(entry)
                if dropped_id is not None:
                    was_dropped = dropped_id not in state.ids and dropped_id < state.next_id
                    own = TOPIC_FILES if was_dropped else WAKE_FILE  # of a topic never committed
                    storage.remove_dir(f"topics/{entry}", own)


def hold_limit(state: JournalState, topic: TopicState, number: int) -> int:
    """Return the lowest position that a cursor with `hold` still needs; the partition's end if there is none."""
    name, end = topic.definition.name, topic.partitions[number].end
    held = [c.positions.get(number, 0) for (t, _), c in state.cursors.items() if t == name and c.hold]
    return min(held, default=end)


def _dirty(segments: list[Segment]) -> float:
    size = sum(s.size for s in segments)
    return sum(s.size for s in segments if not s.compacted) / size if size else 0.0


def _add(one: MaintenanceReport, two: MaintenanceReport) -> MaintenanceReport:
    names = [f.name for f in dataclasses.fields(MaintenanceReport)]
    return MaintenanceReport(**{n: getattr(one, n) + getattr(two, n) for n in names})
