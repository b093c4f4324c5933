"""Where the records of a key are is found without a scan, as a dict would say it, kept on disk or not."""

from __future__ import annotations

import random
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import headwater as hw
from headwater.events import event_positions as module
from headwater.events.event_positions import KeyOffsets
from headwater.log import key_index
from headwater.log.key_index import PartitionIndex
from headwater.log.routing import partition_of_key
from headwater.log.topic import Topic
from tests.events.accounts import Deposit, accounts
from tests.interrupts import interrupted


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT_MAX", 20)
    monkeypatch.setattr(module, "NEAR_ROWS", 7)
    monkeypatch.setattr(module, "TAKEN_ROWS", 90)
    monkeypatch.setattr(key_index, "FILE_KEYS", 50)
    monkeypatch.setattr(key_index, "MERGED_KEYS", 64)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_it_is_a_dict_of_offsets(tmp_path: Path, seed: int, kept: bool, is_interrupted: bool) -> None:
    chance = random.Random(seed)
    often = 0.7 if is_interrupted else 0.0
    known: dict[tuple[int, str], list[int]] = {}
    folder = tmp_path / "index" if kept else None
    with hw.open(tmp_path / "ws") as ws:
        topic = ws.topic("t", "k STRING NOT NULL, n BIGINT", versioned_by="k", partitions=2)
        places = KeyOffsets(ws.log, topic.definition, ["k"], folder)
        for _ in range(40):
            rows = [{"k": f"k{chance.randint(0, 30)}", "n": n} for n in range(chance.choice([1, 3, 40]))]
            for partition, (first, _) in topic.append(rows).positions["t"].items():
                mine = [row["k"] for row in rows if partition_of(topic, row["k"]) == partition]
                for offset, key in enumerate(mine, first):
                    known.setdefault((partition, key), []).append(offset)
                if chance.random() < 0.5:
                    noted = partial(places.note, partition, first, [(key,) for key in mine])
                    interrupted(noted, chance, module) if chance.random() < often else noted()
            if chance.random() < 0.1:
                places.close()
                places = KeyOffsets(ws.log, topic.definition, ["k"], folder)
            while chance.random() < often:
                interrupted(places.refresh, chance, module)
            places.refresh()
            (partition, key), offsets = chance.choice(list(known.items()))
            after = chance.choice([-1, offsets[0], offsets[-1]])
            wanted = [offset for offset in offsets if offset > after]
            found = places.offsets(partition, (key,), after)
            assert found.tolist() == wanted
            read = [
                row
                for batch in places.records(partition, (key,), found, ["_offset", "k"])
                for row in batch.to_pylist()
            ]
            assert read == [{"_offset": offset, "k": key} for offset in wanted]
        assert not len(places.offsets(0, ("nobody",)))


def partition_of(topic: Topic, key: str) -> int:
    return partition_of_key(topic.definition, [key])


def test_the_files_are_one_process_s_and_the_others_do_without(tmp_path: Path) -> None:
    with hw.open(tmp_path / "ws") as ws:
        topic = ws.topic("t", "k STRING NOT NULL", versioned_by="k")
        topic.append([{"k": f"k{n % 40}"} for n in range(400)])
        one = KeyOffsets(ws.log, topic.definition, ["k"], tmp_path / "index")
        two = KeyOffsets(ws.log, topic.definition, ["k"], tmp_path / "index")
        for places in (one, two):
            places.refresh()
            assert places.offsets(0, ("k7",)).tolist() == list(range(7, 400, 40))
        assert list((tmp_path / "index").glob("*.keys"))
        one.close()
        again = KeyOffsets(ws.log, topic.definition, ["k"], tmp_path / "index")
        assert again.offsets(0, ("k7",)).tolist() == list(range(7, 400, 40))  # nothing was read


def test_an_index_of_a_log_that_was_longer_is_not_believed(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "index", 0, every=True)
    index.add([pa.array([f"k{n}" for n in range(100)])], np.arange(100), np.zeros(100, np.bool_), 100)
    with hw.open(tmp_path / "ws") as ws:
        topic = ws.topic("t", "k STRING NOT NULL", versioned_by="k")
        topic.append([{"k": "k5"}])
        places = KeyOffsets(ws.log, topic.definition, ["k"], tmp_path / "index")
        places.refresh()
        assert places.offsets(0, ("k5",)).tolist() == [0]


def test_files_of_another_log_are_detected_and_rebuilt(tmp_path: Path) -> None:
    """After a loss of power a log that was left to the operating system may be shorter, and go on with other events."""
    with hw.open(tmp_path / "one") as ws:
        store = ws.store(accounts)
        store.execute_all([store.send(f"b{n % 3}", Deposit(1)) for n in range(450)])
    with hw.open(tmp_path / "two") as ws:
        store = ws.store(accounts)
        store.execute_all([store.send(f"b{n % 3}" if n % 2 else "a", Deposit(2)) for n in range(450)])
    shutil.rmtree(tmp_path / "two" / "events")
    shutil.copytree(tmp_path / "one" / "events", tmp_path / "two" / "events")
    assert list((tmp_path / "two" / "events").rglob("*.keys"))
    assert list((tmp_path / "two" / "events").rglob("*.json"))
    with hw.open(tmp_path / "two") as ws:
        store = ws.store(accounts)
        assert store.load("b1").state.balance == 150
        store.execute("a", Deposit(2))
        assert store.load("a").state.balance == 452
