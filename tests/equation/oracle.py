"""What views must hold: their SELECTs run in batch by Spark over what the log holds; and tables held against it.

`Oracle.evaluate` knows nothing of the engine. Where Spark leaves a result open, it adds what Headwater fixes:
`collect_set` is sorted.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.equation.grammar.model import History, View

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOLERANCE = 1e-9
DIFFERENCES_SHOWN = 10

SETTINGS = {
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # A case has hundreds of rows and dozens of queries: what counts is the time to plan and compile a query.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.shuffle.partitions": "2",
}


class Oracle:
    """Evaluates views in a Spark session of its own, beside the one that it is given."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark.newSession()
        for name, value in SETTINGS.items():
            self._spark.conf.set(name, value)
        self._registered: dict[str, pa.Table] = {}
        """What each name stands for in the session, unless it was registered shuffled."""
        self._evaluated: dict[str, tuple[str, Sequence[pa.Table], pa.Table]] = {}
        """The last result of each view, with its SELECT and the tables that it was computed from."""

    def evaluate(
        self, history: History, views: Iterable[View] | None = None, *, shuffle: random.Random | None = None
    ) -> dict[str, pa.Table]:
        """The contents of each view, every view after those that it reads; all of the history's if not said.

        With `shuffle`, every relation is given in a random order and split over partitions: the results are the same.
        """
        tables = {name: history.table(name) for name in history.topics}
        return self.run(tables, history.views.values() if views is None else views, shuffle)

    def run(
        self, tables: Mapping[str, pa.Table], views: Iterable[View], shuffle: random.Random | None = None
    ) -> dict[str, pa.Table]:
        """The same over tables as they are, by name."""
        views = list(views)
        for name in {name for view in views for name in view.reads} & tables.keys():
            self._register(name, tables[name], shuffle)
        read = {name for view in views for name in view.reads}
        results: dict[str, pa.Table] = {}
        for view in views:
            results[view.name] = self._select(view) if shuffle is None else self._collect(view)
            if view.name in read:
                self._register(view.name, results[view.name], shuffle)
        return results

    def _select(self, view: View) -> pa.Table:
        """The result of a view, which is not computed again from the same tables: most steps change one topic."""
        inputs = [self._registered[name] for name in view.reads]
        select, before, result = self._evaluated.get(view.name, ("", (), None))
        if result is None or select != view.select or [*map(id, before)] != [*map(id, inputs)]:
            result = self._collect(view)
            self._evaluated[view.name] = (view.select, inputs, result)
        return result

    def _collect(self, view: View) -> pa.Table:
        frame = self._spark.sql(sort_sets(view.select))
        # not toArrow: it fails where a struct is NULL whose fields never are
        batches = frame._collect_as_arrow(empty_list_if_zero_records=False)  # type: ignore[operator]
        return pa.Table.from_batches(batches)

    def _register(self, name: str, table: pa.Table, shuffle: random.Random | None) -> None:
        # A view is read from its collected result, so that plans stay small. One partition needs no exchange; left
        # alone, Spark splits a local table over its cores.
        known = self._registered.pop(name, None)
        if shuffle is None:
            self._registered[name] = known if known is not None and _is_same(known, table) else table
            if self._registered[name] is known:
                return
        else:
            order = shuffle.sample(range(table.num_rows), table.num_rows)
            table = table.take(pa.array(order, pa.int64()))
        frame: DataFrame = self._spark.createDataFrame(table)
        (frame.coalesce(1) if shuffle is None else frame).createOrReplaceTempView(name)


def _is_same(one: pa.Table, other: pa.Table) -> bool:
    """Whether tables have the same columns and the same rows in the same order, NaN for NaN."""
    return one.schema.equals(other.schema) and repr(one.to_pylist()) == repr(other.to_pylist())


def sort_sets(select: str) -> str:
    """The SELECT with every `collect_set(...)`, its FILTER and OVER included, inside `sort_array(...)`."""
    at = select.find("collect_set(")
    if at < 0:
        return select
    end = _closing(select, at + len("collect_set"))
    for clause in (" FILTER (", " OVER ("):
        if select.startswith(clause, end):
            end = _closing(select, end + len(clause) - 1)
    return f"{select[:at]}sort_array({select[at:end]}){sort_sets(select[end:])}"


def _closing(text: str, opening: int) -> int:
    """The position after the parenthesis that closes the one at `opening`; those in strings do not count."""
    depth, quoted = 0, False
    for at in range(opening, len(text)):
        if text[at] == "'":
            quoted = not quoted
        elif not quoted and text[at] in "()":
            depth += 1 if text[at] == "(" else -1
            if depth == 0:
                return at + 1
    raise ValueError(f"no closing parenthesis in {text[opening:]!r}")


