"""Patterns whose results others have published, Trino above all: what they say comes out, comes out here.

A case is numbers, which are the values of rows 1, 2, 3 ..., a clause, and the rows that it gives.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.errors import EvaluationError, StatementError
from headwater.core.settings import LogSettings
from tests.raising import raises

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
Rows = list[tuple[Any, ...]]

DOWN = (90, 80, 70, 70)
VALLEYS = (90, 80, 70, 80, 90, 50, 40, 60)
FALLS_RISES = "DEFINE B AS B.value < PREV(B.value), C AS C.value > PREV(C.value)"
LABELLED = "MEASURES MATCH_NUMBER() AS n, RUNNING LAST(value) AS v, CLASSIFIER() AS l ALL ROWS PER MATCH"
SHOWN = "id, n, v, l"


@pytest.fixture(scope="module")
def ws(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path_factory.mktemp("examples") / "w", settings=SETTINGS, spark=spark) as opened:
        yield opened


def asked(ws: hw.Workspace, relation: str, clause: str, shown: str = "*") -> Rows:
    table = ws.query(f"SELECT {shown} FROM {relation} MATCH_RECOGNIZE ({clause}) AS m")
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=_sortable)


def _sortable(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is not None, value if value is not None else 0) for value in row]


def series(values: tuple[int, ...]) -> str:
    return f"(VALUES {', '.join(f'({i}, {v})' for i, v in enumerate(values, 1))}) t(id, value)"


ZIGZAG = (90, 80, 70, 80, 70, 80)


def zigzag(*matches: tuple[int, str]) -> Rows:
    """Matches by their first rows and labels."""
    return sorted(
        (first + i, number, ZIGZAG[first + i - 1], label)
        for number, (first, labels) in enumerate(matches, 1)
        for i, label in enumerate(labels)
    )


@pytest.mark.parametrize(
    ("skip", "expected"),
    [
        ("PAST LAST ROW", zigzag((1, "ABBC"))),
        ("TO NEXT ROW", zigzag((1, "ABBC"), (2, "ABC"), (4, "ABC"))),
        ("TO FIRST C", zigzag((1, "ABBC"), (4, "ABC"))),
        ("TO LAST B", zigzag((1, "ABBC"), (4, "ABC"))),
        ("TO B", zigzag((1, "ABBC"), (4, "ABC"))),
        ("TO U", zigzag((1, "ABBC"), (4, "ABC"))),
        ("TO A", "skip-same-match"),
        ("TO D", "skip-no-row"),
    ],
)
def test_where_the_search_goes_on(ws: hw.Workspace, skip: str, expected: Rows | str) -> None:
    clause = (
        f"ORDER BY id {LABELLED} AFTER MATCH SKIP {skip} PATTERN (A B+ C+ D?) SUBSET U = (C, D) "
        f"{FALLS_RISES}, D AS false"
    )
    if isinstance(expected, str):
        with raises(EvaluationError, reason=expected, pattern="A B+ C+ D?"):
            asked(ws, series(ZIGZAG), clause)
    else:
        assert asked(ws, series(ZIGZAG), clause, SHOWN) == expected


@pytest.mark.parametrize(
    ("rows", "pattern", "expected"),
    [
        ("ONE ROW PER MATCH", "B*", [(1, None, None), (2, 70, "B"), (3, None, None)]),
        ("", "B*", [(1, None, None), (2, 70, "B"), (3, None, None)]),
        ("ONE ROW PER MATCH", "B+", [(1, 70, "B")]),
        ("ALL ROWS PER MATCH", "B*", [(1, None, None), (2, 70, "B"), (2, 80, "B"), (3, None, None)]),
        ("ALL ROWS PER MATCH", "B+", [(1, 70, "B"), (1, 80, "B")]),
        ("ALL ROWS PER MATCH SHOW EMPTY MATCHES", "B*", [(1, None, None), (2, 70, "B"), (2, 80, "B"), (3, None, None)]),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", "B*", [(2, 70, "B"), (2, 80, "B")]),
        ("ALL ROWS PER MATCH OMIT EMPTY MATCHES", "B+", [(1, 70, "B"), (1, 80, "B")]),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS", "B+", [(None, None, None), (None, None, None), (1, 70, "B"), (1, 80, "B")]),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS", "B*", [(1, None, None), (2, 70, "B"), (2, 80, "B"), (3, None, None)]),
    ],
)  # fmt: skip
def test_rows_per_match(ws: hw.Workspace, rows: str, pattern: str, expected: Rows) -> None:
    clause = (
        f"ORDER BY id MEASURES MATCH_NUMBER() AS n, RUNNING LAST(value) AS v, CLASSIFIER() AS l {rows} "
        f"PATTERN ({pattern}) DEFINE B AS B.value < PREV(B.value)"
    )
    assert asked(ws, series(DOWN), clause, "n, v, l") == expected


def test_a_row_of_one_match_is_not_unmatched_because_it_begins_no_other(ws: hw.Workspace) -> None:
    clause = """ORDER BY id MEASURES MATCH_NUMBER() AS n, CLASSIFIER() AS l ALL ROWS PER MATCH WITH UNMATCHED ROWS
        AFTER MATCH SKIP TO NEXT ROW PATTERN (A B{2}) DEFINE B AS B.value < PREV(B.value)"""
    found = asked(ws, series((100, 100, 90, 80, 70, 100)), clause, "id, n, l")
    first = [(2, 1, "A"), (3, 1, "B"), (3, 2, "A"), (4, 1, "B"), (4, 2, "B"), (5, 2, "B")]
    assert found == [(1, None, None), *first, (6, None, None)]


NAVIGATED: list[tuple[str, tuple[Any, ...]]] = [
    ("value", (10, 20, 30)),
    ("LAST(value)", (10, 20, 30)),
    ("RUNNING LAST(value)", (10, 20, 30)),
    ("FINAL LAST(value)", (30, 30, 30)),
    ("FIRST(value)", (10, 10, 10)),
    ("FINAL FIRST(value)", (10, 10, 10)),
    ("FINAL LAST(value, 2)", (10, 10, 10)),
    # up to the current row there are not three of them before the third
    ("FIRST(value, 2)", (None, None, 30)),
    ("FINAL FIRST(value, 2)", (30, 30, 30)),
    ("LAST(value, 10)", (None, None, None)),
    ("PREV(value)", (None, 10, 20)),
    ("PREV(value, 0)", (10, 20, 30)),
    ("NEXT(value)", (20, 30, None)),
    ("NEXT(FIRST(value), 2)", (30, 30, 30)),
    ("NEXT(FIRST(value), 10)", (None, None, None)),
    ("PREV(FIRST(value, 10), 2)", (None, None, None)),
    ("PREV(LAST(value, 1), 1)", (None, None, 10)),
    ("FIRST(A.value) IN (30, LAST(A.value))", (True, False, False)),
    ("CLASSIFIER() IN ('X', lower(CLASSIFIER()))", (False, False, False)),
    ("MATCH_NUMBER() IN (0, MATCH_NUMBER())", (True, True, True)),
]


def test_navigation(ws: hw.Workspace) -> None:
    measures = ", ".join(f"{measure} AS m{i}" for i, (measure, _) in enumerate(NAVIGATED))
    clause = f"ORDER BY id MEASURES {measures} ALL ROWS PER MATCH PATTERN (A+)"
    found = zip(*asked(ws, series((10, 20, 30)), clause), strict=True)
    shown = dict(zip([measure for measure, _ in NAVIGATED], list(found)[1:-1], strict=True))
    assert shown == dict(NAVIGATED)


def test_navigation_leaves_the_match_and_not_the_partition(ws: hw.Workspace) -> None:
    measures = "PREV(B.value, 4) AS a, PREV(B.value, 3) AS b, PREV(B.value, 2) AS c, NEXT(B.value, 1) AS d, NEXT(B.value, 2) AS e"
    clause = f"ORDER BY id MEASURES {measures} PATTERN (A B) DEFINE B AS B.value = PREV(B.value)"
    assert asked(ws, series((10, 20, 30, 30, 40)), clause) == [(None, 10, 20, 40, None)]


def test_a_condition_looks_back_at_what_was_matched(ws: hw.Workspace) -> None:
    def labels(values: tuple[int, ...], define: str, subset: str = "", end: str = "") -> list[str]:
        clause = f"ORDER BY id MEASURES CLASSIFIER() AS l ALL ROWS PER MATCH PATTERN ((A | B)* X {end}) {subset} DEFINE X AS {define}"
        return [row[1] for row in asked(ws, series(values), clause, "id, l")]

    assert labels((1, 1), "value = A.value") == ["A", "X"]
    assert labels((1, 1), "value = B.value") == ["B", "X"]
    sums = "value = PREV(LAST(A.value), 3) + FIRST(A.value) + PREV(LAST(B.value), 2)"
    assert labels((1, 2, 3, 4, 5, 6), sums) == ["B", "A", "A", "A", "B", "X"]
    named = "PREV(CLASSIFIER(U), 1) = 'A' AND LAST(CLASSIFIER(), 3) = 'B' AND FIRST(CLASSIFIER(U)) = 'B'"
    assert labels((1, 2, 3, 4, 5), named, "SUBSET U = (A, B)", "$") == ["B", "B", "A", "A", "X"]


def test_labels_of_rows_ahead_are_known_to_measures_alone(ws: hw.Workspace) -> None:
    clause = (
        f"ORDER BY id MEASURES NEXT(CLASSIFIER()) AS l ALL ROWS PER MATCH PATTERN (A B+ C+) {FALLS_RISES}"
    )
    assert asked(ws, series((90, 80, 70, 80)), clause, "id, l") == [(1, "B"), (2, "B"), (3, "C"), (4, None)]
    never = "ORDER BY id ALL ROWS PER MATCH PATTERN (A+) DEFINE A AS NEXT(CLASSIFIER()) = 'A'"
    assert asked(ws, series((90, 80, 70, 80)), never) == []


def test_names_of_variables(ws: hw.Workspace) -> None:
    clause = """ORDER BY id MEASURES CLASSIFIER() AS l ALL ROWS PER MATCH PATTERN (a `b`+ C+)
        DEFINE `b` AS `b`.value < PREV(`b`.value), c AS C.value > PREV(c.value)"""
    assert asked(ws, series((90, 80, 70, 80)), clause, "id, l") == [(1, "A"), (2, "b"), (3, "b"), (4, "C")]
    # a word of the clause is a name where a name is expected
    named = "FIRST(CLASSIFIER()) = 'B' AND " + " AND ".join(
        f"FIRST(CLASSIFIER(), {i}) = 'B'" for i in range(1, 8)
    )
    words = f"ORDER BY id MEASURES CLASSIFIER() AS l ALL ROWS PER MATCH PATTERN ((A | B)+ LAST) DEFINE LAST AS {named}"
    assert [row[1] for row in asked(ws, series(tuple(range(9))), words, "id, l")] == ["B"] * 8 + ["LAST"]


def test_a_subset_is_the_rows_of_its_variables(ws: hw.Workspace) -> None:
    clause = """ORDER BY id MEASURES CLASSIFIER(U) AS u, CLASSIFIER(W) AS w ALL ROWS PER MATCH PATTERN ((L | H) A)
        SUBSET U = (L, H), W = (A, L, H) DEFINE A AS A.value = 80, L AS L.value < 80, H AS H.value > 80"""
    found = asked(ws, series((90, 80, 70, 80)), clause, "id, u, w")
    assert found == [(1, "H", "H"), (2, "H", "A"), (3, "L", "L"), (4, "L", "A")]


def test_running_and_final(ws: hw.Workspace) -> None:
    clause = f"""ORDER BY id MEASURES FINAL LAST(CLASSIFIER()) AS l, LAST(A.value) AS a, FINAL LAST(A.value) AS fa,
        LAST(B.value) AS b, FINAL LAST(B.value) AS fb, LAST(C.value) AS c, FINAL LAST(C.value) AS fc
        ALL ROWS PER MATCH PATTERN (A B+ C+) {FALLS_RISES}"""
    found = asked(ws, series((90, 80, 70, 100, 200)), clause, "id, l, a, fa, b, fb, c, fc")
    assert found == [
        (1, "C", 90, 90, None, 70, None, 200),
        (2, "C", 90, 90, 80, 70, None, 200),
        (3, "C", 90, 90, 70, 70, None, 200),
        (4, "C", 90, 90, 70, 70, 100, 200),
        (5, "C", 90, 90, 70, 70, 200, 200),
    ]


def test_columns_of_the_output_are_in_the_order_of_the_standard(ws: hw.Workspace) -> None:
    relation = "(VALUES ('ordering', 'partitioning', 90)) t(id, part, value)"
    clause = "PARTITION BY part ORDER BY id MEASURES CLASSIFIER() AS l {} PATTERN (A)"
    assert asked(ws, relation, clause.format("ALL ROWS PER MATCH")) == [("partitioning", "ordering", "A", 90)]
    assert asked(ws, relation, clause.format("ONE ROW PER MATCH")) == [("partitioning", "A")]


def test_several_in_one_query(ws: hw.Workspace) -> None:
    one = "MATCH_RECOGNIZE (ORDER BY id MEASURES CLASSIFIER() AS l ALL ROWS PER MATCH PATTERN ({}))"
    query = f"""SELECT a.l, b.l AS m, c.l AS n FROM (VALUES (1), (2), (3)) t(id) {one.format("A")} AS a,
        (VALUES (10), (20)) t(id) {one.format("B")} AS b, (VALUES (100)) t(id) {one.format("C")} AS c"""
    assert [tuple(row.values()) for row in ws.query(query).to_pylist()] == [("A", "B", "C")] * 6


def test_what_could_be_tried_in_many_ways_is_not(ws: hw.Workspace) -> None:
    clause = "ORDER BY id PATTERN ((A+)+ B) DEFINE A AS value = 1, B AS value = 2"
    assert asked(ws, series((1,) * 200), clause) == []


LETTERS = "(VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')) t(id, value)"


def column(ws: hw.Workspace, relation: str, measure: str, rest: str) -> list[Any]:
    """A measure at every row of matches."""
    clause = f"ORDER BY id MEASURES {measure} AS m ALL ROWS PER MATCH {rest}"
    return [row[1] for row in asked(ws, relation, clause, "id, m.m")]


AGGREGATED: list[tuple[str, str, list[Any]]] = [
    ("array_agg(value || CLASSIFIER())", "PATTERN (X Y Z+)", [["aX"], ["aX", "bY"], ["aX", "bY", "cZ"], ["aX", "bY", "cZ", "dZ"]]),
    ("array_agg(U.id)", "PATTERN (X Y Z Y) SUBSET U = (X, Z)", [[1], [1], [1, 3], [1, 3]]),
    ("array_agg(CLASSIFIER(U))", "PATTERN (X Y Z Y) SUBSET U = (X, Z)", [["X"], ["X"], ["X", "Z"], ["X", "Z"]]),
    ("array_agg(U.value || CLASSIFIER(U))", "PATTERN (X Y Z Y) SUBSET U = (X, Z)", [["aX"], ["aX"], ["aX", "cZ"], ["aX", "cZ"]]),
    ("FINAL array_agg(lower(CLASSIFIER()))", "PATTERN (A B C D)", [["a", "b", "c", "d"]] * 4),
    ("sum(MATCH_NUMBER() * 100)", "PATTERN (A B C D)", [100, 200, 300, 400]),
    ("FINAL sum(-MATCH_NUMBER())", "PATTERN (A B C D)", [-4] * 4),
    ("max_by(value, CLASSIFIER())", "PATTERN (A B D C)", ["a", "b", "c", "c"]),
    ("max_by(CLASSIFIER(A), A.id)", "PATTERN (B A C A)", [None, "A", "A", "A"]),
    ("min_by(1, 2)", "PATTERN (A+)", [1] * 4),
    ("min_by(B.value, 1)", "PATTERN (A B A A)", [None, "b", "b", "b"]),
    ("count(C.*)", "PATTERN (A B C D)", [0, 0, 1, 1]),
    ("count(U.*)", "PATTERN (A B C D) SUBSET U = (B, D)", [0, 1, 1, 2]),
    ("concat_ws('', array_agg(lower(CLASSIFIER(U))))", "PATTERN (M X T X) SUBSET U = (M, T)", ["m", "m", "mt", "mt"]),
    # what is navigated to may be an expression over the row and how it is classified
    ("LAST(value || CLASSIFIER(), 1)", "PATTERN (A B C D)", [None, "aA", "bB", "cC"]),
    ("NEXT(FIRST(B.value || lower(CLASSIFIER(B))))", "PATTERN (A B C D)", [None, "cc", "cc", "cc"]),
    ("PREV(coalesce(CLASSIFIER(), 'none'))", "PATTERN (A B C D)", [None, "A", "B", "C"]),
    ("LAST(CLASSIFIER() = 'A' OR id > 2)", "PATTERN (A B C D)", [True, False, True, True]),
    # DISTINCT and FILTER
    ("count(DISTINCT id % 2)", "PATTERN (A+)", [1, 2, 2, 2]),
    ("sum(DISTINCT id % 2)", "PATTERN (A+)", [1, 1, 1, 1]),
    ("count(DISTINCT id % 2, id % 3)", "PATTERN (A+)", [1, 2, 3, 4]),
    ("sum(id) FILTER (WHERE id % 2 = 0)", "PATTERN (A+)", [None, 2, 2, 6]),
    ("count(*) FILTER (WHERE CLASSIFIER() = 'B')", "PATTERN (A B A B)", [0, 1, 1, 2]),
    ("count(B.*) FILTER (WHERE B.id > 2)", "PATTERN (A B A B)", [0, 0, 0, 1]),
    ("array_agg(DISTINCT id % 3) FILTER (WHERE id > 1)", "PATTERN (A+)", [[], [2], [2, 0], [2, 0, 1]]),
    ("max_by(value, -id) FILTER (WHERE id > 1)", "PATTERN (A+)", [None, "b", "b", "b"]),
    # other aggregates, as Spark has them
    ("var_pop(id)", "PATTERN (A+)", [0.0, 0.25, 2 / 3, 1.25]),
    ("stddev(id)", "PATTERN (A{2})", [None, 0.7071067811865476] * 2),
    ("collect_set(id % 2)", "PATTERN (A+)", [[1], [1, 0], [1, 0], [1, 0]]),
    ("string_agg(value, '-')", "PATTERN (A+)", ["a", "a-b", "a-b-c", "a-b-c-d"]),
    ("bool_and(id < 3)", "PATTERN (A+)", [True, True, False, False]),
    ("count_if(id > 2)", "PATTERN (A+)", [0, 0, 1, 2]),
    ("any_value(value)", "PATTERN (A+)", ["a"] * 4),
    ("last_value(value)", "PATTERN (A+)", ["a", "b", "c", "d"]),
    ("max(struct(-id, value)).value", "PATTERN (A+)", ["a"] * 4),
    ("bit_xor(id)", "PATTERN (A+)", [1, 3, 0, 4]),
    ("corr(id, 2 * id)", "PATTERN (A{3})", [None, 1.0, 1.0]),
    ("count(DISTINCT CLASSIFIER())", "PATTERN (A B A C)", [1, 2, 2, 3]),
    ("avg(CAST(id AS DECIMAL(5, 2))) FILTER (WHERE id <> 2)", "PATTERN (A+)", [Decimal("1"), Decimal("1"), Decimal("2"), Decimal("2.666667")]),
]  # fmt: skip


@pytest.mark.parametrize("rest", list(dict.fromkeys(rest for _, rest, _ in AGGREGATED)))
def test_aggregates(ws: hw.Workspace, rest: str) -> None:
    expected = {measure: values for measure, own, values in AGGREGATED if own == rest}
    measures = ", ".join(f"{measure} AS m{i}" for i, measure in enumerate(expected))
    clause = f"ORDER BY id MEASURES {measures} ALL ROWS PER MATCH {rest}"
    shown = ["id", *(f"m{i}" for i in range(len(expected)))]
    table = ws.query(f"SELECT {', '.join(shown)} FROM {LETTERS} MATCH_RECOGNIZE ({clause}) AS m ORDER BY id")
    assert dict(zip(expected, (c.to_pylist() for c in table.columns[1:]), strict=True)) == expected


def test_a_column_called_as_a_variable_is(ws: hw.Workspace) -> None:
    relation = "(VALUES (1, 'p'), (2, 'q'), (3, NULL), (4, 's')) t(id, A)"
    clause = "ORDER BY id MEASURES count(A.A) AS own, count(A) AS every, count(A.*) AS n ALL ROWS PER MATCH PATTERN (A B A A)"
    found = asked(ws, relation, clause, "id, own, every, n")
    assert found == [(1, 1, 1, 1), (2, 1, 2, 1), (3, 1, 2, 2), (4, 2, 3, 3)]


@pytest.mark.parametrize(
    ("values", "pattern", "define", "expected"),
    [
        # a row that is tried and not taken is in no aggregate
        ((4, 6, 0), "(A | B)*", "A AS avg(B.value) = 5", "BBA"),
        ((4, 6, 0, 5), "(A | B)*", "A AS avg(A.value) = 5", "BBBA"),
        ((1, 1, 1, 1, 1), "(A | B)*", "A AS sum(value) > 4", "BBBBA"),
        ((2, 4, 6, 8, 10), "(A | B)*", "A AS max(value + MATCH_NUMBER()) > 5", "BBAAA"),
        ((4, 6, 10, 1, 1, 1, 10, 5, 1), "(A | B)*", "A AS sum(A.value) - A.value <= sum(B.value)", "BABAAAABA"),
        # two sets of the same sum
        (tuple(range(1, 9)), "^(A | B)* (X | Y)$", "X AS sum(A.id) + id = sum(B.id), Y AS sum(B.id) + id = sum(A.id)", "AAAABBBX"),
        ((1, 2, 3, 4), "(A | B | C)* X", "X AS array_agg(CLASSIFIER()) = array('C', 'A', 'B', 'X')", "CABX"),
        (
            tuple(range(1, 9)), "(A | B){4}",
            "A AS max(id - 2 * MATCH_NUMBER()) > 1 AND max(CLASSIFIER()) = 'B', B AS min(lower(CLASSIFIER())) = 'b' OR min(MATCH_NUMBER() + 100) < 0",
            "BBBABAAA",
        ),
        ((1, 2, 3, 9), "A+ B", "B AS B.value > approx_count_distinct(A.value)", None),
        ((1, 2, 3, 9, 1), "A+ B", "A AS coalesce(stddev_pop(A.value), 0) < 1, B AS B.value > max(A.value)", "AAAB"),
        ((1, 2, 1, 2, 3), "A+ B", "A AS count(DISTINCT A.value) <= 2, B AS B.value > 2", "AAAAB"),
    ],
)  # fmt: skip
def test_aggregates_in_conditions(
    ws: hw.Workspace, values: tuple[int, ...], pattern: str, define: str, expected: str | None
) -> None:
    rest = f"PATTERN ({pattern}) DEFINE {define}"
    if expected is None:
        with pytest.raises(StatementError):
            column(ws, series(values), "CLASSIFIER()", rest)
        return
    assert "".join(column(ws, series(values), "CLASSIFIER()", rest)) == expected
