"""Collections that a tick advances: views, and the tables of keyed topics. Each has a step and arrangements.

The log of a keyed topic is a table's changelog: its collection turns upserts and tombstones into retractions, once for
all views that read it. A view's collection runs its dataflow. Both keep their contents as an arrangement, which queries
and other views read.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.positions import Ends
from headwater.engine.collections.collection_stages import ContentsStage, TableStage
from headwater.engine.collections.shadow_builds import SHADOW, ShadowVerification
from headwater.engine.dataflow.dataflow import Dataflow
from headwater.engine.dataflow.executor import Rows, StageProgram
from headwater.engine.dataflow.linear import columns_of
from headwater.engine.dataflow.operator_interface import ArrangementSpec, StepState
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.output_keys import group_columns, partition_columns
from headwater.engine.row_errors.diverted_rows import ERRORS, Admission
from headwater.engine.row_errors.late_rows import LATE_NAME, Lateness, domains_of
from headwater.operators import graph as g
from headwater.operators.table.upsert import upsert
from headwater.operators.zset.delta import Delta, consolidate
from headwater.operators.zset.runs import Run, arrange, contents, contents_latest, evolved
from headwater.plan.planner import Plan
from headwater.plan.relations.metadata_columns import (
    POSITION,
    hidden_schema,
    in_order,
    is_changelog,
    table_topic,
    table_with_hidden,
)

T = TypeVar("T")
CONTENTS = "contents"
ERRORS_NAME = "errors"


class TableCollection:
    """A keyed topic as its current table."""

    is_table = True
    incarnation = 0

    def __init__(self, topic: TopicDefinition, *, with_hidden: bool = False) -> None:
        """`with_hidden`: whether rows have the metadata columns of each key's record, for the views that need them."""
        self.name = table_with_hidden(topic.name) if with_hidden else topic.name
        self.topic = topic.name
        # The state remains readable when columns are added or widened, unless that changes the hash of a key.
        decimals = [str(f.type) for f in topic.schema if f.name in topic.key and pa.types.is_decimal(f.type)]
        self.identity = "@".join([self.name, str(topic.incarnation), *decimals])
        self.fingerprint = self.identity
        self.schema = pa.schema([*topic.schema, *hidden_schema(topic)]) if with_hidden else topic.schema
        self.key = tuple(topic.schema.get_field_index(name) for name in topic.key)
        self.topics: tuple[str, ...] = (topic.name,)
        self.named: Mapping[str, str] = {topic.name: topic.name}
        """By topic, the name under which the collection gets its records."""
        self.units: tuple[str, ...] = ()
        self.append_only = False
        self.keeps: tuple[str, ...] = (topic.name,) if topic.private else ()
        """The topics of which the collection keeps private values."""
        self.contents = ArrangementSpec(CONTENTS, "latest", self.key, (), self.schema)
        self.slots: tuple[ArrangementSpec, ...] = (self.contents,)
        self.stages: tuple[StageProgram, ...] = (TableStage(self),)
        """The stages of a step: one."""
        self._older: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()
        """Runs from before a change of the columns, converted to the current schema."""

    def apply(self, records: Rows, state: StepState) -> tuple[Delta, Run]:
        """Return the change that records cause, in the order of the log, and the run to add."""
        assert isinstance(records, pa.RecordBatch)
        deleted = pc.equal(records.column("_op"), "delete").to_numpy(zero_copy_only=False)
        rows = records.select(self.schema.names)
        runs = [self._evolved(run) for run in state(self.contents)]
        change, run = upsert(runs, self.key, rows, np.asarray(deleted, dtype=np.bool_))
        return consolidate(change), run

    def _evolved(self, run: Run) -> Run:
        return self._as_now(run, self.schema)

    def _as_now(self, run: Run, schema: pa.Schema) -> Run:
        if run.rows.schema.equals(schema):
            return run
        if run not in self._older:
            self._older[run] = evolved(run, schema)
        return self._older[run]

    def rows(self, runs: Sequence[Run]) -> Delta:
        """Return the rows of the table."""
        return contents_latest(runs, self.schema, self.key)


