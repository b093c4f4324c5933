"""Users' functions in a plan, as operators: calls as steps of their own, aggregates beside Spark's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headwater.queries import graph as g
from headwater.runtime.functions.aggregates import UserAggregate
from headwater.runtime.functions.definitions import FunctionDefinition
from headwater.runtime.functions.registry import BoundCall, Functions
from headwater.runtime.planning.aggregates import AggregateReader
from headwater.runtime.planning.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    children_of,
    find,
    items,
    kind,
    module,
    option,
    output_of,
    readable,
)
from headwater.runtime.planning.handles import Lowered, Relation
from headwater.runtime.planning.sliding import SlideReader
from headwater.runtime.planning.sources import LinearReader


class FunctionReader(SlideReader, LinearReader, AggregateReader):
    """Reads the nodes that call users' functions."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, Relation],
        refuse: Refuse,
        functions: Functions | None = None,
    ) -> None:
        super().__init__(catalyst, relations, refuse)
        self._functions = functions
        self.sketched = {}
        self._declared = {} if functions is None else functions.declared()

    # Scalar and table functions: the optimizer has put all calls into nodes of their own

    def _arrowevalpython(self, plan: Jvm) -> Lowered:
        child = self.lower(plan.child())
        for call, attribute in zip(items(plan.udfs()), items(plan.resultAttrs()), strict=True):
            child = self._called(child, call, attribute)
        return self._narrowed(child, output_of(plan))

    def _called(self, child: Lowered, call: Jvm, attribute: Jvm) -> Lowered:
        """The input with one more column, the values of a call; the calls among its arguments come first."""
        arguments = []
        for argument in children_of(call):
            if kind(argument) == "NamedArgumentExpression":
                self._refuse(call, "users' functions take their arguments by position in views")
            while (inner := find(argument, lambda e: kind(e) == "PythonUDF")) is not None:
                value = self._c.alias(inner, inner.name()).toAttribute()
                child = self._called(child, inner, value)
                number = inner.resultId().id()

                def change(e: Jvm, number: int = number, value: Jvm = value) -> Jvm | None:
                    return value if kind(e) == "PythonUDF" and e.resultId().id() == number else None

                argument = self._c.rewritten(argument, change)
            arguments.append(argument)
        child, arguments = self._scalars(child, arguments)
        if not arguments:
            self._refuse(call, f"function {call.name()!r} is called without an argument")
        definition = self._definition(call)
        made = tuple(self._expression(a, child.attributes) for a in arguments)
        assert self._functions is not None
        step = g.Call(
            definition.name,
            definition.signature,
            f"{definition.name}({', '.join(e.text for e in made)})",
            made,
            len(child.attributes),
            self._c.arrow_type(attribute.dataType()),
            BoundCall(self._functions, definition, tuple(e.text for e in made)),
        )
        return self._mapped(child, step, [*child.attributes, attribute])

    def _definition(self, call: Jvm) -> FunctionDefinition:
        found = self._declared.get(call.name().lower())
        if found is None:
            self._refuse(
                call, f"{call.name()!r} is not a function of this workspace", hint="ws.function(...)"
            )
        return found

    # Aggregates

    def _window(self, plan: Jvm) -> Lowered:
        if self._aggregates() and any(
            find(e, lambda e: kind(e) == "PythonUDAF") is not None for e in items(plan.windowExpressions())
        ):
            self._refuse(
                plan,
                "users' aggregates have no incremental form in OVER",
                hint="GROUP BY in one view, and join with it in another",
            )
        return super()._window(plan)

    def _aggregate(self, plan: Jvm) -> Lowered:
        if not self._aggregates():
            return super()._aggregate(plan)
        found = option(self._planning("PhysicalAggregation").unapply(plan))
        users = [] if found is None else [a for a in items(found._2()) if self._is_users(a)]
        if found is None or not users:
            return super()._aggregate(plan)
        plain = [a for a in items(found._2()) if not self._is_users(a)]
        if not all(self._mergeable(a) and not a.isDistinct() for a in plain):
            self._refuse(
                plan,
                "users' aggregates stand beside count, sum, avg, min, max and the like, not beside DISTINCT, lists or sketches",
                hint="compute them in two views, and join these",
            )
        child, grouping = self.lower(found._4()), items(found._1())
        session = self._session_in(plan, grouping)
        if session is not None:
            child = self._with_sessions(child, grouping, session)
        return self._with_users(child, grouping, plain, users, items(found._3()))

    def _with_users(
        self,
        child: Lowered,
        grouping: Sequence[Jvm],
        plain: Sequence[Jvm],
        users: Sequence[Jvm],
        results: Sequence[Jvm],
    ) -> Lowered:
        c = self._c
        assert self._functions is not None
        below, functions = self._arguments(child, grouping, [*plain, *users])
        definitions = [self._definition(a.aggregateFunction()) for a in users]
        # where a row may be taken back and a function cannot do that, whole groups are computed again
        again = not child.node.append_only and not all(d.removes for d in definitions)
        keys = [e.toAttribute() for e in grouping]
        buffers, finals = self._buffers(plain)
        # their own names have numbers of this process in them
        values = [a.resultAttribute().withName("value") for a in users]
        attributes = [*keys, *buffers, *values]
        schema = c.arrow_schema(attributes)
        customs = []
        for definition, function, aggregate in zip(definitions, functions[len(plain) :], users, strict=True):
            texts = tuple(readable(e) for e in self._args(aggregate))
            text = f"{definition.name}({', '.join(texts)})"
            handle = UserAggregate(self._functions, definition, function.args, texts)
            customs.append(g.Custom(definition.name, definition.signature, text, function.args, handle))
        own = tuple(
            g.Function(f.kind, f.text, f.args, f.filter, ordered=f.ordered and not again)
            for f in functions[: len(plain)]
        )
        node: g.Node = g.Aggregate(below.node, len(keys), own, schema, customs=tuple(customs))
        if again:
            told = ", ".join([*(f.text for f in own), *(f"{x.text} [{x.signature}]" for x in customs)])
            node = g.Regroup(below.node, tuple(range(len(keys))), told, node, schema, whole=not keys)
        leaf = module(c.plans, "LocalRelation").apply(c.seq(attributes))
        stacked = c.plans.Project(c.seq(results), c.plans.Project(c.seq([*keys, *finals, *values]), leaf))
        collapsed = c.rule("CollapseProject").apply(stacked)
        return self._over(self._projects(collapsed), Lowered(node, attributes))

    def _buffers(self, aggregates: Sequence[Jvm]) -> tuple[list[Jvm], list[Jvm]]:
        """The buffer columns of Spark's own functions, and their results from these."""
        buffers: list[Jvm] = []
        finals: list[Jvm] = []
        for a in aggregates:
            function = a.aggregateFunction()
            own = items(function.aggBufferAttributes())
            buffers += own[:1] if kind(function) in ("MinBy", "MaxBy", "First") else own
            finals.append(self._c.alias(function.evaluateExpression(), "result", like=a.resultAttribute()))
        return buffers, finals

    def _kind_of(self, a: Jvm) -> str:
        return "custom" if self._is_users(a) else super()._kind_of(a)

    def _is_users(self, a: Jvm) -> bool:
        return kind(a.aggregateFunction()) == "PythonUDAF"

    def _aggregates(self) -> bool:
        return any(d.kind == "aggregate" for d in self._declared.values())
