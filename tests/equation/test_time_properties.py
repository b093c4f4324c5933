"""A log gives the same windows, the same late rows and the same ledgers however it is cut into ticks, and with crashes in between.

For every kind of window and of join in time, under every policy, with EMIT ON WINDOW CLOSE and without; for queries that nest
them at random; and for sources whose rows change and go. Under `correct` the order of arrival does not matter either.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.errors import StatementError
from headwater.testing import inspect_workspace
from headwater.verify.recompute_at import PastRelations, moment_of
from tests.equation.feeding import (
    MAX_AHEAD,
    NOON,
    SETTINGS,
    Feed,
    contents,
    created,
    declared,
    moment,
    told,
)
from tests.equation.grammar.model import View
from tests.equation.histories import Held, Histories, Rows, Sizes
from tests.equation.late_model import QUERIES, SECOND, Late, Log, Policy, Query, ledger, sorted_out
from tests.equation.nested_time import Place, Queries, Relation
from tests.equation.oracle import Oracle

pytestmark = pytest.mark.slow

LONG = bool(os.environ.get("HEADWATER_LONG"))
LATE = {
    "correct": Policy(),
    "correct_for": Policy("correct", 45 * SECOND),
    "divert": Policy("divert"),
    "drop": Policy("drop"),
}


def opened(path: Path, spark: SparkSession, clock: ManualClock) -> hw.Workspace:
    return hw.open(path, spark=spark, clock=clock, settings=SETTINGS)


def sizes(chance: random.Random) -> Sizes:
    """Ticks of a few rows each."""
    return lambda: chance.choice([1, 2, 3, 5, 12] if LONG else [5, 12, 20])


def same(histories: Histories, chance: random.Random, crashes: int) -> Held:
    """What all histories of a log come to; AssertionError if they differ. It is of the one whose state expires in each tick."""
    found = {
        "one tick": histories.one_tick(),
        "many ticks": histories.ticks(sizes(chance)),
        "state that expires at once": histories.eager(sizes(chance)),
        "crashes": histories.crashing(sizes(chance), chance, crashes),
    }
    if LONG:
        found["state that is kept"] = histories.keeping(sizes(chance))
    first = found["one tick"]
    different = [
        f"{name}: {title}: {_difference(held.rows[name], rows)}"
        for title, held in found.items()
        for name, rows in first.rows.items()
        if held.rows[name] != rows
    ]
    assert not different, "\n".join(different)
    for title, held in found.items():
        assert held.ledgers == first.ledgers, title
    eager = found["state that expires at once"]
    assert eager.ticks > 3
    assert found["crashes"].crashes > 0
    return eager


def _difference(have: Rows, want: Rows) -> str:
    return f"too many {dict(have - want)}, missing {dict(want - have)}"[:400]


def hold_to_batch(ws: hw.Workspace, held: Held, views: Sequence[str]) -> None:
    """Views and what they tell of late rows are what Spark gives in batch for the same plan."""
    manifest = held.store.latest()
    assert manifest is not None
    with closing(
        PastRelations(ws.log, held.store, inspect_workspace(ws).engine_context(), moment_of(manifest))
    ) as past:
        for name in views:
            assert contents(past.view(name)) == held.rows[name], name
            if (late := f"{name}.late") in held.rows:
                assert contents(past.view(late)) == held.rows[late], late


# --- every kind under every policy -----------------------------------------------------------------------------------

AS_OF = "SELECT c.user, c.at, c.x, p.x AS price FROM clicks c {} JOIN prices FOR SYSTEM_TIME AS OF c.at AS p ON c.user = p.user"
KINDS: Mapping[str, Query | str] = {
    **QUERIES,
    "as_of": AS_OF.format("INNER"),
    "left_as_of": AS_OF.format("LEFT"),
}
PRICES = """
CREATE TOPIC prices (
  user BIGINT, x INT, at TIMESTAMP, PRIMARY KEY (user), WATERMARK FOR at AS at - INTERVAL '20 seconds'
) WITH (partitions = 2)
"""


def change_prices(feed: Feed) -> None:
    """A version of a price, in any order of time; or its end."""
    chance, now = feed.chance, feed.clock.now_us()
    row = {"user": chance.randint(1, 4), "at": moment(now - chance.randint(0, 12) * 10 * SECOND)}
    if chance.random() < 0.2:
        feed.ws.topic("prices").append([{**row, "_op": "delete"}])
    else:
        feed.ws.topic("prices").append([{**row, "x": chance.randint(0, 9)}])


@pytest.mark.parametrize("seed", range(40) if LONG else range(1))
@pytest.mark.parametrize(
    "late", [name if name != "drop" else pytest.param(name, marks=pytest.mark.long) for name in LATE]
)  # what is dropped and what is diverted is decided alike
def test_every_kind_of_window_and_join_holds_the_same_in_every_history(
    late: str, seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    chance, clock = random.Random(f"{late} {seed}"), ManualClock(NOON)
    views = {
        f"{kind}{'_emits' if emits else ''}": (query, replace(LATE[late], emits=emits))
        for n, (kind, query) in enumerate(KINDS.items())
        for emits in (False, True)
        if LONG or emits == bool((n + list(LATE).index(late)) % 2)
    }
    with opened(tmp_path / "ws", spark, clock) as ws:
        ws.sql(f"{declared(('clicks', 'pays'), ', max_ahead = ' + repr('10 minutes'))}; {PRICES}")
        for name, (query, policy) in views.items():
            ws.sql(created(name, query if isinstance(query, str) else query.select, policy))
        lag = {"pays": chance.choice([0, 200]) * SECOND}
        feed = Feed(ws, ("clicks", "pays"), clock, chance, lag, max_ahead=MAX_AHEAD)
        for _ in range(12):
            feed.play(2)
            change_prices(feed)
        held = same(Histories(ws, tmp_path, clock=clock), chance, crashes=4)
        log = feed.log()
        modelled = {name: (q, p) for name, (q, p) in views.items() if isinstance(q, Query)}
        for name, (query, policy) in modelled.items():
            want = query.answer(log, policy)
            assert held.rows[name] == want.contents, name
            assert held.ledgers[name] == want.ledger, name
            if policy.tells:
                assert held.rows[f"{name}.late"] == told(want.late, query.topics), name
        hold_to_batch(ws, held, [n for n in views if LONG or n not in modelled])
        append_only = [n for n, (_, p) in views.items() if p.emits and p.late != "correct"]
        assert all(held.is_append_only(name) for name in append_only)
        lost = {name: account["diverted"] + account["dropped"] for name, account in held.ledgers.items()}
        assert all(lost.values()) if late != "correct" else not any(lost.values())


# --- operators in time above each other ------------------------------------------------------------------------------

TOPICS = ("clicks", "pays", "acks")
SCHEMA = pa.schema(
    [
        ("user", pa.int64()),
        ("x", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("met", pa.timestamp("us", "UTC")),
    ]
)


def tables(log: Log, policy: Policy) -> dict[str, pa.Table]:
    """Topics, with the watermark by which each row is late."""

    def met(row: Any) -> Any:
        found = log.met(row)
        return None if found is None or not policy.leaves_out else moment(found - (policy.correct_for or 0))

    return {
        topic: pa.Table.from_pylist(
            [{"user": r.user, "x": r.x, "at": moment(r.at), "met": met(r)} for r in log.of(topic)],
            schema=SCHEMA,
        )
        for topic in log.lateness
    }


def late_at(log: Log, place: Place, policy: Policy) -> tuple[list[Any], list[Late]]:
    """What is admitted at a place of a query, and what is late there."""
    rows = [row for row in log.of(place.topic) if not place.filtered or row.x != 3]
    pairs = [(row, window) for row in rows for window in (place.windows(row.at) if place.windows else [None])]
    return sorted_out(log, pairs, policy)


@dataclass(frozen=True)
class Nested:
    """A query that a workspace has as a view, and, where it can, as one that shows final rows only."""

    relation: Relation
    policy: Policy
    name: str
    emits: str | None

    def hold(self, held: Held, log: Log, oracle: Oracle, *, is_orderly: bool) -> None:
        """The view holds what the query means; what is final is a part of it, and goes no more unless something is late."""
        names = self.relation.topics
        view = View(self.name, self.relation.meant, names)
        want = oracle.run(tables(log, self.policy), [view])[self.name]
        assert held.rows[self.name] == contents(want), self.name
        found = [late_at(log, place, self.policy) for place in self.relation.places]
        admitted = [pair for pairs, _ in found for pair in pairs]
        late = [each for _, some in found for each in some]
        read = sum(len(log.of(topic)) for topic in names)
        assert held.ledgers[self.name] == ledger(read, admitted, late, self.policy), self.name
        if self.policy.tells:
            assert held.rows[f"{self.name}.late"] == told(late, names), self.name
        if self.emits is not None:
            assert held.ledgers[self.emits] == held.ledgers[self.name]
            for tick in held.store.ticks():
                assert held.at(tick, self.emits) <= held.at(tick, self.name), (self.emits, tick)
            if is_orderly or self.policy.late != "correct":
                assert held.is_append_only(self.emits), self.emits


def nested(ws: hw.Workspace, seed: int, views: int) -> list[Nested]:
    """Views of queries at random, each under a policy of its own; those that are refused under it are left out."""
    queries, chance, made = Queries(seed), random.Random(seed), list[Nested]()
    while len(made) < views:
        relation = queries.query(chance.choice([2, 2, 3]))
        policy, name = chance.choice(list(LATE.values())), f"v{len(made)}"
        if not _is_made(ws, name, relation, policy):
            continue
        emits = _is_made(ws, f"{name}_emits", relation, replace(policy, emits=True))
        made.append(Nested(relation, policy, name, f"{name}_emits" if emits else None))
    return made


def _is_made(ws: hw.Workspace, name: str, relation: Relation, policy: Policy) -> bool:
    try:
        ws.sql(created(name, relation.sql, policy))
    except StatementError:
        return False
    return True


def hold_nested(seed: int, folder: Path, spark: SparkSession, oracle: Oracle, views: int) -> None:
    """One seed: several topics, of which one lags, and queries over them."""
    chance, clock = random.Random(seed), ManualClock(NOON)
    with opened(folder / "ws", spark, clock) as ws:
        ws.sql(declared(TOPICS))
        made = nested(ws, seed, views)
        lag = {chance.choice(TOPICS): chance.choice([0, 150, 600]) * SECOND}
        feed = Feed(ws, TOPICS, clock, chance, lag, is_orderly=seed % 4 == 3)
        feed.play(30)
        held = same(Histories(ws, folder, clock=clock), chance, crashes=3)
        log = feed.log()
        for each in made:
            try:
                each.hold(held, log, oracle, is_orderly=feed.is_orderly)
            except AssertionError as error:
                raise AssertionError(f"{each.relation.shape} {each.policy}\n{each.relation.sql}") from error
        feed.finish()
        end = Histories(ws, folder / "end", clock=clock).eager(sizes(chance))
        for each in made:
            if each.emits is not None:
                assert end.rows[each.emits] == end.rows[each.name], f"{each.relation.shape}: all is final"
        if LONG:
            hold_to_batch(ws, end, list(end.ledgers))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(300) if LONG else range(1))
def test_operators_in_time_above_each_other_hold_what_they_mean(
    seed: int, tmp_path: Path, spark: SparkSession, oracle: Oracle
) -> None:
    hold_nested(seed, tmp_path, spark, oracle, views=8 if LONG else 3)


def _by_minute(topic: str) -> str:
    return (
        "SELECT w, user, sum(x) AS x FROM "
        f"(SELECT window(at, '1 minute') AS w, user, x FROM {topic}) GROUP BY w, user"
    )


def _near(left: str, right: str) -> str:
    return (
        f"SELECT l.user, l.at, l.x + r.x AS x FROM {left} l JOIN {right} r "
        "ON l.user = r.user AND r.at BETWEEN l.at AND l.at + INTERVAL '30' SECOND"
    )


def _framed(relation: str, by: str, minutes: int) -> str:
    return (
        f"SELECT user, at, count(*) OVER (PARTITION BY {by} ORDER BY at "
        f"RANGE BETWEEN INTERVAL '{minutes}' MINUTE PRECEDING AND CURRENT ROW) AS x FROM {relation}"
    )


TWO = f"({_by_minute('clicks')}) a JOIN ({_by_minute('acks')}) b ON a.w = b.w AND a.user = b.user"
FRAMES = _framed("clicks", "user", 1)
STACKED = {
    "groups above two": f"SELECT a.w, sum(a.x + b.x) AS x FROM {TWO} GROUP BY a.w",
    "distinct above two": f"SELECT DISTINCT a.w, b.x % 2 AS x FROM {TWO}",
    "groups above a union": f"SELECT w, sum(x) AS x FROM ({_by_minute('clicks')} UNION ALL {_by_minute('acks')}) GROUP BY w",
    "intersection": f"SELECT w, user FROM ({_by_minute('clicks')}) INTERSECT SELECT w, user FROM ({_by_minute('acks')})",
    "difference": f"SELECT w, user FROM ({_by_minute('clicks')}) EXCEPT SELECT w, user FROM ({_by_minute('acks')})",
    "frames above a join above frames": _framed(f"({_near(f'({FRAMES})', 'acks')})", "x", 2),
    "joins of joins": f"SELECT a.user, a.at, a.x, b.x AS y FROM ({_near('clicks', 'pays')}) a "
    f"JOIN ({_near('acks', 'tips')}) b ON a.user = b.user",
    "near joins of joins": _near(f"({_near('clicks', 'pays')})", f"({_near('acks', 'tips')})"),
    "groups above near joins": "SELECT window(at, '1 minute') AS w, sum(x) AS x FROM "
    f"({_near('clicks', 'acks')}) GROUP BY window(at, '1 minute')",
    "ranked by window above a join": "SELECT user, x FROM (SELECT *, row_number() OVER (PARTITION BY w ORDER BY x DESC, "
    f"user) AS n FROM (SELECT window(at, '1 minute') AS w, user, x FROM ({_near('clicks', 'acks')}))) WHERE n <= 2",
    "ranked by the wider of two windows": "SELECT w, user, x FROM (SELECT *, row_number() OVER (PARTITION BY v "
    "ORDER BY x DESC, user, w) AS n FROM (SELECT w, v, user, sum(x) AS x FROM (SELECT window(at, '3 minutes') AS v, w, "
    "user, x FROM (SELECT window(at, '1 minute') AS w, at, user, x FROM clicks)) GROUP BY w, v, user)) WHERE n <= 2",
    "the second of two windows": "SELECT w, sum(x) AS x FROM (SELECT v, w, sum(x) AS x FROM (SELECT window(at, "
    "'3 minutes') AS v, w, x FROM (SELECT window(at, '1 minute') AS w, at, x FROM clicks)) GROUP BY v, w) GROUP BY w",
    "beside totals": f"SELECT a.w, a.user, b.n FROM ({_by_minute('clicks')}) a JOIN (SELECT user, count(*) AS n FROM "
    f"({_by_minute('acks')}) GROUP BY user) b ON a.user = b.user",
}
"""Queries in which one operator in time is above another, whose rows others change, or of which more is shown than it says."""
SOME_STACKED = (
    "groups above a union",
    "frames above a join above frames",
    "groups above near joins",
    "the second of two windows",
)


@pytest.mark.long
@pytest.mark.parametrize("late", ["divert", "correct_for", "drop"] if LONG else ["divert"])
def test_what_is_above_others_keeps_what_it_needs_and_shows_what_is_final(
    late: str, tmp_path: Path, spark: SparkSession
) -> None:
    chance, clock, topics = random.Random(late), ManualClock(NOON), (*TOPICS, "tips")
    emits = []
    with opened(tmp_path / "ws", spark, clock) as ws:
        ws.sql(declared(topics))
        chosen = [name for name in STACKED if LONG or name in SOME_STACKED]
        for n, select in enumerate(map(STACKED.__getitem__, chosen)):
            ws.sql(created(f"v{n}", select, LATE[late]))
            try:
                ws.sql(created(f"v{n}_emits", select, replace(LATE[late], emits=True)))
                emits.append(n)
            except StatementError:
                pass
        feed = Feed(ws, topics, clock, chance, {"acks": 400 * SECOND, "tips": 400 * SECOND})
        feed.play(60)
        held = same(Histories(ws, tmp_path, clock=clock), chance, crashes=2)
        hold_to_batch(ws, held, [f"v{n}" for n in range(len(chosen))])
        for n in emits:
            title = chosen[n]
            for tick in held.store.ticks():
                assert held.at(tick, f"v{n}_emits") <= held.at(tick, f"v{n}"), (title, tick)
            assert late == "correct_for" or held.is_append_only(f"v{n}_emits"), title


# --- rows that change and go, and rows that come in another order -----------------------------------------------------

TABLES = """
CREATE TOPIC seats (
  id BIGINT, user BIGINT, x INT, at TIMESTAMP, PRIMARY KEY (id), WATERMARK FOR at AS at - INTERVAL '1 minute'
) WITH (partitions = 2);
CREATE TOPIC trips (
  id BIGINT, user BIGINT, x INT, at TIMESTAMP, PRIMARY KEY (id), WATERMARK FOR at AS at - INTERVAL '30 seconds'
) WITH (partitions = 2);
CREATE MATERIALIZED VIEW last_seen AS SELECT user, max(at) AS at, count(*) AS x FROM clicks GROUP BY user;
CREATE MATERIALIZED VIEW minutes AS
  SELECT w, window_time(w) AS at, user, x FROM
    (SELECT window(at, '1 minute') AS w, user, sum(x) AS x FROM seats GROUP BY window(at, '1 minute'), user);
