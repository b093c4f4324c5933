"""A frame: one record batch of the active segment, as an Arrow IPC message with its own header and checksums.

An active segment is a plain Arrow IPC stream (schema message, then record batch messages, no end marker). Each record batch
message carries custom metadata: `headwater`, a JSON object of fixed width, `producer` if the append names one, and `said` on a
punctuation with a further declaration (see `punctuation`). The width is fixed because rows are encoded before their offsets are
known and stamped afterwards, without touching the body.

  {"hw":1,"kind":"rows","first":..,"span":..,"rows":..,"seq":..,"at":..,"w0":..,"w1":..,"tmax":..,"ahead":..,
   "body":..,"parts":..,"bsum":"................","hsum":"................"}

first   offset of the first record            span   offsets taken (rows, or 1 for a punctuation)
seq     number of the commit                  at     append time, microseconds since 1970 UTC
w0, w1  watermark before and after            tmax   highest event time in it
body    bytes of the body                     ahead  rows that max_ahead kept from raising the watermark
parts   partitions that the commit touches
bsum    XXH3-64 of the body                   hsum   XXH3-64 of the header, with hsum as zeros

Invariant: a frame whose two checksums match was written completely. This module does not access the disk.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import xxhash

from headwater.core.storage import Bytes
from headwater.log.watermarks import NONE, latest_of

_MARK = b'{"hw":1,'
_WIDTH = 20
_NUMBERS = ("first", "span", "rows", "seq", "at", "w0", "w1", "tmax", "ahead", "body", "parts")
_ZEROS = b"0" * 16
_OPTIONS = pa.ipc.IpcWriteOptions()
CONTINUATION = b"\xff\xff\xff\xff"
_TEMPLATE = (
    '{"hw":1,"kind":"%s",'
    + ",".join(f'"{name}":{" " * (_WIDTH - 1)}0' for name in _NUMBERS)
    + ',"bsum":"0000000000000000","hsum":"0000000000000000"}'
)
_HEADER_BYTES = len(_TEMPLATE) - 2 + len("rows")
_AT = {name: (_TEMPLATE % "rows").index(f'"{name}":') + len(name) + 3 for name in _NUMBERS}
_BSUM_AT = _HEADER_BYTES - len('0000000000000000","hsum":"0000000000000000"}')
_HSUM_AT = _HEADER_BYTES - len('0000000000000000"}')
HEAD_BYTES_MAX = 1 << 20
"""Maximum length of a header; a greater length is damage."""
_COPY_BYTES_MAX = 256 << 10
"""Body size below which copying a frame into one piece is cheaper than two writes."""


@dataclass(frozen=True)
class FrameHeader:
    """Decoded header of a frame."""

    kind: str
    first: int
    span: int
    rows: int
    seq: int
    at: int
    w0: int
    w1: int
    tmax: int
    ahead: int
    body: int
    parts: int
    bsum: str
    head_bytes: int

    @property
    def end(self) -> int:
        """The offset after the frame."""
        return self.first + self.span

    @property
    def total_bytes(self) -> int:
        """Size of header and body."""
        return self.head_bytes + self.body


class DamagedFrameError(Exception):
    """Bytes that are not a whole frame; `header` is set if the header is intact."""

    def __init__(self, what: str, header: FrameHeader | None = None) -> None:
        super().__init__(what)
        self.header = header


def _digest(data: bytearray | memoryview) -> bytes:
    return xxhash.xxh3_64_hexdigest(data).encode()


@dataclass
class Frame:
    """An encoded frame that is not stamped yet."""

    head: bytearray
    body: memoryview
    body_bytes: int
    rows: int
    span: int
    mark: int
    times: npt.NDArray[np.int64] | None = None
    """Event times of the rows, for the watermark; None on topics without event time."""
    punctuation: int | None = None
    """The time to which a punctuation raises the watermark."""

    @cached_property
    def latest(self) -> int:
        """The highest event time of the frame's rows."""
        return latest_of(self.times) if self.times is not None else NONE

    @property
    def total_bytes(self) -> int:
        """Size of header and body."""
        return len(self.head) + self.body_bytes

    def stamp(self, **numbers: int) -> None:
        """Write offsets, times and watermarks into the header, and update its checksum."""
        body = self.body_bytes
        stamp(self.head, self.mark, span=self.span, rows=self.rows, body=body, tmax=self.latest, **numbers)

    def to_bytes(self) -> bytes:
        """Return the frame as it is written to disk."""
        return b"".join((self.head, self.body))

    def pieces(self) -> tuple[Bytes, ...]:
        """Return the frame as pieces to be written one after the other; large frames are not copied."""
        return (self.to_bytes(),) if self.body_bytes < _COPY_BYTES_MAX else (self.head, self.body)


def stamp(head: bytearray, mark: int, **numbers: int) -> None:
    """Write numbers into an encoded header in place, and update its checksum."""
    for name, value in numbers.items():
        at = mark + _AT[name]
        head[at : at + _WIDTH] = b"%20d" % value
    at = mark + _HSUM_AT
    head[at : at + 16] = _ZEROS
    head[at : at + 16] = _digest(head)


