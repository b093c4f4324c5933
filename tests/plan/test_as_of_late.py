"""`FOR SYSTEM_TIME AS OF` under late policies: late records of the table and of the stream, against a model in Python.

The model knows the log's records alone. A record of the table that begins before the watermark that it met is late, like
an order: it is left out, told of or counted, and what was joined stays as it is.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.testing import inspect_workspace
from tests.raising import raises

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = 5
"""Minutes, of both topics; all times of the model are minutes."""
TOPICS = """
    CREATE TOPIC orders (id BIGINT, item BIGINT, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '5 minutes')
      WITH (partitions = {0});
    CREATE TOPIC prices (
      item BIGINT, price INT, since TIMESTAMP,
      PRIMARY KEY (item), WATERMARK FOR since AS since - INTERVAL '5 minutes'
    ) WITH (partitions = {0});
"""
JOIN = (
    "SELECT o.id, p.price, p._version AS version FROM orders o "
    "LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at AS p ON o.item = p.item"
)


def minutes(number: float) -> datetime:
    return START + timedelta(minutes=number)


# --- the model -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A record of either topic; `at` is when it happened, or begins to be valid."""

    topic: str
    partition: int
    offset: int
    at: float
    row: Mapping[str, Any]
    met: float | None


@dataclass(frozen=True)
class Policy:
    """WITH (late = ..., correct_for = ...), and what was given back."""

    late: str = "correct"
    correct_for: int | None = None
    emits: bool = False
    replayed: Mapping[tuple[str, int], int] = field(default_factory=dict)

    @property
    def options(self) -> str:
        """As SQL has them."""
        more = f", correct_for = '{self.correct_for} minutes'" if self.correct_for is not None else ""
        return f"late = '{self.late}'{more}"

    @property
    def tells(self) -> bool:
        """Whether there is a `<view>.late`."""
        return self.late == "divert" or self.correct_for is not None

    def leaves_out(self, record: Record) -> bool:
        """Whether a record is too late."""
        if (self.late == "correct" and self.correct_for is None) or record.met is None:
            return False
        if record.offset < self.replayed.get((record.topic, record.partition), 0):
            return False
        return record.at + (self.correct_for or 0) < record.met


def since_start(moment: datetime) -> float:
    return (moment - START) / timedelta(minutes=1)


def records(ws: hw.Workspace, topic: str) -> tuple[list[Record], dict[int, float | None]]:
    """Those of a topic, each with the watermark that it met, and the watermarks at the end, from event times alone."""
    time, keyed = ("at", False) if topic == "orders" else ("since", True)
    names = [
        *ws.topic(topic).schema.names,
        "_partition",
        "_offset",
        "_appended_at",
        *(["_op"] if keyed else []),
    ]
    reached: dict[int, float | None] = dict.fromkeys(range(ws.topic(topic).definition.partitions))
    found = []
    for batch in ws.topic(topic).read("earliest", columns=names):
        for row in batch.to_pylist():
            begin = since_start(row[time] if row[time] is not None else row["_appended_at"])
            known = reached[row["_partition"]]
            found.append(Record(topic, row["_partition"], row["_offset"], begin, row, known))
            if row[time] is not None:
                level = begin - LATENESS
                reached[row["_partition"]] = level if known is None else max(known, level)
    return found, reached


@dataclass(frozen=True)
class Answer:
    """What a view holds, tells and counts."""

    rows: Counter[tuple[Any, ...]]
    late: set[tuple[str, int, int]]
    ledger: dict[str, dict[str, int]]


