"""Statements about views, and queries: read as they stand, to the end of the statement and not further."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.catalog.view_definitions import ViewOptions
from headwater.core.errors import StatementError, UsageError
from headwater.sql.parser import parse
from headwater.sql.statements import (
    CreateTopicAs,
    CreateView,
    Describe,
    DropView,
    EnvValue,
    Explain,
    ExplainQuery,
    QueryText,
    ShowTopics,
    ShowViews,
    TopicColumns,
)
from tests.raising import raises


def one(text: str) -> object:
    (statement,) = parse(text)
    return statement


def view(text: str) -> CreateView:
    statement = one(text)
    assert isinstance(statement, CreateView)
    return statement


def test_the_views_of_the_surface() -> None:
    revenue = view("""
        CREATE MATERIALIZED VIEW revenue AS
          SELECT c.country, sum(o.amount) AS revenue FROM orders o JOIN customers c ON o.customer_id = c.id
          GROUP BY c.country;
    """)
    assert (revenue.name, revenue.columns, revenue.options) == ("revenue", (), {})
    assert revenue.query.text.startswith("SELECT c.country")
    assert revenue.query.text.endswith("GROUP BY c.country")
    assert not revenue.emit_on_close
    per_minute = view("""
        CREATE MATERIALIZED VIEW per_minute WITH (late = 'divert') AS
          SELECT window(at, '1 minute') AS w, url, count(*) AS n FROM clicks GROUP BY window(at, '1 minute'), url
          EMIT ON WINDOW CLOSE;
    """)
    assert per_minute.options == {"late": "divert"}
    assert per_minute.emit_on_close
    assert per_minute.query.text.endswith("GROUP BY window(at, '1 minute'), url")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "CREATE OR REPLACE MATERIALIZED VIEW v AS TABLE t",
            CreateView("v", QueryText("TABLE t"), or_replace=True),
        ),
        (
            "create materialized view if not exists v as values (1)",
            CreateView("v", QueryText("values (1)"), if_not_exists=True),
        ),
        (
            "CREATE MATERIALIZED VIEW `v` (a, `b c`) AS SELECT 1, 2",
            CreateView("v", QueryText("SELECT 1, 2"), ("a", "b c")),
        ),
        (
            "CREATE MATERIALIZED VIEW v WITH (late = 'correct', correct_for = '1 hour', on_error = 'divert') AS FROM t",
            CreateView(
                "v",
                QueryText("FROM t"),
                options={"late": "correct", "correct_for": "1 hour", "on_error": "divert"},
            ),
        ),
        (
            "CREATE MATERIALIZED VIEW v AS WITH x AS (SELECT 1) SELECT * FROM x EMIT ON WINDOW CLOSE",
            CreateView("v", QueryText("WITH x AS (SELECT 1) SELECT * FROM x"), emit_on_close=True),
        ),
        ("DROP VIEW v", DropView("v")),
        ("DROP MATERIALIZED VIEW IF EXISTS v CASCADE", DropView("v", if_exists=True, cascade=True)),
        ("DROP VIEW v RESTRICT", DropView("v")),
        ("SHOW VIEWS", ShowViews()),
        ("SHOW MATERIALIZED VIEWS", ShowViews()),
        ("DESCRIBE VIEW v", Describe("v")),
        ("DESC MATERIALIZED VIEW v", Describe("v")),
        ("DESCRIBE per_minute.late", Describe("per_minute.late")),
        ("DESCRIBE view.late", Describe("view.late")),
        ("EXPLAIN view", Explain("view")),
        ("EXPLAIN table", Explain("table")),
        ("EXPLAIN VIEW v", Explain("v")),
        ("EXPLAIN SELECT 1", ExplainQuery(QueryText("SELECT 1"))),
        ("EXPLAIN TABLE t", ExplainQuery(QueryText("TABLE t"))),
        ("EXPLAIN (SELECT 1)", ExplainQuery(QueryText("(SELECT 1)"))),
        ("EXPLAIN FROM t EMIT ON WINDOW CLOSE", ExplainQuery(QueryText("FROM t"), emit_on_close=True)),
        ("CREATE TOPIC t AS SELECT 1 AS n", CreateTopicAs("t", QueryText("SELECT 1 AS n"))),
        (
            "CREATE OR REPLACE TOPIC t WITH (partitions = 8) AS TABLE u",
            CreateTopicAs("t", QueryText("TABLE u"), options={"partitions": 8}, or_replace=True),
        ),
        (
            "CREATE TOPIC IF NOT EXISTS t (PRIMARY KEY (id), WATERMARK FOR at) WITH (partitions = 8) AS TABLE u",
            CreateTopicAs(
                "t",
                QueryText("TABLE u"),
                TopicColumns(pa.schema([]), ("id",), "at"),
                {"partitions": 8},
                if_not_exists=True,
            ),
        ),
    ],
)
def test_what_can_be_written(text: str, expected: object) -> None:
    assert one(text) == expected


QUERIES = [
    "SELECT 1",
    "select a, b from t where c = ';'",
    "SELECT 'it''s; \\'; fine', \"also; \\\" a string\" FROM t",
    r"SELECT r'raw;\', R'\', R" + '"a;b" FROM t',
    "SELECT `odd;``name` FROM `a;b`",
    "SELECT a -- not; the end\n, b FROM t",
    "SELECT a /* nor; /* is */ this; */ FROM t",
    "SELECT /*+ BROADCAST(t) */ * FROM t",
    "WITH x AS (SELECT 1 AS n), y AS (SELECT n FROM x) SELECT * FROM y",
    "FROM t SELECT a",
    "VALUES (1, 'a'), (2, ';')",
    "TABLE t",
    "(SELECT 1) UNION ALL (SELECT (2))",
    "SELECT X'1F', 10L, 1.5BD, 1e3, x'ab'",
    "SELECT transform(a, x -> x + 1)[0]::INT, m['k'], a <=> b, s.f.g FROM per_minute.late",
    "SELECT 'schöne Grüße 😀;' AS `😀`",
    "SELECT emit FROM t JOIN emit ON window",
    "SELECT * FROM emit changes",
    "SELECT a\n\n  ,\tb\r\nFROM t",
]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("tail", ["", ";", " ; -- done", " -- a comment; at the end", " /* ; */;;"])
def test_a_query_is_cut_out_of_the_text_as_it_stands(query: str, tail: str) -> None:
    for before in ("", "SHOW TOPICS; /* é */\n", "CREATE MATERIALIZED VIEW v AS /* a; b */\n\t", "EXPLAIN "):
        text = before + query + tail
        found = parse(text)[-1]
        if isinstance(found, (CreateView, ExplainQuery)):
            found = found.query
        assert isinstance(found, QueryText)
        assert found.text == query
        assert found.start == len(before)
        assert found.source == text


@given(st.lists(st.sampled_from(QUERIES), min_size=1, max_size=4), st.sampled_from([";", " ;\n", "; -- ;\n"]))
def test_queries_one_after_the_other_are_separated(queries: list[str], separator: str) -> None:
    found = parse(separator.join(queries))
    assert [q.text for q in found if isinstance(q, QueryText)] == queries
    views = parse(separator.join(f"CREATE MATERIALIZED VIEW v AS {q} EMIT ON WINDOW CLOSE" for q in queries))
    assert [v.query.text for v in views if isinstance(v, CreateView) and v.emit_on_close] == queries


@pytest.mark.parametrize(
    ("text", "facts", "underlined", "hint"),
    [
        (
            "CREATE VIEW v AS SELECT 1",
            {"reason": "view-not-materialized"},
            "VIEW",
            "CREATE MATERIALIZED VIEW",
        ),
        ("CREATE MATERIALIZED v AS SELECT 1", {"expected": "VIEW"}, "v", "CREATE MATERIALIZED VIEW"),
        ("CREATE MATERIALIZED VIEW v SELECT 1", {"expected": "AS"}, "SELECT", "v AS SELECT"),
        ("CREATE MATERIALIZED VIEW v AS", {"expected": "a query", "found": ""}, "^", "SELECT"),
        ("CREATE MATERIALIZED VIEW v AS INSERT", {"expected": "a query", "found": "INSERT"}, "INSERT", None),
        (
            "CREATE MATERIALIZED VIEW v (a INT) AS SELECT 1",
            {"reason": "column-type"},
            "INT",
            "only the names",
        ),
        ("CREATE MATERIALIZED VIEW v () AS SELECT 1", {"expected": "a name", "found": ")"}, ")", None),
        ("CREATE MATERIALIZED VIEW v (a, A) AS SELECT 1, 2", {"view": "v"}, "v", None),
        ("CREATE MATERIALIZED VIEW `a b` AS SELECT 1", {"reason": "invalid-name"}, "`a b`", "letters"),
        (
            "CREATE MATERIALIZED VIEW v WITH (lates = 'drop') AS SELECT 1",
            {"reason": "unknown-option", "option": "lates"},
            "lates",
            "mean late",
        ),
        (
            "CREATE MATERIALIZED VIEW v WITH (partitions = 3) AS SELECT 1",
            {"reason": "unknown-option", "option": "partitions"},
            "partitions",
            "late",
        ),
        (
            "CREATE MATERIALIZED VIEW v WITH (late = 'x') AS SELECT 1",
            {"option": "late", "value": "x"},
            "WITH (late = 'x') AS",
            "correct",
        ),
        (
            "CREATE MATERIALIZED VIEW v WITH (late = 'drop', correct_for = '1 hour') AS SELECT 1",
            {"option": "correct_for"},
            "WITH (late = 'drop', correct_for = '1 hour') AS",
            "leave one",
        ),
        ("CREATE MATERIALIZED VIEW v AS SELECT (1", {"reason": "not-closed"}, "(", "close it"),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT (1; SHOW TOPICS)",
            {"reason": "not-closed"},
            "(",
            "close it",
        ),
        ("SELECT 1)", {"reason": "not-opened"}, ")", None),
        (
            "CREATE OR REPLACE MATERIALIZED VIEW IF NOT EXISTS v AS SELECT 1",
            {"reason": "or-replace-if-not-exists"},
            "IF",
            "leave one",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT 1 EMIT CHANGES",
            {"reason": "unknown-emit", "found": "CHANGES"},
            "EMIT",
            "ON WINDOW CLOSE",
        ),
        (
            "SELECT 1 EMIT ON WINDOW CLOSE",
            {"reason": "emit-outside-view"},
            "EMIT",
            "CREATE MATERIALIZED VIEW",
        ),
        ("CREATE TOPIC t (a INT) AS SELECT 1", {"reason": "columns-of-query"}, "AS", "leave the columns out"),
        ("CREATE TOPIC t WITH (partitions = 2)", {"expected": "AS", "found": ""}, "^", "columns before WITH"),
        (
            "CREATE TOPIC t (PRIMARY KEY (id))",
            {"topic": "t"},
            "t (PRIMARY KEY (id))",
            None,
        ),
        ("ALTER VIEW v SET (late = 'drop')", {"reason": "alter-view"}, "VIEW", "OR REPLACE"),
        ("DROP MATERIALIZED v", {"expected": "TOPIC"}, "MATERIALIZED", None),
        (
            "SHOW MATERIALIZED",
            {"reason": "unknown-show", "found": "MATERIALIZED"},
            "MATERIALIZED",
            "SHOW TOPICS, VIEWS",
        ),
        ("DESCRIBE v w", {"reason": "not-at-end", "found": "w"}, "w", None),
        ("SELECT 'open", {"reason": "not-closed"}, "'open", None),
    ],
)
def test_a_refusal_points_at_its_place(
    text: str, facts: dict[str, str], underlined: str, hint: str | None
) -> None:
    with raises(StatementError, **facts) as caught:
        parse("SHOW VIEWS;\n\t" + text)
    assert caught.value.detail is not None
    place, line, carets = caught.value.detail.splitlines()[:3]
    assert place.startswith("line 2, column ")
    assert line.strip() == text
    marked = line[carets.index("^") : carets.rindex("^") + 1]
    assert marked == underlined or (underlined == "^" and not marked.strip())
    assert hint is None or hint in (caught.value.hint or "")


def test_env_is_looked_up_when_the_view_is_made() -> None:
    statement = view("CREATE MATERIALIZED VIEW v WITH (late = env('LATE')) AS SELECT 1 AS n")
    assert statement.options == {"late": EnvValue("LATE")}
    schema = pa.schema([("n", pa.int32())])
    made = statement.definition(schema, {"clicks": ["n"]}, {"LATE": "drop"})
    assert (made.options, made.reads, made.query) == (ViewOptions(late="drop"), ("clicks",), "SELECT 1 AS n")
    with raises(UsageError, variable="LATE"):
        statement.definition(schema, {}, {})


def test_a_view_reads_back_from_its_own_statement() -> None:
    text = (
        "CREATE MATERIALIZED VIEW v (a, `b c`) WITH (correct_for = '1 hour', on_error = 'divert') AS\n"
        "SELECT 1, ';' -- why\nEMIT ON WINDOW CLOSE"
    )
    schema = pa.schema([("x", pa.int32()), ("y", pa.string())])
    made = view(text).definition(schema, {})
    again = view(made.to_sql()).definition(schema, {})
    assert again == made
    assert made.columns.names == ["a", "b c"]


def test_a_topic_made_from_a_query_has_its_columns() -> None:
    statement = one("CREATE TOPIC t (PRIMARY KEY (id)) WITH (partitions = 2) AS TABLE u")
    assert isinstance(statement, CreateTopicAs)
    made = statement.definition(pa.schema([("id", pa.int64()), ("n", pa.int64())]))
    assert (made.key, made.partitions, made.schema.names) == (("id",), 2, ["id", "n"])


def test_statements_after_a_query_are_read() -> None:
    assert parse("SELECT 1; SHOW TOPICS") == [QueryText("SELECT 1"), ShowTopics()]


@pytest.mark.parametrize(
    ("statement", "facts", "hint"),
    [
        ("DROP VIEW v.late", {"reason": "part-of-view", "view": "v"}, "another policy for late rows"),
        (
            "DROP VIEW v.errors CASCADE",
            {"reason": "part-of-view", "view": "v"},
            "another policy for failed rows",
        ),
        ("DROP VIEW v.others", {"reason": "unknown-part", "view": "v"}, "DROP VIEW v"),
    ],
)
def test_what_a_view_tells_of_goes_with_it_and_not_alone(
    statement: str, facts: dict[str, str], hint: str
) -> None:
    with raises(StatementError, **facts) as caught:
        parse(statement)
    assert hint in str(caught.value.hint)


def test_a_wrong_value_is_answered_with_the_nearest() -> None:
    with raises(StatementError, option="late", value="dvert") as caught:
        parse("CREATE MATERIALIZED VIEW v WITH (late = 'dvert') AS SELECT 1 AS x")
    assert caught.value.hint == "write late = 'divert'"
