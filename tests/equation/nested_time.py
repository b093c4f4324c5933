"""Random queries with several operators in time, one above the other, each with what it means in plain Spark SQL.

What a query means is the same text over topics that have one column more, `met`: the watermark that a row met, less what
`correct_for` allows, or NULL where no row is ever late. Where a row of a topic enters its first operator in time, the text
says by it which rows are admitted. So neither the engine nor its planner has a part in what it means.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.equation.late_model import MINUTE, SECOND, Span, cumulative, hopping, tumbling

TOPICS = ("clicks", "pays", "acks")

Windows = Callable[[int], list[Span]]


@dataclass(frozen=True)
class Place:
    """Where rows of a topic enter an operator in time: those that pass `WHERE x <> 3`, if `filtered`, into windows that
    their time has, or none."""

    topic: str
    filtered: bool
    windows: Windows | None = None


@dataclass(frozen=True)
class Relation:
    """A query, and what it means. Its columns are `user` and `x`, and `at` or `w`, by its kind.

    A `stream` is a topic's rows, that no operator in time has admitted yet; `moments` and `windows` have been. What is
    `last` has other columns, and nothing can be above it.
    """

    kind: str
    sql: str
    meant: str
    places: tuple[Place, ...]
    shape: str
    """Which operators it has, in short."""

    @property
    def topics(self) -> tuple[str, ...]:
        """Those that it reads."""
        return tuple(dict.fromkeys(place.topic for place in self.places))


@dataclass(frozen=True)
class Window:
    """A kind of window: its expression, the same for plain Spark as a table of (w, user, x, met) over {}, and in Python."""

    sql: str
    meant: str
    windows: Windows


def _plain(window: str, windows: Windows) -> Window:
    return Window(window, f"SELECT {window} AS w, user, x, met FROM ({{}})", windows)


WINDOWS = {
    "tumbling": _plain("window(at, '1 minute')", tumbling(MINUTE)),
    "wide": _plain("window(at, '3 minutes')", tumbling(3 * MINUTE)),
    "hopping": _plain("window(at, '90 seconds', '30 seconds')", hopping(90 * SECOND, 30 * SECOND)),
    "cumulative": Window(
        "cumulate_window(at, '30 seconds', '2 minutes')",
        "SELECT named_struct('start', s, 'end', s + n * INTERVAL '30' SECOND) AS w, user, x, met FROM "
        "(SELECT window(at, '2 minutes').start AS s, at, user, x, met, explode(array(1, 2, 3, 4)) AS n FROM ({})) "
        "WHERE at < s + n * INTERVAL '30' SECOND",
        cumulative(30 * SECOND, 2 * MINUTE),
    ),
}
END = ("w.end", "w.end")
FRAMES = (
    "INTERVAL '1' MINUTE PRECEDING AND CURRENT ROW",
    "INTERVAL '30' SECOND PRECEDING AND INTERVAL '60' SECOND FOLLOWING",
    "INTERVAL '4' MINUTE PRECEDING AND CURRENT ROW",
    "INTERVAL '120' SECOND PRECEDING AND INTERVAL '20' SECOND PRECEDING",
)
BOUNDS = (
    "r.at BETWEEN l.at - INTERVAL '30' SECOND AND l.at + INTERVAL '1' MINUTE",
    "r.at BETWEEN l.at AND l.at + INTERVAL '3' MINUTE",
    "r.at >= l.at - INTERVAL '2' MINUTE AND r.at < l.at",
)


class Queries:
    """Makes queries at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def query(self, depth: int) -> Relation:
        """One with about as many operators above each other."""
        while True:
            made = self._relation(depth)
            if made.kind != "stream":
                return made

    def _relation(self, depth: int) -> Relation:
        if depth == 0:
            return self._stream(self._random.choice(TOPICS))
        made = self._random.choice(
            [
                self._grouped,
                self._grouped,
                self._sessions,
                self._framed,
                self._framed,
                self._joined,
                self._joined,
                self._beside,
                self._beside,
                self._regrouped,
                self._in_windows,
                self._doubly_grouped,
                self._with_totals,
                self._united,
                self._narrowed,
                self._first,
            ]
        )
        return made(depth)

    def _stream(self, topic: str) -> Relation:
        filtered = self._random.random() < 0.5
        where = " WHERE x <> 3" if filtered else ""
        return Relation(
            "stream",
            f"SELECT user, x, at FROM {topic}{where}",
            f"SELECT user, x, at, met FROM {topic}{where}",
            (Place(topic, filtered),),
            topic,
        )

    # --- what can be above what ------------------------------------------------------------------------------------

    def _moments(self, depth: int) -> Relation:
        """Rows with a time: of a topic as they are, or of what windows end with."""
        made = self._relation(depth)
        if made.kind == "windows":
            time, meant = self._random.choice(
                [("window_time(w)", "timestampadd(MICROSECOND, -1, w.end)"), END, END]
            )
            text = "SELECT user, x, {} AS at FROM ({})"
            sql, meaning = text.format(time, made.sql), text.format(meant, made.meant)
            return replace(made, kind="moments", sql=sql, meant=meaning, shape=f"ends({made.shape})")
        return made if made.kind != "last" else self._moments(depth)

    def _windows(self, depth: int) -> Relation:
        """Rows with a window."""
        if depth <= 1:
            return self._grouped(1)
        made = self._relation(depth)
        if made.kind == "windows":
            return made
        return self._group_by(made) if made.kind != "last" else self._windows(depth)

    # --- operators -------------------------------------------------------------------------------------------------

    def _grouped(self, depth: int) -> Relation:
        return self._group_by(self._moments(depth - 1))

    def _group_by(self, below: Relation) -> Relation:
        name = self._random.choice(list(WINDOWS))
        window = WINDOWS[name]
        having = self._random.choice(["", "", " HAVING count(*) > 1"])
        group = f"SELECT w, user, sum(x) AS x FROM ({{}}) GROUP BY w, user{having}"
        sql = group.format(f"SELECT {window.sql} AS w, user, x FROM ({below.sql})")
        if self._random.random() < 0.5:  # the same, as it is mostly written: other attributes in the plan
            sql = (
                f"SELECT {window.sql} AS w, user, sum(x) AS x FROM ({below.sql}) "
                f"GROUP BY {window.sql}, user{having}"
            )
        if below.kind == "stream":
            admitted = f"SELECT * FROM ({window.meant.format(below.meant)}) WHERE met IS NULL OR w.end > met"
            places = (replace(below.places[0], windows=window.windows),)
        else:
            admitted = window.meant.format(f"SELECT *, NULL AS met FROM ({below.meant})")
            places = below.places
        return Relation("windows", sql, group.format(admitted), places, f"{name}({below.shape})")

    def _sessions(self, depth: int) -> Relation:
        below = _admitted(self._moments(depth - 1))
        gap = self._random.choice(["20 seconds", "1 minute"])
        window = f"session_window(at, '{gap}')"
        return _over(
            below,
            "windows",
            f"SELECT {window} AS w, user, sum(x) AS x FROM ({{}}) GROUP BY {window}, user",
            "session",
        )

    def _framed(self, depth: int) -> Relation:
        below = _admitted(self._moments(depth - 1))
        frame, by = self._random.choice(FRAMES), self._random.choice(["user", "user", "x"])
        over = f"OVER (PARTITION BY {by} ORDER BY at RANGE BETWEEN {frame})"
        value = self._random.choice(["sum(user)", "count(*)", "max(user)"])
        return _over(
            below, "moments", f"SELECT user, coalesce({value} {over}, 0) AS x, at FROM ({{}})", "frame"
        )

    def _joined(self, depth: int) -> Relation:
        left, right = (
            _admitted(self._moments(depth - 1)),
            _admitted(self._moments(self._random.randrange(depth))),
        )
        join = self._random.choice(["INNER", "INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI"])
        on = f"ON l.user = r.user AND {self._random.choice(BOUNDS)}"
        kind, columns = "moments", "l.user, l.x + coalesce(r.x, 0) AS x, l.at"
        match join:
            case "INNER":
                columns = self._random.choice([columns, "l.user, l.x + r.x AS x, r.at"])
            case "RIGHT":
                columns = "r.user, r.x + coalesce(l.x, 0) AS x, r.at"
            case "FULL":
                kind, columns = "last", "l.user, l.x, l.at, r.user AS u, r.x AS y, r.at AS t"
            case "LEFT SEMI" | "LEFT ANTI":
                columns = "l.user, l.x, l.at"
        return _both(
            left, right, kind, f"SELECT {columns} FROM ({{}}) l {join} JOIN ({{}}) r {on}", join.lower()
        )

    def _beside(self, depth: int) -> Relation:
        """Windows that are equal, beside each other; or rows of joins in time, beside each other by their user."""
        if self._random.random() < 0.3:
            left, right = (_admitted(self._moments(depth - 1)) for _ in range(2))
            if left.kind == right.kind == "moments" and depth > 1:
                return _both(
                    left,
                    right,
                    "last",
                    "SELECT l.user, l.x, l.at, r.x AS y, r.at AS t FROM ({}) l JOIN ({}) r ON l.user = r.user",
                    "by user",
                )
        left, right = self._windows(depth - 1), self._windows(self._random.randrange(depth))
        join = self._random.choice(["JOIN", "LEFT JOIN"])
        return _both(
            left,
            right,
            "windows",
            f"SELECT l.w, l.user, l.x + coalesce(r.x, 0) AS x FROM ({{}}) l {join} ({{}}) r "
            "ON l.w = r.w AND l.user = r.user",
            "beside",
        )

    def _in_windows(self, depth: int) -> Relation:
        """Each row with its windows."""
        below = self._moments(depth - 1)
        if below.kind == "stream":
            return self._group_by(below)
        name = self._random.choice(list(WINDOWS))
        meant = WINDOWS[name].meant.format(f"SELECT *, NULL AS met FROM ({below.meant})")
        return replace(
            below,
            kind="windows",
            sql=f"SELECT {WINDOWS[name].sql} AS w, user, x FROM ({below.sql})",
            meant=f"SELECT w, user, x FROM ({meant})",
            shape=f"in {name}({below.shape})",
        )

    def _doubly_grouped(self, depth: int) -> Relation:
        """Groups of two windows of the same rows, of which one is looked at: the first says which rows are late."""
        below = self._moments(depth - 1)
        first, second = self._random.sample(["tumbling", "wide", "hopping"], 2)
        v, w = WINDOWS[first], WINDOWS[second]
        text = (
            f"SELECT {self._random.choice('vw')} AS w, user, sum(x) AS x FROM (SELECT v, w, user, sum(x) AS x FROM "
            f"(SELECT {v.sql} AS v, w, user, x{{}} FROM (SELECT {w.sql} AS w, at, user, x{{}} FROM ({{}}))){{}} "
            "GROUP BY v, w, user) GROUP BY 1, 2"
        )
        sql, meant, places = (
            text.format("", "", below.sql, ""),
            text.format("", "", below.meant, ""),
            below.places,
        )
        if below.kind == "stream":
            meant = text.format(", met", ", met", below.meant, " WHERE met IS NULL OR v.end > met")
            places = (replace(below.places[0], windows=v.windows),)
        return Relation("windows", sql, meant, places, f"{first} and {second}({below.shape})")

    def _with_totals(self, depth: int) -> Relation:
        """Windows beside what has no time: these rows are never final."""
        left, right = self._windows(depth - 1), self._windows(self._random.randrange(depth))
        return _both(
            left,
            right,
            "windows",
            "SELECT l.w, l.user, l.x + r.n AS x FROM ({}) l JOIN (SELECT user, count(*) AS n FROM ({}) GROUP BY user) r "
            "ON l.user = r.user",
            "totals",
        )

    def _regrouped(self, depth: int) -> Relation:
        below = self._windows(depth - 1)
        return _over(
            below,
            "windows",
            "SELECT w, max(user) AS user, count(*) + sum(x) AS x FROM ({}) GROUP BY w",
            "again",
        )

    def _united(self, depth: int) -> Relation:
        left, right = self._windows(depth - 1), self._windows(self._random.randrange(depth))
        how = self._random.choice(["UNION ALL", "UNION ALL", "UNION", "INTERSECT", "EXCEPT"])
        columns = "w, user, x" if how.startswith("UNION") else "w, user, x % 2 AS x"
        return _both(
            left,
            right,
            "windows",
            f"SELECT {columns} FROM ({{}}) {how} SELECT {columns} FROM ({{}})",
            how.lower(),
        )

    def _narrowed(self, depth: int) -> Relation:
        below = self._windows(depth - 1)
        return _over(below, "windows", "SELECT DISTINCT w, x % 2 AS user, x % 3 AS x FROM ({})", "distinct")

    def _first(self, depth: int) -> Relation:
        below = self._windows(depth - 1)
        return _over(
            below,
            "windows",
            "SELECT w, user, x FROM (SELECT *, row_number() OVER (PARTITION BY w ORDER BY x DESC, user) AS place "
            "FROM ({})) WHERE place <= 2",
            "first",
        )


def _admitted(below: Relation) -> Relation:
    """The rows of a topic that are not late by their time alone."""
    if below.kind != "stream":
        return below
    meant = f"SELECT user, x, at FROM ({below.meant}) WHERE met IS NULL OR at >= met"
    return replace(below, kind="moments", meant=meant)


def _over(below: Relation, kind: str, sql: str, shape: str) -> Relation:
    return replace(
        below,
        kind=kind,
        sql=sql.format(below.sql),
        meant=sql.format(below.meant),
        shape=f"{shape}({below.shape})",
    )


def _both(left: Relation, right: Relation, kind: str, sql: str, shape: str) -> Relation:
    return Relation(
        kind,
        sql.format(left.sql, right.sql),
        sql.format(left.meant, right.meant),
        (*left.places, *right.places),
        f"{shape}({left.shape}, {right.shape})",
    )
