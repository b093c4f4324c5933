"""MATCH_RECOGNIZE over complete partitions: rows are sorted and matched, then measures and output are computed.

The incremental version is `step` in `match_operator`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from headwater.core.errors import EvaluationError
from headwater.core.hashing import Indices
from headwater.operators.match_recognize.automaton import Automaton, compile_pattern
from headwater.operators.match_recognize.backtracking import needs_search, search
from headwater.operators.match_recognize.matcher import (
    Ground,
    MatcherResult,
    joined,
    match_symbols,
    rows_ahead,
)
from headwater.operators.match_recognize.matches import FoundMatches
from headwater.operators.match_recognize.measures import Measuring, Points
from headwater.operators.match_recognize.partitions import Partitions, partitions_of, symbols
from headwater.operators.match_recognize.spec import NEVER, Evaluate, MatchSpec
from headwater.operators.zset.delta import empty_rows
from headwater.operators.zset.exact_sums import Ints
from headwater.operators.zset.numpy_columns import nulls

CELLS_MAX = 1 << 26
"""Maximum number of rows times pattern positions matched at a time."""


def match_rows(spec: MatchSpec, rows: pa.RecordBatch, evaluate: Evaluate) -> pa.RecordBatch:
    """Return the output for rows of any number of partitions, in any order; equal rows count separately."""
    if not rows.num_rows:
        return empty_rows(spec.output)
    return match_partitions(spec, partitions_of(spec, rows), evaluate)


def match_partitions(spec: MatchSpec, partitions: Partitions, evaluate: Evaluate) -> pa.RecordBatch:
    """Return the output for sorted rows."""
    return output(spec, partitions, outcome(spec, partitions, evaluate), evaluate)


def outcome(
    spec: MatchSpec, partitions: Partitions, evaluate: Evaluate, *, settling: bool = False
) -> MatcherResult:
    """Return the matches in sorted rows; `settling` computes when they are final, even if the output does not include it."""
    automaton = compile_pattern(spec.pattern, spec.text)
    masks = symbols(spec, partitions, evaluate)
    made = []
    for part in _parts(partitions, automaton, spec):
        some = partitions.slice(part)
        rows = slice(partitions.starts[part.start], partitions.ends[part.stop - 1])
        ground = Ground.of(spec, automaton, some, masks[rows], settling=settling)
        found = search(ground, evaluate) if needs_search(ground) else match_symbols(ground)
        made.append((found, len(some)))
    return joined(made)


def _parts(partitions: Partitions, automaton: Automaton, spec: MatchSpec) -> Iterator[slice]:
    """Yield slices of partitions to match at a time, to bound memory."""
    rows_max = CELLS_MAX // max(len(automaton), 1)
    longest = int((partitions.ends - partitions.starts).max(initial=0))
    if longest > 8 * rows_max:
        raise EvaluationError(
            f"matching the pattern {spec.text} takes too much memory",
            detail=f"it expands to {len(automaton):,} variables, and a partition has {longest:,} rows",
            hint="use smaller bounds in its quantifiers, or smaller partitions",
            pattern=spec.text,
            reason="too-much-memory",
        )
    first = 0
    while first < len(partitions):
        until = partitions.starts[first] + rows_max
        last = max(int(np.searchsorted(partitions.ends, until, side="right")), first + 1)
        yield slice(first, last)
        first = last


def output(
    spec: MatchSpec, partitions: Partitions, matched: MatcherResult, evaluate: Evaluate
) -> pa.RecordBatch:
    """Return the output columns of matches."""
    found = matched.found
    points, rows = _points(spec, found)
    measuring = Measuring(spec, partitions, found, evaluate)
    alone = _unmatched(spec, partitions, found)
    measures = [
        _column(measuring.column(expression, points), len(alone), spec.expressions[expression].type)
        for expression in spec.measures
    ]
    places = np.concatenate((rows, alone))
    columns = []
    for shown in spec.shown:
        match shown.what:
            case "column":
                columns.append(partitions.column_at(shown.number, places))
            case "measure":
                columns.append(measures[shown.number])
            case "timed out":
                flags = np.concatenate(
                    (found.timed_out[points.matches], np.zeros(len(alone), dtype=np.bool_))
                )
                columns.append(pa.array(flags))
    if spec.closing:
        closes = final_times(spec, partitions, matched)[points.matches]
        columns.append(pa.array(np.concatenate((closes, matched.settled[alone]))))
    return pa.RecordBatch.from_arrays(columns, schema=spec.output)


def _column(values: pa.Array, missing: int, kind: pa.DataType) -> pa.Array:
    """Append NULLs to a measure, for rows that belong to no match."""
    return pa.concat_arrays([values, nulls(missing, kind)]) if missing else values


def _points(spec: MatchSpec, found: FoundMatches) -> tuple[Points, Indices]:
    """Return the points at which measures are evaluated, and the rows whose columns are output with them."""
    every = np.arange(len(found))
    if spec.rows == "one":
        return Points(every, found.lengths), found.starts
    rows = np.flatnonzero(found.shown)
    owners = found.owners[rows]
    empty = every[:0] if spec.rows == "all, omit empty" else np.flatnonzero(found.lengths == 0)
    upto = np.concatenate((rows - found.offsets[owners] + 1, np.zeros(len(empty), dtype=np.int64)))
    return Points(np.concatenate((owners, empty)), upto), np.concatenate(
        (found.rows[rows], found.starts[empty])
    )


def _unmatched(spec: MatchSpec, partitions: Partitions, found: FoundMatches) -> Indices:
    """Return the rows output without a match: they belong to no match, and no empty match starts at them."""
    if spec.rows != "all, with unmatched":
        return np.zeros(0, dtype=np.int64)
    alone = np.arange(partitions.rows.num_rows) >= partitions.origins[partitions.numbers]
    real = ~found.timed_out
    alone[found.rows[real[found.owners]]] = False
    alone[found.starts[real]] = False
    return np.flatnonzero(alone)


def final_times(spec: MatchSpec, partitions: Partitions, matched: MatcherResult) -> Ints:
    """Return the time from which each match is final, considering the later rows that measures read."""
    found = matched.found
    closes = matched.settled[found.starts]
    ahead = rows_ahead(spec, spec.measures)
    if not ahead or not len(found):
        return closes
    assert spec.time is not None
    times = partitions.times(spec.time)
    last = found.starts + np.maximum(found.lengths, 1) - 1 + ahead
    beyond = last >= partitions.ends[found.partitions]
    return np.maximum(closes, np.where(beyond, NEVER, times[np.where(beyond, 0, last)] + 1))
