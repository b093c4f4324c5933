"""What a tick moves: views, and the tables that keyed topics are. Each is a step over arrangements, and a place to stand.

A keyed topic is a table's changelog: its unit turns upserts and tombstones into retractions, once for every view that
reads it. A view's unit is its pipeline. Both keep their contents as an arrangement that readers and later views use.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.errors import EvaluationError
from headwater.operators.delta import Delta, consolidate
from headwater.operators.runs import Run, arrange, contents, contents_latest, evolved
from headwater.operators.upsert import upsert
from headwater.positions import Ends
from headwater.queries import graph as g
from headwater.rules import FORGOTTEN
from headwater.runtime.admission import ERRORS, Admission, no_single_row
from headwater.runtime.hidden import (
    POSITION,
    hidden_schema,
    in_order,
    is_changelog,
    table_topic,
    table_with_hidden,
)
from headwater.runtime.lateness import LATE_NAME, Late, Lateness, domains_of
from headwater.runtime.linear import columns_of, renamed
from headwater.runtime.pipeline import Again, Pipeline, Slot, State
from headwater.runtime.placement import Parts
from headwater.runtime.planning.planner import Plan
from headwater.runtime.shown_keys import group_columns, partition_columns
from headwater.runtime.together import Move, alone
from headwater.runtime.trials import BESIDE as BESIDE
from headwater.runtime.trials import Trial

CONTENTS = "contents"
ERRORS_NAME = "errors"


ACCOUNT = ("read", "used", "diverted", "dropped", "failed")
Ledger = Mapping[str, Mapping[str, int]]
"""By topic: how many of its rows were read, and how many of those failed."""


@dataclass(frozen=True)
class Done:
    """What a unit made of a change: the change of its contents, and the runs to add to its arrangements."""

    change: Delta
    runs: Mapping[Slot, Run | Parts]
    beside: Mapping[Slot, Delta] = field(default_factory=dict)
    """The change of what a view gives beside its rows, by its arrangement."""
    counted: Ledger = field(default_factory=dict)
    """What became of the rows of topics."""


class TableUnit:
    """A keyed topic as its current table."""

    is_table = True
    incarnation = 0

    def __init__(self, topic: TopicDefinition, *, with_hidden: bool = False) -> None:
        """`with_hidden`: with the hidden columns of each key's record, for the views that need them."""
        self.name = table_with_hidden(topic.name) if with_hidden else topic.name
        self.topic = topic.name
        # What it holds reads as well when columns are added or widened, unless that changes the hash of a key.
        decimals = [str(f.type) for f in topic.schema if f.name in topic.key and pa.types.is_decimal(f.type)]
        self.identity = "@".join([self.name, str(topic.incarnation), *decimals])
        self.fingerprint = self.identity
        self.schema = pa.schema([*topic.schema, *hidden_schema(topic)]) if with_hidden else topic.schema
        self.key = tuple(topic.schema.get_field_index(name) for name in topic.key)
        self.topics: tuple[str, ...] = (topic.name,)
        self.named: Mapping[str, str] = {topic.name: topic.name}
        """What it knows the records of a topic by."""
        self.units: tuple[str, ...] = ()
        self.append_only = False
        self.keeps: tuple[str, ...] = (topic.name,) if topic.private else ()
        """The topics of which it keeps private values."""
        self.contents = Slot(CONTENTS, "latest", self.key, (), self.schema)
        self.slots: tuple[Slot, ...] = (self.contents,)
        self._older: WeakKeyDictionary[Run, Run] = WeakKeyDictionary()
        """Runs from before a change of the columns, as they read now."""

    def step(self, changes: Mapping[str, Delta | pa.RecordBatch], state: State, *, first: bool) -> Done:
        """Apply records of the topic, in the order of the log."""
        records = changes[self.topic]
        assert isinstance(records, pa.RecordBatch)
        deleted = pc.equal(records.column("_op"), "delete").to_numpy(zero_copy_only=False)
        rows = records.select(self.schema.names)
        runs = [self._evolved(run) for run in state(self.contents)]
        change, run = upsert(runs, self.key, rows, np.asarray(deleted, dtype=np.bool_))
        return Done(consolidate(change), {self.contents: run} if len(run) else {})

    def _evolved(self, run: Run) -> Run:
        return self._as_now(run, self.schema)

    def _as_now(self, run: Run, schema: pa.Schema) -> Run:
        if run.rows.schema.equals(schema):
            return run
        if run not in self._older:
            self._older[run] = evolved(run, schema)
        return self._older[run]

    def rows(self, runs: Sequence[Run]) -> Delta:
        """The table itself."""
        return contents_latest(runs, self.schema, self.key)


