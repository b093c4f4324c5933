"""Ticks are there whole or not at all, runs are opened without being read, and old ticks go when told."""

import dataclasses
import errno
import os
from pathlib import Path

import pytest

from headwater.core.clock import ManualClock, from_us
from headwater.core.errors import (
    CorruptionError,
    DiskFullError,
    FencedError,
    OtherHistoryError,
    StorageError,
    TickNotKeptError,
)
from headwater.core.positions import Token
from headwater.core.storage import Storage
from headwater.operators.zset.runs import Run
from headwater.state import cache
from headwater.state.cache import RunCache
from headwater.state.manifest import Manifest
from headwater.state.ownership import claim
from headwater.state.run_refs import RunRef
from headwater.state.store import StateStore
from headwater.state.writer import Writer
from headwater.testing import FaultyStorage
from tests.raising import raises
from tests.state.ticks import CONTENTS, Engine, run_of


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(tmp_path)


@pytest.fixture
def engine(storage: Storage) -> Engine:
    return Engine(storage)


def numbers(store: StateStore, manifest: Manifest) -> list[int]:
    return sorted(n for run in store.runs(manifest, CONTENTS) for n in run.rows.column(0).to_pylist())


def other(engine: Engine) -> StateStore:
    """The store as another process sees it."""
    return StateStore(Storage(engine.storage.root), ManualClock())


def test_a_new_workspace_has_no_tick_and_looking_makes_none(storage: Storage) -> None:
    store = StateStore(storage, ManualClock())
    assert store.latest() is None
    assert store.ticks() == []
    assert store.collect(1).files == 0
    assert storage.list(".") == []


def test_a_tick_is_seen_by_others_once_it_is_committed(engine: Engine) -> None:
    manifest = engine.prepare({1: 1, 2: 1})
    reader = other(engine)
    assert reader.latest() is None
    engine.store.commit(manifest)
    assert reader.latest() == manifest
    assert reader.ticks() == [1]
    assert numbers(reader, manifest) == [1, 2]


def test_what_was_held_in_memory_is_touched_once_it_is_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "HELD_BYTES_MAX", 0)
    store = StateStore(Storage(tmp_path), ManualClock())
    held, touched = store.stored_runs._cache, list[RunRef]()
    monkeypatch.setattr(held, "touch", lambda ref: (touched.append(ref), RunCache.touch(held, ref)))
    writer = store.begin(1, 1)
    runs = [run_of({n: 1}) for n in range(3)]
    refs = [writer.add(run, ticks=(1, 1)) for run in runs]
    writer.flush()
    for ref, run in zip(refs, runs, strict=True):
        store.remember(ref, run)
    for _ in range(2):
        assert [store.open_run(ref).rows.column(0).to_pylist() for ref in refs] == [[0], [1], [2]]
    assert touched == refs
    store.remember(dataclasses.replace(refs[0], file="other"), runs[0])
    held.forget(lambda file: True)
    assert not held._released


