"""Windows in the syntax of other engines: table functions of Flink and RisingWave, and the older group windows of Flink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headwater.sql.foreign.foreign_forms import Edit, Foreign, StatementWords

_TABLES = ("TUMBLE", "HOP", "CUMULATE", "SESSION")
_COLUMNS = {"WINDOW_START": ".start", "WINDOW_END": ".end"}
_PARTS = {"": "{}", "_START": "{}.start", "_END": "{}.end", "_ROWTIME": "{}.end - INTERVAL '1 millisecond'"}
_AFTER_GROUPS = ("HAVING", "QUALIFY", "WINDOW", "ORDER", "LIMIT", "UNION", "EXCEPT", "INTERSECT", "EMIT")
_REASON = "windows are not table functions; use GROUP BY"


def _window(kind: str, column: str, lengths: Sequence[str]) -> str | None:
    """Return the expression of a window; None if the number of lengths is wrong."""
    match kind, lengths:
        case "TUMBLE", [size]:
            return f"window({column}, '{size}')"
        case "HOP", [slide, size]:
            return f"window({column}, '{size}', '{slide}')"
        case "CUMULATE", [step, size]:
            return f"cumulate_window({column}, '{step}', '{size}')"
        case "SESSION", [gap]:
            return f"session_window({column}, '{gap}')"
    return None


def window_tables(s: StatementWords) -> Iterator[Foreign]:
    """Find `FROM tumble(clicks, at, INTERVAL '1 minute')` and
    `TABLE(TUMBLE(TABLE clicks, DESCRIPTOR(at), INTERVAL '1' MINUTE))`."""
    for at in s.calls(*_TABLES):
        first, last = at, s.closed(at + 1)
        if s.before(first).is_("(") and s.before(first - 1).is_("TABLE"):
            first, last = first - 2, s.closed(first - 1)
        if not s.before(first).is_("FROM", "JOIN", ","):
            continue
        arguments = s.arguments(at + 1)
        if len(arguments) < 3 or (s.before(first).is_(",") and not any(s.is_interval(*a) for a in arguments)):
            continue  # after a comma it may be a scalar function
        (a, b), (c, d) = arguments[:2]
        if s.words[a].is_("TABLE"):
            a += 1
        table = s.source(a, b)
        column = s.source(c + 2, d - 1) if s.words[c].is_("DESCRIPTOR") else s.source(c, d)
        lengths = [s.interval(*rest) for rest in arguments[2:]]
        kind = s.words[at].text.upper()
        window = _window(kind, column, [one for one in lengths if one is not None])
        if window is None or None in lengths or b - a != 1:
            example = _window(kind, "at", ["1 minute"] * (2 if kind in ("HOP", "CUMULATE") else 1))
            yield Foreign(first, last, _REASON, hint=f"write FROM the table and GROUP BY {example}")
        else:
            yield _in_place(s, (first, last), table, kind, window)


def _in_place(s: StatementWords, at: tuple[int, int], table: str, kind: str, window: str) -> Foreign:
    grouped = _grouped(s, window)
    if grouped:
        return Foreign(*at, _REASON, (s.edit(*at, table), *grouped, *_selected(s, window)))
    if kind in ("TUMBLE", "HOP"):
        columns = f"{window}.start AS window_start, {window}.end AS window_end"
        return Foreign(*at, _REASON, (s.edit(*at, f"(SELECT *, {columns} FROM {table})"),))
    hint = f"write SELECT {window} AS w, count(*) AS n FROM {table} GROUP BY {window}"
    return Foreign(*at, _REASON, hint=hint)


def _grouped(s: StatementWords, window: str) -> list[Edit]:
    """Return edits that replace the window's columns in GROUP BY by the window itself, once."""
    edits: list[Edit] = []
    for at, word in enumerate(s.words[:-1]):
        if not (word.is_("GROUP") and s.words[at + 1].is_("BY")):
            continue
        end = s.until(at + 2, *_AFTER_GROUPS)
        for place in s.level(at + 2, end):
            if not s.words[place].is_(*_COLUMNS):
                continue
            first = place - 2 if s.before(place).is_(".") else place
            if not edits:
                edits.append(s.edit(first, place + 1, window))
            elif s.before(first).is_(","):
                edits.append(s.edit(first - 1, place + 1, ""))
            else:
                edits.append(s.edit(first, place + 1 + s.words[place + 1].is_(","), ""))
    return edits


def _selected(s: StatementWords, window: str) -> Iterator[Edit]:
    """Yield edits that replace the window's columns in SELECT by fields of the window, under the same names."""
    for at, word in enumerate(s.words):
        if not word.is_("SELECT"):
            continue
        for place in s.level(at + 1, s.until(at + 1, "FROM")):
            found = s.words[place]
            if not found.is_(*_COLUMNS):
                continue
            first = place - 2 if s.before(place).is_(".") else place
            alone = s.before(first).is_("SELECT", ",") and s.words[place + 1].is_(",", "FROM")
            part = f"{window}{_COLUMNS[found.text.upper()]}"
            yield s.edit(first, place + 1, f"{part} AS {found.text}" if alone else part)


def group_windows(s: StatementWords) -> Iterator[Foreign]:
    """Find `GROUP BY TUMBLE(at, INTERVAL '1' MINUTE)` and `TUMBLE_START(at, INTERVAL '1' MINUTE)`."""
    known = {
        f"{kind}{part}": (kind, form)
        for kind in ("TUMBLE", "HOP", "SESSION")
        for part, form in _PARTS.items()
    }
    for at in s.calls(*known):
        arguments = s.arguments(at + 1)
        if len(arguments) < 2 or not all(s.is_interval(*a) for a in arguments[1:]):
            continue
        kind, form = known[s.words[at].text.upper()]
        lengths = [str(s.interval(*a)) for a in arguments[1:]]
        window = _window(kind, s.source(*arguments[0]), lengths)
        if window is not None:
            end = s.closed(at + 1)
            reason = f"{s.words[at].text} is not supported; use {'session_window' if kind == 'SESSION' else 'window'}"
            yield Foreign(at, end, reason, (s.edit(at, end, form.format(window)),))
