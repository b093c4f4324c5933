"""The journal: a file of checksummed records that contains all commits in order.

A record is, little endian:

  4 bytes  "HWJ1"        4 bytes  payload length        8 bytes  XXH3-64 of the payload, seeded with both lengths
  4 bytes  JSON length   4 bytes  zero                  payload: JSON, then the frames of a small append; padded to 8

Files are numbered `journal/00000007.log`; the first record of each states where its predecessor ends, which voids everything
that a fenced writer wrote beyond that. `head` names the current journal and how far it is visible.

Invariants: records are written only under the lock of the newest journal. Bytes below the visible end never change. The field
`d` of every record is the position (journal, byte) up to which the log was known to be durable when the record was written. So
a record that fails its checksum is damage if `head` or the `d` of any later record is beyond it, and can be repaired (see
`salvage`); otherwise it, and everything after it, is a torn write that was never acknowledged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson
import xxhash

from headwater.core.storage import File, Storage
from headwater.log.embedded.journal.file_names import journal_number

FOLDER = "journal"
HEAD = "head"

RECORD = struct.Struct("<4sIQII")
_MAGIC = b"HWJ1"
_HEAD = struct.Struct("<4sIQQQ16s")
_HEAD_MAGIC = b"HWH1"
_CHECKSUM = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size
_CHUNK = 1 << 20

Record = dict[str, Any]


def journal_name(number: int) -> str:
    """Return the file name of journal `number`."""
    return f"{FOLDER}/{number:08d}.log"


def encode_record(record: Record, blob: bytes = b"") -> bytes:
    """Return a record as it is written to disk."""
    text = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS)
    payload = text + blob
    head = RECORD.pack(_MAGIC, len(payload), checksum_of(payload, len(text)), len(text), 0)
    return head + payload + bytes(-(len(head) + len(payload)) % 8)


def checksum_of(payload: bytes | bytearray | memoryview, text_length: int) -> int:
    """Return the checksum for a record's header."""
    return xxhash.xxh3_64_intdigest(payload, seed=(len(payload) << 32) | text_length)


@dataclass(frozen=True)
class Scanned:
    """A record with its position."""

    start: int
    end: int
    record: Record
    blob: memoryview


@dataclass(frozen=True)
class Damage:
    """Damaged bytes between records. `end` is the start of the next whole record, or None without one."""

    start: int
    end: int | None


def proven(records: Iterable[Scanned], number: int) -> int:
    """Return the byte of journal `number` up to which the journal was durable, as the `d` fields of these records state."""
    proofs = [s.record["d"] for s in records if "d" in s.record]
    return max(
        (byte if journal == number else 1 << 62 for journal, byte in proofs if journal >= number), default=0
    )


def scan(file: File, start: int, limit: int | None = None) -> Iterator[Scanned | Damage]:
    """Yield every record from `start` to `limit` (or the end of the file), in order, and the damage in between.

    Ends at the end of the file or at zeros; a Damage without `end` is always the last item.
    """
    stop = file.size() if limit is None else min(limit, file.size())
    data, base, at = b"", start, start
    while at < stop:
        if at + RECORD.size > base + len(data) or not _whole(data, at - base):
            wanted = max(_CHUNK, _claimed(data, at - base))
            data, base = file.read_at(at, min(wanted, stop - at)), at
            if _whole(data, 0) is False and _claimed(data, 0) > len(data):
                data = file.read_at(at, min(_claimed(data, 0), stop - at))
        found = _parse(data, at - base)
        if found is not None:
            record, blob, size = found
            yield Scanned(at, at + size, record, blob)
            at += size
            continue
        rest = file.read_at(at, stop - at)
        if not rest.strip(b"\0"):
            return
        following = _next_whole(rest)
        yield Damage(at, None if following is None else at + following)
        if following is None:
            return
        at += following


def claimed(file: File, at: int) -> int:
    """Return the size that the header of the record at `at` states; 0 if there is no whole header."""
    data = file.read_at(at, RECORD.size)
    return _claimed(data, 0) if len(data) == RECORD.size and data.startswith(_MAGIC) else 0


def _claimed(data: bytes, at: int) -> int:
    """Return the size that the header of the record at `at` states."""
    if at + RECORD.size > len(data):
        return RECORD.size
    _, length, _, _, _ = RECORD.unpack_from(data, at)
    total = RECORD.size + length
    return int(total + (-total % 8))


def _whole(data: bytes, at: int) -> bool:
    return at + _claimed(data, at) <= len(data) and at + RECORD.size <= len(data)


def _parse(data: bytes, at: int) -> tuple[Record, memoryview, int] | None:
    if at + RECORD.size > len(data):
        return None
    magic, length, checksum, text_length, zero = RECORD.unpack_from(data, at)
    begin, finish = at + RECORD.size, at + RECORD.size + length
    if magic != _MAGIC or zero or finish > len(data) or text_length > length:
        return None
    payload = memoryview(data)[begin:finish]
    if checksum_of(payload, text_length) != checksum or any(data[finish : at + _claimed(data, at)]):
        return None
    return orjson.loads(payload[:text_length]), payload[text_length:], _claimed(data, at)


def _next_whole(data: bytes) -> int | None:
    at = data.find(_MAGIC, 1)
    while at >= 0:
        if _parse(data, at) is not None:
            return at
        at = data.find(_MAGIC, at + 1)
    return None


@dataclass(frozen=True, order=True)
class Head:
    """Position up to which the log is visible: journal number, then byte. `boot` is the boot in which it was written."""

    journal: int
    visible: int
    durable: int
    boot: str = ""


def write_head(file: File, head: Head) -> None:
    """Publish a head; readers in other processes see it at once. Not synced: after a power loss it is only a hint."""
    boot = head.boot.encode()[:16].ljust(16, b"\0")
    body = _HEAD.pack(_HEAD_MAGIC, 0, head.journal, head.visible, head.durable, boot)
    file.write_at(0, body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body)))


def read_head(file: File, beyond: int = 0) -> tuple[Head | None, bytes]:
    """Return the published head and up to `beyond` bytes after it in the file. The head is None if it is missing or damaged."""
    for _ in range(100):  # a concurrent write may be seen half done
        data = file.read_at(0, HEAD_BYTES + beyond)
        if len(data) < HEAD_BYTES:
            break
        if (head := _head_of(data[:HEAD_BYTES])) is not None:
            return head, data[HEAD_BYTES:]
    return None, data[HEAD_BYTES:]


@lru_cache(maxsize=16)
def _head_of(data: bytes) -> Head | None:
    """Decode the bytes of a published head; None if they are damaged. Cached, because most reads return the same bytes as the
    last."""
    body = data[: _HEAD.size]
    if _CHECKSUM.unpack_from(data, _HEAD.size)[0] != xxhash.xxh3_64_intdigest(body):
        return None
    _, _, number, visible, durable, boot = _HEAD.unpack(body)
    return Head(number, visible, durable, boot.rstrip(b"\0").decode(errors="replace"))


def journals(storage: Storage) -> list[int]:
    """Return the numbers of the journal files, ascending."""
    return sorted(n for n in map(journal_number, storage.files(FOLDER)) if n is not None)


def newest_journal(storage: Storage) -> int:
    """Return the highest number of a journal file; 0 if there is none."""
    return max(journals(storage), default=0)
