"""`FOR SYSTEM_TIME AS OF o.at`: a time that is a column, for a parser that accepts constants only.

Spark parses the clause and rejects a column in it. So the expression after AS OF is put in quotes, which makes it a
constant; the code that reads the plan parses the quoted text as an expression. Only quotes are inserted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Literal, NamedTuple

from headwater.sql.lexer import Word, pointing, words_of

CLAUSES: dict[str, Literal["time", "version"]] = {"SYSTEM_TIME": "time", "SYSTEM_VERSION": "version"}
"""Keywords of the two clauses, and the property of a version that each selects by."""
VERSIONS = "versions"
"""Suffix of the relation of all versions of a topic: `t.versions`."""
_WRITTEN = re.compile(rf"\b({'|'.join(CLAUSES)})\b", re.IGNORECASE)
_NAMED = re.compile(rf"\b({'|'.join((*CLAUSES, VERSIONS))})\b", re.IGNORECASE)
_OPERATORS = ("+", "-", "*", "/", "%", "||", "::", "DIV")
_QUOTES = ("'", '"')


class Clause(NamedTuple):
    """The position of a clause's expression in a text, half-open."""

    start: int
    end: int


def may_read_versions(text: str) -> bool:
    """Whether a query may read versions of a topic: whether the keywords are in its text."""
    return _NAMED.search(text) is not None


def are_versions_among(names: Collection[str]) -> bool:
    """Whether a query may read versions of a topic, given its words in lower case."""
    return any(word.lower() in names for word in (*CLAUSES, VERSIONS))


def clauses(text: str) -> list[Clause]:
    """Return the expressions after FOR SYSTEM_TIME AS OF and FOR SYSTEM_VERSION AS OF, in text order."""
    if _WRITTEN.search(text) is None:
        return []
    words = words_of(text)
    found = []
    for at, (one, two, three, four) in enumerate(zip(words, words[1:], words[2:], words[3:], strict=False)):
        if one.is_("FOR") and two.is_(*CLAUSES) and three.is_("AS") and four.is_("OF"):
            end = _expression(words, at + 4)
            if end > at + 4:  # Spark reports a missing expression
                found.append(Clause(words[at + 4].start, words[end - 1].end))
    return found


def quotes(text: str) -> Iterator[tuple[int, str]]:
    """Yield the quotes to insert, with their positions."""
    for start, end in clauses(text):
        quote = next((q for q in _QUOTES if q not in text[start:end]), None)
        if quote is None:
            raise pointing(
                text,
                start,
                end,
                "the time of AS OF mixes strings in single and in double quotes",
                hint="write all of them in single quotes",
                reason="mixed-quotes",
            )
        yield from ((start, quote), (end, quote))


def _expression(words: Sequence[Word], at: int) -> int:
    """Return the index after an expression that begins at a word: operands joined by operators. An alias may follow."""
    while True:
        end = _operand(words, at)
        if end == at or not words[end].is_(*_OPERATORS):
            return end
        at = end + 1


def _operand(words: Sequence[Word], at: int) -> int:
    word = words[at]
    if word.is_("+", "-"):
        return _operand(words, at + 1)
    if word.is_("("):
        return closed(words, at)
    if word.is_("CASE"):
        return _case(words, at)
    if word.is_("INTERVAL"):
        return _interval(words, at + 1)
    if word.kind in ("string", "number"):
        return at + 1
    if not word.is_name:
        return at
    if words[at + 1].kind == "string":  # TIMESTAMP '2026-01-01'
        return at + 2
    at += 1
    while words[at].is_(".") and words[at + 1].is_name:
        at += 2
    while words[at].is_("(", "["):
        at = closed(words, at)
    return at


def closed(words: Sequence[Word], at: int) -> int:
    """Return the index after the bracket that closes the one at an index."""
    depth = 0
    for place in range(at, len(words)):
        depth += words[place].is_("(", "[") - words[place].is_(")", "]")
        if not depth:
            return place + 1
    return len(words) - 1


def _case(words: Sequence[Word], at: int) -> int:
    depth = 0
    for place in range(at, len(words)):
        depth += words[place].is_("CASE") - words[place].is_("END")
        if not depth:
            return place + 1
    return len(words) - 1


_UNITS = re.compile(r"(YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND|MILLISECOND|MICROSECOND)S?", re.IGNORECASE)


def _interval(words: Sequence[Word], at: int) -> int:
    """Return the index after the operand of INTERVAL: values with units, or a value with a unit TO another."""
    while True:
        end = _operand(words, at)
        if end == at or _UNITS.fullmatch(words[end].text) is None:
            return end
        at = end + 1
        if words[at].is_("TO"):
            return at + 2
        if words[at].kind not in ("string", "number"):
            return at
