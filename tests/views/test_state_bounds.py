"""What bounds the state of a view: read off its operators alone, refused where it was asked to be bounded, and bound_text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.engine.dataflow.facets.kept_state import Extent
from headwater.operators import graph as g
from headwater.views.state_growth import bound_text, kept_states, rows, topic_extent
from tests.raising import raises
from tests.sql.test_sql_support import declarations, table

ROW = pa.schema([("a", pa.int64()), ("b", pa.int64())])
CLICKS = g.SourceNode("clicks", (0, 1), ROW, append_only=True)
ORDERS = g.SourceNode("orders", (0, 1), ROW, append_only=False)
KNOWN = {"clicks": topic_extent("clicks", keyed=False), "orders": topic_extent("orders", keyed=True)}


def function(kind: str, *, ordered: bool = False) -> g.MergeableFunction:
    return g.MergeableFunction(kind, f"{kind}(b)", (1,), None, ordered)


def aggregate(below: g.Node, keys: int, *functions: g.MergeableFunction) -> g.AggregateNode:
    return g.AggregateNode(below, keys, functions, ROW)


def join(left: g.Node, right: g.Node, kind: g.JoinKind = "inner") -> g.Join:
    return g.Join(left, right, kind, (0,), (0,), None, ROW)


def rank(below: g.Node, key: tuple[int, ...], function: g.RankFunction = "row_number") -> g.Rank:
    return g.Rank(below, key, (g.OrderKey(1, False, True),), function, 3, 0, False, ROW)


def regroup(below: g.Node, key: tuple[int, ...], *, whole: bool = False) -> g.Regroup:
    return g.Regroup(below, key, "any", None, ROW, whole)


def grows(root: g.Node) -> list[str]:
    """The topics that the state of a graph grows with."""
    found = frozenset[str]()
    for part in kept_states(root, KNOWN):
        found |= part.extent.topics
    return sorted(found)


@pytest.mark.parametrize(
    "root",
    [
        CLICKS,
        g.Map(CLICKS, (), ROW),
        g.Union((CLICKS, ORDERS), ROW),
        aggregate(CLICKS, 0, function("count"), function("max")),
        aggregate(ORDERS, 1, function("count"), function("max", ordered=True)),
        aggregate(ORDERS, 0, function("max", ordered=True)),
        join(ORDERS, ORDERS),
        join(ORDERS, aggregate(CLICKS, 0, function("count"))),
        rank(ORDERS, (0,)),
        regroup(ORDERS, (0,)),
        aggregate(g.Map(aggregate(CLICKS, 0, function("sum")), (), ROW), 1, function("count")),
        g.FoldNode(CLICKS, (), "step", "", ROW, None),
        g.FoldNode(ORDERS, (0,), "step", "", ROW, None),
    ],
    ids=lambda node: type(node).__name__,
)
def test_state_that_no_history_lets_grow(root: g.Node) -> None:
    assert grows(root) == []


@pytest.mark.parametrize(
    "root",
    [
        aggregate(CLICKS, 1, function("count")),
        aggregate(CLICKS, 2),
        aggregate(CLICKS, 0, function("max", ordered=True)),
        aggregate(g.Map(CLICKS, (), ROW), 1, function("count")),
        aggregate(g.Union((ORDERS, CLICKS), ROW), 1, function("count")),
        join(CLICKS, ORDERS),
        join(ORDERS, CLICKS, "semi"),
        rank(CLICKS, ()),
        regroup(CLICKS, ()),
        regroup(CLICKS, (), whole=True),
        aggregate(aggregate(CLICKS, 2), 0, function("count")),
        g.FoldNode(CLICKS, (0,), "step", "", ROW, None),
    ],
    ids=lambda node: type(node).__name__,
)
def test_state_that_grows_with_a_topic_that_only_grows(root: g.Node) -> None:
    assert grows(root) == ["clicks"]


def test_state_that_the_watermark_passes_does_not_grow() -> None:
    window = pa.struct([("start", pa.timestamp("us")), ("end", pa.timestamp("us"))])
    counted = pa.schema([("w", window), ("n", pa.int64())])
    below = g.Map(join(CLICKS, ORDERS), (), ROW)
    root = g.AggregateNode(below, 1, (function("count"),), counted)
    expiring = {id(root): frozenset({"clicks"}), id(below.input): frozenset({"clicks"})}
    assert bound_text(root, KNOWN).startswith("grows with clicks")
    assert bound_text(root, KNOWN, expiring) == (
        "bounded by time: it keeps the rows of clicks, for later rows of the other side, until the "
        "watermark of clicks has passed, and bounded by orders"
    )
    assert [part.extent.bounded for part in kept_states(root, KNOWN, {id(root): frozenset({"clicks"})})] == [
        False,
        True,
        True,
    ]
    assert all(part.extent.bounded for part in kept_states(root, KNOWN, expiring))
    (*_, last) = kept_states(root, KNOWN)
    assert "correct_for removes closed windows" in last.instead
    closing = g.Close(CLICKS, (("clicks",), ("clicks", "taps")), ROW)
    (part,) = kept_states(closing, KNOWN)
    assert part.extent == Extent(passing=frozenset({"clicks", "taps"}))


@pytest.mark.parametrize(
    ("node", "extent"),
    [
        (CLICKS, Extent(topics=frozenset({"clicks"}))),
        (join(CLICKS, ORDERS), Extent(frozenset({"clicks"}), frozenset({"orders"}))),
        (join(ORDERS, CLICKS, "anti"), Extent(tables=frozenset({"orders"}))),
        (aggregate(CLICKS, 0), Extent()),
        (aggregate(CLICKS, 1), Extent(topics=frozenset({"clicks"}))),
        (rank(CLICKS, ()), Extent()),
        (rank(CLICKS, (), "rank"), Extent(topics=frozenset({"clicks"}))),  # all may be first
        (rank(CLICKS, (0,)), Extent(topics=frozenset({"clicks"}))),
        (regroup(CLICKS, (), whole=True), Extent()),
        (g.Constant(pa.RecordBatch.from_pylist([], schema=ROW), ROW), Extent()),
    ],
)
def test_how_many_rows_an_operator_has(node: g.Node, extent: Extent) -> None:
    assert rows(node, KNOWN) == extent


@pytest.mark.parametrize(
    ("root", "said"),
    [
        (g.Map(CLICKS, (), ROW), "none: each row is processed alone"),
        (
            aggregate(CLICKS, 0, function("count")),
            "bounded by the query: one row for each group without keys",
        ),
        (aggregate(ORDERS, 1, function("count")), "bounded by table orders"),
        (aggregate(CLICKS, 1, function("count")), "grows with clicks: it keeps a row for every group"),
        (aggregate(CLICKS, 2), "grows with clicks: it keeps every different row"),
        (
            join(ORDERS, CLICKS),
            "grows with clicks: it keeps the rows of clicks, for later rows of the other side",
        ),
    ],
)
def test_what_bounds_it_is_described(root: g.Node, said: str) -> None:
    assert bound_text(root, KNOWN) == said


# --- in a workspace --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A table, a topic that only grows, and views over both."""
    with hw.open(tmp_path_factory.mktemp("shop") / "w", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id));
            CREATE TOPIC clicks (user BIGINT, url STRING, ms INT);
            CREATE MATERIALIZED VIEW slow AS SELECT user, ms FROM clicks WHERE ms > 100;
            CREATE MATERIALIZED VIEW countries WITH (state = 'bounded') AS
              SELECT country, count(*) AS n FROM customers GROUP BY country;
        """)
        yield ws


REFUSED = [
    # query, what is underlined, what the view would keep
    ("SELECT url, count(*) AS n FROM clicks GROUP BY url", "GROUP BY url", "a row for every group"),
    ("SELECT count(DISTINCT url) AS n FROM clicks", None, "every different row"),
    ("SELECT DISTINCT url FROM clicks", "SELECT DISTINCT url FROM clicks", "every different row"),
    ("SELECT k.url FROM clicks k JOIN customers c ON k.user = c.id", "k.user = c.id", "the rows of clicks"),
    ("SELECT id FROM customers WHERE id IN (SELECT user FROM clicks)", None, "the rows of clicks"),
    ("SELECT url FROM clicks ORDER BY ms DESC LIMIT 3", "ORDER BY ms DESC LIMIT 3", "every row"),
    (
        "SELECT url, lag(ms) OVER (PARTITION BY user ORDER BY ms) AS b FROM clicks",
        "lag(ms) OVER (PARTITION BY user ORDER BY ms)",
        "every row of its groups",
    ),
    ("SELECT median(ms) AS m FROM clicks", None, "every row of its groups"),
    ("SELECT user, max(ms) AS m FROM slow GROUP BY user", "GROUP BY user", "a row for every group"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("query", "underlined", "kept_rows"), REFUSED)
def test_what_grows_is_refused_where_it_was_asked_to_be_bounded(
    shop: hw.Workspace, query: str, underlined: str | None, kept_rows: str
) -> None:
    with raises(hw.StatementError, reason="unbounded-state", topics=["clicks"]) as refused:
        shop.sql(f"CREATE MATERIALIZED VIEW v WITH (state = 'bounded') AS {query}")
    assert f"it keeps {kept_rows}" in refused.value.message
    *_, text, marks = (refused.value.detail or "").splitlines()
    found = text[marks.index("^") : marks.rindex("^") + 1]
    assert found == underlined if underlined else found in query


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "state"),
    [
        ("SELECT url FROM clicks WHERE ms > 10", "none: each row is processed alone"),
        (
            "SELECT count(*) AS n, max(ms) AS m FROM clicks",
            "bounded by the query: one row for each group without keys",
        ),
        ("SELECT country, max(id) AS m FROM customers GROUP BY country", "bounded by table customers"),
        ("SELECT n FROM countries ORDER BY n DESC LIMIT 1", "bounded by table customers"),
        (
            "SELECT c.id, s.n FROM customers c CROSS JOIN (SELECT count(*) AS n FROM clicks) s",
            "bounded by table customers",
        ),
    ],
)
def test_what_is_bounded_is_made_and_says_by_what(shop: hw.Workspace, query: str, state: str) -> None:
    shop.sql(f"CREATE OR REPLACE MATERIALIZED VIEW fine WITH (state = 'bounded') AS {query}")
    facts = {row["property"]: row["value"] for row in shop.sql("EXPLAIN fine").to_pylist()}  # type: ignore[union-attr]
    assert facts["state"] == state
    assert "WITH (state = 'bounded')" in facts["statement"]
    sketch = {row["property"]: row["value"] for row in shop.sql(f"EXPLAIN {query}").to_pylist()}  # type: ignore[union-attr]
    assert sketch["state"] == state


@pytest.mark.slow
def test_a_view_is_not_replaced_by_one_that_makes_a_bounded_view_above_it_grow(shop: hw.Workspace) -> None:
    shop.sql("""
        CREATE OR REPLACE MATERIALIZED VIEW base AS SELECT id AS user, 1 AS n FROM customers;
        CREATE OR REPLACE MATERIALIZED VIEW above WITH (state = 'bounded') AS
          SELECT user, sum(n) AS n FROM base GROUP BY user;
    """)
    with raises(hw.UsageError, reason="unbounded-state", view="above", topics=["clicks"]):
        shop.sql("CREATE OR REPLACE MATERIALIZED VIEW base AS SELECT user, ms AS n FROM clicks")
    shop.sql("CREATE OR REPLACE MATERIALIZED VIEW base AS SELECT id AS user, 2 AS n FROM customers")


def test_the_option_takes_two_values(ws: hw.Workspace) -> None:
    with raises(hw.StatementError, option="state", value="small"):
        ws.sql("CREATE MATERIALIZED VIEW v WITH (state = 'small') AS SELECT 1 AS one")


@pytest.mark.slow
def test_what_the_page_says_of_state_is_what_explain_says(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(declarations())
        for query, state in table("query", "what bounds its state"):
            facts = {row["property"]: row["value"] for row in ws.sql(f"EXPLAIN {query}").to_pylist()}  # type: ignore[union-attr]
            assert facts["state"] == state, query
