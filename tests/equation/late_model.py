"""What late policies and EMIT ON WINDOW CLOSE mean, in plain Python, from the log's records alone.

Nothing here knows the engine or Spark. Times are whole microseconds. A log is its rows and punctuations, each at a
partition and an offset; every answer is a function of those before a cut.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SECOND = 1_000_000
MINUTE = 60 * SECOND

Span = tuple[int, int]
"""Where a window starts, and the time that is no longer in it."""
Contents = Counter[tuple[Any, ...]]
Cut = Mapping[str, Mapping[int, int]]
"""topic -> partition -> the first offset that is not in it"""


@dataclass(frozen=True, order=True)
class Row:
    """A row of a topic, where it is and when it was appended."""

    topic: str
    partition: int
    offset: int
    at: int
    user: int
    x: int
    appended_at: int = 0


@dataclass(frozen=True)
class Punctuation:
    """The word that nothing earlier than `at` is to come."""

    topic: str
    partition: int
    offset: int
    at: int


@dataclass(frozen=True)
class Log:
    """Topics with event times."""

    lateness: Mapping[str, int]
    partitions: int
    rows: tuple[Row, ...] = ()
    punctuations: tuple[Punctuation, ...] = ()
    max_ahead: int | None = None

    def upto(self, cut: Cut) -> Log:
        """What is before a cut."""

        def inside(record: Row | Punctuation) -> bool:
            return record.offset < cut.get(record.topic, {}).get(record.partition, 0)

        rows, punctuations = filter(inside, self.rows), filter(inside, self.punctuations)
        return replace(self, rows=tuple(rows), punctuations=tuple(punctuations))

    def of(self, topic: str) -> list[Row]:
        """The rows of a topic."""
        return [row for row in self.rows if row.topic == topic]

    def watermark(self, topic: str, partition: int, offset: int | None = None) -> int | None:
        """That of a partition before an offset, by default at its end; None if there is none yet."""

        def here(record: Row | Punctuation) -> bool:
            before = offset is None or record.offset < offset
            return before and record.topic == topic and record.partition == partition

        raised = [r.at - self.lateness[topic] for r in self.rows if here(r) and not self._is_ahead(r)]
        raised += [p.at for p in self.punctuations if here(p)]
        return max(raised, default=None)

    def level(self, topic: str) -> int | None:
        """The least watermark of a topic's partitions; None if one of them has none."""
        found = [self.watermark(topic, p) for p in range(self.partitions)]
        return None if any(w is None for w in found) else min(w for w in found if w is not None)

    def met(self, row: Row) -> int | None:
        """The watermark that a row met."""
        return self.watermark(row.topic, row.partition, row.offset)

    def _is_ahead(self, row: Row) -> bool:
        return self.max_ahead is not None and row.at > row.appended_at + self.max_ahead


# --- windows -------------------------------------------------------------------------------------------------------


def tumbling(size: int) -> Callable[[int], list[Span]]:
    """window(at, size)"""
    return lambda at: [(at - at % size, at - at % size + size)]


def hopping(size: int, slide: int) -> Callable[[int], list[Span]]:
    """window(at, size, slide)"""

    def windows(at: int) -> list[Span]:
        last = at - at % slide
        starts = range(last, at - size, -slide)
        return [(start, start + size) for start in starts]

    return windows


def cumulative(step: int, size: int) -> Callable[[int], list[Span]]:
    """cumulate_window(at, step, size)"""

    def windows(at: int) -> list[Span]:
        start = at - at % size
        return [(start, start + n) for n in range(step, size + step, step) if at < start + n]

    return windows


# --- what is late --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Late:
    """A row that is too late for a window, or at all where it has none by its time alone."""

    row: Row
    window: Span | None
    watermark: int

    @property
    def lateness(self) -> int:
        """How far it is behind."""
        return self.watermark - self.row.at


@dataclass(frozen=True)
class Policy:
    """late = ..., correct_for = ..."""

    late: str = "correct"
    correct_for: int | None = None
    emits: bool = False

    @property
    def leaves_out(self) -> bool:
        """Whether late rows are left out, some at least."""
        return self.late != "correct" or self.correct_for is not None

    @property
    def tells(self) -> bool:
        """Whether there is a `<view>.late`."""
        return self.late == "divert" or self.correct_for is not None

    def is_late(self, log: Log, row: Row, window: Span | None) -> bool:
        """Whether a row is left out of a window, or of everything."""
        watermark = log.met(row)
        if watermark is None or not self.leaves_out:
            return False
        allowed = self.correct_for or 0
        if window is None:
            return row.at + allowed < watermark
        return window[1] + allowed <= watermark


Pair = tuple[Row, Span | None]


def sorted_out(log: Log, pairs: Iterable[Pair], policy: Policy) -> tuple[list[Pair], list[Late]]:
    """The pairs of row and window that are admitted, and those that are late."""
    admitted: list[Pair] = []
    late = []
    for row, window in pairs:
        if policy.is_late(log, row, window):
            watermark = log.met(row)
            assert watermark is not None
            late.append(Late(row, window, watermark))
        else:
            admitted.append((row, window))
    return admitted, late


