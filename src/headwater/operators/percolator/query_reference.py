"""The reference semantics of stored queries: one document, one query, leaf by leaf.

This is the specification. `query_index` computes the same results for many queries and many documents at once, and
tests compare the two. This implementation is simple and slow.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import pyarrow as pa

from headwater.core.text_analysis import TextWord
from headwater.operators.percolator.fields import Fields, values_of
from headwater.operators.percolator.query_nodes import (
    Clauses,
    Everything,
    Fuzzy,
    Holds,
    KeywordRange,
    Leaf,
    Node,
    ParsedQuery,
    Pattern,
    Phrase,
    Present,
    RangeQuery,
    Term,
)


@dataclass(frozen=True, order=True)
class Highlight:
    """The location of a match: characters from `start` to before `end` of a field's value; `item` is the index in a list."""

    field: int
    item: int
    start: int
    end: int


@dataclass(frozen=True)
class Match:
    """The result of a document that matches a query."""

    score: float
    highlights: list[Highlight]


@dataclass(frozen=True)
class Document:
    """A prepared document: the words of its texts, its keywords, and its values mapped to ordered integers."""

    fields: Fields
    words: dict[str, list[tuple[int, TextWord]]]
    """Words of each text and keyword field, each with the index of the value that contains it."""
    values: dict[str, int]
    present: frozenset[str]


def documents_of(fields: Fields, rows: pa.Table) -> Iterator[Document]:
    """Yield the documents in the rows of a table."""
    words, values, present = {}, {}, {}
    for field in fields.columns:
        column = rows.column(field.name).combine_chunks()
        present[field.name] = column.is_valid().to_pylist()
        if field.ordered:
            values[field.name] = field.order(column)[0].tolist()
        elif field.kind == "keyword":
            words[field.name] = [_keywords(texts) for texts in values_of(field, column)]
        else:
            words[field.name] = [_words(fields, texts) for texts in values_of(field, column)]
    for row in range(rows.num_rows):
        there = frozenset(name for name, column in present.items() if column[row])
        ordered = {name: column[row] for name, column in values.items() if name in there}
        yield Document(fields, {name: column[row] for name, column in words.items()}, ordered, there)


def _keywords(texts: list[str]) -> list[tuple[int, TextWord]]:
    return [(item, TextWord(item, 0, len(text), text, text)) for item, text in enumerate(texts)]


def _words(fields: Fields, texts: list[str]) -> list[tuple[int, TextWord]]:
    """Tokenize the values of a field; values are separated by a gap of one position, as in tantivy."""
    found: list[tuple[int, TextWord]] = []
    begin = 0
    for item, text in enumerate(texts):
        words = fields.analysis.words(text)
        found += [(item, word._replace(position=begin + word.position)) for word in words]
        begin = found[-1][1].position + 2 if words else begin + 1
    return found


def match(
    query: ParsedQuery, document: Document, holds: Callable[[Hashable], bool] = lambda payload: False
) -> Match | None:
    """Match a document against a query; None if it does not match."""
    scores: list[float] = []
    highlights: set[Highlight] = set()
    if not _matches(query.node, document, scores, highlights, holds):
        return None
    score = 0.0
    for one in scores:
        score += one
    return Match(score, sorted(highlights))


def _matches(
    node: Node,
    document: Document,
    scores: list[float],
    highlights: set[Highlight],
    holds: Callable[[Hashable], bool],
) -> bool:
    if not isinstance(node, Clauses):
        found = _occurrences(node, document, holds)
        if found is None:
            return False
        times, words = found
        if node.boost:
            scores.append(node.boost * (2.2 * times / (times + 1.2)) if times else node.boost)
            if not isinstance(node, Everything | Holds):
                place = document.fields.place(node.field)
                highlights |= {Highlight(place, item, word.start, word.end) for item, word in words}
        return True
    mine: list[float] = []
    marked: set[Highlight] = set()
    if not all(_matches(child, document, mine, marked, holds) for child in node.must):
        return False
    if any(_matches(child, document, [], set(), holds) for child in node.must_not):
        return False
    wanted = sum([_matches(child, document, mine, marked, holds) for child in node.should])
    if node.should and not node.must and not wanted:
        return False
    scores += mine
    highlights |= marked
    return True