class ViewCollection:
    """A view: its dataflow, and its contents arranged by key."""

    is_table = False

    def __init__(
        self,
        definition: ViewDefinition,
        plan: Plan,
        pipeline: Dataflow,
        topics: Mapping[str, TopicDefinition],
        admission: Admission | None = None,
        lateness: Lateness | None = None,
    ) -> None:
        """`topics`: the topics that the view reads; `admission` excludes the rows that fail, for a view that diverts
        them, and `lateness` finds late rows, for a view that excludes them."""
        self.name = definition.name
        self.definition = definition
        self.identity = f"{definition.name}@{definition.incarnation}.{plan.fingerprint[:8]}"
        self.incarnation = definition.incarnation
        self.fingerprint = plan.fingerprint + ("" if admission is None else ".divert")
        self.schema = definition.columns
        self.plan = plan
        self.pipeline = pipeline
        self.key = contents_key(plan.root)
        self._topics = tuple(name for name in plan.reads if name in topics)
        self.admission = admission
        self.lateness = lateness
        self.hidden: Mapping[str, tuple[str, ...]] = plan.hidden
        if admission is not None:
            placed = {t: in_order((*plan.hidden.get(t, ()), *POSITION)) for t in admission.topics}
            self.hidden = {**plan.hidden, **placed}
        streams = [name for name in plan.reads if name in topics and not topics[name].key]
        changelogs = [name for name in plan.reads if is_changelog(name)]
        self.named: Mapping[str, str] = {table_topic(name): name for name in (*streams, *changelogs)}
        """By topic, the name in the graph of its records, for topics that the view reads record by record."""
        self.topics = tuple(self.named)
        self.leaves_out = admission is not None or lateness is not None
        """Whether the view excludes rows: late rows, or rows that fail."""
        self.diverts = admission is not None
        """Whether the view excludes rows that fail, and reports them."""
        reports_rows = admission is not None or (lateness is not None and lateness.is_reported)
        private = [t for t in self.named if t in topics and topics[t].private]
        self.keeps = tuple(
            t for t in private if reports_rows or _reads_private(plan.root, self.named[t], topics[t])
        )
        """Topics of which the view may keep private values, because it reads private columns or reports whole rows."""
        self.sources: Mapping[str, str] = {
            name: table_with_hidden(name) if name in topics and name in self.hidden else name
            for name in plan.reads
            if name not in streams and name not in changelogs
        }
        """The collections that the view reads, by their names in the graph."""
        self.counted = {
            topic: name
            for name in (*self.sources, *changelogs, *streams)
            if (topic := table_topic(name)) in topics
        }
        """By topic, the source by which rows of the topic are counted: rows of a table, versions, or records."""
        self.units = tuple(self.sources.values())
        self.counts_on = tuple(self.sources[n] for n in counted_on(plan.root) if n in self.sources)
        """The collections whose rows must not be retracted, according to their definitions: the view's state cannot
        retract them."""
        self.append_only = plan.root.append_only
        self.contents = ArrangementSpec(CONTENTS, "multiset", self.key, (), self.schema)
        self.late: DerivedRelation | None = None
        self.errors = DerivedRelation(self, ArrangementSpec(ERRORS_NAME, "multiset", (0, 1, 2), (), ERRORS))
        self.derived: tuple[DerivedRelation, ...] = () if admission is None else (self.errors,)
        if lateness is not None and lateness.is_reported:
            position = tuple(lateness.schema.names.index(name) for name in ("_partition", "_offset"))
            self.late = DerivedRelation(
                self, ArrangementSpec(LATE_NAME, "multiset", position, (), lateness.schema)
            )
            self.derived += (self.late,)
            self.fingerprint += f".{LATE_NAME}"
        expiring = (slot.expires.topics for slot in pipeline.slots if slot.expires is not None)
        waits = (topic for topics in (*domains_of(plan.root), *expiring) for topic in topics)
        self.waits_for = tuple(dict.fromkeys(waits))
        """The topics whose watermarks determine the output and the state of the view."""
        self.slots: tuple[ArrangementSpec, ...] = (
            *pipeline.slots,
            self.contents,
            *(d.contents for d in self.derived),
        )
        self.contents_stage = ContentsStage(pipeline, self.contents)
        self.stages: tuple[StageProgram, ...] = (*pipeline.stages, self.contents_stage)
        """The stages of a step: those of the dataflow, then the one that arranges the change of the contents."""
        self.replaces: str | None = None
        """The view that this shadow build replaces once it has caught up; None for any other collection."""
        self.verification: ShadowVerification | None = None
        """If the shadow build has the same definition as the served view: the state of its verification."""

    def shadow(self, verification: ShadowVerification | None = None) -> ViewCollection:
        """Return a copy of the collection for a shadow build, while another version of the view is served."""
        made = copy.copy(self)
        made.name, made.replaces = f"{self.definition.name}{SHADOW}", self.definition.name
        made.verification = verification
        return made

    def in_place(self) -> ViewCollection:
        """Return a copy of the collection under the view's own name."""
        made = copy.copy(self)
        made.name, made.replaces, made.verification = self.definition.name, None, None
        return made

    def admitted(self, changes: Mapping[str, Delta]) -> Mapping[str, Delta]:
        """Return changes of the sources without the rows that the view diverts; changes of topics must have position
        columns."""
        return changes if self.admission is None else self.admission.sorted_out(changes).admitted

    def is_past_replay(self, positions: Ends) -> bool:
        """Whether the view has read all replayed late rows, which need old state."""
        return all(
            positions.get(topic, {}).get(partition, 0) >= end
            for topic, ends in self.definition.replayed.items()
            for partition, end in ends.items()
        )

    def by_source(self, changes: Mapping[str, T]) -> dict[str, T]:
        """Return changes of topics and collections by their names in the graph."""
        named = {source: changes[unit] for source, unit in self.sources.items() if unit in changes}
        return named | {name: changes[name] for name in self.named.values() if name in changes}

    def rows(self, runs: Sequence[Run]) -> Delta:
        """Return the rows of the view."""
        return contents(runs, self.schema)

    def arranged(self, runs: Sequence[Run], key: Sequence[int]) -> list[Run]:
        """Return runs of the contents, rearranged by the current key if they are arranged by another `key`."""
        if tuple(key) == self.key or not runs:
            return list(runs)
        return [arrange(self.rows(runs), self.key)]


