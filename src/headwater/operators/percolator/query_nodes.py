"""The tree of a stored query: leaves test one field, clauses combine them.

Whether a document matches a query depends on this document alone: no statistics of other documents are used, so that
the result and its score do not depend on when they are computed. The score of a match is the sum of the contributions
of the leaves that hold and are not under a NOT, in order (`must` before `should`): a term or a phrase that occurs n
times contributes `boost * 2.2 * n / (n + 1.2)`, which is the boost for one occurrence and always less than 2.2 times
the boost; every other leaf contributes its boost. The words found by these leaves in texts and keywords are
highlighted. A leaf with a boost of 0 must hold, but neither scores nor highlights.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
ESCAPE, ANY, ONE = "\\", "*", "?"


@dataclass(frozen=True, slots=True)
class Everything:
    """Holds for every document: `*:*`."""

    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Present:
    """Holds if the field has a value: `title:*`. A text without words is a value."""

    field: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """Holds if a word of a text field has this term, or a value of a keyword field equals it."""

    field: str
    term: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Phrase:
    """Holds if the terms are close to each other: `"change data"~2`.

    `places` are the ascending positions of the terms in the phrase. The phrase occurs where distinct words with these
    terms have positions whose differences to `places` vary by at most `slop`; occurrences are counted by the words
    chosen for its first term.
    """

    field: str
    terms: tuple[str, ...]
    places: tuple[int, ...]
    slop: int = 0
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """Holds if a word, normalized for case and accents only, fits: `stream*`, `s?r*m`. A backslash escapes `*` and `?`."""

    field: str
    pattern: str
    boost: float = 1.0

    def pieces(self) -> list[str | None]:
        """Return the parts of the pattern from left to right: literal text, None for `*`, and an empty string for `?`."""
        found: list[str | None] = []
        plain, characters = "", iter(self.pattern)
        for character in characters:
            if character in (ANY, ONE):
                found += ([plain] if plain else []) + [None if character == ANY else ""]
                plain = ""
            else:
                plain += next(characters) if character == ESCAPE else character
        return found + ([plain] if plain else [])

    @property
    def prefix(self) -> str | None:
        """The required prefix of a word, if the pattern is nothing else."""
        pieces = self.pieces()
        return pieces[0] if len(pieces) == 2 and pieces[0] and pieces[1] is None else None


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """Holds if a word is within `distance` edits of this one: `spark~1`.

    An edit inserts, deletes or replaces a character, or swaps two neighbours.
    """

    field: str
    word: str
    distance: int
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """Holds if a number, date, timestamp or boolean is in a range, both ends inclusive, in the order defined by
    `Field.order`."""

    field: str
    low: int = LOWEST
    high: int = HIGHEST
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class KeywordRange:
    """Holds if a value of a keyword field is in a range by its characters; None leaves an end open."""

    field: str
    low: str | None
    high: str | None
    low_in: bool = True
    high_in: bool = True
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Holds:
    """Holds if an external predicate does, identified by `payload`; evaluated only where everything else holds."""

    payload: Hashable
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Clauses:
    """Holds if all of `must` and none of `must_not` hold; and, if `must` is empty, one of `should`, unless that is
    empty too. Clauses with only `must_not` are plain negation."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()


Leaf: TypeAlias = Everything | Present | Term | Phrase | Pattern | Fuzzy | RangeQuery | KeywordRange | Holds
Node: TypeAlias = Leaf | Clauses


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A stored query: its text as written, and its tree."""

    text: str
    node: Node

    @staticmethod
    def of_predicate(text: str, payload: Hashable, necessary: Sequence[Node]) -> ParsedQuery:
        """Build the query of a predicate identified by `payload`; `necessary` conditions select the documents to
        evaluate it on."""
        holds = Holds(payload)
        filters = tuple(boosted(node, 0.0) for node in necessary)
        return ParsedQuery(text, Clauses(must=(*filters, holds)) if filters else holds)

    @property
    def scans(self) -> bool:
        """Whether no condition selects the documents that can match, so that every document must be examined."""
        return not selects(self.node)


def selects(node: Node) -> bool:
    """Whether every document that matches the node has a term, a word or a value that can be looked up."""
    if isinstance(node, Clauses):
        if node.must:
            return any(map(selects, node.must))
        return bool(node.should) and all(map(selects, node.should))
    if isinstance(node, Everything | Present | Holds):
        return False
    if isinstance(node, RangeQuery):
        return node.low != LOWEST or node.high != HIGHEST
    if isinstance(node, KeywordRange):
        return node.low is not None or node.high is not None
    return not isinstance(node, Pattern) or any(node.pieces())


def boosted(node: Node, factor: float) -> Node:
    """Multiply the boost of every leaf of a node."""
    if isinstance(node, Clauses):
        parts = (node.must, node.should, node.must_not)
        must, should, must_not = (tuple(boosted(child, factor) for child in part) for part in parts)
        return Clauses(must, should, must_not)
    return replace(node, boost=node.boost * factor)


def leaves(node: Node) -> Iterator[Leaf]:
    """Yield the leaves from left to right, including those under a NOT."""
    if isinstance(node, Clauses):
        for child in (*node.must, *node.should, *node.must_not):
            yield from leaves(child)
    else:
        yield node
