"""Verification: reads and checks the journal, checkpoints, frames and sealed files, and that they match each other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import xxhash

from headwater.core.errors import CorruptionError, HeadwaterError, WorkspaceMissingError
from headwater.log.embedded.commit import Core
from headwater.log.embedded.journal import recovery
from headwater.log.embedded.journal.journal_file import Damage, journal_name, journals, scan
from headwater.log.embedded.journal.journal_state import PartitionState, Segment, TopicState
from headwater.log.embedded.segments.segment_reader import SegmentReader
from headwater.log.protocol import Finding


def verify(core: Core, reader: SegmentReader, topics: Sequence[str] | None) -> Iterator[Finding | int]:
    """Yield findings, and between them the number of bytes checked so far."""
    checked = 0
    if topics is None:
        for item in _verify_journal(core):
            checked += item if isinstance(item, int) else 0
            yield item if isinstance(item, Finding) else checked
    for name, topic in sorted(core.journal.state.topics.items()):
        if topics is None or name in topics:
            for number, partition in enumerate(topic.partitions):
                for item in _verify_partition(core, reader, topic, number, partition):
                    checked += item if isinstance(item, int) else 0
                    yield item if isinstance(item, Finding) else checked


def _verify_journal(core: Core) -> Iterator[Finding | int]:
    storage, current = core.storage, core.journal.number
    there = journals(storage)
    stored = recovery.checkpoints(
        storage
    )  # Listed after the journals: journals before the newest checkpoint may be removed meanwhile.
    for number in range(max(stored, default=(1, 0, ""))[0], current + 1):
        if number not in there:
            said = "the journal is missing, with acknowledged commits"
            yield Finding(journal_name(number), 0, None, None, said)
    for _, _, path in stored:
        with contextlib.suppress(WorkspaceMissingError):
            text, _, digest = storage.read(path).rpartition(b"\n")
            if xxhash.xxh3_64_hexdigest(text).encode() != digest:
                yield Finding(path, 0, None, None, "the checkpoint fails its checksum")
            yield len(text)
    for number in there:
        with contextlib.suppress(WorkspaceMissingError):
            yield from _verify_one(core, number)


def _verify_one(core: Core, number: int) -> Iterator[Finding | int]:
    name = journal_name(number)
    with contextlib.closing(core.storage.open(name, read_only=True)) as file:
        try:
            following = recovery.begin_of(core.storage, number + 1)
        except CorruptionError as error:
            yield Finding(journal_name(number + 1), 0, None, None, error.message)
            return
        limit = following.record["previous_end"] if following else core.journal.visible_bytes(number)
        reached = 0
        for found in scan(file, 0, limit):
            reached = limit if found.end is None else found.end
            if isinstance(found, Damage):
                yield Finding(name, found.start, None, None, "a record of the journal fails its checksum")
        if reached < limit:
            yield Finding(
                name, reached, None, None, f"the journal ends here, but was visible up to byte {limit}"
            )
        yield limit


def _verify_partition(
    core: Core, reader: SegmentReader, topic: TopicState, number: int, partition: PartitionState
) -> Iterator[Finding | int]:
    expected = partition.first
    for segment in list(partition.segments):
        if segment.first != expected:
            message = f"offsets {expected} to {segment.first} are in no segment"
            yield Finding(segment.name, None, topic.definition.name, number, message)
        expected = segment.end
        yield from _verify_segment(reader, topic, number, segment)
        yield segment.size
    if expected != partition.end:
        message = f"offsets {expected} to {partition.end} are in no segment"
        yield Finding(topic.folder, None, topic.definition.name, number, message)


def _verify_segment(
    reader: SegmentReader, topic: TopicState, number: int, segment: Segment
) -> Iterator[Finding | int]:
    name, at, rows, damaged = topic.definition.name, segment.first, 0, False
    reader.forget([segment.name])
    while at < segment.end:
        try:
            for batch in reader.read(segment, topic.definition, at, segment.end, ["_offset"]):
                offsets = batch.column("_offset")
                rows += batch.num_rows
                at = offsets[-1].as_py() + 1
            break
        except CorruptionError as error:
            yield Finding(segment.name, error.facts.get("offset"), name, number, error.message)
            at = max(at + 1, error.facts.get("next_offset", segment.end))
            damaged = True
        except HeadwaterError as error:
            yield Finding(segment.name, None, name, number, error.message)
            return
    if segment.kind == "arrow" and not damaged:
        known = {tuple(entry) for entry in reader.rebuilt_index(segment)}
        for entry in segment.index:
            if tuple(entry) not in known:
                message = f"the index has the entry {entry}, which matches no frame"
                yield Finding(segment.name, entry[1], name, number, message)
    if segment.kind == "parquet" and not damaged:
        try:
            reader.sealed.verify(segment)
        except HeadwaterError as error:
            yield Finding(
                error.facts.get("file", segment.name), error.facts.get("offset"), name, number, error.message
            )
    if rows != segment.rows and not damaged:
        message = f"the segment has {rows} records, but {segment.rows} were written"
        yield Finding(segment.name, None, name, number, message)