class ViewUnit:
    """A view as its pipeline, with its contents arranged by its key."""

    is_table = False

    def __init__(
        self,
        definition: ViewDefinition,
        plan: Plan,
        pipeline: Pipeline,
        topics: Mapping[str, TopicDefinition],
        admission: Admission | None = None,
        lateness: Lateness | None = None,
    ) -> None:
        """`topics`: those that it names; `admission` takes out the rows that fail, for a view that diverts them, and
        `lateness` finds those that are late, for one that leaves them out."""
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
        self._admission = admission
        self._lateness = lateness
        self.hidden: Mapping[str, tuple[str, ...]] = plan.hidden
        if admission is not None:
            placed = {t: in_order((*plan.hidden.get(t, ()), *POSITION)) for t in admission.topics}
            self.hidden = {**plan.hidden, **placed}
        streams = [name for name in plan.reads if name in topics and not topics[name].key]
        changelogs = [name for name in plan.reads if is_changelog(name)]
        self.named: Mapping[str, str] = {table_topic(name): name for name in (*streams, *changelogs)}
        """What its graph has for the records of each topic that it reads one by one."""
        self.topics = tuple(self.named)
        self.leaves_out = admission is not None or lateness is not None
        """Whether it leaves rows out: as late, or because they fail."""
        self.diverts = admission is not None
        """Whether it leaves out rows that fail, and tells of them."""
        tells = admission is not None or (lateness is not None and lateness.is_told)
        private = [t for t in self.named if t in topics and topics[t].private]
        self.keeps = tuple(t for t in private if tells or _reads_private(plan.root, self.named[t], topics[t]))
        """The topics of which it may keep private values: those that it reads some of, or tells whole rows of."""
        self.sources: Mapping[str, str] = {
            name: table_with_hidden(name) if name in topics and name in self.hidden else name
            for name in plan.reads
            if name not in streams and name not in changelogs
        }
        """The units that it reads, by the names that its graph has for them."""
        self._counted = {
            topic: name
            for name in (*self.sources, *changelogs, *streams)
            if (topic := table_topic(name)) in topics
        }
        """Which of its sources tells how many rows of a topic it has read: rows of a table, versions, or records."""
        self.units = tuple(self.sources.values())
        self.counts_on = tuple(self.sources[n] for n in counted_on(plan.root) if n in self.sources)
        """Those whose rows must stay, as their definitions say: what it keeps of them cannot be taken back."""
        self.append_only = plan.root.append_only
        self.contents = Slot(CONTENTS, "multiset", self.key, (), self.schema)
        self._late: Derived | None = None
        self._errors = Derived(self, Slot(ERRORS_NAME, "multiset", (0, 1, 2), (), ERRORS))
        self.derived: tuple[Derived, ...] = () if admission is None else (self._errors,)
        if lateness is not None and lateness.is_told:
            position = tuple(lateness.schema.names.index(name) for name in ("_partition", "_offset"))
            self._late = Derived(self, Slot(LATE_NAME, "multiset", position, (), lateness.schema))
            self.derived += (self._late,)
            self.fingerprint += f".{LATE_NAME}"
        expiring = (slot.expires.topics for slot in pipeline.slots if slot.expires is not None)
        waits = (topic for topics in (*domains_of(plan.root), *expiring) for topic in topics)
        self.waits_for = tuple(dict.fromkeys(waits))
        """The topics whose watermarks decide what it shows, and what it keeps."""
        self.slots: tuple[Slot, ...] = (*pipeline.slots, self.contents, *(d.contents for d in self.derived))
        self.replaces: str | None = None
        """The view whose place it takes once it has caught up."""
        self.trial: Trial | None = None
        """If it is the same view, built anew: whether it may."""

    def beside(self, trial: Trial | None = None) -> ViewUnit:
        """The same, to be built while another one of its name is served."""
        made = copy.copy(self)
        made.name, made.replaces = f"{self.definition.name}{BESIDE}", self.definition.name
        made.trial = trial
        return made

    def in_place(self) -> ViewUnit:
        """The same, under the view's own name."""
        made = copy.copy(self)
        made.name, made.replaces, made.trial = self.definition.name, None, None
        return made

    def step(
        self,
        changes: Mapping[str, Delta],
        state: State,
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
    ) -> Done:
        """Apply a change of the sources; `watermarks` are those of the topics that it waits for, after that change."""
        return alone(self.move(changes, state, first=first, watermarks=watermarks))

    def move(
        self,
        changes: Mapping[str, Delta],
        state: State,
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
        again: Again | None = None,
    ) -> Move[Done]:
        """The same, beside other views; `again`: rows may go that are never taken back but by a deletion."""
        given = self._by_source(changes)
        counted = {
            topic: {"read": int(given[name].weights.sum())}
            for topic, name in self._counted.items()
            if name in given
        }
        beside: dict[Slot, Delta] = {}
        try:
            changed, made, late = yield from self._moved(given, state, first, watermarks, again)
        except EvaluationError as error:
            if self._admission is None:
                raise
            done = self._admission.sorted_out(given)
            if not len(done.errors):
                raise no_single_row(error) from error
            try:
                changed, made, late = yield from self._moved(done.admitted, state, first, watermarks, again)
            except EvaluationError as another:
                raise no_single_row(another) from another
            beside = {self._errors.contents: consolidate(done.errors)}
            for topic, failed in done.failed.items():
                counted[topic]["failed"] = failed
        if late is not None:
            what = "diverted" if self._late is not None else "dropped"
            for topic, left_out in late.counted.items():
                if topic not in self.sources:  # its table has every record
                    counted[topic][what] = left_out
            if self._late is not None:
                beside[self._late.contents] = late.rows
        runs = dict(made)
        runs |= {slot: arrange(told, slot.key) for slot, told in beside.items() if len(told)}
        rows = renamed(changed.rows, self.schema)
        if len(changed):
            runs[self.contents] = Run(changed.hashes, rows, changed.weights)
        return Done(Delta(rows, changed.weights, distinct=True), runs, beside, counted)

    def _moved(
        self,
        given: Mapping[str, Delta],
        state: State,
        first: bool,
        watermarks: Mapping[str, int] | None,
        again: Again | None,
    ) -> Move[tuple[Run, Mapping[Slot, Run | Parts], Late | None]]:
        changed, made = yield from self.pipeline.move_arranged(
            given, state, self.key, first=first, watermarks=watermarks, again=again
        )
        if again is not None:
            changed = again.instead(changed, state(self.contents), self.key)
        return changed, made, None if self._lateness is None else self._lateness.found(given)

    def admitted(self, changes: Mapping[str, Delta]) -> Mapping[str, Delta]:
        """Changes of its sources, topics with their positions, without the rows that it diverts."""
        return changes if self._admission is None else self._admission.sorted_out(changes).admitted

    def is_past_replay(self, positions: Ends) -> bool:
        """Whether it has read all late rows that were given back to it, for which old state is needed."""
        return all(
            positions.get(topic, {}).get(partition, 0) >= end
            for topic, ends in self.definition.replayed.items()
            for partition, end in ends.items()
        )

    def _by_source(self, changes: Mapping[str, Delta]) -> dict[str, Delta]:
        named = {source: changes[unit] for source, unit in self.sources.items() if unit in changes}
        return named | {name: changes[name] for name in self.named.values() if name in changes}

    def rows(self, runs: Sequence[Run]) -> Delta:
        """The view itself."""
        return contents(runs, self.schema)

    def arranged(self, runs: Sequence[Run], key: Sequence[int]) -> list[Run]:
        """Runs of its contents as they are arranged now, if they were by `key` once."""
        if tuple(key) == self.key or not runs:
            return list(runs)
        return [arrange(self.rows(runs), self.key)]


