"""Clauses that several statements share: names, kinds, options in parentheses, strings."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from headwater.catalog.connectors import EnvValue
from headwater.catalog.definitions import OPTION_NAMES
from headwater.core.errors import HeadwaterError, StatementError
from headwater.sql.lexer import Span, Word, Words, shown

T = TypeVar("T")


def read_new_name(words: Words, replace: bool, what: str) -> tuple[bool, Word]:
    """Parse an optional IF NOT EXISTS and the name after it; return whether it was given, and the name."""
    start = words.next
    lenient = words.accept("IF", "NOT", "EXISTS")
    if lenient and replace:
        words.fail(
            "OR REPLACE and IF NOT EXISTS cannot be combined",
            at=start,
            hint="leave one of the two out",
            reason="or-replace-if-not-exists",
        )
    return lenient, words.name(f"the name of the {what}")


def check_unquoted(words: Words, name: Word, keywords: Collection[str], what: str) -> None:
    """Reject a new name without backticks that queries would parse as a keyword."""
    if name.kind == "word" and name.text.lower() in keywords:
        words.fail(
            f"{name.text} is a keyword, which queries do not read as the name of a {what}",
            at=name,
            hint=f"choose another name, or write `{name.text}` in backticks wherever it is used",
            reason="keyword",
            name=name.text,
        )


def read_kind(words: Words, known: Mapping[str, object], what: str) -> str:
    """Parse the kind of a source, sink or notice, which must be one of `known`."""
    word = words.next
    if word.kind != "word" or word.text.lower() not in known:
        near = next(iter(difflib.get_close_matches(word.text.lower(), known, 1)), None)
        every = ", ".join(kind.upper() for kind in known)
        hint = f"did you mean {near.upper()}?" if near else f"the kinds are {every}"
        words.fail(f"{shown(word)} is not a kind of {what}", hint=hint, reason="unknown-kind", kind=word.text)
    return words.take().text.lower()


def read_options(words: Words, known: Sequence[str] = OPTION_NAMES, what: str = "topic") -> dict[str, Any]:
    """Parse options in parentheses, each given once and one of `known`."""
    words.expect("(", hint="write options in parentheses: (retention = '7 days')")
    options: dict[str, Any] = {}
    while not words.accept(")"):
        if options:
            words.expect(",")
        name = words.next
        option = (words.take().text if name.kind == "string" else words.name("an option").text).lower()
        if option not in known:
            near = next(iter(difflib.get_close_matches(option, known, 1)), None)
            words.fail(
                f"{option!r} is not an option of a {what}",
                at=name,
                hint=f"did you mean {near}?" if near else f"the options are {', '.join(known)}",
                reason="unknown-option",
                option=option,
            )
        if option in options:
            words.fail(f"option {option} is given twice", at=name, reason="option-twice", option=option)
        words.expect("=", hint=f"write {option} = value")
        options[option] = _value(words, option)
    return options


def _value(words: Words, option: str) -> Any:
    word = words.next
    if word.is_("ENV") and words.ahead(1).is_("("):
        words.expect("ENV", "(")
        if words.next.kind != "string":
            words.fail(
                "env() takes the name of an environment variable in quotes",
                hint=f"write {option} = env('NAME')",
                reason="env-name",
            )
        name = words.take().text
        words.expect(")")
        return EnvValue(name)
    sign = "-" if words.accept("-") else ""
    word = words.take()
    if word.kind == "number":
        text = sign + word.text
        return int(text) if text.lstrip("-").isdigit() else float(text)
    if sign or word.kind != "string":
        literals = {"TRUE": True, "FALSE": False, "NULL": None}
        if not sign and word.kind == "word" and word.text.upper() in literals:
            return literals[word.text.upper()]
        words.fail(
            f"option {option} takes a string or a number, not {shown(word)}",
            at=word,
            hint=f"write {option} = '{word.text}'" if word.is_name else None,
            reason="option-value",
            option=option,
        )
    return read_string(words, word)


def read_string(words: Words, first: Word) -> str:
    """Return a string with the adjacent strings that follow it: concatenated, with a quote between them in 'it''s'."""
    text, last = first.text, first
    while words.next.kind == "string":
        quote_mark = words.text[last.end - 1]
        if words.next.start == last.end and words.text[words.next.start] == quote_mark:
            text += quote_mark
        last = words.take()
        text += last.text
    return text


def read_set(words: Words, known: Sequence[str], what: str, example: str) -> dict[str, Any]:
    """Parse the options after SET; at least one is required."""
    first = words.next
    options = read_options(words, known, what)
    if not options:
        words.fail("SET needs at least one option", at=first, hint=f"SET ({example})", reason="no-options")
    return options


def checked(
    words: Words,
    first: Word,
    last: Word,
    build: Callable[[], T],
    hint: str | None = None,
    private: Mapping[str, Span] | None = None,
) -> T:
    """Return the result of `build`; an error gets the position in the statement added: that of PRIVATE BY, if it is about
    such a column."""
    try:
        return build()
    except StatementError:
        raise
    except HeadwaterError as error:
        span = (private or {}).get(error.facts.get("private", ""), Span(words.text, first.start, last.end))
        raise span.pointed(error, hint) from None
