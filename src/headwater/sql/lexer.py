"""The words of a statement: Spark's lexical rules by sqlglot's tokenizer, a cursor over words, and errors with positions.

This module knows no statements; `headwater.sql.parser` parses those.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn

from sqlglot import TokenType
from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError

from headwater.core.errors import HeadwaterError, StatementError, underlined

WordKind = Literal["word", "quoted", "string", "number", "sign", "end"]

_NAME = re.compile(r"[^\W\d]\w*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_OPENING = re.compile(r"['\"`]|/\*|--")
_COMMENT_MARK = re.compile(r"/\*|\*/")
_CLOSED = {
    "'": re.compile(r"'(?>[^'\\]|\\.)*'", re.DOTALL),
    '"': re.compile(r'"(?>[^"\\]|\\.)*"', re.DOTALL),
    "`": re.compile(r"`[^`]*`"),
    "--": re.compile(r"--[^\n]*"),
}
_STRINGS = (
    TokenType.STRING,
    TokenType.RAW_STRING,
    TokenType.HEX_STRING,
    TokenType.BIT_STRING,
    TokenType.BYTE_STRING,
    TokenType.NATIONAL_STRING,
    TokenType.UNICODE_STRING,
)


class HeadwaterDialect(Spark):
    """Spark's dialect with SHOW and EXPLAIN tokenized as statements instead of being passed on as raw text."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's tokenizer without commands that consume the rest of their text."""

        COMMANDS: ClassVar[set[TokenType]] = set()


@dataclass(frozen=True)
class Word:
    """A word with its position: characters start..end of the text, half-open."""

    kind: WordKind
    text: str
    start: int
    end: int

    def is_(self, *words: str) -> bool:
        """Whether the word is one of these keywords or signs, in any case."""
        return self.kind in ("word", "sign") and self.text.upper() in words

    @property
    def is_name(self) -> bool:
        """Whether the word can be a name."""
        return self.kind in ("word", "quoted")


def words_of(text: str) -> list[Word]:
    """Return the words of a text, without comments; a word of kind `end` terminates the list."""
    if (half := _SURROGATE.search(text)) is not None:
        raise StatementError(
            f"the statement contains half of a surrogate pair: {half[0]!a}",
            detail=f"character {half.start() + 1} of the statement",
            hint="decode the text with errors='replace', or write the whole character",
            reason="surrogate",
        )
    try:
        tokens = HeadwaterDialect().tokenize(text)
    except TokenError:
        at = _unclosed(text)
        raise pointing(
            text, at, len(text), "this quote or comment is never closed", hint="close it", reason="not-closed"
        ) from None
    words: list[Word] = []
    for token in tokens:
        if words and token.start < words[-1].end:
            continue  # a suffix that the tokenizer split off a number, such as the L of 10L
        words += _split(text, token.token_type, token.text, token.start, token.end + 1)
    return [*words, Word("end", "", len(text.rstrip()), len(text.rstrip()))]


def _split(text: str, kind: TokenType, value: str, start: int, end: int) -> list[Word]:
    """Return the words of a token; the tokenizer joins some keywords, as in PRIMARY KEY."""
    if kind in _STRINGS:
        return [Word("string", value, start, end)]
    if kind == TokenType.IDENTIFIER:
        return [Word("quoted", value, start, end)]
    if kind == TokenType.NUMBER:
        return [Word("number", value, start, end)]
    source = text[start:end]
    if _NAME.match(source):
        return [Word("word", m[0], start + m.start(), start + m.end()) for m in _NAME.finditer(source)]
    return [Word("sign", source, start, end)]


def _unclosed(text: str) -> int:
    """Return where the unclosed quote or comment begins; 0 if it is not found. The text is read once."""
    at = 0
    while (opened := _OPENING.search(text, at)) is not None:
        if opened[0] == "/*":
            closed = _comment_end(text, opened.end())
        else:
            found = _CLOSED[opened[0]].match(text, opened.start())
            closed = None if found is None else found.end()
        if closed is None:
            return opened.start()
        at = closed
    return 0


def _comment_end(text: str, at: int) -> int | None:
    """Return where a comment ends, including nested comments; None if it is never closed."""
    depth = 1
    for mark in _COMMENT_MARK.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return None


class Words:
    """A cursor over the words of a text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words = words_of(text)
        self._at = 0

    @property
    def next(self) -> Word:
        """The next word, which is not consumed."""
        return self._words[self._at]

    def at_end(self) -> bool:
        """Whether all words are consumed."""
        return self.next.kind == "end"

    def ahead(self, count: int) -> Word:
        """Return a word further ahead without consuming it; the end word if there is none."""
        return self._words[min(self._at + count, len(self._words) - 1)]

    def statement(self) -> list[Word]:
        """Return the words from the next one to the end of its statement, without consuming them."""
        depth = 0
        for at in range(self._at, len(self._words)):
            word = self._words[at]
            depth += word.is_("(") - word.is_(")")
            if word.kind == "end" or (depth <= 0 and word.is_(";")):
                return self._words[self._at : at]
        return self._words[self._at :]

    def before(self, count: int) -> Word:
        """Return a consumed word, counted backwards from the cursor."""
        return self._words[max(0, self._at - count)]

    def take(self) -> Word:
        """Consume and return the next word."""
        word = self.next
        if word.kind != "end":
            self._at += 1
        return word

    def take_until(self, stop: str) -> list[Word]:
        """Consume and return all words up to the sign `stop` or the end; `stop` must not occur inside parentheses."""
        taken: list[Word] = []
        opened: list[Word] = []
        while not self.at_end() and not (self.next.is_(stop) and not opened):
            word = self.take()
            taken.append(word)
            if word.is_("("):
                opened.append(word)
            elif word.is_(")") and not opened:
                self.fail("this parenthesis closes none", at=word, reason="not-opened")
            elif word.is_(")"):
                opened.pop()
            elif word.is_(stop):
                break
        if opened:
            self.fail("this parenthesis is never closed", hint="close it", at=opened[-1], reason="not-closed")
        return taken

    def accept(self, *keywords: str) -> bool:
        """Consume these keywords or signs if all of them come next, and return whether they did."""
        if all(self.ahead(i).is_(k) for i, k in enumerate(keywords)):
            self._at += len(keywords)
            return True
        return False

    def expect(self, *keywords: str, hint: str | None = None) -> Word:
        """Consume these keywords and return the last one; an error at the first that is missing."""
        word = self.next
        for keyword in keywords:
            word = self.next
            if not word.is_(keyword):
                self.fail(
                    f"expected {keyword}, found {shown(word)}", hint=hint, expected=keyword, found=word.text
                )
            self.take()
        return word

    def name(self, what: str) -> Word:
        """Consume a name, plain or in backticks."""
        word = self.next
        if word.kind == "string":
            self.fail(
                f"expected {what}, found a string",
                hint=f"write names without quotes or in backticks: `{word.text}`",
                expected="a name",
                found=word.text,
            )
        if not word.is_name:
            self.fail(f"expected {what}, found {shown(word)}", expected="a name", found=word.text)
        return self.take()

    def error(
        self, message: str, *, hint: str | None = None, at: Word | None = None, **facts: Any
    ) -> StatementError:
        """Return an error that points at a word, by default the next one."""
        word = at or self.next
        return pointing(self.text, word.start, word.end, message, hint=hint, **facts)

    def fail(
        self, message: str, *, hint: str | None = None, at: Word | None = None, **facts: Any
    ) -> NoReturn:
        """Raise an error that points at a word, by default the next one."""
        raise self.error(message, hint=hint, at=at, **facts)


def shown(word: Word) -> str:
    """Return a word as quoted in error messages."""
    return "the end" if word.kind == "end" else f"{word.text!r}"


@dataclass(frozen=True)
class Span:
    """A part of a text, to be underlined in an error about it."""

    text: str
    start: int
    end: int

    def pointed(self, error: HeadwaterError, hint: str | None = None) -> StatementError:
        """Return an error with this position added; its facts stay, but for a `line` and a `column`, which are the position."""
        hint = error.hint or hint
        return pointing(
            self.text, self.start, self.end, error.message, hint=hint, because=error.detail, **error.facts
        )


def pointing(
    text: str,
    start: int,
    end: int,
    message: str,
    /,
    *,
    hint: str | None = None,
    because: str | None = None,
    **facts: Any,
) -> StatementError:
    """Return an error that shows the line with the part start..end underlined, followed by the reason `because`, if given.
    Its facts `line` and `column` are the position."""
    detail, number, column = underlined(text, start, end)
    if because:
        detail += f"\n    {because}"
    return StatementError(message, detail=detail, hint=hint, **{**facts, "line": number, "column": column})
