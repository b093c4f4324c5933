"""Statements: what can be read, what it means, and how a refusal points."""

import re
from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.errors import StatementError, UsageError
from headwater.core.types import TIMESTAMP
from headwater.sql.parser import parse, parse_columns
from headwater.sql.statements import (
    AddColumn,
    CreateTopic,
    Describe,
    DropNotNull,
    DropTopic,
    EnvValue,
    Explain,
    ExplainQuery,
    QueryText,
    SetOptions,
    ShowCursors,
    ShowTopics,
    WidenColumn,
)
from tests.raising import raises


def one(text: str) -> object:
    (statement,) = parse(text)
    return statement


def created(text: str) -> TopicDefinition:
    statement = one(text)
    assert isinstance(statement, CreateTopic)
    return statement.definition()


def test_create_topic_as_the_surface_shows_it() -> None:
    topic = created("""
        CREATE TOPIC clicks (
          user BIGINT, url STRING, at TIMESTAMP,
          WATERMARK FOR at AS at - INTERVAL '10 minutes'
        ) WITH (partitions = 4, partition_by = 'user', retention = '7 days');
    """)
    assert topic.schema == pa.schema([("user", pa.int64()), ("url", pa.string()), ("at", TIMESTAMP)])
    assert (topic.time, topic.lateness_us) == ("at", 600_000_000)
    assert (topic.partitions, topic.partition_by, topic.retention_us) == (4, ("user",), 7 * 86_400_000_000)


@pytest.mark.parametrize(
    "columns",
    [
        "id BIGINT NOT NULL, name STRING, PRIMARY KEY (id)",
        "id BIGINT PRIMARY KEY, name STRING",
        "`id` bigint primary key not null, name string",
        "id BIGINT /* the id */ PRIMARY -- really\n KEY, name STRING",
    ],
)
def test_a_primary_key_can_be_written_in_several_ways(columns: str) -> None:
    topic = created(f"CREATE TOPIC customers ({columns}) WITH (cleanup = 'compact')")
    assert topic.key == ("id",)
    assert not topic.schema.field("id").nullable
    assert topic.cleanup == "compact"


@pytest.mark.parametrize(
    ("watermark", "lateness_us"),
    [
        ("WATERMARK FOR at AS at - INTERVAL '10 minutes'", 600_000_000),
        ("WATERMARK FOR at AS at - INTERVAL 10 MINUTES", 600_000_000),
        ("WATERMARK FOR at AS at - INTERVAL '10' MINUTE", 600_000_000),
        ("WATERMARK FOR `at` AS at - INTERVAL '1 hour 30 seconds'", 3_630_000_000),
        ("WATERMARK FOR at AS at", 0),
        ("WATERMARK FOR at", 0),
    ],
)
def test_watermarks(watermark: str, lateness_us: int) -> None:
    topic = created(f"CREATE TOPIC t (at TIMESTAMP, {watermark})")
    assert (topic.time, topic.lateness_us) == ("at", lateness_us)


def test_keywords_are_names_where_a_name_is_due() -> None:
    topic = created(
        "CREATE TOPIC timestamp (timestamp TIMESTAMP, key INT, from STRING, WATERMARK FOR timestamp)"
    )
    assert topic.name == topic.time == "timestamp"
    assert topic.schema.names == ["timestamp", "key", "from"]


def test_types_nest() -> None:
    columns = parse_columns(
        "m MAP<STRING, ARRAY<STRUCT<`a b`: INT NOT NULL, c: DECIMAL(10, 2)>>> NOT NULL, d DATE"
    )
    struct = pa.struct([pa.field("a b", pa.int32(), False), pa.field("c", pa.decimal128(10, 2))])
    assert columns.schema.field("m").type == pa.map_(pa.string(), pa.list_(struct))
    assert not columns.schema.field("m").nullable
    assert columns.schema.field("d").type == pa.date32()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ALTER TOPIC t ADD COLUMN r STRING", AddColumn("t", pa.field("r", pa.string()))),
        ("ALTER TOPIC t ALTER COLUMN n TYPE BIGINT", WidenColumn("t", "n", pa.int64())),
        ("ALTER TOPIC t ALTER COLUMN n DROP NOT NULL", DropNotNull("t", "n")),
        ("ALTER TOPIC t SET (retention = '1 day')", SetOptions("t", {"retention": "1 day"})),
        ("alter topic t set (retention = null)", SetOptions("t", {"retention": None})),
        ("DROP TOPIC t", DropTopic("t")),
        ("DROP TOPIC IF EXISTS `t` CASCADE", DropTopic("t", if_exists=True, cascade=True)),
        ("SHOW TOPICS", ShowTopics()),
        ("show cursors", ShowCursors()),
        ("DESCRIBE t", Describe("t")),
        ("EXPLAIN t", Explain("t")),
    ],
)
def test_the_other_statements(text: str, expected: object) -> None:
    assert one(text) == expected


def test_several_statements_and_comments() -> None:
    found = parse("-- first; not a statement\nSHOW TOPICS;; /* ; */ SHOW CURSORS;")
    assert found == [ShowTopics(), ShowCursors()]
    assert parse(" \n -- nothing") == []


