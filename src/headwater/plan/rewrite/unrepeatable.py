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


_ORDER = "gives another {} for the same values in another order, and rows have no order in a view"
_CHANCE = "draws by chance, so that the same values give another sketch each time"

_FUNCTIONS = {
    "HllSketchAgg": Unrepeatable(
        _ORDER.format("sketch"),
        "approx_count_distinct(x) is kept in views, and count(DISTINCT x) is exact; "
        "for a sketch that others go on with, theta_sketch_agg(x)",
    ),
    "HllUnionAgg": Unrepeatable(
        _ORDER.format("sketch"),
        "hll_union(a, b) puts two together; for any number keep sketches of theta_sketch_agg(x), and use theta_union_agg(sketch)",
    ),
    "KllSketchAgg*": Unrepeatable(
        _CHANCE, "percentile_approx(x, 0.5) is kept in views, and percentile(x, 0.5) is exact"
    ),
    "KllMergeAgg*": Unrepeatable(
        _CHANCE, "percentile_approx(x, 0.5) over the values themselves, or percentile(x, 0.5), which is exact"
    ),
    "KllSketchMerge*": Unrepeatable(
        _CHANCE,
        "merge the sketches before they are appended, or use percentile_approx(x, 0.5) over the values",
    ),
    "TupleSketchAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "theta_sketch_agg(key) for the keys, and the exact sums by key: sum(value) ... GROUP BY key",
    ),
    "TupleUnionAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "the union of two, such as tuple_union_integer(a, b), or theta_union_agg(sketch) over sketches of theta_sketch_agg(key)",
    ),
    "TupleIntersectionAgg*": Unrepeatable(
        _ORDER.format("sketch"),
        "the intersection of two, such as tuple_intersection_integer(a, b), or theta_intersection_agg(sketch) over sketches of "
        "theta_sketch_agg(key)",
    ),
    "HistogramNumeric": Unrepeatable(
        _ORDER.format("histogram"),
        "count(*) ... GROUP BY width_bucket(x, 0, 100, 10), or percentile_approx(x, array(0.25, 0.5, 0.75))",
    ),
    "Vector[SA][uv][mg]": Unrepeatable(
        "adds up 32-bit numbers, whose sum is another one in another order, and rows have no order in a view",
        "LATERAL VIEW posexplode(vector) AS place, x, and avg(CAST(x AS DOUBLE)) or sum(CAST(x AS DOUBLE)) by place",
    ),
    "Measure": Unrepeatable(
        "is for metric views, which there are none of", "the aggregate that it stands for"
    ),
}


def unrepeatable(name: str) -> Unrepeatable | None:
    """Return why a function is not repeatable, by its Catalyst class name; None if it is repeatable."""
    return next((told for pattern, told in _FUNCTIONS.items() if fnmatchcase(name, pattern)), None)
