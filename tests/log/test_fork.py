"""A workspace that was opened before a fork: parent and child both go on with it, and neither loses the other's rows."""

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.storage import File
from headwater.log.embedded.embedded_log import EmbeddedLog

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", durability="os") as workspace:
        workspace.topic("t", "who STRING, n INT")
        yield workspace


def test_appends_of_parent_and_child_are_all_there(ws: hw.Workspace, tmp_path: Path) -> None:
    topic = ws.topic("t")
    topic.append([{"who": "before", "n": 0}])
    child = os.fork()
    if child == 0:
        for n in range(100):
            topic.append([{"who": "child", "n": n}])
        os._exit(0)
    receipts = {str(topic.append([{"who": "parent", "n": n}])) for n in range(100)}
    assert os.waitpid(child, 0)[1] == 0
    assert len(receipts) == 100
    rows = [row for batch in topic.read() for row in batch.to_pylist()]
    assert [r["n"] for r in rows if r["who"] == "child"] == list(range(100))
    assert [r["n"] for r in rows if r["who"] == "parent"] == list(range(100))
    assert [r["_offset"] for r in rows] == list(range(201))
    assert ws.verify().ok


def test_a_log_that_cannot_start_again_holds_up_no_other(
    ws: hw.Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the logs comes first: one that were skipped would go on with the parent's lock."""
    topic = ws.topic("t")
    after_fork, mine = EmbeddedLog.after_fork, ws.log

    def failing(self: EmbeddedLog) -> None:
        if self is not mine:
            raise RuntimeError("its disk is gone")
        after_fork(self)

    monkeypatch.setattr(EmbeddedLog, "after_fork", failing)
    with contextlib.ExitStack() as stack:
        for number in range(8):
            stack.enter_context(hw.open(tmp_path / f"other-{number}"))
        child = os.fork()
        if child == 0:
            for n in range(50):
                topic.append([{"who": "child", "n": n}])
            os._exit(0)
        for n in range(50):
            topic.append([{"who": "parent", "n": n}])
        assert os.waitpid(child, 0)[1] == 0
    rows = [row for batch in topic.read() for row in batch.to_pylist()]
    for who in ("parent", "child"):
        assert [r["n"] for r in rows if r["who"] == who] == list(range(50))


def test_an_append_that_is_under_way_at_a_fork_is_the_parents_and_is_there_once(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork comes while a thread of the parent has the lock of the journal and is about to write the record."""
    topic = ws.topic("t")
    topic.append([{"who": "before", "n": 0}])
    writing, forked, write = threading.Event(), threading.Event(), File.write_at
    parent = os.getpid()

    def held(self: File, offset: int, data: bytes) -> None:
        if self.name.startswith("journal/") and os.getpid() == parent and not writing.is_set():
            writing.set()
            forked.wait(30)
        write(self, offset, data)

    monkeypatch.setattr(File, "write_at", held)
    thread = threading.Thread(target=lambda: topic.append([{"who": "parent", "n": 1}]))
    thread.start()
    assert writing.wait(30)
    child = os.fork()
    if child == 0:
        topic.append([{"who": "child", "n": 1}])
        os._exit(0)
    forked.set()
    thread.join(30)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    topic.append([{"who": "parent", "n": 2}])
    rows = [(row["who"], row["n"]) for batch in topic.read() for row in batch.to_pylist()]
    assert sorted(rows) == [("before", 0), ("child", 1), ("parent", 1), ("parent", 2)]
    assert rows[-1] == ("parent", 2)
    assert ws.verify().ok


def test_a_pool_of_forked_workers_shares_a_topic(ws: hw.Workspace) -> None:
    topic = ws.topic("t")

    with multiprocessing.get_context("fork").Pool(3, initializer=_keep, initargs=(topic,)) as pool:
        receipts = pool.map(_append, range(60))
    assert len(set(receipts)) == 60
    rows = [n for batch in topic.read() for n in batch.column("n").to_pylist()]
    assert sorted(rows) == list(range(60))


_KEPT: list[object] = []


def _keep(topic: object) -> None:
    _KEPT[:] = [topic]


def _append(n: int) -> str:
    return str(_KEPT[0].append([{"n": n}]))  # type: ignore[attr-defined]


def test_a_member_of_a_group_stays_with_the_process_that_joined(ws: hw.Workspace) -> None:
    with ws.topic("t").group("mailer") as member:
        child = os.fork()
        if child == 0:
            try:
                member.beat()
            except hw.UsageError:
                member.leave()  # not for the parent
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        member.beat()
        assert member.partitions == [0]


def test_a_queue_goes_on_in_a_forked_child(ws: hw.Workspace) -> None:
    ws.topic("t").append([{"n": n} for n in range(3)])
    queue = ws.queue("work", topic="t")
    queue.ack(queue.receive(1))
    child = os.fork()
    if child == 0:
        queue.ack(queue.receive(1))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert queue.standing().acknowledged == 2
    assert [message.offset for message in queue.receive(5)] == [2]