class Derived:
    """What a view gives beside its rows: a relation that the view's own unit keeps and moves."""

    def __init__(self, view: ViewUnit, slot: Slot) -> None:
        self.view = view.name
        self.name = f"{view.name}.{slot.name}"
        self.identity = view.identity
        self.schema = slot.schema
        self.append_only = not view.sources
        self.contents = slot

    def rows(self, runs: Sequence[Run]) -> Delta:
        """The relation itself."""
        return contents(runs, self.schema)


Unit = TableUnit | ViewUnit


def _reads_private(root: g.Node, name: str, topic: TopicDefinition) -> bool:
    """Whether a graph looks at private columns of a topic, which it knows by a name, or at which rows were forgotten."""
    private = {column for column, _ in topic.private} | {FORGOTTEN}
    if isinstance(root, g.Source):
        return root.name == name
    for node in g.walk(root):
        for source in node.inputs:
            if isinstance(source, g.Source) and source.name == name:
                names = [*(topic.schema.names[c] for c in source.columns), *source.hidden]
                if _looks_at(node, {place for place, each in enumerate(names) if each in private}):
                    return True
    return False


def _looks_at(node: g.Node, columns: set[int]) -> bool:
    """Whether a node depends on these columns of the source below it, or passes them on."""
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


def added(ledger: Ledger, more: Ledger) -> Ledger:
    """The sum of two ledgers."""
    return {
        topic: {
            what: ledger.get(topic, {}).get(what, 0) + more.get(topic, {}).get(what, 0)
            for what in dict.fromkeys((*ledger.get(topic, {}), *more.get(topic, {})))
        }
        for topic in dict.fromkeys((*ledger, *more))
    }


