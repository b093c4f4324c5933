"""Atomic appends larger than memory: rows go to staged files, which one commit turns into segments.

Small appends stay in memory and take the ordinary path. Maintenance removes staged files that were never committed.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core.errors import HeadwaterError, StorageError, UsageError
from headwater.core.positions import Receipt
from headwater.core.storage import File, is_running
from headwater.log.embedded.append import Appender, StagedFrames, encode_rows
from headwater.log.embedded.base import canonical_topic, topic_of
from headwater.log.embedded.commit import Core
from headwater.log.embedded.journal import frames
from headwater.log.embedded.journal.commit_outcome import nothing_written
from headwater.log.embedded.journal.file_names import STAGED_FILES, staged_by
from headwater.log.protocol import Append, CursorMove, Producer
from headwater.log.repeated_appends import RowSum
from headwater.log.routing import route
from headwater.log.watermarks import decisive_times

FOLDER = "staging"

Retry = Callable[[Callable[[], Receipt]], Receipt]
"""Runs an append, and retries it while its topic waits for holding cursors."""


class EmbeddedStage:
    """See `headwater.log.protocol.Stage`."""

    def __init__(
        self, core: Core, appender: Appender, retry: Retry, producer: Producer | None = None
    ) -> None:
        """Begin a stage. `producer` is the producer that `commit` will name, if already known: see `Log.stage`."""
        self._retry = retry
        self._adds_up = producer is not None and producer.exact
        self._totals: dict[str, RowSum] = {}
        self._core = core
        self._journal = core.journal
        self._appender = appender
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._bytes = 0
        self._name = f"{FOLDER}/{os.getpid()}-{uuid.uuid4().hex}"
        self._files: dict[tuple[str, int], tuple[File, StagedFrames]] = {}
        self._ends: dict[tuple[str, int], int] = {}
        self._versions: dict[str, int] = {}
        self._incarnations: dict[str, int] = {}
        self._done = False

    def add(self, topic: str, batch: pa.RecordBatch, incarnation: int | None = None) -> None:
        """Add conformed rows; beyond `staging_bytes_max` everything goes to disk."""
        self._open()
        if canonical_topic(self._journal.state, topic) not in self._journal.state.topics:
            self._journal.refresh()
        topic = topic_of(self._journal.state, topic).definition.name
        if incarnation is not None:
            self._incarnations.setdefault(topic, incarnation)
        self._batches.setdefault(topic, []).append(batch)
        self._bytes += batch.nbytes
        if self._bytes > self._core.settings.staging_bytes_max:
            self._spill()

    def commit(
        self,
        *,
        producer: Producer | None = None,
        expect: Mapping[str, int | Mapping[Any, int]] | None = None,
        moves: tuple[CursorMove, ...] = (),
    ) -> Receipt:
        """Commit the stage: all rows become visible at once."""
        self._open()
        if producer is not None and not self._adds_up:
            producer = replace(producer, exact=False)
        append = Append(self._batches, producer, expect or {}, moves, self._incarnations)
        if not self._files:
            receipt = self._retry(lambda: self._appender.append(append))
            self._done = True
            return receipt
        self._spill()
        try:
            for file, _ in self._files.values():
                file.sync()
        except StorageError:  # the data to be synced is lost: syncing again would not restore it
            self._end()
            raise
        files = {k: s for k, (_, s) in self._files.items()}
        totals = list(self._totals.values())
        receipt = self._retry(lambda: self._appender.commit_staged(files, append, totals))
        with contextlib.suppress(HeadwaterError):  # the append counts; maintenance removes the files left
            self._end()
        return receipt

    def abort(self) -> None:
        """Discard the stage."""
        if not self._done:
            self._end()

    def _end(self) -> None:
        self._done = True
        for file, _ in self._files.values():
            file.close()
        if self._files:
            self._core.storage.remove_dir(self._name, STAGED_FILES)

    def _open(self) -> None:
        if self._done:
            raise UsageError("this transaction has ended", hint="begin a new one", reason="ended")

    def _spill(self) -> None:
        with nothing_written():
            self._write_all()

    def _write_all(self) -> None:
        for name, batches in self._batches.items():
            topic = self._journal.state.topics[name]
            definition = topic.definition
            if definition.versioned_by is not None or definition.clock is not None:
                which, what = (
                    ("versioned topic", "number of each record")
                    if definition.clock is None
                    else ("topic of device clocks", "corrected time of each record")
                )
                raise UsageError(
                    f"an append to the {which} {name!r} must fit in memory "
                    f"({self._core.settings.staging_bytes_max >> 20} MB)",
                    detail=f"the {what} depends on what others append meanwhile",
                    hint="append fewer rows at a time",
                    topic=name,
                    reason="too-large-to-stage",
                )
            if self._versions.setdefault(name, definition.schema_version) != definition.schema_version:
                raise UsageError(
                    f"topic {name!r} was altered during this transaction",
                    hint="begin a new transaction",
                    topic=name,
                    reason="altered",
                )
            total = self._totals.setdefault(name, RowSum(topic.id, definition)) if self._adds_up else None
            for batch in batches:
                ends = {p: self._ends.get((name, p), 0) for p in range(definition.partitions)}
                routed = route(self._appender.stored(batch, definition, total), definition, ends)
                for partition, rows in routed.items():
                    self._write(name, partition, rows)
        self._batches, self._bytes = {}, 0

    def _write(self, name: str, partition: int, rows: pa.RecordBatch) -> None:
        definition = self._journal.state.topics[name].definition
        found = self._files.get((name, partition))
        if found is None:
            self._core.storage.make_dirs(self._name)
            path = f"{self._name}/{name}-{partition}.arrow"
            file = self._core.storage.open(path, create=True)
            prefix = frames.segment_prefix(definition.storage_schema)
            file.write_at(0, prefix)
            found = self._files[name, partition] = (
                file,
                StagedFrames(path, len(prefix), frames.prefix_checksum(definition.storage_schema)),
            )
        file, staged = found
        for frame in encode_rows(rows, definition, None):
            at = staged.size
            for piece in frame.pieces():
                file.write_at(at, piece)
                at += len(piece)
            staged.frames.append((staged.size, frame))
            staged.size = at
            frame.body = memoryview(b"")  # the body is on disk now; the header is stamped at commit
            if frame.times is not None:
                frame.times = decisive_times(frame.times, self._journal.clock.now_us(), definition)
            self._ends[name, partition] = self._ends.get((name, partition), 0) + frame.span


def remove_leftovers(core: Core) -> None:
    """Remove staged files of processes that have ended."""
    for entry in core.storage.folders(FOLDER):
        owner = staged_by(entry)
        if owner is not None and not is_running(owner):
            core.storage.remove_dir(f"{FOLDER}/{entry}", STAGED_FILES)
