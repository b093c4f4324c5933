"""Recovers the content of a damaged journal record. Used only for the acknowledged part of the journal.

First the record itself: with one byte of it changed back, or with its frames replaced by their copies in the segments, its
checksum must match again; then it is exactly what was written. If more than that is damaged, the appends are rebuilt from the
frames: each has its offset, commit, watermarks and producer, and how many partitions its commit has. Changes that only the
record contained (a cursor moved, a topic altered) are then lost, and the finding says so.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from headwater.core.errors import HeadwaterError
from headwater.core.storage import Storage
from headwater.log.embedded.journal import frames
from headwater.log.embedded.journal.file_names import is_segment
from headwater.log.embedded.journal.frames import DamagedFrameError, FrameHeader
from headwater.log.embedded.journal.journal_file import RECORD, Record, checksum_of
from headwater.log.embedded.journal.journal_state import JournalState, TopicState

BYTES_TRIED_MAX = 20 << 30
"""Limit on the work of repairing one record, in bytes hashed: some seconds."""
_BITS = [1 << bit for bit in range(8)]
_CHANGES = [*_BITS, *(change for change in range(256) if change not in _BITS and change)]


def repair(storage: Storage, data: bytes) -> Record | None:
    """Return the record that `data`, all bytes from its start to the next whole record, must have been; None if unknown."""
    if len(data) < RECORD.size:
        return None
    _, length, checksum, text_length, _ = RECORD.unpack_from(data)
    rest = data[RECORD.size :]
    for size in dict.fromkeys([length, *range(len(rest), max(-1, len(rest) - 8), -1)]):
        if size > len(rest):
            continue
        payload = bytearray(rest[:size])
        found = _header_damaged(payload, text_length, checksum)
        if found is None and text_length <= size:
            found = _from_segments(storage, payload, text_length, checksum)
            found = found or _byte_changed(payload, text_length, checksum)
        if found is not None:
            return found
    return None


def _header_damaged(payload: bytearray, text_length: int, checksum: int) -> Record | None:
    """Return the record if its payload is intact and only the header, or the padding, is damaged."""
    if text_length <= len(payload):
        differs = checksum_of(payload, text_length) ^ checksum
        if any(differs & (0xFF << (8 * byte)) == differs for byte in range(8)):
            return _json(payload[:text_length])
    at = payload.find(b"}")
    for _ in range(2_000):
        if at < 0:
            return None
        if checksum_of(payload, at + 1) == checksum:
            return _json(payload[: at + 1])
        at = payload.find(b"}", at + 1)
    return None


def _from_segments(storage: Storage, payload: bytearray, text_length: int, checksum: int) -> Record | None:
    """Return the record if its frames are damaged and their copies in the segments match its checksum."""
    record = _json(payload[:text_length])
    if record is None or not isinstance(record.get("parts"), list):
        return None
    frames_there = bytearray()
    try:
        for part in record["parts"]:
            if part.get("i"):
                with contextlib.closing(storage.open(part["s"], read_only=True)) as segment:
                    frames_there += segment.read_at(part["b"][0], part["i"])
    except (HeadwaterError, AttributeError, KeyError, TypeError, ValueError):
        return None
    whole = payload[:text_length] + frames_there
    return record if len(whole) == len(payload) and checksum_of(whole, text_length) == checksum else None


def _byte_changed(payload: bytearray, text_length: int, checksum: int) -> Record | None:
    """Return the record if one byte of its text is damaged, by trying every change of every byte."""
    tries = BYTES_TRIED_MAX // max(1, len(payload) + 200)
    for changes in (_CHANGES[:8], _CHANGES[8:]):
        for at in range(text_length):
            tries -= len(changes)
            if tries < 0:
                return None
            was = payload[at]
            for change in changes:
                payload[at] = was ^ change
                if checksum_of(payload, text_length) == checksum:
                    return _json(payload[:text_length])
            payload[at] = was
    return None


def _json(text: bytearray) -> Record | None:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) and "k" in found else None


@dataclass
class _Run:
    """Adjacent frames of one commit in a partition."""

    topic: TopicState
    partition: int
    name: str
    start: int
    stop: int
    headers: list[FrameHeader]
    producer: dict[str, Any] | None
    said: dict[str, Any] | None
    new: bool


def appends_from_frames(storage: Storage, state: JournalState, before_seq: int | None) -> Iterator[Record]:
    """Yield appends later than `state` and before the commit `before_seq` whose frames are whole in the segments."""
    runs: dict[int, list[_Run]] = {}
    for topic in state.topics.values():
        for number in range(len(topic.partitions)):
            for run in _runs(storage, topic, number, state.seq, before_seq):
                runs.setdefault(run.headers[0].seq, []).append(run)
    for seq in sorted(runs):
        if len(runs[seq]) == runs[seq][0].headers[0].parts and all(_fits(run) for run in runs[seq]):
            yield _record(seq, runs[seq])


def _fits(run: _Run) -> bool:
    return run.headers[0].first == run.topic.partitions[run.partition].end


def _runs(storage: Storage, topic: TopicState, number: int, after: int, before: int | None) -> Iterator[_Run]:
    partition = topic.partitions[number]
    active, end = partition.active, partition.end
    places = [(active.name, active.size)] if active is not None else []
    known = {s.name for s in partition.segments}
    folder = f"{topic.folder}/{number}"
    new = [f"{folder}/{n}" for n in storage.files(folder) if is_segment(n) and n.endswith(".arrow")]
    places += [(name, 0) for name in new if name not in known]
    for name, start in places:
        data = memoryview(storage.read(name))
        at = start or _first_frame(data)
        run: _Run | None = None
        while header := _whole_frame(data, at):
            if header.first != end or header.seq <= after or (before is not None and header.seq >= before):
                break
            if run is None or header.seq != run.headers[0].seq:
                if run is not None:
                    yield run
                producer = frames.producer_of(data, at, header)
                said = frames.declaration_of(data, at, header)
                run = _Run(topic, number, name, at, at, [], producer, said, new=not start and run is None)
            run.headers.append(header)
            at += header.total_bytes
            run.stop, end = at, header.end
        if run is not None:
            yield run


def _first_frame(data: memoryview) -> int:
    if len(data) < 8 or bytes(data[:4]) != b"\xff\xff\xff\xff":
        return len(data)
    return 8 + int(struct.unpack_from("<I", data, 4)[0])


def _whole_frame(data: memoryview, at: int) -> FrameHeader | None:
    try:
        if at + 8 > len(data):
            return None
        header = frames.parse_header(data, at)
        frames.check_body(header, data[at + header.head_bytes : at + header.total_bytes])
    except DamagedFrameError:
        return None
    return header


def _record(seq: int, runs: list[_Run]) -> Record:
    parts = []
    for run in runs:
        first, last = run.headers[0], run.headers[-1]
        part: Record = {
            "t": run.topic.id,
            "p": run.partition,
            "s": run.name,
            "b": [run.start, run.stop],
            "o": [first.first, last.end],
            "r": sum(h.rows for h in run.headers),
            "w": [first.w0, last.w1],
            "m": max(h.tmax for h in run.headers),
            "a": sum(h.ahead for h in run.headers),
        }
        parts.append({**part, "new": True} if run.new else part)
    record: Record = {"k": "append", "seq": seq, "at": runs[0].headers[0].at, "sync": True, "parts": parts}
    if (producer := runs[0].producer) is not None:
        record["producer"] = [producer["producer"], producer["epoch"], producer["sequence"]]
    if (said := runs[0].said) is not None:
        record["said"] = said
    return record
