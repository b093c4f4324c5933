"""The scanner of Lucene's query syntax: characters, words, and errors with their position in the text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

from headwater.core.errors import QueryError, underlined
from headwater.operators.percolator.query_nodes import ANY, ESCAPE, ONE

SPACES = " \t\r\n\u3000"
SPACE = frozenset(SPACES)
_ENDS = frozenset(' \t\r\n\u3000()[]{}"^~:')
_PLAIN = re.compile(r"[^\s\u3000()\[\]{}\"^~:\\*?]*")
"""Fast path for the characters of a word without delimiters, escapes and wildcards, as in most words."""
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
KEYWORDS = frozenset(("AND", "OR", "NOT"))


@dataclass(frozen=True, slots=True)
class QueryWord:
    """A word as written: its position, its text without escapes, and its text as a pattern, with escapes."""

    start: int
    end: int
    plain: str
    pattern: str
    wild: bool
    escaped: bool

    @property
    def keyword(self) -> str | None:
        """The operator keyword that the word is, or None."""
        return self.plain if not self.escaped and self.plain in KEYWORDS else None


class QueryScanner:
    """The text of a query, and the current position in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self._seen_at = -1
        self._seen: QueryWord | None = None

    def ahead(self) -> str:
        """Return the next character; empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip_space(self) -> None:
        """Skip whitespace."""
        while self.ahead() in SPACE and self.at < len(self.text):
            self.at += 1

    def peeked(self) -> QueryWord | None:
        """Return the next word without consuming it."""
        if self._seen_at != self.at:
            at = self.at
            self._seen_at, self._seen = at, self.word()
            self.at = at
        return self._seen

    def word(self, *, signs: bool = False) -> QueryWord | None:
        """Consume the next word; None if there is none. `signs` allows the word to begin with + or -."""
        if not signs and self.ahead() in ("+", "-", "!"):
            return None
        if self.text.startswith(("&&", "||"), self.at):
            return None
        return self._read(_ENDS)

    def value(self, ends: str) -> QueryWord | None:
        """Consume a value, which may contain colons, brackets and signs, up to a space or one of `ends`."""
        return self._read(SPACE | frozenset(ends))

    def quoted(self) -> str:
        """Consume a quoted text; return it without quotes and escapes."""
        found = _QUOTED.match(self.text, self.at)
        if found is None:
            self.refuse("this quote is not closed", self.at, self.at + 1, reason="not-closed")
        self.at = found.end()
        return _ESCAPED.sub(r"\1", found[1])

    def number(self, sign: str, what: str, most: int, default: int | None = None) -> int:
        """Consume a sign and the number after it; return `default` if there is no number."""
        start = self.at
        self.at += len(sign)
        word = self._read(_ENDS)
        if word is None and default is not None:
            return default
        if word is None or not (word.plain.isascii() and word.plain.isdigit()) or int(word.plain) > most:
            self.refuse(
                f"{what} is a whole number from 0 to {most}", start, max(self.at, start + 1), reason="number"
            )
        return int(word.plain)

    def missing(self) -> NoReturn:
        """Raise QueryError for a query that ends too early."""
        self.refuse(
            "the query ends before a clause",
            max(0, len(self.text) - 1),
            len(self.text),
            reason="clause-missing",
        )

    def refuse(
        self, message: str, start: int, end: int, *, hint: str | None = None, **facts: Any
    ) -> NoReturn:
        """Raise QueryError for the text between two positions."""
        start, end = min(start, len(self.text)), min(end, len(self.text))
        detail, line, column = underlined(self.text, start, end)
        raise QueryError(
            message, detail=detail, hint=hint, start=start, end=end, line=line, column=column, **facts
        )

    def _read(self, ends: frozenset[str]) -> QueryWord | None:
        start, text = self.at, self.text
        found = _PLAIN.match(text, start)
        end = found.end() if found is not None else start
        if end > start and (end == len(text) or text[end] in ends):
            self.at = end
            return QueryWord(start, end, text[start:end], text[start:end], wild=False, escaped=False)
        plain, pattern, wild, escaped = [], [], False, False
        while self.at < len(text) and (character := text[self.at]) not in ends:
            self.at += 1
            if character == ESCAPE:
                if self.at == len(text):
                    self.refuse(
                        "the backslash escapes nothing",
                        self.at - 1,
                        self.at,
                        hint="write \\\\ for a backslash",
                        reason="escape",
                    )
                character = text[self.at]
                self.at += 1
                escaped = True
                pattern.append(escape(character))
            else:
                wild = wild or character in (ANY, ONE)
                pattern.append(character)
            plain.append(character)
        if self.at == start:
            return None
        return QueryWord(start, self.at, "".join(plain), "".join(pattern), wild, escaped)


def escape(text: str) -> str:
    """Escape all special characters of a pattern in a text."""
    for special in (ESCAPE, ANY, ONE):
        text = text.replace(special, ESCAPE + special)
    return text