def test_strings_are_unescaped_as_spark_does_it() -> None:
    statement = one(r"""ALTER TOPIC t SET (retention = 'it\'s', cleanup = "a\\b", durability = 'x' 'y''z')""")
    assert statement == SetOptions("t", {"retention": "it's", "cleanup": "a\\b", "durability": "xy'z"})


def test_or_replace_and_if_not_exists() -> None:
    replace, lenient = parse("CREATE OR REPLACE TOPIC a (x INT); CREATE TOPIC IF NOT EXISTS b (x INT)")
    assert isinstance(replace, CreateTopic)
    assert isinstance(lenient, CreateTopic)
    assert (replace.or_replace, replace.if_not_exists) == (True, False)
    assert (lenient.or_replace, lenient.if_not_exists) == (False, True)


def test_env_stays_in_the_environment_until_it_is_needed() -> None:
    statement = one("CREATE TOPIC t (a INT) WITH (retention = env('KEEP'))")
    assert isinstance(statement, CreateTopic)
    assert statement.options == {"retention": EnvValue("KEEP")}
    assert statement.definition({"KEEP": "2 days"}).retention_us == 2 * 86_400_000_000
    with raises(UsageError, variable="KEEP"):
        statement.definition({})


@pytest.mark.parametrize(
    ("text", "facts", "underlined", "hint"),
    [
        ("FROB", {"reason": "unknown-statement", "found": "FROB"}, "FROB", "CREATE TOPIC"),
        ("INSERT INTO t VALUES (1)", {"reason": "other-dialect", "keyword": "INSERT"}, "INSERT", "append"),
        (
            "CREATE TABLE t (a INT)",
            {"reason": "other-dialect", "keyword": "TABLE"},
            "TABLE",
            "write CREATE TOPIC",
        ),
        ("CREATE TOPIC t", {"expected": "(", "found": ""}, "^", "write the columns"),
        ("CREATE TOPIC t (a BIGNT)", {"type": "BIGNT"}, "BIGNT", "BIGINT"),
        ("CREATE TOPIC t (a VARCHAR(10))", {"type": "VARCHAR(10)"}, "VARCHAR(10)", "STRING"),
        ("CREATE TOPIC t (a INT", {"expected": ")", "found": ""}, "^", None),
        (
            "CREATE TOPIC t (a INT DEFAULT 3)",
            {"reason": "column-constraint", "found": "DEFAULT"},
            "DEFAULT",
            "NOT NULL",
        ),
        ("CREATE TOPIC 't' (a INT)", {"expected": "a name", "found": "t"}, "'t'", "`t`"),
        ("CREATE TOPIC t (a)", {"reason": "no-type"}, "a", "a STRING"),
        (
            "CREATE TOPIC t (a INT) WITH (partition = 3)",
            {"reason": "unknown-option", "option": "partition"},
            "partition",
            "did you mean partitions",
        ),
        (
            "CREATE TOPIC t (a INT) WITH (partitions 3)",
            {"expected": "=", "found": "3"},
            "3",
            "partitions = value",
        ),
        (
            "CREATE TOPIC t (a INT) WITH (cleanup = compact)",
            {"reason": "option-value", "option": "cleanup"},
            "compact",
            "cleanup = 'compact'",
        ),
        (
            "CREATE TOPIC t (a INT) WITH (partitions = 1, partitions = 2)",
            {"reason": "option-twice", "option": "partitions"},
            "partitions",
            None,
        ),
        (
            "CREATE TOPIC t (a INT, WATERMARK FOR a AS a + 1)",
            {"reason": "watermark-expression"},
            "+",
            "INTERVAL '10 minutes'",
        ),
        ("CREATE TOPIC t (a INT, WATERMARK FOR a AS b)", {"reason": "watermark-expression"}, "b", None),
        (
            "CREATE TOPIC t (a TIMESTAMP, WATERMARK FOR a AS a - 5)",
            {"expected": "INTERVAL", "found": "5"},
            "5",
            None,
        ),
        ("CREATE TOPIC t (a TIMESTAMP, WATERMARK FOR a AS a - INTERVAL 'x')", {"value": "x"}, "'x'", None),
        (
            "CREATE TOPIC t (a INT PRIMARY KEY, PRIMARY KEY (a))",
            {"reason": "primary-key-twice"},
            "PRIMARY",
            None,
        ),
        ("ALTER TOPIC t DROP COLUMN c", {"reason": "alter-topic", "found": "DROP"}, "DROP", "ADD COLUMN"),
        (
            "ALTER TOPIC t ALTER COLUMN c SET NOT NULL",
            {"expected": "TYPE, DROP NOT NULL or ACCEPT DROP", "found": "SET"},
            "SET",
            None,
        ),
        ("ALTER TOPIC t SET ()", {"reason": "no-options"}, "(", None),
        ("SHOW TOPICS SHOW", {"reason": "not-at-end", "found": "SHOW"}, "SHOW", "separate"),
        ("SHOW FROGS", {"reason": "unknown-show", "found": "FROGS"}, "FROGS", "SHOW TOPICS"),
        ("CREATE TOPIC t (a INT) WITH (cleanup = 'x", {"reason": "not-closed"}, "'x", "close it"),
        ("SHOW TOPICS /* oh", {"reason": "not-closed"}, "/* oh", None),
    ],
)
def test_a_refusal_points_at_its_place(
    text: str, facts: dict[str, str], underlined: str, hint: str | None
) -> None:
    with raises(StatementError, **facts) as caught:
        parse("SHOW TOPICS;\n\t" + text)
    assert caught.value.detail is not None
    place, line, carets = caught.value.detail.splitlines()[:3]
    assert place.startswith("line 2, column ")
    assert line.strip() == text
    marked = line[carets.index("^") : carets.rindex("^") + 1]
    assert marked == underlined or (underlined == "^" and not marked.strip())
    assert hint is None or hint in (caught.value.hint or "")


