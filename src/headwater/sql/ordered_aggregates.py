"""`array_agg(x ORDER BY y)`, as most databases spell a list in a declared order, for a parser that does not know it.

Spark reads an order after the call alone: `array_agg(x) WITHIN GROUP (ORDER BY y)`. Nothing but insertions turns the one
into the other, so every place of the text that Spark reads is a place of the text that was written. The same goes for
what else Spark does not read as it is written: see `as_of` and `match_places`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from headwater.sql.lexer import words_of
from headwater.sql.match_recognize_places import blanked, insertions, match_places
from headwater.sql.system_time import Clause, quotes

LISTS = ("array_agg", "collect_list")
"""Functions that make a list of a group's values."""
_ORDERED = (*LISTS, "listagg", "string_agg")
_CALLED = re.compile(rf"\b({'|'.join(_ORDERED)})\b", re.IGNORECASE)
_BETWEEN = ") WITHIN GROUP ("


@dataclass(frozen=True)
class Spelled:
    """A query in Spark's spelling, and where that is longer than what was written."""

    text: str
    inserted: tuple[tuple[int, int], ...] = ()
    """The places, in what was written, before which something stands that was not, and how long that is."""
    quoted: tuple[Clause, ...] = ()
    """The expressions, in `text`, that stand in quotes there: those of AS OF."""

    def now(self, at: int) -> int:
        """The place in `text` of a place in what was written."""
        return at + sum(width for place, width in self.inserted if place <= at)

    def original(self, at: int) -> int:
        """The place in what was written of a place in `text`."""
        for place, width in self.inserted:
            if at < place + width:
                return min(at, place)
            at -= width
        return at


def spelled(text: str) -> Spelled:
    """A query with every order inside a call of a list function moved behind the call, what AS OF is of in quotes, and
    without MATCH_RECOGNIZE."""
    matches = match_places(text)
    text = blanked(text, matches)
    quoted = list(quotes(text))
    added = sorted([*quoted, *((place, _BETWEEN) for place in _orders(text)), *insertions(matches)])
    if not added:
        return Spelled(text)
    places = [place for place, _ in added]
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    made = "".join(more + part for more, part in zip(["", *(more for _, more in added)], parts, strict=True))

    def now(at: int) -> int:
        return at + sum(len(more) for place, more in added if place < at)

    ends = [place for place, _ in quoted]
    clauses = (Clause(now(a) + 1, now(b)) for a, b in zip(ends[::2], ends[1::2], strict=True))
    return Spelled(made, tuple((place, len(more)) for place, more in added), tuple(clauses))


def _orders(text: str) -> list[int]:
    """Where an order begins that stands inside a call of a list function."""
    if _CALLED.search(text) is None:
        return []
    words = words_of(text)
    places: list[int] = []
    calls: list[bool] = []  # for each parenthesis that is open: whether it is the call of a list function
    for before, word, after in zip([None, *words], words, words[1:], strict=False):
        if word.is_("("):
            calls.append(before is not None and before.is_name and before.text.lower() in _ORDERED)
        elif word.is_(")") and calls:
            calls.pop()
        elif calls and calls[-1] and word.is_("ORDER") and after.is_("BY"):
            places.append(word.start)
    return places