def _occurrences(
    leaf: Leaf, document: Document, holds: Callable[[Hashable], bool]
) -> tuple[int, list[tuple[int, TextWord]]] | None:
    """Return how often a leaf is found (0 if that is not counted) and the words that it is found in; None if it does
    not hold."""
    match leaf:
        case Everything():
            return 0, []
        case Holds(payload=payload):
            return (0, []) if holds(payload) else None
        case Present(field=field):
            return (0, []) if field in document.present else None
        case RangeQuery(field=field, low=low, high=high):
            value = document.values.get(field)
            return (0, []) if value is not None and low <= value <= high else None
        case Term(field=field, term=term):
            found = [(item, word) for item, word in document.words[field] if word.term == term]
            return (len(found), found) if found else None
        case Phrase():
            return _phrase(leaf, document.words[leaf.field])
        case Pattern() | Fuzzy() | KeywordRange():
            fits = fitting(leaf)
            found = [(item, word) for item, word in document.words[leaf.field] if fits(word.word)]
            return (0, found) if found else None


def _phrase(leaf: Phrase, words: list[tuple[int, TextWord]]) -> tuple[int, list[tuple[int, TextWord]]] | None:
    places = [[at for at, (_, word) in enumerate(words) if word.term == term] for term in leaf.terms]
    firsts: set[int] = set()
    taking_part: set[int] = set()
    for chosen in itertools.product(*places):
        away = [words[at][1].position - place for at, place in zip(chosen, leaf.places, strict=True)]
        if len(set(chosen)) == len(chosen) and max(away) - min(away) <= leaf.slop:
            firsts.add(chosen[0])
            taking_part |= set(chosen)
    return (len(firsts), [words[at] for at in sorted(taking_part)]) if firsts else None


def fitting(leaf: Pattern | Fuzzy | KeywordRange) -> Callable[[str], bool]:
    """Return a predicate of the words that match the leaf."""
    match leaf:
        case Pattern():
            made = expression(leaf)
            return lambda word: made.fullmatch(word) is not None
        case Fuzzy(word=wanted, distance=distance):
            return lambda word: edits(wanted, word) <= distance
        case KeywordRange():
            return lambda word: _within(leaf, word)


def expression(leaf: Pattern) -> re.Pattern[str]:
    """Compile a pattern to a regular expression that runs in time proportional to the product of the lengths of pattern
    and text.

    The part between two `*` is matched at its first occurrence, without backtracking.
    """
    runs = [""]
    for piece in leaf.pieces():
        if piece is None:
            runs.append("")
        else:
            runs[-1] += re.escape(piece) if piece else "."
    if len(runs) == 1:
        return re.compile(runs[0], re.DOTALL)
    between = "".join(f"(?>.*?{run})" for run in runs[1:-1] if run)
    return re.compile(f"{runs[0]}{between}.*{runs[-1]}", re.DOTALL)


def edits(one: str, other: str) -> int:
    """Return the edit distance of two words: insertions, deletions, replacements, and swaps of two neighbours."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for i, mine in enumerate(one, 1):
        now = [i]
        for j, theirs in enumerate(other, 1):
            cost = min(last[j] + 1, now[-1] + 1, last[j - 1] + (mine != theirs))
            if i > 1 and j > 1 and mine == other[j - 2] and one[i - 2] == theirs:
                cost = min(cost, before[j - 2] + 1)
            now.append(cost)
        before, last = last, now
    return last[-1]


def _within(leaf: KeywordRange, word: str) -> bool:
    if leaf.low is not None and (word < leaf.low or (word == leaf.low and not leaf.low_in)):
        return False
    return leaf.high is None or word < leaf.high or (word == leaf.high and leaf.high_in)