def test_what_the_catalog_refuses_points_too() -> None:
    with raises(StatementError, topic="t", option="partition_by") as caught:
        parse("CREATE TOPIC t (a INT, b INT, PRIMARY KEY (a)) WITH (partition_by = 'b')")
    assert "^^^" in str(caught.value)
    assert caught.value.line == 1


NAMES = st.from_regex(re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,8}", re.ASCII), fullmatch=True).filter(
    lambda n: not n.startswith("_")
)
COLUMN_NAMES = NAMES | st.text(
    st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=6
)
SCALARS = st.sampled_from(
    [
        *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string()),
        *(pa.binary(), pa.date32(), TIMESTAMP, pa.timestamp("us"), pa.decimal128(38, 9), pa.decimal128(3, 0)),
    ]
)
TYPES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        inner.map(pa.list_),
        st.tuples(SCALARS, inner).map(lambda kv: pa.map_(*kv)),
        st.lists(
            st.tuples(NAMES, inner, st.booleans()), min_size=1, max_size=3, unique_by=lambda f: f[0]
        ).map(lambda fields: pa.struct([pa.field(*f) for f in fields])),
    ),
    max_leaves=4,
)
SPANS = st.integers(1, 10**12).map(lambda us: f"{us} microseconds")


@st.composite
def definitions(draw: st.DrawFn) -> TopicDefinition:
    names = draw(st.lists(COLUMN_NAMES, min_size=1, max_size=5, unique_by=str.lower))
    fields = [pa.field(n, draw(TYPES), draw(st.booleans())) for n in names]
    time = draw(st.none() | st.just("happened at"))
    if time:
        fields.append(pa.field(time, TIMESTAMP))
    # An option lists columns in one string, so that names with commas, quotes or spaces at the ends have no place.
    simple = [
        f.name
        for f in fields
        if not pa.types.is_nested(f.type) and f.name.isidentifier() and f.name.isascii()
    ]
    key = tuple(draw(st.lists(st.sampled_from(simple), unique=True, max_size=2))) if simple else ()
    options: dict[str, object] = {"partitions": draw(st.integers(1, 64))}
    routable = key or simple
    if routable and draw(st.booleans()):
        options["partition_by"] = draw(
            st.lists(st.sampled_from(routable), unique=True, min_size=1, max_size=2)
        )
    for name in ("retention", "idle_after", "tombstone_retention", *(["max_ahead"] if time else [])):
        if draw(st.booleans()):
            options[name] = draw(SPANS)
    if draw(st.booleans()):
        options["retention_bytes"] = draw(st.integers(1, 10**12))
    if draw(st.booleans()):
        options["durability"] = draw(st.sampled_from(["fsync", "group", "os"]))
    if key and draw(st.booleans()):
        options["cleanup"] = "compact"
    lateness = draw(st.integers(0, 10**12)) if time else 0
    return define_topic(
        draw(NAMES), pa.schema(fields), key=key, time=time, lateness=lateness, options=options
    )


@given(definitions())
def test_a_definition_reads_back_from_its_own_statement(topic: TopicDefinition) -> None:
    assert created(topic.to_sql()) == topic


@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            [
                "CREATE",
                "TOPIC",
                "MATERIALIZED",
                "VIEW",
                "t",
                "(",
                "a",
                "INT",
                ")",
                "WITH",
                "=",
                "'",
                "`",
                ";",
                ",",
                "-",
                "4",
                "AS",
                "SELECT",
                "EXPLAIN",
                ".",
                "DROP",
                "EMIT",
                "ON",
                "WINDOW",
                "CLOSE",
            ]
        )
    ).map(" ".join)
)
def test_any_text_is_read_or_refused_with_a_statement_error(text: str) -> None:
    with suppress(StatementError):
        parse(text)


@pytest.mark.parametrize("name", ["topic", "with", "select", "`select`", "Topic"])
def test_keywords_can_name_what_is_described(name: str) -> None:
    plain = name.strip("`")
    for text in (name, f"TOPIC {name}", f"{name};"):
        assert one(f"DESCRIBE {text}") == Describe(plain)
        assert one(f"EXPLAIN {text}") == Explain(plain)
    assert one("EXPLAIN SELECT 1") == ExplainQuery(QueryText("SELECT 1"))
