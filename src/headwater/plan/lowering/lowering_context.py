"""Context of a lowering, the first parameter of all functions that lower a kind of plan node."""

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
"""Names of plan nodes for error messages."""


class LoweringContext:
    """The lowering of one plan: the relations and functions that it may use, and facts collected on the way."""

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
        """Expression IDs of the attributes that the plan reads: sources provide only the metadata columns among these."""
        self.origins: dict[int, tuple[g.Node, Jvm]] = {}
        """By the ID of a graph node: the node, and the part of the plan that it was made from."""
        self.sketched: dict[int, tuple[g.Node, dict[int, g.MergeableFunction]]] = {}
        """By the node ID of an aggregate: the aggregate, and its columns that are answers of sketches."""
        self.lacks_sketches = False
        """Whether the plan has an approximate function for which no sketch can be kept."""

    def lower(self, plan: Jvm) -> Lowered:
        """Return the graph of a plan."""
        name = kind(plan)
        lower = self._lowered_by.get(name)
        if lower is None:
            known = _NAMES.get(name, f"Spark's {name}")
            self.refuse(
                plan,
                f"{known} has no incremental form",
                hint="docs/sql.md lists what views support",
                reason="not-incremental",
            )
        try:
            lowered = lower(self, plan)
        except UnkeptTypeError as error:
            self._refuse_type(plan, error)
        self._note(lowered.node, plan)
        return lowered

    def _note(self, node: g.Node, plan: Jvm) -> None:
        """Record the plan from which a node, and the unrecorded nodes below it, were made."""
        if id(node) not in self.origins:
            self.origins[id(node)] = (node, plan)
            for child in node.inputs:
                self._note(child, plan)

    def expression(self, e: Jvm, attributes: Sequence[Jvm]) -> g.Expression:
        """Return an expression over rows of these attributes; a type that views cannot store is an error."""
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
        """Reject a plan with values of an unsupported type, underlining the expression that produces them."""

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
            hint = "compare it in a condition, or use lower(s), which has no collation"
        self.refuse(
            node,
            f"a view cannot store values of type {error}",
            hint=hint,
            reason="unsupported-type",
            type=str(error),
        )

    def has_scalar(self, expression: Jvm) -> bool:
        """Whether an expression contains a scalar subquery."""
        return bool(expression.containsPattern(self._scalar_subquery))

    def literal(self, value: Any) -> Jvm:
        """Return a literal of the type that Spark gives to a Python value."""
        return module(self.catalyst.expressions, "Literal").apply(value)

    def null(self, data_type: Jvm) -> Jvm:
        """Return NULL of a type."""
        return module(self.catalyst.expressions, "Literal").create(None, data_type)

    def bigint(self) -> Jvm:
        """Return the type BIGINT."""
        return module(self.catalyst.jvm.org.apache.spark.sql.types, "LongType")

    def extractor(self, name: str) -> Jvm:
        """Return an extractor object of Spark's planner, such as ExtractEquiJoinKeys."""
        return module(self.catalyst.jvm.org.apache.spark.sql.catalyst.planning, name)


NodeLowering = Callable[[LoweringContext, Jvm], Lowered]
"""A function that lowers plan nodes of one kind."""
