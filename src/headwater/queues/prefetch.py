"""Prefetches messages of a queue's topic in one process: those that no worker has had yet, and their rows. A cache over
the log.

Messages are read ahead in chunks. For each message the cache keeps its position, the time from which it may be handed
out, and the hash of its key.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.catalog.rules import FORGOTTEN
from headwater.core.clock import Microseconds
from headwater.core.errors import GapError
from headwater.core.hashing import hash_rows
from headwater.log.protocol import Log
from headwater.queues.encrypted_messages import forgettings
from headwater.queues.message_positions import (
    NONE,
    Mask,
    Places,
    in_turns,
    offset_of,
    partition_of,
    place_of,
    to_ranges,
)
from headwater.queues.queue_definition import QueueDefinition
from headwater.queues.queue_state import QueueState

CHUNK_ROWS = 4_096
"""Number of messages that are read ahead at once."""
BLOCKED_MAX = 32_768
"""Number of messages with busy keys that are skipped over before later messages must wait for those keys."""
CACHED_BYTES = 32 << 20
"""Size up to which rows that were read ahead are cached; other rows are read again when they are handed out."""


@dataclass(frozen=True)
class _Chunk:
    places: Places
    rows: pa.RecordBatch


class Window:
    """One process's read-ahead buffer of the messages of one queue."""

    def __init__(self, log: Log, queue: QueueDefinition) -> None:
        self._log = log
        self._queue = queue
        self._places = NONE
        self._due = NONE
        self._keys = NONE
        self._reached: dict[int, int] = {}
        self._chunks: deque[_Chunk] = deque()
        self._cached = 0
        self._forgettings = 0
        self.gaps: list[tuple[int, int]] = []
        """Ranges of positions without a message, to be recorded once in a 'skip' operation."""

    def candidates(
        self, state: QueueState, count: int, now: Microseconds, ends: Mapping[int, int], spare: int = 0
    ) -> tuple[Places, Places | None]:
        """Return positions that a claim made now could get: `count` of them if there are as many, and up to `spare` more.
        Messages that come again are first, then fresh ones in log order. For an ordered queue, also the hash of each key."""
        found = [self._returned(state, now), *self._lapsed(state, now)]
        total = sum(len(places) for places, _ in found)
        self._drop_taken(state)
        fresh, keys = self._fresh(state, now)
        while total + len(fresh) < count and self._blocked(now) < BLOCKED_MAX and self._read_on(state, ends):
            self._drop_taken(state)
            fresh, keys = self._fresh(state, now)
        found.append((fresh, keys))
        places, hashes = (np.concatenate(column) for column in zip(*found, strict=True))
        return places[: count + spare], hashes[: count + spare] if self._queue.key else None

    def _blocked(self, now: Microseconds) -> int:
        """Return the number of prefetched messages whose delay is over."""
        return len(self._places) if self._queue.delay is None else int((self._due <= now).sum())

    def next_due(self, now: Microseconds) -> Microseconds | None:
        """Return when the next delayed message that was read ahead may be handed out; None if there is none."""
        later = self._due[self._due > now]
        return int(later.min()) if len(later) else None

    def delayed(self, state: QueueState, now: Microseconds, ends: Mapping[int, int]) -> int:
        """Return the number of fresh messages whose delay is not over; reads all fresh messages."""
        if self._queue.delay is None:
            return 0
        while self._read_on(state, ends):
            pass
        self._drop_taken(state)
        return int((self._due > now).sum())

    def rows(self, places: Places) -> tuple[pa.Table, Mask]:
        """Return the rows of messages, in the order of their positions, and which messages were found: some may no
        longer be in the log."""
        order = np.argsort(places, kind="stable")
        wanted, found = places[order], np.zeros(len(places), dtype=bool)
        pieces: list[pa.RecordBatch] = []
        spots: list[Places] = []
        for chunk in self._chunks:
            low, high = np.searchsorted(wanted, [chunk.places[0], chunk.places[-1] + 1])
            mine = np.arange(low, high)[~found[low:high]]
            if len(mine):
                at = np.searchsorted(chunk.places, wanted[mine])
                there = chunk.places[at] == wanted[mine]
                pieces.append(chunk.rows.take(pa.array(at[there])))
                spots.append(mine[there])
                found[mine[there]] = True
        for first, end in zip(*to_ranges(wanted[~found]), strict=True):
            for batch in self._read(partition_of(first), offset_of(first), offset_of(end - 1) + 1):
                at = np.searchsorted(wanted, place_of(partition_of(first), 0) + _offsets(batch))
                pieces.append(batch)
                spots.append(at)
                found[at] = True
        if not pieces:
            return self._schema().empty_table(), found
        tables = [pa.Table.from_batches([piece]) for piece in pieces]
        # permissive: a column may have been added between chunks
        table = pa.concat_tables(tables, promote_options="permissive")
        back = np.argsort(order[np.concatenate(spots)], kind="stable")
        there = np.zeros(len(places), dtype=bool)
        there[order[found]] = True
        return table.take(pa.array(back)) if (np.diff(back) != 1).any() else table, there

    def without_forgotten(self) -> int:
        """Drop cached rows if a subject was forgotten since they were read. Returns a count that rises each time that
        happens."""
        now = forgettings(self._log, self._log.topic(self._queue.topic))
        if now != self._forgettings:
            self.drop_cached()
            self._forgettings = now
        return now

    def drop_cached(self, gone: Places = NONE) -> None:
        """Drop all cached rows, which are then read again, and the positions in `gone`, whose records were excised."""
        self._chunks.clear()
        self._cached = 0
        keep = ~np.isin(self._places, gone)
        self._places, self._due, self._keys = (c[keep] for c in (self._places, self._due, self._keys))

    def keys_of(self, rows: pa.RecordBatch) -> Places | None:
        """Return the hash of each row's key; None if the queue is not ordered."""
        return self._keys_of(rows) if self._queue.key else None

    # --- reading ahead ---------------------------------------------------------------------------------------------

    def _returned(self, state: QueueState, now: Microseconds) -> tuple[Places, Places]:
        waiting = state.waiting
        ready = np.flatnonzero(waiting.due <= now)
        if self._queue.key and len(ready):
            ready = ready[~_in(waiting.keys[ready], state.busy)]
        ready = ready[in_turns(waiting.places[ready])]
        return waiting.places[ready], waiting.keys[ready]

    def _lapsed(self, state: QueueState, now: Microseconds) -> Iterator[tuple[Places, Places]]:
        """Yield messages of expired leases that no record has expired yet: the claim's own record will."""
        if not state.lapsing(now):
            return
        for grant in state.leases.values():
            over = np.flatnonzero(grant.open & (grant.until <= now) & (grant.deliveries < grant.limit))
            if len(over):
                yield (
                    grant.places[over],
                    np.zeros(len(over), np.int64) if grant.keys is None else grant.keys[over],
                )

    def _fresh(self, state: QueueState, now: Microseconds) -> tuple[Places, Places]:
        ready = np.flatnonzero(self._due <= now) if self._queue.delay else np.arange(len(self._places))
        if self._queue.key:
            first = np.zeros(len(self._places), dtype=bool)
            first[np.unique(self._keys, return_index=True)[1]] = True
            held = _in(self._keys, state.busy) | np.isin(self._keys, state.waiting.keys)
            ready = ready[(first & ~held)[ready]]
        return self._places[ready], self._keys[ready]

    def _drop_taken(self, state: QueueState) -> None:
        if not len(self._places):
            return
        fresh = ~state.taken.contains(self._places)
        if not fresh.all():
            self._places, self._due, self._keys = (c[fresh] for c in (self._places, self._due, self._keys))

    def _read_on(self, state: QueueState, ends: Mapping[int, int]) -> bool:
        """Read the next chunk of each partition, in turns; False if all partitions were read to their ends."""
        read = False
        for partition, end in ends.items():
            begin = max(
                self._reached.get(partition, 0),
                state.taken.first_outside(place_of(partition, 0)) - place_of(partition, 0),
            )
            if begin < end:
                self._take_in(partition, begin, min(end, begin + CHUNK_ROWS))
                read = True
        if read:
            order = in_turns(self._places)
            self._places, self._due, self._keys = (c[order] for c in (self._places, self._due, self._keys))
        return read

    def _take_in(self, partition: int, begin: int, end: int) -> None:
        base, expected = place_of(partition, 0), begin
        for batch in self._read(partition, begin, end):
            offsets = _offsets(batch)
            self._note_gaps(base, expected, offsets)
            expected = int(offsets[-1]) + 1
            places = base + offsets
            self._places = np.concatenate([self._places, places])
            self._due = np.concatenate([self._due, self._due_of(batch)])
            self._keys = np.concatenate([self._keys, self._keys_of(batch)])
            self._cache(_Chunk(places, batch))
        if expected < end:
            self.gaps.append((base + expected, base + end))
        self._reached[partition] = end

    def _note_gaps(self, base: int, expected: int, offsets: Places) -> None:
        if int(offsets[-1]) - expected + 1 == len(offsets):
            return
        befores = np.concatenate(([expected - 1], offsets[:-1]))
        for at in np.flatnonzero(offsets - befores > 1).tolist():
            self.gaps.append((base + int(befores[at]) + 1, base + int(offsets[at])))

    def _read(self, partition: int, begin: int, end: int) -> Iterator[pa.RecordBatch]:
        topic = self._log.topic(self._queue.topic)
        columns = [
            *topic.schema.names,
            "_offset",
            "_appended_at",
            "_sequence",
            *(["_op"] if topic.keyed else []),
        ]
        columns += [FORGOTTEN] if topic.private else []
        while begin < end:
            try:
                for batch in self._log.read(topic.name, partition, begin, end, columns):
                    if batch.num_rows:
                        yield batch
                return
            except GapError as gap:  # removed in spite of the queue's hold: by maintain(override_holds=True)
                begin = max(begin + 1, gap.first_available)

    def _schema(self) -> pa.Schema:
        return self._log.topic(self._queue.topic).schema.append(pa.field("_offset", pa.int64()))

    def _due_of(self, batch: pa.RecordBatch) -> Places:
        if self._queue.delay is None:
            return np.zeros(batch.num_rows, dtype=np.int64)
        delay = batch.column(self._queue.delay)
        if pa.types.is_timestamp(delay.type):
            return _numbers(delay.cast(pa.timestamp("us", delay.type.tz)).cast(pa.int64()))
        appended = _numbers(batch.column("_appended_at").cast(pa.int64()))
        seconds = np.nan_to_num(delay.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
        due: Places = appended + (seconds * 1e6).astype(np.int64)
        return due

    def _keys_of(self, batch: pa.RecordBatch) -> Places:
        if not self._queue.key:
            return np.zeros(batch.num_rows, dtype=np.int64)
        columns = [batch.column(name) for name in self._queue.key]
        return hash_rows(columns, batch.num_rows).view(np.int64)

    def _cache(self, chunk: _Chunk) -> None:
        if self._chunks and self._chunks[-1].rows.schema != chunk.rows.schema:
            self._chunks.clear()  # the topic's columns have changed
            self._cached = 0
        self._chunks.append(chunk)
        self._cached += chunk.rows.nbytes
        while self._cached > CACHED_BYTES and len(self._chunks) > 1:
            self._cached -= self._chunks.popleft().rows.nbytes


def _offsets(batch: pa.RecordBatch) -> Places:
    found: Places = batch.column("_offset").to_numpy()
    return found


def _numbers(array: pa.Array) -> Places:
    found: Places = array.fill_null(0).to_numpy(zero_copy_only=False)
    return found


def _in(keys: Places, some: set[int]) -> Mask:
    found: Mask = np.isin(keys, np.fromiter(some, np.int64, len(some)))
    return found
