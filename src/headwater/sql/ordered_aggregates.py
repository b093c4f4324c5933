"""`array_agg(x ORDER BY y)`, the common syntax of a list in a declared order, for a parser that does not support it.

Spark only supports an order after the call: `array_agg(x) WITHIN GROUP (ORDER BY y)`. The translation only inserts text, so
that every position in the text passed to Spark maps to a position in the original. The other syntax that Spark does not
support is translated in the same way: see `system_time` and `match_recognize_places`.
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
class SparkQuery:
    """A query as passed to Spark, and where text was inserted into the original."""

    text: str
    inserted: tuple[tuple[int, int], ...] = ()
    """Insertions: positions in the original text, each with the length of the text inserted before it."""
    quoted: tuple[Clause, ...] = ()
    """Positions in `text` of the quoted expressions of AS OF clauses."""

    def now(self, at: int) -> int:
        """Return the position in `text` of a position in the original."""
        return at + sum(width for place, width in self.inserted if place <= at)

    def original(self, at: int) -> int:
        """Return the position in the original of a position in `text`."""
        for place, width in self.inserted:
            if at < place + width:
                return min(at, place)
            at -= width
        return at


def spark_query(text: str) -> SparkQuery:
    """Return a query with orders inside of list function calls moved after the call, expressions of AS OF quoted, and
    MATCH_RECOGNIZE replaced by blanks."""
    matches = match_places(text)
    text = blanked(text, matches)
    quoted = list(quotes(text))
    added = sorted([*quoted, *((place, _BETWEEN) for place in _orders(text)), *insertions(matches)])
    if not added:
        return SparkQuery(text)
    places = [place for place, _ in added]
    parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    made = "".join(more + part for more, part in zip(["", *(more for _, more in added)], parts, strict=True))

    def now(at: int) -> int:
        return at + sum(len(more) for place, more in added if place < at)

    ends = [place for place, _ in quoted]
    clauses = (Clause(now(a) + 1, now(b)) for a, b in zip(ends[::2], ends[1::2], strict=True))
    return SparkQuery(made, tuple((place, len(more)) for place, more in added), tuple(clauses))


def _orders(text: str) -> list[int]:
    """Return the positions of the ORDER BY clauses inside of list function calls."""
    if _CALLED.search(text) is None:
        return []
    words = words_of(text)
    places: list[int] = []
    calls: list[bool] = []  # per open parenthesis: whether it is the call of a list function
    for before, word, after in zip([None, *words], words, words[1:], strict=False):
        if word.is_("("):
            calls.append(before is not None and before.is_name and before.text.lower() in _ORDERED)
        elif word.is_(")") and calls:
            calls.pop()
        elif calls and calls[-1] and word.is_("ORDER") and after.is_("BY"):
            places.append(word.start)
    return places
