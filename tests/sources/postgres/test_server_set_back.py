"""A server that was set back to an earlier state: what was read from it and is not there any more is never taken for what is."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import psycopg
import pytest

from headwater.core.errors import SlotError
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction
from headwater.sources.postgres.server.connection import lsn_text
from headwater.sources.postgres.server.stream_overlap import LastTransaction, Overlap
from tests.postgres import VERSION, PostgresServer
from tests.raising import raises
from tests.sources.pipelines import Follower, rows_in


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    yield server
    server.remove()


class Copies:
    """Copies of a server's files, as a volume's snapshots are."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.copy = server.folder / "copy"

    def take(self) -> None:
        """Copy the server as it is."""
        self.server.stop()
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.server.data, self.copy)
        self._own(self.copy)
        self.server.start()

    def restore(self, *, promoted: bool = False) -> None:
        """Set the server back; `promoted`: as a standby that had got so far and has become the primary."""
        self.server.stop()
        shutil.rmtree(self.server.data)
        shutil.copytree(self.copy, self.server.data)
        if promoted:
            (self.server.data / "standby.signal").touch()
        self._own(self.server.data)
        self.server.start()
        if promoted:
            with psycopg.connect(self.server.url(), autocommit=True) as session:
                assert session.execute("SELECT pg_promote()").fetchone() == (True,)

    def _own(self, folder: Path) -> None:
        user = self.server._as_user
        if user:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, user["user"], user["group"])
        folder.chmod(0o700)


