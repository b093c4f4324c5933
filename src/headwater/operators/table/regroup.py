"""Any function of whole groups: evaluated before and after a delta, for the groups that the delta touches.

The cost is proportional to the size of these groups, however small the delta: functions that need only part of a group
are in `ordered_runs`, functions that can be accumulated in `aggregate`. State consists of multiset runs (see `runs`).
Groups are evaluated in slices, so that memory is proportional to a slice and to the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes
from headwater.operators.zset.delta import Delta, concat, consolidate, take_rows
from headwater.operators.zset.runs import Key, Run, arrange, distinct_keys, probe

Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]

SLICE_KEYS = 1 << 16
"""Number of groups evaluated at a time."""


def regroup(
    runs: Sequence[Run], key: Key, delta: Delta, evaluate: Evaluate, output_schema: pa.Schema
) -> tuple[Delta, Run]:
    """Return the consolidated change that a delta makes to the result, and the run that it adds to the state.

    `evaluate` receives all rows of many touched groups at once, a row of weight n n times, and returns the rows of the
    result; it must treat groups independently and must not depend on the order of rows. It is called once per slice of
    groups for their old rows and once for their new rows, and not at all without rows. Rows whose net weight is not
    positive are absent.
    """
    run = arrange(delta, key)
    if not len(run):
        return Delta.empty(output_schema), run
    keys, hashes = distinct_keys(run.rows, key)
    parts = []
    for start in range(0, len(hashes), SLICE_KEYS):
        some = keys.slice(start, SLICE_KEYS), hashes[start : start + SLICE_KEYS]
        old, came = (_current_rows(where, key, *some, delta.rows.schema) for where in (runs, [run]))
        before = consolidate(old)
        after = consolidate(concat([before, came], delta.rows.schema))
        went = _evaluated(before, evaluate, output_schema).negated()
        parts.append(consolidate(concat([went, _evaluated(after, evaluate, output_schema)], output_schema)))
    # Groups evaluated in different slices may produce equal rows if these do not include the key.
    return parts[0] if len(parts) == 1 else consolidate(concat(parts, output_schema)), run


def regroup_whole(
    runs: Sequence[Run], delta: Delta, evaluate: Evaluate, output_schema: pa.Schema, *, first: bool
) -> tuple[Delta, Run]:
    """Apply `regroup` to the one group of all rows, which exists even without rows and then has the result over no rows.

    `first`: no result was emitted yet. `evaluate` is called without rows only where the group was or becomes empty.
    """
    output, run = regroup(runs, (), delta, evaluate, output_schema)
    held = sum(int(np.sum(each.weights)) for each in runs)
    before, after = held == 0 and not first, held + int(np.sum(run.weights)) == 0
    if before != after:
        empty = Delta.of(evaluate(Delta.empty(delta.rows.schema).rows))
        output = consolidate(concat([output, empty.negated() if before else empty], output_schema))
    return output, run


def _current_rows(
    runs: Sequence[Run], key: Key, keys: pa.RecordBatch, hashes: Hashes, schema: pa.Schema
) -> Delta:
    matches = probe(runs, key, keys, hashes, schema=schema)
    return Delta(matches.rows, matches.weights)


def _evaluated(group: Delta, evaluate: Evaluate, output_schema: pa.Schema) -> Delta:
    times = np.maximum(group.weights, 0)
    if not times.any():
        return Delta.empty(output_schema)
    rows = group.rows
    if (times != 1).any():
        rows = take_rows(rows, np.repeat(np.arange(len(times)), times))
    return Delta.of(evaluate(rows))