def compare(actual: pa.Table, expected: pa.Table) -> str | None:
    """None if both hold the same multiset of rows, else the difference in words.

    Columns go by position, names and nullability included in neither. Floats agree to 1e-9 relative, NaN with NaN,
    -0.0 with 0.0, also in lists and structs; all else exactly, NULLs and types too.
    """
    if actual.num_columns != expected.num_columns:
        return f"columns differ: {actual.column_names}, expected {expected.column_names}"
    for a, b in zip(actual.schema, expected.schema, strict=True):
        if _shape(a.type) != _shape(b.type):
            return f"column {b.name!r} is {a.type}, expected {b.type}"
    only_actual, only_expected = _difference(_rows(actual), _rows(expected))
    if not only_actual and not only_expected:
        return None
    lines = [f"{actual.num_rows} rows, expected {expected.num_rows}; columns {expected.column_names}"]
    for title, rows in (("only in actual", only_actual), ("only in expected", only_expected)):
        lines += [f"{title}: {_shown(row)}" for row in rows[:DIFFERENCES_SHOWN]]
        if len(rows) > DIFFERENCES_SHOWN:
            lines.append(f"{title}: and {len(rows) - DIFFERENCES_SHOWN} more")
    return "\n".join(lines)


@dataclass(frozen=True)
class _Row:
    """A row in two parts: what must be equal, with a mark for each finite float, and those floats in order."""

    skeleton: Hashable
    floats: tuple[float, ...]


def _rows(table: pa.Table) -> list[tuple[_Row, tuple[Any, ...]]]:
    if not table.num_columns:
        return [(_Row((), ()), ())] * table.num_rows
    rows = []
    for values in zip(*(column.to_pylist() for column in table.columns), strict=True):
        floats: list[float] = []
        skeleton = tuple(_skeleton(value, floats) for value in values)
        rows.append((_Row(skeleton, tuple(floats)), values))
    return rows


def _skeleton(value: Any, floats: list[float]) -> Hashable:
    match value:
        case float():
            if not math.isfinite(value):
                return str(value)
            floats.append(value)
            return "finite"
        case dict():
            return tuple(_skeleton(part, floats) for part in value.values())
        case [tuple(), *_]:  # a map, whose pairs have no order
            return tuple(_skeleton(part, floats) for pair in sorted(value, key=repr) for part in pair)
        case list():
            return ("list", *(_skeleton(part, floats) for part in value))
    return value


Listed = Sequence[tuple[_Row, tuple[Any, ...]]]


def _difference(actual: Listed, expected: Listed) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """The rows without a partner, on either side. Equal ones are paired first, then those that are close."""
    common = Counter(row for row, _ in actual) & Counter(row for row, _ in expected)
    left, right = _without(actual, common), _without(expected, common)
    candidates: dict[Hashable, list[tuple[_Row, tuple[Any, ...]]]] = defaultdict(list)
    for entry in right:
        candidates[entry[0].skeleton].append(entry)
    only_actual = []
    for row, values in left:
        same = candidates[row.skeleton]
        partner = next((i for i, (other, _) in enumerate(same) if _close(row.floats, other.floats)), None)
        if partner is None:
            only_actual.append(values)
        else:
            del same[partner]
    return only_actual, [values for rows in candidates.values() for _, values in rows]


def _without(rows: Listed, common: Counter[_Row]) -> list[tuple[_Row, tuple[Any, ...]]]:
    left = Counter(common)
    kept = []
    for row, values in rows:
        if left[row] > 0:
            left[row] -= 1
        else:
            kept.append((row, values))
    return kept


def _close(actual: Sequence[float], expected: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=TOLERANCE) for a, b in zip(actual, expected, strict=True))


def _shape(kind: pa.DataType) -> str:
    """A type without what does not matter: the names of list items, nullability, how wide string offsets are."""
    types = pa.types
    if types.is_list(kind) or types.is_large_list(kind):
        return f"list<{_shape(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{_shape(kind.key_type)}, {_shape(kind.item_type)}>"
    if types.is_struct(kind):
        fields = (kind.field(i) for i in range(kind.num_fields))
        return f"struct<{', '.join(f'{field.name}: {_shape(field.type)}' for field in fields)}>"
    return str(kind).removeprefix("large_")


def _shown(row: tuple[Any, ...]) -> str:
    return "(" + ", ".join(str(value) if hasattr(value, "year") else repr(value) for value in row) + ")"