@lru_cache(maxsize=256)
def segment_prefix(schema: pa.Schema) -> bytes:
    """Return the first bytes of a segment file: the schema message."""
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, schema, options=_OPTIONS).close()
    return bytes(sink.getvalue())[:-8]


@lru_cache(maxsize=256)
def prefix_checksum(schema: pa.Schema) -> str:
    """Return the checksum of the schema message, as stored in the journal."""
    return xxhash.xxh3_64_hexdigest(segment_prefix(schema))


def is_prefix(data: bytes, checksum: str | None) -> bool:
    """Whether these bytes are the first bytes of a segment file; without a checksum, whether they are a valid schema
    message."""
    if checksum is not None:
        return xxhash.xxh3_64_hexdigest(data) == checksum
    try:
        return segment_prefix(pa.ipc.read_schema(pa.py_buffer(data))) == data
    except (pa.ArrowException, OSError, ValueError):
        return False


def encode(
    batch: pa.RecordBatch,
    *,
    producer: dict[str, Any] | None = None,
    punctuation: bool = False,
    said: dict[str, Any] | None = None,
) -> Frame:
    """Encode a batch as an unstamped frame. A punctuation is a frame without rows that takes one offset."""
    text = _TEMPLATE % ("rows" if not punctuation else "mark")
    metadata = {"headwater": text}
    if producer is not None:
        metadata["producer"] = orjson.dumps(producer).decode()
    if said is not None:
        metadata["said"] = orjson.dumps(said).decode()
    sink = pa.BufferOutputStream()
    writer = pa.ipc.new_stream(sink, batch.schema, options=_OPTIONS)
    writer.write_batch(batch, custom_metadata=metadata)
    whole = memoryview(sink.getvalue())[len(segment_prefix(batch.schema)) :]
    head_bytes = 8 + struct.unpack_from("<i", whole, 4)[0]
    head, body = bytearray(whole[:head_bytes]), whole[head_bytes:]
    mark = head.index(_MARK)
    at = mark + _BSUM_AT
    head[at : at + 16] = _digest(body)
    span = 1 if punctuation else batch.num_rows
    return Frame(head, body, len(body), rows=batch.num_rows, span=span, mark=mark)


def parse_header(data: memoryview, at: int = 0) -> FrameHeader:
    """Return the header of the frame that starts at `at`. DamagedFrameError if it is cut off or its checksum fails."""
    if bytes(data[at : at + 4]) != CONTINUATION:
        raise DamagedFrameError("no frame starts here")
    (length,) = struct.unpack_from("<i", data, at + 4)
    if not 0 < length <= HEAD_BYTES_MAX or at + 8 + length > len(data):
        raise DamagedFrameError("the frame's header is cut off")
    head = bytearray(data[at : at + 8 + length])
    mark = head.find(_MARK)
    if mark < 0 or mark + _HEADER_BYTES > len(head):
        raise DamagedFrameError("the frame has no description")
    raw = bytes(head[mark : mark + _HEADER_BYTES])
    crc_at = mark + _HSUM_AT
    expected = bytes(head[crc_at : crc_at + 16])
    head[crc_at : crc_at + 16] = _ZEROS
    if _digest(head) != expected:
        raise DamagedFrameError("the checksum of the frame's header does not match")
    fields = orjson.loads(raw)
    del fields["hw"], fields["hsum"]
    return FrameHeader(**fields, head_bytes=len(head))


def header_length(data: memoryview, at: int = 0) -> int:
    """Return the stated size of the header at `at` in bytes, unchecked; 0 if there is none."""
    if len(data) < at + 8 or bytes(data[at : at + 4]) != CONTINUATION:
        return 0
    (length,) = struct.unpack_from("<i", data, at + 4)
    return 8 + length if 0 < length <= HEAD_BYTES_MAX else 0


def check_body(header: FrameHeader, body: memoryview) -> None:
    """Raise DamagedFrameError unless the body is whole."""
    if len(body) != header.body:
        raise DamagedFrameError("the frame's body is cut off", header)
    if _digest(body).decode() != header.bsum:
        raise DamagedFrameError("the checksum of the frame's body does not match", header)


def decode(data: memoryview, at: int, header: FrameHeader, schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of a checked frame, without a copy."""
    message = pa.py_buffer(data[at : at + header.total_bytes])
    return pa.ipc.read_record_batch(message, schema)


def producer_of(data: memoryview, at: int, header: FrameHeader) -> dict[str, Any] | None:
    """Return the producer that a frame names, if any."""
    return _metadata(data, at, header, b'{"producer":')


def declaration_of(data: memoryview, at: int, header: FrameHeader) -> dict[str, Any] | None:
    """Return the further declaration of a punctuation, if any."""
    return _metadata(data, at, header, b'{"what":')


def _metadata(data: memoryview, at: int, header: FrameHeader, begins: bytes) -> dict[str, Any] | None:
    head = bytes(data[at : at + header.head_bytes])
    at_key = head.find(begins)
    if at_key < 0:
        return None
    found: dict[str, Any] = json.JSONDecoder().raw_decode(head[at_key:].decode(errors="replace"))[0]
    return found
