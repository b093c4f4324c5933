"""Where things are: partitions, offsets, ranges and receipts. All ranges are half open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NewType

from headwater.errors import UsageError

Partition = NewType("Partition", int)
Offset = NewType("Offset", int)
Sequence = NewType("Sequence", int)
"""The number of a committed record of the journal: one order over the whole workspace."""

Ends = Mapping[str, Mapping[int, int]]
"""topic -> partition -> offset: one cut through the log."""

_TOPIC_PART = re.compile(r"^(?P<topic>[^:;]+):(?P<ranges>.*)$")
_RANGE = re.compile(r"^(\d+)@(\d+)-(\d+)$")


@dataclass(frozen=True, eq=True)
class Receipt:
    """Proof of an append: `positions` is {topic: {partition: (first, end)}}. Compared by value."""

    positions: Mapping[str, Mapping[int, tuple[int, int]]]

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        """The text form, for HTTP and logs: `clicks:0@17-20,1@4-5;orders:0@9-10`."""
        return ";".join(
            f"{topic}:" + ",".join(f"{p}@{first}-{end}" for p, (first, end) in sorted(parts.items()))
            for topic, parts in sorted(self.positions.items())
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """The receipt that `text` is the text form of."""
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        for piece in filter(None, text.strip().split(";")):
            head = _TOPIC_PART.match(piece)
            ranges = [_RANGE.match(r) for r in head["ranges"].split(",") if r] if head else [None]
            if not head or not all(ranges):
                raise UsageError(
                    f"{text!r} is not a receipt", hint="pass the text of a receipt, such as 'clicks:0@17-20'"
                )
            positions[head["topic"]] = {int(r[1]): (int(r[2]), int(r[3])) for r in ranges if r}
        return cls(positions)

    @property
    def rows(self) -> int:
        """How many records the append wrote."""
        return sum(end - first for parts in self.positions.values() for first, end in parts.values())
