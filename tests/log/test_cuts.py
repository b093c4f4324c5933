"""Whatever is appended, sealed and compacted, cuts are unions of whole commits that rise and leave nothing out."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.log.cuts import Cut, next_cut
from headwater.log.embedded import EmbeddedLog
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log

TINY = LogSettings(
    durability="os",
    segment_bytes_max=1_500,
    inline_bytes_max=600,
    checkpoint_bytes=4_000,
    maintenance_every_ms=0,
)
LONG = os.environ.get("HEADWATER_LONG") == "1"
AT = pa.timestamp("us", tz="UTC")
TOPICS = {
    "clicks": define_topic(
        "clicks",
        pa.schema([("n", pa.int64()), pa.field("at", AT)]),
        time="at",
        options={"partitions": 3, "partition_by": "n"},
    ),
    "orders": define_topic("orders", pa.schema([("n", pa.int64())])),
    "people": define_topic(
        "people",
        pa.schema([("n", pa.int64()), ("name", pa.string())]),
        key=("n",),
        options={"partitions": 2, "cleanup": "compact"},
    ),
}
Step = tuple[str, Any]
SIZES = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.dictionaries(st.sampled_from(sorted(TOPICS)), SIZES, min_size=1)),
        st.tuples(st.just("append"), st.dictionaries(st.sampled_from(sorted(TOPICS)), SIZES, min_size=1)),
        st.tuples(st.just("punctuate"), st.sets(st.integers(0, 2), min_size=1)),
        st.tuples(st.just("maintain"), st.none()),
    ),
    max_size=14,
)


@contextlib.contextmanager
def log_of(kind: str) -> Iterator[Log]:
    with tempfile.TemporaryDirectory(prefix="headwater-") as folder:
        log: Log = MemoryLog(ManualClock())
        if kind == "embedded":
            log = EmbeddedLog.open(Path(folder), settings=TINY, clock=ManualClock())
        for definition in TOPICS.values():
            log.create_topic(definition)
        yield log
        log.close()


def rows(topic: str, start: int, count: int) -> pa.RecordBatch:
    given: list[dict[str, Any]] = [{"n": start + n} for n in range(count)]
    if topic == "clicks":
        given = [{**row, "at": 1_700_000_000_000_000 + row["n"]} for row in given]
        table = pa.Table.from_pylist(given, schema=TOPICS["clicks"].schema)
        return conform(table, TOPICS["clicks"])
    if topic == "people":
        given = [{"n": row["n"] % 4, "name": str(row["n"])} for row in given]
    return conform(given, TOPICS[topic])


def do(log: Log, step: Step, number: int) -> None:
    match step:
        case ("append", sizes):
            log.append(Append({topic: [rows(topic, number * 10, size)] for topic, size in sizes.items()}))
        case ("punctuate", partitions):
            log.punctuate("clicks", dict.fromkeys(partitions, 1_700_000_000_000_000 + number))
        case _:
            log.maintain(force=True)


def commits(log: Log, topics: list[str]) -> dict[tuple[str, int, int], int]:
    """(topic, partition, offset) of every record there is now -> its commit."""
    found: dict[tuple[str, int, int], int] = {}
    for topic in topics:
        for partition, info in log.partitions(topic).items():
            for batch in log.read(topic, partition, info.first, info.end, ["_offset", "_sequence"]):
                for row in batch.to_pylist():
                    found[topic, partition, row["_offset"]] = row["_sequence"]
    return found


def held(cut: Cut, place: tuple[str, int, int]) -> bool:
    topic, partition, offset = place
    return offset < cut.positions[topic][partition]


def check(log: Log, topics: list[str], rows_max: int | None) -> None:
    """Cut after cut, from nothing to the end."""
    records = commits(log, topics)
    cut = Cut({topic: dict.fromkeys(log.partitions(topic), 0) for topic in topics}, 0, 0)
    for _ in range(200):
        after = next_cut(log, topics, cut.positions, rows_max)
        if after.positions == cut.positions:
            break
        for topic in topics:
            for partition, position in cut.positions[topic].items():
                assert after.positions[topic][partition] >= position, "a cut goes back"
        inside = {place for place in records if held(after, place)}
        assert {records[p] for p in inside}.isdisjoint({c for p, c in records.items() if p not in inside}), (
            "a commit is split"
        )
        assert all(records[place] <= after.sequence for place in inside)
        assert all(records[place] > after.sequence for place in records if place not in inside)
        new = {place for place in inside if not held(cut, place)}
        assert len(new) <= after.rows
        if rows_max is not None and len({records[p] for p in new}) > 1:
            assert len(new) <= after.rows <= rows_max
        if len(inside) < len(records):
            assert rows_max is not None
            following = min(commit for place, commit in records.items() if place not in inside)
            assert len(new) + list(records.values()).count(following) > rows_max, "it could have gone further"
        cut = after
    assert cut.positions == log.ends(topics), "something was left out"


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@settings(max_examples=1_000 if LONG else 30)
@given(steps=STEPS, bounds=st.lists(st.integers(1, 25), min_size=1, max_size=3))
@example(
    steps=[
        ("append", {"clicks": 9, "orders": 9, "people": 9}),
        ("punctuate", {0, 1, 2}),
        ("append", {"orders": 1}),
    ],
    bounds=[1, 27],
)
def test_cuts_are_unions_of_whole_commits(kind: str, steps: list[Step], bounds: list[int]) -> None:
    with log_of(kind) as log:
        for number, step in enumerate(steps):
            do(log, step, number)
        for rows_max in (*bounds, None):
            check(log, sorted(TOPICS), rows_max)
            check(log, ["orders"], rows_max)


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@settings(max_examples=1_000 if LONG else 20)
@given(steps=STEPS, rows_max=st.integers(1, 12))
def test_cuts_made_while_the_log_grows_split_nothing(kind: str, steps: list[Step], rows_max: int) -> None:
    topics = ["clicks", "orders"]
    with log_of(kind) as log:
        cut = Cut({topic: dict.fromkeys(log.partitions(topic), 0) for topic in topics}, 0, 0)
        for number, step in enumerate(steps):
            do(log, step, number)
            after = next_cut(log, topics, cut.positions, rows_max)
            assert after.sequence >= cut.sequence
            records = commits(log, topics)
            inside = {place for place in records if held(after, place)}
            assert {records[p] for p in inside}.isdisjoint({c for p, c in records.items() if p not in inside})
            if log.ends(topics) != cut.positions:
                assert after.positions != cut.positions, "there is something new, and it stands still"
            cut = after


@pytest.mark.parametrize("kind", ["memory", "embedded"])
@settings(max_examples=1_000 if LONG else 20)
@given(steps=STEPS, rows_max=st.one_of(st.none(), st.integers(1, 12)), until=st.integers(0, 20))
def test_a_cut_that_ends_at_a_commit_has_all_up_to_it_and_nothing_after(
    kind: str, steps: list[Step], rows_max: int | None, until: int
) -> None:
    topics = sorted(TOPICS)
    with log_of(kind) as log:
        for number, step in enumerate(steps):
            do(log, step, number)
        records = commits(log, topics)
        cut = Cut({topic: dict.fromkeys(log.partitions(topic), 0) for topic in topics}, 0, 0)
        while True:
            after = next_cut(log, topics, cut.positions, rows_max, until)
            assert after.sequence <= until or all(held(after, place) for place in records)
            if after.positions == cut.positions:
                break
            cut = after
        assert {place for place in records if held(cut, place)} == {
            p for p, c in records.items() if c <= until
        }


def test_a_bounded_cut_reads_little_of_a_long_tail() -> None:
    log = MemoryLog(ManualClock())
    log.create_topic(TOPICS["orders"])
    for n in range(50):
        log.append(Append({"orders": [rows("orders", n * 10, 10)]}))
    read = 0

    class Counting(MemoryLog):
        def read(self, *args: Any, **options: Any) -> Iterator[pa.RecordBatch]:
            nonlocal read
            for batch in super().read(*args, **options):
                read += batch.num_rows
                yield batch

    log.__class__ = Counting
    assert next_cut(log, ["orders"], {}, 25).positions == {"orders": {0: 20}}
    assert read == 26
