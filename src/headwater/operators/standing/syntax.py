"""Lucene's query syntax, read into nodes; what cannot be read is refused with where the mistake is.

From loosest to tightest: clauses beside each other, of which one must hold unless the operator is 'and', or those with
`+` must and those with `-` or `NOT` must not; `OR` (`||`); `AND` (`&&`); `NOT` (`!`, `-`); one clause. That is Lucene's
StandardQueryParser, and everywhere else `NOT` is plain negation. A word that is several to the analysis, such as
wi-fi, is a phrase.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from headwater.analysis import Word
from headwater.errors import QueryError, underlined
from headwater.operators.standing.fields import Field, Fields, range_of
from headwater.operators.standing.nodes import (
    ANY,
    ESCAPE,
    HIGHEST,
    LOWEST,
    ONE,
    Clauses,
    Everything,
    Fuzzy,
    Node,
    Pattern,
    Phrase,
    Present,
    Query,
    Span,
    Term,
    boosted,
)

DEPTH_MAX = 50
"""How deep parentheses may lie in each other."""
LEAVES_MAX = 1024
"""How many terms, phrases, patterns and ranges a query may have, counted once per field."""
FUZZY_MAX = 2
FUZZY_CHARACTERS = 50
"""How long a fuzzy word may be: what is left of it after two deletions is looked up."""
SLOP_MAX = 1_000
_ENDS = frozenset(' \t\r\n\u3000()[]{}"^~:')
_SPACES = " \t\r\n\u3000"
_SPACE = frozenset(_SPACES)
_SIGNS = frozenset("+-!")
_NOTHING = frozenset(("", ")", *_SIGNS))
_OPERATORS = frozenset("AO&|")
_PLAIN = re.compile(r"[^\s\u3000()\[\]{}\"^~:\\*?]*")
"""What is neither an end of anything nor a sign, which most words are to their end."""
_SIMPLE = re.compile(
    r"(?:([^\W\d]\w*):)?"  # a field
    r"([^\s\u3000()\[\]{}\"^~:\\*?+\-!&|/<>=][^\s\u3000()\[\]{}\"^~:\\*?]*)"
    r"(?:[ \t\r\n\u3000]+|(?=\))|\Z)"
)
"""A clause that is a word and nothing else, which most are, with the space after it."""
_OPERATOR = re.compile(
    r"(?:(AND|&&)|(?:OR|\|\|))(?:(?<=[&|])|(?=[ \t\r\n\u3000()\[\]{}\"^~:]|\Z))[ \t\r\n\u3000]*"
)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_BROKEN = re.compile("[\ud800-\udfff]")
"""Surrogates, which no text of UTF-8 has."""
_KEYWORDS = frozenset(("AND", "OR", "NOT"))
_KNOWN_MAX = 50_000
"""So many words are remembered as what they ask."""

Operator = Literal["or", "and"]


def parse(text: str, fields: Fields, operator: Operator = "or") -> Query:
    """The query that a text is; `operator` is between clauses that just stand beside each other."""
    return Parser(fields, operator).parse(text)


class Parser:
    """Reads many queries over the same fields: what a word asks is found out once."""

    def __init__(self, fields: Fields, operator: Operator = "or") -> None:
        self.fields = fields
        self.operator = operator
        self._known: dict[tuple[str, ...], dict[str, Node]] = {}

    def parse(self, text: str) -> Query:
        """The query that a text is; QueryError, with where the mistake is, if it is none."""
        return Query(text, _Reader(text, self).query())

    def known(self, where: tuple[str, ...]) -> dict[str, Node]:
        """What plain words ask of some fields, as far as they were met."""
        words = self._known.setdefault(where, {})
        if len(words) >= _KNOWN_MAX:
            words.clear()
        return words


@dataclass(frozen=True, slots=True)
class _Word:
    """A word as it is written: where, what it says without its escapes, and the same as a pattern, where they are kept."""

    start: int
    end: int
    plain: str
    pattern: str
    wild: bool
    escaped: bool

    @property
    def keyword(self) -> str | None:
        """Which operator it is."""
        return self.plain if not self.escaped and self.plain in _KEYWORDS else None


class _Reader:
    def __init__(self, text: str, parser: Parser) -> None:
        self._text, self._fields, self._parser = text, parser.fields, parser
        self._at = 0
        self._depth = 0
        self._leaves = 0
        self._seen_at = -1
        self._seen: _Word | None = None
        self._said = ""
        self._words: list[Word] = []

    def query(self) -> Node:
        if (broken := _BROKEN.search(self._text)) is not None:
            self._refuse("half of a character is none", broken.start(), broken.end())
        self._space()
        if self._at == len(self._text):
            self._refuse("the query is empty", 0, len(self._text), hint="*:* meets every document")
        node = self._clauses(self._fields.default)
        if self._at < len(self._text):
            self._refuse("there is nothing here for ) to close", self._at, self._at + 1)
        return node

    # What a query is made of, from the loosest to the tightest.

    def _clauses(self, where: tuple[str, ...]) -> Node:
        """Clauses beside each other, up to the end or a closing parenthesis."""
        must: list[Node] = []
        should: list[Node] = []
        must_not: list[Node] = []
        plain = must if self._parser.operator == "and" else should
        text, end = self._text, len(self._text)
        while self._at < end and text[self._at] != ")":
            start = self._at
            sign, node = self._modified(where)
            if (operator := self._operator()) is not None:
                sign, node = self._joined(start, sign, node, operator, where)
            (plain if not sign else must if sign == "+" else must_not).append(node)
        if not must_not and len(must) + len(should) == 1:
            return must[0] if must else should[0]
        return Clauses(tuple(must), tuple(should), tuple(must_not))

    def _joined(
        self, start: int, sign: str, node: Node, operator: str | None, where: tuple[str, ...]
    ) -> tuple[str, Node]:
        """Clauses with OR between them, each of which may be several with AND between; `operator` stands after the first."""
        either: list[tuple[int, str, Node]] = []
        while True:
            both = [(sign, node)]
            while operator == "AND":
                both.append(self._modified(where))
                operator = self._operator()
            if len(both) > 1:
                wanted = tuple(node for sign, node in both if sign != "-")
                sign, node = "", Clauses(wanted, (), tuple(node for sign, node in both if sign == "-"))
            either.append((start, sign, node))
            if operator is None:
                break
            start = self._at
            sign, node = self._modified(where)
            operator = self._operator()
        if len(either) == 1:
            return sign, node
        for start, sign, _ in either:
            if sign == "+":
                self._refuse(
                    "+ says that a clause must hold, and between clauses with OR none must",
                    start,
                    start + 1,
                    hint="use AND",
                )
        return "", Clauses(should=tuple(_signed(sign, node) for _, sign, node in either))

    def _operator(self) -> str | None:
        """AND or OR, whatever stands for it, if it is next; it is passed."""
        start = self._at
        if self._text[start : start + 1] not in _OPERATORS:
            return None
        found = _OPERATOR.match(self._text, start)
        if found is None:
            return None
        self._at = found.end()
        if self._at == len(self._text) or self._text[self._at] == ")":
            said = found[0].rstrip(_SPACES)
            self._refuse(f"{said} needs a clause on either side", start, start + len(said))
        return "AND" if found[1] else "OR"

    def _modified(self, where: tuple[str, ...]) -> tuple[str, Node]:
        """A clause, and whether + or - (NOT, !) stands before it; the space after it is passed."""
        sign = ""
        if (character := self._next()) in _SIGNS:
            start = self._at
            self._at += 1
            if self._next() in _NOTHING or self._next() in _SPACE:
                self._refuse(f"{character} stands before nothing", start, start + 1)
            sign = "+" if character == "+" else "-"
        elif character == "N" and (word := self._peeked()) is not None and word.keyword == "NOT":
            self._at = word.end
            self._space()
            if self._next() in _NOTHING or ((after := self._peeked()) is not None and after.keyword):
                self._refuse("NOT stands before nothing", word.start, word.end)
            sign = "-"
        if (simple := self._simple(where)) is not None:
            return sign, simple
        node = self._clause(where)
        self._space()
        return sign, node

    def _simple(self, where: tuple[str, ...]) -> Node | None:
        """A word that stands for itself, with its field or without; None if what is next is something else."""
        found = _SIMPLE.match(self._text, self._at)
        if found is None:
            return None
        name, said = found.groups()
        if said in _KEYWORDS:
            return None
        if name is not None:
            where = (name,)
        if len(where) == 1 and ((field := self._fields.named.get(where[0])) is None or field.ordered):
            return None
        if self._leaves + len(where) > LEAVES_MAX:
            return None
        known = self._parser.known(where)
        node = known.get(said)
        if node is None:
            start, end = found.span(2)
            node = known[said] = self._of_word(
                _Word(start, end, said, said, wild=False, escaped=False), where
            )
        else:
            self._leaves += len(where)
        self._at = found.end()
        return node

    def _clause(self, where: tuple[str, ...]) -> Node:
        """A group, a phrase, a range or a word, with its field and its boost."""
        self._space()
        start = self._at
        if self._at == len(self._text):
            self._missing()
        word = self._peeked()
        if word is not None and word.keyword:
            self._refuse(f"{word.plain} needs a clause on either side", word.start, word.end, hint=_QUOTE)
        if word is not None and self._text[word.end : word.end + 1] == ":":
            self._at = word.end + 1
            if word.pattern == ANY and not word.escaped:
                return self._boosted(self._everything(start), start)
            where = (self._field(word),)
            self._space()
            if self._at == len(self._text) or self._next() == ")":
                self._refuse(f"field {word.plain} has nothing to look for", start, self._at or 1)
            node = self._value(where)
        else:
            node = self._value(where, bare=True)
        return self._boosted(node, start)

    def _everything(self, start: int) -> Node:
        word = self._word()
        if word is None or word.pattern != ANY or word.escaped:
            self._refuse(
                "a pattern cannot name a field",
                start,
                start + 1,
                hint="name the field; *:* meets every document",
            )
        return self._leaf(Everything(), start)

    def _value(self, where: tuple[str, ...], *, bare: bool = False) -> Node:
        """What is looked for: `bare` where no field stands before it."""
        character, start = self._next(), self._at
        if character == "(":
            return self._group(where)
        if character == '"':
            return self._phrase(where)
        if character in ("[", "{"):
            return self._range(where)
        if character == "/":
            end = self._text.find("/", start + 1) + 1 or len(self._text)
            self._refuse(
                "regular expressions are not understood",
                start,
                end,
                hint="use * and ?, or escape the slash: \\/",
            )
        only = self._fields.named[where[0]] if len(where) == 1 else None
        if character in ("<", ">", "=") and only is not None and (only.ordered or not bare):
            return self._comparison(only)
        if only is not None and only.ordered:
            return self._ordered(only)
        word = self._word(signs=not bare)
        if word is None:
            if character in ("&", "|"):
                width = 2 if self._text[start : start + 2] in ("&&", "||") else 1
                self._refuse(
                    f"{character * width} needs a clause on either side", start, start + width, hint=_QUOTE
                )
            said = {")": "there is nothing here for ) to close", ":": "there is no field before the colon"}
            reason = said.get(character, f"{character} stands where a clause should be")
            self._refuse(reason, start, start + 1, hint=f"escape it: \\{character}")
        return self._of_word(word, where)

    def _group(self, where: tuple[str, ...]) -> Node:
        start = self._at
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._refuse(f"parentheses lie more than {DEPTH_MAX} deep", start, start + 1)
        self._at += 1
        self._space()
        if self._next() == ")":
            self._refuse("there is nothing between the parentheses", start, self._at + 1)
        node = self._clauses(where)
        if self._next() != ")":
            self._refuse("this parenthesis is not closed", start, start + 1)
        self._at += 1
        self._depth -= 1
        return node

    def _phrase(self, where: tuple[str, ...]) -> Node:
        start = self._at
        said = self._quoted()
        slop = 0
        end = self._at
        if self._next() == "~":
            slop = self._number("~", "the slop of a phrase", SLOP_MAX)
        nodes: list[Node] = []
        for name in where:
            field = self._fields.named[name]
            if field.ordered:
                nodes.append(self._interval(field, said, start, end))
            elif field.kind == "keyword":
                nodes.append(self._leaf(Term(name, said), start))
            else:
                nodes.append(self._of_text(name, said, slop, start, end))
        return _any_of(nodes)

    def _range(self, where: tuple[str, ...]) -> Node:
        start = self._at
        low_in = self._next() == "["
        self._at += 1
        low = self._end_of_range(start)
        self._space()
        word = self._peeked()
        if word is None or word.plain != "TO":
            self._refuse(
                "a range has TO between its ends",
                self._at,
                word.end if word is not None else self._at + 1,
                hint="such as [1 TO 5] or {1 TO *]",
            )
        self._at = word.end
        high = self._end_of_range(start)
        self._space()
        if self._next() not in ("]", "}"):
            self._refuse(
                "this range is not closed",
                start,
                start + 1,
                hint="close it with ] or, without its last value, }",
            )
        high_in = self._next() == "]"
        self._at += 1
        nodes = [self._between(name, low, high, low_in, high_in, start) for name in where]
        return _any_of(nodes)

    def _end_of_range(self, start: int) -> _Word | None:
        """An end of a range; None if it is open."""
        self._space()
        begin = self._at
        if self._next() == '"':
            said = self._quoted()
            return _Word(begin, self._at, said, said, wild=False, escaped=True)
        word = self._goop("]}")
        if word is None:
            if self._at == len(self._text):
                self._refuse("this range is not closed", start, start + 1, hint="such as [1 TO 5]")
            self._refuse("a range needs both ends", begin, begin + 1, hint="an open end is *")
        return None if word.plain == ANY and not word.escaped else word

    def _comparison(self, field: Field) -> Node:
        start = self._at
        sign = self._text[start : start + 2]
        sign = sign if sign in (">=", "<=") else sign[0]
        self._at += len(sign)
        self._space()
        word = self._goop(")")
        if word is None:
            self._refuse(f"{sign} needs a value after it", start, start + len(sign))
        if sign == "=":
            if field.ordered:
                return self._interval(field, word.plain, word.start, word.end)
            return self._of_text(field.name, word.plain, 0, word.start, word.end)
        low, high = (word, None) if sign[0] == ">" else (None, word)
        return self._between(field.name, low, high, sign == ">=", sign == "<=", word.start)

    def _ordered(self, field: Field) -> Node:
        start = self._at
        word = self._goop(")^")
        if word is None:
            self._refuse(f"{self._next()} stands where a value should be", start, start + 1)
        if word.plain == ANY and not word.escaped:
            return self._leaf(Present(field.name), start)
        if word.wild or "~" in word.plain:
            self._refuse(
                f"field {field.name} is no text, and takes no pattern",
                word.start,
                word.end,
                hint=f"use a range: {field.name}:[low TO high]",
            )
        return self._interval(field, word.plain, word.start, word.end)

    def _boosted(self, node: Node, start: int) -> Node:
        """The node with the boost that may stand after it."""
        if self._next() != "^":
            return node
        begin = self._at
        self._at += 1
        word = self._goop(")")
        try:
            factor = float(word.plain) if word is not None else -1.0
        except ValueError:
            factor = -1.0
        if not 0 <= factor <= 1e6:
            self._refuse(
                "a boost is a number from 0 to 1000000",
                begin,
                max(self._at, begin + 1),
                hint="such as spark^2",
            )
        return boosted(node, factor)

    # Leaves.

    def _of_word(self, word: _Word, where: tuple[str, ...]) -> Node:
        distance = None
        if self._next() == "~":
            if word.wild:
                self._refuse("a pattern cannot be fuzzy too", word.start, self._at + 1)
            distance = self._number("~", "the distance of a fuzzy word", FUZZY_MAX, default=FUZZY_MAX)
            if len(word.plain) > FUZZY_CHARACTERS:
                self._refuse(
                    f"a fuzzy word has no more than {FUZZY_CHARACTERS} characters", word.start, word.end
                )
        nodes = []
        for name in where:
            field = self._fields.named[name]
            if field.ordered:
                if word.wild or distance is not None:
                    self._refuse(f"field {name} is no text, and takes no pattern", word.start, self._at)
                nodes.append(self._interval(field, word.plain, word.start, word.end))
            elif word.wild:
                nodes.append(self._of_pattern(field, word))
            elif distance is not None:
                nodes.append(
                    self._leaf(Fuzzy(name, self._piece(field, word.plain, word), distance), word.start)
                )
            elif field.kind == "keyword":
                nodes.append(self._leaf(Term(name, word.plain), word.start))
            else:
                nodes.append(self._of_text(name, word.plain, 0, word.start, word.end))
        return _any_of(nodes)

    def _of_pattern(self, field: Field, word: _Word) -> Node:
        pieces = Pattern(field.name, word.pattern).pieces()
        if all(piece is None for piece in pieces):
            return self._leaf(Present(field.name), word.start)
        signs = {None: ANY, "": ONE}
        made = "".join(signs[p] if not p else _escape(self._piece(field, p, word)) for p in pieces)
        return self._leaf(Pattern(field.name, made), word.start)

    def _piece(self, field: Field, piece: str, word: _Word) -> str:
        """A piece of a word as words are; it has to be one."""
        if field.kind == "keyword":
            return piece
        found = self._fields.analysis.words(piece)
        if len(piece) < 40 and (len(found) != 1 or found[0].end - found[0].start != len(piece)):
            self._refuse(
                f"no word has {piece!r} in it: text is cut at what is neither a letter nor a digit",
                word.start,
                word.end,
                hint="look for the words around it, or for a phrase",
            )
        return self._fields.analysis.normal(piece)

    def _of_text(self, name: str, said: str, slop: int, start: int, end: int) -> Node:
        if self._fields.named[name].kind == "keyword":
            return self._leaf(Term(name, said), start)
        if said != self._said:  # it is asked of each field
            self._said, self._words = said, self._fields.analysis.words(said)
        words = self._words
        if not words:
            self._refuse("there is no word in it to look for", start, end, hint=_WORDS)
        if len(words) == 1:
            return self._leaf(Term(name, words[0].term), start)
        first = words[0].position
        places = tuple(word.position - first for word in words)
        return self._leaf(Phrase(name, tuple(word.term for word in words), places, slop), start)

    def _interval(self, field: Field, said: str, start: int, end: int) -> Node:
        first, last = self._values(field, said, start, end)
        return self._leaf(range_of(field.name, first, last), start)

    def _between(
        self, name: str, low: _Word | None, high: _Word | None, low_in: bool, high_in: bool, start: int
    ) -> Node:
        field = self._fields.named[name]
        if field.kind == "text":
            self._refuse(
                f"field {name} is text, which has no order",
                start,
                self._at,
                hint="ranges are for numbers, dates and columns that are not text",
            )
        if low is None and high is None:
            return self._leaf(Present(name), start)
        if field.kind == "keyword":
            first, last = (None if word is None else word.plain for word in (low, high))
            return self._leaf(Span(name, first, last, low_in, high_in), start)
        least, most = LOWEST, HIGHEST
        if low is not None:
            values = self._values(field, low.plain, low.start, low.end)
            least = values[0] if low_in else values[1] + 1
        if high is not None:
            values = self._values(field, high.plain, high.start, high.end)
            most = values[1] if high_in else values[0] - 1
        if low is not None and high is not None and most < least:
            self._refuse("nothing lies in this range", start, self._at)
        return self._leaf(range_of(name, least, most), start)

    def _values(self, field: Field, said: str, start: int, end: int) -> tuple[int, int]:
        try:
            return field.interval(said)
        except (ValueError, OverflowError) as failed:
            reason = str(failed) if str(failed).startswith("it takes") else "that date is not in the calendar"
            self._refuse(f"{said!r} is no value of field {field.name}: {reason}", start, end)

    def _leaf(self, node: Node, start: int) -> Node:
        self._leaves += 1
        if self._leaves > LEAVES_MAX:
            self._refuse(
                f"the query has more than {LEAVES_MAX} terms",
                start,
                self._at,
                hint="a term counts once for each field that is searched; make several queries of it",
            )
        return node

    def _field(self, word: _Word) -> str:
        if word.wild:
            self._refuse(
                "a pattern cannot name a field", word.start, word.end, hint="name the fields one by one"
            )
        names = self._fields.named
        if word.plain not in names:
            near = difflib.get_close_matches(word.plain, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"
            self._refuse(f"there is no field {word.plain!r}", word.start, word.end, hint=hint)
        return word.plain

    # Characters.

    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _space(self) -> None:
        while self._next() in _SPACE and self._at < len(self._text):
            self._at += 1

    def _peeked(self) -> _Word | None:
        """The word that is next, which is not passed."""
        if self._seen_at != self._at:
            at = self._at
            self._seen_at, self._seen = at, self._word()
            self._at = at
        return self._seen

    def _word(self, *, signs: bool = False) -> _Word | None:
        """The word that is next, which is passed; None if none is. `signs` lets it begin with + or -."""
        if not signs and self._next() in ("+", "-", "!"):
            return None
        if self._text.startswith(("&&", "||"), self._at):
            return None
        return self._read(_ENDS)

    def _goop(self, ends: str) -> _Word | None:
        """A value that may have colons, brackets and signs in it, up to a space or one of `ends`."""
        return self._read(_SPACE | frozenset(ends))

    def _read(self, ends: frozenset[str]) -> _Word | None:
        start, text = self._at, self._text
        found = _PLAIN.match(text, start)
        end = found.end() if found is not None else start
        if end > start and (end == len(text) or text[end] in ends):
            self._at = end
            return _Word(start, end, text[start:end], text[start:end], wild=False, escaped=False)
        plain, pattern, wild, escaped = [], [], False, False
        while self._at < len(text) and (character := text[self._at]) not in ends:
            self._at += 1
            if character == ESCAPE:
                if self._at == len(text):
                    self._refuse(
                        "there is nothing to escape",
                        self._at - 1,
                        self._at,
                        hint="a backslash itself is \\\\",
                    )
                character = text[self._at]
                self._at += 1
                escaped = True
                pattern.append(_escape(character))
            else:
                wild = wild or character in (ANY, ONE)
                pattern.append(character)
            plain.append(character)
        if self._at == start:
            return None
        return _Word(start, self._at, "".join(plain), "".join(pattern), wild, escaped)

    def _quoted(self) -> str:
        found = _QUOTED.match(self._text, self._at)
        if found is None:
            self._refuse("this quote is not closed", self._at, self._at + 1)
        self._at = found.end()
        return _ESCAPED.sub(r"\1", found[1])

    def _number(self, sign: str, what: str, most: int, default: int | None = None) -> int:
        start = self._at
        self._at += len(sign)
        word = self._read(_ENDS)
        if word is None and default is not None:
            return default
        if word is None or not (word.plain.isascii() and word.plain.isdigit()) or int(word.plain) > most:
            self._refuse(f"{what} is a whole number from 0 to {most}", start, max(self._at, start + 1))
        return int(word.plain)

    def _missing(self) -> NoReturn:
        self._refuse("the query ends where a clause should be", max(0, len(self._text) - 1), len(self._text))

    def _refuse(self, reason: str, start: int, end: int, *, hint: str | None = None) -> NoReturn:
        start, end = min(start, len(self._text)), min(end, len(self._text))
        detail, line, column = underlined(self._text, start, end)
        raise QueryError(reason, detail=detail, hint=hint, start=start, end=end, line=line, column=column)


_WORDS = "words are letters and digits, of less than 40 bytes"
_QUOTE = 'a word that is meant as it is stands in quotes: "AND"'


def _signed(sign: str, node: Node) -> Node:
    return Clauses(must_not=(node,)) if sign == "-" else node


def _any_of(nodes: list[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else Clauses(should=tuple(nodes))


def _escape(text: str) -> str:
    for special in (ESCAPE, ANY, ONE):
        text = text.replace(special, ESCAPE + special)
    return text
