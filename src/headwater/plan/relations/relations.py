"""What planning hands to evaluation through the graph: Catalyst's own objects, behind names that the graph can carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from headwater.operators import graph as g
from headwater.plan.relations.metadata_columns import changelog_of, versions_of
from headwater.spark.catalyst import Jvm

SOURCE_KEY = "headwater.source"
COLUMN_KEY = "headwater.column"
RELATION_KEY = "headwater.relation"
"""In the metadata of the first column of a relation that was put into a plan: its name."""


@dataclass(frozen=True)
class Times:
    """What is known of a column that has event times, or windows of them.

    A row of time t is there, and as it stays, once the watermark of every topic of `domain` is past t + `slack_us`; one
    with a window once these have reached its end and the slack.
    """

    domain: frozenset[str]
    slack_us: int = 0
    window: bool = False


@dataclass(frozen=True)
class VersionedRelation:
    """The versions of a topic's rows, as planning sees them."""

    hidden: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The columns that they have besides those of the topic."""
    key: tuple[int, ...] = ()
    """The columns of the topic's key."""
    begins: tuple[str, ...] = ()
    """The columns of a record that say when it begins to be valid: the first that is not NULL."""
    refusal: tuple[str, str] | None = None
    """Why there are none, and what to do about it."""


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
    times: Mapping[str, Times] = field(default_factory=dict)
    """Its columns that have event times."""
    is_stream: bool = False
    """Whether it is a topic of single rows, each with the watermark that it met."""
    versions: VersionedRelation | None = None
    """How its rows' versions can be read; None if it is neither a topic nor has any."""
    is_versions: bool = False
    """Whether its rows are versions of a table's rows; one that comes may end another."""


def with_versions(relations: Mapping[str, Relation]) -> dict[str, Relation]:
    """Relations, and of those that have versions these and the records that they are made of, under names of their own."""
    made = dict(relations)
    for name, relation in relations.items():
        if relation.versions is not None and relation.versions.refusal is None:
            known = versions_of(name)
            times = dict(relation.times)
            for own in relation.times.values():  # a topic has one column of times
                times["_valid_from"] = own
            made[known] = Relation(
                known,
                relation.schema,
                append_only=False,
                hidden=relation.versions.hidden,
                places=relation.places,
                times=times,
                is_versions=True,
            )
            records = changelog_of(name)
            made[records] = Relation(
                records, relation.schema, append_only=True, hidden=relation.hidden, places=relation.places
            )
    return made


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
    """The handle of the one condition that is ours and not Spark's; see `_not_in` of `plan.lowering.joins`."""

    x: int
    all_rows: int
    filled: int
