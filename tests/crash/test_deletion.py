"""Forgetting and excising, stopped at every call that changes the disk: the next open completes it, or nothing was begun."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import headwater as hw
from headwater.catalog.connectors import DELETION
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.core.storage import Storage
from headwater.deletion import Deletions
from headwater.engine.input.excised_records import kept
from headwater.log.embedded import EmbeddedLog
from headwater.serving.find_records import found
from headwater.testing import Crash, FaultyStorage
from headwater.views.view_manager import Views
from tests.repo.tree import ROOT

SETTINGS = LogSettings(durability="fsync", maintenance_every_ms=0)
STEP = 1 if os.environ.get("HEADWATER_LONG") == "1" else 5
"""At every call, or at every fifth of them, torn and whole in turn."""


def never() -> None:
    raise AssertionError("no view and no sink is needed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with small appends, which the journal has too, a sealed segment, and a queue whose dead messages are copies."""
    folder = tmp_path_factory.mktemp("deleted")
    with hw.open(folder / "ws", settings=SETTINGS) as ws:
        ws.sql(
            "CREATE TOPIC people (user BIGINT NOT NULL, email STRING PRIVATE BY (user), note STRING) "
            "WITH (partitions = 2, partition_by = 'user')"
        )
        for half in range(2):
            rows = [{"user": u, "email": f"mail-of-{u}", "note": f"note-of-{u}"} for u in range(4)]
            ws.topic("people").append(rows)
            if half == 0:
                ws.maintain()
        queue = ws.queue("mails", topic="people", deliveries=1)
        queue.nack(queue.receive(max=8), error="no")
    return folder


def files_with(folder: Path, text: str) -> list[str]:
    """The files below a folder that have a text in them, sealed ones decoded."""
    import pyarrow.parquet as pq

    found = []
    for path in folder.rglob("*"):
        if (path.is_file() and text.encode() in path.read_bytes()) or (
            path.suffix == ".parquet" and text in str(pq.read_table(path).to_pylist())
        ):
            found.append(path.name)
    return found


def each_crash(
    made: Path, tmp_path: Path, act: Callable[[Deletions], object], step: int = 1
) -> Iterator[tuple[bool, Path]]:
    """Where the act was stopped at its first call, at its second and so on; whether it had come to its end, and the folder."""
    for call in range(1, 600, step):
        folder = tmp_path / str(call)
        shutil.copytree(made, folder)
        storage = FaultyStorage(folder / "ws")
        log = EmbeddedLog.open(folder / "ws", settings=SETTINGS, clock=ManualClock(), storage=storage)
        storage.crash_at(len(storage.calls) + call, "torn" if call % 2 else "after")
        ended = True
        try:
            act(Deletions(log, ManualClock(), never, never))  # type: ignore[arg-type]
        except Crash:
            ended = False
        log.abandon()
        yield ended, folder
        shutil.rmtree(folder)
        if ended:
            return
    pytest.fail("it never came through")


def test_forgetting_is_completed_by_the_next_open(made: Path, tmp_path: Path) -> None:
    count = 0
    for _, folder in each_crash(made, tmp_path, lambda d: d.forget(2, by="anna", reason="asked")):
        for _ in range(2):  # opened once more it finds nothing to do
            with hw.open(folder / "ws", settings=SETTINGS) as ws:
                read = [r for b in ws.topic("people").read() for r in b.to_pylist()]
                assert [r["email"] for r in read if r["user"] == 2] == [None, None]
                assert all(r["email"] == f"mail-of-{r['user']}" for r in read if r["user"] != 2)
                (said,) = ws.deletions()
                assert (said.name, said.of, said.records, said.who) == ("forget-1", "2", 2, "anna")
                told = [r for b in ws.topic("_forgotten").read() for r in b.to_pylist()]
                assert [(t["subject"], t["topics"], t["records"], t["reason"]) for t in told] == [
                    ("2", "people", 2, "asked")
                ]
                assert ws.query("SELECT * FROM mails.dead").num_rows == 8
                assert ws.verify().ok
        count += 1
    assert count > 3


def test_excision_is_completed_by_the_next_open_or_was_not_begun(made: Path, tmp_path: Path) -> None:
    outcomes = set()

    def excise(deletions: Deletions) -> object:
        return deletions.excise("people", "user = 2", by="anna", reason="mistake")

    before = ends_of(made)
    for ended, folder in each_crash(made, tmp_path, excise, STEP):
        with hw.open(folder / "ws", settings=SETTINGS) as ws:
            begun = bool(ws.deletions())
            users = [u for b in ws.topic("people").read() for u in b.column("user").to_pylist()]
            assert sorted(users) == ([0, 0, 1, 1, 3, 3] if begun else [0, 0, 1, 1, 2, 2, 3, 3])
            assert {p: i.end for p, i in ws.topic("people").partitions().items()} == before
            assert ws.query("SELECT * FROM mails.dead").num_rows == len(users)
            assert ws.queue("mails").standing().dead == len(users)
            assert ws.verify().ok
            if begun:
                (said,) = ws.deletions()
                assert said.done
                told = [r for b in ws.topic("_excised").read() for r in b.to_pylist()]
                assert [(t["condition"], t["records"], t["who"]) for t in told] == [("user = ?", 2, "anna")]
        assert begun or not ended
        if begun:
            assert files_with(folder / "ws", "note-of-2") == []
            assert files_with(folder / "ws", "note-of-3") != []
        outcomes.add((begun, ended))
    assert outcomes == {(False, False), (True, False), (True, True)}


def test_what_views_are_to_take_back_is_kept_before_anything_is_removed(tmp_path: Path) -> None:
    """Of a workspace with views: wherever it dies, the records are in the log, or beside it for the next tick."""
    golden = tmp_path / "golden"
    shutil.copytree(ROOT / "tests" / "golden" / "private-1", golden)
    golden.joinpath("workspace").rename(golden / "ws")
    golden.joinpath("workspace.keys").rename(golden / "ws.keys")
    where, outcomes = "_partition = 0 AND _offset >= 10", set()
    for call in range(1, 600, STEP):
        folder = tmp_path / str(call)
        shutil.copytree(golden, folder)
        storage = FaultyStorage(folder / "ws")
        log = EmbeddedLog.open(folder / "ws", settings=SETTINGS, clock=ManualClock(), storage=storage)
        known = set(log.entries(DELETION))
        views = Views(log, storage, ManualClock(), None, None)
        storage.crash_at(len(storage.calls) + call, "torn" if call % 2 else "after")
        ended = False
        with suppress(Crash):
            Deletions(log, ManualClock(), lambda views=views: views, never).excise(
                "visits", where, by=None, reason=None
            )  # type: ignore[arg-type]
            ended = True
        log.abandon()
        with hw.open(folder / "ws", settings=SETTINGS) as ws:
            begun = sorted(set(ws.log.entries(DELETION)) - known)
            left = found(ws.log, ws.log.topic("visits"), where)
            assert bool(left) == (not begun)
            for name in begun:
                rows = kept(ws.log, Storage(folder / "ws"), name, ws.log.topic("visits"))
                assert rows is not None
                assert rows.num_rows == ws.log.entries(DELETION)[name].document["topics"]["visits"]
        shutil.rmtree(folder)
        outcomes.add((bool(begun), ended))
        if ended:
            break
    assert outcomes == {(False, False), (True, False), (True, True)}


def ends_of(made: Path) -> dict[int, int]:
    log = EmbeddedLog.open(made / "ws", settings=SETTINGS, storage=Storage(made / "ws"))
    try:
        return dict(log.ends(["people"])["people"])
    finally:
        log.close()
