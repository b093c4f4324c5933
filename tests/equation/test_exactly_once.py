"""Every record counts once, whatever happens to the engine, its process, its disk or its state.

The log is whole throughout; what is broken here is all that is made of it. In the first part an engine lives on a disk
that can be told to die at a call (`FaultyStorage`), beside the log, and what is left at each call is finished by another.
"""

from __future__ import annotations

import errno
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock
from headwater.core.errors import CorruptionError, FencedError, StorageError, TickNotKeptError
from headwater.core.storage import Storage
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.engine.tick.tick_engine import Engine
from headwater.state.manifest import Manifest
from headwater.state.ownership import claim
from headwater.state.store import StateStore
from headwater.state.view_reader import view_changes, view_contents
from headwater.testing import FaultyStorage, inspect_workspace
from headwater.testing.faults import StorageCall
from tests.conftest import LONG
from tests.engine.workers import SETTINGS, declare_code, worker
from tests.raising import raises
from tests.serving.test_changes import OneTick, counted, plus

DECLARED = """
CREATE TOPIC orders (customer BIGINT, amount BIGINT) WITH (partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
CREATE MATERIALIZED VIEW large AS SELECT customer, amount FROM orders WHERE amount > 40;
CREATE MATERIALIZED VIEW revenue AS
  SELECT c.country, sum(o.amount) AS amount, count(*) AS n, max(o.amount) AS most
  FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country;
CREATE MATERIALIZED VIEW countries AS SELECT count(*) AS n, sum(amount) AS amount FROM revenue;
CREATE MATERIALIZED VIEW volume AS SELECT count(*) AS n, sum(amount) AS amount FROM orders;
CREATE MATERIALIZED VIEW buyers AS SELECT amount > 50 AS large, approx_count_distinct(customer) AS n FROM orders GROUP BY 1;
CREATE MATERIALIZED VIEW usual AS
  SELECT amount > 50 AS large, approx_top_k(customer, 2, 8) AS buyers, percentile_approx(amount, array(0.5, 0.9), 100) AS amounts
  FROM orders GROUP BY 1;
CREATE MATERIALIZED VIEW met AS SELECT amount > 50 AS large, seen(customer) AS customers FROM orders GROUP BY 1;
CREATE MATERIALIZED VIEW raised AS SELECT customer, low, high FROM orders MATCH_RECOGNIZE (
  PARTITION BY customer ORDER BY _partition, _offset
  MEASURES FIRST(less.amount) AS low, more.amount AS high
  PATTERN (less+ more) DEFINE less AS amount < 50, more AS more.amount > 2 * avg(less.amount)
);
CREATE STANDING QUERY wanted ON customers (country);
"""
VIEWS = ("buyers", "countries", "large", "met", "raised", "revenue", "usual", "volume", "wanted")
TICK_ROWS = 20


def append(ws: Workspace, rng: random.Random, times: int) -> int:
    """Orders, and customers that move; how many orders."""
    orders = 0
    for _ in range(times):
        rows = [
            {"customer": rng.randrange(6), "amount": rng.randint(1, 100)} for _ in range(rng.randint(1, 5))
        ]
        moved = [{"id": rng.randrange(6), "country": rng.choice(["de", "fr", "it"])}]
        ws.append({"orders": rows, "customers": moved})
        orders += len(rows)
    return orders


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "shop", spark=spark, settings=SETTINGS) as workspace:
        declare_code(workspace)
        workspace.sql(DECLARED)
        workspace.standing("wanted").add("north", "de OR f*")
        append(workspace, random.Random(5), 15)
        yield workspace


# --- an engine on a disk that fails ----------------------------------------------------------------------------------