def ledger(read: int, admitted: Iterable[Pair], late: Iterable[Late], policy: Policy) -> dict[str, int]:
    """What became of the rows. A row that is late for some of its windows and not for all is used."""
    used = {row for row, _ in admitted}
    lost = len({each.row for each in late} - used)
    return {
        "read": read,
        "used": read - lost,
        "diverted": lost if policy.tells else 0,
        "dropped": 0 if policy.tells else lost,
        "failed": 0,
    }


# --- what views hold -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """A view at a cut."""

    contents: Contents
    late: list[Late]
    ledger: dict[str, int]


@dataclass(frozen=True)
class Query:
    """One kind of query: which pairs its rows make, and what it makes of those that are admitted.

    `rows` gives each row with its values and the time from which on it is final, None if it is at once, with the topic
    whose watermark has to be past that time.
    """

    select: str
    topics: tuple[str, ...]
    pairs: Callable[[Log], list[Pair]]
    rows: Callable[[list[Pair]], Iterator[tuple[tuple[Any, ...], int | None, str]]]

    def answer(self, log: Log, policy: Policy) -> Answer:
        """What a view of this query holds, and tells."""
        admitted, late = sorted_out(log, self.pairs(log), policy)
        levels = {topic: log.level(topic) for topic in self.topics}
        contents: Contents = Counter()
        for values, closes, topic in self.rows(admitted):
            level = levels[topic]
            if not policy.emits or closes is None or (level is not None and level >= closes):
                contents[values] += 1
        read = sum(len(log.of(topic)) for topic in self.topics)
        return Answer(contents, late, ledger(read, admitted, late, policy))


def kept(log: Log, topic: str) -> list[Row]:
    """The rows that pass `WHERE x <> 3`."""
    return [row for row in log.of(topic) if row.x != 3]


def by_window(windows: Callable[[int], list[Span]]) -> dict[str, Any]:
    """Counts and sums by window and user."""

    def pairs(log: Log) -> list[Pair]:
        return [(row, window) for row in kept(log, "clicks") for window in windows(row.at)]

    def rows(admitted: list[Pair]) -> Iterator[tuple[tuple[Any, ...], int | None, str]]:
        groups: dict[tuple[Span, int], list[int]] = defaultdict(list)
        for row, window in admitted:
            assert window is not None
            groups[window, row.user].append(row.x)
        for (window, user), values in groups.items():
            yield (window, user, len(values), sum(values)), window[1], "clicks"

    return {"pairs": pairs, "rows": rows}


def by_session(gap: int) -> dict[str, Any]:
    """Counts and sums by user and session; rows that touch a session's end belong to it."""

    def rows(admitted: list[Pair]) -> Iterator[tuple[tuple[Any, ...], int | None, str]]:
        users: dict[int, list[Row]] = defaultdict(list)
        for row, _ in admitted:
            users[row.user].append(row)
        for user, mine in users.items():
            for start, end, values in sessions(mine, gap):
                yield (user, (start, end), len(values), sum(values)), end + 1, "clicks"

    return {"pairs": _unwindowed("clicks"), "rows": rows}


def sessions(rows: Sequence[Row], gap: int) -> list[tuple[int, int, list[int]]]:
    """The sessions of some rows: start, end, values."""
    made: list[tuple[int, int, list[int]]] = []
    for row in sorted(rows, key=lambda r: r.at):
        if made and row.at <= made[-1][1]:
            start, _, values = made.pop()
            made.append((start, row.at + gap, [*values, row.x]))
        else:
            made.append((row.at, row.at + gap, [row.x]))
    return made


def over_range(preceding: int, following: int) -> dict[str, Any]:
    """Each row with the sum of its user's from so long before to so long after it."""

    def rows(admitted: list[Pair]) -> Iterator[tuple[tuple[Any, ...], int | None, str]]:
        all_rows = [row for row, _ in admitted]
        for row in all_rows:
            near = [
                r.x
                for r in all_rows
                if r.user == row.user and row.at - preceding <= r.at <= row.at + following
            ]
            yield (row.user, row.at, row.x, sum(near)), row.at + following + 1, "clicks"

    return {"pairs": _unwindowed("clicks"), "rows": rows}


