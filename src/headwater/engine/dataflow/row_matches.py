"""Matches of row patterns with Spark's expressions: the kernels of `operators.match_recognize` made ready to run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headwater.engine.dataflow.jvm_expressions import Evaluator
from headwater.engine.dataflow.linear import Values, compile_values, renamed
from headwater.operators import graph as g
from headwater.operators.match_recognize.reference import match_rows
from headwater.operators.match_recognize.spec import Evaluate
from headwater.operators.window.emit_on_close import EARLIEST, levels


def compile_match(pattern: g.RowPattern, evaluator: Evaluator) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that finds the matches in all rows of many partitions at once."""
    spec, evaluate = pattern.spec, compile_expressions(pattern, evaluator)
    return lambda rows: match_rows(spec, renamed(rows, spec.schema), evaluate)


def matches_at(
    pattern: g.RowPattern, evaluator: Evaluator, rows: pa.RecordBatch, watermarks: Mapping[str, int]
) -> pa.RecordBatch:
    """Return the matches in complete partitions, including matches that have timed out, if the pattern shows these.

    Timeouts are judged by the watermarks of the topics that the pattern waits for; if it waits for none, by the latest
    time of the rows.
    """
    spec = pattern.spec
    if not spec.timeouts or (spec.closing and pattern.waits is None):
        return compile_match(pattern, evaluator)(rows)
    found = compile_match(replace(pattern, spec=replace(spec, closing=True)), evaluator)(rows)
    if pattern.waits is not None:
        (level,) = levels([pattern.waits.topics], watermarks)
        level -= pattern.waits.slack_us if level > EARLIEST else 0
    else:
        latest = pc.max(rows.column(spec.time)).cast(pa.int64()).as_py()
        level = EARLIEST if latest is None else latest
    is_over = found.column([s.what for s in spec.shown].index("timed out"))
    shown = pc.or_(pc.invert(is_over), pc.less_equal(found.column(found.num_columns - 1), level))
    return found.filter(shown).select(range(found.num_columns - 1))


def compile_expressions(pattern: g.RowPattern, evaluator: Evaluator) -> Evaluate:
    """Return an evaluator of the pattern's expressions by number; each is compiled at first use."""
    compiled: dict[int, Values] = {}

    def evaluate(number: int, inputs: pa.RecordBatch, count: int) -> pa.Array:
        if number not in compiled:
            compiled[number] = compile_values([pattern.expressions[number]], evaluator)
        return compiled[number](inputs, count)[0]

    return evaluate
