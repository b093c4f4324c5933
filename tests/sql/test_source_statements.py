"""CREATE SOURCE, CREATE SINK and what goes with them, as text: read, shown without secrets, refused with a hint."""

import pytest

from headwater.catalog.connectors import (
    SINK_OPTIONS,
    SINK_SETTABLE,
    SOURCE_OPTIONS,
    SOURCE_SETTABLE,
    EnvValue,
    SinkDefinition,
    SourceDefinition,
    altered,
    difference,
    without_password,
)
from headwater.core.errors import SchemaError, StatementError, UsageError
from headwater.sql.parser import parse
from headwater.sql.statements import (
    AcceptDrop,
    AlterSource,
    CreateSink,
    CreateSource,
    DropSink,
    DropSource,
    Explain,
    SetOptions,
    SetSink,
    SetSource,
    ShowSinks,
    ShowSources,
)
from tests.raising import raises

SHOP = "CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders, public.customers')"
CACHE = (
    "CREATE SINK cache FROM revenue INTO REDIS WITH (url = 'redis://:geheim@localhost/0', key = 'country')"
)


def test_a_source_is_read() -> None:
    (statement,) = parse(SHOP)
    options = {"url": EnvValue("SHOP_URL"), "tables": "public.orders, public.customers"}
    assert statement == CreateSource(SourceDefinition("shop", "postgres", options))
    (lenient,) = parse(SHOP.replace("SOURCE shop", "SOURCE IF NOT EXISTS shop"))
    assert isinstance(lenient, CreateSource)
    assert lenient.if_not_exists


def test_a_sink_is_read() -> None:
    (statement,) = parse(CACHE.replace("CREATE", "CREATE OR REPLACE"))
    options = {"url": "redis://:geheim@localhost/0", "key": "country"}
    made = SinkDefinition("cache", "redis", options, "revenue")
    assert statement == CreateSink(made, or_replace=True)


def test_the_others_are_read() -> None:
    text = "DROP SOURCE IF EXISTS shop CASCADE; DROP SINK cache; SHOW SOURCES; SHOW SINKS"
    assert parse(text) == [
        DropSource("shop", if_exists=True, cascade=True),
        DropSink("cache"),
        ShowSources(),
        ShowSinks(),
    ]


def test_what_is_to_be_done_with_a_source_is_read() -> None:
    text = """
        ALTER SOURCE shop SNAPSHOT public.orders WHERE 'id > 100'; ALTER SOURCE shop SNAPSHOT '"My" . "Table"';
        ALTER SOURCE shop PAUSE; ALTER SOURCE shop RESUME; ALTER SOURCE shop RESTART orders; ALTER SOURCE shop RESTART
    """
    assert parse(text) == [
        AlterSource("shop", "snapshot", "public.orders", "id > 100"),
        AlterSource("shop", "snapshot", '"My" . "Table"'),
        AlterSource("shop", "pause"),
        AlterSource("shop", "resume"),
        AlterSource("shop", "restart", "orders"),
        AlterSource("shop", "restart"),
    ]


def test_options_that_are_set_and_what_is_explained_are_read() -> None:
    text = """
        ALTER SOURCE shop SET (max_wal = '10 GB', url = env('SHOP_URL')); ALTER SINK cache SET (on_error = NULL);
        ALTER TOPIC customers SET (schema_changes = 'refuse'); ALTER TOPIC customers ALTER COLUMN phone ACCEPT DROP;
        EXPLAIN SOURCE shop; EXPLAIN SINK `order`; EXPLAIN source; EXPLAIN VIEW revenue
    """
    assert parse(text) == [
        SetSource("shop", {"max_wal": "10 GB", "url": EnvValue("SHOP_URL")}),
        SetSink("cache", {"on_error": None}),
        SetOptions("customers", {"schema_changes": "refuse"}),
        AcceptDrop("customers", "phone"),
        Explain("shop", "source"),
        Explain("order", "sink"),
        Explain("source"),
        Explain("revenue"),
    ]


def test_what_can_be_altered_is_among_the_options_of_its_kind_and_the_rest_is_replaced() -> None:
    for settable, known in ((SOURCE_SETTABLE, SOURCE_OPTIONS), (SINK_SETTABLE, SINK_OPTIONS)):
        assert settable.keys() == known.keys()
        assert all(set(names) <= set(known[kind]) for kind, names in settable.items())
    (cache,) = parse(CACHE)
    assert isinstance(cache, CreateSink)
    other = altered(cache.definition, {"url": EnvValue("CACHE_URL"), "on_error": "divert"})
    assert other.options == {"url": EnvValue("CACHE_URL"), "key": "country", "on_error": "divert"}
    assert altered(other, {"on_error": None}).options == {"url": EnvValue("CACHE_URL"), "key": "country"}
    with pytest.raises(UsageError) as fixed:
        altered(cache.definition, {"prefix": "p:"})
    assert fixed.value.hint is not None
    assert fixed.value.hint.startswith(
        "CREATE OR REPLACE SINK cache FROM revenue INTO REDIS WITH (url = 'redis://:***@"
    )
    with raises(SchemaError, option="url"):
        altered(cache.definition, {"url": None})


