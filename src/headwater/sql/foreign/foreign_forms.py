"""Common tools of the finders of foreign syntax: words of a statement, arguments of calls, intervals, and edits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from headwater.sql.lexer import Word
from headwater.sql.system_time import closed

Edit = tuple[int, int, str]
"""Characters of the text, half-open, and their replacement."""
_AMOUNT = re.compile(r"\s*(\d+)\s*([a-z]+?)s?\s*", re.IGNORECASE)
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")


@dataclass(frozen=True)
class Foreign:
    """Syntax of another engine: its words, why it is rejected, and the replacement."""

    first: int
    last: int
    reason: str
    edits: tuple[Edit, ...] = ()
    because: str | None = None
    hint: str | None = None
    """Hint to show in place of the edited statement, where the edits do not suffice."""


class StatementWords:
    """The words of one statement, terminated by a word of kind `end`."""

    def __init__(self, text: str, words: Sequence[Word]) -> None:
        self.text = text
        self.words = [*words, Word("end", "", words[-1].end, words[-1].end)]

    def place(self, first: int, last: int) -> tuple[int, int]:
        """Return the character range of some words, half-open."""
        return self.words[first].start, self.words[last - 1].end

    def source(self, first: int, last: int) -> str:
        """Return the text of some words, unchanged."""
        start, end = self.place(first, last)
        return self.text[start:end]

    def edit(self, first: int, last: int, instead: str) -> Edit:
        """Return the edit that replaces some words; an empty replacement removes the preceding blank too."""
        start, end = self.place(first, last)
        if not instead and self.text[start - 1 : start] == " ":
            start -= 1
        return start, end, instead

    def edited(self, edits: Sequence[Edit]) -> str:
        """Return the statement after edits; an edit that overlaps the one before it is skipped."""
        parts: list[str] = []
        at = self.words[0].start
        for start, end, instead in edits:
            if start < at:
                continue
            parts += [self.text[at:start], instead]
            at = end
        return "".join([*parts, self.text[at : self.words[-1].end]])

    def calls(self, *names: str) -> Iterator[int]:
        """Yield the indices where a function with one of these names, in upper case, is called."""
        for at, (word, after) in enumerate(zip(self.words, self.words[1:], strict=False)):
            is_part = at > 0 and self.words[at - 1].is_(".")
            if word.is_(*names) and after.is_("(") and not is_part:
                yield at

    def before(self, at: int) -> Word:
        """Return the word before an index; the end word if there is none."""
        return self.words[at - 1] if at else self.words[-1]

    def closed(self, at: int) -> int:
        """Return the index after the bracket that closes the one at an index."""
        return closed(self.words, at)

    def arguments(self, at: int) -> list[tuple[int, int]]:
        """Return the word range of each argument in the parentheses that open at an index, without names of named
        arguments."""
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
        """Yield the indices of the words in a range that are outside of brackets; for a bracket, that of the opening one."""
        at = first
        while at < last and self.words[at].kind != "end":
            yield at
            at = self.closed(at) if self.words[at].is_("(", "[") else at + 1

    def until(self, first: int, *stops: str) -> int:
        """Return the index of the first of these words after an index, outside of brackets; or where the brackets or the
        statement end."""
        for place in self.level(first, len(self.words)):
            if self.words[place].is_(*stops, ")", ";"):
                return place
        return len(self.words) - 1

    def interval(self, first: int, last: int) -> str | None:
        """Return the length of a constant interval, in any syntax, in the form that `window` takes; None for anything else."""
        at = first + self.words[first].is_("INTERVAL")
        if self.words[at].kind not in ("string", "number") or last - at > 2:
            return None
        text = " ".join(word.text for word in self.words[at:last])
        found = _AMOUNT.fullmatch(text)
        if found is None or found[2].lower() not in _UNITS:
            return None
        return f"{int(found[1])} {found[2].lower()}{'' if int(found[1]) == 1 else 's'}"

    def is_interval(self, first: int, last: int) -> bool:
        """Whether words are an interval literal that begins with INTERVAL."""
        return self.words[first].is_("INTERVAL") and self.interval(first, last) is not None


Finder = Callable[[StatementWords], Iterator[Foreign]]
