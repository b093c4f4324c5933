"""What tables are to topics: their keys, and what becomes of a topic when its table changes."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from headwater.catalog.definitions import TopicDefinition
from headwater.core.errors import SchemaError
from headwater.core.types import format_type
from headwater.sources.postgres.decode.relations import CapturedTable, Evolution, definition_of, evolve
from tests.raising import raises
from tests.sources.replaying import Replay, replay


def described(database: Replay, name: str) -> CapturedTable:
    """A table as the stream describes it and the catalog does: they agree."""
    database.feed()
    database.gathering.take()
    database.run(f"INSERT INTO {name} DEFAULT VALUES")
    database.feed()
    (run,) = database.gathering.take()
    table = database.table(run.relation)
    assert database.table(name) == table
    return table


@pytest.mark.parametrize(
    ("statements", "key", "keyless"),
    [
        ("CREATE TABLE t (a serial, b serial, c int, PRIMARY KEY (b, a))", ("b", "a"), None),
        ("CREATE TABLE t (a serial, b serial, PRIMARY KEY (b) INCLUDE (a))", ("b",), None),
        ("CREATE TABLE t (a serial PRIMARY KEY, b int); ALTER TABLE t REPLICA IDENTITY FULL", ("a",), None),
        (
            "CREATE TABLE t (a serial PRIMARY KEY, b int); ALTER TABLE t REPLICA IDENTITY NOTHING",
            (),
            "REPLICA IDENTITY NOTHING",
        ),
        (
            "CREATE TABLE t (a serial PRIMARY KEY, c serial, b serial); CREATE UNIQUE INDEX i ON t (b, c);"
            "ALTER TABLE t REPLICA IDENTITY USING INDEX i",
            ("b", "c"),
            None,
        ),
        ("CREATE TABLE t (a int)", (), "no primary key"),
        ("CREATE TABLE t (a int); ALTER TABLE t REPLICA IDENTITY FULL", (), "no primary key"),
        (
            "CREATE TABLE t (a serial PRIMARY KEY DEFERRABLE)",
            (),
            "no primary key that is checked immediately",
        ),
        ("CREATE TABLE t (a int[] DEFAULT '{1}' PRIMARY KEY)", (), "array a"),
    ],
)
def test_the_key_is_what_every_message_tells_rows_apart_by(
    postgres_url: str, statements: str, key: tuple[str, ...], keyless: str | None
) -> None:
    with replay(postgres_url) as database:
        database.run(statements)
        table = described(database, "t")
        assert table.key == key
        assert (table.keyless is None) == (keyless is None)
        assert keyless is None or keyless in (table.keyless or "")
        topic = definition_of(table, "t", "shop")
        assert topic.key == key
        assert topic.captured_by == "shop"
        assert [f.nullable for f in topic.schema] == [f.name not in key for f in topic.schema]


def test_a_column_list_that_leaves_out_the_key_makes_a_topic_without_one(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (a serial PRIMARY KEY, b int); ALTER TABLE t REPLICA IDENTITY FULL")
        table = database.table("t")
        facts = database.facts(table.relation.oid)
        assert facts is not None
        part = database.table(facts.relation(published=["b"]))
        assert [column.name for column in part.columns] == ["b"]
        assert part.keyless == "the publication leaves out a column of its primary key"


def test_names_that_a_topic_cannot_have_are_refused(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run('CREATE TABLE t (id serial PRIMARY KEY, "_op" int)')
        with raises(SchemaError) as caught:
            definition_of(database.table("t"), "t", "shop")
        assert "'_op'" in caught.value.message
        database.run('CREATE TABLE u (id serial PRIMARY KEY, "ID" int)')
        with raises(SchemaError) as caught:
            definition_of(database.table("u"), "u", "shop")
        assert "'id'" in caught.value.message


def after(database: Replay, statement: str, topic: TopicDefinition) -> Evolution:
    """What a statement on the table means for its topic."""
    database.run(statement)
    return evolve(topic, described(database, "t"))


def test_columns_added_widened_dropped_and_renamed_are_followed(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id serial PRIMARY KEY, n int, r real, d numeric(6,2), v varchar(5))")
        topic = definition_of(described(database, "t"), "t", "shop")
        same = evolve(topic, described(database, "t"))
        assert same == Evolution(topic, (), (), (), ())

        added = after(database, "ALTER TABLE t ADD COLUMN w text NOT NULL DEFAULT ''", topic)
        assert (added.added, added.dropped, added.widened, added.refused) == (("w",), (), (), ())
        assert added.definition.schema.field("w").nullable

        wider = after(
            database,
            "ALTER TABLE t ALTER n TYPE bigint, ALTER r TYPE float8, ALTER d TYPE numeric(10,3), ALTER v TYPE text, "
            "ALTER id TYPE bigint",
            added.definition,
        )
        assert wider.widened == ("id", "n", "r", "d")
        kinds = {f.name: format_type(f.type) for f in wider.definition.schema}
        assert kinds == {
            "id": "BIGINT",
            "n": "BIGINT",
            "r": "DOUBLE",
            "d": "DECIMAL(10,3)",
            "v": "STRING",
            "w": "STRING",
        }

        narrower = after(
            database, "ALTER TABLE t ALTER n TYPE smallint, ALTER d TYPE numeric(4,1)", wider.definition
        )
        assert narrower == Evolution(wider.definition, (), (), (), ())

        dropped = after(database, "ALTER TABLE t DROP COLUMN r", wider.definition)
        assert (dropped.dropped, dropped.definition) == (("r",), wider.definition)

        renamed = after(database, "ALTER TABLE t RENAME COLUMN v TO vv", dropped.definition)
        assert (renamed.added, renamed.dropped) == (("vv",), ("r", "v"))
        assert renamed.definition.schema.names == ["id", "n", "r", "d", "v", "w", "vv"]
        assert renamed.definition.schema_version > topic.schema_version


def test_a_dropped_column_that_was_not_null_may_be_null_from_then_on(postgres_url: str) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id serial PRIMARY KEY, n int)")
        topic = definition_of(described(database, "t"), "t", "shop")
        strict = pa.schema([pa.field(f.name, f.type, nullable=False) for f in topic.schema])
        topic = dataclasses.replace(topic, schema=strict)
        dropped = after(database, "ALTER TABLE t DROP COLUMN n", topic)
        assert dropped.definition.schema.field("n").nullable


@pytest.mark.parametrize(
    ("statement", "column", "reason"),
    [
        ("ALTER TABLE t ALTER n TYPE text", "n", "cannot change from INT to STRING"),
        ("ALTER TABLE t DROP COLUMN n, ADD COLUMN n date", "n", "cannot change from INT to DATE"),
        ("ALTER TABLE t ALTER n TYPE float8", "n", "cannot change from INT to DOUBLE"),
        ("ALTER TABLE t RENAME COLUMN id TO nr", "id", "was (id) and is (nr)"),
        ("ALTER TABLE t DROP CONSTRAINT t_pkey", "id", "was (id) and is none: it has no primary key"),
        ('ALTER TABLE t ADD COLUMN "_offset" int', "_offset", "'_offset'"),
    ],
)
def test_what_a_topic_cannot_follow_is_refused_with_the_reason(
    postgres_url: str, statement: str, column: str, reason: str
) -> None:
    with replay(postgres_url) as database:
        database.run("CREATE TABLE t (id serial PRIMARY KEY, n int)")
        topic = definition_of(described(database, "t"), "t", "shop")
        refused = after(database, statement, topic).refused
        assert [r.column for r in refused] == [column]
        assert reason in refused[0].reason
