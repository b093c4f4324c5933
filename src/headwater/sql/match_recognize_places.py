"""Where in a query MATCH_RECOGNIZE stands, and of what relation, for a parser that does not know the clause.

    FROM events e MATCH_RECOGNIZE (PARTITION BY ...) AS m

is given to Spark as a query of the relation, with the number of the clause as a hint and blanks in its place:

    FROM (SELECT /*+ HEADWATER_MATCH(0) */ * FROM events e                                ) AS m

What the clause itself says is read by `matches`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from headwater.sql.lexer import Word, words_of

HINT = "HEADWATER_MATCH"
_WRITTEN = re.compile(r"\bMATCH_RECOGNIZE\b", re.IGNORECASE)
_TIMEOUTS = re.compile(r"\bEMIT\s+TIMEOUTS\b", re.IGNORECASE)
_NOT_A_NEWLINE = re.compile(r"[^\n]")
_BEFORE_A_RELATION = ("FROM", "JOIN", ",", "LATERAL")


class MatchPlace(NamedTuple):
    """The places, in a query's text, of a relation and of the clause behind it, half open."""

    relation: int
    """Where the relation begins."""
    start: int
    end: int
    first: int
    """The number of the clause's first word, MATCH_RECOGNIZE, among the words of the text."""


def has_match(text: str) -> bool:
    """Whether a query may have the clause: whether its word is in the text."""
    return _WRITTEN.search(text) is not None


def has_timeouts(text: str) -> bool:
    """Whether a query may show matches that ran out of time."""
    return has_match(text) and _TIMEOUTS.search(text) is not None


def match_places(text: str) -> list[MatchPlace]:
    """Every clause, in the order of the text. One without a relation before it, or never closed, is left to Spark."""
    if not has_match(text):
        return []
    words = words_of(text)
    found = []
    for at, word in enumerate(words):
        if not word.is_("MATCH_RECOGNIZE") or not words[min(at + 1, len(words) - 1)].is_("("):
            continue
        begin, end = _relation(words, at), _closing(words, at + 1)
        if begin is not None and end is not None:
            found.append(MatchPlace(words[begin].start, word.start, words[end].end, at))
    return found


def blanked(text: str, places: Sequence[MatchPlace]) -> str:
    """The text with blanks in the place of the clauses."""
    for place in places:
        blank = _NOT_A_NEWLINE.sub(" ", text[place.start : place.end])
        text = text[: place.start] + blank + text[place.end :]
    return text


def insertions(places: Sequence[MatchPlace]) -> list[tuple[int, str]]:
    """What makes a query of each relation, and before which places it is inserted."""
    made = []
    for number, place in enumerate(places):
        made += [(place.relation, f"(SELECT /*+ {HINT}({number}) */ * FROM "), (place.end, ")")]
    return made


def _closing(words: Sequence[Word], at: int) -> int | None:
    """The bracket that closes the one at a word."""
    depth = 0
    for place in range(at, len(words)):
        depth += words[place].is_("(") - words[place].is_(")")
        if not depth:
            return place
    return None


def _opening(words: Sequence[Word], at: int) -> int | None:
    """The bracket that is closed by the one at a word."""
    depth = 0
    for place in range(at, -1, -1):
        depth += words[place].is_(")") - words[place].is_("(")
        if not depth:
            return place
    return None


def _relation(words: Sequence[Word], at: int) -> int | None:
    """Where the relation begins that ends before a word: the last word behind FROM, JOIN or a comma outside brackets."""
    place = at - 1
    while place >= 0:
        if words[place].is_(")"):
            opened = _opening(words, place)
            if opened is None:
                return None
            place = opened
        elif words[place].is_("(", *_BEFORE_A_RELATION):
            break
        place -= 1
    begin = place + 1
    return begin if place >= 0 and begin < at else None