def write(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as session:
        for statement in statements:
            session.execute(statement)  # type: ignore[call-overload]


def contents(url: str) -> dict[Any, Any]:
    with psycopg.connect(url, autocommit=True) as session:
        return rows_in(session, "orders")


FILL = "SELECT pg_logical_emit_message(false, 'x', repeat('x', 100000))"


def test_a_server_that_was_set_back_is_noticed_however_far_it_has_gone_on(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = server.make_database("back")
    write(url, "CREATE TABLE orders (id int PRIMARY KEY, n int)", "INSERT INTO orders VALUES (1, 1)")
    follower = Follower(url, tmp_path, {"tables": "orders"})
    follower.follow()
    write(url, "INSERT INTO orders VALUES (2, 2)")
    follower.follow()
    follower.close()
    copies = Copies(server)
    copies.take()
    at_copy = deepcopy((follower.position, follower.sequence, follower.contents))
    write(url, "INSERT INTO orders VALUES (3, 3)", "DELETE FROM orders WHERE id = 1")
    follower.follow()  # the same server, started again
    follower.close()
    assert follower.contents["orders"] == contents(url)
    ahead = deepcopy((follower.position, follower.sequence, follower.contents))

    def difference() -> set[str]:
        with raises(SlotError, reason="set back") as caught:
            follower.follow()
        assert "ALTER SOURCE shop RESTART" in str(caught.value.hint)
        follower.close()
        return caught.value.facts.keys() & {"server_lsn", "timeline", "xid"}

    copies.restore()
    assert difference() == {"server_lsn"}
    write(url, FILL, "INSERT INTO orders VALUES (4, 4)")
    assert difference() == {"xid"}
    follower.options["on_gap"] = "snapshot"
    follower.follow()  # its log is longer by now: the positions of a new slot rise
    write(url, "UPDATE orders SET n = 9 WHERE id = 4")
    follower.follow()
    follower.close()
    assert follower.contents["orders"] == contents(url)

    del follower.options["on_gap"]
    copies.restore(promoted=True)
    write(url, FILL, "INSERT INTO orders VALUES (6, 6)")
    follower.position, follower.sequence, follower.contents = ahead
    assert difference() == {"timeline"}
    follower.position, follower.sequence, follower.contents = at_copy
    follower.follow()  # all that was taken in is there on the new timeline
    assert follower.contents["orders"] == contents(url)
    assert follower.position is not None
    assert follower.position["timeline"] == 2
    follower.close()


class Standby(PostgresServer):
    """A standby of a server, which keeps the slots that are to survive it."""

    def __init__(self, primary: PostgresServer) -> None:
        self._primary = primary
        write(primary.url(), "SELECT pg_create_physical_replication_slot('standby', true)")
        super().__init__(primary.version)

    def _create(self) -> None:
        where = ["-h", str(self._primary.folder), "-p", str(self._primary.port), "-U", "postgres"]
        how = ["-D", str(self.data), "-X", "stream", "-S", "standby", "-c", "fast", "--no-sync", "-R"]
        done = subprocess.run(
            [str(self.programs / "pg_basebackup"), *where, *how, "-d", "dbname=postgres"],
            cwd=self.folder,
            capture_output=True,
            **self._as_user,
        )
        assert done.returncode == 0, done.stderr.decode()
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as conf:
            conf.write("hot_standby_feedback = on\nprimary_slot_name = 'standby'\n")

    def has(self, database: str, slot: str, lsn: int) -> bool:
        """Whether it has the log up to there, and a slot that the next primary can go on with."""
        with psycopg.connect(self.url(), autocommit=True) as session:
            replayed = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            while session.execute(replayed, [lsn_text(lsn)]).fetchone() != (True,):
                pass
            session.execute("SELECT pg_sync_replication_slots()")
            kept = "SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s AND database = %s"
            return session.execute(kept, [slot, database]).fetchone() == (True,)


@pytest.mark.long
@pytest.mark.skipif(VERSION < 17, reason="slots are kept by standbys since Postgres 17")
def test_a_standby_with_the_slot_goes_on_unless_it_lacks_what_was_taken_in(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = server.make_database("failing")
    write(url, "CREATE TABLE orders (id int PRIMARY KEY, n int)", "INSERT INTO orders VALUES (1, 1)")
    follower = Follower(url, tmp_path, {"tables": "orders", "failover": True})
    follower.follow()
    standby = Standby(server)
    try:
        write(url, "INSERT INTO orders VALUES (2, 2)")
        for _ in range(30):  # a slot is kept once it has moved beyond where the standby began
            write(url, "SELECT pg_log_standby_snapshot()", "UPDATE orders SET n = n + 1 WHERE id = 2")
            follower.follow()
            for _ in range(10):  # the server is told of it, and moves the slot behind everything that is old
                follower.step()
            if standby.has("failing", "headwater_shop", follower.sequence):
                break
        else:
            raise AssertionError("the standby does not keep the slot")
        follower.close()
        at_standby = deepcopy((follower.position, follower.sequence, follower.contents))
        standby.stop()
        write(url, "INSERT INTO orders VALUES (3, 3)")
        follower.follow()
        follower.close()
        server.stop()

        standby.start()
        write(standby.url(), "SELECT pg_promote()")
        follower.url = standby.url("failing")
        write(follower.url, "DELETE FROM orders WHERE id = 1", FILL)
        with raises(SlotError, reason="set back", timeline=2):
            follower.follow()
        follower.close()
        follower.position, follower.sequence, follower.contents = at_standby
        follower.follow()
        assert follower.contents["orders"] == contents(follower.url)
    finally:
        follower.close()
        standby.remove()
        if server._process is None:
            server.start()


ANCHOR = LastTransaction(lsn=80, xid=7, time_us=5)


@pytest.mark.parametrize(
    ("confirmed", "comes", "is_same"),
    [
        (100, [], True),  # the server was told of all of it
        (100, [110], True),
        (50, [(70, 6), (80, 7), 110], True),
        (50, [(70, 6), 80, (80, 7), 90, 110], True),
        (50, [(70, 6), 90], False),  # the anchor does not come
        (50, [(80, 8)], False),
        (50, [(80, 7), (90, 8)], False),  # one that the position does not know
        (85, [(90, 8)], False),
    ],
)
def test_what_the_server_sends_again_is_what_was_taken_in(
    confirmed: int, comes: list[int | tuple[int, int]], is_same: bool
) -> None:
    overlap = Overlap("shop", "slot", ANCHOR, 100, confirmed)
    with nullcontext() if is_same else raises(SlotError, reason="set back"):
        for one in comes:
            if isinstance(one, int):
                overlap.reached(one)
            else:
                overlap.reached(one[0])
                overlap.again(CapturedTransaction(one[1], one[0], 5))
