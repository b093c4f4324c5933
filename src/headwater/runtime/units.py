"""What a tick moves: views, and the tables that keyed topics are. Each is a step over arrangements, and a place to stand.

A keyed topic is a table's changelog: its unit turns upserts and tombstones into retractions, once for every view that
reads it. A view's unit is its pipeline. Both keep their contents as an arrangement that readers and later views use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.operators.delta import Delta, consolidate
from headwater.operators.runs import Run, arrange, contents, contents_latest
from headwater.operators.upsert import upsert
from headwater.queries import graph as g
from headwater.runtime.pipeline import Pipeline, Slot, State
from headwater.runtime.planning.planner import Plan

CONTENTS = "contents"


@dataclass(frozen=True)
class Done:
    """What a unit made of a change: the change of its contents, and the runs to add to its arrangements."""

    change: Delta
    runs: Mapping[Slot, Run]


class TableUnit:
    """A keyed topic as its current table."""

    is_table = True

    def __init__(self, topic: TopicDefinition) -> None:
        self.name = topic.name
        self.identity = f"{topic.name}@{topic.incarnation}"
        self.fingerprint = f"{topic.incarnation}:{topic.schema_version}"
        self.schema = topic.schema
        self.key = tuple(topic.schema.get_field_index(name) for name in topic.key)
        self.topics: tuple[str, ...] = (topic.name,)
        self.units: tuple[str, ...] = ()
        self.append_only = False
        self.contents = Slot(CONTENTS, "latest", self.key, (), topic.schema)
        self.slots: tuple[Slot, ...] = (self.contents,)

    def step(self, changes: Mapping[str, Delta | pa.RecordBatch], state: State, *, first: bool) -> Done:
        """Apply records of the topic, in the order of the log."""
        records = changes[self.name]
        assert isinstance(records, pa.RecordBatch)
        deleted = pc.equal(records.column("_op"), "delete").to_numpy(zero_copy_only=False)
        rows = records.select(self.schema.names)
        change, run = upsert(state(self.contents), self.key, rows, np.asarray(deleted, dtype=np.bool_))
        return Done(consolidate(change), {self.contents: run} if len(run) else {})

    def rows(self, runs: Sequence[Run]) -> Delta:
        """The table itself."""
        return contents_latest(runs, self.schema, self.key)


class ViewUnit:
    """A view as its pipeline, with its contents arranged by its key."""

    is_table = False

    def __init__(
        self, definition: ViewDefinition, plan: Plan, pipeline: Pipeline, tables: Sequence[str]
    ) -> None:
        self.name = definition.name
        self.definition = definition
        self.identity = f"{definition.name}@{definition.incarnation}.{plan.fingerprint[:8]}"
        self.fingerprint = plan.fingerprint
        self.schema = definition.columns
        self.plan = plan
        self.pipeline = pipeline
        self.key = contents_key(plan.root)
        self.units = tuple(name for name in plan.reads if name in tables)
        self.topics = tuple(name for name in plan.reads if name not in tables)
        self.append_only = plan.root.append_only
        self.contents = Slot(CONTENTS, "multiset", self.key, (), self.schema)
        self.slots: tuple[Slot, ...] = (*pipeline.slots, self.contents)

    def step(self, changes: Mapping[str, Delta], state: State, *, first: bool) -> Done:
        """Apply a change of the sources."""
        outcome = self.pipeline.step(changes, state, first=first)
        change = outcome.change
        runs = dict(outcome.runs)
        if len(change):
            change = change.renamed(pa.RecordBatch.from_arrays(change.rows.columns, schema=self.schema))
            runs[self.contents] = arrange(change, self.key)
        return Done(change, runs)

    def rows(self, runs: Sequence[Run]) -> Delta:
        """The view itself."""
        return contents(runs, self.schema)


Unit = TableUnit | ViewUnit


def contents_key(root: g.Node) -> tuple[int, ...]:
    """The columns that a view's contents are arranged by: the keys of its groups where it shows them all, else all."""
    everything = tuple(range(len(root.schema)))
    node = root
    origins: list[int | None] = list(
        everything
    )  # the column of `node` that each output column is, if it is one
    while isinstance(node, g.Map):
        for step in reversed(node.steps):
            if isinstance(step, g.Project):
                origins = [None if c is None else step.expressions[c].column for c in origins]
            elif not isinstance(step, g.Filter):
                return everything
        node = node.input
    if isinstance(node, g.Aggregate) and node.keys and all(k in origins for k in range(node.keys)):
        return tuple(origins.index(k) for k in range(node.keys))
    return everything
