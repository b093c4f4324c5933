"""The words of a statement: Spark's lexical rules by sqlglot's tokenizer, read one by one, and errors that point.

Knows no statement; `headwater.sql.statements` reads those out of the words.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Literal, NoReturn

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
    """Spark's dialect, in which SHOW and EXPLAIN are statements and not passed on unread."""

    class Tokenizer(Spark.Tokenizer):
        """Spark's tokenizer without statements that swallow the rest of their text."""

        COMMANDS: ClassVar[set[TokenType]] = set()


@dataclass(frozen=True)
class Word:
    """One word with its place: characters start..end of the text, half open."""

    kind: WordKind
    text: str
    start: int
    end: int

    def is_(self, *words: str) -> bool:
        """Whether it is one of these keywords or signs, in any case."""
        return self.kind in ("word", "sign") and self.text.upper() in words

    @property
    def is_name(self) -> bool:
        """Whether it can name something."""
        return self.kind in ("word", "quoted")


def words_of(text: str) -> list[Word]:
    """The words of a text, without comments; a word of kind `end` closes the list."""
    if (half := _SURROGATE.search(text)) is not None:
        raise StatementError(
            f"a character is no text: half of a surrogate pair, {half[0]!a}",
            detail=f"at character {half.start() + 1} of the statement",
            hint="decode the text with errors='replace', or write the whole character",
        )
    try:
        tokens = HeadwaterDialect().tokenize(text)
    except TokenError:
        at = _unclosed(text)
        raise pointing(
            text, at, len(text), "a quote or a comment is opened here and never closed", hint="close it"
        ) from None
    words: list[Word] = []
    for token in tokens:
        if words and token.start < words[-1].end:
            continue  # a suffix that the tokenizer split off a number, such as the L of 10L
        words += _split(text, token.token_type, token.text, token.start, token.end + 1)
    return [*words, Word("end", "", len(text.rstrip()), len(text.rstrip()))]


def _split(text: str, kind: TokenType, value: str, start: int, end: int) -> list[Word]:
    """The words of a token; the tokenizer joins some keywords, as in PRIMARY KEY."""
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
    """Where the quote or the comment begins that is never closed; 0 if that cannot be told. It reads the text once."""
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
    """Where a comment ends, with those inside it; None if it does not."""
    depth = 1
    for mark in _COMMENT_MARK.finditer(text, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return None


class Words:
    """The words of a text, read from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._words = words_of(text)
        self._at = 0

    @property
    def next(self) -> Word:
        """The word that comes next, not taken."""
        return self._words[self._at]

    def at_end(self) -> bool:
        """Whether all words are taken."""
        return self.next.kind == "end"

    def ahead(self, count: int) -> Word:
        """A word further ahead; the end if there is none."""
        return self._words[min(self._at + count, len(self._words) - 1)]

    def statement(self) -> list[Word]:
        """The words from the next one to the end of its statement, not taken."""
        depth = 0
        for at in range(self._at, len(self._words)):
            word = self._words[at]
            depth += word.is_("(") - word.is_(")")
            if word.kind == "end" or (depth <= 0 and word.is_(";")):
                return self._words[self._at : at]
        return self._words[self._at :]

    def before(self, count: int) -> Word:
        """A word that was taken, so many back."""
        return self._words[max(0, self._at - count)]

    def take(self) -> Word:
        """The next word."""
        word = self.next
        if word.kind != "end":
            self._at += 1
        return word

    def take_until(self, stop: str) -> list[Word]:
        """Take all words up to the sign `stop` or the end; it may not stand inside parentheses."""
        taken: list[Word] = []
        opened: list[Word] = []
        while not self.at_end() and not (self.next.is_(stop) and not opened):
            word = self.take()
            taken.append(word)
            if word.is_("("):
                opened.append(word)
            elif word.is_(")") and not opened:
                self.fail("a parenthesis is closed here that was never opened", at=word)
            elif word.is_(")"):
                opened.pop()
            elif word.is_(stop):
                break
        if opened:
            self.fail("a parenthesis is opened here and never closed", hint="close it", at=opened[-1])
        return taken

    def accept(self, *keywords: str) -> bool:
        """Take these keywords or signs if they come next, all of them or none."""
        if all(self.ahead(i).is_(k) for i, k in enumerate(keywords)):
            self._at += len(keywords)
            return True
        return False

    def expect(self, *keywords: str, hint: str | None = None) -> Word:
        """Take these keywords; an error at the first that is missing."""
        word = self.next
        for keyword in keywords:
            word = self.next
            if not word.is_(keyword):
                self.fail(f"expected {keyword}, found {shown(word)}", hint=hint)
            self.take()
        return word

    def name(self, what: str) -> Word:
        """Take a name, plain or in backticks."""
        word = self.next
        if word.kind == "string":
            self.fail(
                f"expected {what}, found a string", hint=f"names are plain or in backticks: `{word.text}`"
            )
        if not word.is_name:
            self.fail(f"expected {what}, found {shown(word)}")
        return self.take()

    def error(self, reason: str, *, hint: str | None = None, at: Word | None = None) -> StatementError:
        """A refusal that points at a word, by default at the next one."""
        word = at or self.next
        return pointing(self.text, word.start, word.end, reason, hint=hint)

    def fail(self, reason: str, *, hint: str | None = None, at: Word | None = None) -> NoReturn:
        """Refuse, pointing at a word, by default at the next one."""
        raise self.error(reason, hint=hint, at=at)


def shown(word: Word) -> str:
    """A word as an error quotes it."""
    return "the end" if word.kind == "end" else f"{word.text!r}"


@dataclass(frozen=True)
class Span:
    """A part of a text, to be underlined in an error about it."""

    text: str
    start: int
    end: int

    def pointed(self, error: HeadwaterError, hint: str | None = None) -> StatementError:
        """An error with this place added."""
        hint = error.hint or hint
        return pointing(self.text, self.start, self.end, error.message, hint=hint, because=error.detail)


def pointing(
    text: str, start: int, end: int, reason: str, *, hint: str | None = None, because: str | None = None
) -> StatementError:
    """An error that shows the line with the offending part underlined, and below it why, if there is more to say."""
    detail, number, column = underlined(text, start, end)
    if because:
        detail += f"\n    {because}"
    return StatementError(reason, detail=detail, hint=hint, line=number, column=column)