def interval_join(least: int, most: int, *, left: bool = False, right: bool = False) -> dict[str, Any]:
    """Clicks with the payments of their user within bounds, and those of either side that have none."""

    def pairs(log: Log) -> list[Pair]:
        return [(row, None) for topic in ("clicks", "pays") for row in log.of(topic)]

    def rows(admitted: list[Pair]) -> Iterator[tuple[tuple[Any, ...], int | None, str]]:
        clicks = [row for row, _ in admitted if row.topic == "clicks"]
        pays = [row for row, _ in admitted if row.topic == "pays"]
        matched: set[Row] = set()
        for c in clicks:
            for p in pays:
                if c.user == p.user and least <= p.at - c.at <= most:
                    matched |= {c, p}
                    yield (c.user, c.at, c.x, p.user, p.at, p.x), None, "pays"
        for c in clicks if left else ():
            if c not in matched:
                yield (c.user, c.at, c.x, None, None, None), c.at + most + 1, "pays"
        for p in pays if right else ():
            if p not in matched:
                yield (None, None, None, p.user, p.at, p.x), p.at - least + 1, "clicks"

    return {"pairs": pairs, "rows": rows}


def with_any(least: int, most: int, *, having: bool) -> dict[str, Any]:
    """Clicks that have a payment of their user within bounds, or those that have none."""

    def rows(admitted: list[Pair]) -> Iterator[tuple[tuple[Any, ...], int | None, str]]:
        pays = [row for row, _ in admitted if row.topic == "pays"]
        for c in (row for row, _ in admitted if row.topic == "clicks"):
            if any(c.user == p.user and least <= p.at - c.at <= most for p in pays) == having:
                yield (c.user, c.at, c.x), None if having else c.at + most + 1, "pays"

    return {"pairs": interval_join(least, most)["pairs"], "rows": rows}


def _unwindowed(topic: str) -> Callable[[Log], list[Pair]]:
    return lambda log: [(row, None) for row in kept(log, topic)]


_NEAR = (
    "FROM clicks c {join} JOIN pays p "
    "ON c.user = p.user AND p.at BETWEEN c.at - INTERVAL '30 seconds' AND c.at + INTERVAL '1 minute'"
)
_JOINED = "SELECT c.user, c.at, c.x, p.user AS payer, p.at AS paid, p.x AS y " + _NEAR
_BOUNDS = (-30 * SECOND, MINUTE)
_FRAME = "sum(x) OVER (PARTITION BY user ORDER BY at RANGE BETWEEN {frame}) AS s FROM clicks WHERE x <> 3"


def _grouped(window: str) -> str:
    return f"SELECT {window} AS w, user, count(*) AS n, sum(x) AS s FROM clicks WHERE x <> 3 GROUP BY {window}, user"


QUERIES: dict[str, Query] = {
    "tumbling": Query(_grouped("window(at, '1 minute')"), ("clicks",), **by_window(tumbling(MINUTE))),
    "hopping": Query(
        _grouped("window(at, '90 seconds', '30 seconds')"),
        ("clicks",),
        **by_window(hopping(90 * SECOND, 30 * SECOND)),
    ),
    "cumulative": Query(
        _grouped("cumulate_window(at, '30 seconds', '2 minutes')"),
        ("clicks",),
        **by_window(cumulative(30 * SECOND, 2 * MINUTE)),
    ),
    "session": Query(
        "SELECT user, session_window(at, '1 minute') AS w, count(*) AS n, sum(x) AS s FROM clicks WHERE x <> 3 "
        "GROUP BY user, session_window(at, '1 minute')",
        ("clicks",),
        **by_session(MINUTE),
    ),
    "over": Query(
        "SELECT user, at, x, " + _FRAME.format(frame="INTERVAL '1 minute' PRECEDING AND CURRENT ROW"),
        ("clicks",),
        **over_range(MINUTE, 0),
    ),
    "ahead": Query(
        "SELECT user, at, x, "
        + _FRAME.format(frame="INTERVAL '30 seconds' PRECEDING AND INTERVAL '60 seconds' FOLLOWING"),
        ("clicks",),
        **over_range(30 * SECOND, MINUTE),
    ),
    "several": Query(
        _grouped("window(at, '1 minute')") + " UNION ALL " + _grouped("window(at, '3 minutes')"),
        ("clicks",),
        **by_window(lambda at: tumbling(MINUTE)(at) + tumbling(3 * MINUTE)(at)),
    ),
    "inner": Query(_JOINED.format(join="INNER"), ("clicks", "pays"), **interval_join(*_BOUNDS)),
    "left": Query(_JOINED.format(join="LEFT"), ("clicks", "pays"), **interval_join(*_BOUNDS, left=True)),
    "right": Query(_JOINED.format(join="RIGHT"), ("clicks", "pays"), **interval_join(*_BOUNDS, right=True)),
    "full": Query(
        _JOINED.format(join="FULL"), ("clicks", "pays"), **interval_join(*_BOUNDS, left=True, right=True)
    ),
    "semi": Query(
        "SELECT c.user, c.at, c.x " + _NEAR.format(join="LEFT SEMI"),
        ("clicks", "pays"),
        **with_any(*_BOUNDS, having=True),
    ),
    "anti": Query(
        "SELECT c.user, c.at, c.x " + _NEAR.format(join="LEFT ANTI"),
        ("clicks", "pays"),
        **with_any(*_BOUNDS, having=False),
    ),
}
