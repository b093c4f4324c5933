"""Other clauses and functions in the syntax of other engines: DISTINCT ON, WITH TIES, UNNEST, percentiles, times, gaps."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headwater.sql.foreign.foreign_forms import Foreign, StatementWords

_AFTER_ORDER = ("LIMIT", "OFFSET", "FETCH", "UNION", "EXCEPT", "INTERSECT", "EMIT")
_MIDNIGHT = re.compile(r"\d{4}-\d\d-\d\d([ T]00:00(:00)?)?(Z|\+00(:00)?)?")
_PERCENTILES = ("APPROX_PERCENTILE", "PERCENTILE_APPROX", "APPROX_QUANTILE")


def append_times(s: StatementWords) -> Iterator[Foreign]:
    """Find `PROCTIME()`, except in AS OF PROCTIME(): it is replaced by the time at which a record was appended."""
    for at in s.calls("PROCTIME"):
        end = s.closed(at + 1)
        if not s.before(at).is_("OF"):
            reason = "PROCTIME() is not supported in views: it changes with the clock, and a view depends on its records alone"
            because = "_appended_at is the time at which the record of a topic was appended"
            yield Foreign(at, end, reason, (s.edit(at, end, "_appended_at"),), because=because)


def moving_times(s: StatementWords) -> Iterator[Foreign]:
    """Find `mz_now()` and `CURRENT_WATERMARK(at)`: the contents of a view do not depend on the current time."""
    for at in s.calls("MZ_NOW"):
        end = s.closed(at + 1)
        if s.words[0].is_("CREATE"):
            reason = (
                "mz_now() is not supported in views: a view depends on its records alone, not on the clock"
            )
            hint = "leave the condition out of the view, and write it in the query: SELECT * FROM <view> WHERE at > now() - INTERVAL '1 hour'"
            yield Foreign(at, end, reason, hint=hint)
        else:
            yield Foreign(at, end, "mz_now() is not supported; use now()", (s.edit(at, end, "now()"),))
    for at in s.calls("CURRENT_WATERMARK"):
        yield Foreign(
            at,
            s.closed(at + 1),
            "CURRENT_WATERMARK() is not supported",
            hint="EMIT ON WINDOW CLOSE at the end of a view emits a row when the watermark has passed it; SHOW VIEWS lists watermarks",
        )


def distinct_on(s: StatementWords) -> Iterator[Foreign]:
    """Find `SELECT DISTINCT ON (a) ... ORDER BY a, b`, the first row of each group."""
    for at, (one, two, three) in enumerate(zip(s.words, s.words[1:], s.words[2:], strict=False)):
        if not (one.is_("DISTINCT") and two.is_("ON") and three.is_("(")):
            continue
        behind = s.closed(at + 2)
        groups = [s.source(*argument) for argument in s.arguments(at + 2)]
        order = s.until(behind, "ORDER", *_AFTER_ORDER)
        end, keys = order, []
        if s.words[order].is_("ORDER"):
            end = s.until(order + 2, *_AFTER_ORDER)
            keys = _items(s, order + 2, end)
        while keys and re.sub(r"(?i)\s+(asc|desc)$", "", keys[0]).lower() in [g.lower() for g in groups]:
            keys = keys[1:]
        by, then = ", ".join(groups), ", ".join(keys or groups)
        chosen = f"QUALIFY row_number() OVER (PARTITION BY {by} ORDER BY {then}) = 1"
        place = s.place(end - 1, end)[1]
        if order == end:
            last = (place, place, f" {chosen}")
        else:
            limited = f" {s.source(order, end)}" if s.words[end].is_("LIMIT", "OFFSET", "FETCH") else ""
            last = (s.place(order, end)[0], place, f"{chosen}{limited}")
        reason = "DISTINCT ON is not supported; take the first row of each group"
        yield Foreign(at, behind, reason, (s.edit(at, behind, ""), last))


def _items(s: StatementWords, first: int, last: int) -> list[str]:
    """Return the texts of a comma-separated list."""
    found, start = [], first
    for place in s.level(first, last):
        if s.words[place].is_(","):
            found.append(s.source(start, place))
            start = place + 1
    return [*found, s.source(start, last)]


def fetched(s: StatementWords) -> Iterator[Foreign]:
    """Find `FETCH FIRST 3 ROWS WITH TIES` and `FETCH FIRST 3 ROWS ONLY`."""
    for at, (word, after) in enumerate(zip(s.words, s.words[1:], strict=False)):
        if not (word.is_("FETCH") and after.is_("FIRST", "NEXT")):
            continue
        counted = s.words[at + 2].kind == "number"
        count = s.words[at + 2].text if counted else "1"
        rows = at + 2 + counted
        end = rows + 1
        if not s.words[rows].is_("ROW", "ROWS"):
            continue
        if s.words[end].is_("ONLY"):
            yield Foreign(
                at, end + 1, "FETCH is not supported; use LIMIT", (s.edit(at, end + 1, f"LIMIT {count}"),)
            )
        elif s.words[end].is_("WITH") and s.words[end + 1].is_("TIES"):
            yield _with_ties(s, at, end + 2, count)


def _with_ties(s: StatementWords, at: int, end: int, count: str) -> Foreign:
    reason = "WITH TIES is not supported; use rank()"
    order = next(
        (i for i in range(at - 1, -1, -1) if s.words[i].is_("ORDER") and s.until(i, "FETCH") == at), None
    )
    if order is None:
        return Foreign(at, end, reason, hint=f"QUALIFY rank() OVER (ORDER BY <columns>) <= {count}")
    ranked = f"QUALIFY rank() OVER ({s.source(order, at)}) <= {count}"
    return Foreign(at, end, reason, (s.edit(order, end, ranked),))


def approximate_percentiles(s: StatementWords) -> Iterator[Foreign]:
    """Find `approx_percentile(0.5) WITHIN GROUP (ORDER BY x)`."""
    for at in s.calls(*_PERCENTILES):
        group = s.closed(at + 1)
        if not (
            s.words[group].is_("WITHIN") and s.words[group + 1].is_("GROUP") and s.words[group + 2].is_("(")
        ):
            continue
        end = s.closed(group + 2)
        last = end - 1
        descends = s.words[last - 1].is_("DESC")
        last -= s.words[last - 1].is_("ASC", "DESC")
        value, share = s.source(group + 5, last), s.source(*s.arguments(at + 1)[0])
        made = f"percentile_approx({value}, {f'1 - {share}' if descends else share})"
        reason = (
            f"{s.words[at].text} is not supported; percentile_approx takes the value as its first argument"
        )
        yield Foreign(at, end, reason, (s.edit(at, end, made),))


def unnested(s: StatementWords) -> Iterator[Foreign]:
    """Find `UNNEST(tags)`, `CROSS JOIN UNNEST(items) AS t(sku, n)`, and `LATERAL TABLE(f(x))` of Flink."""
    for at in s.calls("UNNEST"):
        end = s.closed(at + 1)
        if not s.before(at).is_("FROM", "JOIN", ",") or _is_select_item(s, at):
            yield Foreign(at, end, "UNNEST is not supported; use explode", (s.edit(at, at + 1, "explode"),))
        else:
            columns = end + 1 + s.words[end].is_("AS")
            several = s.words[columns].is_("(") and len(s.arguments(columns)) > 1
            function = "inline" if several else "explode"
            lateral = "" if s.before(at).is_("FROM") else "LATERAL "
            reason = f"UNNEST is not supported; use LATERAL {function}"
            yield Foreign(at, end, reason, (s.edit(at, at + 1, f"{lateral}{function}"),))
    for at in s.calls("TABLE"):
        if s.before(at).is_("LATERAL"):
            end = s.closed(at + 1)
            inner = s.source(at + 2, end - 1)
            yield Foreign(
                at,
                end,
                "LATERAL TABLE is not supported; write the function after LATERAL",
                (s.edit(at, end, inner),),
            )


def _is_select_item(s: StatementWords, at: int) -> bool:
    """Whether a word after a comma is in the list of a SELECT, and not of a FROM."""
    depth = 0
    for place in range(at - 1, -1, -1):
        depth += s.words[place].is_(")", "]") - s.words[place].is_("(", "[")
        if depth == 0 and s.words[place].is_("SELECT", "FROM"):
            return s.words[place].is_("SELECT")
    return False


def filled_gaps(s: StatementWords) -> Iterator[Foreign]:
    """Find `gap_fill(clicks, at, INTERVAL '1 minute', ...)` and `time_bucket_gapfill('1 minute', at)`, with any arguments."""
    for at in s.calls("GAP_FILL", "TIME_BUCKET_GAPFILL"):
        arguments = s.arguments(at + 1)
        if s.words[at].is_("GAP_FILL") and len(arguments) >= 3:
            table, column, length = (
                s.source(*arguments[0]),
                s.source(*arguments[1]),
                s.interval(*arguments[2]),
            )
        else:
            lengths = [s.interval(*one) for one in arguments]
            length = next(filter(None, lengths), None)
            columns = [s.source(*one) for one, found in zip(arguments, lengths, strict=True) if found is None]
            start = s.until(at, "FROM") + 1
            table = s.source(start, start + 1) if start < len(s.words) - 1 else "<topic>"
            if columns and s.before(at).is_("FROM", "JOIN"):
                table, *columns = columns
            column = columns[0] if columns else "<its time>"
        window = f"window({column}, '{length or '1 minute'}').start"
        steps = f"explode(sequence(min(t), max(t), INTERVAL '{length or '1 minute'}'))"
        hint = (
            f"write WITH some AS (SELECT {window} AS t, count(*) AS n FROM {table} GROUP BY 1), "
            f"every AS (SELECT {steps} AS t FROM some) "
            "SELECT every.t, coalesce(some.n, 0) AS n FROM every LEFT JOIN some ON every.t = some.t"
        )
        reason = f"{s.words[at].text} is not supported; generate every step from the first row to the last, and join"
        yield Foreign(at, s.closed(at + 1), reason, hint=hint)


def buckets(s: StatementWords) -> Iterator[Foreign]:
    """Find `date_bin(INTERVAL '5 minutes', at, TIMESTAMP '2001-01-01')` and `time_bucket('5 minutes', at)` with an origin
    at midnight."""
    for at in s.calls("DATE_BIN", "TIME_BUCKET"):
        arguments = s.arguments(at + 1)
        length = s.interval(*arguments[0]) if len(arguments) in (2, 3) else None
        if length is None or length.split()[1].startswith(("day", "week")):
            continue
        origin = s.words[arguments[2][1] - 1] if len(arguments) == 3 else None
        if origin is not None and not (origin.kind == "string" and _MIDNIGHT.fullmatch(origin.text)):
            continue
        end = s.closed(at + 1)
        made = f"window({s.source(*arguments[1])}, '{length}').start"
        yield Foreign(at, end, f"{s.words[at].text} is not supported; use window", (s.edit(at, end, made),))
