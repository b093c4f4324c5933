"""The whole `Log` protocol over plain lists and dicts: the readable specification that other backends must match.

Everything happens under one lock, checks before changes, so that a call that raises leaves everything as it was. Nothing is
durable. Where the protocol leaves a backend some freedom, this one does the simplest thing: a segment is the rows that one
commit wrote to one partition, and `maintain` does all due work whether forced or not.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa

from headwater.catalog.conform import adapt
from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.core.clock import Clock, Microseconds, SystemClock
from headwater.core.errors import ClosedError, ConflictError, GapError, UsageError
from headwater.core.faults import Faults, report_clock
from headwater.core.names import Named, canonical_name
from headwater.core.positions import Receipt, Token, new_id
from headwater.core.trusted_clock import TrustedClock
from headwater.log import producer_watermarks as by_producer
from headwater.log.backpressure import check_backlog, retry_while_blocked
from headwater.log.memory.memory_append import Plan, check_expected, check_moves, plan_append
from headwater.log.memory.memory_groups import Group
from headwater.log.memory.memory_partition import reading_schema
from headwater.log.memory.memory_producers import Producers
from headwater.log.memory.memory_stage import MemoryStage
from headwater.log.memory.memory_topic import MemoryTopic
from headwater.log.protocol import (
    Append,
    CursorInfo,
    CursorMove,
    Entry,
    Finding,
    GroupInfo,
    MaintenanceReport,
    PartitionInfo,
    Producer,
    ProducerInfo,
    ProducerWatermark,
    TimeAxis,
)
from headwater.log.repeated_appends import RowSum, Sums, sums_of
from headwater.log.routing import check_incarnation
from headwater.log.topic_names import (
    EntryKey,
    check_drop,
    check_entry,
    check_excision,
    check_topic_name,
    entry_key,
    is_own,
    no_topic,
    plain_document,
    with_canonical_topics,
)
from headwater.privacy.column_encryption import decrypt_columns, encrypt_columns, stored_columns
from headwater.privacy.subject_keys import MemoryKeys, SubjectKeys

HISTORY_MAX = 8
"""Number of commits kept in a cursor's history for the forecast."""


