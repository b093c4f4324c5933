"""Names that queries read as keywords: which they are, that they are refused without backticks, and that they work with them."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.types import COLUMN_KEYWORDS, RELATION_KEYWORDS, quote
from headwater.sql.duckdb.serve import serve
from headwater.sql.lexer import HeadwaterDialect
from headwater.sql.parser import parse
from headwater.sql.statements import DropSink, DropSource, DropTopic, DropView, Explain
from tests.raising import raises

RELATIONS = (
    "SELECT * FROM {}",
    "SELECT * FROM {} x",
    "SELECT * FROM {} AS x",
    "SELECT * FROM {} LEFT JOIN v ON a = b",
    "SELECT * FROM {} JOIN v ON a = b",
    "SELECT * FROM a JOIN {} ON x = y",
    "SELECT * FROM a, {} WHERE x = y",
    "SELECT {}.x FROM {} GROUP BY {}.x",
    "SELECT * FROM o JOIN {} FOR SYSTEM_TIME AS OF 'x' AS c ON a = b",
)
COLUMNS = (
    "SELECT {} FROM t",
    "SELECT a, {}, b FROM t",
    "SELECT t.{} FROM t",
    "SELECT {} AS x FROM t",
    "SELECT {} + 1 AS x FROM t",
    "SELECT {}, count(*) AS n FROM t GROUP BY {}",
    "SELECT a FROM t WHERE {} = 1",
    "SELECT a FROM t ORDER BY {} DESC LIMIT 1",
    "SELECT sum({}) AS n FROM t",
)


def tokens() -> set[str]:
    """The keywords of the tokenizer that are single words."""
    every = HeadwaterDialect.Tokenizer.KEYWORDS
    return {word.lower() for word in every if re.fullmatch(r"[A-Za-z_]\w*", word)}


def keywords(spark: SparkSession) -> set[str]:
    """Every keyword that Spark or the tokenizer has."""
    return tokens() | {
        str(row[0]).lower() for row in spark.sql("SELECT keyword FROM sql_keywords()").collect()
    }


class Table:
    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    @property
    def schema(self) -> pa.Schema:
        return self._rows.schema

    def read(self, columns: object, equal: object, first: int | None = None) -> pa.Table:
        return self._rows if columns is None else self._rows.select(list(columns))  # type: ignore[call-overload]


def misread(spark: SparkSession, forms: tuple[str, ...]) -> set[str]:
    """The keywords that Spark's parser reads in another way without backticks than with them, in one of these forms."""
    parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]

    def plan(text: str) -> str:
        try:
            return re.sub(r"#\d+L?|`", "", parser.parsePlan(text).toString())
        except Exception as error:  # noqa: BLE001 - whatever it is, the other spelling has to give the same
            return type(error).__name__

    return {
        word
        for word in keywords(spark)
        if any(plan(form.replace("{}", word)) != plan(form.replace("{}", f"`{word}`")) for form in forms)
    }


@pytest.mark.slow
@pytest.mark.long
def test_the_keywords_are_those_that_spark_does_not_read_as_names(spark: SparkSession) -> None:
    assert misread(spark, RELATIONS) == RELATION_KEYWORDS
    assert misread(spark, COLUMNS) == COLUMN_KEYWORDS - {"as"}, "`as` is misread by the other parser alone"


def test_queries_that_are_served_without_spark_read_every_other_keyword_as_a_name() -> None:
    view = Table(pa.table({"b": [1, 2], "d": [5, 6]}))
    named = {
        "SELECT a, c FROM {}": [1, 3],
        "SELECT a FROM {} LEFT JOIN v ON a = b ORDER BY a": [1, 3],
        "SELECT a, d FROM v JOIN {} ON a = b": [1],
        "SELECT {}.a FROM {} WHERE {}.a = 1": [1],
        "SELECT x.a FROM {} x": [1, 3],
    }
    columns = {
        "SELECT {} FROM t": [1, 3],
        "SELECT {} + 0 AS x FROM t": [1, 3],
        "SELECT {} FROM t WHERE {} IN (1)": [1],
        "SELECT max({}) AS m FROM t": [3],
    }
    for word in sorted(tokens()):
        rows = Table(pa.table({"a": [1, 3], "c": ["x", "y"]}))
        for form, expected in named.items():
            answer = serve(form.replace("{}", word), {word: rows, "v": view})
            assert answer is None or answer.column(0).to_pylist() == expected, (form, word)
        if word in COLUMN_KEYWORDS:
            continue
        for form, expected in columns.items():
            answer = serve(form.replace("{}", word), {"t": Table(pa.table({word: [1, 3], "c": ["x", "y"]}))})
            assert answer is None or answer.column(0).to_pylist() == expected, (form, word)


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TOPIC {} (a INT)",
        "CREATE TOPIC IF NOT EXISTS {} AS SELECT 1 AS a",
        "CREATE OR REPLACE MATERIALIZED VIEW {} AS SELECT 1 AS a",
        "CREATE STANDING QUERY {} ON t (a)",
    ],
)
@pytest.mark.parametrize("word", sorted(RELATION_KEYWORDS))
def test_a_topic_or_view_is_not_called_by_a_keyword_without_backticks(statement: str, word: str) -> None:
    with raises(hw.StatementError, reason="keyword", name=word.upper()) as refused:
        parse(statement.format(word.upper()))
    assert f"`{word.upper()}`" in (refused.value.hint or "")
    assert parse(statement.format(f"`{word}`"))


