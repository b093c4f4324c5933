"""Positions in the log: partitions, offsets, ranges and receipts. All ranges are half open."""

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
"""Number of a committed record of the journal: one order over the whole workspace."""

Ends = Mapping[str, Mapping[int, int]]
"""topic -> partition -> offset: one cut through the log."""

_TOKEN = re.compile(r"([0-9]{1,18})-([0-9a-f]{16})\Z")
_TOPIC_PART = re.compile(r"^(?P<topic>[^:;]+):(?P<ranges>.*)$")
_RANGE = re.compile(r"^([0-9]{1,9})@([0-9]{1,18})-([0-9]{1,18})\Z")


def new_id() -> str:
    """Return a random id of a tick or a commit: 16 hexadecimal digits."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Token:
    """The identity of a tick or a commit: its number, and the random id that it was given when it was made.

    A restored older copy of a workspace assigns its next numbers again, but with other ids. `id` is '' if only the number is
    known: the tick or commit is from before ids were introduced, or its id was not kept.
    """

    number: int
    id: str = ""

    def __str__(self) -> str:
        """Return the text form: `41-5f0c6c1b9e2d4a7b`, or `41` without an id."""
        return f"{self.number}-{self.id}" if self.id else str(self.number)

    @classmethod
    def parse(cls, text: str) -> Token | None:
        """Return the token with the text form `text`; None if the text is not a token."""
        if (found := _TOKEN.match(text)) is not None:
            return cls(int(found[1]), found[2])
        return cls(int(text)) if text.isascii() and text.isdigit() and len(text) <= 18 else None

    def differs(self, id: str | None) -> bool:
        """Whether the tick or commit that has this number now, with the id `id`, is another one. False if the token has no id,
        or `id` is None because it is not known: then only the number can be compared."""
        return bool(self.id) and id is not None and self.id != id


def split_token(text: str) -> tuple[str, Token | None]:
    """Return the text before the last tilde and the token after it; the whole text and None if there is no token with an id."""
    before, tilde, after = text.rpartition("~")
    token = Token.parse(after) if tilde else None
    return (before, token) if token is not None and token.id else (text, None)


@dataclass(frozen=True, eq=True)
class Receipt:
    """Proof of an append: `positions` is {topic: {partition: (first, end)}}. Compared by value, without `commit`.

    `commit` names the commit of the append, so that the receipt is not mistaken for one of another append at the same positions
    in a restored older copy of the workspace. None if it is not known.
    """

    positions: Mapping[str, Mapping[int, tuple[int, int]]]
    commit: Token | None = field(default=None, compare=False)

    def __hash__(self) -> int:
        return hash(self._places())

    def __str__(self) -> str:
        """Return the text form, for HTTP and logs: `clicks:0@17-20,1@4-5;orders:0@9-10~1043-5f0c6c1b9e2d4a7b`. The part after
        the tilde is the commit, and may be missing."""
        return self._places() if self.commit is None else f"{self._places()}~{self.commit}"

    def _places(self) -> str:
        return ";".join(
            f"{topic}:" + ",".join(f"{p}@{first}-{end}" for p, (first, end) in sorted(parts.items()))
            for topic, parts in sorted(self.positions.items())
        )

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Return the receipt with the text form `text`."""
        positions: dict[str, dict[int, tuple[int, int]]] = {}
        places, commit = split_token(text.strip())
        for piece in filter(None, places.split(";")):
            head = _TOPIC_PART.match(piece)
            ranges = [_RANGE.match(r) for r in head["ranges"].split(",") if r] if head else [None]
            if not head or not all(ranges):
                raise UsageError(
                    f"{text!r} is not a receipt",
                    hint="pass the text of a receipt, such as 'clicks:0@17-20'",
                    value=text,
                )
            positions[head["topic"]] = {int(r[1]): (int(r[2]), int(r[3])) for r in ranges if r}
        return cls(positions, commit)

    @property
    def rows(self) -> int:
        """Number of records that the append wrote."""
        return sum(end - first for parts in self.positions.values() for first, end in parts.values())
