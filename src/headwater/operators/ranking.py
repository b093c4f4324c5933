"""Top-k per group: the rows of each group whose rank in an order is low enough, kept as rows come and go.

State are the runs of `ordered`. Only groups that a delta touches are looked at, and of these only the rows that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.hashing import Hashes, Indices, spread
from headwater.operators.collation import value_starts
from headwater.operators.delta import Delta, concat, consolidate, take_rows
from headwater.operators.ordered import Counting, Order, arrange_ordered, first_rows
from headwater.operators.runs import Key, Matches, Run, distinct_keys

Function = Literal["row_number", "rank", "dense_rank"]

_COUNTING: dict[Function, Counting] = {"row_number": "rows", "rank": "ties", "dense_rank": "values"}


@dataclass(frozen=True)
class RankSpec:
    """Which rows of each group stay: those with a rank in (offset, limit].

    ORDER BY ... LIMIT k OFFSET m is row_number in (m, m + k] of the one group that an empty key makes. `numbered`: the
    rank is one more column of the result; without it a change of rank alone is no change.
    """

    key: Key
    order: Sequence[Order]
    function: Function
    limit: int
    offset: int = 0
    numbered: bool = True

    def output_schema(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the result over an input of `schema`."""
        return schema.append(pa.field("rank", pa.int32(), nullable=False)) if self.numbered else schema


def step(spec: RankSpec, runs: Sequence[Run], delta: Delta) -> tuple[Delta, Run]:
    """What a delta changes in the result, consolidated, and the run that it adds to the state.

    Ties of row_number go by the remaining columns ascending, NULLs first; a row of weight n takes n numbers.
    """
    run = arrange_ordered(delta, spec.key, spec.order)
    schema = spec.output_schema(delta.rows.schema)
    if not len(run):
        return Delta.empty(schema), run
    keys, hashes = distinct_keys(run.rows, spec.key)
    old = _result(spec, runs, keys, hashes, schema)
    new = _result(spec, [*runs, run], keys, hashes, schema)
    return consolidate(concat([old.negated(), new], schema)), run


def _result(
    spec: RankSpec, runs: Sequence[Run], keys: pa.RecordBatch, hashes: Hashes, schema: pa.Schema
) -> Delta:
    """The rows of some groups that stay."""
    if not runs:
        return Delta.empty(schema)
    counting = _COUNTING[spec.function]
    first = first_rows(runs, spec.key, spec.order, keys, hashes, spec.limit, counting=counting)
    if spec.function == "row_number":
        return _numbered_rows(spec, first, schema)
    starts = value_starts(first.rows, first.probe, spec.order)
    groups = _group_starts(first.probe)
    if spec.function == "rank":
        ahead = np.cumsum(first.weights) - first.weights
        ahead = ahead[starts][np.cumsum(starts) - 1]
    else:
        ahead = np.cumsum(starts) - 1
    ranks = ahead - ahead[groups][np.cumsum(groups) - 1] + 1
    kept = np.flatnonzero((ranks > spec.offset) & (ranks <= spec.limit))
    return _with_ranks(spec, take_rows(first.rows, kept), ranks[kept], first.weights[kept], schema)


def _numbered_rows(spec: RankSpec, first: Matches, schema: pa.Schema) -> Delta:
    groups = _group_starts(first.probe)
    before = np.cumsum(first.weights) - first.weights
    before = before - before[groups][np.cumsum(groups) - 1]
    skipped = np.clip(spec.offset - before, 0, first.weights)
    weights = first.weights - skipped
    if not spec.numbered:
        kept = np.flatnonzero(weights)
        return _with_ranks(spec, take_rows(first.rows, kept), weights[kept], weights[kept], schema)
    ranks = spread(before + skipped + 1, weights)
    places = np.repeat(np.arange(len(weights)), weights)
    return _with_ranks(spec, take_rows(first.rows, places), ranks, np.ones_like(ranks), schema)


def _with_ranks(
    spec: RankSpec, rows: pa.RecordBatch, ranks: Indices, weights: Indices, schema: pa.Schema
) -> Delta:
    columns = rows.columns
    if spec.numbered:
        columns = [*columns, pa.array(ranks.astype(np.int32))]
    return Delta(pa.RecordBatch.from_arrays(columns, schema=schema), weights)


def _group_starts(groups: Indices) -> npt.NDArray[np.bool_]:
    starts = np.ones(len(groups), dtype=np.bool_)
    starts[1:] = groups[1:] != groups[:-1]
    return starts
