"""Reading everything to prove that it is whole: journal, checkpoints, frames, sealed files and how they fit together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import xxhash

from headwater.errors import CorruptionError, HeadwaterError
from headwater.log.embedded import recovery
from headwater.log.embedded.core import Core
from headwater.log.embedded.journal import FOLDER, Damage, journal_name, scan
from headwater.log.embedded.segments import SegmentReader
from headwater.log.embedded.state import PartitionState, Segment, TopicState
from headwater.log.protocol import Finding


def verify(core: Core, reader: SegmentReader, topics: Sequence[str] | None) -> Iterator[Finding | int]:
    """Findings, and between them the number of bytes checked so far."""
    checked = 0
    if topics is None:
        for item in _verify_journal(core):
            checked += item if isinstance(item, int) else 0
            yield item if isinstance(item, Finding) else checked
    for name, topic in sorted(core.state.topics.items()):
        if topics is None or name in topics:
            for number, partition in enumerate(topic.partitions):
                for item in _verify_partition(core, reader, topic, number, partition):
                    checked += item if isinstance(item, int) else 0
                    yield item if isinstance(item, Finding) else checked


def _verify_journal(core: Core) -> Iterator[Finding | int]:
    storage = core.storage
    for name in storage.list(recovery.CHECKPOINTS):
        path = f"{recovery.CHECKPOINTS}/{name}"
        if name.endswith(".json"):
            text, _, digest = storage.read(path).rpartition(b"\n")
            if xxhash.xxh3_64_hexdigest(text).encode() != digest:
                yield Finding(path, 0, None, None, "the checkpoint fails its checksum")
            yield len(text)
    for entry in storage.list(FOLDER):
        with contextlib.closing(storage.open(f"{FOLDER}/{entry}", read_only=True)) as file:
            following = recovery.begin_of(storage, int(entry[:8]) + 1)
            limit = following.record["previous_end"] if following else core.visible_bytes(int(entry[:8]))
            for found in scan(file, 0, limit):
                if isinstance(found, Damage):
                    name = journal_name(int(entry[:8]))
                    yield Finding(name, found.start, None, None, "a record of the journal fails its checksum")
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
                message = f"the index says {entry}, which no frame bears out"
                yield Finding(segment.name, entry[1], name, number, message)
    if segment.kind == "parquet" and not damaged:
        try:
            reader.sealed.verify(segment)
        except HeadwaterError as error:
            yield Finding(
                error.facts.get("file", segment.name), error.facts.get("offset"), name, number, error.message
            )
    if rows != segment.rows and not damaged:
        message = f"{rows} records were found where {segment.rows} were written"
        yield Finding(segment.name, None, name, number, message)