def total(accounts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """One account of all topics."""
    return {what: sum(account[what] for account in accounts.values()) for what in ACCOUNT}


def balanced(ledger: Ledger, topics: Iterable[str] = ()) -> dict[str, dict[str, int]]:
    """A full account by topic: every row that was read was used, diverted or dropped as late, or has failed."""
    accounts = {}
    for topic in dict.fromkeys((*topics, *ledger)):
        counted = ledger.get(topic, {})
        left_out = {what: counted.get(what, 0) for what in ("diverted", "dropped", "failed")}
        read = counted.get("read", 0)
        accounts[topic] = {"read": read, "used": read - sum(left_out.values()), **left_out}
    return accounts


def view_of(name: str) -> str:
    """The view that gives a relation beside its rows, as in `revenue.errors`; of any other name that itself."""
    return name.partition(".")[0]


def counted_on(root: g.Node) -> dict[str, None]:
    """The sources of operators that keep too little to take a row back, since none is ever taken back."""
    found: dict[str, None] = {}
    for node in g.walk(root):
        if keeps_little(node):
            found |= dict.fromkeys(source.name for source in g.sources(node))
    return found


def keeps_little(node: g.Node) -> bool:
    """Whether an operator keeps too little to take a row back, since none is ever taken back from what it reads."""
    match node:
        case g.SessionAggregate() | g.Fold():
            return True
        case g.Aggregate(input=below) if below.append_only:
            one_way = ("min", "max", "min_by", "max_by", "sketch")
            return bool(node.customs) or any(f.kind in one_way for f in node.functions)
    return False


def contents_key(root: g.Node) -> tuple[int, ...]:
    """The columns that a view's contents are arranged by: the keys of its groups, or of the partitions in which its rows
    were ranked, where it shows them all; else all."""
    if (group := group_columns(root)) is not None:
        return group
    if isinstance(root, g.Fold):
        return tuple(range(len(root.key)))
    if isinstance(root, g.Meet):
        return 0, 1
    return partition_columns(root) or tuple(range(len(root.schema)))
