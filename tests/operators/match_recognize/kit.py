"""Patterns, rows and expressions for tests of MATCH_RECOGNIZE: the same specification for the kernels and the oracle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

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
from headwater.operators.match_recognize.reference import match_rows
from headwater.operators.match_recognize.spec import (
    Classify,
    Input,
    MatchNumber,
    MatchSpec,
    Navigate,
    PatternExpression,
    Shown,
)
from headwater.operators.zset.collation import ColumnOrder
from tests.operators.match_recognize.oracle import Partition, Row

SCHEMA = pa.schema(
    [("key", pa.int64()), ("time", pa.timestamp("us")), ("bits", pa.int64()), ("x", pa.int64())]
)
KEY, TIME, BITS, X = range(4)
NAMES = ("A", "B", "C")


@dataclass(frozen=True)
class Asked:
    """A specification, and the functions of its expressions."""

    spec: MatchSpec
    functions: tuple[Callable[..., Any], ...]

    def evaluate(self, expression: int, inputs: pa.RecordBatch, count: int) -> pa.Array:
        """What the kernels are handed."""
        columns = [column.to_pylist() for column in inputs.columns]
        rows = zip(*columns, strict=True) if columns else [()] * count
        made = [self.functions[expression](*values) for values in rows]
        return pa.array(made, self.spec.expressions[expression].type)

    def matched(self, rows: Sequence[Row]) -> list[Row]:
        """What the kernels say."""
        made = match_rows(self.spec, batch(rows), self.evaluate)
        assert made.schema.equals(self.spec.output)
        made.validate(full=True)
        return ordered(plain(made))

    def expected(self, rows: Sequence[Row]) -> list[Row]:
        """What the oracle says."""
        return ordered(
            row for part in partitions(rows) for row in Partition(self.spec, self.functions, part).output()
        )


def plain(rows: pa.RecordBatch) -> list[Row]:
    """Rows as tuples, times as numbers."""
    columns = [(c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c).to_pylist() for c in rows.columns]
    return list(zip(*columns, strict=True))


def batch(rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of the schema of all tests."""
    columns = [pa.array([row[i] for row in rows], f.type) for i, f in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def partitions(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows by key, in order."""
    found: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: (row[KEY], row[TIME], row[BITS], row[X])):
        found.setdefault(row[KEY], []).append(row)
    return list(found.values())


def ordered(rows: Iterable[Row]) -> list[Row]:
    """Rows in any one order."""
    return sorted(rows, key=repr)


def asked(
    pattern: Pattern,
    *,
    conditions: dict[str, Sequence[tuple[tuple[Input, ...], Callable[..., Any]]]] | None = None,
    measures: Sequence[tuple[tuple[Input, ...], Callable[..., Any], pa.DataType]] = (),
    arguments: Sequence[Callable[..., Any]] = (),
    labelled: Sequence[Callable[..., Any]] = (),
    **options: Any,
) -> Asked:
    """What is asked for. A variable without conditions of its own is one bit of the column `bits`.

    Arguments of aggregates are functions of `x`, numbered from 0, then those that are texts and functions of `x`, the
    variable of the row and the number of the match. Shown are key, time, the classifier, the number of the
    match, then the measures.
    """
    expressions = [PatternExpression((Navigate(X),), pa.int64()) for _ in arguments]
    expressions += [
        PatternExpression((Navigate(X), Classify(), MatchNumber()), pa.string()) for _ in labelled
    ]
    functions: list[Callable[..., Any]] = [*arguments, *labelled]

    def number(inputs: tuple[Input, ...], function: Callable[..., Any], kind: pa.DataType) -> int:
        expressions.append(PatternExpression(inputs, kind))
        functions.append(function)
        return len(expressions) - 1

    chosen: dict[str, tuple[int, ...]] = {}
    for name in variables(pattern):
        own = (conditions or {}).get(name)
        if own is None:
            own = [((Navigate(BITS),), partial(_has, NAMES.index(name)))]
        chosen[name] = tuple(number(inputs, function, pa.bool_()) for inputs, function in own)
    usual = [
        ((Classify(),), lambda name: name, pa.string()),
        ((MatchNumber(),), lambda number: number, pa.int64()),
    ]
    numbers = tuple(number(*measure) for measure in (*usual, *measures))
    shown = (
        Shown("key", "column", KEY),
        Shown("time", "column", TIME),
        *(Shown(f"m{i}", "measure", i) for i in range(len(numbers))),
        *([Shown("timed_out", "timed out")] if options.get("timeouts") else []),
    )
    spec = MatchSpec(
        SCHEMA,
        (KEY,),
        (ColumnOrder(TIME, descending=False, nulls_first=True),),
        pattern,
        "(pattern)",
        tuple(expressions),
        chosen,
        numbers,
        shown,
        time=TIME,
        **options,
    )
    return Asked(spec, tuple(functions))


def _has(bit: int, bits: int) -> bool:
    return bool(bits >> bit & 1)


def patterns(*, anchors: bool = True) -> st.SearchStrategy[Pattern]:
    """Of few variables, so that they are met in many ways."""
    one = st.sampled_from([Variable(name) for name in NAMES])
    empty: list[Pattern] = [Empty(), Start(), End()] if anchors else [Empty()]
    leaf = st.one_of(one, one, one, st.sampled_from(empty))

    def wider(part: st.SearchStrategy[Pattern]) -> st.SearchStrategy[Pattern]:
        several = st.lists(part, min_size=2, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Concat, several),
            st.builds(Alternate, several),
            st.builds(_quantified, part, st.integers(0, 2), st.sampled_from([None, 0, 1]), st.booleans()),
            st.builds(Permute, st.tuples(part, part)),
            st.builds(Exclude, part),
        )

    return st.recursive(leaf, wider, max_leaves=6)


def _quantified(part: Pattern, low: int, more: int | None, greedy: bool) -> Pattern:
    return Quantified(part, low, None if more is None else max(low + more, 1), greedy)


def rows(keys: int = 3, size: int = 20, *, spread: int = 12) -> st.SearchStrategy[list[Row]]:
    """Of few keys and times, so that rows tie."""
    row = st.tuples(st.integers(0, keys - 1), st.integers(0, spread), st.integers(0, 7), st.integers(0, 3))
    return st.lists(row, min_size=1, max_size=size)


def concat(text: str) -> Pattern:
    """Variables, one after the other, each with a quantifier of one sign if it has any: `A B+ C?`."""
    signs = {"*": (0, None), "+": (1, None), "?": (0, 1)}
    parts: list[Pattern] = []
    for word in text.split():
        one = Variable(word[0])
        parts.append(Quantified(one, *signs[word[1]], word[2:] != "?") if word[1:] else one)
    return Concat(tuple(parts))
