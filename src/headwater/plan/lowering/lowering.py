"""The lowering of a plan: the function for every kind of plan node that has an incremental form.

Each function returns the operator and the plan attributes of its columns, which resolve the references of expressions
above.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.plan.lowering.aggregates import lower_aggregate
from headwater.plan.lowering.joins import lower_join
from headwater.plan.lowering.lowering_context import LoweringContext, NodeLowering
from headwater.plan.lowering.pattern_nodes import lower_match
from headwater.plan.lowering.scans import (
    lower_constant,
    lower_expand,
    lower_filter,
    lower_generate,
    lower_layout,
    lower_project,
    lower_source,
    lower_union,
)
from headwater.plan.lowering.udf_calls import lower_calls
from headwater.plan.lowering.windows import lower_limit, lower_offset, lower_window
from headwater.plan.relations.relations import Relation
from headwater.spark.catalyst import Catalyst, Refuse
from headwater.udf.udf_registry import Functions

_LOWERED_BY: dict[str, NodeLowering] = {
    "LogicalRDD": lower_source,
    "LocalRelation": lower_constant,
    "OneRowRelation": lower_constant,
    "Range": lower_constant,
    "Project": lower_project,
    "Filter": lower_filter,
    "Expand": lower_expand,
    "Generate": lower_generate,
    "Union": lower_union,
    "Sort": lower_layout,
    "Repartition": lower_layout,
    "RepartitionByExpression": lower_layout,
    "RebalancePartitions": lower_layout,
    "Aggregate": lower_aggregate,
    "Join": lower_join,
    "Window": lower_window,
    "GlobalLimit": lower_limit,
    "LocalLimit": lower_limit,
    "Offset": lower_offset,
    "ArrowEvalPython": lower_calls,
    "FlatMapGroupsInArrow": lower_match,
}
"""The function per simple class name of a Spark plan node."""


def lowering_of(
    catalyst: Catalyst,
    relations: Mapping[str, Relation],
    refuse: Refuse,
    functions: Functions | None = None,
) -> LoweringContext:
    """Return the context for lowering one plan over these relations, with calls of these functions."""
    return LoweringContext(catalyst, relations, refuse, functions, _LOWERED_BY)
