"""What stands behind AS OF is found, whatever follows it, and every place of what Spark reads is one of what was written."""

import pytest

from headwater.core.errors import StatementError
from headwater.sql.ordered_aggregates import spark_query
from headwater.sql.system_time import are_versions_among, may_read_versions
from tests.raising import raises


@pytest.mark.parametrize(
    ("expression", "follows"),
    [
        ("o.at", " AS c ON o.id = c.id"),
        ("o.at", " c ON o.id = c.id"),
        ("`o`.`a t`", " WHERE 1 = 1"),
        ("at", ""),
        ("(o.at)", ", b"),
        ("coalesce(o.a, o.b)", ") c"),
        ("o.at - INTERVAL '1' DAY", " c"),
        ("o.at + INTERVAL 1 DAY 2 HOURS", " AS c"),
        ("o.at + INTERVAL '1 2' DAY TO HOUR", " c"),
        ("-o.n * 2 + f(x)[1]", " LEFT JOIN d"),
        ("CASE WHEN o.a THEN o.b ELSE CASE WHEN o.c THEN o.d END END", " c"),
        ("TIMESTAMP '2026-01-01 00:00:00'", " AS c"),
        ("o.text::timestamp", " c"),
        ("CAST(o.day AS TIMESTAMP)", " AS c"),
        ("'0:17'", ";"),
    ],
)
def test_the_expression_of_a_clause_is_put_in_quotes(expression: str, follows: str) -> None:
    for clause in ("SYSTEM_TIME", "system_version"):
        before = f"SELECT array_agg(x ORDER BY y) FROM a JOIN b FOR {clause} AS OF "
        written = before + expression + follows
        made = spark_query(written)
        (quoted,) = made.quoted
        assert made.text[quoted.start : quoted.end] == expression
        assert made.text[quoted.start - 1] == made.text[quoted.end] in "'\""
        assert made.text[quoted.end + 1 :] == follows
        for at in range(quoted.start, quoted.end):
            assert made.original(at) == len(before) + at - quoted.start


def test_what_is_no_clause_is_left_as_it_is() -> None:
    for text in (
        "SELECT system_time AS of FROM a",
        "SELECT 'FOR SYSTEM_TIME AS OF x'",
        "a FOR SYSTEM_TIME AS OF",
    ):
        assert spark_query(text).text == text


def test_several_clauses_each_have_their_quotes() -> None:
    made = spark_query(
        "FROM a JOIN b FOR SYSTEM_TIME AS OF a.x AS b ON p JOIN c FOR SYSTEM_VERSION AS OF b.y c ON q"
    )
    assert [made.text[start:end] for start, end in made.quoted] == ["a.x", "b.y"]


def test_strings_in_both_kinds_of_quotes_are_refused() -> None:
    with raises(StatementError, reason="mixed-quotes"):
        spark_query("""FROM a FOR SYSTEM_TIME AS OF f('x', "y") c""")


def test_the_words_for_versions_are_seen() -> None:
    assert may_read_versions("SELECT * FROM a FOR system_time AS OF b")
    assert may_read_versions("SELECT * FROM a.Versions")
    assert not may_read_versions("SELECT conversions FROM a")
    assert are_versions_among({"a", "versions"})
    assert not are_versions_among({"a", "of"})
