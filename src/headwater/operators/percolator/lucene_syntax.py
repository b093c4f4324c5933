"""The parser of Lucene's query syntax; errors report the position of the mistake.

From loosest to tightest: adjacent clauses, of which one must hold unless the operator is 'and', with `+` for clauses
that must hold and `-` or `NOT` for those that must not; `OR` (`||`); `AND` (`&&`); `NOT` (`!`, `-`); a single clause.
Adjacent clauses behave as in Lucene's StandardQueryParser; everywhere else `NOT` is plain negation. A word that the
analysis splits into several, such as wi-fi, is a phrase.
"""

from __future__ import annotations

import re
from typing import Literal

from headwater.operators.percolator.fields import Field, Fields
from headwater.operators.percolator.query_leaves import LEAVES_MAX, QueryLeaves, any_of
from headwater.operators.percolator.query_nodes import (
    ANY,
    Clauses,
    Everything,
    Node,
    ParsedQuery,
    Present,
    Term,
    boosted,
)
from headwater.operators.percolator.query_scanner import KEYWORDS, SPACE, SPACES, QueryScanner, QueryWord

DEPTH_MAX = 50
"""Maximum nesting depth of parentheses."""
SLOP_MAX = 1_000
_SIGNS = frozenset("+-!")
_NOTHING = frozenset(("", ")", *_SIGNS))
_OPERATORS = frozenset("AO&|")
_SIMPLE = re.compile(
    r"(?:([^\W\d]\w*):)?"  # a field
    r"([^\s\u3000()\[\]{}\"^~:\\*?+\-!&|/<>=][^\s\u3000()\[\]{}\"^~:\\*?]*)"
    r"(?:[ \t\r\n\u3000]+|(?=\))|\Z)"
)
"""Fast path for a clause that is a single word, as most are, with the space after it."""
_OPERATOR = re.compile(
    r"(?:(AND|&&)|(?:OR|\|\|))(?:(?<=[&|])|(?=[ \t\r\n\u3000()\[\]{}\"^~:]|\Z))[ \t\r\n\u3000]*"
)
_BROKEN = re.compile("[\ud800-\udfff]")
"""Surrogates, which cannot be encoded in UTF-8."""
_KNOWN_MAX = 50_000
"""Maximum number of words whose nodes are cached."""

Operator = Literal["or", "and"]


def parse(text: str, fields: Fields, operator: Operator = "or") -> ParsedQuery:
    """Parse a query; `operator` is the operator between adjacent clauses."""
    return Parser(fields, operator).parse(text)


class Parser:
    """A parser of many queries over the same fields, which caches the nodes of words."""

    def __init__(self, fields: Fields, operator: Operator = "or") -> None:
        self.fields = fields
        self.operator = operator
        self._known: dict[tuple[str, ...], dict[str, Node]] = {}

    def parse(self, text: str) -> ParsedQuery:
        """Parse a query; raises QueryError, with the position of the mistake, if the text is not a query."""
        return ParsedQuery(text, _Reader(text, self).query())

    def known(self, where: tuple[str, ...]) -> dict[str, Node]:
        """Return the cache of plain words and their nodes in some fields."""
        words = self._known.setdefault(where, {})
        if len(words) >= _KNOWN_MAX:
            words.clear()
        return words


