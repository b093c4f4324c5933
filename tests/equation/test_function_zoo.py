"""Every aggregate and sketch function that Spark has either holds in a view or is refused, with what to use instead."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from tests.raising import raises
from tests.repo.tree import ROOT
from tests.sql.test_sql_support import underlined

pytestmark = pytest.mark.slow

KEPT = """
    any(b) | approx_count_distinct(s) | approx_percentile(n, 0.5) | array_agg(n ORDER BY x) | avg(x) | bit_and(n) | bit_or(n) | bit_xor(n) |
    bitmap_construct_agg(bitmap_bit_position(n)) | bitmap_or_agg(bits) | bitmap_and_agg(bits) | bool_and(b) | bool_or(b) |
    collect_list(n) WITHIN GROUP (ORDER BY x) | collect_set(s) | collect_union(array(s, 'a')) | corr(n, x) | count(n) | count_if(b) |
    count_min_sketch(s, 0.05D, 0.9D, 7) | covar_pop(n, x) | covar_samp(n, x) | every(b) | kurtosis(x) |
    listagg(s) WITHIN GROUP (ORDER BY x) | max(n) | max_by(n, s) | max_by(n, s, 3) | mean(n) | median(x) | min(s) | min_by(n, s) |
    min_by(x, n % 7, 4) | mode(n) | mode(s) | mode(s, true) | mode() WITHIN GROUP (ORDER BY n DESC) | percentile(n, 0.5) |
    percentile_approx(x, array(0.1, 0.9)) | percentile_cont(0.5) WITHIN GROUP (ORDER BY x) |
    percentile_disc(0.5) WITHIN GROUP (ORDER BY n) | regr_avgx(n, x) | regr_avgy(n, x) | regr_count(n, x) | regr_intercept(n, x) |
    regr_r2(n, x) | regr_slope(n, x) | regr_sxx(n, x) | regr_sxy(n, x) | regr_syy(n, x) | skewness(x) | some(b) | std(x) | stddev(x) |
    stddev_pop(x) | stddev_samp(x) | string_agg(s, '+') WITHIN GROUP (ORDER BY x) | sum(n) | try_avg(n) | try_sum(n) | var_pop(x) |
    var_samp(x) | variance(x) | theta_sketch_agg(s) | theta_sketch_agg(n, 5) | theta_union_agg(t) | theta_union_agg(t, 5) |
    theta_intersection_agg(t) | schema_of_variant_agg(to_variant_object(struct(n)))
"""
SCALAR = """
    hll_sketch_estimate(h) | hll_union(h, h2) | kll_sketch_get_n_bigint(kn) | kll_sketch_get_n_double(kd) | kll_sketch_get_n_float(kf) |
    kll_sketch_get_quantile_bigint(kn, 0.5) | kll_sketch_get_quantile_double(kd, array(0.1, 0.9)) | kll_sketch_get_quantile_float(kf, 0.5) |
    kll_sketch_get_rank_bigint(kn, 50L) | kll_sketch_get_rank_double(kd, 9.5D) | kll_sketch_get_rank_float(kf, CAST(9.5 AS FLOAT)) |
    kll_sketch_to_string_bigint(kn) | kll_sketch_to_string_double(kd) | kll_sketch_to_string_float(kf) | theta_difference(t, t2) |
    theta_intersection(t, t2) | theta_sketch_estimate(t) | theta_union(t, t2) | tuple_difference_double(ud, ud2) |
    tuple_difference_integer(ui, ui2) | tuple_difference_theta_double(ud, t2) | tuple_difference_theta_integer(ui, t2) |
    tuple_intersection_double(ud, ud2) | tuple_intersection_integer(ui, ui2) | tuple_intersection_theta_double(ud, t2) |
    tuple_intersection_theta_integer(ui, t2) | tuple_sketch_estimate_double(ud) | tuple_sketch_estimate_integer(ui) |
    tuple_sketch_summary_double(ud) | tuple_sketch_summary_integer(ui) | tuple_sketch_theta_double(ud) |
    tuple_sketch_theta_integer(ui) | tuple_union_double(ud, ud2) | tuple_union_integer(ui, ui2) | tuple_union_theta_double(ud, t2) |
    tuple_union_theta_integer(ui, t2) | approx_top_k_estimate(a, 3) | bitmap_count(bits) | bitmap_bit_position(id) | bitmap_bucket_number(id)