@pytest.mark.parametrize("word", sorted(COLUMN_KEYWORDS))
def test_a_column_is_not_called_by_a_keyword_without_backticks(word: str) -> None:
    for statement in (
        "CREATE TOPIC t (a INT, {} INT)",
        "ALTER TOPIC t ADD COLUMN {} INT",
        "CREATE MATERIALIZED VIEW v (a, {}) AS SELECT 1 AS a, 2 AS b",
    ):
        with raises(hw.StatementError, reason="keyword", name=word):
            parse(statement.format(word))
        assert parse(statement.format(f"`{word}`"))


def test_statements_find_what_is_called_by_any_keyword() -> None:
    """Sources and sinks are named in statements alone, which read every word as a name."""
    for word in sorted(tokens() - RELATION_KEYWORDS):
        assert parse(f"CREATE TOPIC {word} (a INT)")
        assert parse(f"DROP TOPIC {word}") == [DropTopic(word)]
        assert parse(f"DROP VIEW IF EXISTS {word} CASCADE") == [DropView(word, True, True)]
        assert parse(f"EXPLAIN {word}") == [Explain(word)]
        assert parse(f"DROP SINK {word}") == [DropSink(word)]
        assert parse(f"DROP SOURCE {word}") == [DropSource(word)]
        assert parse(f"CREATE SINK {word} FROM {word} INTO TOPIC WITH (topic = 'x')")


def test_names_are_written_in_backticks_where_they_need_them() -> None:
    assert quote("stream") == "`stream`"
    assert quote("True") == "`True`"
    assert quote("streams") == "streams"


@pytest.mark.slow
def test_topics_and_views_that_have_a_keyword_for_a_name_work_in_backticks(
    tmp_path: Path, spark: SparkSession
) -> None:
    """A name in Python is exact, as in backticks: so workspaces and captured tables that have such names go on."""
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        for word in sorted(RELATION_KEYWORDS):
            ws.topic(word, schema="id BIGINT, `true` INT, PRIMARY KEY (id)").append([{"id": 1, "true": 2}])
        for word in sorted(RELATION_KEYWORDS):
            ws.sql(
                f"CREATE MATERIALIZED VIEW {word}_view AS SELECT l.id, r.`true` AS n FROM `{word}` l LEFT JOIN `stream` r ON l.id = r.id"
            )
        ws.sql(
            "DROP TOPIC `limit` CASCADE; CREATE MATERIALIZED VIEW `limit` AS SELECT id, `true` FROM `from`"
        )
        assert ws.run().stopped == {}
        assert ws.query(
            "SELECT s.id, l.`true` FROM `stream` s LEFT JOIN `limit` l ON s.id = l.id"
        ).to_pylist() == [{"id": 1, "true": 2}]
        assert ws.query("SELECT * FROM stream_view").to_pylist() == [{"id": 1, "n": 2}]
        assert ws.verify().ok
        with pytest.raises(hw.StatementError) as refused:
            ws.sql(
                "CREATE MATERIALIZED VIEW v AS SELECT r.id FROM stream LEFT JOIN stream_view r ON r.id = 1"
            )
        assert "write `stream`" in (refused.value.hint or "")
        explained = ws.sql("EXPLAIN `stream`")
        assert explained is not None
        statement = next(r["value"] for r in explained.to_pylist() if r["property"] == "statement")
        assert statement.startswith("CREATE TOPIC `stream` (")
    with hw.open(tmp_path / "w", durability="os", spark=spark) as again:
        again.sql(statement.replace("TOPIC", "TOPIC IF NOT EXISTS"))
        assert again.run().stopped == {}
