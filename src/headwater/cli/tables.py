"""Layout of tables and facts for people: lines of text that fit a width. No terminal, no colour, no values of JSON.

A table that is too wide is narrowed in steps: headers are wrapped, columns that may be left out are dropped, long texts are
wrapped; if that is not enough, each row becomes a block of lines. No value is cut.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH = 80
"""Width where there is no terminal and no COLUMNS."""
GAP = 2
TEXT_MIN, TEXT_MAX = 16, 32
"""A wrapped column is at least as wide as its longest word, within these limits."""


@dataclass(frozen=True)
class Column:
    """A column of a table, with the text of each cell. An `optional` one is left out if the table is too wide."""

    name: str
    cells: Sequence[str]
    right: bool = False
    optional: int = 0
    """0 is never left out; of others the highest is left out first."""

    @property
    def natural(self) -> int:
        """The width of the longest line, the header included."""
        return max(len(self.name), self.data)

    @property
    def data(self) -> int:
        """The width of the longest line of a cell."""
        return max((len(line) for cell in self.cells for line in cell.split("\n")), default=0)

    @property
    def folded(self) -> int:
        """The width with a wrapped header."""
        return max(_word(self.name), self.data)

    @property
    def least(self) -> int:
        """The width with wrapped texts; numbers are not wrapped."""
        if self.right:
            return self.folded
        word = max((_word(cell) for cell in self.cells), default=0)
        return max(_word(self.name), min(self.data, max(TEXT_MIN, min(word, TEXT_MAX))))


def width() -> int:
    """Return the width of the terminal, or COLUMNS, or 80."""
    return shutil.get_terminal_size((WIDTH, 24)).columns


def table_lines(columns: Sequence[Column], room: int) -> tuple[list[str], list[str]]:
    """Return the lines of the header, and those of the rows; without a header if each row is a block."""
    left = list(columns)
    while (widths := _widths(left, room)) is None and any(column.optional for column in left):
        left.remove(max(left, key=lambda column: column.optional))
    if widths is None:
        widths = _wrapped(left, room)
    if widths is None:
        return [], _blocks(columns, room)
    rights = [column.right for column in left]
    header = _row([column.name for column in left], widths, rights)
    rows = zip(*(column.cells for column in left), strict=True)
    return header, [line for cells in rows for line in _row(cells, widths, rights)]


def fact_lines(facts: Sequence[tuple[str, str]], room: int) -> list[str]:
    """Return a line for each fact, the values one below the other; a long value continues in further lines."""
    wide = max((len(name) for name, _ in facts), default=0)
    lines = []
    for name, value in facts:
        first, *more = wrapped(value, max(room - wide - GAP, TEXT_MIN))
        lines.append(f"{name:<{wide}}{'':{GAP}}{first}".rstrip())
        lines += [f"{'':{wide + GAP}}{line}" for line in more]
    return lines


def wrapped(text: str, room: int) -> list[str]:
    """Return a text in lines of at most `room` characters, broken between words; a word that is longer is broken, too."""
    lines = []
    for paragraph in text.split("\n"):
        fits = len(paragraph) <= room
        lines += [paragraph] if fits else textwrap.wrap(paragraph, room, break_on_hyphens=False)
    return lines


def _word(text: str) -> int:
    return max((len(word) for word in text.split()), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(columns: Sequence[Column], room: int) -> list[int] | None:
    """Return the widths at which no text of a cell is wrapped; None if they do not fit."""
    for widths in ([c.natural for c in columns], [c.folded for c in columns]):
        if _total(widths) <= room:
            return widths
    return None


def _wrapped(columns: Sequence[Column], room: int) -> list[int] | None:
    """Return the widths at which long texts are wrapped, the widest column first; None if they do not fit."""
    widths = [c.folded for c in columns]
    while _total(widths) > room:
        spare = [(wide, at) for at, wide in enumerate(widths) if wide > columns[at].least]
        if not spare:
            return None
        _, at = max(spare)
        widths[at] -= 1
    return widths


def _row(cells: Sequence[str], widths: Sequence[int], rights: Sequence[bool]) -> list[str]:
    parts = [wrapped(cell, wide) for cell, wide in zip(cells, widths, strict=True)]
    lines = []
    for at in range(max(map(len, parts), default=0)):
        texts = [part[at] if at < len(part) else "" for part in parts]
        padded = (
            text.rjust(wide) if right else text.ljust(wide)
            for text, wide, right in zip(texts, widths, rights, strict=True)
        )
        lines.append((" " * GAP).join(padded).rstrip())
    return lines


def _blocks(columns: Sequence[Column], room: int) -> list[str]:
    """Return a block of lines for each row, for tables with more columns than fit side by side."""
    names = [column.name for column in columns]
    lines: list[str] = []
    for cells in zip(*(column.cells for column in columns), strict=True):
        lines += [""] if lines else []
        lines += fact_lines(list(zip(names, cells, strict=True)), room)
    return lines
