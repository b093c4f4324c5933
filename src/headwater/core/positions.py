"""Where things are: partitions, offsets, ranges and receipts. All ranges are half open."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from headwater.core.errors import UsageError

Partition = NewType("Partition", int)
Offset = NewType("Offset", int)
Sequence = NewType("Sequence", int)
"""The number of a committed record of the journal: one order over the whole workspace."""

Ends = Mapping[str, Mapping[int, int]]
"""topic -> partition -> offset: one cut through the log."""

_TOKEN = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})\Z")
_TOPIC_PART = re.compile(r"^(?P<topic>[^:;]+):(?P<ranges>.*)$")
_RANGE = re.compile(r"^([0-9]{1,9})@([0-9]{1,18})-([0-9]{1,18})\Z")


def new_id() -> str:
    """A random id of a tick or a commit: 16 hexadecimal digits."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Token:
    """A tick or a commit that is named so that it cannot be taken for another: its number, and the random id that it was
    given when it was made. An older copy of a workspace that is put back gives numbers once more, and other ids. `id` is
    '' where only the number is known: of what was made before there were ids, or where nobody has kept the id."""

    number: int
    id: str = ""

    def __str__(self) -> str:
        """The text form: `41-5f0c6c1b9e2d4a7b`, or `41` without an id."""
        return f"{self.number}-{self.id}" if self.id else str(self.number)

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """The token that `text` is the text form of; None if it is none."""
        if (found := _TOKEN.match(text)) is not None:
            return cls(int(found[1]), found[2])
        return cls(int(text)) if text.isascii() and text.isdigit() and len(text) <= 18 else None

    def differs(self, id: str | None) -> bool:
        """Whether what has this number now, under `id`, is another tick or commit. Where the token has no id, or it is not known
        (None) what has the number, the number is all there is to go by."""
        return bool(self.id) and id is not None and self.id != id


def split_token(text: str) -> tuple[str, Token | None]:
    """What stands before the tilde in a text, and the token behind it; None if there is none."""
    before, tilde, after = text.rpartition("~")
    token = Token.parse(after) if tilde else None
    return (before, token) if token is not None and token.id else (text, None)


@dataclass(frozen=True, eq=True)
class Receipt:
    """Proof of an append: `positions` is {topic: {partition: (first, end)}}. Compared by value, which `commit` is no part of.

    `commit` names the commit that made it, so that the receipt is not taken for that of another append at the same positions,
    in an older copy of the workspace that was put back. None where it is not known.
    """

    positions: Mapping[str, Mapping[int, tuple[int, int]]]
    commit: Token | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash(self._places())

    def __str__(self) -> str:
        """The text form, for HTTP and logs: `clicks:0@17-20,1@4-5;orders:0@9-10~1043-5f0c6c1b9e2d4a7b`. What is behind the
        tilde is the commit, and may be missing."""
        return self._places() if self.commit is None else f"{self._places()}~{self.commit}"

    def _places(self) -> str:
        return ";".join(
            f"{topic}:" + ",".join(f"{p}@{first}-{end}" for p, (first, end) in sorted(parts.items()))
            for topic, parts in sorted(self.positions.items())
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """The receipt that `text` is the text form of."""
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        places, commit = split_token(text.strip())
        for piece in filter(None, places.split(";")):
            head = _TOPIC_PART.match(piece)
            ranges = [_RANGE.match(r) for r in head["ranges"].split(",") if r] if head else [None]
            if not head or not all(ranges):
                raise UsageError(
                    f"{text!r} is not a receipt", hint="pass the text of a receipt, such as 'clicks:0@17-20'"
                )
            positions[head["topic"]] = {int(r[1]): (int(r[2]), int(r[3])) for r in ranges if r}
        return cls(positions, commit)

    @property
    def rows(self) -> int:
        """How many records the append wrote."""
        return sum(end - first for parts in self.positions.values() for first, end in parts.values())
