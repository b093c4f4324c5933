"""What is particular to the versions of each kind: what goes with a table's name, what others read, what is in the way."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow.parquet as pq
import pytest
import redis

from headwater.core.clock import ManualClock
from headwater.core.errors import SinkError, UsageError
from headwater.sinks.base import folder_swap
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.net_changes import net
from headwater.sinks.base.sink_rebuild import Rebuilding
from headwater.sinks.base.sink_status import Letters
from headwater.sinks.base.target import SinkCheckpoint, Target, TargetShape
from headwater.sinks.iceberg import target as lake
from headwater.sinks.iceberg.target import LakeTarget
from headwater.sinks.parquet.target import ParquetTarget
from headwater.sinks.postgres import versions as postgres_versions
from headwater.sinks.postgres.target import PostgresTarget
from headwater.sinks.redis.target import RedisTarget
from headwater.sinks.search.search_index import SearchIndex
from headwater.sinks.search.target import SearchTarget
from headwater.testing.faults import Crash
from headwater.testing.sinks import MemoryPlace, MemoryTarget, ScriptedFeed
from headwater.testing.sinks.sink_bench import SCHEMA, row
from tests.raising import raises

SHAPE = TargetShape("follower", "view", SCHEMA, ("region", "id"))
ROWS = [row(1), row(2, "b"), row(3, None)]


@pytest.fixture
def feed() -> ScriptedFeed:
    """A view with some rows."""
    made = ScriptedFeed(SCHEMA, ManualClock())
    made.tick(ROWS)
    return made


@pytest.fixture
def opened() -> Iterator[list[Target]]:
    """Targets that are closed at the end."""
    targets: list[Target] = []
    yield targets
    for target in targets:
        target.close()


def follow(target: Target, feed: ScriptedFeed, opened: list[Target]) -> Rebuilding:
    """Fill a target; what builds it anew."""
    opened.append(target)
    applier = Applier(SHAPE, target, feed, ManualClock())
    while applier.step():
        pass
    return Rebuilding(SHAPE, target, feed, ManualClock())


# --- Postgres ----------------------------------------------------------------------------------------------------------


def do(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as session:
        found = session.execute(statement)
        return found.fetchall() if found.description else []


def test_a_table_goes_with_its_indexes_defaults_and_grants(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    do(postgres_url, "ALTER TABLE follower ADD big text GENERATED ALWAYS AS (upper(name)) STORED")
    do(postgres_url, "CREATE INDEX by_name ON follower (name)")
    do(postgres_url, "COMMENT ON COLUMN follower.name IS 'told'")
    do(postgres_url, "DROP ROLE IF EXISTS reader; CREATE ROLE reader")
    do(postgres_url, "GRANT SELECT ON follower TO reader; GRANT UPDATE (score) ON follower TO PUBLIC")
    done = versions.build()
    assert done.old == "table public.follower__old"
    indexed = "SELECT count(*) FROM pg_indexes WHERE tablename = 'follower' AND indexdef LIKE '%(name)%'"
    assert do(postgres_url, indexed) == [(1,)]
    rights = "SELECT has_table_privilege('reader', 'follower', 'SELECT'), has_column_privilege('reader', 'follower', 'score', 'UPDATE')"
    assert do(postgres_url, rights) == [(True, True)]
    assert do(postgres_url, "SELECT col_description('follower'::regclass, 3)") == [("told",)]
    assert do(postgres_url, "SELECT big FROM follower ORDER BY id") == [("A",), ("B",), (None,)]
    versions.drop_old()
    do(postgres_url, "DROP OWNED BY reader; DROP ROLE reader")


def test_what_is_bound_to_a_table_itself_is_named_and_nothing_is_begun(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    do(postgres_url, "CREATE VIEW report AS SELECT count(*) FROM follower")
    with raises(SinkError, sink="follower", dependents=("view report",)):
        versions.build()
    assert do(postgres_url, "SELECT to_regclass('follower__new')") == [(None,)]
    do(postgres_url, "DROP VIEW report")
    versions.build()


@pytest.mark.parametrize(
    ("done", "undone", "dependent"),
    [
        ("ADD seen date DEFAULT now()", "DROP seen", "data in column seen"),
        ("ENABLE ROW LEVEL SECURITY", "DISABLE ROW LEVEL SECURITY", "row level security"),
    ],
)
def test_what_others_keep_in_a_table_is_not_left_behind(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target], done: str, undone: str, dependent: str
) -> None:
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    do(postgres_url, f"ALTER TABLE follower {done}")
    with raises(SinkError, sink="follower", dependents=(dependent,)):
        versions.build()
    assert do(postgres_url, "SELECT to_regclass('follower__new')") == [(None,)]
    do(postgres_url, f"ALTER TABLE follower {undone}")
    versions.build()


def test_a_version_that_was_dropped_by_hand_is_forgotten(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    versions.build()
    do(postgres_url, "DROP TABLE follower__old")
    assert versions.build().rows == 3

    def crash(step: str) -> None:
        if step == "switching":
            raise Crash

    do(postgres_url, "DROP TABLE follower__old")
    target = PostgresTarget(postgres_url, "follower")
    opened.append(target)
    with pytest.raises(Crash):
        Rebuilding(SHAPE, target, feed, ManualClock(), on_step=crash).build()
    do(postgres_url, "DROP TABLE follower__new")
    versions.build(verify=False)
    assert do(postgres_url, "SELECT count(*) FROM follower") == [(3,)]


def test_a_reader_of_a_table_sees_all_of_one_version(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    ends, seen = threading.Event(), set()

    def read() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as session:
            while not ends.is_set():
                seen.add(session.execute("SELECT count(*) FROM follower").fetchone()[0])  # type: ignore[index]

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for _ in range(5):
            versions.build()
            versions.back()
            versions.drop_old()
    finally:
        ends.set()
        thread.join()
    assert seen == {3}


def test_a_transaction_that_has_read_the_table_is_waited_for(
    postgres_url: str, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others who come to read it meanwhile are held up for a moment only: the switch gives up, and tries again."""
    monkeypatch.setattr(postgres_versions, "LOCK_TIMEOUT", "50ms")
    versions = follow(PostgresTarget(postgres_url, "follower"), feed, opened)
    tries = []
    with psycopg.connect(postgres_url) as reading:
        reading.execute("SELECT * FROM follower")

        def wait(timeout_ms: float) -> None:
            tries.append(timeout_ms)
            with psycopg.connect(postgres_url) as other:
                assert other.execute("SELECT count(*) FROM follower").fetchone() == (3,)
            if len(tries) == 2:
                reading.rollback()

        monkeypatch.setattr(feed, "wait", wait)
        versions.build()
    assert len(tries) == 2
    assert versions.old() is not None


