"""A reference to a run on disk: everything that a manifest records of the run. The file format is in `run_files`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

Json = bytes


@dataclass(frozen=True)
class RunRef:
    """The location of a run and a summary of its contents.

    `file` is within `state/runs`; the Arrow stream takes `length` bytes from `offset`. The run's hashes are in [low,
    high), with `high` up to 2**64. `ticks` are the first and the last tick (both inclusive) whose changes are in the
    run. `checksum` is the XXH3-64 of the stream; `bytes` is the size of its columns in memory.

    Small runs with the same columns may share a stream: the run then has the stream's rows from `first` on, and
    `shared` is the total number of rows of the stream.
    """

    file: str
    offset: int
    length: int
    rows: int
    low: int
    high: int
    ticks: tuple[int, int]
    checksum: str
    bytes: int
    first: int = 0
    shared: int = 0
    """Total number of rows in the stream; 0 if the run has a stream of its own."""

    @property
    def size(self) -> int:
        """Size of the stream in bytes, or the run's share of it."""
        return self.length * self.rows // self.shared if self.shared else self.length

    @property
    def end(self) -> int:
        """Offset of the end of the stream in the file."""
        return self.offset + self.length

    @cached_property
    def json(self) -> Json:
        """JSON text in a manifest, computed once: unchanged runs cost almost nothing in later manifests."""
        # The last hash instead of the bound, which may be 2**64 and would then exceed 64 bits.
        return orjson.dumps(
            (
                self.file,
                self.offset,
                self.length,
                self.rows,
                self.low,
                self.high - 1,
                *self.ticks,
                self.checksum,
                self.bytes,
                *((self.first, self.shared) if self.shared else ()),
            )
        )

    @classmethod
    def from_json(cls, row: Sequence[Any]) -> RunRef:
        """Parse a reference from a row of a manifest."""
        file, offset, length, rows, low, last, first_tick, last_tick, checksum, size, *part = row
        first, shared = part or (0, 0)
        return cls.quickly(
            file=file,
            offset=offset,
            length=length,
            rows=rows,
            low=low,
            high=last + 1,
            ticks=(first_tick, last_tick),
            checksum=checksum,
            bytes=size,
            first=first,
            shared=shared,
        )

    @classmethod
    def quickly(cls, **fields: Any) -> RunRef:
        """Create a reference from all of its fields; there are thousands, and the constructor of a frozen dataclass
        takes four times as long."""
        made = cls.__new__(cls)
        made.__dict__.update(fields)
        return made
