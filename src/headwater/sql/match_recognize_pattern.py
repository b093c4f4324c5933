"""Parser of PATTERN in MATCH_RECOGNIZE, a regular expression over rows.

    pattern  := sequence ('|' sequence)*
    sequence := (primary quantifier?)+
    primary  := name | '(' ')' | '(' pattern ')' | PERMUTE '(' pattern (',' pattern)+ ')' | '{-' pattern '-}' | '^' | '$'
    quantifier := ('*' | '+' | '?' | '{' n '}' | '{' [n] ',' [m] '}') ['?']

Names are variables, whose conditions are given by DEFINE.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from headwater.operators.match_recognize import pattern as p

REPEATS_MAX = 1000
"""Maximum number of repetitions of a quantifier, to bound the cost of matching."""
PERMUTED_MAX = 6
"""Maximum number of parts of a PERMUTE, which expands to all of their orders."""
_TOKEN = re.compile(
    r"(?P<gap>\s+|--[^\n]*|/\*.*?\*/)|(?P<name>[^\W\d]\w*)|`(?P<quoted>[^`]+)`|(?P<number>\d+)"
    r"|(?P<sign>\{-|-\}|[()|*+?{},^$])|(?P<other>.)",
    re.DOTALL,
)


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class ParsedPattern:
    """A pattern, and the labels of its variables by lower-case name."""

    tree: p.Pattern
    variables: dict[str, str] = field(default_factory=dict)
    excludes: tuple[int, int] | None = None
    """Position of the first exclusion, or None."""


Fail = Callable[[int, int, str, str | None, str], NoReturn]
"""`fail(start, end, message, hint, reason)` raises an error that underlines characters of the text; `reason` is a fact of
the error."""


def read_pattern(text: str, start: int, end: int, fail: Fail) -> ParsedPattern:
    """Parse the pattern in characters start..end of a text, which exclude the parentheses around it."""
    return _Reader(text, start, end, fail).whole()


class _Reader:
    def __init__(self, text: str, start: int, end: int, fail: Fail) -> None:
        found = (m for m in _TOKEN.finditer(text, start, end) if m.lastgroup != "gap")
        self._tokens = [_Token(m.lastgroup or "", m[m.lastgroup or 0], m.start(), m.end()) for m in found]
        self._tokens.append(_Token("end", "", end, end + 1))
        self._at = 0
        self._fail = fail
        self._variables: dict[str, str] = {}
        self._excluded: tuple[int, int] | None = None

    def whole(self) -> ParsedPattern:
        tree = self._alternation()
        if self._next.kind != "end":
            self._refuse(f"unexpected {self._next.text!r} in the pattern", reason="unexpected-sign")
        return ParsedPattern(tree, self._variables, self._excluded)

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _accept(self, *signs: str) -> _Token | None:
        token = self._next
        if token.kind != "sign" or token.text not in signs:
            return None
        self._at += 1
        return token

    def _expect(self, sign: str, opened: _Token) -> _Token:
        found = self._accept(sign)
        if found is None:
            self._refuse(f"{opened.text!r} is never closed with {sign!r}", at=opened, reason="not-closed")
        return found

    def _refuse(
        self, message: str, hint: str | None = None, at: _Token | None = None, *, reason: str
    ) -> NoReturn:
        token = at or self._next
        self._fail(token.start, token.end, message, hint, reason)

    def _alternation(self) -> p.Pattern:
        parts = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else p.Alternate(tuple(parts))

    def _sequence(self) -> p.Pattern:
        parts: list[p.Pattern] = []
        while (part := self._primary()) is not None:
            parts.append(self._quantified(part))
        if not parts:
            if self._next.kind == "other":
                self._refuse(f"unexpected {self._next.text!r} in the pattern", reason="unexpected-sign")
            if self._accept("*", "+", "?", "{"):
                self._at -= 1
                self._refuse(
                    "a quantifier follows nothing",
                    "write it after a variable: A+",
                    reason="quantifier-without-variable",
                )
            self._refuse("expected a variable", "() matches no rows", reason="variable-missing")
        return parts[0] if len(parts) == 1 else p.Concat(tuple(parts))

    def _primary(self) -> p.Pattern | None:
        token = self._next
        if (
            token.kind == "name"
            and token.text.upper() == "PERMUTE"
            and self._tokens[self._at + 1].text == "("
        ):
            self._at += 1
            return self._permuted(token)
        if token.kind in ("name", "quoted"):
            self._at += 1
            label = token.text if token.kind == "quoted" else token.text.upper()
            return p.Variable(self._variables.setdefault(token.text.lower(), label))
        if opened := self._accept("("):
            if self._accept(")"):
                return p.Empty()
            part = self._alternation()
            self._expect(")", opened)
            return part
        if opened := self._accept("{-"):
            part = self._alternation()
            closed = self._expect("-}", opened)
            self._excluded = self._excluded or (opened.start, closed.end)
            return p.Exclude(part)
        if self._accept("^"):
            return p.Start()
        return p.End() if self._accept("$") else None

    def _permuted(self, called: _Token) -> p.Pattern:
        opened = self._accept("(") or called
        parts = [self._alternation()]
        while self._accept(","):
            parts.append(self._alternation())
        self._expect(")", opened)
        if len(parts) > PERMUTED_MAX:
            self._refuse(
                f"PERMUTE of {len(parts)} parts has too many orders",
                f"use at most {PERMUTED_MAX} parts",
                at=called,
                reason="permute-parts-max",
            )
        return parts[0] if len(parts) == 1 else p.Permute(tuple(parts))

    def _quantified(self, part: p.Pattern) -> p.Pattern:
        low: int
        high: int | None
        if self._accept("*"):
            low, high = 0, None
        elif self._accept("+"):
            low, high = 1, None
        elif self._accept("?"):
            low, high = 0, 1
        elif opened := self._accept("{"):
            low, high = self._bounds(opened)
        else:
            return part
        reluctant = self._accept("?") is not None
        if self._accept("*", "+", "?", "{"):
            self._at -= 1
            self._refuse(
                "a quantifier follows another quantifier",
                "put the first one in parentheses: (A+)*",
                reason="two-quantifiers",
            )
        return p.Quantified(part, low, high, not reluctant)

    def _bounds(self, opened: _Token) -> tuple[int, int | None]:
        first = self._count()
        low, high = first or 0, first
        if self._accept(","):
            high = self._count()
        elif first is None:
            self._refuse(
                "the quantifier has no number",
                "A{2}, A{2,}, A{,3} or A{2,3}",
                reason="quantifier-without-number",
            )
        closed = self._expect("}", opened)
        if high is not None and (high < low or high == 0):
            self._fail(
                opened.start,
                closed.end,
                f"a quantifier from {low} to {high} matches nothing",
                "A{2,3}",
                "quantifier-empty",
            )
        if max(low, high or 0) > REPEATS_MAX:
            self._fail(
                opened.start,
                closed.end,
                f"a quantifier repeats at most {REPEATS_MAX} times",
                "A{2,}",
                "repeats-max",
            )
        return low, high

    def _count(self) -> int | None:
        if self._next.kind != "number":
            return None
        self._at += 1
        return int(self._tokens[self._at - 1].text)