"""
REFUSED = {
    "hll_sketch_agg(s)": "approx_count_distinct(x)",
    "hll_union_agg(bits)": "theta_union_agg(sketch)",
    "kll_sketch_agg_bigint(n)": "percentile_approx(x, 0.5)",
    "kll_sketch_agg_double(x)": "percentile_approx(x, 0.5)",
    "kll_sketch_agg_float(CAST(x AS FLOAT))": "percentile(x, 0.5)",
    "kll_merge_agg_bigint(bits)": "percentile(x, 0.5)",
    "kll_merge_agg_double(bits)": "percentile(x, 0.5)",
    "kll_merge_agg_float(bits)": "percentile(x, 0.5)",
    "kll_sketch_merge_bigint(min(bits), max(bits))": "percentile_approx(x, 0.5)",
    "kll_sketch_merge_double(min(bits), max(bits))": "percentile_approx(x, 0.5)",
    "kll_sketch_merge_float(min(bits), max(bits))": "percentile_approx(x, 0.5)",
    "tuple_sketch_agg_double(n, x)": "theta_sketch_agg(key)",
    "tuple_sketch_agg_integer(n, 1)": "theta_sketch_agg(key)",
    "tuple_union_agg_double(bits)": "theta_union_agg(sketch)",
    "tuple_union_agg_integer(bits)": "theta_union_agg(sketch)",
    "tuple_intersection_agg_double(bits)": "theta_intersection_agg(sketch)",
    "tuple_intersection_agg_integer(bits)": "theta_intersection_agg(sketch)",
    "histogram_numeric(x, 5)": "width_bucket",
    "vector_avg(array(CAST(x AS FLOAT)))": "avg(CAST(x AS DOUBLE))",
    "vector_sum(array(CAST(x AS FLOAT)))": "sum(CAST(x AS DOUBLE))",
    "measure(n)": "the aggregate of the measure",
    "approx_top_k_accumulate(s)": "approx_top_k()",
    "approx_top_k_combine(made)": "approx_top_k()",
    "any_value(n)": "min, max",
    "first(n)": "min, max",
    "first_value(n)": "min, max",
    "last(n)": "min, max",
    "last_value(n)": "min, max",
}
ELSEWHERE = {"approx_top_k", "grouping", "grouping_id"}
"""In `test_sketches`, and in the examples of docs/sql.md."""
MADE = """
    hll_sketch_agg(n) AS h, hll_sketch_agg(s) AS h2, kll_sketch_agg_bigint(n) AS kn, kll_sketch_agg_double(x) AS kd,
    kll_sketch_agg_float(CAST(x AS FLOAT)) AS kf, theta_sketch_agg(n, 5) AS t, theta_sketch_agg(n % 50) AS t2,
    tuple_sketch_agg_double(n, x) AS ud, tuple_sketch_agg_double(n % 50, x) AS ud2, tuple_sketch_agg_integer(n, 1) AS ui,
    tuple_sketch_agg_integer(n % 50, 2) AS ui2, approx_top_k_accumulate(n % 50) AS a, bitmap_construct_agg(bitmap_bit_position(n)) AS bits
"""


def calls(text: str) -> list[str]:
    return [call.strip() for call in text.split(" |")]


def name_of(call: str) -> str:
    return call.partition("(")[0]


def functions_of(spark: SparkSession, groups: set[str]) -> set[str]:
    """The functions that Spark has of some kinds."""
    catalyst = spark._jvm.org.apache.spark.sql.catalyst  # type: ignore[union-attr]
    builtin = getattr(getattr(catalyst.analysis, "FunctionRegistry$"), "MODULE$").builtin()
    names = [str(row[0]) for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()]
    found = {name: builtin.lookupFunction(catalyst.FunctionIdentifier(name)) for name in names}
    return {name for name, info in found.items() if info.isDefined() and info.get().getGroup() in groups}


def some_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    def or_none(value: object) -> object:
        return None if chance.random() < 0.05 else value

    return [
        {
            "id": chance.randrange(400),
            "g": chance.randrange(3),
            "n": or_none(chance.randrange(300)),
            "x": or_none(round(chance.random() * 100, 1)),
            "s": or_none(f"word {chance.randrange(200)}"),
            "b": or_none(chance.random() < 0.7),
        }
        for _ in range(count)
    ]


def test_every_aggregate_and_sketch_of_spark_is_kept_or_refused(spark: SparkSession) -> None:
    known = {name_of(call) for call in (*calls(KEPT), *calls(SCALAR), *REFUSED)} | ELSEWHERE
    assert functions_of(spark, {"agg_funcs", "sketch_funcs"}) - known == set()


def test_the_page_says_of_every_sketch_of_spark_what_becomes_of_it(spark: SparkSession) -> None:
    page = (ROOT / "docs" / "sketches.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"\| functions of Spark \|.*?\n\n", page, re.DOTALL)
    told: dict[str, bool] = {}
    for line in table.strip().splitlines()[2:]:
        names, kept, _ = (cell.strip() for cell in line.split("|")[1:-1])
        for name in re.findall(r"`(\w+)`", names):
            assert name not in told
            told[name] = not kept.startswith("refused")
    sketchy = {
        n
        for n in functions_of(spark, {"agg_funcs"})
        if re.search("sketch|hll|kll|theta|tuple|bitmap|top_k_|hist", n)
    }
    every = functions_of(spark, {"sketch_funcs"}) | sketchy
    assert told.keys() == every | {"bitmap_count", "bitmap_bit_position", "bitmap_bucket_number"}
    refused = {name_of(call) for call in REFUSED}
    assert {name for name, is_kept in told.items() if not is_kept} == refused & told.keys()


@pytest.mark.long
def test_functions_of_whole_groups_do_not_depend_on_the_order_of_rows(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Batch reads four partitions in the order of the log, the view the rows of a group in an order of their own."""
    chance = random.Random(5)
    columns = "id BIGINT, g BIGINT, n BIGINT, x DOUBLE, s STRING, b BOOLEAN, bits BINARY, t BINARY"
    shown = ", ".join(f"{call} AS c{i}" for i, call in enumerate(calls(KEPT)))
    sketches = spark.sql(
        f"SELECT g AS id, {MADE} FROM (SELECT id % 7 AS g, id * 37 % 400 AS n, id * 0.3D AS x, concat('w', id % 90) AS s FROM range(2000)) "
        "GROUP BY g"
    )
    made = sketches.toArrow()
    given = made.to_pylist()
    asked = ", ".join(f"{call} AS c{i}" for i, call in enumerate(calls(SCALAR)))
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        kinds = {f.name: f.dataType.simpleString() for f in sketches.schema.fields}
        typed = ", ".join(f"{name} {kind}" for name, kind in kinds.items() if name != "id")
        ws.sql(f"""
            CREATE TOPIC facts ({columns}) WITH (partitions = 4);
            CREATE TOPIC rows ({columns}, PRIMARY KEY (id)) WITH (partitions = 4);
            CREATE TOPIC sketches (id BIGINT, {typed});
            CREATE MATERIALIZED VIEW of_facts AS SELECT g, {shown} FROM facts GROUP BY g;
            CREATE MATERIALIZED VIEW of_rows AS SELECT g, {shown} FROM rows GROUP BY g;
            CREATE MATERIALIZED VIEW framed AS SELECT id, theta_sketch_agg(s) OVER (PARTITION BY g) AS t, mode(s) OVER (PARTITION BY g) AS m FROM rows;
            CREATE MATERIALIZED VIEW asked AS SELECT id, {asked} FROM sketches
        """)
        for size in (5, 300, 700):
            rows = some_rows(chance, size)
            for row in rows:
                sketch = chance.choice(given)
                row |= {"bits": sketch["bits"], "t": sketch["t"]}
            ws.append({"facts": rows, "rows": rows})
            ws.topic("sketches").append(made)
            assert ws.run().stopped == {}
        assert [finding.message[:2000] for finding in ws.verify().differences] == []


