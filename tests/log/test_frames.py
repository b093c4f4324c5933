"""Frames describe and check themselves, and a segment is a plain Arrow stream."""

import pyarrow as pa
import pytest

from headwater.log.embedded.journal import frames
from headwater.log.embedded.journal.frames import DamagedFrameError

BATCH = pa.RecordBatch.from_pylist([{"n": 1, "text": "a"}, {"n": 2, "text": None}])


def stamped(**more: int) -> bytes:
    frame = frames.encode(BATCH, producer={"producer": 'a "quoted} name', "epoch": 1, "sequence": 7})
    frame.stamp(first=10, seq=4, at=99, w0=-5, w1=6, ahead=0, parts=2, **more)
    return frame.to_bytes()


def check(data: bytes | bytearray) -> None:
    header = frames.parse_header(memoryview(data))
    frames.check_body(header, memoryview(data)[header.head_bytes :])


def test_a_frame_says_what_it_is() -> None:
    data = memoryview(stamped())
    header = frames.parse_header(data)
    assert (header.first, header.end, header.rows, header.seq, header.at) == (10, 12, 2, 4, 99)
    assert (header.w0, header.w1, header.parts, header.total_bytes) == (-5, 6, 2, len(data))
    frames.check_body(header, data[header.head_bytes :])
    assert frames.decode(data, 0, header, BATCH.schema).equals(BATCH)
    assert frames.producer_of(data, 0, header) == {"producer": 'a "quoted} name', "epoch": 1, "sequence": 7}


def test_a_segment_is_an_arrow_stream() -> None:
    data = frames.segment_prefix(BATCH.schema) + stamped() + stamped()
    assert pa.ipc.open_stream(pa.py_buffer(data)).read_all().num_rows == 4


def test_a_punctuation_takes_an_offset_and_has_no_rows() -> None:
    frame = frames.encode(BATCH.slice(0, 0), punctuation=True)
    frame.punctuation = 50
    frame.stamp(first=3, seq=1, at=1, w0=0, w1=50, ahead=0, parts=1)
    header = frames.parse_header(memoryview(frame.to_bytes()))
    assert (header.kind, header.first, header.end, header.rows) == ("mark", 3, 4, 0)


def test_every_changed_byte_is_found() -> None:
    whole = stamped()
    for byte in range(len(whole)):
        data = bytearray(whole)
        data[byte] ^= 0x20
        with pytest.raises(DamagedFrameError):
            check(data)


def test_every_cut_is_found() -> None:
    whole = stamped()
    for size in range(8, len(whole)):
        with pytest.raises(DamagedFrameError):
            check(whole[:size])


def test_a_prefix_is_known_by_its_checksum() -> None:
    prefix = frames.segment_prefix(BATCH.schema)
    assert frames.is_prefix(prefix, frames.prefix_checksum(BATCH.schema))
    assert frames.is_prefix(prefix, None)
    for byte in range(len(prefix)):
        data = bytearray(prefix)
        data[byte] ^= 0x20
        assert not frames.is_prefix(bytes(data), frames.prefix_checksum(BATCH.schema))