def test_many_runs_of_a_tick_share_a_file_and_a_sync(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    store = StateStore(storage, ManualClock())
    writer = store.begin(1, 1)
    refs = [writer.add(run_of({n: 1}), ticks=(1, 1)) for n in range(20)]
    assert not writer.flushed
    writer.flush()
    calls = len(storage.calls)
    writer.flush()
    assert (len(storage.calls), writer.flushed) == (calls, True)
    assert len({ref.file for ref in refs}) == 1
    assert [call.operation for call in storage.calls].count("sync") == 1
    assert [store.open_run(ref).rows.column(0).to_pylist() for ref in refs] == [[n] for n in range(20)]


def test_small_runs_of_the_same_columns_share_a_stream(engine: Engine) -> None:
    writer = engine.store.begin(1, 1)
    runs = [run_of({1: 1, 2: 1}), run_of({3: 1}), run_of({1: -1})]
    refs = writer.add_shared(runs, ticks=[(1, 1)] * len(runs))
    writer.flush()
    assert len({(ref.file, ref.offset) for ref in refs}) == 1
    back = other(engine).open_all(refs)
    assert [run.rows.column(0).to_pylist() for run in back] == [
        run.rows.column(0).to_pylist() for run in runs
    ]
    assert [run.weights.tolist() for run in back] == [[1, 1], [1], [-1]]


def test_runs_added_after_a_flush_go_to_another_file(engine: Engine) -> None:
    writer = engine.store.begin(1, 1)
    one = writer.add(run_of({1: 1}), ticks=(1, 1))
    writer.flush()
    two = writer.add(run_of({2: 1}), ticks=(1, 1))
    writer.flush()
    assert {one.file, two.file} == writer.files == set(engine.storage.list("state/runs"))


def test_a_large_run_has_a_file_of_its_own(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.writer.LARGE_BYTES", 2_000)
    monkeypatch.setattr("headwater.state.writer._GATHER_BYTES", 300)
    monkeypatch.setattr("headwater.state.writer.PENDING_BYTES_MAX", 3_000)
    writer = engine.store.begin(1, 1)
    sizes = [1, 200, 2, 150, 3, 3, 3, 3]
    refs = [writer.add(run_of(dict.fromkeys(range(size), 1)), ticks=(1, 1)) for size in sizes]
    writer.flush()
    assert len({ref.file for ref in refs}) == 3
    store = other(engine)
    for ref, size in zip(refs, sizes, strict=True):
        store.verify(ref)
        assert sorted(store.open_run(ref).rows.column(0).to_pylist()) == list(range(size))


def test_no_two_attempts_share_a_name(engine: Engine) -> None:
    names = {runs_of(engine.store.begin(3, 2)) for _ in range(50)}
    assert len(names) == 50
    assert all(name.startswith("000000000003-2-") for name in names)


def runs_of(writer: Writer) -> str:
    return writer.add(run_of({1: 1}), ticks=(1, 1)).file


def test_a_commit_flushes_what_it_names(engine: Engine) -> None:
    writer = engine.store.begin(1, 1)
    ref = writer.add(run_of({7: 1}), ticks=(1, 1))
    manifest = Manifest(1, 1, 0, 0, {}, {CONTENTS: (ref,)})
    engine.store.commit(manifest)
    assert numbers(other(engine), manifest) == [7]


def test_a_writer_that_met_an_error_is_of_no_more_use(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    store = StateStore(storage, ManualClock())
    storage.full(times=1)
    writer = store.begin(1, 1)
    writer.add(run_of({1: 1}), ticks=(1, 1))
    for _ in range(2):
        with pytest.raises(DiskFullError):
            writer.flush()
    with pytest.raises(DiskFullError):
        writer.add(run_of({1: 1}), ticks=(1, 1))
    again = store.begin(1, 1)
    again.add(run_of({1: 1}), ticks=(1, 1))
    again.flush()


def test_a_tick_is_committed_by_one_engine_alone(engine: Engine) -> None:
    rival = Engine(Storage(engine.storage.root))
    mine, theirs = engine.prepare({1: 1}), rival.prepare({2: 1})
    rival.store.commit(theirs)
    with raises(FencedError, tick=1):
        engine.store.commit(mine)
    assert engine.store.latest() == theirs


def test_a_commit_that_met_an_error_is_completed_by_the_same_again(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    engine = Engine(storage)
    for operation in ("write_at", "sync", "link", "sync_dir", "remove"):
        manifest = engine.prepare({1: 1})
        storage.fail(errno.EIO, on=operation, name="state/manifests*")
        with pytest.raises(StorageError):
            engine.store.commit(manifest)
        engine.store.commit(manifest)
        engine.store.commit(manifest)
        assert engine.store.latest() == manifest
    assert engine.store.ticks() == [1, 2, 3, 4, 5]


def test_a_tick_that_was_collected_is_not_made_again(engine: Engine) -> None:
    first = engine.ticks(5)[0]
    engine.store.collect(2)
    with raises(FencedError, tick=1):
        engine.store.commit(first)
    assert engine.store.ticks() == [4, 5]


def test_an_engine_that_was_left_behind_commits_nothing(engine: Engine) -> None:
    clock = engine.clock
    engine.epoch = claim(engine.storage, clock).epoch
    engine.ticks(1)
    late = engine.prepare({9: 1})
    clock.advance("1 minute")
    newer = Engine(Storage(engine.storage.root), clock)
    newer.epoch = claim(newer.storage, clock).epoch
    with raises(FencedError, epoch=1, newest=2, reason="newer-engine"):
        engine.store.commit(late)
    newer.ticks(1)
    assert newer.store.ticks() == [1, 2]
    with pytest.raises(FencedError):
        engine.store.collect(1)


def test_an_engine_that_freezes_between_its_check_and_its_commit_commits_nothing(tmp_path: Path) -> None:
    storage, clock = FaultyStorage(tmp_path), ManualClock()
    engine = Engine(storage, clock)
    engine.epoch = claim(storage, clock).epoch
    late = engine.prepare({1: 1})
    link = storage.link

    def freeze(old: str, new: str) -> None:
        clock.advance("1 minute")
        claim(Storage(tmp_path), clock)
        link(old, new)

    storage.link = freeze  # type: ignore[method-assign]
    with raises(FencedError, epoch=1, newest=2, reason="newer-engine"):
        engine.store.commit(late)
    assert StateStore(Storage(tmp_path), clock).latest() is None


def test_the_time_of_a_commit_never_goes_back(engine: Engine) -> None:
    (tick,) = engine.ticks(1)
    behind = StateStore(engine.storage, ManualClock(tick.committed_at - 5))
    assert behind.commit_time(behind.latest()) == tick.committed_at


def test_a_run_is_opened_once_and_not_read_if_it_was_just_written(engine: Engine) -> None:
    store = engine.store
    writer = store.begin(1, 1)
    run = run_of({1: 1})
    ref = writer.add(run, ticks=(1, 1))
    store.remember(ref, run)
    writer.flush()
    assert store.open_run(ref) is run
    reader = other(engine)
    assert reader.open_run(ref) is reader.open_run(ref)


def test_memory_for_written_runs_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.cache.HELD_BYTES_MAX", 1_000)
    monkeypatch.setattr("headwater.state.cache.RUNS_MAX", 4)
    monkeypatch.setattr("headwater.state.cache.FILES_MAX", 1)
    kept: list[tuple[RunRef, Run]] = []
    for _ in range(2):
        writer = engine.store.begin(1, 1)
        for n in range(5):
            run = run_of(dict.fromkeys(range(n, n + 10), 1))
            kept.append((writer.add(run, ticks=(1, 1)), run))
            engine.store.remember(*kept[-1])
        writer.flush()
    opened = [engine.store.open_run(ref) for ref, _ in kept]
    assert [run.weights.tolist() for run in opened] == [run.weights.tolist() for _, run in kept]
    assert opened[0] is not kept[0][1]
    assert engine.store.open_run(kept[-1][0]) is opened[-1]


def test_runs_that_share_a_stream_are_counted_as_one_in_memory(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as one of them is held, all of it is there."""
    runs = [run_of(dict.fromkeys(range(n, n + 10), 1)) for n in range(8)]
    writer = engine.store.begin(1, 1)
    stacks = [writer.add_shared(runs, ticks=[(1, 1)] * len(runs)) for _ in range(3)]
    writer.flush()
    whole = sum(ref.bytes for ref in stacks[0])
    monkeypatch.setattr("headwater.state.cache.HELD_BYTES_MAX", 2 * whole + whole // 2)
    for refs in stacks:
        for ref, run in zip(refs, runs, strict=True):
            engine.store.remember(ref, run)
    held = [
        [engine.store.open_run(ref) is run for ref, run in zip(refs, runs, strict=True)] for refs in stacks
    ]
    assert held == [[False] * 8, [True] * 8, [True] * 8]


def test_no_file_stays_open(engine: Engine) -> None:
    handles = Path("/proc/self/fd")
    if not handles.exists():
        pytest.skip("there is no /proc here")
    engine.ticks(3)
    reader = other(engine)
    before = len(os.listdir(handles))
    latest = reader.latest()
    assert latest is not None
    runs = reader.runs(latest, CONTENTS)
    assert len(os.listdir(handles)) == before
    assert len(runs) == 3


def test_damage_to_a_small_run_is_noticed_when_it_is_opened(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    engine = Engine(storage)
    (manifest,) = engine.ticks(1)
    (ref,) = manifest.arrangements[CONTENTS]
    storage.flip(f"state/runs/{ref.file}", ref.end - 20)
    for look in (other(engine).open_run, other(engine).verify):
        with raises(CorruptionError, file=f"state/runs/{ref.file}", offset=ref.offset):
            look(ref)


def test_a_large_run_is_checked_in_full_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.cache.CHECK_BYTES_MAX", 0)
    storage = FaultyStorage(tmp_path)
    engine = Engine(storage)
    (manifest,) = engine.ticks(1)
    (ref,) = manifest.arrangements[CONTENTS]
    storage.flip(f"state/runs/{ref.file}", ref.end - 20)
    reader = other(engine)
    assert len(reader.open_run(ref)) == 1
    with raises(CorruptionError, file=f"state/runs/{ref.file}", offset=ref.offset):
        reader.verify(ref)


@pytest.mark.parametrize("size", [0, 70])
def test_a_cut_off_file_is_noticed(engine: Engine, size: int) -> None:
    (manifest,) = engine.ticks(1)
    (ref,) = manifest.arrangements[CONTENTS]
    os.truncate(engine.storage.path(f"state/runs/{ref.file}"), size)
    with raises(CorruptionError, file=f"state/runs/{ref.file}", offset=size):
        other(engine).open_run(ref)


def test_a_missing_file_that_a_tick_names_is_damage(engine: Engine) -> None:
    (manifest,) = engine.ticks(1)
    (ref,) = manifest.arrangements[CONTENTS]
    engine.storage.remove(f"state/runs/{ref.file}")
    with raises(CorruptionError, file=f"state/runs/{ref.file}", tick=1, reason="missing"):
        other(engine).runs(manifest, CONTENTS)


def test_a_damaged_manifest_is_named(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    engine = Engine(storage)
    engine.ticks(1)
    storage.flip("state/manifests/000000000001.json", 100)
    with raises(CorruptionError, file="state/manifests/000000000001.json", offset=0):
        other(engine).latest()


# --- collecting ----------------------------------------------------------------------------------------------------


def merged(engine: Engine) -> Manifest:
    """A tick whose contents are one run, so that the files of the ticks before are needed by those alone."""
    before = engine.store.latest()
    assert before is not None
    writer = engine.store.begin(before.tick + 1, engine.epoch)
    ref = writer.add(run_of(dict.fromkeys(range(before.tick + 1), 1)), ticks=(1, before.tick + 1))
    manifest = dataclasses.replace(
        before, tick=before.tick + 1, arrangements={CONTENTS: (ref,)}, views={}, epoch=engine.epoch
    )
    engine.store.commit(manifest)
    return manifest


def test_old_ticks_go_and_their_runs_with_them(engine: Engine) -> None:
    engine.ticks(4)
    merged(engine)
    before = sum(f.stat().st_size for f in engine.storage.root.rglob("*") if f.suffix in (".json", ".runs"))
    collected = engine.store.collect(1)
    after = sum(f.stat().st_size for f in engine.storage.root.rglob("*") if f.suffix in (".json", ".runs"))
    assert engine.store.ticks() == [5]
    assert len(engine.storage.list("state/runs")) == 1
    assert (collected.files, collected.bytes) == (8, before - after)
    assert engine.store.collect(1).files == 0


def test_runs_that_a_kept_tick_names_stay(engine: Engine) -> None:
    engine.ticks(4)
    last = merged(engine)
    engine.store.collect(2)
    assert engine.store.ticks() == [4, 5]
    reader = other(engine)
    assert numbers(reader, reader.manifest(4)) == [1, 2, 3, 4]
    assert numbers(reader, last) == [0, 1, 2, 3, 4]


def test_protected_ticks_stay_whole(engine: Engine) -> None:
    engine.ticks(4)
    merged(engine)
    engine.store.collect(1, protect=[2])
    assert engine.store.ticks() == [2, 5]
    reader = other(engine)
    assert numbers(reader, reader.manifest(2)) == [1, 2]
    assert len(engine.storage.list("state/runs")) == 3
    engine.store.collect(1)
    assert len(engine.storage.list("state/runs")) == 1


def test_the_newest_tick_stays_whatever_is_asked(engine: Engine) -> None:
    engine.ticks(2)
    engine.store.collect(0)
    assert engine.store.ticks() == [2]


def test_a_reader_keeps_what_it_holds_and_learns_what_is_gone(engine: Engine) -> None:
    reader = other(engine)
    engine.ticks(3)
    slow = reader.latest()
    assert slow is not None
    held = reader.open_run(slow.arrangements[CONTENTS][0])
    merged(engine)
    engine.store.collect(1)
    assert held.rows.column(0).to_pylist() == [1]
    with raises(TickNotKeptError, tick=3, first_available=4):
        reader.runs(slow, CONTENTS)
    with raises(TickNotKeptError, tick=3, first_available=4):
        reader.manifest(3)
    with raises(TickNotKeptError, tick=9, last_available=4):
        reader.manifest(9)


def test_a_reader_lets_go_of_removed_files_in_time(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.state.stored_runs._FORGET_EVERY_TICKS", 2)
    reader = other(engine)
    slow = engine.ticks(3)[-1]
    assert reader.latest() == slow
    assert numbers(reader, slow) == [1, 2, 3]
    merged(engine)
    merged(engine)
    engine.store.collect(1)
    reader.latest()
    assert set(reader.stored_runs._cache._maps) == set()


def test_what_is_being_written_is_spared(engine: Engine) -> None:
    engine.ticks(2)
    background = engine.store.begin(2, 1)
    ref = background.add(run_of({1: 1, 2: 1}), ticks=(1, 2))
    background.flush()
    ahead = other(engine).begin(4, 1, attempt="task7")
    ahead.add(run_of({3: 1}), ticks=(4, 4))
    ahead.flush()
    engine.ticks(2)
    engine.store.collect(1, spare=["task7"])
    assert background.files | ahead.files <= set(engine.storage.list("state/runs"))
    engine.tick({9: 1}, arrangements={CONTENTS: (ref,)})
    engine.store.collect(1)
    assert set(engine.storage.list("state/runs")) > background.files
    assert not ahead.files & set(engine.storage.list("state/runs"))


def test_what_was_given_up_is_garbage(engine: Engine) -> None:
    engine.ticks(1)
    writer = engine.store.begin(2, 1)
    writer.add(run_of({1: 1}), ticks=(2, 2))
    writer.flush()
    engine.store.abandon(writer)
    engine.store.collect(1)
    assert writer.files <= set(engine.storage.list("state/runs")), "a tick under way could still name it"
    engine.ticks(1)
    engine.store.collect(1)
    assert not writer.files & set(engine.storage.list("state/runs"))


def test_the_garbage_of_an_older_engine_goes_once_its_successor_has_made_a_tick(engine: Engine) -> None:
    engine.ticks(1)
    engine.prepare({5: 1})
    assert len(engine.storage.list("state/runs")) == 2
    newer = Engine(Storage(engine.storage.root), epoch=2)
    newer.store.collect(9)
    assert len(engine.storage.list("state/runs")) == 2
    newer.ticks(1)
    assert newer.store.collect(9).files == 1
    assert newer.store.ticks() == [1, 2]


def test_files_of_others_are_left_alone(engine: Engine) -> None:
    engine.ticks(3)
    engine.storage.write_atomic("state/runs/notes.txt", b"mine")
    engine.store.collect(1)
    assert "notes.txt" in engine.storage.list("state/runs")


# --- cuts ----------------------------------------------------------------------------------------------------------


def test_what_a_tick_covered_is_known_for_ever(engine: Engine) -> None:
    made = engine.ticks(30)
    engine.store.collect(3)
    for store in (engine.store, other(engine)):
        for manifest in made:
            cut = store.cut_of(manifest.tick)
            assert (cut.positions, cut.sequence) == (manifest.positions, manifest.sequence)
            assert store.tick_at(manifest.committed_at) == manifest.tick
            assert store.tick_at(from_us(manifest.committed_at + 999_999)) == manifest.tick
        assert store.tick_at(made[0].committed_at - 1) is None
        with pytest.raises(TickNotKeptError):
            store.cut_of(31)


def test_ticks_whose_cut_is_not_recorded_yet_are_found_in_their_manifests(engine: Engine) -> None:
    made = engine.ticks(3)
    for file in engine.storage.list("state/cuts"):
        engine.storage.remove(f"state/cuts/{file}")
    store = other(engine)
    assert store.cut_of(2).positions == made[1].positions
    assert store.tick_at(made[1].committed_at) == 2
    assert store.tick_at(0) is None
    store.collect(1)
    assert other(engine).cut_of(1).positions == made[0].positions


def test_a_full_disk_after_the_commit_does_not_undo_it(tmp_path: Path) -> None:
    storage = FaultyStorage(tmp_path)
    engine = Engine(storage)
    engine.ticks(1)
    storage.fail(28, name="state/cuts/*")
    engine.ticks(2)
    assert engine.store.ticks() == [1, 2, 3]
    assert engine.store._manifests._cuts.last_tick() == 3


def test_a_token_of_another_tick_of_that_number_is_refused_also_when_the_tick_is_kept_no_more(
    tmp_path: Path,
) -> None:
    engine = Engine(Storage(tmp_path))
    tokens = [engine.tick({n: 1}, id=f"{n:016x}").token for n in range(1, 6)]
    engine.store.collect(2)
    assert engine.store.ticks() == [4, 5]
    for token in tokens:
        engine.store.check_token(token)
        engine.store.check_token(Token(token.number))  # a number alone is taken at its word
        with raises(OtherHistoryError, tick=token.number, found=token.id):
            engine.store.check_token(Token(token.number, "f" * 16))
    with raises(TickNotKeptError, tick=6, last_available=5):
        engine.store.check_token(Token(6, "f" * 16))
