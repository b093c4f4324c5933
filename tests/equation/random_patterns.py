"""MATCH_RECOGNIZE as SQL and, made apart from it, as the oracle of row patterns takes it: the same question twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa

from headwater.operators.match_recognize.pattern import (
    Alternate,
    Concat,
    Empty,
    End,
    Exclude,
    Pattern,
    Permute,
    Quantified,
    Start,
    Variable,
    variables,
)
from headwater.operators.match_recognize.spec import (
    Classify,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
    PatternAggregate,
    PatternExpression,
    Shown,
    Skip,
)
from headwater.operators.zset.collation import ColumnOrder
from tests.operators.match_recognize.oracle import Partition, Row

SCHEMA = pa.schema([("key", pa.int64()), ("time", pa.int64()), ("bits", pa.int64()), ("x", pa.int64())])
KEY, TIME, BITS, X = range(4)
NAMES = ("A", "B", "C")
SECOND = 1_000_000
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
U = frozenset({"A", "B"})
COLUMNS = "key BIGINT, time TIMESTAMP, bits BIGINT, x BIGINT"


class Asked(NamedTuple):
    """An expression: in SQL, and by what it looks at."""

    sql: str
    inputs: tuple[Input, ...]
    function: Callable[..., Any] = lambda value: value
    type: pa.DataType = pa.int64()


def of(*names: str) -> frozenset[str]:
    return frozenset(names)


def _deviation(values: list[int]) -> float | None:
    if not values:
        return None
    mean = sum(values) / len(values)
    return round(math.sqrt(sum((x - mean) ** 2 for x in values) / len(values)), 9)


def _avg(total: float, count: int) -> float | None:
    return total / count if count else None


MEASURES = [
    Asked("FIRST(A.x)", (Navigate(X, of("A"), "first"),)),
    Asked("LAST(x, 1)", (Navigate(X, None, "last", 1),)),
    Asked("B.x", (Navigate(X, of("B")),)),
    Asked("PREV(x)", (Navigate(X, None, offset=-1),)),
    Asked("NEXT(x, 2)", (Navigate(X, None, offset=2),)),
    Asked("PREV(FIRST(A.x, 1), 2)", (Navigate(X, of("A"), "first", 1, -2),)),
    Asked("FINAL LAST(B.x)", (Navigate(X, of("B"), final=True),)),
    Asked(
        "FINAL FIRST(C.x) + 1",
        (Navigate(X, of("C"), "first", final=True),),
        lambda x: None if x is None else x + 1,
    ),
    Asked("NEXT(RUNNING LAST(u.x))", (Navigate(X, U, offset=1),)),
    Asked("CLASSIFIER()", (Classify(),), type=pa.string()),
    Asked("CLASSIFIER(U)", (Classify(U),), type=pa.string()),
    Asked("LAST(CLASSIFIER(), 1)", (Classify(None, "last", 1),), type=pa.string()),
    Asked("MATCH_NUMBER()", (MatchNumber(),)),
    Asked("count(*)", (PatternAggregate("count"),)),
    Asked("FINAL count(A.*)", (PatternAggregate("count", of("A"), final=True),)),
    Asked("count(B.x)", (PatternAggregate("count", of("B"), 0),)),
    Asked("sum(A.x)", (PatternAggregate("sum", of("A"), 0),)),
    Asked("avg(U.x)", (PatternAggregate("avg", U, 0),), _avg, pa.float64()),
    Asked("FINAL max(x)", (PatternAggregate("max", None, 0, final=True),)),
    Asked("min(C.x)", (PatternAggregate("min", of("C"), 0),)),
    Asked("count(DISTINCT A.x)", (PatternAggregate("list", of("A"), 0),), lambda xs: len(set(xs))),
    Asked("FINAL array_agg(U.x)", (PatternAggregate("list", U, 0, True),), type=pa.list_(pa.int64())),
    Asked(
        "array_join(array_agg(CLASSIFIER()), '')", (PatternAggregate("list", None, 1),), "".join, pa.string()
    ),
    Asked("round(stddev_pop(x), 9)", (PatternAggregate("list", None, 0),), _deviation, pa.float64()),
    Asked(
        "sum(x) FILTER (WHERE CLASSIFIER() <> 'B')",
        (PatternAggregate("list", None, 0), PatternAggregate("list", None, 1)),
        lambda xs, names: (
            sum(kept) if (kept := [x for x, n in zip(xs, names, strict=True) if n != "B"]) else None
        ),
    ),
    Asked(
        "LAST(CLASSIFIER() || x, 1)",
        (Classify(None, "last", 1), Navigate(X, None, "last", 1)),
        lambda name, x: None if x is None else f"{name}{x}",
        pa.string(),
    ),
    Asked(
        "FIRST(A.x - A.bits) * 2",
        (Navigate(X, of("A"), "first"), Navigate(BITS, of("A"), "first")),
        lambda x, b: None if x is None else (x - b) * 2,
    ),
]


def _less(a: int | None, b: int | None) -> bool:
    return a is not None and b is not None and a < b


def conditions(name: str) -> list[Asked]:
    """Some that a variable may have; those that look at their own row come more often."""
    bit = 1 << NAMES.index(name)
    plain = Asked(f"bits & {bit} = {bit}", (Navigate(BITS),), lambda bits: bool(bits & bit), pa.bool_())
    own = Asked(
        f"{name}.x > PREV({name}.x) OR {name}.bits & {bit} = {bit}",
        (Navigate(X, of(name)), Navigate(X, of(name), offset=-1), Navigate(BITS, of(name))),
        lambda x, before, bits: _less(before, x) or bool(bits & bit),
        pa.bool_(),
    )
    return [
        *[plain] * 4,
        *[own] * 2,
        Asked("x >= FIRST(x)", (Navigate(X), Navigate(X, None, "first")), lambda a, b: a >= b, pa.bool_()),
        Asked(
            f"bits & {bit} = {bit} AND coalesce(A.x <= x, true)",
            (Navigate(BITS), Navigate(X, of("A")), Navigate(X)),
            lambda bits, a, x: bool(bits & bit) and (a is None or a <= x),
            pa.bool_(),
        ),
        Asked("count(A.*) < 3", (PatternAggregate("count", of("A")),), lambda n: n < 3, pa.bool_()),
        Asked(
            "count(DISTINCT x) < 3",
            (PatternAggregate("list", None, 0),),
            lambda xs: len(set(xs)) < 3,
            pa.bool_(),
        ),
        Asked(
            "size(filter(array_agg(CLASSIFIER()), c -> c = 'A')) < 3",
            (PatternAggregate("list", None, 1),),
            lambda names: names.count("A") < 3,
            pa.bool_(),
        ),
        Asked(
            "sum(x) <= 5", (PatternAggregate("sum", None, 0),), lambda n: n is not None and n <= 5, pa.bool_()
        ),
    ]


def text(pattern: Pattern) -> str:
    """A pattern as it is written."""
    match pattern:
        case Variable(name):
            return name
        case Empty():
            return "()"
        case Start():
            return "^"
        case End():
            return "$"
        case Concat(parts):
            return "(" + " ".join(map(text, parts)) + ")"
        case Alternate(parts):
            return "(" + " | ".join(map(text, parts)) + ")"
        case Permute(parts):
            return "PERMUTE(" + ", ".join(map(text, parts)) + ")"
        case Exclude(part):
            return "{- " + text(part) + " -}"
        case Quantified(part, low, high, greedy):
            bound = "{" + f"{low},{'' if high is None else high}" + "}"
            return f"({text(part)}){bound}{'' if greedy else '?'}"


@dataclass(frozen=True)
class Question:
    """What is looked for, twice."""

    clause: str
    spec: MatchSpec
    functions: tuple[Callable[..., Any], ...]

    def sql(self, topic: str = "events") -> str:
        return f"SELECT * FROM {topic} MATCH_RECOGNIZE ({self.clause})"

    def expected(self, rows: Iterable[Row]) -> list[Row]:
        """What the oracle says, times in microseconds."""
        parts: dict[Any, list[Row]] = {}
        for row in sorted(rows):
            parts.setdefault(row[KEY], []).append(row)
        found = (
            row for part in parts.values() for row in Partition(self.spec, self.functions, part).output()
        )
        return sorted(found, key=repr)


def question(
    pattern: Pattern,
    conditions: Mapping[str, Asked],
    measures: Sequence[Asked],
    *,
    rows: Any = "one",
    skip: Skip | None = None,
    within: int | None = None,
    timeouts: bool = False,
) -> Question:
    """`within` is in seconds."""
    skip = skip or Skip()
    expressions = [
        PatternExpression((Navigate(X),), pa.int64()),
        PatternExpression((Classify(),), pa.string()),
    ]
    functions: list[Callable[..., Any]] = [lambda x: x, lambda name: name]
    for each in (*conditions.values(), *measures):
        expressions.append(PatternExpression(each.inputs, each.type))
        functions.append(each.function)
    first = 2 + len(conditions)
    numbers = tuple(range(first, first + len(measures)))
    shown = [Shown("key", "column", KEY)]
    if rows != "one":
        shown += [Shown(SCHEMA.names[c], "column", c) for c in (TIME, BITS, X)]
    shown += [Shown(f"m{i}", "measure", i) for i in range(len(measures))]
    if timeouts:
        shown.append(Shown("timed_out", "timed out"))
    spec = MatchSpec(
        SCHEMA,
        (KEY,),
        tuple(ColumnOrder(c, descending=False, nulls_first=True) for c in (TIME, BITS, X)),
        pattern,
        text(pattern),
        tuple(expressions),
        {name: (2 + i,) for i, name in enumerate(conditions)},
        numbers,
        tuple(shown),
        rows=rows,
        skip=skip,
        within=None if within is None else within * SECOND,
        time=TIME,
        timeouts=timeouts,
    )
    return Question(_clause(spec, conditions, measures, within), spec, tuple(functions))


def _clause(
    spec: MatchSpec, conditions: Mapping[str, Asked], measures: Sequence[Asked], within: int | None
) -> str:
    said = {
        "one": "ONE ROW PER MATCH",
        "all": "ALL ROWS PER MATCH SHOW EMPTY MATCHES",
        "all, omit empty": "ALL ROWS PER MATCH OMIT EMPTY MATCHES",
        "all, with unmatched": "ALL ROWS PER MATCH WITH UNMATCHED ROWS",
    }
    there = variables(spec.pattern)
    subset = [name for name in ("A", "B") if name in there]
    to = (
        ""
        if spec.skip.variables is None
        else ("U" if len(spec.skip.variables) > 1 else next(iter(spec.skip.variables)))
    )
    parts = [
        "PARTITION BY key ORDER BY time, bits, x",
        "MEASURES " + ", ".join(f"{m.sql} AS m{i}" for i, m in enumerate(measures)) if measures else "",
        said[spec.rows],
        f"AFTER MATCH SKIP {spec.skip.kind.upper()} {to}",
        f"PATTERN ({text(spec.pattern)})",
        "" if within is None else f"WITHIN INTERVAL {within} SECONDS",
        "EMIT TIMEOUTS" if spec.timeouts else "",
        f"SUBSET U = ({', '.join(subset)})" if subset else "",
        "DEFINE " + ", ".join(f"{name} AS {c.sql}" for name, c in conditions.items()) if conditions else "",
    ]
    return "\n".join(part for part in parts if part)


def record(row: Row) -> dict[str, Any]:
    """A row as a topic takes it."""
    return {
        "key": row[KEY],
        "time": BEGIN + timedelta(microseconds=row[TIME]),
        "bits": row[BITS],
        "x": row[X],
    }


def plain(table: pa.Table) -> list[Row]:
    """Rows of a table as the oracle has them."""
    columns = []
    for column in table.columns:
        if pa.types.is_timestamp(column.type):
            origin = int(BEGIN.timestamp()) * SECOND
            columns.append([None if v is None else v - origin for v in column.cast(pa.int64()).to_pylist()])
        else:
            columns.append(column.to_pylist())
    return sorted(zip(*columns, strict=True), key=repr)


def needs(asked: Asked, there: Sequence[str]) -> bool:
    """Whether an expression names no variable that a pattern has not."""
    named = [v for each in asked.inputs for v in (getattr(each, "variables", None) or ())]
    uses_subset = any(word in asked.sql.upper() for word in ("U.", "(U)"))
    return set(named) <= set(there) or (uses_subset and set(there) >= U)


def random_question(pick: random.Random, pattern: Pattern, **options: Any) -> Question | None:
    """With conditions and measures at random; None if there is nothing to look for."""
    there = variables(pattern)
    if not there:
        return None
    chosen = {
        name: pick.choice([c for c in conditions(name) if needs(c, there)])
        for name in there
        if pick.random() < 0.9
    }
    some = [m for m in MEASURES if needs(m, there)]
    return question(pattern, chosen, pick.sample(some, min(len(some), 5)), **options)
