"""The Redis protocol on Arrow columns: many commands from columns, and many replies into columns.

A command is an array of bulk strings (`*2`, `$4`, `TYPE`, `$3`, `abc`, a line each). The bytes of a thousand commands are
the bytes of one Arrow column, joined from its parts. A reply is parsed into *tokens*, one for each line, where a bulk string
is one token (None if it is nil): replies of one shape have the same number of tokens each. This module does not interpret
commands or replies.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import Indices, Mask

BYTES = pa.binary()
_RECEIVED_BYTES = 1 << 20

Piece: TypeAlias = bytes | pa.Array
"""A part of a command: the same bytes for all rows, or a column with the bytes for each row."""


class Wire:
    """A connection made by redis-py, which does the greeting, passwords and TLS. Bulk commands and their replies bypass its
    parser, which handles replies one by one."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def ask(self, *words: bytes) -> Any:
        """Return the reply to one command."""
        self._connection.send_packed_command([command(*words)])
        return self._connection.read_response()

    def send(self, *pieces: bytes | pa.Buffer) -> None:
        """Send commands without reading their replies."""
        self._connection.send_packed_command([b"".join(map(memoryview, pieces))])

    def lines(self, count: int, begun: bytes = b"") -> bytes:
        """Receive replies until there are `count` lines, `begun` included, for commands that are answered by one line each."""
        parts = [begun]
        left = count - begun.count(b"\n")
        while left > 0:
            parts.append(self._receive())
            left -= parts[-1].count(b"\n")
        return b"".join(parts)

    def replies(self, *pieces: bytes | pa.Buffer) -> bytes:
        """Send commands and return all their replies."""
        mark = os.urandom(8).hex().encode()
        end = b"$16\r\n" + mark + b"\r\n"
        self.send(*pieces, command(b"ECHO", mark))
        parts, tail = [], b""
        while not tail.endswith(end):
            parts.append(self._receive())
            tail = (tail + parts[-1])[-len(end) :]
        return b"".join(parts)[: -len(end)]

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def _receive(self) -> bytes:
        # The parser reads no further than the reply it was asked for, so its buffer is empty.
        data: bytes = self._connection._sock.recv(_RECEIVED_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection")
        return data


def command(*words: bytes) -> bytes:
    """Return the bytes of one command."""
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)


def commands(rows: int, *pieces: Piece) -> pa.Buffer:
    """Return one command for each row: its pieces concatenated, which are already in the wire format."""
    if not rows:
        return pa.py_buffer(b"")
    return bytes_of(pc.binary_join_element_wise(*pieces, b""))


def head(words: int, *first: bytes) -> bytes:
    """Return the start of a command of `words` words with the first ones."""
    return b"*%d\r\n" % words + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in first)


def bulk(column: pa.Array) -> pa.Array:
    """Return each value as a bulk string; NULL stays NULL."""
    sizes = pc.binary_length(column).cast(pa.string()).cast(BYTES)
    return pc.binary_join_element_wise(b"$", sizes, b"\r\n", column, b"\r\n", b"")


def bytes_of(column: pa.Array) -> pa.Buffer:
    """Return all bytes of a column without NULLs, concatenated."""
    offsets, data = column.buffers()[1:]
    if data is None or not len(column):
        return pa.py_buffer(b"")
    bounds = np.frombuffer(offsets, dtype=np.int32)[column.offset : column.offset + len(column) + 1]
    return data.slice(int(bounds[0]), int(bounds[-1] - bounds[0]))


def tokens(data: bytes) -> pa.Array:
    """Return the tokens of replies, as binaries."""
    found = _vectorised(data)
    return found if found is not None else pa.array(_one_by_one(data), BYTES)


def table(found: pa.Array, width: int) -> list[pa.Array]:
    """Return the tokens of replies with `width` tokens each, as columns."""
    places = np.arange(0, len(found), width)
    return [found.take(pa.array(places + at)) for at in range(width)]


def _vectorised(data: bytes) -> pa.Array | None:
    """Return the tokens if every value is one line; None if a value may contain a line end, or looks like a length line."""
    raw = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero((raw[:-1] == 13) & (raw[1:] == 10)) if len(raw) > 1 else np.zeros(0, dtype=np.int64)
    if not len(ends):
        return None if len(raw) else pa.array([], BYTES)
    starts = np.concatenate([[0], ends[:-1] + 2])
    lengths = ends - starts
    heads = (raw[starts] == ord("$")) & (lengths > 1)
    nulls = heads & (lengths == 3)
    nulls[nulls] = (raw[starts[nulls] + 1] == ord("-")) & (raw[starts[nulls] + 2] == ord("1"))
    full = np.flatnonzero(heads & ~nulls)
    if len(full) and (full[-1] + 1 >= len(ends) or heads[full + 1].any()):
        return None
    said = _numbers(raw, starts[full] + 1, lengths[full] - 1)
    if said is None or not np.array_equal(said, lengths[full + 1]):
        return None
    is_token = np.ones(len(ends), dtype=np.bool_)
    is_token[full + 1] = False
    starts[full], lengths[full] = starts[full + 1], lengths[full + 1]
    lengths[nulls] = 0
    starts, lengths, nulls = starts[is_token], lengths[is_token], nulls[is_token]
    bounds = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    values = raw[_within(starts, lengths, len(raw))]
    validity = pa.array(~nulls).buffers()[1]
    return pa.Array.from_buffers(BYTES, len(starts), [validity, pa.py_buffer(bounds), pa.py_buffer(values)])


def _within(starts: Indices, lengths: Indices, size: int) -> Mask:
    """Return a mask of the bytes within ascending ranges that do not touch."""
    filled = lengths > 0
    steps = np.zeros(size + 1, dtype=np.int8)
    steps[starts[filled]] = 1
    steps[starts[filled] + lengths[filled]] = -1
    return np.cumsum(steps[:-1], dtype=np.int8).view(np.bool_)


def _numbers(raw: npt.NDArray[np.uint8], starts: Indices, lengths: Indices) -> Indices | None:
    """Return numbers from their digits; None if a byte is not a digit."""
    numbers = np.zeros(len(starts), dtype=np.int64)
    for at in range(int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > at)
        digits = raw[starts[longer] + at].astype(np.int64) - ord("0")
        if ((digits < 0) | (digits > 9)).any():
            return None
        numbers[longer] = numbers[longer] * 10 + digits
    return numbers


def _one_by_one(data: bytes) -> Sequence[bytes | None]:
    found: list[bytes | None] = []
    at = 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        line = data[at:end]
        at = end + 2
        if not line.startswith(b"$"):
            found.append(line)
        elif line == b"$-1":
            found.append(None)
        else:
            size = int(line[1:])
            found.append(data[at : at + size])
            at += size + 2
    return found
