"""docs/compatibility.md as its test reads it: the names in its tables, and who says what the code has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path

from tests.repo.tree import ROOT, prose

PAGE = ROOT / "docs" / "compatibility.md"
GOLDEN = ROOT / "tests" / "golden"

Rows = Mapping[str, Collection[str]] | frozenset[str] | set[str]
TABLES: dict[str, Callable[[], Rows]] = {}
_NAME = re.compile(r"`([^`]+)`")


def table(heading: str) -> Callable[[Callable[[], Rows]], Callable[[], Rows]]:
    """Says that a function has what the table below a heading lists."""

    def register(function: Callable[[], Rows]) -> Callable[[], Rows]:
        assert heading not in TABLES
        TABLES[heading] = function
        return function

    return register


@cache
def listed(page: Path) -> dict[str, list[list[str]]]:
    """The rows of each table by the heading above it, without the head of the table."""
    found: dict[str, list[list[str]]] = {}
    heading, begun = "", False
    for _, line in prose(page):
        if line.startswith("#"):
            heading = line.lstrip("# ").strip()
        if line.startswith("| ---"):
            begun = found.setdefault(heading, []) is not None
        elif begun and line.startswith("|"):
            found[heading].append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))])
        else:
            begun = False
    return found


def names(cell: str) -> list[str]:
    """The names in a cell: what is in backticks."""
    return [name.replace("\\|", "|") for name in _NAME.findall(cell)]


TABLES_OF_PAGE = listed(PAGE)
