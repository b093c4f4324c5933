"""Temporal joins in the syntax of other engines: ASOF JOIN of DuckDB, RisingWave and Snowflake, AS OF PROCTIME() of Flink."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headwater.sql.foreign.foreign_forms import Edit, Foreign, StatementWords

_ENDS = (
    *("WHERE", "GROUP", "HAVING", "QUALIFY", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "EMIT"),
    *("JOIN", "LEFT", "RIGHT", "FULL", "INNER", "CROSS", "ASOF", ","),
)
_NOT_NAMES = ("FROM", "JOIN", ",", "AS", "SELECT", "(")
_AFTER = {">=": True, ">": True, "<=": False, "<": False}
_REASON = "ASOF JOIN is not supported: ASOF would be read as an alias of the table before it"
_BECAUSE = f"FOR SYSTEM_TIME AS OF joins the version of a row of {0} that was valid at that time; {0} needs a PRIMARY KEY"


class _Right(NamedTuple):
    """The right side of a join: the words of its table and alias, the table, and the name it has in the query."""

    first: int
    last: int
    table: str
    name: str


def as_of_joins(s: StatementWords) -> Iterator[Foreign]:
    """Find `trades t ASOF JOIN quotes q ON t.symbol = q.symbol AND t.at >= q.at`, also with USING, MATCH_CONDITION, or LEFT
    before or after ASOF."""
    for at, word in enumerate(s.words):
        before = s.before(at)
        if not word.is_("ASOF") or before.is_(*_NOT_NAMES) or not (before.is_name or before.is_(")")):
            continue
        join = at + 1
        while s.words[join].is_("LEFT", "INNER", "OUTER"):
            join += 1
        if not s.words[join].is_("JOIN"):
            continue
        right = _right(s, join + 1)
        edits = None if right is None else _rewritten(s, at, right)
        table = right.table if right is not None else "quotes"
        place = _left(s, at)
        left = s.source(place, place + 1) if s.words[place].is_name else "<left>"
        kind = s.source(place + 1, at) + " " if place + 1 < at else ""
        general = f"JOIN {table} FOR SYSTEM_TIME AS OF {left}.<its time> AS {right.name if right else 'q'} ON <equal keys>"
        yield Foreign(
            at,
            join + 1,
            _REASON,
            edits or (),
            because=_BECAUSE.format(table),
            hint=None if edits else f"FROM {left} {kind}{general}",
        )


def _left(s: StatementWords, asof: int) -> int:
    """Return the index of the word that ends the left side: in `trades LEFT ASOF JOIN quotes`, as in ClickHouse, the one
    before LEFT."""
    place = asof - 1
    while s.words[place].is_("LEFT", "INNER", "OUTER"):
        place -= 1
    return asof - 1 if s.words[place].is_(*_NOT_NAMES) else place  # a table may be named LEFT


def _right(s: StatementWords, at: int) -> _Right | None:
    if not s.words[at].is_name or s.words[at + 1].is_(".", "("):
        return None
    last = at + 1 + s.words[at + 1].is_("AS")
    if s.words[last].is_name and not s.words[last].is_("ON", "USING", "MATCH_CONDITION"):
        return _Right(at, last + 1, s.source(at, at + 1), s.source(last, last + 1))
    return _Right(at, at + 1, s.source(at, at + 1), s.source(at, at + 1))


def _rewritten(s: StatementWords, asof: int, right: _Right) -> tuple[Edit, ...] | None:
    """Return the edits; None if the time of the join cannot be determined."""
    at, edits, time = right.last, [s.edit(asof, asof + 1, "")], None
    if s.words[at].is_("MATCH_CONDITION"):
        end = s.closed(at + 1)
        time = _time(s, at + 2, end - 1, right.name)
        edits.append(s.edit(at, end, ""))
        at = end
    if s.words[at].is_("USING"):
        *keys, moment = [s.source(*one) for one in s.arguments(at + 1)]
        place = _left(s, asof)
        left = s.source(place, place + 1)
        if keys:
            equal = " AND ".join(f"{left}.{key} = {right.name}.{key}" for key in keys)
            time = f"{left}.{moment}"
            edits.append(s.edit(at, s.closed(at + 1), f"ON {equal}"))
    elif s.words[at].is_("ON") and time is None:
        parts = list(_conditions(s, at + 1, s.until(at + 1, *_ENDS)))
        for number, (first, last) in enumerate(parts):
            time = _time(s, first, last, right.name)
            if time is not None and len(parts) > 1:
                cut = (first - 1, last) if number else (first, last + 1)
                edits.append(s.edit(*cut, ""))
                break
    if time is None:
        return None
    edits.append(
        s.edit(right.first, right.last, f"{right.table} FOR SYSTEM_TIME AS OF {time} AS {right.name}")
    )
    return tuple(edits)


def _conditions(s: StatementWords, first: int, last: int) -> Iterator[tuple[int, int]]:
    start = first
    for place in s.level(first, last):
        if s.words[place].is_("AND"):
            yield start, place
            start = place + 1
    yield start, last


def _time(s: StatementWords, first: int, last: int, right: str) -> str | None:
    """Return the left side's time in `t.at >= q.at`, in either operand order."""
    signs = [place for place in s.level(first, last) if s.words[place].is_(*_AFTER)]
    if len(signs) != 1:
        return None
    sides = s.source(first, signs[0]), s.source(signs[0] + 1, last)
    is_right = [side.lower().startswith(f"{right.lower()}.") for side in sides]
    sign = s.words[signs[0]].text
    if is_right == [False, True] and _AFTER[sign]:
        time = sides[0]
    elif is_right == [True, False] and not _AFTER[sign]:
        time = sides[1]
    else:
        return None
    return time if "=" in sign else f"{time} - INTERVAL '1 microsecond'"


def current_joins(s: StatementWords) -> Iterator[Foreign]:
    """Find `JOIN customers FOR SYSTEM_TIME AS OF PROCTIME() AS c`, a join with the current table."""
    for at in s.calls("PROCTIME", "NOW", "CURRENT_TIMESTAMP"):
        if at < 4 or not (s.words[at - 1].is_("OF") and s.words[at - 3].is_("SYSTEM_TIME")):
            continue
        end = s.closed(at + 1)
        yield Foreign(
            at - 4,
            end,
            f"{s.words[at].text}() is not supported in views: it changes with the clock, and a view depends on its records alone",
            (s.edit(at - 4, end, ""),),
            because="a plain JOIN joins the current row of the table, and follows its changes; FOR SYSTEM_TIME AS OF a time "
            "column of the other side joins the version that was valid then",
        )
