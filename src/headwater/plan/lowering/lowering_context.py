"""Context of a lowering: the functions that lower one kind of plan node each all take it as their first parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from headwater.operators import graph as g
from headwater.plan.relations.relations import Bound, Lowered, Relation, with_versions
from headwater.spark.catalyst import (
    Catalyst,
    Jvm,
    Refuse,
    UnkeptTypeError,
    find,
    identity,
    items,
    kind,
    module,
    readable,
)
from headwater.udf.udf_registry import Functions

_NAMES = {"UnionLoop": "WITH RECURSIVE", "LogicalRelation": "reading files"}
"""Plan nodes as a user knows them."""


class LoweringContext:
    """One plan on its way to a graph: what it may read and call, and what was found in it."""

    def __init__(
        self,
        catalyst: Catalyst,
        relations: Mapping[str, Relation],
        refuse: Refuse,
        functions: Functions | None,
        lowered_by: Mapping[str, NodeLowering],
    ) -> None:
        """`lowered_by` has the function for each kind of plan node."""
        self.catalyst = catalyst
        self.relations = with_versions(relations)
        self.refuse = refuse
        self.functions = functions
        self.declared = {} if functions is None else functions.declared()
        self._lowered_by = lowered_by
        patterns = catalyst.jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        self._scalar_subquery: Jvm = patterns.SCALAR_SUBQUERY()
        self.hidden_read: set[int] = set()
        """Attributes that the plan reads: of hidden columns sources give these alone."""
        self.origins: dict[int, tuple[g.Node, Jvm]] = {}
        """By the identity of a graph's node: the node, and what part of the plan it was made of."""
        self.sketched: dict[int, tuple[g.Node, dict[int, g.MergeableFunction]]] = {}
        """By the identity of an aggregate, it and its columns that are answers of sketches."""
        self.lacks_sketches = False
        """Whether an approximate function was met of which no sketch can be kept."""

    def lower(self, plan: Jvm) -> Lowered:
        """The graph of a plan."""
        name = kind(plan)
        lower = self._lowered_by.get(name)
        if lower is None:
            known = _NAMES.get(name, f"Spark's {name}")
            self.refuse(
                plan,
                f"{known} has no incremental form",
                hint="docs/sql.md lists what works in views",
            )
        try:
            lowered = lower(self, plan)
        except UnkeptTypeError as error:
            self._refuse_type(plan, error)
        self._note(lowered.node, plan)
        return lowered

    def _note(self, node: g.Node, plan: Jvm) -> None:
        """Remember of what a node was made, and those below it that were made with it."""
        if id(node) not in self.origins:
            self.origins[id(node)] = (node, plan)
            for child in node.inputs:
                self._note(child, plan)

    def expression(self, e: Jvm, attributes: Sequence[Jvm]) -> g.Expression:
        """An expression over rows of these attributes; refuses one of a type that views cannot keep."""
        inner = e.child() if kind(e) == "Alias" else e
        column = None
        if kind(inner) == "AttributeReference":
            number = identity(inner)
            column = next((i for i, a in enumerate(attributes) if identity(a) == number), None)
        try:
            type_ = self.catalyst.arrow_type(e.dataType())
        except UnkeptTypeError as error:
            self._refuse_unkept(e, error)
        return g.Expression(readable(inner), type_, column, Bound(inner, tuple(attributes)))

    def _refuse_type(self, plan: Jvm, error: UnkeptTypeError) -> NoReturn:
        """Refuse a plan that gives such values, underlining what makes them."""

        def is_unkept(e: Jvm) -> bool:
            try:
                self.catalyst.arrow_type(e.dataType())
            except UnkeptTypeError:
                return True
            return False

        made = (find(e, is_unkept) for e in items(plan.expressions()))
        self._refuse_unkept(next((e for e in made if e is not None), plan), error)

    def _refuse_unkept(self, node: Jvm, error: UnkeptTypeError) -> NoReturn:
        hint = "cast it to another type"
        if "collate" in str(error):
            hint = "compare with it in a condition, or use lower(s), which is a string like any other"
        self.refuse(node, f"values of type {error} cannot be kept in views", hint=hint)

    def has_scalar(self, expression: Jvm) -> bool:
        """Whether an expression has a scalar subquery in it."""
        return bool(expression.containsPattern(self._scalar_subquery))

    def literal(self, value: Any) -> Jvm:
        """A constant of the type that Spark gives a value of Python's."""
        return module(self.catalyst.expressions, "Literal").apply(value)

    def null(self, data_type: Jvm) -> Jvm:
        """NULL of a type."""
        return module(self.catalyst.expressions, "Literal").create(None, data_type)

    def bigint(self) -> Jvm:
        """The type BIGINT."""
        return module(self.catalyst.jvm.org.apache.spark.sql.types, "LongType")

    def extractor(self, name: str) -> Jvm:
        """One of the patterns by which Spark's planner takes nodes apart."""
        return module(self.catalyst.jvm.org.apache.spark.sql.catalyst.planning, name)


NodeLowering = Callable[[LoweringContext, Jvm], Lowered]
"""Lowers a plan node of one kind."""
