"""Entries of the catalog in the embedded log: other processes, checkpoints, and crashes at every call."""

import errno
import multiprocessing
import shutil
import threading
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest

from headwater.catalog.conform import conform
from headwater.catalog.definitions import define_topic
from headwater.core.clock import ManualClock
from headwater.core.errors import ConflictError, SyncFailedError, TopicExistsError, TopicNotFoundError
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Append
from headwater.testing import FaultyStorage
from headwater.testing.faults import StorageCall
from tests.raising import raises

LONG_MS = 20_000
ORDERS = define_topic("orders", pa.schema([pa.field("n", pa.int64())]))


def fill(log: EmbeddedLog, count: int) -> None:
    for n in range(count):
        log.append(Append({"orders": [conform([{"n": n}], ORDERS)]}))


def test_another_log_of_the_same_folder_sees_an_entry_at_once(tmp_path: Path) -> None:
    one, other = EmbeddedLog.open(tmp_path), EmbeddedLog.open(tmp_path)
    put = one.put_entry("view", "a", {"n": 1}, expect=None)
    assert dict(other.entries("view")) == {"a": put}
    with pytest.raises(ConflictError):
        other.put_entry("view", "A", {"n": 2}, expect=None)
    newer = other.put_entry("view", "a", {"n": 2}, expect=put.sequence)
    with pytest.raises(ConflictError):
        one.drop_entry("view", "a", expect=put.sequence)
    one.drop_entry("view", "a", expect=newer.sequence)
    assert dict(other.entries("view")) == {}
    one.close()
    other.close()


def _change(folder: Path, what: str) -> None:
    log = EmbeddedLog.open(folder)
    if what == "entry":
        log.put_entry("view", "a", {"n": 1}, expect=None)
    elif what == "topic":
        log.create_topic(ORDERS)
    else:
        fill(log, 1)
    log.close()


def test_a_commit_of_another_process_ends_the_wait(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path)
    for what in ("topic", "entry", "append"):
        before = log.sequence()
        found: list[bool] = []
        waiter = threading.Thread(
            target=lambda seen, into: into.append(log.wait_commit(seen, LONG_MS)), args=(before, found)
        )
        waiter.start()
        process = multiprocessing.get_context("spawn").Process(target=_change, args=(tmp_path, what))
        process.start()
        waiter.join(LONG_MS / 1e3)
        process.join()
        assert found == [True], what
        assert log.sequence() > before
    assert log.entries("view")["a"].document == {"n": 1}
    assert [b.num_rows for b in log.read("orders", 0, 0, 1)] == [1]
    log.close()


def test_entries_are_in_checkpoints_and_survive_many(tmp_path: Path) -> None:
    settings = LogSettings(durability="os", checkpoint_bytes=2_000, maintenance_every_ms=0)
    log = EmbeddedLog.open(tmp_path, settings=settings)
    log.create_topic(ORDERS)
    first = log.put_entry("view", "a", {"n": 1}, expect=None)
    log.put_entry("sink", "s", {}, expect=None)
    fill(log, 60)
    log.drop_entry("sink", "s")
    fill(log, 60)
    newest = sorted((tmp_path / "checkpoints").glob("*.json"))[-1].read_bytes()
    state = orjson.loads(newest.rpartition(b"\n")[0])["state"]
    assert state["entries"] == [["view", "a", {"n": 1}, first.sequence, first.created_at]]
    log.close()
    again = EmbeddedLog.open(tmp_path, settings=settings)
    assert dict(again.entries("view")) == {"a": first}
    assert dict(again.entries("sink")) == {}
    again.close()


def test_an_entry_that_could_not_be_synced_is_not_shown(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path / "w")
    log = EmbeddedLog.open(tmp_path / "w", storage=storage, clock=ManualClock())
    before = log.sequence()
    storage.fail(errno.EIO, on="sync", name="journal/*")
    with pytest.raises(SyncFailedError):
        log.put_entry("view", "a", {}, expect=None)
    assert (dict(log.entries("view")), log.sequence()) == ({}, before)
    log.close()


def test_two_topics_of_an_old_workspace_that_differ_by_case_keep_working(tmp_path: Path) -> None:
    log = EmbeddedLog.open(tmp_path)
    log.create_topic(ORDERS)
    upper = define_topic("Orders", pa.schema([pa.field("n", pa.int64())]))
    log._topics.make_folder("Orders", 2)
    log.core.change(
        lambda _: {"k": "topic", "id": 2, "definition": {**upper.to_json(), "incarnation": 2}}, sync=True
    )
    log.append(Append({"Orders": [conform([{"n": 7}], upper)], "orders": [conform([{"n": 8}], ORDERS)]}))
    log.close()
    log = EmbeddedLog.open(tmp_path)
    assert list(log.topics()) == ["Orders", "orders"]
    for name, n in (("Orders", 7), ("orders", 8)):
        assert log.topic(name).name == name
        assert [b.column("n").to_pylist() for b in log.read(name, 0, 0, 1)] == [[n]]
    assert "ORDERS" not in log.topics()
    with raises(TopicNotFoundError, topic="ORDERS", alike=["Orders", "orders"]):
        log.topic("ORDERS")
    with raises(TopicExistsError, topic="oRDERS", kind="topic"):
        log.create_topic(define_topic("oRDERS", ORDERS.schema))
    log.close()


STEPS: list[Any] = [
    lambda log: log.put_entry("view", "a", {"n": 1}, expect=None),
    lambda log: log.put_entry("view", "b", {"text": "x" * 900}, expect=None),
    lambda log: log.put_entry("view", "a", {"n": 2}, expect=log.entries("view")["a"].sequence),
    lambda log: log.drop_entry("view", "b"),
    lambda log: log.put_entry("view", "c", {"text": "y" * 900}, expect=None),
]


def seen(log: EmbeddedLog) -> dict[str, Any]:
    return {name: entry.document for name, entry in log.entries("view").items()}


@pytest.mark.parametrize("power", [None, 0, 1])
def test_wherever_it_is_stopped_an_entry_is_there_or_it_is_not(tmp_path: Path, power: int | None) -> None:
    settings = LogSettings(checkpoint_bytes=1_500, maintenance_every_ms=0)
    truths: list[dict[str, Any]] = [{}]
    step = 0
    storage = FaultyStorage(tmp_path / "run")

    def look(call: StorageCall) -> None:
        for torn in (False, True) if call.operation == "write_at" and len(call.data) > 1 else (False,):
            seed = None if power is None else power * 1_000 + call.number
            image = storage.image(tmp_path / "image", lose_power=seed, torn=torn)
            log = EmbeddedLog.open(image.root, settings=settings, clock=ManualClock(), storage=image)
            now = seen(log)
            assert now == truths[step] or (len(truths) > step + 1 and now == truths[step + 1]), str(call)
            log.put_entry("view", "later", {}, expect=None)
            assert "later" in log.entries("view")
            log.close()
            shutil.rmtree(image.root)

    plain = EmbeddedLog.open(tmp_path / "plain", settings=settings, clock=ManualClock())
    for change in STEPS:
        change(plain)
        truths.append(seen(plain))
    plain.close()
    log = EmbeddedLog.open(tmp_path / "run", settings=settings, clock=ManualClock(), storage=storage)
    storage.on_call = look
    for number, change in enumerate(STEPS):
        step = number
        change(log)
    storage.on_call = None
    assert seen(log) == truths[-1]
    log.close()