@dataclass
class Bench:
    """Engines on any disk, over the log and the plans of one workspace; and what they must make of it."""

    ws: Workspace
    clock: ManualClock = field(default_factory=ManualClock)
    truth: dict[str, Counter[str]] = field(default_factory=dict)
    on_the_way: dict[str, dict[str, Counter[str]]] = field(default_factory=dict)
    """By positions: every tick that an engine which is left alone makes."""

    def __post_init__(self) -> None:
        self.ws.run(tick_rows=TICK_ROWS)
        assert self.ws.verify().ok
        store = inspect_workspace(self.ws).store
        for tick in store.ticks():
            manifest = store.manifest(tick)
            self.on_the_way[str(manifest.positions)] = held(store, manifest)
        latest = store.latest()
        assert latest is not None
        self.truth = held(store, latest)

    def engine(self, storage: Storage) -> Engine:
        ownership = claim(storage, self.clock)
        context = inspect_workspace(self.ws).engine_context()
        return Engine(self.ws.log, StateStore(storage, self.clock), ownership, context, self.clock)

    def live(self, storage: Storage, told: list[int], rows: int | None = TICK_ROWS) -> None:
        """A life of an engine up to the end of the log; `told` has the ticks whose commit has returned."""
        engine = self.engine(storage)
        with engine._ownership:
            while (report := engine.tick(rows)) is not None:
                told.append(report.tick)
            engine.finish()

    def judge(self, storage: Storage, told: list[int], what: str) -> None:
        """What is left on a disk is whole, and the next engine finishes it."""
        try:
            self._judge(storage, told)
        except (AssertionError, hw.HeadwaterError) as error:
            raise AssertionError(what) from error

    def _judge(self, storage: Storage, told: list[int]) -> None:
        store = StateStore(storage, self.clock)
        there = store.ticks()
        assert set(told) <= set(there), "a tick that was committed is gone"
        assert len(there) <= len(told) + 1
        for tick in there:
            manifest = store.manifest(tick)
            assert held(store, manifest) == self.on_the_way[str(manifest.positions)], f"tick {tick}"
        again: list[int] = []
        self.live(storage, again)
        assert not set(again) & set(there), "a tick was made twice"
        assert min(again, default=10**12) > max(there, default=0)
        store = StateStore(storage, self.clock)
        latest = store.latest()
        assert latest is not None
        assert held(store, latest) == self.truth
        for view in VIEWS:
            assert followed(store, view) == self.truth[view], "the changes do not add up"


def held(store: StateStore, manifest: Manifest) -> dict[str, Counter[str]]:
    return {view: counted(view_contents(store, manifest, view)) for view in VIEWS}


def followed(store: StateStore, view: str) -> Counter[str]:
    """What a follower has who begins as early as can be: with nothing, or with the contents of the first tick."""
    first = store.ticks()[0]
    since = 0 if first == 1 else first
    total = counted(view_contents(store, store.manifest(first), view)) if since else Counter()
    for row in view_changes(store, view, since).to_pylist():
        weight = row.pop("_weight")
        del row["_tick"]
        total = plus(total, Counter({repr(tuple(row.values())): weight}))
    return total


