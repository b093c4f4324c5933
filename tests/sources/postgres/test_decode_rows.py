"""What a real server sends, decoded: every kind of change, in order, few and many, equal to what SELECT shows."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.catalog.conform import op_names
from headwater.catalog.definitions import CAPTURED
from headwater.core.errors import CorruptionError
from headwater.sources.postgres.decode import decode_rows
from headwater.sources.postgres.decode.copy_format import decode_copy
from headwater.sources.postgres.decode.decode_rows import DecodedRows, decode, stamped
from headwater.sources.postgres.decode.pgoutput import (
    Begin,
    BeginPrepare,
    CommitMessage,
    CommitPrepared,
    Keepalive,
    LogicalMessage,
    OriginMessage,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    TypeName,
    unpack,
)
from headwater.sources.postgres.decode.row_buffer import CapturedTransaction, RowBuffer, RowRun
from tests.postgres import VERSION
from tests.raising import raises
from tests.sources.replaying import ENVELOPE, Replay, replay

BIG = "x".join(str(n) for n in range(4_000))
"""Long, and not to be compressed to little: Postgres keeps it apart from the row."""


def rows_of(changes: DecodedRows) -> list[tuple[Any, ...]]:
    """The rows with the name of what happened first, without where they come from."""
    columns = [
        changes.batch[name].to_pylist()
        for name in changes.batch.schema.names
        if name != "_op" and name not in CAPTURED.names
    ]
    return list(zip(op_names(changes.batch["_op"]).to_pylist(), *columns, strict=True))


@pytest.fixture(params=["one by one", "in vectors"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are: taken apart in one way, then in the other."""
    monkeypatch.setattr(decode_rows, "_FEW", 0 if request.param == "in vectors" else 1 << 30)


pytestmark = pytest.mark.usefixtures("either_way")


def test_inserts_updates_and_deletes_come_in_order_and_say_where_they_come_from(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, name text, n bigint)")
        database.run("INSERT INTO t VALUES (1, 'a', NULL), (2, '', 5)")
        database.run("UPDATE t SET n = 7 WHERE id = 1")
        database.run("DELETE FROM t WHERE id = 2")
        told = database.feed()
        (run,) = database.gathering.take()
        changes = decode(run, database.table(run.relation))
        assert rows_of(changes) == [
            ("insert", 1, "a", None),
            ("insert", 2, "", 5),
            ("update", 1, "a", 7),
            ("delete", 2, None, None),
        ]
        begins, commits = ([m for m in told if isinstance(m, kind)] for kind in (Begin, CommitMessage))
        assert [type(m) for m in told] == [
            Begin,
            RelationMessage,
            CommitMessage,
            Begin,
            CommitMessage,
            Begin,
            CommitMessage,
        ]
        places = [0, 0, 1, 2]
        assert changes.batch["_transaction"].to_pylist() == [begins[p].xid for p in places]
        assert changes.batch["_source_position"].to_pylist() == [commits[p].end for p in places]
        times = changes.batch["_source_time"].to_pylist()
        ((now,),) = database.run("SELECT now()")
        assert times == sorted(times)
        assert abs(now - times[-1]) < dt.timedelta(minutes=1)
        assert changes.subxids is None
        assert not changes.unchanged


