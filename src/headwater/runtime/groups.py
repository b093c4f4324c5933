"""Functions of whole groups, computed by Spark itself over the rows of the groups that a change touched.

For what has no kernel of its own: window functions, percentiles, lists. The plan node of the query runs as it is, over
a local relation in place of its input.

What was there before a change is computed again, to be taken back, so that the same rows must give the same result to
the last bit. Sums of floats depend on their order: rows are therefore put in one that is theirs alone, and read by one
task, in which nothing is merged.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from headwater.operators import aggregate
from headwater.operators.delta import Delta, row_hashes, take_rows
from headwater.operators.functions import Function
from headwater.queries import graph as g
from headwater.runtime.expressions import Evaluator, conformed, evaluation_error
from headwater.runtime.patterns import compile_match
from headwater.runtime.planning.catalyst import collected, identity, items, kind, output_of
from headwater.runtime.planning.handles import Evaluation


def compile_groups(node: g.Regroup, evaluator: Evaluator) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """The function of a group's rows, for many groups at once."""
    if isinstance(node.evaluate, g.RowPattern):
        return compile_match(node.evaluate, evaluator)
    evaluate = (
        _aggregated(node.evaluate) if isinstance(node.evaluate, g.Aggregate) else _planned(node, evaluator)
    )
    return lambda rows: evaluate(_in_order(rows))


def shown_columns(node: g.Regroup) -> dict[int, int]:
    """Columns of a whole group's result that are columns of its input."""
    evaluation = node.evaluate
    if isinstance(evaluation, g.RowPattern):
        shown_places = enumerate(evaluation.spec.shown)
        return {place: shown.number for place, shown in shown_places if shown.what == "column"}
    if not isinstance(evaluation, Evaluation):  # the aggregate that it is in place of: its keys come first
        return dict(enumerate(node.key))
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


def _in_order(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, in an order that depends on nothing but them."""
    high, low = row_hashes(rows)
    return take_rows(rows, np.lexsort((low, high)))


def _planned(node: g.Regroup, evaluator: Evaluator) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A node of Spark's plan, run over the rows."""
    evaluation: Evaluation = node.evaluate
    catalyst = evaluator.catalyst
    # the node's input may have more columns than its plan knows: the keys that were computed for it
    width = len(evaluation.attributes)

    def evaluate(rows: pa.RecordBatch) -> pa.RecordBatch:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException
        from pyspark.sql.classic.dataframe import DataFrame

        names = [f"c{i}" for i in range(width)]
        table = pa.Table.from_arrays(rows.columns[:width], names=names)
        try:
            frame = catalyst.spark.createDataFrame(table).coalesce(1)
            leaf = frame._jdf.queryExecution().analyzed()
            renamed = [
                catalyst.alias(catalyst.cast(a, like.dataType()), like.name(), like=like)
                for a, like in zip(output_of(leaf), evaluation.attributes, strict=True)
            ]
            below = catalyst.plans.Project(catalyst.seq(renamed), leaf)
            plan = evaluation.plan.withNewChildren(catalyst.seq([below]))
            result = collected(DataFrame(catalyst.dataset(plan), catalyst.spark))
        except (PySparkException, Py4JJavaError) as error:
            raise evaluation_error(error) from error
        columns = [conformed(result.column(i), f.type) for i, f in enumerate(node.schema)]
        return pa.RecordBatch.from_arrays(columns, schema=node.schema)

    return evaluate


def kernel_function(function: g.Function, *, append_only: bool) -> Function:
    """An aggregate function of a graph, as the kernels have it."""
    return Function(function.kind, function.args, function.filter, append_only, sketch=function.sketch)  # type: ignore[arg-type]


def _aggregated(node: g.Aggregate) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Users' aggregates that cannot take rows back: the aggregation kernel, from nothing."""
    functions = tuple(kernel_function(f, append_only=True) for f in node.functions)
    customs = tuple(c.handle for c in node.customs)
    spec = aggregate.AggregateSpec(node.input.schema, node.keys, functions, customs)

    def evaluate(rows: pa.RecordBatch) -> pa.RecordBatch:
        if not rows.num_rows:
            made = aggregate.initial(spec).rows
        else:
            change = aggregate.step(spec, (), (), Delta.of(rows)).output
            made = change.filter(change.weights > 0).rows
        return pa.RecordBatch.from_arrays(made.columns, schema=node.schema)

    return evaluate