@pytest.mark.parametrize(
    ("text", "facts", "hint"),
    [
        (
            "CREATE SOURCE s FROM POSTGRSE WITH (url = 'x')",
            {"reason": "unknown-kind", "kind": "POSTGRSE"},
            "did you mean POSTGRES?",
        ),
        ("CREATE SOURCE s FROM POSTGRES WITH (tables = 'a')", {"option": "url"}, "WITH (url = '...'"),
        (
            "CREATE SOURCE s FROM POSTGRES WITH (url = 'x', tabels = 'a')",
            {"reason": "unknown-option", "option": "tabels"},
            "tables",
        ),
        (
            "CREATE SOURCE s WITH (url = 'x')",
            {"expected": "FROM", "found": "WITH"},
            "CREATE SOURCE s FROM POSTGRES",
        ),
        ("CREATE SINK s FROM v WITH (url = 'x')", {"expected": "INTO", "found": "WITH"}, "INTO REDIS"),
        ("CREATE SINK s FROM v INTO REDIS WITH (key = 'k')", {"option": "url"}, "WITH (url"),
        ("CREATE SINK 9s FROM v INTO REDIS WITH (url = 'x')", {"expected": "a name", "found": "9"}, ""),
        ("ALTER SOURCE shop STOP", {"expected": "an action", "found": "STOP"}, "PAUSE, RESUME or RESTART"),
        ("ALTER SINK cache PAUSE", {"expected": "SET", "found": "PAUSE"}, "ALTER SINK cache SET"),
        ("ALTER SINK cache SET ()", {"reason": "no-options"}, "on_error"),
        ("ALTER SOURCE shop SET (tabels = 'a')", {"option": "tabels"}, "tables"),
        (
            "ALTER TOPIC t ALTER COLUMN c ACCEPT",
            {"expected": "TYPE, DROP NOT NULL or ACCEPT DROP", "found": "ACCEPT"},
            "",
        ),
        ("SHOW SOURCE", {"reason": "unknown-show", "found": "SOURCE"}, "SOURCES"),
        (
            "CREATE OR REPLACE SINK IF NOT EXISTS s FROM v INTO REDIS WITH (url = 'x')",
            {"reason": "or-replace-if-not-exists"},
            "",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(text: str, facts: dict[str, str], hint: str) -> None:
    with raises(StatementError, **facts) as refused:
        parse(text)
    assert hint in (refused.value.hint or "")


def test_a_declaration_is_kept_as_a_document_without_what_the_environment_has() -> None:
    for text in (SHOP, CACHE):
        (statement,) = parse(text)
        assert isinstance(statement, (CreateSource, CreateSink))
        made = statement.definition
        assert type(made).from_document(made.to_document()) == made
    assert parse(SHOP)[0].definition.to_document()["options"]["url"] == {"env": "SHOP_URL"}  # type: ignore[union-attr]


def test_no_password_is_shown() -> None:
    (statement,) = parse(CACHE)
    assert isinstance(statement, CreateSink)
    assert "geheim" not in statement.definition.to_sql()
    assert "redis://:***@localhost/0" in statement.definition.to_sql()
    assert without_password("postgresql://me:s3c:ret@host/db?x=1") == "postgresql://me:***@host/db?x=1"
    assert without_password("host=h password='a b' user=u") == "host=h password=*** user=u"
    assert without_password("host=h password=ab user=u") == "host=h password=*** user=u"
    assert without_password("postgresql://host:5432/db") == "postgresql://host:5432/db"
    assert without_password("redis://:p@ss@host:6379/0") == "redis://:***@host:6379/0"
    assert without_password("https://host/hook?token=abc&x=1") == "https://host/hook?token=***&x=1"
    catalog = '{"type": "rest", "credential": "a:b", "s3.secret-access-key": "c\\"d", "uri": "http://host"}'
    shown = '{"type": "rest", "credential": ***, "s3.secret-access-key": ***, "uri": "http://host"}'
    assert without_password(catalog) == shown


def test_the_difference_of_two_declarations_tells_no_password() -> None:
    old, new = (SinkDefinition("c", "redis", {"url": f"redis://:{p}@h", "key": "k"}, "v") for p in ("a", "b"))
    assert difference(old, new) == ["- another password", "+ the password given"]
    other = SinkDefinition("c", "redis", {"url": "redis://:a@h", "key": "z"}, "w")
    assert difference(old, other) == ["- view = v", "+ view = w", "- key = 'k'", "+ key = 'z'"]
    assert difference(old, old) == []