def test_a_change_of_key_is_a_delete_and_an_insert(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (v text, a int, b text, PRIMARY KEY (b, a))")
        database.run("INSERT INTO t VALUES ('v', 1, 'x'), ('w', 2, 'y')")
        database.run("UPDATE t SET a = 3 WHERE a = 1")
        database.run("UPDATE t SET v = 'z' WHERE a = 3")
        database.run("UPDATE t SET a = a + 10, b = b || b")
        changes = database.only_changes()
        assert rows_of(changes) == [
            ("insert", "v", 1, "x"),
            ("insert", "w", 2, "y"),
            ("delete", None, 1, "x"),
            ("insert", "v", 3, "x"),
            ("update", "z", 3, "x"),
            ("delete", None, 2, "y"),
            ("insert", "w", 12, "yy"),
            ("delete", None, 3, "x"),
            ("insert", "z", 13, "xx"),
        ]
        assert changes.fill_from.tolist() == [0, 1, 2, 2, 4, 5, 5, 7, 7]
        transactions = changes.batch["_transaction"].to_pylist()
        assert transactions[2] == transactions[3]
        assert len(set(transactions)) == 4


def test_full_identity_tells_the_key_from_the_rest(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text); ALTER TABLE t REPLICA IDENTITY FULL")
        database.run("INSERT INTO t VALUES (1, 'a')")
        database.run("UPDATE t SET v = NULL")
        database.run("UPDATE t SET id = 2, v = 'b'")
        database.run("DELETE FROM t")
        assert rows_of(database.only_changes()) == [
            ("insert", 1, "a"),
            ("update", 1, None),
            ("delete", 1, None),
            ("insert", 2, "b"),
            ("delete", 2, None),
        ]


def test_identity_by_an_index_makes_its_columns_the_key(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL)")
        database.run("CREATE UNIQUE INDEX by_code ON t (code)")
        database.run("ALTER TABLE t REPLICA IDENTITY USING INDEX by_code")
        database.run("INSERT INTO t VALUES (1, 'a')")
        database.run("UPDATE t SET id = 2")
        database.run("UPDATE t SET code = 'b'")
        database.run("DELETE FROM t")
        database.feed()
        (run,) = database.gathering.take()
        table = database.table(run.relation)
        assert table.key == ("code",)
        assert rows_of(decode(run, table)) == [
            ("insert", 1, "a"),
            ("update", 2, "a"),
            ("delete", None, "a"),
            ("insert", 2, "b"),
            ("delete", None, "b"),
        ]


def test_a_table_without_a_key_gives_whole_rows(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (v text, n int); ALTER TABLE t REPLICA IDENTITY FULL")
        database.run("INSERT INTO t VALUES ('a', 1)")
        database.run("UPDATE t SET n = 2")
        database.run("DELETE FROM t")
        assert rows_of(database.only_changes()) == [
            ("insert", "a", 1),
            ("update", "a", 2),
            ("delete", "a", 2),
        ]


def test_values_that_were_not_sent_are_told_by_row_and_column(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, big text, n int)")
        database.run("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
        database.run("INSERT INTO t VALUES (1, %s, 0), (2, 'small', 0)", BIG)
        database.run("UPDATE t SET n = 1")
        database.run("UPDATE t SET big = %s WHERE id = 2", BIG)
        database.run("UPDATE t SET id = id + 10")
        changes = database.only_changes()
        assert rows_of(changes) == [
            ("insert", 1, BIG, 0),
            ("insert", 2, "small", 0),
            ("update", 1, None, 1),
            ("update", 2, "small", 1),
            ("update", 2, BIG, 1),
            ("delete", 1, None, None),
            ("insert", 11, None, 1),
            ("delete", 2, None, None),
            ("insert", 12, None, 1),
        ]
        assert {name: np.flatnonzero(mask).tolist() for name, mask in changes.unchanged.items()} == {
            "big": [2, 6, 8]
        }
        assert changes.fill_from[[2, 6, 8]].tolist() == [2, 5, 7]


def test_values_that_were_not_sent_are_taken_from_the_old_row_where_it_is_there(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run(
            "CREATE TABLE t (id int PRIMARY KEY, big text, n int); ALTER TABLE t REPLICA IDENTITY FULL"
        )
        database.run("ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL")
        database.run("INSERT INTO t VALUES (1, %s, 0), (2, NULL, 0)", BIG)
        database.run("UPDATE t SET n = 1")
        database.run("UPDATE t SET id = id + 10")
        changes = database.only_changes()
        assert rows_of(changes) == [
            ("insert", 1, BIG, 0),
            ("insert", 2, None, 0),
            ("update", 1, BIG, 1),
            ("update", 2, None, 1),
            ("delete", 1, None, None),
            ("insert", 11, BIG, 1),
            ("delete", 2, None, None),
            ("insert", 12, None, 1),
        ]
        assert not changes.unchanged


def test_a_key_that_was_not_sent_is_the_old_one(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id text PRIMARY KEY, n int)")
        database.run("ALTER TABLE t ALTER COLUMN id SET STORAGE EXTERNAL")
        key = "k" * 2_500  # kept apart, and still short enough for the index
        database.run("INSERT INTO t VALUES (%s, 1)", key)
        database.run("UPDATE t SET n = 2")
        database.run("DELETE FROM t")
        changes = database.only_changes()
        assert rows_of(changes) == [("insert", key, 1), ("update", key, 2), ("delete", key, None)]
        assert not changes.unchanged


def test_messages_besides_rows_are_told_in_their_place(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run(
            "CREATE TYPE mood AS ENUM ('sad'); CREATE TABLE t (id int PRIMARY KEY, m mood); CREATE TABLE u (v int)"
        )
        with database.session.transaction():
            database.run("INSERT INTO t VALUES (1, 'sad')")
            database.run("TRUNCATE t, u RESTART IDENTITY CASCADE")
            database.run("SELECT pg_logical_emit_message(true, 'mark', 'hällo')")
        database.run("SELECT pg_logical_emit_message(false, 'now', %s::bytea)", b"\x00\xff")
        database.run("INSERT INTO t VALUES (2, NULL)")
        told = database.feed()
        # Truncated, a table is described once more; a message that is of no transaction comes before all that end later.
        whole = [
            Begin,
            TypeName,
            RelationMessage,
            TypeName,
            RelationMessage,
            RelationMessage,
            Truncate,
            LogicalMessage,
            CommitMessage,
        ]
        assert [type(m) for m in told] == [
            *whole,
            LogicalMessage,
            Begin,
            TypeName,
            RelationMessage,
            CommitMessage,
        ]
        _, name, t, _, again, u, truncate, first, _, last, *_ = told
        assert isinstance(name, TypeName)
        assert isinstance(t, RelationMessage)
        assert isinstance(u, RelationMessage)
        assert (name.namespace, name.name, name.oid) == ("public", "mood", t.columns[1].type_oid)
        assert (t.table, t.identity, [c.key for c in t.columns]) == ("public.t", "d", [True, False])
        assert again == t
        assert truncate == Truncate((t.oid, u.oid), cascade=True, restart_identity=True)
        assert database.gathering.relation(t.oid) is t
        assert database.gathering.relation(1) is None
        assert isinstance(first, LogicalMessage)
        assert (first.transactional, first.prefix, first.content.decode()) == (True, "mark", "hällo")
        assert isinstance(last, LogicalMessage)
        assert (last.transactional, last.prefix, last.content) == (False, "now", b"\x00\xff")
        commit = told[8]
        assert isinstance(commit, CommitMessage)
        assert told[0].lsn == commit.lsn < commit.end  # type: ignore[union-attr]


def test_a_replicated_transaction_tells_its_origin(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY)")
        origin = "elsewhere_" + postgres_url.split("?")[0].rsplit("/", 1)[1]
        database.run("SELECT pg_replication_origin_create(%s)", origin)
        database.run("SELECT pg_replication_origin_session_setup(%s)", origin)
        database.run("INSERT INTO t VALUES (1)")
        database.run("SELECT pg_replication_origin_session_reset()")
        assert [m.name for m in database.feed("origin", "any") if isinstance(m, OriginMessage)] == [origin]
        database.run("SELECT pg_replication_origin_drop(%s)", origin)


def test_keepalives_are_read() -> None:
    data = b"k" + (0x16_0000_0001).to_bytes(8, "big") + (1_000_000).to_bytes(8, "big") + b"\x01"
    assert unpack(data) == Keepalive(0x16_0000_0001, 946_684_801_000_000, reply=True)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"w" + bytes(24),
        b"k\x00",
        ENVELOPE + b"B\x00",
        ENVELOPE + b"?",
        ENVELOPE + b"R\x00\x00\x00\x01abc",
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with raises(CorruptionError, reason="message"):
        unpack(data)


def test_rows_that_are_cut_off_or_of_an_unknown_table_are_refused(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        database.run("INSERT INTO t VALUES (1, 'abc')")
        messages = database.messages()
        row = next(m for m in messages if m[25] == ord("I"))
        with raises(CorruptionError, reason="undescribed-table"):
            RowBuffer().feed(row)
        for message in messages:
            database.gathering.feed(message)
        (run,) = database.gathering.take()
        table = database.table(run.relation)
        value = b"t\x00\x00\x00\x03abc"
        others = (row.replace(value, other + value[1:]) for other in (b"b", b"n"))
        lengths = (
            row.replace(value, b"t" + length + b"abc") for length in (b"\xff" * 4, b"\x7f\xff\xff\xff")
        )
        for wrong in (row[:-1], row[:31], row + b"n", *others, *lengths):
            with pytest.raises(CorruptionError):
                decode(RowRun(run.relation, messages=[row, wrong, row]), table)


def test_a_changed_table_begins_a_new_run_and_a_repeated_description_does_not(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        database.run("INSERT INTO t VALUES (1, 'a')")
        database.run(
            "ALTER TABLE t ALTER COLUMN v SET STATISTICS 10"
        )  # described again, though nothing differs
        database.run("INSERT INTO t VALUES (2, 'b')")
        with database.session.transaction():
            database.run("INSERT INTO t VALUES (3, 'c')")
            database.run("ALTER TABLE t DROP COLUMN v, ADD COLUMN w int DEFAULT 5")
            database.run("INSERT INTO t VALUES (4)")
        told = database.feed()
        assert sum(isinstance(m, RelationMessage) for m in told) == 3
        first, second = database.gathering.take()
        assert [c.name for c in first.relation.columns] == ["id", "v"]
        assert [c.name for c in second.relation.columns] == ["id", "w"]
        assert rows_of(decode(first, database.table(first.relation))) == [
            ("insert", 1, "a"),
            ("insert", 2, "b"),
            ("insert", 3, "c"),
        ]
        assert rows_of(decode(second, database.table(second.relation))) == [("insert", 4, 5)]


def test_what_is_kept_is_counted_and_taken_once(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)")
        database.run("INSERT INTO t SELECT generate_series(1, 10)")
        database.run("INSERT INTO u VALUES (1)")
        database.feed()
        gathering = database.gathering
        assert gathering.rows == 11
        assert gathering.bytes > 11 * 30
        assert [len(run.messages) for run in gathering.take()] == [10, 1]
        assert (gathering.rows, gathering.bytes, gathering.take()) == (0, 0, [])


def streaming(database: Replay) -> None:
    database.run("SET logical_decoding_work_mem = '64kB'")


def test_a_streamed_transaction_is_kept_apart_without_what_was_rolled_back(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        streaming(database)
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with database.session.transaction():
            database.run("INSERT INTO t SELECT n, repeat('a', 100) FROM generate_series(1, 1000) n")
            with database.session.transaction() as inner:
                database.run("INSERT INTO t SELECT n, repeat('b', 100) FROM generate_series(1001, 2000) n")
                with psycopg.connect(postgres_url, autocommit=True) as other:
                    other.execute("INSERT INTO t VALUES (5000, 'other')")
                raise psycopg.Rollback(inner)
            with database.session.transaction():
                database.run("INSERT INTO t SELECT n, repeat('c', 100) FROM generate_series(2001, 3000) n")
        told = database.feed("streaming", "on")
        (commit,) = (m for m in told if isinstance(m, StreamCommit))
        assert {StreamStart, StreamStop, RelationMessage, Begin, CommitMessage} <= {type(m) for m in told}
        plain, streamed = database.gathering.take(), database.gathering.take(commit.xid)
        assert [rows_of(decode(run, database.table("t"))) for run in plain] == [[("insert", 5000, "other")]]
        ids, found = [], set()
        for run in streamed:
            changes = decode(run, database.table(run.relation))
            ids += changes.batch["id"].to_pylist()
            assert changes.subxids is not None
            found |= set(changes.subxids.tolist())
            assert set(changes.batch["_transaction"].to_pylist()) == {commit.xid}
            assert set(changes.batch["_source_position"].to_pylist()) == {commit.end}
        assert ids == [*range(1, 1001), *range(2001, 3001)]
        assert commit.xid in found
        assert len(found) == 2
        database.gathering.end(commit.xid, committed=True)
        assert database.gathering.rows == 0


def test_rows_taken_before_their_transaction_ends_are_told_apart_and_stamped_later(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        streaming(database)
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with database.session.transaction():
            with database.session.transaction() as inner:
                database.run("INSERT INTO t SELECT n, repeat('a', 100) FROM generate_series(1, 3000) n")
                raise psycopg.Rollback(inner)
            database.run("INSERT INTO t SELECT n, repeat('b', 100) FROM generate_series(1, 3000) n")
        taken: list[DecodedRows] = []
        aborted: set[int] = set()
        for data in database.messages("streaming", "on"):
            message = database.gathering.feed(data)
            if isinstance(message, StreamAbort):
                aborted.add(message.subxid)
            if isinstance(message, StreamCommit):
                commit = message
            elif database.gathering.rows > 500:
                for xid in list(database.gathering._others):
                    taken += [
                        decode(run, database.table(run.relation)) for run in database.gathering.take(xid)
                    ]
        taken += [decode(run, database.table(run.relation)) for run in database.gathering.take(commit.xid)]
        ids = []
        for changes in taken:
            assert changes.batch.schema.names == ["id", "v", "_op"]
            assert changes.subxids is not None
            kept = changes.batch.filter(pa.array(~np.isin(changes.subxids, list(aborted))))
            whole = stamped(kept, CapturedTransaction(commit.xid, commit.end, commit.time_us))
            assert whole.schema.names == ["id", "v", "_op", *CAPTURED.names]
            ids += whole["id"].to_pylist()
        assert ids == list(range(1, 3001))
        assert len(aborted) == 1


def test_a_table_that_only_a_rolled_back_part_touched_is_not_handed_over(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        streaming(database)
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
        with database.session.transaction():
            database.run("INSERT INTO t SELECT n, repeat('a', 100) FROM generate_series(1, 1000) n")
            with database.session.transaction() as inner:
                database.run("INSERT INTO u SELECT generate_series(1, 1000)")
                database.run("INSERT INTO t SELECT n, repeat('b', 100) FROM generate_series(1001, 2000) n")
                raise psycopg.Rollback(inner)
        (commit,) = (m for m in database.feed("streaming", "on") if isinstance(m, StreamCommit))
        assert {run.relation.name for run in database.gathering.take(commit.xid)} == {"t"}


def test_a_streamed_transaction_that_is_rolled_back_leaves_nothing(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        streaming(database)
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text)")
        with psycopg.connect(postgres_url) as other:
            other.execute("INSERT INTO t SELECT n, repeat('a', 100) FROM generate_series(1, 2000) n")
            database.run("CHECKPOINT")  # what is not in the files of the WAL is not decoded
            begun = database.feed("streaming", "on")
            xids = {message.xid for message in begun if isinstance(message, StreamStart)}
            assert len(xids) == 1
            assert database.gathering.rows
            other.rollback()
        # a call of SQL is a session by itself, which does not end the streams of another: the abort is one as a server sends it
        (xid,) = xids
        abort = database.gathering.feed(ENVELOPE + b"A" + struct.pack(">II", xid, xid))
        assert abort == StreamAbort(xid, xid)
        database.run("INSERT INTO t VALUES (1, 'kept')")
        database.feed("streaming", "on")
        assert [rows_of(decode(run, database.table("t"))) for run in database.gathering.take()] == [
            [("insert", 1, "kept")]
        ]
        assert database.gathering.rows == 0


def test_a_table_changed_within_a_streamed_transaction_is_known_to_others_when_it_is_committed(
    postgres_url: str,
) -> None:
    with replay(postgres_url) as database:
        streaming(database)
        database.run("CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY)")
        database.run("INSERT INTO t VALUES (0, 'first')")
        with database.session.transaction():
            database.run("ALTER TABLE t ADD COLUMN w int")
            database.run("INSERT INTO t SELECT n, repeat('a', 100), n FROM generate_series(1, 2000) n")
        gathering = database.gathering
        for data in database.messages("streaming", "on"):
            message = gathering.feed(data)
            if isinstance(message, StreamStop):
                (plain,) = gathering._plain.relations.values()
                assert len(plain.columns) == 2
            elif isinstance(message, StreamCommit):
                assert {len(run.relation.columns) for run in gathering.take(message.xid)} == {3}
                gathering.end(message.xid, committed=True)
        (plain,) = gathering._plain.relations.values()
        assert len(plain.columns) == 3


def test_prepared_transactions_are_kept_apart_until_it_is_known_what_becomes_of_them(
    postgres_url: str,
) -> None:
    with replay(postgres_url, two_phase=True) as database:
        database.run("CREATE TABLE t (id int PRIMARY KEY)")
        name = postgres_url.split("?")[0].rsplit("/", 1)[1]
        for at, outcome in ((1, "COMMIT"), (2, "ROLLBACK")):
            database.run("BEGIN")
            database.run(f"INSERT INTO t VALUES ({at})")
            database.run(f"PREPARE TRANSACTION '{name}_{at}'")
            database.run("INSERT INTO t VALUES (%s)", 10 + at)
            told = database.feed()
            (begin,) = (m for m in told if isinstance(m, BeginPrepare))
            (prepared,) = (m for m in told if isinstance(m, Prepare))
            assert (prepared.xid, prepared.gid, prepared.streamed) == (begin.xid, f"{name}_{at}", False)
            assert [rows_of(decode(r, database.table("t"))) for r in database.gathering.take()] == [
                [("insert", 10 + at)]
            ]
            database.run(f"{outcome} PREPARED '{name}_{at}'")
            (done,) = (m for m in database.feed() if isinstance(m, (CommitPrepared, RollbackPrepared)))
            assert (done.xid, done.gid) == (begin.xid, prepared.gid)
            assert isinstance(done, CommitPrepared) == (outcome == "COMMIT")
            runs = database.gathering.take(done.xid)
            assert [rows_of(decode(r, database.table("t"))) for r in runs] == [[("insert", at)]]


def test_partitioned_tables_and_generated_columns_come_as_published(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run(
            "CREATE TABLE p (id int PRIMARY KEY, n int, twice int GENERATED ALWAYS AS (n * 2) STORED) PARTITION BY RANGE (id)"
        )
        database.run("CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)")
        database.run("CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)")
        database.run("INSERT INTO p VALUES (1, 5), (11, 6)")
        database.run("UPDATE p SET id = 12 WHERE id = 1")
        changes = database.only_changes()
        assert rows_of(changes) == [
            ("insert", 1, 5),
            ("insert", 11, 6),
            ("delete", 1, None),
            ("insert", 12, 5),
        ]
        assert database.table("p").schema.names == ["id", "n", "_op"]
        if VERSION < 18:
            return
        database.run("ALTER PUBLICATION everything SET (publish_generated_columns = stored)")
        database.run("INSERT INTO p VALUES (3, 7)")
        assert rows_of(database.only_changes()) == [("insert", 3, 7, 14)]


_TEXTS = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
) | st.sampled_from(["\\", "\\N", "\\.", "\t\n", "NULL", "{}", '"', BIG, "ü" * 3000])
_VALUES: dict[str, tuple[str, st.SearchStrategy[Any]]] = {
    "t": ("text", _TEXTS),
    "big": ("text", _TEXTS),
    "b": ("boolean", st.booleans()),
    "i": ("bigint", st.integers(-(2**63), 2**63 - 1)),
    "f": ("float8", st.floats(allow_nan=False)),
    "n": ("numeric(20,4)", st.decimals(-(10**15), 10**15, places=4)),
    "d": ("date", st.dates()),
    "z": (
        "timestamptz",
        st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30), timezones=st.just(dt.UTC)),
    ),
    "y": ("bytea", st.binary(max_size=20)),
    "u": ("uuid", st.uuids().map(str)),
    "a": ("bigint[]", st.lists(st.integers(-5, 5) | st.none(), max_size=4)),
    "s": ("text[]", st.lists(_TEXTS | st.none(), max_size=4)),
}
_ROWS = st.fixed_dictionaries({name: values | st.none() for name, (_, values) in _VALUES.items()})
_STEPS = st.lists(
    st.tuples(st.just("insert"), st.integers(0, 5), _ROWS)
    | st.tuples(st.just("update"), st.integers(0, 5), st.sampled_from(sorted(_VALUES)), _ROWS)
    | st.tuples(st.just("move"), st.integers(0, 5), st.integers(0, 5))
    | st.tuples(st.just("delete"), st.integers(0, 5)),
    min_size=1,
    max_size=12,
)


def do(database: Replay, step: tuple[Any, ...]) -> None:
    """One step, as SQL; it may find nothing to do."""
    match step:
        case "insert", key, row:
            columns, marks = ", ".join(row), ", ".join(f"%s::{_VALUES[name][0]}" for name in row)
            database.run(
                f"INSERT INTO t (id, {columns}) VALUES (%s, {marks}) ON CONFLICT DO NOTHING",
                key,
                *row.values(),
            )
        case "update", key, name, row:
            database.run(f"UPDATE t SET {name} = %s::{_VALUES[name][0]} WHERE id = %s", row[name], key)
        case "move", key, other:
            database.run(
                "UPDATE t SET id = %s WHERE id = %s AND NOT EXISTS (SELECT FROM t WHERE id = %s)",
                other,
                key,
                other,
            )
        case "delete", key:
            database.run("DELETE FROM t WHERE id = %s", key)


def apply(state: dict[int, dict[str, Any]], changes: DecodedRows) -> None:
    """Keep a table by the rule that consumers have: each row replaces the last of its key, a delete removes it."""
    earlier: dict[int, dict[str, Any]] = {}
    for at, row in enumerate(changes.batch.to_pylist()):
        missing = [name for name, mask in changes.unchanged.items() if mask[at]]
        source = int(changes.fill_from[at])
        for name in missing:
            row[name] = (state[row["id"]] if source == at else earlier[source])[name]
        if changes.batch["_op"][at].as_py() == decode_rows.DELETE:
            earlier[at] = state.pop(row["id"])
        else:
            state[row["id"]] = {name: row[name] for name in ("id", *_VALUES)}


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_any_changes_of_any_values_decoded_make_the_table_that_select_shows(
    postgres_url: str, identity: str
) -> None:
    with replay(postgres_url) as database:
        columns = ", ".join(f"{name} {kind}" for name, (kind, _) in _VALUES.items())
        database.run(f"CREATE TABLE t (id int PRIMARY KEY, {columns})")
        database.run(f"ALTER TABLE t ALTER COLUMN big SET STORAGE EXTERNAL, REPLICA IDENTITY {identity}")
        state: dict[int, dict[str, Any]] = {}
        names = ", ".join(["id", *_VALUES])

        @given(st.lists(_STEPS, min_size=1, max_size=3))
        @settings(max_examples=40)
        def check(transactions: list[list[tuple[Any, ...]]]) -> None:
            database.run("DELETE FROM t")
            database.changes()
            state.clear()
            for steps in transactions:
                with database.session.transaction():
                    for step in steps:
                        do(database, step)
            for changes in database.changes():
                changes.batch.validate(full=True)
                apply(state, changes)
            rows = database.run(f"SELECT {names} FROM t").fetchall()
            shown = {row[0]: dict(zip(("id", *_VALUES), map(plain, row), strict=True)) for row in rows}
            assert state == shown
            copied = {row.pop("id"): row for row in database.copy("t").to_pylist()}
            assert {key: {**row, "id": key} for key, row in copied.items()} == {
                key: {**row, "_op": decode_rows.SNAPSHOT} for key, row in shown.items()
            }

        check()


def plain(value: Any) -> Any:
    """A value as the driver gives it, as Arrow gives it."""
    return str(value) if type(value).__name__ == "UUID" else value


def test_copy_of_any_texts_is_exact(postgres_url: str) -> None:
    letters = st.text(st.sampled_from("\\\t\n\rNbfnrtv0x.é\b\f\v "), max_size=6) | st.none()
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (a text, b text)")

        @given(st.lists(st.tuples(letters, letters), max_size=6))
        @settings(max_examples=60)
        def check(rows: list[tuple[str | None, str | None]]) -> None:
            database.run("TRUNCATE t")
            for row in rows:
                database.run("INSERT INTO t VALUES (%s, %s)", *row)
            copied = database.copy("t")
            assert list(zip(copied["a"].to_pylist(), copied["b"].to_pylist(), strict=True)) == rows

        check()
        with raises(CorruptionError, table="public.t", columns=2):
            decode_copy([b"a\n"], database.table("t"))
        with raises(CorruptionError, table="public.t", columns=2):
            decode_copy([b"a\tb"], database.table("t"))
        with raises(CorruptionError, table="public.t", columns=2):
            decode_copy([b"a\nb\tc\td\n"], database.table("t"))


def test_decimals_keep_their_scale(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (n numeric(6,3))")
        database.run("INSERT INTO t VALUES (1), (-0.5), (999.999)")
        assert database.only_changes().batch["n"].to_pylist() == [
            Decimal("1.000"),
            Decimal("-0.500"),
            Decimal("999.999"),
        ]
