"""Top-k per group: the rows of each group whose rank in an order is low enough, maintained incrementally.

State consists of the runs of `ordered_runs`. Only groups that a delta touches are read, and of these only the rows that
count, some groups at a time: memory is proportional to a slice of the rows read and to the changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.hashing import Indices, spread
from headwater.operators.zset.delta import Delta, Weights, concat, consolidate, take_rows
from headwater.operators.zset.ordered_runs import (
    ColumnOrder,
    Counting,
    Firsts,
    Limit,
    arrange_ordered,
    first_changes,
)
from headwater.operators.zset.runs import Key, Probes, Run, distinct_keys

Function = Literal["row_number", "rank", "dense_rank"]

_COUNTING: dict[Function, Counting] = {"row_number": "rows", "rank": "ties", "dense_rank": "values"}


@dataclass(frozen=True)
class RankSpec:
    """The selection of rows in each group: those with a rank in (offset, limit].

    ORDER BY ... LIMIT k OFFSET m is row_number in (m, m + k] over the single group of an empty key. `numbered`: the
    rank is an additional column of the result; without it, changes of rank alone are not emitted.
    """

    key: Key
    order: Sequence[ColumnOrder]
    function: Function
    limit: int
    offset: int = 0
    numbered: bool = True
    exact: bool = True
    """Whether a reader uses the rank; if not, the column is 1, and changes of rank alone are not emitted."""

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the columns of the result over an input of `schema`."""
        return schema.append(pa.field("rank", pa.int32(), nullable=False)) if self.numbered else schema


def step(spec: RankSpec, runs: Sequence[Run], delta: Delta) -> tuple[Delta, Run]:
    """Return the consolidated change that a delta makes to the result, and the run that it adds to the state.

    row_number orders ties by the remaining columns ascending, NULLs first; a row of weight n takes n numbers.
    """
    run = arrange_ordered(delta, spec.key, spec.order)
    schema = spec.output_schema(delta.rows.schema)
    if not len(run):
        return Delta.empty(schema), run
    probes = Probes(spec.key, *distinct_keys(run.rows, spec.key))
    counting = _COUNTING[spec.function]
    parts = first_changes(runs, run, spec.order, probes, Limit(spec.limit, counting))
    output = concat([_changed(spec, part, schema) for part in parts], schema)
    # A result row includes its key, and all rows of a key are in one part.
    return Delta(output.rows, output.weights, distinct=True), run


@dataclass(frozen=True, eq=False)
class _Ranked:
    """The number of occurrences of each row in the result, and its rank: with row_number, the rank of its first occurrence.

    The rank of a row that is not in the result is 0.
    """

    ranks: Indices
    weights: Weights


def _changed(spec: RankSpec, firsts: Firsts, schema: pa.Schema) -> Delta:
    """Return the consolidated change of the groups of a part."""
    old, new = (_ranked(spec, firsts, weights) for weights in (firsts.before, firsts.after))
    if not (spec.numbered and spec.exact):
        change = new.weights - old.weights
        kept = np.flatnonzero(change)
        return _rows(spec, firsts, kept, np.ones_like(kept), change[kept], schema)
    moved = np.flatnonzero((old.ranks != new.ranks) | (old.weights != new.weights))
    if spec.function == "row_number":
        went, came = (_each(one, moved) for one in (old, new))
    else:
        went, came = ((moved, one.ranks[moved], one.weights[moved]) for one in (old, new))
    places, ranks = (np.concatenate(both) for both in zip(went[:2], came[:2], strict=True))
    weights = np.concatenate([-went[2], came[2]])
    return consolidate(_rows(spec, firsts, places, ranks, weights, schema))


def _ranked(spec: RankSpec, firsts: Firsts, weights: Weights) -> _Ranked:
    there = np.flatnonzero(weights)
    groups, counts = _starts(firsts.probe[there]), weights[there]
    before = np.cumsum(counts) - counts
    if spec.function == "row_number":
        before -= before[groups][np.cumsum(groups) - 1]
        skipped = np.clip(spec.offset - before, 0, counts)
        ranks, counts = before + skipped + 1, counts - skipped
    else:
        values = _starts(firsts.values[there])
        ahead = np.cumsum(values) - 1
        if spec.function == "rank":
            ahead = before[values][ahead]
        ranks = ahead - ahead[groups][np.cumsum(groups) - 1] + 1
        counts = np.where((ranks > spec.offset) & (ranks <= spec.limit), counts, 0)
    found = _Ranked(np.zeros_like(weights), np.zeros_like(weights))
    found.ranks[there], found.weights[there] = np.where(counts > 0, ranks, 0), counts
    return found


def _each(ranked: _Ranked, rows: Indices) -> tuple[Indices, Indices, Weights]:
    """Repeat rows for each occurrence in the result, with consecutive ranks; return their indices, ranks and weights."""
    times = ranked.weights[rows]
    ranks = spread(ranked.ranks[rows], times)
    return np.repeat(rows, times), ranks, np.ones_like(ranks)


def _rows(
    spec: RankSpec, firsts: Firsts, places: Indices, ranks: Indices, weights: Weights, schema: pa.Schema
) -> Delta:
    columns = take_rows(firsts.rows, places).columns
    if spec.numbered:
        columns = [*columns, pa.array(ranks.astype(np.int32))]
    return Delta(pa.RecordBatch.from_arrays(columns, schema=schema), weights)


def _starts(labels: Indices) -> npt.NDArray[np.bool_]:
    starts = np.ones(len(labels), dtype=np.bool_)
    starts[1:] = labels[1:] != labels[:-1]
    return starts
