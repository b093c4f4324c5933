"""What a standing query asks of a document, as a tree: leaves look at one field, clauses put them together.

A document meets a query by the document alone: nothing here counts other documents, so that the answer, and its score,
is the same whenever it is asked. The score of a match is the sum of what its leaves contribute that
hold and are not under a NOT, in their order (what must hold before what should): a term or a phrase that is found n times gives `boost * 2.2 * n / (n + 1.2)`, which is the
boost for one time and never more than 2.2 of it; every other leaf gives its boost. What those leaves found in texts and
keywords is highlighted. A boost of 0 asks, and neither scores nor highlights.
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
    """The field has a value: `title:*`. A text without a word has one."""

    field: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Term:
    """A word of a text has this term, or a value of a keyword field is this one."""

    field: str
    term: str
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Phrase:
    """The terms stand beside each other: `"change data"~2`.

    `places` are their positions in the phrase, each after the last. It holds where words of these terms, each its own, have positions whose
    distances to `places` differ by no more than `slop`; it is found as often as its first term stands so.
    """

    field: str
    terms: tuple[str, ...]
    places: tuple[int, ...]
    slop: int = 0
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """A word, as it is written but for case and accents, fits: `stream*`, `s?r*m`. A backslash takes `*` and `?` as they are."""

    field: str
    pattern: str
    boost: float = 1.0

    def pieces(self) -> list[str | None]:
        """The pattern from left to right: text as it is, `None` for any text, and for one character the empty text."""
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
        """What a word has to begin with, if that is all that is asked."""
        pieces = self.pieces()
        return pieces[0] if len(pieces) == 2 and pieces[0] and pieces[1] is None else None


@dataclass(frozen=True, slots=True)
class Fuzzy:
    """A word is this one after no more than `distance` edits: `spark~1`. An edit is a character more, less or another, or two neighbours
    that changed places."""

    field: str
    word: str
    distance: int
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class RangeQuery:
    """A number, date, timestamp or boolean lies between two, both included, in the order that `Fields` gives values."""

    field: str
    low: int = LOWEST
    high: int = HIGHEST
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class KeywordRange:
    """A value of a keyword field lies between two by its characters; None is open."""

    field: str
    low: str | None
    high: str | None
    low_in: bool = True
    high_in: bool = True
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Holds:
    """What somebody else answers: a predicate that is known by `payload` alone, asked where all else holds."""

    payload: Hashable
    boost: float = 1.0


@dataclass(frozen=True, slots=True)
class Clauses:
    """All of `must`, none of `must_not`; and one of `should`, if there are any and nothing must. What only must not is plain negation."""

    must: tuple[Node, ...] = ()
    should: tuple[Node, ...] = ()
    must_not: tuple[Node, ...] = ()


Leaf: TypeAlias = Everything | Present | Term | Phrase | Pattern | Fuzzy | RangeQuery | KeywordRange | Holds
Node: TypeAlias = Leaf | Clauses


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A standing query: its text as it was written, and what that asks."""

    text: str
    node: Node

    @staticmethod
    def of_predicate(text: str, payload: Hashable, necessary: Sequence[Node]) -> ParsedQuery:
        """A predicate that `payload` stands for; what is `necessary` selects the documents that it is asked of."""
        holds = Holds(payload)
        silent = tuple(boosted(node, 0.0) for node in necessary)
        return ParsedQuery(text, Clauses(must=(*silent, holds)) if silent else holds)

    @property
    def scans(self) -> bool:
        """Whether nothing selects the documents that it can meet, so that every document would be looked at."""
        return not selects(self.node)


def selects(node: Node) -> bool:
    """Whether a document that meets the node has a term, a word or a value that can be looked up."""
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
    """The node with the boost of every leaf multiplied."""
    if isinstance(node, Clauses):
        parts = (node.must, node.should, node.must_not)
        must, should, must_not = (tuple(boosted(child, factor) for child in part) for part in parts)
        return Clauses(must, should, must_not)
    return replace(node, boost=node.boost * factor)


def leaves(node: Node) -> Iterator[Leaf]:
    """The leaves from left to right, those under a NOT too."""
    if isinstance(node, Clauses):
        for child in (*node.must, *node.should, *node.must_not):
            yield from leaves(child)
    else:
        yield node