@pytest.mark.slow
@pytest.mark.parametrize("power", [None, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_an_engine_that_dies_at_any_call_is_finished_by_the_next(
    ws: Workspace, tmp_path: Path, power: int | None
) -> None:
    """Stopped ahead of every call that changes the disk, or in the middle of it; with `power` it loses what it did not
    sync."""
    bench = Bench(ws)
    storage, told = FaultyStorage(tmp_path / "disk"), list[int]()
    images: list[tuple[FaultyStorage, list[int], str]] = []

    def look(call: StorageCall) -> None:
        for torn in (False, True) if call.operation == "write_at" and len(call.data) > 1 else (False,):
            seed = None if power is None else 1000 * power + call.number
            image = storage.image(tmp_path / f"image-{len(images)}", lose_power=seed, torn=torn)
            images.append((image, list(told), f"{'torn in' if torn else 'stopped before'} {call}"))

    storage.on_call = look
    bench.live(storage, told)
    storage.on_call = None
    assert len(told) >= 3
    assert len(images) > 30
    for image, known, what in images:
        bench.judge(image, known, what)
    bench.judge(storage, told, "after the last call")


def _folder(call: StorageCall) -> str:
    return "/".join(call.name.split("/")[:2]) if call.name.count("/") > 1 else "state"


@pytest.mark.slow
def test_an_engine_whose_disk_fails_at_any_call_is_finished_by_the_next(
    ws: Workspace, tmp_path: Path
) -> None:
    bench = Bench(ws)
    counting = FaultyStorage(tmp_path / "count")
    bench.live(counting, [])
    kinds = Counter((call.operation, _folder(call)) for call in counting.calls)
    for (operation, folder), times in sorted(kinds.items()):
        for skip in sorted({0, times // 2, times - 1}):
            place = tmp_path / f"{operation}-{folder.replace('/', '-')}-{skip}"
            storage, told = FaultyStorage(place), list[int]()
            fault = storage.fail(errno.EIO, on=operation, name=f"{folder}*", skip=skip)
            try:
                bench.live(storage, told)
            except StorageError:
                assert fault.met
            bench.judge(storage.restart(), told, f"{operation} in {folder} failed after {skip}")


@pytest.mark.slow
def test_an_engine_goes_on_when_the_disk_has_space_again(ws: Workspace, tmp_path: Path) -> None:
    """The same engine, not the next one."""
    bench = Bench(ws)
    storage, told = FaultyStorage(tmp_path / "disk"), list[int]()
    engine = bench.engine(storage)
    met = 0
    for n in range(6):
        full = storage.full(skip=n % 3)
        try:
            if (report := engine.tick(5)) is not None:
                told.append(report.tick)
        except StorageError:
            met += 1
        full.lift()
    assert met
    assert told
    while engine.tick(TICK_ROWS) is not None:
        pass
    assert engine.manifest is not None
    assert held(engine._store, engine.manifest) == bench.truth
    engine._ownership.release()
    assert followed(engine._store, "revenue") == bench.truth["revenue"]


# --- an engine whose process is killed -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_again_and_again_loses_and_repeats_nothing(ws: Workspace) -> None:
    rng = random.Random(11)
    assert ws.path is not None
    orders = int(ws.query("SELECT count(*) AS n FROM orders").to_pylist()[0]["n"])
    seen: list[int] = []
    for _ in range(2):
        with worker("engine", ws.path) as running:
            running.line("running")
            for _ in range(rng.randint(1, 4)):
                orders += append(ws, rng, rng.randint(1, 6))
                seen.append(int(running.line("tick ")))
            orders += append(ws, rng, 3)
            running.kill()
    last = ws.run()
    assert seen == sorted(set(seen)), "a tick was made twice"
    assert last.tick >= seen[-1]
    assert ws.query("SELECT n FROM volume").to_pylist() == [{"n": orders}]
    assert ws.verify().ok


# --- state that is deleted or damaged --------------------------------------------------------------------------------


def reopened(ws: Workspace, spark: Any) -> Workspace:
    """The workspace as another process sees it: nothing in memory."""
    assert ws.path is not None
    ws.close()
    again = hw.open(ws.path, spark=spark, settings=SETTINGS)
    declare_code(again)
    return again


def test_an_engine_that_starts_again_rebuilds_nothing(ws: Workspace, spark: Any) -> None:
    first = ws.run(tick_rows=TICK_ROWS)
    with reopened(ws, spark) as again:
        assert again.run().ticks == 0
        append(again, random.Random(1), 1)
        report = again.run()
        assert (report.tick, report.ticks) == (first.tick + 1, 1)
        latest = inspect_workspace(again).manifest()
        assert latest is not None
        assert {view.built for view in latest.views.values()} == {1}


def test_state_that_was_deleted_is_made_again_under_new_tick_numbers(ws: Workspace, spark: Any) -> None:
    first = ws.run(tick_rows=TICK_ROWS)
    before = held(inspect_workspace(ws).store, inspect_workspace(ws).manifest(first.tick))
    assert ws.path is not None
    ws.close()
    for _ in range(2):
        shutil.rmtree(ws.path / "state")
        with hw.open(ws.path, spark=spark, settings=SETTINGS) as again:
            declare_code(again)
            second = again.run(tick_rows=TICK_ROWS)
            assert second.tick - second.ticks >= first.tick, "a tick number was used again"
            store = inspect_workspace(again).store
            assert held(store, store.manifest(second.tick)) == before
            with pytest.raises(TickNotKeptError):
                again.view("revenue").changes(first.tick)
            first = second


def test_an_engine_whose_state_is_deleted_under_it_commits_nothing_more(
    ws: Workspace, tmp_path: Path
) -> None:
    bench = Bench(ws)
    storage = Storage(tmp_path / "disk")
    engine = bench.engine(storage)
    assert engine.tick(TICK_ROWS) is not None
    shutil.rmtree(tmp_path / "disk" / "state")
    with raises(FencedError, reason="state-deleted"):
        engine.tick(TICK_ROWS)
    other = bench.engine(storage)  # which has the same epoch as the first had
    with raises(FencedError, reason="state-deleted"):
        engine.tick(TICK_ROWS)
    other._ownership.release()
    bench.judge(storage, [], "after the state was deleted")


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def _every_place(store: StateStore) -> list[tuple[str, int]]:
    """A byte in the middle of every run that the newest tick needs."""
    latest = store.latest()
    assert latest is not None
    refs = {ref for refs in latest.arrangements.values() for ref in refs}
    return sorted((ref.file, ref.offset + ref.length // 2) for ref in refs)


def read(store: StateStore, manifest: Manifest, view: str) -> Counter[str] | CorruptionError:
    try:
        return counted(view_contents(store, manifest, view))
    except CorruptionError as error:
        return error


@pytest.mark.parametrize(
    "damage", ["flip", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("truncate", "delete"))]
)
def test_runs_that_are_damaged_are_noticed_and_their_views_rebuilt(
    ws: Workspace, tmp_path: Path, damage: str
) -> None:
    """Whatever run it is: no view is ever wrong. What the next ticks touch is mended by them, and the rest is not read
    without an error that says how to mend it."""
    bench = Bench(ws)
    whole = tmp_path / "whole"
    bench.live(Storage(whole), [])
    append(ws, random.Random(6), 6)
    truth = Bench(ws).truth
    mended = 0
    places = _every_place(StateStore(Storage(whole), bench.clock))
    for number, (file, place) in enumerate(places if LONG or damage == "flip" else places[::4]):
        disk = tmp_path / f"disk-{number}"
        shutil.copytree(whole, disk)
        path = disk / "state" / "runs" / file
        if damage == "flip":
            _flip(path, place)
        elif damage == "truncate":
            path.write_bytes(path.read_bytes()[:place])
        else:
            path.unlink()
        last = StateStore(Storage(disk), bench.clock).ticks()[-1]
        told: list[int] = []
        bench.live(Storage(disk), told, rows=None)
        store = StateStore(Storage(disk), bench.clock)
        latest = store.latest()
        assert latest is not None
        assert all(view.status == "live" for view in latest.views.values())
        for view in VIEWS:
            found = read(store, latest, view)
            if isinstance(found, CorruptionError):
                assert damage == "flip"
                assert found.file == f"state/runs/{file}"
                assert "headwater rebuild" in str(found)
                continue
            assert found == truth[view], (file, place, view)
            if latest.views[view].built > last:
                mended += 1
                with raises(TickNotKeptError, rebuilt_at=latest.views[view].built):
                    view_changes(store, view, last)
    assert mended, "nothing was made anew"


def test_damage_is_corrected_when_the_views_are_rebuilt(ws: Workspace, spark: Any) -> None:
    ws.run(tick_rows=TICK_ROWS)
    truth = held(inspect_workspace(ws).store, inspect_workspace(ws).manifest(ws.run().tick))
    assert ws.path is not None
    for file, place in _every_place(inspect_workspace(ws).store):
        _flip(ws.path / "state" / "runs" / file, place)
    with reopened(ws, spark) as again:
        with pytest.raises(CorruptionError) as caught:
            again.view("revenue").read()
        assert caught.value.facts["file"].startswith("state/runs/")
        assert "headwater rebuild" in str(caught.value)
        for view in VIEWS:
            again.view(view).rebuild()
        again.topic("customers").append([{"id": 99, "country": "at"}])
        report = again.run()
        assert not report.stopped
        assert held(inspect_workspace(again).store, inspect_workspace(again).manifest(report.tick)) == truth
        assert again.verify().ok


@pytest.mark.slow
def test_a_damaged_manifest_is_left_out_and_its_tick_never_made_again(ws: Workspace, spark: Any) -> None:
    first = ws.run(tick_rows=TICK_ROWS)
    assert first.ticks > 1
    truth = held(inspect_workspace(ws).store, inspect_workspace(ws).manifest(first.tick))
    assert ws.path is not None
    newest = ws.path / "state" / "manifests" / f"{first.tick:012d}.json"
    _flip(newest, 300)
    with reopened(ws, spark) as again:
        with raises(CorruptionError, file=f"state/manifests/{newest.name}"):
            again.view("revenue").read()
        second = again.run()
        assert second.tick > first.tick
        store = inspect_workspace(again).store
        assert held(store, store.manifest(second.tick)) == truth
        with pytest.raises(TickNotKeptError):
            again.view("revenue").changes(first.tick)
        for _ in range(20):  # past the next collection
            append(again, random.Random(1), 1)
            again.run()
        assert not newest.exists()
        assert again.verify().ok


@pytest.mark.parametrize("base", ["whole", "damaged"])
def test_a_damaged_view_whose_history_was_removed_is_made_from_its_base_or_not_at_all(
    base: str, tmp_path: Path, spark: Any
) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT) WITH (retention = '1 hour')")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        ws.topic("t").append([{"a": 1}, {"a": 2}])
        ws.run()
        clock.advance("2 hours")
        ws.maintain()
        assert ws.log.partitions("t")[0].first == 2
        assert ws.path is not None
        (file,) = {file for file, _ in _every_place(inspect_workspace(ws).store)}
        (ws.path / "state" / "runs" / file).unlink()
        if base == "damaged":
            (ws.path / "bases" / "runs" / file).unlink()
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock) as ws:
        ws.topic("t").append([{"a": 3}])
        report = ws.run()
        if base == "damaged":
            assert report.stopped["n"].startswith("its base at tick 1 is damaged")
        else:
            assert ws.view("n").read().to_pylist() == [{"n": 3}]


def test_records_are_kept_for_a_view_that_waits_for_another(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read nothing of the topic yet, which others have read to the end."""
    clock = ManualClock()
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 2)
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT) WITH (retention = '1 hour'); CREATE TOPIC long (a BIGINT)")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        for i in range(5):
            ws.append({"t": [{"a": i}], "long": [{"a": i}, {"a": i}]})
            clock.advance("1 minute")
        inspect_workspace(ws).on_progress(OneTick())
        ws.run()
        ws.sql("CREATE MATERIALIZED VIEW low AS SELECT a, count(*) AS n FROM long GROUP BY a")
        ws.sql("CREATE MATERIALIZED VIEW high AS SELECT t.a, low.n FROM t JOIN low ON t.a = low.a")
        for _ in range(8):
            ws.topic("t").append([{"a": 1}])
            ws.run()
            clock.advance("2 hours")
            ws.maintain()
        inspect_workspace(ws).on_progress(Listener())
        ws.run()
        assert ws.view("high").read().num_rows == 5 + 8