class _Reader:
    """Recursive-descent reader of one query."""

    def __init__(self, text: str, parser: Parser) -> None:
        self._fields, self._parser = parser.fields, parser
        self._scanner = QueryScanner(text)
        self._leaves = QueryLeaves(self._scanner, parser.fields)
        self._depth = 0

    def query(self) -> Node:
        if (broken := _BROKEN.search(self._scanner.text)) is not None:
            self._scanner.refuse(
                "the query contains half of a surrogate pair",
                broken.start(),
                broken.end(),
                reason="surrogate",
            )
        self._scanner.skip_space()
        if self._scanner.at == len(self._scanner.text):
            self._scanner.refuse(
                "the query is empty",
                0,
                len(self._scanner.text),
                hint="*:* matches every document",
                reason="empty-query",
            )
        node = self._clauses(self._fields.default)
        if self._scanner.at < len(self._scanner.text):
            self._scanner.refuse(
                "this parenthesis closes none", self._scanner.at, self._scanner.at + 1, reason="not-opened"
            )
        return node

    def _clauses(self, where: tuple[str, ...]) -> Node:
        """Read adjacent clauses, up to the end or a closing parenthesis."""
        must: list[Node] = []
        should: list[Node] = []
        must_not: list[Node] = []
        plain = must if self._parser.operator == "and" else should
        text, end = self._scanner.text, len(self._scanner.text)
        while self._scanner.at < end and text[self._scanner.at] != ")":
            start = self._scanner.at
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
        """Read the rest of an OR expression, whose operands may be AND expressions; `operator` follows the first clause."""
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
            start = self._scanner.at
            sign, node = self._modified(where)
            operator = self._operator()
        if len(either) == 1:
            return sign, node
        for start, sign, _ in either:
            if sign == "+":
                self._scanner.refuse(
                    "+ cannot be combined with OR: a required clause is not an alternative",
                    start,
                    start + 1,
                    hint="use AND",
                    reason="required-in-or",
                )
        return "", Clauses(should=tuple(_signed(sign, node) for _, sign, node in either))

    def _operator(self) -> str | None:
        """Consume AND or OR in any spelling, if it is next; return its name."""
        start = self._scanner.at
        if self._scanner.text[start : start + 1] not in _OPERATORS:
            return None
        found = _OPERATOR.match(self._scanner.text, start)
        if found is None:
            return None
        self._scanner.at = found.end()
        if self._scanner.at == len(self._scanner.text) or self._scanner.text[self._scanner.at] == ")":
            said = found[0].rstrip(SPACES)
            self._scanner.refuse(
                f"{said} needs a clause on either side", start, start + len(said), reason="operand-missing"
            )
        return "AND" if found[1] else "OR"

    def _modified(self, where: tuple[str, ...]) -> tuple[str, Node]:
        """Read a clause, its sign (+, or - for NOT and !), and the space after it."""
        sign = ""
        if (character := self._scanner.ahead()) in _SIGNS:
            start = self._scanner.at
            self._scanner.at += 1
            if self._scanner.ahead() in _NOTHING or self._scanner.ahead() in SPACE:
                self._scanner.refuse(
                    f"{character} has no clause after it", start, start + 1, reason="operand-missing"
                )
            sign = "+" if character == "+" else "-"
        elif character == "N" and (word := self._scanner.peeked()) is not None and word.keyword == "NOT":
            self._scanner.at = word.end
            self._scanner.skip_space()
            if self._scanner.ahead() in _NOTHING or (
                (after := self._scanner.peeked()) is not None and after.keyword
            ):
                self._scanner.refuse(
                    "NOT has no clause after it", word.start, word.end, reason="operand-missing"
                )
            sign = "-"
        if (simple := self._simple(where)) is not None:
            return sign, simple
        node = self._clause(where)
        self._scanner.skip_space()
        return sign, node

    def _simple(self, where: tuple[str, ...]) -> Node | None:
        """Read a plain word, with or without its field; None if something else is next."""
        found = _SIMPLE.match(self._scanner.text, self._scanner.at)
        if found is None:
            return None
        name, said = found.groups()
        if said in KEYWORDS:
            return None
        if name is not None:
            where = (name,)
        if len(where) == 1 and ((field := self._fields.named.get(where[0])) is None or field.ordered):
            return None
        if self._leaves.count + len(where) > LEAVES_MAX:
            return None
        known = self._parser.known(where)
        node = known.get(said)
        if node is None:
            start, end = found.span(2)
            node = known[said] = self._leaves.of_word(
                QueryWord(start, end, said, said, wild=False, escaped=False), where
            )
        else:
            self._leaves.count += len(where)
        self._scanner.at = found.end()
        return node

    def _clause(self, where: tuple[str, ...]) -> Node:
        """Read a group, a phrase, a range or a word, with its field and its boost."""
        self._scanner.skip_space()
        start = self._scanner.at
        if self._scanner.at == len(self._scanner.text):
            self._scanner.missing()
        word = self._scanner.peeked()
        if word is not None and word.keyword:
            self._scanner.refuse(
                f"{word.plain} needs a clause on either side",
                word.start,
                word.end,
                hint=_QUOTE,
                reason="operand-missing",
            )
        if word is not None and self._scanner.text[word.end : word.end + 1] == ":":
            self._scanner.at = word.end + 1
            if word.pattern == ANY and not word.escaped:
                return self._boosted(self._everything(start), start)
            where = (self._leaves.field(word),)
            self._scanner.skip_space()
            if self._scanner.at == len(self._scanner.text) or self._scanner.ahead() == ")":
                self._scanner.refuse(
                    f"field {word.plain} has no value", start, self._scanner.at or 1, reason="value-missing"
                )
            node = self._value(where)
        else:
            node = self._value(where, bare=True)
        return self._boosted(node, start)

    def _everything(self, start: int) -> Node:
        word = self._scanner.word()
        if word is None or word.pattern != ANY or word.escaped:
            self._scanner.refuse(
                "a field name cannot contain a wildcard",
                start,
                start + 1,
                hint="write the name of a field; *:* matches every document",
                reason="field-pattern",
            )
        return self._leaves.leaf(Everything(), start)

    def _value(self, where: tuple[str, ...], *, bare: bool = False) -> Node:
        """Read the value of a clause; `bare` if it is not preceded by a field."""
        character, start = self._scanner.ahead(), self._scanner.at
        if character == "(":
            return self._group(where)
        if character == '"':
            return self._phrase(where)
        if character in ("[", "{"):
            return self._range(where)
        if character == "/":
            end = self._scanner.text.find("/", start + 1) + 1 or len(self._scanner.text)
            self._scanner.refuse(
                "regular expressions are not supported",
                start,
                end,
                hint="use * and ?, or escape the slash: \\/",
                reason="regular-expression",
            )
        only = self._fields.named[where[0]] if len(where) == 1 else None
        if character in ("<", ">", "=") and only is not None and (only.ordered or not bare):
            return self._comparison(only)
        if only is not None and only.ordered:
            return self._ordered(only)
        word = self._scanner.word(signs=not bare)
        if word is None:
            if character in ("&", "|"):
                width = 2 if self._scanner.text[start : start + 2] in ("&&", "||") else 1
                self._scanner.refuse(
                    f"{character * width} needs a clause on either side",
                    start,
                    start + width,
                    hint=_QUOTE,
                    reason="operand-missing",
                )
            said = {")": "this parenthesis closes none", ":": "there is no field name before the colon"}
            message = said.get(character, f"{character} is not expected here")
            self._scanner.refuse(
                message, start, start + 1, hint=f"escape it: \\{character}", reason="unexpected-character"
            )
        return self._leaves.of_word(word, where)

    def _group(self, where: tuple[str, ...]) -> Node:
        start = self._scanner.at
        self._depth += 1
        if self._depth > DEPTH_MAX:
            self._scanner.refuse(
                f"parentheses are nested more than {DEPTH_MAX} deep",
                start,
                start + 1,
                reason="nested-too-deeply",
            )
        self._scanner.at += 1
        self._scanner.skip_space()
        if self._scanner.ahead() == ")":
            self._scanner.refuse(
                "the parentheses are empty", start, self._scanner.at + 1, reason="empty-parentheses"
            )
        node = self._clauses(where)
        if self._scanner.ahead() != ")":
            self._scanner.refuse("this parenthesis is not closed", start, start + 1, reason="not-closed")
        self._scanner.at += 1
        self._depth -= 1
        return node

    def _phrase(self, where: tuple[str, ...]) -> Node:
        start = self._scanner.at
        said = self._scanner.quoted()
        slop = 0
        end = self._scanner.at
        if self._scanner.ahead() == "~":
            slop = self._scanner.number("~", "the slop of a phrase", SLOP_MAX)
        nodes: list[Node] = []
        for name in where:
            field = self._fields.named[name]
            if field.ordered:
                nodes.append(self._leaves.interval(field, said, start, end))
            elif field.kind == "keyword":
                nodes.append(self._leaves.leaf(Term(name, said), start))
            else:
                nodes.append(self._leaves.of_text(name, said, slop, start, end))
        return any_of(nodes)

    def _range(self, where: tuple[str, ...]) -> Node:
        start = self._scanner.at
        low_in = self._scanner.ahead() == "["
        self._scanner.at += 1
        low = self._end_of_range(start)
        self._scanner.skip_space()
        word = self._scanner.peeked()
        if word is None or word.plain != "TO":
            self._scanner.refuse(
                "a range needs TO between its ends",
                self._scanner.at,
                word.end if word is not None else self._scanner.at + 1,
                hint="write [1 TO 5], or {1 TO *] without the lower end",
                reason="range-without-to",
            )
        self._scanner.at = word.end
        high = self._end_of_range(start)
        self._scanner.skip_space()
        if self._scanner.ahead() not in ("]", "}"):
            self._scanner.refuse(
                "this range is not closed",
                start,
                start + 1,
                hint="close it with ], or with } to exclude the upper end",
                reason="not-closed",
            )
        high_in = self._scanner.ahead() == "]"
        self._scanner.at += 1
        nodes = [self._leaves.between(name, low, high, low_in, high_in, start) for name in where]
        return any_of(nodes)

    def _end_of_range(self, start: int) -> QueryWord | None:
        """Read an end of a range; None if it is open."""
        self._scanner.skip_space()
        begin = self._scanner.at
        if self._scanner.ahead() == '"':
            said = self._scanner.quoted()
            return QueryWord(begin, self._scanner.at, said, said, wild=False, escaped=True)
        word = self._scanner.value("]}")
        if word is None:
            if self._scanner.at == len(self._scanner.text):
                self._scanner.refuse(
                    "this range is not closed", start, start + 1, hint="such as [1 TO 5]", reason="not-closed"
                )
            self._scanner.refuse(
                "a range needs both ends",
                begin,
                begin + 1,
                hint="write * for an open end",
                reason="range-end-missing",
            )
        return None if word.plain == ANY and not word.escaped else word

    def _comparison(self, field: Field) -> Node:
        start = self._scanner.at
        sign = self._scanner.text[start : start + 2]
        sign = sign if sign in (">=", "<=") else sign[0]
        self._scanner.at += len(sign)
        self._scanner.skip_space()
        word = self._scanner.value(")")
        if word is None:
            self._scanner.refuse(
                f"{sign} needs a value after it", start, start + len(sign), reason="value-missing"
            )
        if sign == "=":
            if field.ordered:
                return self._leaves.interval(field, word.plain, word.start, word.end)
            return self._leaves.of_text(field.name, word.plain, 0, word.start, word.end)
        low, high = (word, None) if sign[0] == ">" else (None, word)
        return self._leaves.between(field.name, low, high, sign == ">=", sign == "<=", word.start)

    def _ordered(self, field: Field) -> Node:
        start = self._scanner.at
        word = self._scanner.value(")^")
        if word is None:
            self._scanner.refuse(
                f"expected a value, found {self._scanner.ahead()}", start, start + 1, reason="value-missing"
            )
        if word.plain == ANY and not word.escaped:
            return self._leaves.leaf(Present(field.name), start)
        if word.wild or "~" in word.plain:
            self._scanner.refuse(
                f"field {field.name} is not a text field, and supports no wildcards",
                word.start,
                word.end,
                hint=f"use a range: {field.name}:[low TO high]",
                reason="pattern-on-number",
                field=field.name,
            )
        return self._leaves.interval(field, word.plain, word.start, word.end)

    def _boosted(self, node: Node, start: int) -> Node:
        """Apply the boost that may follow a node."""
        if self._scanner.ahead() != "^":
            return node
        begin = self._scanner.at
        self._scanner.at += 1
        word = self._scanner.value(")")
        try:
            factor = float(word.plain) if word is not None else -1.0
        except ValueError:
            factor = -1.0
        if not 0 <= factor <= 1e6:
            self._scanner.refuse(
                "a boost is a number from 0 to 1000000",
                begin,
                max(self._scanner.at, begin + 1),
                hint="such as spark^2",
                reason="boost",
            )
        return boosted(node, factor)


_QUOTE = 'write the word in quotes to search for it: "AND"'


def _signed(sign: str, node: Node) -> Node:
    return Clauses(must_not=(node,)) if sign == "-" else node
