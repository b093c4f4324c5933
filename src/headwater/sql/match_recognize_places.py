"""Locates MATCH_RECOGNIZE clauses and their relations in a query, for a parser that does not support the clause.

    FROM events e MATCH_RECOGNIZE (PARTITION BY ...) AS m

is passed to Spark as a query of the relation, with the number of the clause as a hint and blanks in place of the clause:

    FROM (SELECT /*+ HEADWATER_MATCH(0) */ * FROM events e                                ) AS m

`match_recognize_clause` parses the clause itself.
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
    """The positions, in a query's text, of a relation and of the clause after it, half-open."""

    relation: int
    """Start of the relation."""
    start: int
    end: int
    first: int
    """Index of the clause's first word, MATCH_RECOGNIZE, among the words of the text."""


def has_match(text: str) -> bool:
    """Whether a query may contain the clause: whether its keyword is in the text."""
    return _WRITTEN.search(text) is not None


def has_timeouts(text: str) -> bool:
    """Whether a query may emit timed-out matches."""
    return has_match(text) and _TIMEOUTS.search(text) is not None


def match_places(text: str) -> list[MatchPlace]:
    """Return all clauses in text order. A clause without a relation before it, or never closed, is omitted, and Spark
    reports it."""
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
    """Return the text with the clauses replaced by blanks."""
    for place in places:
        blank = _NOT_A_NEWLINE.sub(" ", text[place.start : place.end])
        text = text[: place.start] + blank + text[place.end :]
    return text


def insertions(places: Sequence[MatchPlace]) -> list[tuple[int, str]]:
    """Return the insertions, with their positions, that turn each relation into a query."""
    made = []
    for number, place in enumerate(places):
        made += [(place.relation, f"(SELECT /*+ {HINT}({number}) */ * FROM "), (place.end, ")")]
    return made


def _closing(words: Sequence[Word], at: int) -> int | None:
    """Return the index of the parenthesis that closes the one at an index."""
    depth = 0
    for place in range(at, len(words)):
        depth += words[place].is_("(") - words[place].is_(")")
        if not depth:
            return place
    return None


def _opening(words: Sequence[Word], at: int) -> int | None:
    """Return the index of the parenthesis that opens the one closed at an index."""
    depth = 0
    for place in range(at, -1, -1):
        depth += words[place].is_(")") - words[place].is_("(")
        if not depth:
            return place
    return None


def _relation(words: Sequence[Word], at: int) -> int | None:
    """Return the index where the relation before a word begins: after the last FROM, JOIN or comma outside of parentheses."""
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
