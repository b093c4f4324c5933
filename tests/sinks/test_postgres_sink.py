"""A table of a real Postgres as a sink's target: the contract, types, existing tables, and what the server refuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from headwater.core.clock import ManualClock, to_us
from headwater.core.errors import UsageError
from headwater.core.types import parse_type
from headwater.sinks.base.applier import Applier, refuse_occupied
from headwater.sinks.base.sink_verify import check
from headwater.sinks.base.target import Since, SinkError, Target, TargetDownError, TargetShape
from headwater.sinks.postgres.target import PostgresTarget
from headwater.testing.sinks import ScriptedFeed, SinkContract
from tests.postgres import PostgresServer
from tests.raising import raises

BREAKING = """
    CREATE FUNCTION breaking() RETURNS trigger LANGUAGE plpgsql AS
      $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END $$;
    CREATE TRIGGER breaking BEFORE INSERT OR UPDATE ON headwater_positions FOR EACH ROW EXECUTE FUNCTION breaking();
"""


class TestPostgresTarget(SinkContract):
    @pytest.fixture(autouse=True)
    def _place(self, postgres_server: PostgresServer, postgres_url: str) -> None:
        self.server, self.url = postgres_server, postgres_url

    def make_target(self) -> Target:
        return PostgresTarget(self.url, "follower")

    def do(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as session:
            found = session.execute(statement)
            return found.fetchall() if found.description else []

    @contextmanager
    def break_within(self) -> Iterator[None]:
        self.target.prepare(self.shape)
        self.do(BREAKING)
        yield
        self.do("DROP FUNCTION breaking CASCADE")

    def take_down(self) -> None:
        self.server.stop()

    def bring_up(self) -> None:
        self.server.start()

    def back_up(self) -> Any:
        return self.do("SELECT * FROM follower"), self.do("SELECT * FROM headwater_positions")

    def put_back(self, backup: Any) -> None:
        with psycopg.connect(self.url) as session, session.cursor() as cursor:
            for table, rows in zip(("follower", "headwater_positions"), backup, strict=True):
                cursor.execute(f"TRUNCATE {table}")
                marks = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)

    def tamper(self) -> None:
        self.do("UPDATE follower SET name = 'tampered' WHERE id = 1")
        self.do("DELETE FROM follower WHERE id = 2")
        self.do("INSERT INTO follower VALUES ('xx', 9, 'foreign', 0)")

    def lose_stand(self) -> None:
        self.do("DELETE FROM headwater_positions")

    def refused_row(self, at: int) -> dict[str, Any]:
        return {"region": "bad", "id": at, "name": "no \x00 in text", "score": 1.0}


TYPES = {
    "b": "BOOLEAN",
    "i8": "TINYINT",
    "i16": "SMALLINT",
    "i32": "INT",
    "i64": "BIGINT",
    "f32": "FLOAT",
    "f64": "DOUBLE",
    "d": "DECIMAL(20,4)",
    "s": "STRING",
    "bin": "BINARY",
    "day": "DATE",
    "at": "TIMESTAMP",
    "wall": "TIMESTAMP_NTZ",
    "arr": "ARRAY<STRUCT<a: INT, b: STRING>>",
    "m": "MAP<STRING, DECIMAL(5,2)>",
}
MANY_TYPES = pa.schema([pa.field("k", pa.int64()), *(pa.field(n, parse_type(t)) for n, t in TYPES.items())])
VALUES: list[dict[str, Any]] = [
    {
        "b": True,
        "i8": -128,
        "i16": 32767,
        "i32": -(2**31),
        "i64": 2**63 - 1,
        "f32": 0.1,
        "f64": -0.0,
        "d": Decimal("-1234567890123456.7891"),
        "s": "ü\n\t\"',\\",
        "bin": bytes(range(256)),
        "day": date(1, 1, 1),
        "at": datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC),
        "wall": datetime(1969, 12, 31, 23, 59, 59, 999999),
        "arr": [{"a": 1, "b": "x"}, {"a": None, "b": None}, None],
        "m": [("b", Decimal("1.50")), ("a", None)],
    },
    {
        "f32": float("inf"),
        "f64": float("nan"),
        "s": "",
        "bin": b"",
        "arr": [],
        "m": [],
        "d": Decimal("0.0001"),
    },
    {"f64": 5e-324, "f32": 1.401298464324817e-45, "s": "NULL", "d": Decimal("0")},
    {"f64": 1.7976931348623157e308, "f32": float("-inf"), "b": False, "s": "\\N"},
    {},
]


class Follower:
    """A view with some columns, a table, and what happens to both."""

    def __init__(self, url: str, schema: pa.Schema, key: tuple[str, ...] = ("k",), table: str = "t") -> None:
        self.url = url
        self.clock = ManualClock()
        self.feed = ScriptedFeed(schema, self.clock)
        self.letters: list[Any] = []
        self.target = PostgresTarget(url, table)
        self.shape = TargetShape("s", "v", schema, key)
        self.applier = self._applier("divert")

    def _applier(self, on_error: Any) -> Applier:
        return Applier(
            self.shape, self.target, self.feed, self.clock, on_error=on_error, letters=self.letters.append
        )

    def tick(self, rows: list[dict[str, Any]]) -> None:
        self.feed.tick(rows)
        while self.applier.step():
            pass

    def do(self, statement: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as session:
            found = session.execute(statement)
            return found.fetchall() if found.description else []

    def refuse(self) -> SinkError:
        self.feed.tick([])
        with pytest.raises(SinkError) as caught:
            self.applier.step()
        return caught.value

    @property
    def ok(self) -> bool | None:
        return check(self.applier, self.feed).ok


@pytest.fixture
def follow(postgres_url: str) -> Iterator[Any]:
    made: list[Follower] = []

    def make(schema: pa.Schema, *statements: str, **options: Any) -> Follower:
        follower = Follower(postgres_url, schema, **options)
        for statement in statements:
            follower.do(statement)
        made.append(follower)
        return follower

    yield make
    for follower in made:
        follower.applier.close()


K_V = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.string())])


@pytest.mark.parametrize("copies", [1, 400])
def test_every_type_is_kept_exactly(follow: Any, copies: int) -> None:
    rows = [{"k": i, **VALUES[i % len(VALUES)]} for i in range(copies * len(VALUES))]
    follower = follow(MANY_TYPES)
    follower.tick(rows)
    assert follower.ok
    first = follower.do("SELECT * FROM t WHERE k = 0")[0][1:]
    for (name, value), found in zip(VALUES[0].items(), first, strict=True):
        if name in ("arr", "m"):
            continue
        assert found == (pytest.approx(value) if name == "f32" else value), name
    assert first[-2:] == ([{"a": 1, "b": "x"}, {"a": None, "b": None}, None], {"a": None, "b": 1.5})
    assert follower.do("SELECT f64::text, f32::text FROM t WHERE k = 0") == [("-0", "0.1")]
    follower.tick([{"k": row["k"], **VALUES[(row["k"] + 1) % len(VALUES)]} for row in rows])
    assert follower.ok


def test_times_of_any_year_are_kept(follow: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("at", parse_type("TIMESTAMP")), ("day", pa.date32())])
    follower = follow(schema)
    numbers = [-62_135_596_800_000_001, 253_402_300_800_000_000, -200_000_000_000_000_000, 9_222 * 10**15, 0]
    days = [-719_163, 2_932_897, -2_000_000, 2**31 - 2_500_000, 0]
    table = pa.table(
        [pa.array(range(5)), pa.array(numbers, schema.field(1).type), pa.array(days, pa.date32())], schema
    )
    follower.feed.commit(_delta(table))
    follower.applier.step()
    assert follower.ok
    assert follower.do("SELECT at::text FROM t WHERE k = 0")[0][0].startswith("0001-01-01 00:53")  # of Berlin
    follower.do("UPDATE t SET at = 'infinity', day = '-infinity' WHERE k = 4")
    assert follower.ok is False
    assert check(follower.applier, follower.feed, repair=True).repaired


def _delta(table: pa.Table) -> Any:
    from headwater.operators.zset.delta import Delta

    return Delta.of(table.combine_chunks().to_batches()[0])


def test_the_table_has_the_types_and_the_key_that_are_documented(follow: Any) -> None:
    follower = follow(MANY_TYPES)
    follower.tick([])
    found = dict(
        follower.do(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 't'::regclass AND attnum > 0"
        )
    )
    assert list(found.values()) == [
        "bigint",
        "boolean",
        "smallint",
        "smallint",
        "integer",
        "bigint",
        "real",
        "double precision",
        "numeric(20,4)",
        "text",
        "bytea",
        "date",
        "timestamp with time zone",
        "timestamp without time zone",
        "jsonb",
        "jsonb",
    ]
    assert (
        "NULLS NOT DISTINCT (k)"
        in follower.do(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE conrelid = 't'::regclass AND contype = 'u'"
        )[0][0]
    )


def test_a_key_that_is_never_null_is_the_primary_key(follow: Any) -> None:
    follower = follow(pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.string())]))
    follower.tick([{"k": 1, "v": "a"}])
    found = follower.do(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE contype = 'p' AND conrelid = 't'::regclass"
    )
    assert found == [("PRIMARY KEY (k)",)]


def test_a_table_in_a_schema_keeps_its_position_there(follow: Any) -> None:
    follower = follow(K_V, 'CREATE SCHEMA "Shop"', table='"Shop"."My Table"')
    follower.tick([{"k": 1, "v": "a"}])
    assert follower.do('SELECT * FROM "Shop"."My Table"') == [(1, "a")]
    assert follower.do('SELECT sink, tick FROM "Shop".headwater_positions') == [("s", 1)]


@pytest.mark.parametrize(
    ("made", "facts", "statement"),
    [
        ("CREATE TABLE t (k bigint PRIMARY KEY)", {"column": "v"}, 'ADD COLUMN "v" text'),
        (
            "CREATE TABLE t (k bigint PRIMARY KEY, v int)",
            {"column": "v", "type": "integer"},
            'ALTER COLUMN "v" TYPE text',
        ),
        (
            "CREATE TABLE t (k bigint PRIMARY KEY, v char(3))",
            {"column": "v", "type": "character(3)"},
            "TYPE text",
        ),
        ("CREATE TABLE t (k bigint, v text)", {"key": ("k",)}, "ADD UNIQUE NULLS NOT DISTINCT"),
        ("CREATE TABLE t (k bigint, v text, UNIQUE (k, v))", {"key": ("k",)}, "ADD UNIQUE"),
        ("CREATE TABLE t (k bigint PRIMARY KEY, v text, w int NOT NULL)", {"column": "w"}, "SET DEFAULT"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_with_the_statement_that_corrects_it(
    follow: Any, made: str, facts: dict[str, Any], statement: str
) -> None:
    error = follow(K_V, made).refuse()
    assert error.facts.items() >= {"table": "t", **facts}.items()
    assert statement in (error.hint or "")


def test_a_schema_that_is_missing_is_named(follow: Any) -> None:
    error = follow(K_V, table="nowhere.t").refuse()
    assert error.hint == 'CREATE SCHEMA "nowhere";'


def test_a_role_without_rights_stops_the_sink(
    follow: Any, postgres_server: PostgresServer, postgres_url: str
) -> None:
    follower = follow(
        K_V,
        "DROP ROLE IF EXISTS nobody_here",
        "CREATE ROLE nobody_here LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
    )
    database = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]
    follower.target = PostgresTarget(postgres_server.url(str(database), "nobody_here"), "t")
    follower.applier = follower._applier("stop")
    error = follower.refuse()
    assert error.facts["sqlstate"] == "42501"
    assert not error.retryable


def test_columns_beside_those_of_the_view_are_left_alone(follow: Any) -> None:
    follower = follow(
        K_V,
        "CREATE TABLE t (note text DEFAULT 'new', v varchar(20), k int PRIMARY KEY, w int NOT NULL DEFAULT 7)",
    )
    follower.tick([{"k": 1, "v": "a"}, {"k": 2, "v": "b"}])
    follower.do("UPDATE t SET note = 'mine'")
    follower.tick([{"k": 1, "v": "c"}, {"k": 3, "v": "d"}])
    assert sorted(follower.do("SELECT k, v, note, w FROM t")) == [(1, "c", "mine", 7), (3, "d", "new", 7)]
    assert follower.ok


def test_rows_that_break_constraints_are_refused_with_the_servers_words(follow: Any) -> None:
    follower = follow(
        K_V,
        "CREATE TABLE t (k smallint PRIMARY KEY, v varchar(5) CHECK (v <> 'evil'))",
        "CREATE UNIQUE INDEX ON t (v)",
    )
    rows = [{"k": i, "v": str(i)} for i in range(300)]
    bad = [
        {"k": 40_000, "v": "x"},
        {"k": 500, "v": "too long"},
        {"k": 501, "v": "evil"},
        {"k": 502, "v": "7"},
        {"k": None, "v": "y"},
    ]
    follower.tick(rows + bad)
    assert follower.do("SELECT count(*) FROM t") == [(300,)]
    (letters,) = follower.letters
    told = {row["k"]: reason for row, reason in zip(letters.rows.to_pylist(), letters.reasons, strict=True)}
    assert "smallint out of range" in told[40_000]
    assert "too long" in told[500]
    assert "check constraint" in told[501]
    assert "duplicate key" in told[502]
    assert "null value" in told[None]
    assert follower.ok
    follower.do("ALTER TABLE t ALTER COLUMN v TYPE text")
    assert follower.applier.retry() == 1
    assert follower.do("SELECT v FROM t WHERE k = 500") == [("too long",)]
    assert follower.ok
    follower.tick(rows)
    assert follower.applier.status().withheld == 0
    assert follower.ok


def test_a_key_with_null_is_refused_where_the_index_takes_nulls_for_different(follow: Any) -> None:
    follower = follow(K_V, "CREATE TABLE t (k bigint UNIQUE, v text)")
    follower.tick([{"k": None, "v": "a"}, {"k": 1, "v": "b"}])
    follower.tick([{"k": None, "v": "c"}, {"k": 1, "v": "b"}])
    assert follower.do("SELECT * FROM t") == [(1, "b")]
    assert "treats NULLs as distinct" in follower.letters[0].reasons[0]


def test_a_row_that_others_refer_to_cannot_be_deleted_and_stops_the_sink(follow: Any) -> None:
    follower = follow(
        K_V,
        "CREATE TABLE t (k bigint PRIMARY KEY, v text)",
        "CREATE TABLE other (k bigint REFERENCES t DEFERRABLE INITIALLY DEFERRED)",
    )
    follower.tick([{"k": 1, "v": "a"}])
    follower.do("INSERT INTO other VALUES (1)")
    follower.feed.tick([])
    with raises(SinkError, sink="s") as caught:
        follower.applier.step()
    assert "foreign key" in caught.value.message
    follower.do("TRUNCATE other")
    assert follower.applier.step()
    assert follower.do("SELECT * FROM t") == []


def test_a_key_that_no_table_can_hold_needs_no_deleting(follow: Any) -> None:
    schema = pa.schema([pa.field("k", pa.string()), pa.field("v", pa.int64())])
    follower = follow(schema)
    follower.tick([{"k": "a\x00", "v": 1}, {"k": "b", "v": 2}])
    follower.tick([{"k": "c", "v": 3}])
    assert follower.do("SELECT * FROM t") == [("c", 3)]
    assert len(follower.letters) == 1
    assert follower.ok


def test_a_table_with_rows_is_not_taken_without_a_word(follow: Any) -> None:
    follower = follow(K_V, "CREATE TABLE t (k bigint PRIMARY KEY, v text)")
    follower.target.prepare(follower.shape)
    refuse_occupied(follower.shape, follower.target)
    follower.do("INSERT INTO t VALUES (1, 'theirs')")
    with raises(SinkError, sink="s", reason="target-not-empty"):
        refuse_occupied(follower.shape, follower.target)


def test_values_that_the_view_cannot_have_are_found(follow: Any) -> None:
    schema = pa.schema([("k", pa.int64()), ("n", pa.int32()), ("d", pa.decimal128(4, 2))])
    follower = follow(schema, "CREATE TABLE t (k bigint PRIMARY KEY, n bigint, d numeric)")
    follower.tick([{"k": i, "n": i, "d": Decimal(i)} for i in range(1, 5)])
    follower.do("UPDATE t SET n = 99999999999 WHERE k = 1")
    follower.do("UPDATE t SET d = 'NaN' WHERE k = 2")
    follower.do("UPDATE t SET d = 1.2345 WHERE k = 3")
    found = check(follower.applier, follower.feed)
    assert found.differences is not None
    assert found.differences.found.num_rows == 3
    assert check(follower.applier, follower.feed, repair=True).repaired
    assert follower.do("SELECT n, d FROM t WHERE k < 4 ORDER BY k") == [
        (1, Decimal(1)),
        (2, Decimal(2)),
        (3, Decimal(3)),
    ]


def test_readers_of_the_table_see_whole_changes(follow: Any, postgres_url: str) -> None:
    follower = follow(K_V)
    follower.tick([{"k": 1, "v": "a"}, {"k": 2, "v": "a"}])
    with psycopg.connect(postgres_url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert reader.execute("SELECT count(*) FROM t WHERE v = 'a'").fetchone() == (2,)
        follower.tick([{"k": 2, "v": "b"}, {"k": 3, "v": "b"}])
        assert reader.execute("SELECT count(*) FROM t WHERE v = 'a'").fetchone() == (2,)
        reader.rollback()
        assert reader.execute("SELECT count(*) FROM t WHERE v = 'b'").fetchone() == (2,)


@pytest.mark.parametrize("name", ["", "a.b.c", "a b", '"a', "a.", "1a"])
def test_what_is_no_name_of_a_table_is_refused(name: str) -> None:
    with raises(UsageError, option="table", value=name):
        PostgresTarget("postgresql://", name)


def test_a_server_that_is_not_there_is_tried_again(tmp_path: Any) -> None:
    target = PostgresTarget(f"postgresql://nobody@/none?host={tmp_path}", "t")
    with raises(TargetDownError, sink="s"):
        target.prepare(TargetShape("s", "v", K_V, ("k",)))


def test_a_sink_made_anew_with_another_table_does_not_go_on_from_the_old_one(follow: Any) -> None:
    rows = [{"k": 1, "v": "a"}, {"k": 2, "v": "b"}]
    follow(K_V).tick(rows)
    follower = follow(K_V, table="u")
    follower.tick(rows)
    assert sorted(follower.do("SELECT * FROM u")) == [(1, "a"), (2, "b")]
    assert follower.ok


def test_a_table_that_somebody_locks_is_waited_for_and_told_of(follow: Any, postgres_url: str) -> None:
    follower = follow(K_V)
    follower.tick([{"k": 1, "v": "a"}])
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE t")
        follower.feed.tick([{"k": 1, "v": "b"}])
        follower.target._connection.execute("SET lock_timeout = '50ms'")
        with raises(TargetDownError, sink="s") as caught:
            follower.applier.step()
        assert "lock timeout" in caught.value.message
    assert follower.applier.step()
    assert follower.do("SELECT v FROM t") == [("b",)]


def test_a_table_that_is_written_meanwhile_is_compared_as_of_one_moment(follow: Any) -> None:
    follower = follow(K_V)
    rows = [{"k": i, "v": "a"} for i in range(50)]
    follower.tick(rows)
    other = Applier(follower.shape, PostgresTarget(follower.url, "t"), follower.feed, follower.clock)
    contents = follower.target.contents

    def moved() -> Iterator[pa.RecordBatch]:
        follower.feed.tick([{"k": follower.feed.now, "v": "b"}])
        assert other.step()
        return contents()

    follower.target.contents = moved
    found = check(follower.applier, follower.feed)
    assert (found.ok, found.tick, found.rows) == (True, 1, 50)
    other.close()


def test_its_dead_tuples_are_gone_when_the_table_is_vacuumed(follow: Any) -> None:
    follower = follow(K_V)
    follower.tick([{"k": 1, "v": "secret"}])
    follower.tick([{"k": 1, "v": None}])
    ((now,),) = follower.do("SELECT clock_timestamp()")
    since = Since(2, 0, to_us(now))
    past = follower.target.past(since)
    assert past.gone_at is None
    statement = past.detail.partition("`")[2].rstrip("`")
    assert statement == 'VACUUM "public"."t";'
    follower.do(statement)
    past = follower.target.past(since)
    assert past.gone_at is not None
    assert past.gone_at > to_us(now)
    follower.do("ALTER TABLE t SET (autovacuum_enabled = off)")
    assert follower.target.past(Since(2, 0, to_us(now + timedelta(hours=1)))).gone_at is None
    long_ago = Since(2, 0, to_us(now - timedelta(minutes=5)))
    follower.do("SELECT pg_stat_reset()")
    assert follower.target.past(long_ago).gone_at is None, "a server that has lost its counts knows nothing"
