"""What planning hands to evaluation through the graph: Catalyst's own objects, behind names that the graph can carry."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from headwater.queries import graph as g
from headwater.runtime.planning.catalyst import (
    Jvm,
)

SOURCE_KEY = "headwater.source"
COLUMN_KEY = "headwater.column"


@dataclass(frozen=True)
class Relation:
    """Something that a query can read: a topic or a view, as planning sees it."""

    name: str
    schema: pa.Schema
    append_only: bool
    hidden: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Columns that can be read by name and are no part of `*`."""
    places: tuple[int, ...] | None = None
    """Where its rows have the columns of `schema`, if that is not all of their columns in their order."""


class Bound(NamedTuple):
    """The handle of an expression: Catalyst's own, and the attributes of the rows it is evaluated on."""

    expression: Jvm
    attributes: tuple[Jvm, ...]


class Evaluation(NamedTuple):
    """The handle of a Regroup: a plan node to run over the rows of whole groups."""

    plan: Jvm
    attributes: tuple[Jvm, ...]


class Lowered(NamedTuple):
    """An operator, and what its columns are in the plan."""

    node: g.Node
    attributes: list[Jvm]


class NotIn(NamedTuple):
    """The handle of the one condition that is ours and not Spark's; see `Lowering._not_in`."""

    x: int
    all_rows: int
    filled: int
