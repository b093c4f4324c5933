"""Content of a file: the bytes of a plain or compressed file, and the fingerprints by which content is recognized again."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import IO, cast

HEAD_BYTES = 1024
"""Number of leading bytes whose hash distinguishes a file from another file with a reused inode number."""
CHUNK_BYTES = 1 << 20
UNREADABLE = (EOFError, gzip.BadGzipFile, zlib.error)
"""Exceptions raised on reading an incomplete compressed file."""

_ROTATED = re.compile(r"(\.gz|[.\-_]\d[\d\-_.T:]*|\.(old|bak|prev|orig))+$", re.IGNORECASE)


@contextmanager
def open_content(
    path: str, number: tuple[int, int] | None = None, open_descriptor: int | None = None
) -> Iterator[IO[bytes]]:
    """Open the content of a file, decompressed if its name ends in .gz. `open_descriptor` is an open descriptor of a file whose name is
    gone.

    FileNotFoundError if the path now belongs to a file with another `number`.
    """
    with (
        os.fdopen(os.dup(open_descriptor), "rb", 0)
        if open_descriptor is not None
        else open(path, "rb", buffering=0) as raw
    ):
        status = os.fstat(raw.fileno())
        if number not in (None, (status.st_dev, status.st_ino)):
            raise FileNotFoundError(errno.ENOENT, "it was renamed", path)
        if is_compressed(path):
            with gzip.GzipFile(fileobj=raw) as content:
                yield cast(IO[bytes], content)
        else:
            yield raw


def is_compressed(path: str) -> bool:
    """Whether the name of a file ends in .gz."""
    return path.lower().endswith(".gz")


def is_whole_gzip(path: str) -> bool:
    """Whether a compressed file can be read to its end."""
    try:
        with gzip.open(path, "rb") as content:
            while content.read(CHUNK_BYTES):
                pass
    except UNREADABLE:
        return False
    return True


def is_whole_parquet(path: str) -> bool:
    """Whether a file ends with the magic bytes of Parquet."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size < 12:
            return False
        file.seek(size - 4)
        return file.read(4) == b"PAR1"


def read_exactly(content: IO[bytes], size: int) -> bytes:
    """Return `size` bytes, or fewer at the end of the content."""
    parts = []
    while size > 0 and (part := content.read(min(size, CHUNK_BYTES * 8))):
        parts.append(part)
        size -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def head_of(content: IO[bytes], taken: int) -> str:
    """Return the fingerprint of the beginning of the first `taken` bytes of a content."""
    content.seek(0)
    return hashed(read_exactly(content, min(taken, HEAD_BYTES)))


def hashed(head: bytes) -> str:
    """Return the fingerprint of some bytes."""
    return hashlib.blake2b(head, digest_size=8).hexdigest()


def crc_of(content: IO[bytes], begin: int, size: int, crc: int = 0) -> int | None:
    """Return the CRC of a range of a content, continuing `crc`; None if the content is too short."""
    content.seek(begin)
    while size > 0:
        part = content.read(min(size, CHUNK_BYTES))
        if not part:
            return None
        crc, size = zlib.crc32(part, crc), size - len(part)
    return crc


def is_same_so_far(content: IO[bytes], other: IO[bytes]) -> bool:
    """Whether two contents are equal up to the end of the shorter one."""
    content.seek(0)
    other.seek(0)
    while True:
        parts = read_exactly(content, CHUNK_BYTES), read_exactly(other, CHUNK_BYTES)
        length = min(map(len, parts))
        if parts[0][:length] != parts[1][:length]:
            return False
        if length < CHUNK_BYTES:
            return True


@lru_cache(65_536)
def stem_of(path: str) -> str:
    """Return the name that a file shares with its rotated versions: access.log, access.log.1, access.log-20260101.gz."""
    return _ROTATED.sub("", os.path.basename(path))
