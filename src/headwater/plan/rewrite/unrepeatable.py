"""Spark functions whose result for the same rows depends on their order or on chance, with alternatives.

Spark declares most of them deterministic, which they are for rows in a fixed order; rows of a view have none. The list was
found by running every aggregate and sketch function of Spark over the same rows in several orders and partitionings; the
functions that are not listed return a single value (`tests/equation/test_function_zoo.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Unrepeatable:
    """The reason why a function is undefined in a view, and the closest alternative."""

    reason: str
    hint: str


_ORDER = "returns another {} for another order of the values, and rows of a view have no order"
_CHANCE = "uses random numbers, so that the same values give different sketches"

_FUNCTIONS = {
    "HllSketchAgg": Unrepeatable(
        _ORDER.format("sketch"),
        "use approx_count_distinct(x), or count(DISTINCT x), which is exact; for a sketch to compute with, theta_sketch_agg(x)",
    ),
    "HllUnionAgg": Unrepeatable(
        _ORDER.format("sketch"),
        "use hll_union(a, b) for two sketches; for more, keep sketches of theta_sketch_agg(x), and use theta_union_agg(sketch)",
    ),
    "KllSketchAgg*": Unrepeatable(
        _CHANCE, "use percentile_approx(x, 0.5), or percentile(x, 0.5), which is exact"
    ),
    "KllMergeAgg*": Unrepeatable(
        _CHANCE, "use percentile_approx(x, 0.5) over the values, or percentile(x, 0.5), which is exact"
    ),
    "KllSketchMerge*": Unrepeatable(
        _CHANCE,
        "merge the sketches before they are appended, or use percentile_approx(x, 0.5) over the values",
    ),
    "TupleSketchAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "use theta_sketch_agg(key) for the keys, and exact sums by key: sum(value) ... GROUP BY key",
    ),
    "TupleUnionAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "use the union of two sketches, such as tuple_union_integer(a, b), or theta_union_agg(sketch) over sketches of theta_sketch_agg(key)",
    ),
    "TupleIntersectionAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "use the intersection of two sketches, such as tuple_intersection_integer(a, b), or theta_intersection_agg(sketch) over sketches of theta_sketch_agg(key)",
    ),
    "HistogramNumeric": Unrepeatable(
        _ORDER.format("histogram"),
        "use count(*) ... GROUP BY width_bucket(x, 0, 100, 10), or percentile_approx(x, array(0.25, 0.5, 0.75))",
    ),
    "Vector[SA][uv][mg]": Unrepeatable(
        "adds 32-bit floats, whose sum depends on their order, and rows of a view have no order",
        "use LATERAL VIEW posexplode(vector) AS place, x, and avg(CAST(x AS DOUBLE)) or sum(CAST(x AS DOUBLE)) by place",
    ),
    "Measure": Unrepeatable(
        "is a function of metric views, which are not supported", "use the aggregate of the measure"
    ),
}


def unrepeatable(name: str) -> Unrepeatable | None:
    """Return why a function is not repeatable, by its Catalyst class name; None if it is repeatable."""
    return next((known for pattern, known in _FUNCTIONS.items() if fnmatchcase(name, pattern)), None)