"""
JOINS = ("INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI")
NEAR = "b.at BETWEEN a.at - INTERVAL '30' SECOND AND a.at + INTERVAL '1' MINUTE"


def _grouped(window: str, relation: str) -> str:
    return f"SELECT {window} AS w, user, count(*) AS n, sum(x) AS x FROM {relation} GROUP BY {window}, user"


def _joined(join: str, left: str, right: str, on: str) -> str:
    columns = "a.user, a.x" if join.startswith("LEFT ") else "a.user, a.x, b.user AS u, b.x AS y"
    return f"SELECT {columns} FROM {left} a {join} JOIN {right} b ON {on}"


FRAMED = (
    "SELECT id, user, at, sum(x) OVER (PARTITION BY user ORDER BY at "
    "RANGE BETWEEN INTERVAL '60' SECOND PRECEDING AND {}) AS x FROM seats"
)
CHANGING = {
    "tumbling": _grouped("window(at, '1 minute')", "seats"),
    "hopping": _grouped("window(at, '90 seconds', '30 seconds')", "seats"),
    "cumulative": _grouped("cumulate_window(at, '30 seconds', '2 minutes')", "seats"),
    "session": _grouped("session_window(at, '1 minute')", "seats"),
    "sliding": FRAMED.format("CURRENT ROW"),
    "ahead": FRAMED.format("INTERVAL '30' SECOND FOLLOWING"),
    "twice": "SELECT id, max(x) OVER (PARTITION BY x ORDER BY at RANGE BETWEEN INTERVAL '1' MINUTE PRECEDING "
    f"AND CURRENT ROW) AS m FROM ({FRAMED.format('CURRENT ROW')})",
    "several": _grouped("window(at, '1 minute')", "seats")
    + " UNION ALL "
    + _grouped("window(at, '3 minutes')", "seats"),
    "of_view": _grouped("window(at, '1 minute')", "last_seen"),
    "sessions_of_view": _grouped("session_window(at, '1 minute')", "last_seen"),
    "of_windows": _grouped("window(at, '3 minutes')", "minutes"),
    "again": "SELECT w, count(*) AS n, max(x) AS x FROM minutes GROUP BY w",
    "above_join": "SELECT window(at, '1 minute') AS w, count(*) AS n, sum(y) AS x FROM (SELECT a.at, b.x AS y "
    f"FROM clicks a JOIN trips b ON a.user = b.user AND {NEAR}) GROUP BY window(at, '1 minute')",
    **{
        f"near_{n}": _joined(join, "seats", "trips", f"a.user = b.user AND {NEAR}")
        for n, join in enumerate(JOINS)
    },
    **{
        f"beside_{n}": _joined(join, "clicks", "trips", f"a.user = b.user AND {NEAR}")
        for n, join in enumerate(JOINS)
    },
    **{
        f"table_{n}": _joined(join, "seats", "trips", "a.id = b.id AND a.x <= b.x")
        for n, join in enumerate(JOINS)
    },
    "as_of_seats": "SELECT a.user, a.x, b.x AS y FROM clicks a LEFT JOIN trips FOR SYSTEM_TIME AS OF a.at AS b "
    "ON a.user = b.id",
}
"""Views of sources whose rows are replaced and deleted."""
NEVER_FINAL = {"of_view", "sessions_of_view", *(f"table_{n}" for n in range(len(JOINS)))}
"""Views of sources without event times: EMIT ON WINDOW CLOSE is refused."""

Record = tuple[str, dict[str, Any]]


def records(chance: random.Random, times: int) -> list[Record]:
    """Rows of topics, and changes of tables, while time goes on."""
    found: list[Record] = []
    now = NOON
    for _ in range(times):
        now += chance.randint(0, 3) * 10 * SECOND
        topic = chance.choice(
            ["clicks", "clicks", "pays", "seats", "seats", "seats", "trips", "trips", "prices"]
        )
        at = moment(
            now - chance.choice([0, 0, 1, 2, 3, 6, 9, 12, 20]) * 10 * SECOND + chance.choice([0, 0, 1])
        )
        row = {"user": chance.randint(1, 4), "x": chance.randint(0, 5), "at": at}
        if topic in ("seats", "trips"):
            row["id"] = chance.randint(1, 12)
            if chance.random() < 0.2:
                row = {"id": row["id"], "_op": "delete"}
        elif topic == "prices" and chance.random() < 0.2:
            row = {"user": row["user"], "at": at, "_op": "delete"}
        found.append((topic, row))
    return found


def in_another_order(given: Sequence[Record], chance: random.Random) -> list[Record]:
    """The same records; those of one key of a table stay as they are to each other."""
    key = {"seats": "id", "trips": "id", "prices": "user"}
    lines: dict[Any, list[Record]] = {}
    for n, (topic, row) in enumerate(given):
        lines.setdefault((topic, row[key[topic]]) if topic in key else n, []).append((topic, row))
    order = [line for line, some in lines.items() for _ in some]
    chance.shuffle(order)
    left = {line: iter(some) for line, some in lines.items()}
    return [next(left[line]) for line in order]


def append(ws: hw.Workspace, given: Sequence[Record], chance: random.Random) -> None:
    """Append records in this order, a few at a time."""
    left = list(given)
    while left:
        size = chance.randint(1, 4)
        batch: dict[str, list[dict[str, Any]]] = {}
        for topic, row in left[:size]:
            batch.setdefault(topic, []).append(row)
        ws.append(batch)
        del left[:size]


@pytest.mark.parametrize("seed", range(100) if LONG else range(1))
def test_sources_that_change_and_any_order_of_arrival_come_to_the_same(
    seed: int, tmp_path: Path, spark: SparkSession
) -> None:
    chance, clock = random.Random(seed), ManualClock(NOON)
    topics = f"{declared(('clicks', 'pays'))}; {PRICES}; {TABLES}"
    queries = {f"kind_{n}": q if isinstance(q, str) else q.select for n, q in KINDS.items()} | CHANGING
    queries = {name: q for n, (name, q) in enumerate(queries.items()) if LONG or n % 3 == 0}
    given = records(chance, 120 if LONG else 90)
    with (
        opened(tmp_path / "ws", spark, clock) as ws,
        opened(tmp_path / "other", spark, clock) as other,
    ):
        ws.sql(topics)
        other.sql(topics)
        emits = []
        for n, (name, select) in enumerate(queries.items()):
            ws.sql(created(name, select, Policy()))
            if n % 4 and not LONG:
                continue
            try:
                ws.sql(created(f"{name}_emits", select, Policy(emits=True)))
                emits.append(name)
            except StatementError:
                assert name in NEVER_FINAL, name
        append(ws, given, chance)
        append(other, in_another_order(given, chance), chance)
        held = same(Histories(ws, tmp_path, clock=clock), chance, crashes=3)
        hold_to_batch(
            ws, held, list(held.ledgers) if LONG else [name for name in CHANGING if name in queries]
        )
        for name in emits:
            for tick in held.store.ticks():
                assert held.at(tick, f"{name}_emits") <= held.at(tick, name), (name, tick)
        shuffled = Histories(ws, tmp_path / "shuffled", other.log, clock).ticks(sizes(chance))
        for name, rows in held.rows.items():
            assert shuffled.rows[name] == rows, name