class MemoryLog:
    """A log in memory that exists as long as the object does."""

    def __init__(self, clock: Clock | None = None, receipts_max: int = 1_000) -> None:
        self.clock = self._clock = TrustedClock(clock or SystemClock())
        self._clock.begin(0)
        self.identity = uuid.uuid4().hex
        self.faults = Faults(None, self._clock)
        self._clock.listen(partial(report_clock, self.faults))
        self.keys: SubjectKeys = MemoryKeys(self._clock)
        self._changed = threading.Condition()
        self._topics: dict[str, MemoryTopic] = {}
        self._entries: dict[EntryKey, Entry] = {}
        self._producers = Producers(receipts_max)
        self._sequence = 0
        self._ids: list[str] = []
        self._incarnations = 0
        self._last_commit_at: Microseconds = 0
        self._closed = False

    # ------------------------------------------------------------------ topics

    def topics(self) -> Mapping[str, TopicDefinition]:
        """See Log."""
        with self._locked():
            return Named({name: topic.definition for name, topic in self._topics.items()})

    def topic(self, name: str) -> TopicDefinition:
        """See Log."""
        with self._locked():
            return self._topic(name).definition

    def create_topic(self, definition: TopicDefinition) -> None:
        """See Log."""
        with self._locked():
            check_topic_name(definition.name, self._topics, self._entries)
            self._put(definition)

    def _put(self, definition: TopicDefinition) -> None:
        _, now = self._commit()
        self._incarnations += 1
        self._topics[definition.name] = MemoryTopic(replace(definition, incarnation=self._incarnations), now)

    def replace_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See Log."""
        with self._locked():
            topic = self._topic(old.name)
            if topic.definition != old or topic.cursors or any(p.end for p in topic.partitions):
                raise ConflictError(
                    f"topic {old.name!r} was altered, written to or read by another process",
                    hint="check it again; only a topic without records can be replaced",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            del self._topics[old.name]
            self._put(new)

    def alter_topic(self, old: TopicDefinition, new: TopicDefinition) -> None:
        """See Log."""
        with self._locked():
            topic = self._topic(old.name)
            if topic.definition != old:
                raise ConflictError(
                    f"topic {old.name!r} was altered by another process",
                    hint="read its definition again, then alter it",
                    topic=old.name,
                    expected=old,
                    actual=topic.definition,
                )
            if (new.name, new.partitions) != (old.name, old.partitions):
                raise UsageError(
                    f"topic {old.name!r} cannot change its name or number of partitions", topic=old.name
                )
            self._commit()
            topic.definition = replace(new, incarnation=topic.definition.incarnation)

    def drop_topic(self, name: str) -> None:
        """See Log."""
        with self._locked():
            topic = self._topic(name)
            self._commit()
            del self._topics[topic.definition.name]

    # ------------------------------------------------------------------ the catalog

    def entries(self, kind: str) -> Mapping[str, Entry]:
        """See Log."""
        with self._locked():
            return Named({e.name: e for e in self._entries.values() if e.kind == kind})

    def put_entry(self, kind: str, name: str, document: Mapping[str, Any], *, expect: int | None) -> Entry:
        """See Log."""
        plain = plain_document(kind, name, document)
        with self._locked():
            check_entry((kind, name), self._topics, self._entries, expect)
            entry = Entry(kind, name, plain, *self._commit())
            self._entries[entry_key(kind, name)] = entry
            return entry

    def drop_entry(self, kind: str, name: str, *, expect: int | None = None) -> None:
        """See Log."""
        with self._locked():
            check_drop((kind, name), self._entries, expect)
            self._commit()
            del self._entries[entry_key(kind, name)]

    def sequence(self) -> int:
        """See Log."""
        with self._locked():
            return self._sequence

    def commit_id(self, sequence: int) -> str | None:
        """See Log."""
        with self._locked():
            return self._ids[sequence - 1] if 0 < sequence <= self._sequence else ""

    def wait_commit(self, sequence: int, timeout_ms: float | None) -> bool:
        """See Log."""

        def has_come() -> bool:
            self._check_open()
            return self._sequence > sequence

        with self._locked():
            return self._changed.wait_for(has_come, None if timeout_ms is None else timeout_ms / 1e3)

    # ------------------------------------------------------------------ appending

    def append(self, append: Append) -> Receipt:
        """See Log. An append without rows, moves and producer writes nothing and returns an empty receipt."""
        return retry_while_blocked(self, self._clock, lambda: self._append(append))

    def _append(self, append: Append) -> Receipt:
        with self._locked():
            append = with_canonical_topics(append, self._topics)
            rows = any(b.num_rows for batches in append.batches.values() for b in batches)
            if not rows and not append.moves and append.producer is None:
                for name in append.batches:
                    self._topic(name)
                return Receipt({})
            sums = self._sums(append)
            if append.producer is not None:
                known = self._producers.check(append.producer, sums)
                if known is not None:
                    if self._producers.raise_epoch(append.producer):
                        self._commit()
                    return known
            for name, incarnation in append.incarnations.items():
                check_incarnation(self._topic(name).definition, incarnation)
            for name, batches in append.batches.items():
                topic = self._topic(name)
                ends = {p: part.end for p, part in enumerate(topic.partitions)}
                count = sum(b.num_rows for b in batches)
                check_backlog(topic.definition, ends, count, self.cursors(name), append.moves)
            plan = {name: plan_append(self._topic(name), batches) for name, batches in append.batches.items()}
            for name, expected in append.expect.items():
                check_expected(self._topic(name), plan.get(name, {}), expected)
            for move in append.moves:
                check_moves(self._topic(move.topic), move)
            return self._write(append, plan, sums)

    def _sums(self, append: Append) -> Sums | None:
        """Return the sums of the rows, if the producer asks for repeats to be compared."""
        if append.producer is None or not append.producer.exact:
            return None
        totals = []
        for name, batches in append.batches.items():
            definition = self._topic(name).definition
            totals.append(RowSum(definition.incarnation, definition))
            for batch in batches:
                plain = adapt(batch, definition.row_schema)
                totals[-1].add(plain, encrypt_columns(plain, definition, self.keys), self.keys)
        return sums_of(totals, self.keys)

    def _write(self, append: Append, plan: Mapping[str, Plan], sums: Sums | None) -> Receipt:
        """Make every change of one append as one commit, after all checks have passed."""
        sequence, now = self._commit()
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        for name, pieces in plan.items():
            topic = self._topics[name]
            for p, batch in sorted(pieces.items()):
                rows, versions = topic.corrected(p, batch, now), topic.next_versions(batch)
                rows = encrypt_columns(rows, topic.definition, self.keys)
                written = topic.partitions[p].append(rows, topic.definition, now, sequence, versions)
                positions.setdefault(name, {})[p] = written
            if append.producer is not None and pieces and topic.definition.watermark == "producers":
                topic.watermarks_by_producer = by_producer.appended(
                    topic.watermarks_by_producer, append.producer.name, now
                )
        for move in append.moves:
            self._move(move, now)
        receipt = Receipt(positions, Token(sequence, self._ids[-1]))
        if append.producer is not None:
            self._producers.remember(append.producer, receipt, sums)
        return receipt

    def producer(self, name: str) -> ProducerInfo | None:
        """See Log."""
        with self._locked():
            return self._producers.info(name)

    def punctuate(
        self,
        topic: str,
        moments: Mapping[int, Microseconds],
        *,
        idle_at: Mapping[int, int] | None = None,
    ) -> None:
        """See Log."""
        with self._locked():
            partitions = {p: self._topic(topic).partition(p) for p in moments}
            if idle_at is not None:
                partitions = {
                    p: part
                    for p, part in partitions.items()
                    if part.end == idle_at[p] and part.watermarks[-1][1] < moments[p]
                }
            if partitions:
                _, now = self._commit()
                for p, partition in partitions.items():
                    partition.punctuate(moments[p], now if idle_at is None else None)

    def declare_watermark(self, topic: str, producer: str, moment: Microseconds) -> None:
        """See Log."""
        with self._locked():
            found = self._topic(topic)
            by_producer.check_has_producers(found.definition)
            _, now = self._commit()
            self._agree(found, by_producer.declared(found.watermarks_by_producer, producer, moment, now), now)

    def retire(self, topic: str, producer: str, *, idle_since: Microseconds | None = None) -> bool:
        """See Log."""
        with self._locked():
            found = self._topic(topic)
            by_producer.check_has_producers(found.definition)
            known = found.watermarks_by_producer.get(producer)
            if known is None or (idle_since is not None and known.heard_at > idle_since):
                return False
            _, now = self._commit()
            self._agree(found, by_producer.retired(found.watermarks_by_producer, producer), now)
            return True

    def _agree(self, topic: MemoryTopic, known: dict[str, ProducerWatermark], now: Microseconds) -> None:
        """Set the producers of a topic, and raise its partitions to the minimum of their watermarks."""
        topic.watermarks_by_producer = known
        levels = [partition.watermarks[-1][1] for partition in topic.partitions]
        for p, moment in by_producer.raised(known, levels).items():
            topic.partitions[p].punctuate(moment, now)

    def producer_watermarks(self, topic: str) -> Mapping[str, ProducerWatermark]:
        """See Log."""
        with self._locked():
            return dict(self._topic(topic).watermarks_by_producer)

    def settle(self) -> None:
        """See Log. Everything written is visible already."""

    def sync(self) -> None:
        """See Log. Nothing is durable here."""

    def stage(self, producer: Producer | None = None) -> MemoryStage:
        """See Log."""
        return MemoryStage(self.append, producer)

    # ------------------------------------------------------------------ reading

    def partitions(self, topic: str) -> Mapping[int, PartitionInfo]:
        """See Log."""
        with self._locked():
            return {
                p: PartitionInfo(
                    first=partition.first,
                    end=partition.end,
                    rows=partition.rows,
                    size_bytes=partition.size_bytes,
                    segments=len(partition.segments),
                    watermark=partition.watermark(partition.end),
                    last_appended_at=partition.last_appended_at,
                    oldest_appended_at=partition.segments[0].appended_at if partition.segments else None,
                    oldest_bytes=partition.oldest_bytes,
                    ahead=partition.ahead,
                    compacted_to=partition.compacted_to,
                    heard_at=partition.heard_at,
                )
                for p, partition in enumerate(self._topic(topic).partitions)
            }

    def ends(self, topics: Sequence[str]) -> Mapping[str, Mapping[int, int]]:
        """See Log."""
        with self._locked():
            return {
                name: {p: part.end for p, part in enumerate(self._topic(name).partitions)} for name in topics
            }

    def cut(self, topics: Sequence[str]) -> tuple[int, Mapping[str, Mapping[int, int]]]:
        """See Log."""
        with self._locked():
            return self._sequence, self.ends(topics)

    def read(
        self, topic: str, partition: int, start: int, end: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See Log. Reads the records that were there at the call."""
        with self._locked():
            part, definition = self._topic(topic).partition(partition), self._topic(topic).definition
            names = reading_schema(definition).names
            known = {*names, FORGOTTEN} if definition.private else set(names)
            if columns is not None and not set(columns) <= known:
                unknown = next(c for c in columns if c not in known)
                raise UsageError(
                    f"topic {topic!r} has no column {unknown!r}",
                    hint=f"its columns are {', '.join(names)}",
                    topic=topic,
                    column=unknown,
                )
            if start < part.first:
                raise GapError(
                    f"offset {start} of partition {partition} of topic {topic!r} was removed; the first available is {part.first}",
                    detail=f"{part.first - start} rows were missed",
                    hint="read from 'earliest', or pass on_gap='earliest' or 'latest' to continue and count the lost rows",
                    topic=topic,
                    partition=partition,
                    position=start,
                    first_available=part.first,
                    missed=part.first - start,
                )
            wanted = names if columns is None else list(columns)
            found = part.read(definition, start, end, stored_columns(wanted, definition))
            return iter([decrypt_columns(batch, definition, self.keys, wanted) for batch in found])

    def offset_at(self, topic: str, partition: int, moment: Microseconds, axis: TimeAxis) -> int:
        """See Log."""
        with self._locked():
            part, definition = self._topic(topic).partition(partition), self._topic(topic).definition
            if axis == "event" and definition.time is None:
                raise UsageError(
                    f"topic {topic!r} has no event time",
                    hint="seek by append time, or declare a WATERMARK column",
                    topic=topic,
                    reason="no-event-time",
                )
            for offset, appended_at, event_time in part.records(definition):
                if (appended_at if axis == "appended" else event_time) >= moment:
                    return offset
            return part.end

    def watermark(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See Log."""
        with self._locked():
            return self._topic(topic).partition(partition).watermark(offset)

    def appended_at(self, topic: str, partition: int, offset: int) -> Microseconds | None:
        """See Log."""
        with self._locked():
            records = self._topic(topic).partition(partition).records(self._topic(topic).definition)
            return next((appended_at for at, appended_at, _ in records if at >= offset), None)

    def wait(self, topic: str, ends: Mapping[int, int], timeout_ms: float | None) -> bool:
        """See Log. Partitions that `ends` does not name are not waited for."""

        def has_grown() -> bool:
            self._check_open()
            return any(self._topic(topic).partition(p).end > end for p, end in ends.items())

        with self._locked():
            return self._changed.wait_for(has_grown, None if timeout_ms is None else timeout_ms / 1e3)

    # ------------------------------------------------------------------ cursors

    def cursor(self, topic: str, name: str) -> CursorInfo | None:
        """See Log."""
        with self._locked():
            return self._topic(topic).cursors.get(name)

    def cursors(self, topic: str | None = None) -> Sequence[CursorInfo]:
        """See Log."""
        with self._locked():
            topics = self._topics.values() if topic is None else [self._topic(topic)]
            return [cursor for t in topics for cursor in t.cursors.values()]

    def create_cursor(self, topic: str, name: str, positions: Mapping[int, int], hold: bool) -> CursorInfo:
        """See Log."""
        with self._locked():
            for p in positions:
                self._topic(topic).partition(p)
            cursors = self._topic(topic).cursors
            if name not in cursors:
                self._commit()
                of = self._topic(topic).definition.name
                cursors[name] = CursorInfo(of, name, dict(positions), hold, lost=0, committed_at=None)
            elif cursors[name].hold != hold:
                self._commit()
                cursors[name] = replace(cursors[name], hold=hold)
            return cursors[name]

    def drop_cursor(self, topic: str, name: str) -> None:
        """See Log."""
        with self._locked():
            held = self._topic(topic)
            self._commit()
            held.cursors.pop(name, None)
            held.groups.pop(name, None)

    def move_cursor(self, move: CursorMove) -> None:
        """See Log."""
        with self._locked():
            check_moves(self._topic(move.topic), move)
            _, now = self._commit()
            self._move(move, now)

    def _move(self, move: CursorMove, now: Microseconds) -> None:
        cursors = self._topic(move.topic).cursors
        old = cursors[move.cursor]
        positions = {**old.positions, **move.positions}
        cursors[move.cursor] = replace(
            old,
            positions=positions,
            lost=old.lost + move.lost,
            committed_at=now,
            history=(*old.history, (now, sum(positions.values())))[-HISTORY_MAX:],
        )

    # ------------------------------------------------------------------ groups

    def group(self, topic: str, name: str) -> GroupInfo | None:
        """See Log."""
        with self._locked():
            held = self._topic(topic)
            return held.group_info(name) if name in held.groups else None

    def beat(self, topic: str, group: str, member: str, timeout_ms: float) -> GroupInfo:
        """See Log."""
        with self._locked():
            held = self._topic(topic)
            state = held.groups.setdefault(group, Group(held.definition.partitions))
            state.beat(member, self._clock.steady_ms(), timeout_ms)
            return held.group_info(group)

    def release(self, topic: str, group: str, member: str, partitions: Sequence[int]) -> GroupInfo:
        """See Log."""
        with self._locked():
            held = self._topic(topic)
            if group not in held.groups:
                raise UsageError(
                    f"topic {topic!r} has no group {group!r}", hint="join it first", topic=topic, group=group
                )
            held.groups[group].release(member, partitions)
            return held.group_info(group)

    def leave(self, topic: str, group: str, member: str) -> None:
        """See Log."""
        with self._locked():
            state = self._topic(topic).groups.get(group)
            if state is not None:
                state.leave(member)

    # ------------------------------------------------------------------ upkeep

    def maintain(self, *, force: bool = False, override_holds: bool = False) -> MaintenanceReport:
        """See Log. Does the same whether forced or not."""
        started_ms = self._clock.steady_ms()
        report = MaintenanceReport()
        with self._locked():
            now = self._clock.old_enough_us()
            for topic in self._topics.values():
                overrides = override_holds and not is_own(topic.definition)
                holds = [] if overrides else [c for c in topic.cursors.values() if c.hold]
                for p, part in enumerate(topic.partitions):
                    limit = min((c.positions.get(p, 0) for c in holds), default=part.end)
                    before = part.size_bytes
                    removed = part.expire(topic.definition, now, limit)
                    compacts = topic.definition.cleanup == "compact"
                    compacted = part.compact(topic.definition, now, limit) if compacts else 0
                    report = replace(
                        report,
                        segments_removed=report.segments_removed + len(removed),
                        rows_removed=report.rows_removed + sum(s.batch.num_rows for s in removed),
                        rows_compacted=report.rows_compacted + compacted,
                        bytes_freed=report.bytes_freed + before - part.size_bytes,
                    )
        return replace(report, seconds=(self._clock.steady_ms() - started_ms) / 1e3)

    def excise(self, topic: str, offsets: Mapping[int, Sequence[int]]) -> int:
        """See Log."""
        with self._locked():
            found = self._topic(topic)
            check_excision(found.definition)
            self._producers.excised(found.definition.incarnation)
            return sum(found.partition(p).excise(set(gone)) for p, gone in offsets.items())

    def verify(self, topics: Sequence[str] | None = None) -> Iterator[Finding | int]:
        """See Log. Data in memory cannot be corrupt; yields its size only."""
        with self._locked():
            names = self._topics if topics is None else topics
            return iter([sum(part.size_bytes for name in names for part in self._topic(name).partitions)])

    def close(self) -> None:
        """See Log."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ------------------------------------------------------------------ within

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock; ClosedError if the log was closed."""
        with self._changed:
            self._check_open()
            yield

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the log was closed", hint="open it again")

    def _commit(self) -> tuple[int, Microseconds]:
        """Return the number and the time of the commit that is about to be made; times never decrease."""
        self._sequence += 1
        self._ids.append(new_id())
        self._last_commit_at = max(self._clock.now_us(), self._last_commit_at)
        self._changed.notify_all()
        return self._sequence, self._last_commit_at

    def _topic(self, name: str) -> MemoryTopic:
        stored = canonical_name(self._topics, name)
        if stored is None:
            raise no_topic(name, self._topics)
        return self._topics[stored]
