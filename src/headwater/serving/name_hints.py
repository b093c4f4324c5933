"""What was probably meant by a name that is not there."""

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
    """Everything that a query can read: topics, views, and what views give beside their rows."""
    views = definitions(log).values()
    return sorted({*log.topics(), *(name for view in views for name in (view.name, *derived_of(view)))})


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of these names that a misspelled one is likely to be."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[near[0]] if near else None


def _unquoted(error: StatementError, known: Iterable[str]) -> str | None:
    """What to write where a relation that was made in Python, or captured, is called as a keyword of queries."""
    before = re.search(rf"(\w+)\s+{re.escape(error.facts['missing'])}\b", error.detail or "")
    word = "" if before is None else before[1].lower()
    found = next((name for name in known if name.lower() == word and word in RELATION_KEYWORDS), None)
    return None if found is None else f"write {quote(found)}: without backticks it is read as a keyword"


@contextmanager
def names_hinted(log: Log) -> Iterator[None]:
    """Within the block, the error of a query that reads something which is not there says what it may have meant."""
    try:
        yield
    except StatementError as error:
        if "missing" not in error.facts:
            raise
        known = relation_names(log)
        near = nearest(error.facts["missing"], known)
        hint = _unquoted(error, known) or (f"did you mean {near}?" if near else None)
        if hint is None and known:
            more = ", ..." if len(known) > _SHOWN_MAX else ""
            hint = f"there are: {', '.join(known[:_SHOWN_MAX])}{more}"
        raise StatementError(
            error.message,
            detail=error.detail,
            hint=hint or "CREATE TOPIC makes the first topic",
            **error.facts,
        ) from None
