"""Records of the journal: what is whole, what is damaged, and what is only the end."""

from pathlib import Path

import pytest

from headwater.core.storage import File, Storage
from headwater.log.embedded.journal.journal_file import (
    Damage,
    Head,
    Scanned,
    encode_record,
    proven,
    read_head,
    scan,
    write_head,
)
from headwater.log.embedded.journal.salvage import repair


def record(n: int) -> dict[str, object]:
    return {"k": "commit", "seq": n, "at": n, "d": [1, 0]}


@pytest.fixture
def file(tmp_path: Path) -> File:
    return Storage(tmp_path).open("journal", create=True)


def told(file: File, limit: int | None = None) -> list[object]:
    return [s.record["seq"] if isinstance(s, Scanned) else (s.start, s.end) for s in scan(file, 0, limit)]


def test_records_come_back_in_order_with_what_they_carry(file: File) -> None:
    pieces = [encode_record(record(n), b"frames" * n) for n in range(5)]
    file.write_at(0, b"".join(pieces))
    found = [s for s in scan(file, 0) if isinstance(s, Scanned)]
    assert [s.record["seq"] for s in found] == [0, 1, 2, 3, 4]
    assert [bytes(s.blob) for s in found] == [b"frames" * n for n in range(5)]
    assert [s.end for s in found] == [sum(map(len, pieces[: n + 1])) for n in range(5)]
    assert told(file, limit=found[2].end) == [0, 1, 2]


def test_a_large_record_is_read_whole(file: File) -> None:
    file.write_at(0, encode_record(record(1), bytes(3 << 20)) + encode_record(record(2)))
    assert told(file) == [1, 2]


def test_zeros_are_an_end_and_nothing_else_is(file: File) -> None:
    whole = encode_record(record(1))
    file.write_at(0, whole + bytes(100))
    assert told(file) == [1]
    file.write_at(len(whole), b"x")
    assert told(file) == [1, (len(whole), None)]


@pytest.mark.parametrize("byte", range(0, 80, 3))
def test_a_changed_byte_anywhere_is_found_and_mended(file: File, byte: int) -> None:
    pieces = [encode_record(record(n)) for n in range(3)]
    file.write_at(0, b"".join(pieces))
    at = len(pieces[0]) + byte % len(pieces[1])
    file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 0x41]))
    assert told(file) == [0, (len(pieces[0]), len(pieces[0]) + len(pieces[1])), 2]
    data = file.read_at(len(pieces[0]), len(pieces[1]))
    assert repair(file.storage, data) == record(1)


def test_more_than_a_byte_is_not_guessed(file: File) -> None:
    data = bytearray(encode_record(record(1)))
    data[30:40] = bytes(10)
    assert repair(file.storage, bytes(data)) is None


def test_later_records_prove_earlier_ones(file: File) -> None:
    def scanned(journal: int, byte: int) -> Scanned:
        return Scanned(0, 0, {"d": [journal, byte]}, memoryview(b""))

    assert proven([], 2) == 0
    assert proven([scanned(2, 80), scanned(2, 40), scanned(1, 900)], 2) == 80
    assert proven([scanned(3, 0)], 2) > 1 << 60


def test_a_head_is_read_as_written_or_not_at_all(file: File) -> None:
    assert read_head(file)[0] is None
    write_head(file, Head(3, 200, 100, "boot"))
    assert read_head(file)[0] == Head(3, 200, 100, "boot")
    file.write_at(20, b"\xff")
    assert read_head(file)[0] is None


def test_heads_are_in_the_order_of_what_they_show() -> None:
    assert Head(1, 900, 900) < Head(2, 10, 10) < Head(2, 11, 0)
    assert isinstance(Damage(0, None).end, type(None))
