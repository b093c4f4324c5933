"""User-defined functions in a Spark session: registered by name, and rewritten in the plans that call them.

To plan a view, Spark needs only names and types: the registered functions have no code. To run a query in batch, they have
the code, which Spark ships to its Python workers. A table function becomes `inline` of a list of rows, and in batch an
aggregate becomes a function of the list of its group's rows, so that Spark executes scalar functions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.core.types import format_type
from headwater.spark.catalyst import Catalyst, Jvm, Refuse, children_of, find, items, kind, module
from headwater.udf.folds import FoldDefinition, recomputed
from headwater.udf.udf_calls import Evaluated
from headwater.udf.udf_definitions import FunctionDefinition
from headwater.udf.udf_registry import Functions
from headwater.udf.udf_states import CollectedCalls

_SUBQUERIES = ("ScalarSubquery", "Exists", "ListQuery", "LateralSubquery")


class SessionFunctions:
    """The functions that queries of one session have called so far. `runs` says whether they are registered with their
    code."""

    def __init__(self, catalyst: Catalyst, functions: Functions, *, runs: bool) -> None:
        self._c = catalyst
        self._functions = functions
        self._runs = runs
        self._registered: dict[str, tuple[object, Jvm]] = {}

    def prepare(self, query: str) -> None:
        """Register the functions that a query calls; FunctionMissingError if one is to run and its code is not available."""
        for name, definition in self._functions.used(query).items():
            if definition.kind == "fold":
                continue
            code = self._functions.code(definition) if self._runs else None
            known = (definition.signature, id(code))
            if name not in self._registered or self._registered[name][0] != known:
                self._registered[name] = (known, self._register(definition, code))

    def _register(self, definition: FunctionDefinition, code: Any) -> Jvm:
        """Register a function by its name; return the scalar function that calls it."""
        from pyspark.util import PythonEvalType

        registry = self._c.session.udf()
        if definition.kind == "aggregate":
            calls = None if code is None else CollectedCalls(definition.name, code)
            named = self._made(definition, None, PythonEvalType.SQL_GROUPED_AGG_ARROW_UDF)
            registry.registerPython(definition.name, named)
            return self._made(definition, calls, PythonEvalType.SQL_SCALAR_ARROW_UDF)
        scalar = self._made(definition, code, PythonEvalType.SQL_SCALAR_ARROW_UDF)
        registry.registerPython(definition.name, scalar)
        if definition.kind == "table":
            self._register_table(definition)
        return scalar

    def _made(self, definition: FunctionDefinition, calls: Any, eval_type: int) -> Jvm:
        from pyspark.sql.udf import UserDefinedFunction

        function = UserDefinedFunction(
            Evaluated(definition.name, calls),
            format_type(definition.returns),
            name=definition.name,
            evalType=eval_type,
        )
        try:
            return function._judf
        except Exception as error:  # pickling a user's object may raise anything
            raise UsageError(
                f"function {definition.name!r} cannot be sent to Spark's Python workers: {error}",
                hint="use nothing in it that cannot be pickled, such as open files, locks or connections",
                function=definition.name,
                reason="not-picklable",
            ) from error

    def _register_table(self, definition: FunctionDefinition) -> None:
        from pyspark.sql.udtf import UserDefinedTableFunction

        columns = definition.returns.value_type
        fields = (columns.field(i) for i in range(columns.num_fields))
        returns = ", ".join(f"`{f.name}` {format_type(f.type)}" for f in fields)
        table = UserDefinedTableFunction(_Table, returnType=returns, name=definition.name, deterministic=True)
        self._c.session.udtf().registerPython(definition.name, table._judtf)

    def folded(self, fold: FoldDefinition, rows: pa.Table) -> pa.Table:
        """Return the contents of a fold's view, computed from all records of its topic."""
        definition = self._functions.declared()[fold.name.lower()]
        return recomputed(rows, fold, self._functions.code(definition), definition)

    def inlined(self, plan: Jvm, refuse: Refuse) -> Jvm:
        """Return an analysed plan with every table function replaced by `inline` of the list of its rows."""
        if self._any("aggregate"):
            self._refuse_correlated(plan, refuse)
        if not self._any("table"):
            return plan
        return self._rewritten(plan, self._inlined)

    def collected(self, plan: Jvm) -> Jvm:
        """Return an analysed plan with every user-defined aggregate replaced by a function of the list of its group's rows."""
        if not self._any("aggregate"):
            return plan
        return self._rewritten(plan, self._collected)

    def _refuse_correlated(self, plan: Jvm, refuse: Refuse) -> None:
        """Reject user-defined aggregates in correlated subqueries: where no row matches, Spark uses NULL, which may differ
        from their value."""
        for child in children_of(plan):
            self._refuse_correlated(child, refuse)
        for expression in items(plan.expressions()):
            found = find(expression, lambda e: kind(e) in _SUBQUERIES)
            if found is None:
                continue
            if found.outerAttrs().size() and _aggregates(found.plan()):
                refuse(
                    found,
                    "user-defined aggregates are not supported in correlated subqueries",
                    hint="join with a subquery that has GROUP BY",
                    reason="udf-aggregate-in-subquery",
                )
            self._refuse_correlated(found.plan(), refuse)

    def _any(self, wanted: str) -> bool:
        declared = self._functions.declared()
        return any(name in declared and declared[name].kind == wanted for name in self._registered)

    def _scalar(self, name: str) -> Jvm:
        return self._registered[name.lower()][1]

    def _inlined(self, plan: Jvm) -> Jvm:
        if kind(plan) != "Generate" or kind(plan.generator()) != "PythonUDTF":
            return plan
        generator = plan.generator()
        rows = self._scalar(generator.name()).builder(generator.children())
        return plan.copy(
            self._c.expressions.Inline(rows),
            plan.unrequiredChildIndex(),
            plan.outer(),
            plan.qualifier(),
            plan.generatorOutput(),
            plan.child(),
        )

    def _collected(self, plan: Jvm) -> Jvm:
        c = self._c
        if kind(plan) != "Aggregate":
            return plan

        def change(e: Jvm) -> Jvm | None:
            if kind(e) != "AggregateExpression" or kind(e.aggregateFunction()) != "PythonUDAF":
                return None
            function = e.aggregateFunction()
            parts: list[Jvm] = []
            for i, argument in enumerate(children_of(function)):
                parts += [module(c.expressions, "Literal").apply(f"argument {i + 1}"), argument]
            rows = c.expressions.aggregate.CollectList(c.expressions.CreateNamedStruct(c.seq(parts)))
            return self._scalar(function.name()).builder(c.seq([rows.toAggregateExpression()]))

        outputs = [c.rewritten(e, change) for e in items(plan.aggregateExpressions())]
        return plan.copy(plan.groupingExpressions(), c.seq(outputs), plan.child(), c.none())

    def _rewritten(self, plan: Jvm, change: Callable[[Jvm], Jvm]) -> Jvm:
        """Return a plan in which `change` was applied to every node bottom-up, including nodes in subqueries."""
        c = self._c
        children = children_of(plan)
        changed = [self._rewritten(child, change) for child in children]
        if any(a is not b for a, b in zip(children, changed, strict=True)):
            plan = plan.withNewChildren(c.seq(changed))

        def subquery(e: Jvm) -> Jvm | None:
            return e.withNewPlan(self._rewritten(e.plan(), change)) if kind(e) in _SUBQUERIES else None

        def each(expressions: Jvm) -> Jvm:
            return c.seq(c.rewritten(e, subquery) for e in items(expressions))

        if any(find(e, lambda e: kind(e) in _SUBQUERIES) is not None for e in items(plan.expressions())):
            match kind(plan):
                case "Filter":
                    plan = plan.copy(c.rewritten(plan.condition(), subquery), plan.child())
                case "Project":
                    plan = plan.copy(each(plan.projectList()), plan.child())
                case "Aggregate":
                    plan = plan.copy(
                        each(plan.groupingExpressions()),
                        each(plan.aggregateExpressions()),
                        plan.child(),
                        c.none(),
                    )
                case "LateralJoin":
                    right = c.rewritten(plan.right(), subquery)
                    plan = plan.copy(plan.left(), right, plan.joinType(), plan.condition())
        return change(plan)


def _aggregates(plan: Jvm) -> bool:
    """Whether a plan calls a user-defined aggregate."""
    calls = (find(e, lambda e: kind(e) == "PythonUDAF") for e in items(plan.expressions()))
    return any(c is not None for c in calls) or any(map(_aggregates, children_of(plan)))


class _Table:
    """Placeholder for every table function while a query is analysed; never run."""

    def eval(self, *arguments: Any) -> Any:
        """Return no rows."""
        return iter(())