def answer(ws: hw.Workspace, policy: Policy, shift: int = 0) -> Answer:
    """By the meaning of the words, over all records."""
    orders, _ = records(ws, "orders")
    prices, reached = records(ws, "prices")
    history: dict[int, list[Record]] = defaultdict(list)
    for record in prices:
        if not policy.leaves_out(record):
            history[record.row["item"]].append(record)
    rows: Counter[tuple[Any, ...]] = Counter()
    for order in orders:
        if policy.leaves_out(order):
            continue
        moment = order.at - shift
        if policy.emits and not all(w is not None and w > moment for w in reached.values()):
            continue
        own = sorted(history[order.row["item"]], key=lambda r: (r.at, r.offset))
        valid = next((r for r in reversed(own) if r.at <= moment), None)
        if valid is None or valid.row["_op"] == "delete":
            rows[order.row["id"], None, None] += 1
        else:
            rows[order.row["id"], valid.row["price"], f"{valid.partition}:{valid.offset}"] += 1
    late = {(r.topic, r.partition, r.offset) for r in (*orders, *prices) if policy.leaves_out(r)}
    plain = policy.late == "correct" and policy.correct_for is None
    ledger = {}
    for topic, given in (("orders", orders), ("prices", prices)):
        # versions that all views share are counted, and no deletions
        read = sum(1 for r in given if not plain or r.row.get("_op") != "delete")
        lost = sum(1 for t, _, _ in late if t == topic)
        told = {"diverted": lost if policy.tells else 0, "dropped": 0 if policy.tells else lost, "failed": 0}
        ledger[topic] = {"read": read, "used": read - lost, **told}
    return Answer(rows, late, ledger)


# --- against the engine --------------------------------------------------------------------------------------------

CASES = {
    "corrected": Policy(),
    "corrected_final": Policy(emits=True),
    "for_a_while": Policy(correct_for=7),
    "for_a_while_final": Policy(correct_for=7, emits=True),
    "diverted": Policy("divert"),
    "diverted_final": Policy("divert", emits=True),
    "dropped": Policy("drop"),
    "dropped_final": Policy("drop", emits=True),
}


def create(ws: hw.Workspace, name: str, policy: Policy, query: str = JOIN) -> None:
    emit = " EMIT ON WINDOW CLOSE" if policy.emits else ""
    ws.sql(f"CREATE MATERIALIZED VIEW {name} WITH ({policy.options}) AS {query}{emit}")


def holds(ws: hw.Workspace, name: str, policy: Policy, shift: int = 0) -> None:
    """A view is as the model says, and tells and counts what it says."""
    wanted = answer(ws, policy, shift)
    rows = Counter(tuple(row.values()) for row in ws.view(name).read().to_pylist())
    assert rows == wanted.rows, name
    assert ws.view(name).ledger(by_input=True) == wanted.ledger, name
    if policy.tells:
        told = ws.view(f"{name}.late").read().to_pylist()
        assert {(r["_topic"], r["_partition"], r["_offset"]) for r in told} == wanted.late, name
        assert len(told) == len(wanted.late), name
        for row in told:
            time = row["at"] if row["_topic"] == "orders" else row["since"]
            if time is not None:
                assert timedelta(microseconds=row["_lateness"]) == row["_watermark"] - time, name


def opened(folder: Path, spark: Any, clock: ManualClock) -> hw.Workspace:
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    return hw.open(folder, spark=spark, clock=clock, settings=settings)


def append(ws: hw.Workspace, chance: random.Random, clock: ManualClock, now: int, ids: Iterator[int]) -> None:
    """Orders and prices around a time, some of them long before it, and deletions with a time and without."""

    def some() -> int:
        return now + chance.choice([0, 1, 2, 3, -1, -2, -4, -6, -9, -14, -25])

    ws.topic("orders").append(
        [{"id": next(ids), "item": chance.randrange(4), "at": minutes(some())} for _ in range(4)]
    )
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        item, since = chance.randrange(4), minutes(some())
        if chance.random() < 0.7:
            rows.append({"item": item, "price": chance.randrange(100), "since": since})
        else:
            rows.append(
                {"item": item, "_op": "delete", **({"since": since} if chance.random() < 0.6 else {})}
            )
    ws.topic("prices").append(rows)
    clock.advance(f"{chance.randrange(1, 5)} minutes")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(int(START.timestamp() * 1_000_000))


LONG = bool(os.environ.get("HEADWATER_LONG"))
AT_ONCE = ("for_a_while", "diverted", "dropped_final") if LONG else ("diverted",)
TICK_ROWS = (3, 1000, 2, 8) if LONG else (7, 1000, 4, 12)


