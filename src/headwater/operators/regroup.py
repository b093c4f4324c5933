"""Any function of whole groups: evaluated again, before and after, for the groups that a delta touches.

It costs what these groups hold, however small the delta: what needs but a part of a group is in `ordered`, what can be
added up in `aggregate`. State are multiset runs (see `runs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from headwater.operators.delta import Delta, concat, consolidate, take_rows
from headwater.operators.runs import Key, Run, arrange, distinct_keys, probe

Evaluate = Callable[[pa.RecordBatch], pa.RecordBatch]


def regroup(
    runs: Sequence[Run], key: Key, delta: Delta, evaluate: Evaluate, output_schema: pa.Schema
) -> tuple[Delta, Run]:
    """What a delta changes in the result, consolidated, and the run that it adds to the state.

    `evaluate` is given all rows of all touched groups at once, a row of weight n n times, and returns the rows of the
    result; it must treat groups independently and must not depend on the order of the rows. It is called once for the
    groups as they were and once for what becomes of them, and not at all for no rows. Rows whose weights do not add up
    to more than 0 are not there.
    """
    run = arrange(delta, key)
    if not len(run):
        return Delta.empty(output_schema), run
    keys, hashes = distinct_keys(run.rows, key)
    matches = probe(runs, key, keys, hashes, schema=delta.rows.schema)
    before = consolidate(Delta(matches.rows, matches.weights))
    after = consolidate(concat([before, Delta(run.rows, run.weights)], delta.rows.schema))
    old = _evaluated(before, evaluate, output_schema)
    new = _evaluated(after, evaluate, output_schema)
    return consolidate(concat([old.negated(), new], output_schema)), run


def _evaluated(group: Delta, evaluate: Evaluate, output_schema: pa.Schema) -> Delta:
    times = np.maximum(group.weights, 0)
    if not times.any():
        return Delta.empty(output_schema)
    rows = group.rows
    if (times != 1).any():
        rows = take_rows(rows, np.repeat(np.arange(len(times)), times))
    return Delta.of(evaluate(rows))
