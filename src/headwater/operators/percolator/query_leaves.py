"""Leaves of a parsed query: words, phrases, patterns and ranges, converted for the fields that are searched."""

from __future__ import annotations

import difflib

from headwater.core.text_analysis import TextWord
from headwater.operators.percolator.fields import Field, Fields, range_of
from headwater.operators.percolator.query_nodes import (
    ANY,
    HIGHEST,
    LOWEST,
    ONE,
    Clauses,
    Fuzzy,
    KeywordRange,
    Node,
    Pattern,
    Phrase,
    Present,
    Term,
)
from headwater.operators.percolator.query_scanner import QueryScanner, QueryWord, escape

LEAVES_MAX = 1024
"""Maximum number of leaves of a query: terms, phrases, patterns and ranges, counted once per field."""
FUZZY_MAX = 2
FUZZY_CHARACTERS = 50
"""Maximum length of a fuzzy word, because its deletion neighbourhood is enumerated."""
_WORDS = "words consist of letters and digits, and have less than 40 bytes"


class QueryLeaves:
    """Builds the leaves of one query."""

    def __init__(self, scanner: QueryScanner, fields: Fields) -> None:
        self._scanner = scanner
        self._fields = fields
        self.count = 0
        """Number of leaves so far."""
        self._said = ""
        self._words: list[TextWord] = []

    def of_word(self, word: QueryWord, where: tuple[str, ...]) -> Node:
        """Build the leaves of a word in several fields, with the fuzzy distance that may follow it."""
        distance = None
        if self._scanner.ahead() == "~":
            if word.wild:
                self._scanner.refuse(
                    "wildcards and ~ cannot be combined",
                    word.start,
                    self._scanner.at + 1,
                    reason="fuzzy-pattern",
                )
            distance = self._scanner.number("~", "the distance of a fuzzy word", FUZZY_MAX, default=FUZZY_MAX)
            if len(word.plain) > FUZZY_CHARACTERS:
                self._scanner.refuse(
                    f"a fuzzy word has at most {FUZZY_CHARACTERS} characters",
                    word.start,
                    word.end,
                    reason="fuzzy-length",
                )
        nodes = []
        for name in where:
            field = self._fields.named[name]
            if field.ordered:
                if word.wild or distance is not None:
                    self._scanner.refuse(
                        f"field {name} is not a text field, and supports no wildcards",
                        word.start,
                        self._scanner.at,
                        reason="pattern-on-number",
                        field=name,
                    )
                nodes.append(self.interval(field, word.plain, word.start, word.end))
            elif word.wild:
                nodes.append(self._of_pattern(field, word))
            elif distance is not None:
                nodes.append(
                    self.leaf(Fuzzy(name, self._piece(field, word.plain, word), distance), word.start)
                )
            elif field.kind == "keyword":
                nodes.append(self.leaf(Term(name, word.plain), word.start))
            else:
                nodes.append(self.of_text(name, word.plain, 0, word.start, word.end))
        return any_of(nodes)

    def _of_pattern(self, field: Field, word: QueryWord) -> Node:
        pieces = Pattern(field.name, word.pattern).pieces()
        if all(piece is None for piece in pieces):
            return self.leaf(Present(field.name), word.start)
        signs = {None: ANY, "": ONE}
        made = "".join(signs[p] if not p else escape(self._piece(field, p, word)) for p in pieces)
        return self.leaf(Pattern(field.name, made), word.start)

    def _piece(self, field: Field, piece: str, word: QueryWord) -> str:
        """Normalize a piece of a word; raises QueryError if the piece is not part of a single word."""
        if field.kind == "keyword":
            return piece
        found = self._fields.analysis.words(piece)
        if len(piece) < 40 and (len(found) != 1 or found[0].end - found[0].start != len(piece)):
            self._scanner.refuse(
                f"no word contains {piece!r}: text is split at every character that is not a letter or digit",
                word.start,
                word.end,
                hint="search for the words around it, or for a phrase",
                reason="not-a-word",
            )
        return self._fields.analysis.normal(piece)

    def of_text(self, name: str, said: str, slop: int, start: int, end: int) -> Node:
        """Build the leaf of a text in a field: a term, or a phrase where the analysis yields several words."""
        if self._fields.named[name].kind == "keyword":
            return self.leaf(Term(name, said), start)
        if said != self._said:  # called for each field
            self._said, self._words = said, self._fields.analysis.words(said)
        words = self._words
        if not words:
            self._scanner.refuse("the text contains no word", start, end, hint=_WORDS, reason="no-word")
        if len(words) == 1:
            return self.leaf(Term(name, words[0].term), start)
        first = words[0].position
        places = tuple(word.position - first for word in words)
        return self.leaf(Phrase(name, tuple(word.term for word in words), places, slop), start)

    def interval(self, field: Field, said: str, start: int, end: int) -> Node:
        """Build the leaf for the field values that a text stands for."""
        first, last = self._values(field, said, start, end)
        return self.leaf(range_of(field.name, first, last), start)

    def between(
        self,
        name: str,
        low: QueryWord | None,
        high: QueryWord | None,
        low_in: bool,
        high_in: bool,
        start: int,
    ) -> Node:
        """Build the leaf of a range of a field's values; None leaves an end open."""
        field = self._fields.named[name]
        if field.kind == "text":
            self._scanner.refuse(
                f"field {name} is a text field, and supports no ranges",
                start,
                self._scanner.at,
                hint="ranges work on numbers, dates and columns that are not searched as text",
                reason="range-on-text",
                field=name,
            )
        if low is None and high is None:
            return self.leaf(Present(name), start)
        if field.kind == "keyword":
            first, last = (None if word is None else word.plain for word in (low, high))
            return self.leaf(KeywordRange(name, first, last, low_in, high_in), start)
        least, most = LOWEST, HIGHEST
        if low is not None:
            values = self._values(field, low.plain, low.start, low.end)
            least = values[0] if low_in else values[1] + 1
        if high is not None:
            values = self._values(field, high.plain, high.start, high.end)
            most = values[1] if high_in else values[0] - 1
        if low is not None and high is not None and most < least:
            self._scanner.refuse("this range is empty", start, self._scanner.at, reason="empty-range")
        return self.leaf(range_of(name, least, most), start)

    def _values(self, field: Field, said: str, start: int, end: int) -> tuple[int, int]:
        try:
            return field.interval(said)
        except (ValueError, OverflowError) as failed:
            reason = str(failed) if str(failed).startswith("it takes") else "there is no such date"
            self._scanner.refuse(
                f"field {field.name} cannot have the value {said!r}: {reason}",
                start,
                end,
                reason="field-value",
                field=field.name,
                value=said,
            )

    def leaf(self, node: Node, start: int) -> Node:
        """Count a leaf against the maximum per query; return the leaf."""
        self.count += 1
        if self.count > LEAVES_MAX:
            self._scanner.refuse(
                f"the query has more than {LEAVES_MAX} terms",
                start,
                self._scanner.at,
                hint="a term counts once for each searched field; split the query",
                reason="too-many-terms",
            )
        return node

    def field(self, word: QueryWord) -> str:
        """Return the name of a field, checking that it exists."""
        if word.wild:
            self._scanner.refuse(
                "a field name cannot contain a wildcard",
                word.start,
                word.end,
                hint="write each field by its name",
                reason="field-pattern",
            )
        names = self._fields.named
        if word.plain not in names:
            near = difflib.get_close_matches(word.plain, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"fields: {', '.join(names)}"
            self._scanner.refuse(
                f"there is no field {word.plain!r}",
                word.start,
                word.end,
                hint=hint,
                reason="unknown-field",
                field=word.plain,
            )
        return word.plain


def any_of(nodes: list[Node]) -> Node:
    """Return a node that holds if one of several nodes does."""
    return nodes[0] if len(nodes) == 1 else Clauses(should=tuple(nodes))