# --- Redis -------------------------------------------------------------------------------------------------------------


def test_a_name_that_somebody_else_has_is_not_overwritten(
    redis_url: str, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(RedisTarget(redis_url), feed, opened)
    client = redis.Redis.from_url(redis_url)
    feed.tick([*ROWS, row(9)])
    client.rpush("follower:ch:9", "not ours")
    with raises(SinkError, sink="follower", name="follower:ch:9"):
        versions.build()
    assert client.lrange("follower:ch:9", 0, -1) == [b"not ours"]
    assert client.hget("follower:ch:1", "name") == b"a"
    client.delete("follower:ch:9")
    versions.build()
    assert client.hget("follower:ch:9", "name") == b"a"
    assert client.hget("~old~follower:ch:1", "name") == b"a"
    versions.drop_old()
    left = {name for name in client.scan_iter() if not name.startswith(b"follower:")}
    assert left == {b"headwater:position:follower"}
    client.close()


# --- folders -----------------------------------------------------------------------------------------------------------


def test_a_reader_of_an_index_sees_the_version_in_force(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target]
) -> None:
    versions = follow(SearchTarget(tmp_path / "index", text=("name",)), feed, opened)
    reader = SearchIndex(tmp_path / "index")
    assert reader.query("b").num_rows == 1
    feed.tick([row(1, "new"), row(2, "new")])
    done = versions.build()
    assert done.old == f"folder {tmp_path / 'index'}"
    assert (reader.query("b").num_rows, reader.query("new").num_rows) == (0, 2)
    versions.drop_old()
    assert SearchIndex(tmp_path / "index").query("new").num_rows == 2
    assert sorted(path.name for path in (tmp_path / "index").iterdir() if path.is_dir()) == ["version-1"]


