"""Aggregates over rows of a match that have no kernel: Spark's functions, folded over the list of their arguments.

    stddev(A.x)  is  aggregate(list, <buffer>, (acc, x) -> <update>, acc -> <result>)

Buffer, update and result are those of Spark's function, so that types, NULL handling and errors are too. Functions whose
state is not a buffer of columns are supported here if they collect values, and are rejected otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from headwater.spark.catalyst import Catalyst, Jvm, children_of, identity, items, kind, module, option

_DECLARATIVE = "org.apache.spark.sql.catalyst.expressions.aggregate.DeclarativeAggregate"
_VALUE, _SO_FAR = "x", "acc"


@dataclass(frozen=True)
class AggregateCall:
    """A call of an aggregate, and which of its arguments form the elements of the list."""

    called: Jvm
    listed: tuple[int, ...]
    """Indices of the arguments in the list; the other arguments are constants."""
    is_plain: bool
    """Whether an element is the single argument itself, not a struct of arguments."""
    is_distinct: bool = False
    is_filtered: bool = False
    """Whether rows excluded by FILTER have NULL in the list."""


def arguments_of(call: Jvm) -> list[Jvm]:
    """Return the arguments of an aggregate call."""
    if kind(call) == "UnresolvedFunction":
        return items(call.arguments())
    return children_of(call.aggregateFunction())


def is_aggregate(catalyst: Catalyst, call: Jvm) -> bool:
    """Whether a parsed expression is a call of one of Spark's aggregates."""
    if kind(call) == "AggregateExpression":
        return True
    if kind(call) != "UnresolvedFunction":
        return False
    parts = items(call.nameParts())
    sql = catalyst.jvm.org.apache.spark.sql.catalyst
    registry = module(sql.analysis, "FunctionRegistry").builtin()
    info = option(registry.lookupFunction(sql.FunctionIdentifier(parts[-1]))) if len(parts) == 1 else None
    return info is not None and info.getGroup() == "agg_funcs"


