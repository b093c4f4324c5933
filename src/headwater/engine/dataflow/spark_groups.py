"""Functions of whole groups, computed by Spark itself over the rows of the groups that a change affects.

Used for functions without a kernel of their own: window functions, percentiles, lists. The plan node of the query runs
unchanged, over a local relation instead of its input.

The previous result of a group is computed again to be retracted, so the same rows must give the same result to the last
bit. Sums of floats depend on their order: rows are therefore sorted in an order that depends only on their values, and
read by a single task, so that no partial results are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pyarrow as pa

from headwater.engine.dataflow.jvm_expressions import Evaluator, conformed
from headwater.operators.zset.delta import row_hashes, take_rows
from headwater.plan.relations.relations import Evaluation
from headwater.plan.rewrite.exact_sum_rewrite import exact_form
from headwater.spark.catalyst import Catalyst, Jvm, collected, identity, items, kind, output_of
from headwater.spark.spark_errors import evaluation_error, own_errors


def compile_groups(
    evaluation: Evaluation, schema: pa.Schema, evaluator: Evaluator
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Compile a node of Spark's plan to a function that takes the rows of many groups at once; `schema` is that of the
    result."""
    catalyst = evaluator.catalyst
    # the node's input may have more columns than its plan: key columns that were computed for it
    width = len(evaluation.attributes)
    exact = cache(partial(_exact, catalyst, evaluation.plan))

    @own_errors(evaluation_error)
    def evaluate(rows: pa.RecordBatch) -> pa.RecordBatch:
        from pyspark.sql.classic.dataframe import DataFrame

        names = [f"c{i}" for i in range(width)]
        table = pa.Table.from_arrays(in_order(rows).columns[:width], names=names)
        frame = catalyst.spark.createDataFrame(table).coalesce(1)
        leaf = frame._jdf.queryExecution().analyzed()
        renamed = [
            catalyst.alias(catalyst.cast(a, like.dataType()), like.name(), like=like)
            for a, like in zip(output_of(leaf), evaluation.attributes, strict=True)
        ]
        below = catalyst.plans.Project(catalyst.seq(renamed), leaf)
        plan = exact()(below)
        result = collected(DataFrame(catalyst.dataset(plan), catalyst.spark))
        columns = [conformed(result.column(i), f.type) for i, f in enumerate(schema)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return evaluate


def shown_columns(evaluation: Evaluation) -> dict[int, int]:
    """Return the output columns of a node that are unchanged columns of its input: output index to input index."""
    if kind(evaluation.plan) == "Window":
        return {c: c for c in range(len(evaluation.attributes))}
    shown: dict[int, int] = {}
    if kind(evaluation.plan) != "Aggregate":
        return shown
    numbers = [identity(a) for a in evaluation.attributes]
    for place, e in enumerate(items(evaluation.plan.aggregateExpressions())):
        inner = e.child() if kind(e) == "Alias" else e
        if kind(inner) == "AttributeReference" and identity(inner) in numbers:
            shown[place] = numbers.index(identity(inner))
    return shown


def in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in an order that depends only on their values."""
    high, low = row_hashes(rows)
    return take_rows(rows, np.lexsort((low, high)))


def _exact(catalyst: Catalyst, plan: Jvm) -> Callable[[Jvm], Jvm]:
    if kind(plan) in ("Aggregate", "Window"):
        return exact_form(catalyst, plan)
    return lambda child: plan.withNewChildren(catalyst.seq([child]))
