"""Objects that planning passes to evaluation through the graph: Catalyst objects in typed wrappers that graph nodes can
carry."""

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
"""Metadata key, on the first column of a relation in a plan, whose value is the relation's name."""


@dataclass(frozen=True)
class Times:
    """Completeness of a column of event times, or of time windows.

    A row of time t is present and final once the watermark of every topic of `domain` is past t + `slack_us`; a row with a
    window is once the watermarks have reached the end of the window plus the slack.
    """

    domain: frozenset[str]
    slack_us: int = 0
    window: bool = False


@dataclass(frozen=True)
class VersionedRelation:
    """The versions of a topic's rows, as planning sees them."""

    hidden: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """The additional metadata columns of versions."""
    key: tuple[int, ...] = ()
    """Column indices of the topic's key."""
    begins: tuple[str, ...] = ()
    """The columns of a record that define when it becomes valid: the first that is not NULL."""
    refusal: tuple[str, str] | None = None
    """Why the topic has no versions, and a hint on what to do about it; None if it has versions."""


@dataclass(frozen=True)
class Relation:
    """A topic or a view, as planning sees it."""

    name: str
    schema: pa.Schema
    append_only: bool
    hidden: pa.Schema = field(default_factory=lambda: pa.schema([]))
    """Metadata columns: readable by name, and no part of `*`."""
    places: tuple[int, ...] | None = None
    """Positions of the columns of `schema` in the relation's rows; None if the rows have exactly these columns in this
    order."""
    times: Mapping[str, Times] = field(default_factory=dict)
    """Completeness of the columns of event times, by column name."""
    is_stream: bool = False
    """Whether the relation is a topic of independent rows, each with the watermark at its arrival."""
    versions: VersionedRelation | None = None
    """How the versions of the rows can be read; None for a view, or for a topic without versions."""
    is_versions: bool = False
    """Whether the rows are versions of a table's rows; a new version may end an existing one."""


def with_versions(relations: Mapping[str, Relation]) -> dict[str, Relation]:
    """Return the relations, and for every topic with versions, under separate names, its versions and the records they are
    derived from."""
    made = dict(relations)
    for name, relation in relations.items():
        if relation.versions is not None and relation.versions.refusal is None:
            known = versions_of(name)
            times = dict(relation.times)
            for own in relation.times.values():  # a topic has one event time column
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
    """The handle of an expression: the Catalyst expression, and the attributes of the rows on which it is evaluated."""

    expression: Jvm
    attributes: tuple[Jvm, ...]


class Evaluation(NamedTuple):
    """The handle of a Regroup: a plan node that is run over the rows of whole groups."""

    plan: Jvm
    attributes: tuple[Jvm, ...]


class Lowered(NamedTuple):
    """An operator, and the plan attributes of its columns."""

    node: g.Node
    attributes: list[Jvm]


class NotIn(NamedTuple):
    """The handle of the only condition that Headwater evaluates instead of Spark; see `_not_in` of `plan.lowering.joins`."""

    x: int
    all_rows: int
    filled: int
