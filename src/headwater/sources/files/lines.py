"""Splits the content of a file into complete lines or CSV records: blocks of bytes with the offsets of the lines in them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt

from headwater.core.errors import BadRowError
from headwater.sources.files.contents import read_exactly

BLOCK_BYTES = 16 << 20
LINE_BYTES_MAX = 256 << 20
NEWLINE, QUOTE = 10, 34
_WHITE = np.zeros(256, np.bool_)
_WHITE[[9, 10, 13, 32]] = True


@dataclass(frozen=True)
class Block:
    """Consecutive lines of a file."""

    data: bytes
    begin: int
    """Offset of the first byte of the block in the content."""
    starts: npt.NDArray[np.int64]
    """Offset of each line in `data`, and the end of the last line."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def part(self, begin: int, end: int) -> Block:
        """Return the lines from `begin` to `end` as a block."""
        first = int(self.starts[begin])
        data = self.data[first : int(self.starts[end])]
        return Block(data, self.begin + first, self.starts[begin : end + 1] - first)

    @property
    def longest(self) -> int:
        """Length of the longest line in bytes."""
        return int(np.diff(self.starts).max()) if len(self) else 0

    @property
    def text(self) -> str:
        """The block as text, without the line end of the last line."""
        return self.data.decode(errors="replace").rstrip("\r\n")

    def enclosed(self, first: bytes, last: bytes) -> npt.NDArray[np.bool_]:
        """Return the mask of the lines that begin with `first` and end with `last`, ignoring white space around."""
        raw = np.frombuffer(self.data, np.uint8)
        begins, ends = self.starts[:-1], self.starts[1:] - 1
        for white in b"\n\r":
            ends = ends - ((raw[ends] == white) & (ends > begins))
        fits: npt.NDArray[np.bool_] = (raw[begins] == first[0]) & (raw[ends] == last[0])
        for at in np.flatnonzero(~fits):
            line = self.data[self.starts[at] : self.starts[at + 1]].strip()
            fits[at] = line.startswith(first) and line.endswith(last)
        return fits

    def blank(self) -> npt.NDArray[np.bool_]:
        """Return the mask of the lines that have only white space."""
        raw = np.frombuffer(self.data, np.uint8)
        blank = _WHITE[raw[self.starts[:-1]]] if len(self) else np.zeros(0, np.bool_)
        for at in np.flatnonzero(blank):
            blank[at] = not self.data[self.starts[at] : self.starts[at + 1]].strip()
        return blank


def split(data: bytes, begin: int, *, quoted: bool = False) -> Block:
    """Split bytes into complete lines; an incomplete last line is left out. `quoted`: line ends within quotes do not count."""
    raw = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(raw == NEWLINE) + 1
    if quoted and QUOTE in data:
        quotes = np.flatnonzero(raw == QUOTE)
        ends = ends[np.searchsorted(quotes, ends) % 2 == 0]
    starts = np.concatenate([np.zeros(1, np.int64), ends.astype(np.int64)])
    return Block(data[: int(starts[-1])], begin, starts)


def read_blocks(
    content: IO[bytes], offset: int, path: str, *, quoted: bool = False, block_bytes: int = BLOCK_BYTES
) -> Iterator[Block | bytes]:
    """Yield the complete lines of a content from an offset on, in blocks; finally the rest without a line end, as bytes."""
    content.seek(offset)
    rest, wanted = b"", block_bytes
    while True:
        data = read_exactly(content, wanted - len(rest))
        if not data:
            yield rest
            return
        data = rest + data
        block = split(data, offset, quoted=quoted)
        if len(block):
            yield block
            offset += len(block.data)
            rest, wanted = data[len(block.data) :], block_bytes
        else:
            rest, wanted = data, wanted if len(data) < wanted else wanted * 2
        if len(rest) > LINE_BYTES_MAX:
            raise BadRowError(
                f"the line at byte {offset} of {path} is longer than {LINE_BYTES_MAX >> 20} MiB",
                hint="check that format is right and that all quotes are closed",
                file=str(path),
                byte=offset,
            )


def last_line(rest: bytes, begin: int) -> Block:
    """Return bytes without a line end as one line."""
    return Block(rest, begin, np.array([0, len(rest)], np.int64))