class Folding:
    """Builds expressions that compute aggregates over lists."""

    def __init__(self, catalyst: Catalyst, refuse: Callable[..., NoReturn]) -> None:
        self._c = catalyst
        self._refuse = refuse
        self._analysis = catalyst.jvm.org.apache.spark.sql.catalyst.analysis

    def folded(self, call: AggregateCall, element: Jvm) -> tuple[Jvm, Jvm]:
        """Return the attribute of the list, given the type of its elements, and the aggregate's result over it."""
        c = self._c
        types = c.jvm.org.apache.spark.sql.types
        many = self._attribute("list", types.ArrayType(element, True))
        kinds = [element] if call.is_plain else [field.dataType() for field in element.fields()]
        given = [self._attribute(f"a{i}", kind_) for i, kind_ in enumerate(kinds)]
        values: Jvm = many
        if call.is_filtered:
            values = self._where(values, self._c.variable(_VALUE))
        if call.is_distinct:
            values = self._c.call("array_distinct", [values])
        named = {
            identity(a): self._c.variable(_VALUE) if call.is_plain else self._c.variable(_VALUE, f"a{i}")
            for i, a in enumerate(given)
        }
        result = c.rewritten(
            self._resolved(call, given),
            lambda e: self._over(call, e, values, named) if kind(e) == "AggregateExpression" else None,
        )
        leaf = module(c.plans, "LocalRelation").apply(c.seq([many]))
        return many, self._analysed(c.plans.Project(c.seq([c.alias(result, "a")]), leaf), "projectList")

    def _resolved(self, call: AggregateCall, given: Sequence[Jvm]) -> Jvm:
        """Return the analysed call over attributes."""
        c, called = self._c, call.called
        arguments = arguments_of(called)
        for place, attribute in zip(call.listed, given, strict=False):
            arguments[place] = attribute
        if kind(called) == "UnresolvedFunction":
            called = called.copy(
                called.nameParts(),
                c.seq(arguments),
                False,
                c.none(),
                called.ignoreNulls(),
                c.seq([]),
                False,
            )
        else:
            called = called.aggregateFunction().withNewChildren(c.seq(arguments)).toAggregateExpression()
        leaf = module(c.plans, "LocalRelation").apply(c.seq(given))
        plan = c.plans.Aggregate(c.seq([]), c.seq([c.alias(called, "a")]), leaf, c.none())
        return self._analysed(plan, "aggregateExpressions")

    def _analysed(self, plan: Jvm, expressions: str) -> Jvm:
        """Return the single expression of a plan, analysed, with replaceable functions replaced by their implementation."""
        analysed = self._c.dataset(plan).queryExecution().analyzed()
        optimizer = self._c.jvm.org.apache.spark.sql.catalyst.optimizer
        replaced = module(optimizer, "ReplaceExpressions").apply(analysed)
        return self._written_out(items(getattr(replaced, expressions)())[0].child())

    def _written_out(self, e: Jvm) -> Jvm:
        """Inline common subexpressions."""
        if kind(e) == "With":
            parts = {d.id().toString(): d.child() for d in items(e.defs())}
            e = self._c.rewritten(
                e.child(),
                lambda r: parts.get(r.id().toString()) if kind(r) == "CommonExpressionRef" else None,
            )
        children = children_of(e)
        changed = [self._written_out(child) for child in children]
        if all(a is b for a, b in zip(children, changed, strict=True)):
            return e
        return e.withNewChildren(self._c.seq(changed))

    def _over(self, call: AggregateCall, e: Jvm, values: Jvm, named: dict[int, Jvm]) -> Jvm:
        from py4j.java_gateway import is_instance_of

        function = e.aggregateFunction()
        if is_instance_of(self._c.spark.sparkContext._gateway, function, _DECLARATIVE):
            return self._fold(function, values, named)
        called = kind(function)
        if called not in ("CollectList", "CollectSet", "ListAgg"):
            name = items(call.called.nameParts())[-1] if kind(call.called) == "UnresolvedFunction" else called
            self._refuse(
                call.called,
                f"{name} is not supported over the rows of a match",
                hint="use array_agg(A.x) and a function of arrays",
                reason="unsupported-aggregate",
                function=name,
            )
        collected = self._c.call(
            "transform", [values, self._c.lambda_of(self._renamed(children_of(function)[0], named), _VALUE)]
        )
        keeps_nulls = kind(call.called) == "UnresolvedFunction" and option(call.called.ignoreNulls()) is False
        if not (keeps_nulls and called == "CollectList"):
            collected = self._where(collected, self._c.variable(_VALUE))
        if called == "CollectSet":
            return self._c.call("array_distinct", [collected])
        return self._joined(collected, function) if called == "ListAgg" else collected

    def _joined(self, collected: Jvm, function: Jvm) -> Jvm:
        """Return all values concatenated into one text; NULL without values."""
        delimiter = function.delimiter()
        if kind(delimiter) == "Literal" and delimiter.value() is None:
            delimiter = module(self._c.expressions, "Literal").apply("")
        size = self._c.call("size", [collected])
        none = self._c.expressions.EqualTo(size, module(self._c.expressions, "Literal").apply(0))
        null = module(self._c.expressions, "Literal").create(None, function.dataType())
        return self._c.expressions.If(none, null, self._c.call("array_join", [collected, delimiter]))

    def _fold(self, function: Jvm, values: Jvm, named: dict[int, Jvm]) -> Jvm:
        buffers = items(function.aggBufferAttributes())
        names = [f"b{i}" for i in range(len(buffers))]
        renamed = named | {
            identity(b): self._c.variable(_SO_FAR, n) for b, n in zip(buffers, names, strict=True)
        }
        first = [
            self._c.expressions.KnownNullable(value) if buffer.nullable() else value
            for buffer, value in zip(buffers, items(function.initialValues()), strict=True)
        ]
        updates = [self._renamed(e, renamed) for e in items(function.updateExpressions())]
        result = self._renamed(function.evaluateExpression(), renamed)
        return self._c.expressions.ArrayAggregate(
            values,
            self._struct(names, first),
            self._c.lambda_of(self._struct(names, updates), _SO_FAR, _VALUE),
            self._c.lambda_of(result, _SO_FAR),
        )

    def _renamed(self, e: Jvm, names: dict[int, Jvm]) -> Jvm:
        return self._c.rewritten(
            e, lambda a: names.get(identity(a)) if kind(a) == "AttributeReference" else None
        )

    def _struct(self, names: Sequence[str], values: Sequence[Jvm]) -> Jvm:
        literal = module(self._c.expressions, "Literal")
        parts = [
            part for name, value in zip(names, values, strict=True) for part in (literal.apply(name), value)
        ]
        return self._c.expressions.CreateNamedStruct(self._c.seq(parts))

    def _where(self, values: Jvm, is_there: Jvm) -> Jvm:
        held = self._c.lambda_of(self._c.expressions.IsNotNull(is_there), _VALUE)
        return self._c.call("filter", [values, held])

    def _attribute(self, name: str, data_type: Jvm) -> Jvm:
        value = module(self._c.expressions, "Literal").create(None, data_type)
        return self._c.alias(value, name).toAttribute().withNullability(True)


def plain_call(catalyst: Catalyst, name: str) -> AggregateCall:
    """Return a call of a function with the list element as its single argument."""
    called = catalyst.session.sessionState().sqlParser().parseExpression(f"{name}(x)")
    return AggregateCall(called, (0,), is_plain=True)
