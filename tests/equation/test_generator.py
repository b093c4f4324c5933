"""The random cases themselves: every SELECT runs, depends on the multiset of rows alone, and no feature is missing."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headwater.core.types import parse_type
from tests.equation.generator import (
    FEATURES,
    STEPS,
    Append,
    Case,
    Column,
    CreateView,
    Delete,
    DropView,
    History,
    Retention,
    Size,
    Tick,
    Topic,
    Upsert,
    View,
    features_of,
    generate,
)
from tests.equation.oracle import Oracle, compare, sort_sets
from tests.equation.shrinking import reproduction, shrink, tidy

SEEDS = range(64)
SMALL = Size(views=3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(SEEDS[i : i + 8], id=str(SEEDS[i : i + 8]), marks=[pytest.mark.long] if i >= 16 else [])
        for i in range(0, len(SEEDS), 8)
    ],
)
def test_every_select_runs_and_depends_on_no_order_of_rows(seeds: range, oracle: Oracle) -> None:
    for seed in seeds:
        case = generate(seed, SMALL)
        history = History.of(case)
        tables = {name: history.table(name) for name in history.topics}
        first = oracle.run(tables, case.all_views)
        again = oracle.run(tables, case.all_views, random.Random(seed))
        for view in case.all_views:
            difference = compare(again[view.name], first[view.name])
            assert difference is None, f"seed {seed}, {view.ddl}\n{difference}"
            promised = pa.schema([pa.field(c.name, parse_type(c.kind)) for c in view.columns])
            difference = compare(first[view.name].slice(0, 0), promised.empty_table())
            assert difference is None, f"seed {seed}, {view.ddl}\n{difference}"


def test_the_seeds_cover_every_feature() -> None:
    covered = frozenset().union(*(features_of(generate(seed, SMALL)) for seed in SEEDS))
    assert FEATURES - covered == set()


def test_a_seed_gives_the_same_case_each_time() -> None:
    # By text: a NaN is not equal to itself.
    assert [str(generate(seed)) for seed in range(20)] == [str(generate(seed)) for seed in range(20)]


def test_what_is_switched_off_is_not_used() -> None:
    few = {"filter", "group_by", "count", "sum", "join_inner", "keyed_topics"}
    for seed in range(40):
        assert features_of(generate(seed, features=few)) <= few | {"same_row"}, f"seed {seed}"
    assert all(features_of(generate(seed, features=())) <= {"same_row"} for seed in range(40))
    with pytest.raises(ValueError):
        generate(0, features={"teleport"})


def test_a_larger_size_makes_more() -> None:
    def views(size: Size) -> int:
        return sum(len(generate(seed, size).all_views) for seed in range(20))

    assert views(Size(views=8)) > views(Size(views=3)) > views(Size(views=1)) > 0


@pytest.mark.parametrize("seed", range(40))
def test_a_script_names_only_what_is_there(seed: int) -> None:
    case = generate(seed)
    assert str(tidy(case)) == str(case)
    assert isinstance(case.steps[-1], Tick)


def test_no_view_is_created_over_a_topic_whose_history_was_cut() -> None:
    for seed in range(300):
        case = generate(seed, features=STEPS | {"views_over_views", "group_by", "count"})
        below = {topic.name: {topic.name} for topic in case.topics}
        for view in case.all_views:
            below[view.name] = set().union(*(below[name] for name in view.reads))
        cut: set[str] = set()
        for step in case.steps:
            if isinstance(step, Retention):
                cut.add(step.topic)
            elif isinstance(step, CreateView):
                assert not below[step.view.name] & cut, f"seed {seed}"


K = Topic("k", (Column("id", "BIGINT"), Column("n", "BIGINT")), key=("id",))
P = Topic("p", (Column("n", "BIGINT"),))
SUMS = View("sums", "SELECT sum(k.n) AS s FROM k", ("k",))


def test_a_keyed_topic_is_the_latest_row_of_each_key() -> None:
    steps = (
        Upsert("k", ({"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 1, "n": 3})),
        Delete("k", ({"id": 2}, {"id": 9})),
    )
    assert History.of(Case((K,), (), steps)).table("k").to_pylist() == [{"id": 1, "n": 3}]
    assert History.of(Case((K,), (), steps), 1).table("k").num_rows == 2


def test_a_plain_topic_keeps_every_row_but_a_sequence_only_once() -> None:
    row = {"n": 1}
    steps = (Append("p", (row,), "loader", 1), Append("p", (row,), "loader", 1), Append("p", (row, row)))
    assert History.of(Case((P,), (), steps)).table("p").to_pylist() == [row] * 3


def test_views_come_and_go_with_their_steps() -> None:
    case = Case((K,), (), (CreateView(SUMS), DropView("sums")))
    assert [list(History.of(case, steps).views) for steps in range(3)] == [[], ["sums"], []]


def test_views_read_views_in_the_oracle(oracle: Oracle) -> None:
    twice = View(
        "twice", "SELECT 2 * sums.s AS t, collect_set(k.n) AS c FROM sums, k GROUP BY 1", ("sums", "k")
    )
    rows = tuple({"id": n, "n": n} for n in (3, 1, 2))
    results = oracle.evaluate(History.of(Case((K,), (SUMS, twice), (Upsert("k", rows),))))
    assert results["twice"].to_pylist() == [{"t": 12, "c": [1, 2, 3]}]


def test_an_empty_list_of_views_is_not_all_of_them(oracle: Oracle) -> None:
    assert oracle.evaluate(History.of(Case((K,), (SUMS,), ())), []) == {}


@pytest.mark.parametrize(
    ("select", "sorted_one"),
    [
        ("SELECT collect_set(a) FROM t", "SELECT sort_array(collect_set(a)) FROM t"),
        (
            "SELECT collect_set(f(')')) FILTER (WHERE (a)) AS x, collect_set(b)",
            "SELECT sort_array(collect_set(f(')')) FILTER (WHERE (a))) AS x, sort_array(collect_set(b))",
        ),
        ("SELECT 1", "SELECT 1"),
    ],
)
def test_sets_are_sorted(select: str, sorted_one: str) -> None:
    assert sort_sets(select) == sorted_one


def table(values: list[Any], kind: pa.DataType | None = None) -> pa.Table:
    return pa.table({"x": pa.array(values, kind)})


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([1, 2, 2, None], [2, None, 1, 2]),
        ([math.nan, 0.0, math.inf], [math.inf, -0.0, math.nan]),
        ([1.0, 1e300], [1e300 * (1 + 1e-12), 1.0 + 1e-12]),
        ([[1.0, None], [], None], [None, [1.0 + 1e-12, None], []]),
        ([{"a": 0.1, "b": [math.nan]}], [{"a": 0.1 + 1e-13, "b": [math.nan]}]),
        ([Decimal("1.50")], [Decimal("1.50")]),
    ],
)
def test_equal_multisets_compare_equal(actual: list[Any], expected: list[Any]) -> None:
    assert compare(table(actual), table(expected)) is None


@pytest.mark.parametrize(
    ("actual", "expected", "told"),
    [
        ([1, 1, 2], [1, 2, 2], "only in actual: (1)\nonly in expected: (2)"),
        ([1.0], [1.0 + 1e-6], "only in actual: (1.0)"),
        ([math.inf], [1.7e308], "only in actual: (inf)"),
        ([None], [math.nan], "only in actual: (None)"),
        ([[1, 2]], [[2, 1]], "only in actual: ([1, 2])"),
        ([[[1], []]], [[[], [1]]], "only in actual: ([[1], []])"),
        ([1, 1], [1], "2 rows, expected 1"),
        (list(range(30)), [], "only in actual: and 20 more"),
    ],
)
def test_a_difference_is_reported(actual: list[Any], expected: list[Any], told: str) -> None:
    kind = pa.array(actual or [1]).type if None not in actual else pa.float64()
    assert told in (compare(table(actual, kind), table(expected, kind)) or "")


def test_types_and_columns_are_part_of_a_table() -> None:
    assert "is int32, expected int64" in (compare(table([], pa.int32()), table([], pa.int64())) or "")
    assert "columns differ" in (compare(table([1]), pa.table({"x": [1], "y": [1]})) or "")


def test_shrinking_leaves_what_fails_and_prints_it_as_a_test(capsys: pytest.CaptureFixture[str]) -> None:
    def fails(case: Case) -> bool:
        rows = [row for name in History.of(case).log for row, _ in History.of(case).log[name]]
        return any(row.get("n") == 77 for row in rows) and bool(case.all_views)

    case = generate(1, Size(topics=2, views=4, steps=20, rows=10))
    row = {"id": 5, "n": 77}
    noise = tuple({"id": n, "n": n} for n in range(8))
    case = replace(
        case,
        topics=(*case.topics, K),
        views=(*case.views, SUMS),
        steps=(*case.steps, Upsert("k", (*noise, row, *noise)), Tick()),
    )
    small = shrink(case, fails)
    assert [len(part) for part in (small.views, small.steps)] == [1, 1]
    assert small.steps == (Upsert("k", (row,)),)
    text = capsys.readouterr().out
    assert text.strip() == reproduction(small).strip()
    compile(text, "reproduction", "exec")


@pytest.mark.parametrize("seed", range(20))
def test_a_reproduction_makes_the_case_again(seed: int, tmp_path: Path) -> None:
    case = generate(seed)
    played: list[Case] = []

    class Player:
        def __init__(self, case: Case, *_: object) -> None:
            played.append(case)

        def play(self) -> None: ...

    text = reproduction(case).replace("from tests.equation.play import Player", "")
    names: dict[str, Any] = {"Player": Player}
    exec(text, names)
    names[f"test_seed_{seed}_once_failed"](tmp_path, None, None)
    assert reproduction(played[0]) == reproduction(case)
    assert str(played[0].steps[0]) == str(case.steps[0])
