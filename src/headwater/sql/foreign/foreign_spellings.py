"""Unsupported syntax of RisingWave, Flink, Materialize and others, rejected with the supported equivalent.

A finder searches the words of a statement for one form and returns the replacement as edits of the text. All edits of a
statement are applied together, so that the hint is a complete statement that can be run. Functions that a user may have
declared (`date_bin`) are only searched after Spark has rejected them.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from headwater.core.errors import StatementError
from headwater.core.types import FOREIGN_TYPES
from headwater.sql.foreign.foreign_forms import Finder, Foreign, StatementWords
from headwater.sql.foreign.foreign_joins import as_of_joins, current_joins
from headwater.sql.foreign.foreign_rows import (
    append_times,
    approximate_percentiles,
    buckets,
    distinct_on,
    fetched,
    filled_gaps,
    moving_times,
    unnested,
)
from headwater.sql.foreign.foreign_windows import group_windows, window_tables
from headwater.sql.lexer import Word, pointing

_BEGINS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(", "CREATE", "EXPLAIN")
_SIGNS = re.compile(
    r"\b(tumble\w*|hop\w*|cumulate|session(_start|_end)?|asof|proctime|mz_now|current_watermark|distinct\s+on|fetch|"
    r"within|unnest|gap_fill|time_bucket_gapfill|lateral\s+table)\b",
    re.IGNORECASE,
)
_FINDERS: tuple[Finder, ...] = (
    window_tables,
    group_windows,
    as_of_joins,
    current_joins,
    append_times,
    moving_times,
    distinct_on,
    fetched,
    approximate_percentiles,
    unnested,
    filled_gaps,
)


def refuse_foreign(text: str, words: Sequence[Word]) -> None:
    """Raise StatementError, with the statement in supported syntax, if these words of a text contain syntax of another
    engine."""
    if not words or not words[0].is_(*_BEGINS) or _SIGNS.search(text) is None:
        return
    statement = StatementWords(text, words)
    query = _query(words)
    found = [one for find in _FINDERS for one in find(statement) if one.first >= query]
    if found:
        raise _refusal(statement, found)


def _query(words: Sequence[Word]) -> int:
    """Return the index where the query of a statement begins: in CREATE after AS, since names and columns precede it."""
    if not words[0].is_("CREATE"):
        return 0
    pairs = enumerate(itertools.pairwise(words))
    return next((at + 1 for at, (one, two) in pairs if one.is_("AS") and two.is_(*_BEGINS)), len(words))


def respelled_function(text: str, words: Sequence[Word], function: str) -> str | None:
    """Return a hint for a function of another engine that Spark has rejected; None if no replacement is known."""
    if function.lower() not in ("date_bin", "time_bucket"):
        return None
    statement = StatementWords(text, words)
    found = list(buckets(statement))
    return None if not found else _hint(statement, found)


def respelled_type(text: str, words: Sequence[Word], name: str) -> str | None:
    """Return a hint for a type of another engine that Spark has rejected; None if no replacement is known."""
    known = FOREIGN_TYPES.get(name.lower())
    if known is None:
        return None
    statement = StatementWords(text, words)
    edits = [statement.edit(at, at + 1, known) for at, word in enumerate(words) if word.is_(name.upper())]
    return f"write {statement.edited(edits)}"


def _refusal(statement: StatementWords, found: Sequence[Foreign]) -> StatementError:
    first = min(found, key=lambda one: one.first)
    start, end = statement.place(first.first, first.last)
    hint = first.hint or _hint(statement, found)
    return pointing(
        statement.text,
        start,
        end,
        first.reason,
        hint=hint,
        because=first.because,
        reason="other-dialect",
        keyword=statement.words[first.first].text.upper(),
    )


def _hint(statement: StatementWords, found: Sequence[Foreign]) -> str:
    edits = sorted({edit for one in found for edit in one.edits})
    return f"write {statement.edited(edits)}"