def test_a_crash_after_two_folders_have_changed_places_is_seen_through(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = follow(ParquetTarget(tmp_path / "files"), feed, opened)
    feed.tick([*ROWS, row(4)])
    swap = folder_swap.exchange

    def crash(one: Path, other: Path) -> None:
        swap(one, other)
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(folder_swap, "exchange", crash)
        with pytest.raises(Crash):
            versions.build()
    assert pq.read_table(tmp_path / "files").num_rows == 4  # as any program reads it
    assert versions.old() == f"folder {tmp_path / 'files~old'}"
    assert pq.read_table(tmp_path / "files~old").num_rows == 3
    assert versions.back().rows == 4
    versions.drop_old()
    assert [path.name for path in tmp_path.iterdir()] == ["files"]


def test_a_file_system_that_cannot_exchange_folders_is_told_of(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = follow(ParquetTarget(tmp_path / "files"), feed, opened)

    def fail(one: Path, other: Path) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(folder_swap, "exchange", fail)
    with raises(SinkError, path=str(tmp_path / "files")):
        versions.build()
    assert pq.read_table(tmp_path / "files").num_rows == 3


# --- a lake ------------------------------------------------------------------------------------------------------------


def test_the_old_branch_can_be_read_and_its_files_go_when_it_does(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target]
) -> None:
    target = LakeTarget(tmp_path / "lake", "t", snapshots=3)
    versions = follow(target, feed, opened)
    feed.tick([row(1)])
    assert versions.build().old == "branch headwater_old"
    table = target._fresh()
    assert table.scan().to_arrow().num_rows == 1
    old = table.metadata.refs["headwater_old"].snapshot_id
    assert table.scan(snapshot_id=old).to_arrow().num_rows == 3
    applier = Applier(SHAPE, target, feed, ManualClock())
    for tick in range(12):  # many more snapshots than are kept
        feed.tick([row(1, f"at {tick}")])
        while applier.step():
            pass
    table = target._fresh()
    assert len(table.metadata.snapshots) <= 6
    assert table.scan(snapshot_id=old).to_arrow().num_rows == 3
    versions.drop_old()
    for tick in range(8):
        feed.tick([row(1, f"then {tick}")])
        while applier.step():
            pass
    table = target._fresh()
    assert old not in {snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    files = list((tmp_path / "lake").rglob("*.parquet"))
    assert len(files) <= 8, "files that only expired snapshots had are removed"


def test_two_branches_are_written_at_the_same_time(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are written stay written: only what names them is made again after the other branch."""
    in_force = LakeTarget(tmp_path / "lake", "t")
    versions = follow(LakeTarget(tmp_path / "lake", "t"), feed, opened)
    opened.append(in_force)
    applier = Applier(SHAPE, in_force, feed, ManualClock())
    commit, branches = lake.commit, []

    def concurrently(table: Any, edit: Any, manifests: Any, keep: int, branch: str, ours: Any) -> None:
        branches.append(branch)
        if branch == "headwater_new" and branches.count(branch) <= 2:
            feed.tick([*ROWS, row(4, str(len(branches)))])
            while applier.step():
                pass
        commit(table, edit, manifests, keep, branch, ours)

    monkeypatch.setattr(lake, "commit", concurrently)
    done = versions.build()
    new, main = "headwater_new", "main"
    assert branches == [
        new,
        main,
        new,
        main,
        new,
        new,
    ]  # the second was tried again, and was not written again
    assert (done.rows, done.tick) == (4, 3)
    assert len({s.sequence_number for s in in_force._fresh().metadata.snapshots if s.parent_snapshot_id}) == 4


def test_what_holds_nothing_cannot_be_built_anew(feed: ScriptedFeed) -> None:
    class Nothing:
        def prepare(self, shape: TargetShape) -> None:
            pass

    versions = Rebuilding(SHAPE, Nothing(), feed, ManualClock())  # type: ignore[arg-type]
    with raises(UsageError, sink=SHAPE.sink):
        versions.build()


def test_rows_that_a_new_version_refuses_are_told_of_by_the_one_who_keeps_it(feed: ScriptedFeed) -> None:
    """Two who tell of them at the same time would take each other's letters for their own."""
    place, clock = MemoryPlace(refuses=lambda row: "too bad" if row["name"] == "b" else None), ManualClock()
    told: list[Letters] = []
    applier = Applier(SHAPE, MemoryTarget(place), feed, clock, on_error="divert", letters=told.append)
    while applier.step():
        pass
    assert len(told) == 1
    clock.advance("1 second")
    assert Rebuilding(SHAPE, MemoryTarget(place), feed, clock, on_error="divert").build().rows == 2
    assert len(told) == 1
    feed.tick([*ROWS, row(4)])
    while applier.step():
        pass
    assert len({one.serial for one in told}) == 2
    assert all(one.rows.to_pylist() == [row(2, "b")] for one in told)
    assert len(place.rows) == 3


def test_an_index_goes_on_while_another_is_filled(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = SearchTarget(tmp_path / "index")
    follow(target, feed, opened)
    new = target.versions().target("new")
    opened.append(new)
    new.prepare(SHAPE)
    feed.tick([*ROWS, row(4)])
    applier = Applier(SHAPE, target, feed, ManualClock())
    thread = threading.Thread(target=applier.step)

    def fill(*_: Any) -> None:
        thread.start()
        thread.join(5)
        assert applier.status().tick == 2

    monkeypatch.setattr(new, "_apply", fill)
    new.apply(net([], SHAPE, new).change, None, SinkCheckpoint(2, "h", 0))
    thread.join()


def test_an_index_that_was_half_removed_is_made_anew(
    tmp_path: Path, feed: ScriptedFeed, opened: list[Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = follow(SearchTarget(tmp_path / "index"), feed, opened)
    target = SearchTarget(tmp_path / "index")
    opened.append(target)

    def crash(step: str) -> None:
        if step == "switching":
            raise Crash

    with pytest.raises(Crash):
        Rebuilding(SHAPE, target, feed, ManualClock(), on_step=crash).build()

    def half(folder: Path, *_: Any) -> None:
        for found in sorted(folder.glob("*"))[::2]:
            found.unlink()
        if folder.is_dir():
            raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("headwater.sinks.search.versions.remove_own", half)
        with pytest.raises(Crash):
            target.versions().drop("new")
    assert versions.build().rows == 3
    versions.drop_old()
    assert [path.name for path in (tmp_path / "index").iterdir() if path.is_dir()] == ["version-1"]
