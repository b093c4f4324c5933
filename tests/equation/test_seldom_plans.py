"""Plans that the optimizer makes of odd queries: rows without columns, conditions that never hold, subqueries that have
moved. Views begin over nothing, see changes and a restart, and are then held against their SELECT in batch."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import headwater as hw

TOPICS = """
    CREATE TOPIC t (k STRING, n BIGINT, l ARRAY<STRING>) WITH (partitions = 2);
    CREATE TOPIC u (k STRING, n BIGINT, PRIMARY KEY (n));
"""

WITHOUT_COLUMNS = [
    "SELECT if(c IS NOT NULL, 1, 2) AS one FROM (SELECT count(*) AS c FROM t)",
    "SELECT l FROM t EXCEPT ALL SELECT if(c IS NULL, array('a'), NULL) FROM (SELECT count(*) AS c FROM t)",
    "SELECT count(*) AS c FROM (SELECT count(*) AS c FROM u)",
    "SELECT count(*) AS c FROM t CROSS JOIN (VALUES (1), (2)) AS v(x)",
    "SELECT t.k, 7 AS seven FROM t CROSS JOIN (VALUES (1), (2)) AS v(x)",
    "SELECT count(*) AS c FROM (SELECT 1 AS n UNION ALL SELECT n FROM t UNION ALL VALUES (1), (2))",
    "SELECT count(*) AS c FROM t CROSS JOIN (SELECT max(n) AS m FROM u HAVING count(*) > 1)",
    "SELECT median(1) AS m FROM t",
    "SELECT count(*) OVER () AS c FROM t",
]
NEVER_TRUE = [
    *(
        f"SELECT t.k{shown} FROM t {join} JOIN u ON t.n = u.n AND t.n <> u.n"
        for join, shown in {
            "INNER": ", u.k AS other",
            "LEFT": ", u.k AS other",
            "RIGHT": ", u.k AS other",
            "FULL": ", u.k AS other",
            "LEFT SEMI": "",
            "LEFT ANTI": "",
        }.items()
    ),
    "SELECT k, EXISTS (SELECT 1 FROM u WHERE t.n = u.n AND t.n <> u.n) AS found FROM t",
    "SELECT s.k FROM t AS s LEFT SEMI JOIN u ON s.n = u.n JOIN u AS v ON s.n = v.n AND s.n <> v.n",
    """WITH w AS (SELECT nullif(- n, 1) AS c FROM t WHERE k IN (SELECT k FROM u))
       SELECT c FROM w AS a WHERE EXISTS (SELECT 1 FROM w AS b WHERE a.c = b.c AND b.c IS NOT NULL AND b.c <> a.c)""",
    "SELECT t.k, e.k AS other FROM t FULL JOIN (SELECT * FROM u WHERE 1 = 0) AS e ON t.n < e.n",
    "SELECT t.k FROM t CROSS JOIN (SELECT * FROM u WHERE 1 = 0) AS e",
]
CORRELATED = [
    "SELECT k FROM t WHERE EXISTS (SELECT 1 FROM u WHERE t.n = u.n AND coalesce(u.k, t.k) BETWEEN 'a' AND 'c')",
    "SELECT k FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE t.n = u.n AND nullif(u.k, t.k) >= 'b')",
    """WITH w AS (SELECT k, if(n > 1, array(1L), array(1L)) AS c FROM t)
       SELECT k FROM w AS a WHERE c <= (SELECT max(c) FROM w AS b WHERE a.c = b.c)""",
]
MOVED_SUBQUERIES = [
    "SELECT DISTINCT k, (SELECT count(*) FROM u) AS c FROM t",
    "SELECT k, sum(n + (SELECT max(n) FROM u)) AS s FROM t GROUP BY k",
    "SELECT k, sum(n) + (SELECT max(n) FROM u) AS s FROM t GROUP BY k",
    "SELECT k, median(n + (SELECT max(n) FROM u)) AS s FROM t GROUP BY k",
    "SELECT k, median(n) + (SELECT max(n) FROM u) AS s FROM t GROUP BY k",
    "SELECT median(n) + (SELECT max(n) FROM u) AS s FROM t",
    "SELECT n > (SELECT min(n) FROM u) AS b, median(n) AS m FROM t GROUP BY n > (SELECT min(n) FROM u)",
    "SELECT k, count(DISTINCT n) FILTER (WHERE n > (SELECT min(n) FROM u)) AS c FROM t GROUP BY k",
    "SELECT count(*) AS c FROM t JOIN u ON t.k = u.k WHERE t.n + u.n > (SELECT max(n) FROM u)",
    "SELECT k, n, (SELECT max(n) FROM u) AS m FROM t ORDER BY n, k LIMIT 2",
]
NULL_STRUCTS = [
    "SELECT n, CASE WHEN k = 'a' THEN named_struct('x', 5L, 'y', 'q') END AS s FROM t",
    "SELECT n, lag(named_struct('x', 3, 'y', 'q')) OVER (ORDER BY n, k, l) AS s FROM t",
    """SELECT n, v.s FROM t JOIN (VALUES (1, if(1 = 1, NULL, named_struct('x', 3L))), (2, named_struct('x', 3L)))
       AS v(k, s) ON t.n = v.k""",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "selects",
    [
        pytest.param(WITHOUT_COLUMNS, id="rows without columns"),
        pytest.param(NEVER_TRUE, id="conditions that are never true"),
        pytest.param(CORRELATED, id="correlated conditions that are rewritten"),
        pytest.param(MOVED_SUBQUERIES, id="scalar subqueries inside other nodes"),
        pytest.param(NULL_STRUCTS, id="structs that are null and whose fields never are"),
    ],
)
def test_seldom_plans_equal_their_select(selects: list[str], tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql(TOPICS)
        for number, select in enumerate(selects):
            ws.sql(f"CREATE MATERIALIZED VIEW v{number} AS {select}")
        assert ws.run().stopped == {}
        rows = [("a", 1, None), ("ab", 2, ["x"]), ("a", 3, None), (None, None, [])]
        ws.topic("t").append([{"k": k, "n": n, "l": letters} for k, n, letters in rows])
        ws.topic("u").append([{"k": "a", "n": 1}, {"k": None, "n": 5}, {"k": "b", "n": 3}])
        assert ws.run().stopped == {}
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.topic("u").delete([{"n": 1}, {"n": 5}])
        ws.topic("t").append([{"k": "c", "n": 2, "l": None}])
        assert ws.run().stopped == {}
        problems = {selects[int(v.view[1:])]: v.detail for v in ws.verify().views if not v.ok}
        assert problems == {}


@pytest.mark.slow
def test_groups_that_are_computed_again_give_the_same_floats(tmp_path: Path, spark: SparkSession) -> None:
    """What a group gave before is taken back by computing it again, whatever came between: more groups, other runs."""
    rng = random.Random(5)
    with hw.open(tmp_path / "w", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC t (id BIGINT, k BIGINT, x DOUBLE, PRIMARY KEY (id)) WITH (partitions = 2)")
        ws.sql(
            "CREATE MATERIALIZED VIEW v AS "
            "SELECT k, median(x) AS m, variance(x) AS s, sum(x) AS total FROM t GROUP BY k"
        )
        ws.sql("CREATE MATERIALIZED VIEW w AS SELECT k, id, avg(x) OVER (PARTITION BY k) AS a FROM t")
        for count in (1_500, 40, 400, 40):
            ws.topic("t").append(
                [
                    {"id": rng.randrange(2_000), "k": rng.randrange(200), "x": rng.random() * 10.0**n}
                    for n in rng.choices(range(-3, 6), k=count)
                ]
            )
            ws.run()
        assert ws.verify().ok
