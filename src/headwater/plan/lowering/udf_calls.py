"""Lowers calls of user-defined functions to separate steps."""

from __future__ import annotations

from headwater.operators import graph as g
from headwater.plan.lowering.linear_steps import mapped, narrowed, with_scalars
from headwater.plan.lowering.lowering_context import LoweringContext
from headwater.plan.relations.relations import Lowered
from headwater.spark.catalyst import Jvm, children_of, find, items, kind, output_of
from headwater.udf.udf_definitions import FunctionDefinition
from headwater.udf.udf_registry import BoundCall


def lower_calls(context: LoweringContext, plan: Jvm) -> Lowered:
    """Lower a node of calls: the optimizer moves all calls into nodes of their own."""
    child = context.lower(plan.child())
    for call, attribute in zip(items(plan.udfs()), items(plan.resultAttrs()), strict=True):
        child = _called(context, child, call, attribute)
    return narrowed(context, child, output_of(plan))


def _called(context: LoweringContext, child: Lowered, call: Jvm, attribute: Jvm) -> Lowered:
    """Return the input with one more column, the values of a call; calls among its arguments are evaluated first."""
    arguments = []
    for argument in children_of(call):
        if kind(argument) == "NamedArgumentExpression":
            context.refuse(
                call,
                "user-defined functions take only positional arguments in views",
                reason="named-arguments",
            )
        while (inner := find(argument, lambda e: kind(e) == "PythonUDF")) is not None:
            value = context.catalyst.alias(inner, inner.name()).toAttribute()
            child = _called(context, child, inner, value)
            number = inner.resultId().id()

            def change(e: Jvm, number: int = number, value: Jvm = value) -> Jvm | None:
                return value if kind(e) == "PythonUDF" and e.resultId().id() == number else None

            argument = context.catalyst.rewritten(argument, change)
        arguments.append(argument)
    child, arguments = with_scalars(context, child, arguments)
    if not arguments:
        context.refuse(call, f"function {call.name()!r} is called without arguments", reason="no-arguments")
    definition = declared(context, call)
    made = tuple(context.expression(a, child.attributes) for a in arguments)
    assert context.functions is not None
    step = g.UdfCall(
        definition.name,
        definition.signature,
        f"{definition.name}({', '.join(e.text for e in made)})",
        made,
        len(child.attributes),
        context.catalyst.arrow_type(attribute.dataType()),
        BoundCall(context.functions, definition, tuple(e.text for e in made)),
    )
    return mapped(context, child, step, [*child.attributes, attribute])


def declared(context: LoweringContext, call: Jvm) -> FunctionDefinition:
    """Return the user-defined function that a call names."""
    found = context.declared.get(call.name().lower())
    if found is None:
        context.refuse(
            call,
            f"{call.name()!r} is not a function of this workspace",
            hint="declare it: ws.function(...)",
            reason="unknown-function",
            function=call.name(),
        )
    return found