def test_what_depends_on_the_order_of_rows_is_refused_with_what_works(
    tmp_path: Path, spark: SparkSession
) -> None:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        state = (
            "made STRUCT<sketch: BINARY, maxItemsTracked: INT, itemDataType: BIGINT, itemDataTypeDDL: STRING>"
        )
        ws.sql(f"CREATE TOPIC facts (g BIGINT, n BIGINT, x DOUBLE, s STRING, bits BINARY, {state})")
        for call, instead in REFUSED.items():
            with pytest.raises(hw.StatementError) as refused:
                ws.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT g, {call} AS made FROM facts GROUP BY g")
            assert underlined(refused.value) == call
            assert instead in (refused.value.hint or ""), call
        with raises(hw.StatementError, reason="not-deterministic"):
            ws.sql(
                "CREATE MATERIALIZED VIEW refused AS SELECT hll_sketch_agg(s) OVER (PARTITION BY g) AS made FROM facts"
            )
        for call in ("version()", "current_path()"):
            with raises(hw.StatementError, reason="depends-on-session"):
                ws.sql(f"CREATE MATERIALIZED VIEW refused AS SELECT g, {call} AS made FROM facts")


def test_long_expressions_and_many_columns_are_distinguished(tmp_path: Path, spark: SparkSession) -> None:
    """Spark cuts off texts of expressions and plans after 25 parts, unless it is told not to."""
    columns = [f"c{i}" for i in range(32)]
    one, other = (", ".join([*columns[:29], last]) for last in columns[30:])
    many = ", ".join(f"sum({c}) AS s{c}" for c in columns)
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql(f"""
            CREATE TOPIC wide ({", ".join(f"{c} BIGINT" for c in columns)}) WITH (partitions = 2);
            CREATE MATERIALIZED VIEW long AS SELECT c0, sum(greatest({one})) AS a, sum(greatest({other})) AS b FROM wide GROUP BY c0;
            CREATE MATERIALIZED VIEW many AS SELECT c0, {many}, collect_set(c3) AS s, max_by(c2, c1) AS m FROM wide GROUP BY c0
        """)
        for tick in range(2):
            rows = [
                [1, i % 2, *((i * 7 + j * j * 31) % (40 + j) for j in range(2, 32))] for i in range(tick, 60)
            ]
            ws.topic("wide").append([dict(zip(columns, row, strict=True)) for row in rows])
            ws.run()
        (row,) = ws.query("SELECT a, b FROM long").to_pylist()
        assert row["a"] != row["b"]
        assert [finding.message[:500] for finding in ws.verify().differences] == []