@pytest.mark.parametrize("seed", range(40) if LONG else [1])
def test_views_are_as_the_model_says_however_the_log_is_cut(
    seed: int, tmp_path: Path, spark: Any, clock: ManualClock
) -> None:
    chance, ids = random.Random(seed), iter(range(10**6))
    ws = opened(tmp_path / "w", spark, clock)
    try:
        ws.sql(TOPICS.format(2))
        for name, policy in CASES.items():
            create(ws, name, policy)
        create(
            ws, "earlier", CASES["diverted_final"], JOIN.replace("OF o.at", "OF o.at - INTERVAL '3' MINUTES")
        )
        for part in range(4):
            for step in range(3):
                append(ws, chance, clock, 12 * part + 4 * step, ids)
            if part == 2:
                (ws if seed % 2 else ws.log).close()  # or leave it as a crash does
                ws = opened(tmp_path / "w", spark, clock)
            ws.run(tick_rows=TICK_ROWS[(part + seed) % 4])
            for name, policy in CASES.items():
                holds(ws, name, policy)
            holds(ws, "earlier", CASES["diverted_final"], 3)
        assert answer(ws, CASES["diverted"]).rows != answer(ws, CASES["corrected"]).rows
        assert any(topic == "prices" for topic, _, _ in answer(ws, CASES["for_a_while"]).late)
        for name in ("diverted_final", "dropped_final", "earlier"):
            assert min(ws.view(name).changes(since=0).column("_weight").to_pylist()) > 0, name
        for name in AT_ONCE:
            create(ws, f"{name}_at_once", CASES[name])
        ws.view("diverted_final").rebuild(verify=False)
        ws.run()
        holds(ws, "diverted_final", CASES["diverted_final"])
        for name in AT_ONCE:
            holds(ws, f"{name}_at_once", CASES[name])
        found = ws.verify()
        assert found.ok, found.differences
    finally:
        ws.close()


@pytest.fixture
def ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[hw.Workspace]:
    with opened(tmp_path / "w", spark, clock) as made:
        made.sql(TOPICS.format(1))
        yield made


def prices(ws: hw.Workspace, *rows: tuple[int, float]) -> None:
    """Prices of item 1, and from when on."""
    ws.topic("prices").append([{"item": 1, "price": price, "since": minutes(at)} for price, at in rows])


def orders(ws: hw.Workspace, *times: float) -> None:
    """Orders of item 1, known by their minute."""
    ws.topic("orders").append([{"id": int(at), "item": 1, "at": minutes(at)} for at in times])


def joined(ws: hw.Workspace, view: str) -> dict[int, int | None]:
    return {row["id"]: row["price"] for row in ws.view(view).read().to_pylist()}


def test_a_late_version_between_two_others_changes_nothing(ws: hw.Workspace) -> None:
    create(ws, "v", CASES["diverted"])
    prices(ws, (1, 0), (2, 20))
    orders(ws, 18, 19, 21, 30)
    tick = ws.run().tick
    prices(ws, (3, 15), (4, 14))  # the watermark is at 15: one is in time
    ws.run()
    assert joined(ws, "v") == {18: 3, 19: 3, 21: 2, 30: 2}
    assert ws.view("v").changes(since=tick).num_rows == 4
    (told,) = ws.view("v.late").read().to_pylist()
    assert (told["_topic"], told["item"], told["price"], told["since"]) == ("prices", 1, 4, minutes(14))
    assert timedelta(microseconds=told["_lateness"]) == timedelta(minutes=1)
    assert ws.view("v").ledger(by_input=True)["prices"] == {
        "read": 4,
        "used": 3,
        "diverted": 1,
        "dropped": 0,
        "failed": 0,
    }


