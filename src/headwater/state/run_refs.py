"""A reference to one run on disk: everything that a manifest says of it. The bytes themselves are in `segments`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

Json = bytes


@dataclass(frozen=True)
class RunRef:
    """Where a run lies and what it holds.

    `file` is within `state/runs`; the Arrow stream takes `length` bytes from `offset`. Its hashes are in [low, high),
    with `high` up to 2**64. `ticks` are the first and the last tick (both included) whose changes are in it.
    `checksum` is the XXH3-64 of the stream; `bytes` is what its columns take in memory.

    Small runs of the same columns may share a stream: a run is then its rows from `first` on, of `shared` rows in all.
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
    """0 if the stream is its own."""

    @property
    def size(self) -> int:
        """Bytes of its stream, or its share in one."""
        return self.length * self.rows // self.shared if self.shared else self.length

    @property
    def end(self) -> int:
        """The byte of the file after its last."""
        return self.offset + self.length

    @cached_property
    def json(self) -> Json:
        """Its text in a manifest, made once: unchanged runs cost next to nothing in the manifests that follow."""
        # The last hash in place of the bound, which may be 2**64 and then is no 64-bit number.
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
        """The reference that a row of a manifest is."""
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
        """The reference with these fields, all of them: there are thousands, and the constructor of a frozen class takes four
        times as long."""
        made = cls.__new__(cls)
        made.__dict__.update(fields)
        return made
