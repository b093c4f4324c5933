"""What finders of foreign spellings have in common: the words of a statement, arguments of calls, intervals, and edits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headwater.sql.lexer import Word
from headwater.sql.system_time import closed

Edit = tuple[int, int, str]
"""Characters of the text, half open, and what to write in their place."""
_AMOUNT = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*", re.IGNORECASE)
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")


@dataclass(frozen=True)
class Foreign:
    """A spelling of another engine: the words that it is, why it is refused, and what to write instead."""

    first: int
    last: int
    reason: str
    edits: tuple[Edit, ...] = ()
    because: str | None = None
    hint: str | None = None
    """Instead of the edited statement, where that alone does not say it."""


class StatementWords:
    """The words of one statement, closed by one of kind `end`."""

    def __init__(self, text: str, words: Sequence[Word]) -> None:
        self.text = text
        self.words = [*words, Word("end", "", words[-1].end, words[-1].end)]

    def place(self, first: int, last: int) -> tuple[int, int]:
        """The characters of some words, half open."""
        return self.words[first].start, self.words[last - 1].end

    def source(self, first: int, last: int) -> str:
        """The text of some words, as it stands."""
        start, end = self.place(first, last)
        return self.text[start:end]

    def edit(self, first: int, last: int, instead: str) -> Edit:
        """Other text in place of some words; without any the blank before them goes too."""
        start, end = self.place(first, last)
        if not instead and self.text[start - 1 : start] == " ":
            start -= 1
        return start, end, instead

    def edited(self, edits: Sequence[Edit]) -> str:
        """The statement after edits, of which none overlaps the one before it."""
        parts: list[str] = []
        at = self.words[0].start
        for start, end, instead in edits:
            if start < at:
                continue
            parts += [self.text[at:start], instead]
            at = end
        return "".join([*parts, self.text[at : self.words[-1].end]])

    def calls(self, *names: str) -> Iterator[int]:
        """Where a function of one of these names, in upper case, is called."""
        for at, (word, after) in enumerate(zip(self.words, self.words[1:], strict=False)):
            is_part = at > 0 and self.words[at - 1].is_(".")
            if word.is_(*names) and after.is_("(") and not is_part:
                yield at

    def before(self, at: int) -> Word:
        """The word before one; the end if there is none."""
        return self.words[at - 1] if at else self.words[-1]

    def closed(self, at: int) -> int:
        """Behind the bracket that closes the one at a word."""
        return closed(self.words, at)

    def arguments(self, at: int) -> list[tuple[int, int]]:
        """The words of each argument in the parentheses that open at a word; names of arguments are left out."""
        end = self.closed(at) - 1
        found: list[tuple[int, int]] = []
        start = at + 1
        for place in self.level(at + 1, end):
            if self.words[place].is_(","):
                found.append((start, place))
                start = place + 1
        found.append((start, end))
        return [(a + 2, b) if self.words[a + 1].is_("=>") else (a, b) for a, b in found if a < b]

    def level(self, first: int, last: int) -> Iterator[int]:
        """The words between two places that are in no parentheses there; of a parenthesis the one that opens it."""
        at = first
        while at < last and self.words[at].kind != "end":
            yield at
            at = self.closed(at) if self.words[at].is_("(", "[") else at + 1

    def until(self, first: int, *stops: str) -> int:
        """The first of these words from a place on, in no parentheses there; or where these, or the statement, end."""
        for place in self.level(first, len(self.words)):
            if self.words[place].is_(*stops, ")", ";"):
                return place
        return len(self.words) - 1

    def interval(self, first: int, last: int) -> str | None:
        """The length of an interval, as `window` takes it, in any spelling of a constant; None if it is none."""
        at = first + self.words[first].is_("INTERVAL")
        if self.words[at].kind not in ("string", "number") or last - at > 2:
            return None
        told = " ".join(word.text for word in self.words[at:last])
        found = _AMOUNT.fullmatch(told)
        if found is None or found[2].lower() not in _UNITS:
            return None
        return f"{int(found[1])} {found[2].lower()}{'' if int(found[1]) == 1 else 's'}"

    def is_interval(self, first: int, last: int) -> bool:
        """Whether words are an interval literal that begins with INTERVAL."""
        return self.words[first].is_("INTERVAL") and self.interval(first, last) is not None


Finder = Callable[[StatementWords], Iterator[Foreign]]
