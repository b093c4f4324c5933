"""The index of keys is what a dict would be, whatever is merged, written, taken up again or lost."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headwater.catalog.conform import DELETE, OPS
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.errors import CorruptionError
from headwater.core.hashing import identities
from headwater.log import key_index
from headwater.log.key_index import PartitionIndex
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Append, Log
from headwater.sources import log_lookup
from headwater.sources.log_lookup import Lookups
from tests.raising import raises

TOPIC = dataclasses.replace(
    define_topic("people", pa.schema([("id", pa.int64()), ("n", pa.int64())]), key=("id",)),
    captured_by="shop",
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "MERGED_KEYS", 64)
    monkeypatch.setattr(key_index, "FILE_KEYS", 50)
    monkeypatch.setattr(key_index, "MAPPED_KEYS", 40)
    monkeypatch.setattr(log_lookup, "TAKEN_ROWS", 37)
    monkeypatch.setattr(log_lookup, "NEAR_ROWS", 5)


def alike(columns: Sequence[pa.Array], rows: int, *, exact: bool) -> tuple[Any, Any]:
    low, high = identities(columns, rows, exact=exact)
    return low % np.uint64(50) << np.uint64(58), high


def ids(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["id"])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(5))
def test_an_index_is_a_dict_of_last_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    if seed % 2:  # many keys have the same upper half
        monkeypatch.setattr(key_index, "identities", alike)
    known: dict[int, int] = {}
    index, offset = PartitionIndex(tmp_path, 0), 0
    for _ in range(40):
        rows = chance.randint(1, 60)
        keys = [chance.randint(0, 400) for _ in range(rows)]
        deleted = np.array([chance.random() < 0.3 for _ in range(rows)])
        offsets = np.cumsum([chance.randint(1, 3) for _ in range(rows)]) + offset
        offset = int(offsets[-1])
        index.add([pa.array(keys)], offsets, deleted, offset + 1)
        for key, at, gone in zip(keys, offsets.tolist(), deleted.tolist(), strict=True):
            known.pop(key, None)
            if not gone:
                known[key] = at
        if chance.random() < 0.2:  # another process: what was not written is read again by whoever asks
            stored = PartitionIndex(tmp_path, 0)
            assert stored.end <= index.end
            for key, at in known.items():
                if at < stored.end:
                    assert stored.find([pa.array([key])], 1).tolist() == [at]
        asked = list(range(0, 420, 7))
        assert index.find([pa.array(asked)], len(asked)).tolist() == [known.get(key, -1) for key in asked]
        assert index.live().tolist() == sorted(known.values())
        assert index.live(offset // 2).tolist() == sorted(at for at in known.values() if at >= offset // 2)


def append(log: Log, rows: list[tuple[int, int | None]], topic: TopicDefinition = TOPIC) -> None:
    plain = [
        {"id": key, "n": n, "_op": DELETE if n is None else OPS.index("insert"), "_source_position": 1}
        for key, n in rows
    ]
    log.append(Append({topic.name: [pa.RecordBatch.from_pylist(plain, schema=topic.row_schema)]}))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("partitions", [1, 3])
def test_keys_and_last_values_are_found_however_long_the_topic_is(tmp_path: Path, partitions: int) -> None:
    chance = random.Random(partitions)
    topic = dataclasses.replace(TOPIC, partitions=partitions)
    log = MemoryLog()
    log.create_topic(topic)
    questions = Lookups(log, tmp_path)
    assert questions.is_empty("people")
    assert list(questions.live_keys("people")) == []
    assert questions.last_values("people", ids(1), ["n"]).column("_found").to_pylist() == [False]
    known: dict[int, int] = {}
    for round_ in range(12):
        rows = [
            (chance.randint(0, 150), None if chance.random() < 0.2 else chance.randint(0, 9))
            for _ in range(40)
        ]
        rows = list(dict(rows).items())
        append(log, rows, topic)
        for key, n in rows:
            known.pop(key, None)
            if n is not None:
                known[key] = n
        if round_ % 4 == 3:
            questions = Lookups(log, tmp_path)
        live = [key for batch in questions.live_keys("people") for key in batch.column("id").to_pylist()]
        assert sorted(live) == sorted(known)
        asked = [chance.randint(0, 150) for _ in range(30)]
        found = questions.last_values("people", ids(*asked), ["n"])
        assert found.column("n").to_pylist() == [known.get(key) for key in asked]
        assert found.column("_found").to_pylist() == [key in known for key in asked]
        moment = questions.moment()
        assert not any(
            questions.last_values("people", ids(*asked), ["n"], moment).column("_found").to_pylist()
        )


@pytest.mark.usefixtures("small")
def test_an_index_of_another_log_is_found_out_and_made_anew(tmp_path: Path) -> None:
    for change in (0, 1_000):
        log = MemoryLog()
        log.create_topic(TOPIC)
        append(log, [(key + change, key) for key in range(200)])
        questions = Lookups(log, tmp_path)
        if change:
            with raises(CorruptionError, topic="people"):
                questions.last_values("people", ids(5), ["n"])
        assert questions.last_values("people", ids(change + 5), ["n"]).column("n").to_pylist() == [5]
        assert len(list(questions.live_keys("people"))) > 0
    shorter = MemoryLog()
    shorter.create_topic(TOPIC)
    append(shorter, [(7, 7)])
    assert Lookups(shorter, tmp_path).last_values("people", ids(7), ["n"]).column("n").to_pylist() == [7]


def test_an_index_of_a_topic_that_was_dropped_is_removed(tmp_path: Path) -> None:
    for incarnation in (1, 2):
        log = MemoryLog()
        log.create_topic(dataclasses.replace(TOPIC, incarnation=incarnation))
        append(log, [(1, 1)])
        known = log.topic("people").incarnation
        Lookups(log, tmp_path).last_values("people", ids(1), ["n"])
        assert [folder.name for folder in tmp_path.iterdir()] == [f"people.{known}"]