def test_a_deletion_without_a_time_is_late_if_it_was_appended_before_the_watermark(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    create(ws, "v", CASES["dropped"])
    prices(ws, (1, 0), (2, 20))
    orders(ws, 16, 30)
    clock.advance("14 minutes")
    ws.topic("prices").delete([{"item": 1}])  # at 14, and the watermark is at 15
    ws.run()
    assert joined(ws, "v") == {16: 1, 30: 2}
    assert ws.view("v").ledger(by_input=True)["prices"]["dropped"] == 1
    clock.advance("11 minutes")
    ws.topic("prices").delete([{"item": 1}])
    ws.run()
    assert joined(ws, "v") == {16: 1, 30: None}
    assert ws.view("v").ledger(by_input=True)["prices"] == {
        "read": 4,
        "used": 3,
        "diverted": 0,
        "dropped": 1,
        "failed": 0,
    }
    assert ws.verify().ok


def test_late_versions_that_are_given_back_are_joined(ws: hw.Workspace) -> None:
    create(ws, "v", CASES["diverted"])
    prices(ws, (1, 0), (2, 20), (3, 10))
    orders(ws, 12, 30, 11)
    ws.run()
    assert joined(ws, "v") == {12: 1, 30: 2}
    assert ws.view("v").replay_late() == 2
    ws.run()
    assert joined(ws, "v") == {12: 3, 30: 2, 11: 3}
    assert ws.view("v.late").read().num_rows == 0
    prices(ws, (4, 5))
    orders(ws, 6)
    ws.run()
    assert joined(ws, "v") == {12: 3, 30: 2, 11: 3}
    holds(ws, "v", Policy("divert", replayed={("orders", 0): 3, ("prices", 0): 3}))
    assert ws.verify().ok


def test_the_current_table_in_the_same_query_has_every_record(ws: hw.Workspace) -> None:
    query = JOIN.replace("p._version AS version", "n.price AS now") + " LEFT JOIN prices n ON n.item = o.item"
    create(ws, "v", CASES["dropped"], query)
    prices(ws, (1, 0), (2, 20), (3, 10))
    orders(ws, 12)
    ws.run()
    assert ws.view("v").read().to_pylist() == [{"id": 12, "price": 1, "now": 3}]
    assert ws.view("v").ledger(by_input=True)["prices"]["used"] == 3
    assert ws.verify().ok


@pytest.mark.long
def test_two_tables_as_of_one_time(ws: hw.Workspace) -> None:
    ws.sql(
        "CREATE TOPIC names (item BIGINT, name STRING, since TIMESTAMP, PRIMARY KEY (item), "
        "WATERMARK FOR since AS since - INTERVAL '5 minutes')"
    )
    query = (
        "SELECT o.id, p.price, n.name FROM orders o LEFT JOIN prices FOR SYSTEM_TIME AS OF o.at AS p ON o.item = p.item "
        "LEFT JOIN names FOR SYSTEM_TIME AS OF o.at AS n ON o.item = n.item"
    )
    for name in ("diverted_final", "diverted", "for_a_while"):
        create(ws, name, CASES[name], query)
    chance = random.Random(3)
    for now in range(0, 60, 5):
        orders(ws, *sorted({now + chance.choice([0, 1, -3]) for _ in range(3)}))
        prices(
            ws, (now, now + chance.choice([0, 2, -3, -9])), (now + 1, now + chance.choice([0, 3, -4, -20]))
        )
        ws.topic("names").append([{"item": 1, "name": str(now), "since": minutes(now - chance.randrange(9))}])
        ws.run()
    found = ws.verify()
    assert found.ok, found.differences
    assert min(ws.view("diverted_final").changes(since=0).column("_weight").to_pylist()) > 0
    assert ws.view("diverted_final").read().num_rows > 8


@pytest.mark.parametrize(
    ("query", "column"),
    [
        (JOIN.replace("p._version", "p._valid_to"), "_valid_to"),
        (f"{JOIN} AND p._valid_to IS NULL", "_valid_to"),
        (
            "SELECT w.n, p.price FROM (SELECT item, window(at, '1 hour') AS w, count(*) AS n FROM orders "
            "GROUP BY item, window(at, '1 hour')) w JOIN prices FOR SYSTEM_TIME AS OF TIMESTAMP '2026-01-01' AS p "
            "ON w.item = p.item",
            None,
        ),
    ],
)
def test_what_would_be_retracted_is_refused_where_rows_are_only_added(
    ws: hw.Workspace, query: str, column: str | None
) -> None:
    with raises(hw.StatementError, reason="not-append-only", relation="prices.versions", uses=column):
        create(ws, "v", CASES["diverted_final"], query)
    create(ws, "v", CASES["diverted"], query)


@pytest.mark.long
def test_state_stays_as_large_as_it_is(ws: hw.Workspace) -> None:
    names = ("dropped", "for_a_while", "dropped_final")
    for name in names:
        create(ws, name, CASES[name])
    sizes: dict[str, list[int]] = {name: [] for name in names}
    for tick in range(20):
        now = 30 * tick
        rows = [
            {"item": item, "price": n, "since": minutes(now + n)}
            for n in range(0, 30, 3)
            for item in range(4)
        ]
        # one that comes and goes is not to leave anything behind
        rows += [
            {"item": 100 + tick, "price": 1, "since": minutes(now)},
            {"item": 100 + tick, "_op": "delete", "since": minutes(now + 1)},
        ]
        ws.topic("prices").append(rows)
        ws.topic("orders").append(
            [{"id": now + n, "item": n % 5, "at": minutes(now + n)} for n in range(0, 30, 2)]
        )
        ws.run()
        for name in names:
            sizes[name].append(kept(ws, name))
    for name in names:
        assert max(sizes[name][-8:]) <= 1.3 * max(sizes[name][:8]), (name, sizes[name])
        facts = {row["property"]: row["value"] for row in ws.sql(f"EXPLAIN {name}").to_pylist()}
        assert facts["state"].startswith("bounded by time"), facts["state"]
        assert facts["state"].endswith("and bounded by prices"), facts["state"]
    assert ws.verify().ok


def test_when_a_version_ends_can_be_shown_and_then_rows_are_kept(ws: hw.Workspace) -> None:
    create(ws, "v", CASES["dropped"], JOIN.replace("p._version AS version", "p._valid_to AS until"))
    for now in range(0, 240, 20):
        prices(ws, (now, now))
        orders(ws, now + 1, now + 5)
        ws.run()
    assert ws.verify().ok
    assert {row["until"] for row in ws.view("v").read().to_pylist()} == {
        None,
        *(minutes(n) for n in range(20, 240, 20)),
    }
    facts = {row["property"]: row["value"] for row in ws.sql("EXPLAIN v").to_pylist()}
    assert facts["state"].startswith("grows with orders, prices")


def kept(ws: hw.Workspace, view: str) -> int:
    """Rows in the arrangements of a view's operators, which is not what it shows."""
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    return sum(
        ref.rows
        for name, refs in manifest.arrangements.items()
        if name.startswith(f"{view}@") and not name.endswith(("/contents", "/late"))
        for ref in refs
    )


def test_why_names_the_records_of_the_key(ws: hw.Workspace) -> None:
    create(ws, "v", CASES["diverted"])
    prices(ws, (1, 0), (2, 20), (3, 10))
    ws.topic("prices").append([{"item": 2, "price": 9, "since": minutes(20)}])
    orders(ws, 12, 30)
    ws.run()
    found = ws.view("v").why({"id": 12})
    assert found.records["prices.changelog"].column("price").to_pylist() == [1, 2]
    assert found.recompute().to_pylist() == found.rows.to_pylist()


def test_compaction_changes_nothing(tmp_path: Path, spark: Any, clock: ManualClock) -> None:
    with opened(tmp_path / "w", spark, clock) as ws:
        ws.sql(TOPICS.format(1))
        ws.sql("ALTER TOPIC prices SET (cleanup = 'compact', versions_for = '1 hour')")
        create(ws, "v", CASES["diverted"])
        for now in range(0, 360, 60):
            prices(ws, (now, now), (now + 1, now + 30), (now + 2, now - 20))
            orders(ws, now + 10, now + 40)
            clock.advance("1 hour")
            ws.run()
        before = ws.view("v").read().to_pylist()
        ledger = ws.view("v").ledger(by_input=True)
        ws.maintain()
        left = sum(batch.num_rows for batch in ws.topic("prices").read("earliest"))
        assert left < ledger["prices"]["read"] == 18
        prices(ws, (7, 400))
        orders(ws, 410)
        ws.run()
        assert ws.verify().ok
        assert all(row in ws.view("v").read().to_pylist() for row in before)
        ws.view("v").rebuild(verify=False)
        ws.run()
        assert ws.verify().ok
        assert ws.view("v").ledger(by_input=True)["prices"]["read"] == 19
        assert ws.path is not None
        shutil.rmtree(ws.path / "state")
        ws.run()
        now_there = ws.view("v").read().to_pylist()
        assert all(row in now_there for row in before)
        assert ws.verify().ok