class DerivedRelation:
    """A relation that a view derives apart from its own rows, such as its errors; the view's collection stores and
    advances it."""

    def __init__(self, view: ViewCollection, slot: ArrangementSpec) -> None:
        self.view = view.name
        self.name = f"{view.name}.{slot.name}"
        self.identity = view.identity
        self.schema = slot.schema
        self.append_only = not view.sources
        self.contents = slot

    def rows(self, runs: Sequence[Run]) -> Delta:
        """Return the rows of the relation."""
        return contents(runs, self.schema)


Collection = TableCollection | ViewCollection


def _reads_private(root: g.Node, name: str, topic: TopicDefinition) -> bool:
    """Whether a graph reads private columns of a topic, or the column that marks forgotten rows; `name` is the topic's
    name there."""
    private = {column for column, _ in topic.private} | {FORGOTTEN}
    if isinstance(root, g.SourceNode):
        return root.name == name
    for node in g.walk(root):
        for source in node.inputs:
            if isinstance(source, g.SourceNode) and source.name == name:
                names = [*(topic.schema.names[c] for c in source.columns), *source.hidden]
                if _depends_on(node, {place for place, each in enumerate(names) if each in private}):
                    return True
    return False


def _depends_on(node: g.Node, columns: set[int]) -> bool:
    """Whether a node depends on any of these columns of the source below it, or passes them on."""
    for step in node.steps if isinstance(node, g.Map) else ():
        match step:
            case g.Filter(condition):
                if columns & columns_of([condition]):
                    return True
            case g.Project(expressions):
                return bool(columns & columns_of(expressions))
            case _:
                return True
    return True


def side_by_side(units: Sequence[Collection]) -> Iterator[list[Collection]]:
    """Yield levels of collections in their order: those of a level do not read each other, and a shadow build is its
    own level."""
    found: dict[str, Collection] = {}
    for unit in units:
        replaces = isinstance(unit, ViewCollection) and unit.replaces is not None
        reads = any(name in found or view_of(name) in found for name in unit.units)
        if found and (replaces or reads):
            yield list(found.values())
            found = {}
        found[unit.name] = unit
        if replaces:
            yield list(found.values())
            found = {}
    if found:
        yield list(found.values())


def view_of(name: str) -> str:
    """Return the view that a derived relation such as `revenue.errors` belongs to; any other name is returned unchanged."""
    return name.partition(".")[0]


def counted_on(root: g.Node) -> dict[str, None]:
    """Return the sources of operators whose state is insufficient to retract a row, because these sources never retract
    any."""
    found: dict[str, None] = {}
    for node in g.walk(root):
        if kind_of(node).retraction(node) == "groups":
            found |= dict.fromkeys(source.name for source in g.sources(node))
    return found


def contents_key(root: g.Node) -> tuple[int, ...]:
    """Return the columns that a view's contents are arranged by.

    These are the keys of its groups, or of the partitions in which its rows were ranked, if the output has all of them;
    otherwise all columns.
    """
    if (group := group_columns(root)) is not None:
        return group
    if (own := kind_of(root).contents_key(root)) is not None:
        return own
    return partition_columns(root) or tuple(range(len(root.schema)))
