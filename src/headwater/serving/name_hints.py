"""Suggestions for names that do not exist."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from headwater.core.errors import StatementError
from headwater.core.types import RELATION_KEYWORDS, quote
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.protocol import Log

_SHOWN_MAX = 10


def relation_names(log: Log) -> list[str]:
    """Return the names of all relations that a query can read: topics, views, and relations derived from views."""
    views = definitions(log).values()
    return sorted({*log.topics(), *(name for view in views for name in (view.name, *derived_of(view)))})


def suggest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelled name most likely stands for, or None."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


def _unquoted(error: StatementError, known: Iterable[str]) -> str | None:
    """Return a hint to quote a relation whose name is a query keyword; such names are possible from Python and from
    capture."""
    before = re.search(rf"(\w+)\s+{re.escape(error.facts['missing'])}\b", error.detail or "")
    word = "" if before is None else before[1].lower()
    found = next((name for name in known if name.lower() == word and word in RELATION_KEYWORDS), None)
    return None if found is None else f"write {quote(found)}: without backticks it is read as a keyword"


@contextmanager
def names_hinted(log: Log) -> Iterator[None]:
    """Add a hint, within the block, to the error of a query that reads a relation which does not exist."""
    try:
        yield
    except StatementError as error:
        if "missing" not in error.facts:
            raise
        known = relation_names(log)
        near = suggest(error.facts["missing"], known)
        hint = _unquoted(error, known) or (f"did you mean {near}?" if near else None)
        if hint is None and known:
            more = ", ..." if len(known) > _SHOWN_MAX else ""
            hint = f"existing topics and views: {', '.join(known[:_SHOWN_MAX])}{more}"
        raise StatementError(
            error.message,
            detail=error.detail,
            hint=hint or "CREATE TOPIC makes the first topic",
            **error.facts,
        ) from None
