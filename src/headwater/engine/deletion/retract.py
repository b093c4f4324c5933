"""Taking what was deleted back from the state, where it can be: the cost follows what was deleted, not what is left.

    contents = SELECT over the log as it reads now = contents before + what the deletion changes

Of records that were excised from a stream, a view is given the same records once more, with weight -1: they were kept for it.
The table of a keyed topic is given, for each key that a deletion touches, the record that is now its last, or a tombstone
if there is none: the row that goes is the one that the table holds, so that nobody's key is needed for it. What has all versions
of its rows is told where the records stood that go. Views above get what that changes, as after any other tick. Then every arrangement is written anew in one run, in which what was taken
back is nowhere.

What keeps too little to take a row back is computed again from the log for the groups that rows go from, and so is what views hold of
private columns of a stream whose subject was forgotten (`recomputing`). Where these groups are not known, or what was shown depends on
when rows came, a view is built anew instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.hashing import Hashes
from headwater.core.positions import Ends
from headwater.core.storage import Storage
from headwater.engine.collections.arrangements import arrangement_id
from headwater.engine.collections.collections import Collection, TableCollection, ViewCollection, view_of
from headwater.engine.collections.retention_holds import kept_private, removed
from headwater.engine.collections.shadow_builds import BESIDE
from headwater.engine.collections.version_table import VersionCollection
from headwater.engine.dataflow.operators.registry import kind_of
from headwater.engine.dataflow.output_keys import operator_shown
from headwater.engine.deletion.private_dataflow import is_linear, readers
from headwater.engine.deletion.recompute_groups import GroupRecomputation
from headwater.engine.deletion.source_scan import Forgotten, SourceScan, of_subjects, private_of
from headwater.engine.input.excised_records import kept, offsets_of, records_at
from headwater.engine.input.log_input import Inputs
from headwater.log.deletion_entries import DeletionEntry
from headwater.log.protocol import Log
from headwater.operators import graph as g
from headwater.operators.zset.delta import Delta, concat, concat_rows, take_rows
from headwater.operators.zset.runs import key_hashes
from headwater.plan.relations.metadata_columns import fitted, is_changelog, read_records
from headwater.state.manifest import Manifest, ViewState

UNSURE = "unsure"
"""In a tick: excisions of which it cannot be told whether the tick has read the records, as they were removed meanwhile."""


class Retraction:
    """What deletions take back from a tick's state, and from which units."""

    def __init__(
        self,
        log: Log,
        storage: Storage,
        before: Manifest,
        entries: Mapping[str, DeletionEntry],
        units: Sequence[Collection],
    ) -> None:
        self._log = log
        self._storage = storage
        self._before = before
        self._entries = entries
        self._removed: dict[str, pa.RecordBatch | None] = {}
        self.units: set[str] = set()
        """The names of the units that it is taken back from."""
        touched: set[str] = set()
        for unit in units:
            state = before.views.get(unit.name)
            mine = [] if state is None else self._touching(state)
            below = [n for name in unit.units if (n := name if name in touched else view_of(name)) in touched]
            if not mine and not below:
                continue
            touched.add(unit.name)
            if (
                state is not None
                and state.status == "live"
                and state.record.identity == unit.identity
                and not state.record.unplanned
                and all(name in self.units for name in below)
                and all(self._can_be_taken_back(unit, entry) for entry in mine)
                and self._takes_back(unit, state, mine, set(below))
            ):
                self.units.add(unit.name)

    def arrangements(self, units: Sequence[Collection]) -> set[str]:
        """Those of the units that it is taken back from."""
        return {arrangement_id(u, slot) for u in units if u.name in self.units for slot in u.slots}

    def added(
        self, unit: Collection, changes: Mapping[str, Delta | pa.RecordBatch], start: Ends, inputs: Inputs
    ) -> dict[str, Delta | pa.RecordBatch]:
        """The changes of a unit's topics from some positions on, with what is taken back of those before."""
        found = dict(changes)
        state = self._before.views[unit.name]
        for topic, name in unit.named.items():
            entries = [e for e in self._touching(state) if topic in e.topics]
            upto, given = start.get(topic, {}), found[name]
            if isinstance(given, pa.RecordBatch):
                assert isinstance(unit, TableCollection)
                if isinstance(unit, VersionCollection):
                    found[name] = concat(
                        [*self._exchanged(topic, entries, upto, given.schema), Delta.of(given)], given.schema
                    )
                    continue
                now = self._as_it_is_now(unit, topic, entries, upto, inputs)
                found[name] = concat_rows([fitted(now, given.schema), given], given.schema)
                continue
            gone = [self._of_excision(entry) for entry in entries]
            rows = [_before_positions(each, upto) for each in gone if each is not None]
            schema = given.rows.schema
            back = [Delta.of(fitted(inputs.shown(unit, topic, each), schema)).negated() for each in rows]
            found[name] = concat([*back, given], schema)
        return found

    def again(
        self, unit: ViewCollection, end: Ends, inputs: Inputs, contents: Callable[[str], Delta]
    ) -> GroupRecomputation:
        """Computes groups of a view again over what there is up to a cut, where it cannot be told otherwise what is taken back."""
        mine = [] if (state := self._before.views.get(unit.name)) is None else self._touching(state)
        subjects = _subjects(mine)
        gone = {
            topic: [inputs.shown(unit, topic, r) for e in mine if e.of == topic for r in self._rows_of(e)]
            for topic in (unit.named if subjects else ())
        }
        return GroupRecomputation(
            unit.pipeline, SourceScan(unit, end, inputs, contents, Forgotten(subjects, gone))
        )

    def _takes_back(
        self, unit: Collection, state: ViewState, mine: Sequence[DeletionEntry], below: set[str]
    ) -> bool:
        """Whether a unit can take back what deletions take from what it reads itself, and from units below it."""
        forgets = any(entry.forgets for entry in mine)
        if isinstance(unit, TableCollection):
            # of records that are there no more it may hold values, and it is by records that they are found
            looks = forgets or isinstance(unit, VersionCollection)
            return not looks or not removed(self._log, state.record.begins)
        if unit.replaces is not None or unit.name.endswith(BESIDE) or unit.definition.replayed:
            return False
        changed = below | {e.of for e in mine if e.excises}
        changed |= set(unit.keeps) if forgets else set()
        known = {**unit.sources, **{name: topic for topic, name in unit.named.items()}}
        met = [node for node in g.walk(unit.plan.root) if _meets(node, known, changed)]
        reads_again = forgets or any(kind_of(node).retraction(node) == "groups" for node in met)
        if reads_again and removed(self._log, state.record.begins):
            return False  # what it was made from is not there to be read
        if forgets and unit.derived:
            return False  # whole rows are told of in what it gives beside its own
        expiring = {id(n) for n, op in unit.pipeline.nodes if any(slot.expires for slot in op.slots)}
        if any(id(node) in expiring for node in met) and not _is_shown_by_key(unit.plan.root):
            return False
        if forgets and readers(unit.plan.root, private_of(unit, self._log.topic)) is None:
            return False
        return all(map(_is_retractable, met))

    def _touching(self, state: ViewState) -> list[DeletionEntry]:
        """The deletions of what a unit itself has read."""
        private, read = kept_private(state), set(state.record.begins)
        return [
            entry
            for entry in self._entries.values()
            if (private if entry.forgets else read) & set(entry.topics)
        ]

    def _can_be_taken_back(self, unit: Collection, entry: DeletionEntry) -> bool:
        """Whether it is known what a deletion takes from a unit."""
        if entry.forgets:
            return True
        if {entry.of} < set(entry.topics) & {entry.of, *unit.topics}:
            return False  # it reads copies, of which nothing was kept
        if isinstance(unit, ViewCollection):
            if entry.name in self._before.extra.get(UNSURE, ()):
                return False
            if is_changelog(unit.named[entry.of]):
                return False
        return self._of_excision(entry) is not None

    def _rows_of(self, entry: DeletionEntry) -> list[pa.RecordBatch]:
        is_excision = entry.excises
        rows = self._of_excision(entry) if is_excision else None
        return [] if rows is None else [rows]

    def _of_excision(self, entry: DeletionEntry) -> pa.RecordBatch | None:
        """The records that were removed from the topic itself."""
        if entry.name not in self._removed:
            topics, name = self._log.topics(), entry.of
            found = kept(self._log, self._storage, entry.name, topics[name]) if name in topics else None
            self._removed[entry.name] = found
        return self._removed[entry.name]

    # --- tables ----------------------------------------------------------------------------------------------------

    def _as_it_is_now(
        self,
        unit: TableCollection,
        topic: str,
        entries: Sequence[DeletionEntry],
        upto: Mapping[int, int],
        inputs: Inputs,
    ) -> pa.RecordBatch:
        """Records that make a table what it is over the log up to some positions, where deletions touch it: a tombstone for
        each key, and then what there is of it."""
        definition = self._log.topic(topic)
        gone, subjects = self._excised(entries), _subjects(entries)
        known = {
            partition: self._places(definition, partition, end, subjects)
            for partition, end in sorted(upto.items())
        }
        wanted = [key_hashes(rows.select(definition.key), range(len(definition.key))) for rows in gone]
        wanted += [hashes[theirs] for hashes, _, theirs in known.values()]
        hashes = np.unique(np.concatenate([*wanted, np.zeros(0, np.uint64)]))
        columns = inputs.columns(unit, topic)
        found = [
            batch
            for partition, (mine, offsets, _) in known.items()
            for batch in records_at(self._log, topic, partition, offsets[np.isin(mine, hashes)], columns)
        ]
        schema = inputs.layout(topic, columns)
        tombstones = [_tombstones(rows.select(definition.key), schema) for rows in gone]
        return concat_rows([*tombstones, *(fitted(batch, schema) for batch in found)], schema)

    def _exchanged(
        self, topic: str, entries: Sequence[DeletionEntry], upto: Mapping[int, int], schema: pa.Schema
    ) -> list[Delta]:
        """Records that go from before some positions, and such as come to be in their place. Of those that go their keys and their places are known."""
        definition, subjects = self._log.topic(topic), _subjects(entries)
        changes = [Delta.of(fitted(rows, schema)).negated() for rows in self._excised(entries)]
        for partition, end in sorted(upto.items()) if subjects else ():
            _, offsets, theirs = self._places(definition, partition, end, subjects)
            for batch in records_at(self._log, topic, partition, offsets[theirs], schema.names):
                now = Delta.of(fitted(batch, schema))
                changes += [now.negated(), now]
        return changes

    def _excised(self, entries: Sequence[DeletionEntry]) -> list[pa.RecordBatch]:
        """The records that excisions among some deletions have removed."""
        return [rows for entry in entries for rows in self._rows_of(entry)]

    def _places(
        self, topic: TopicDefinition, partition: int, end: int, subjects: Sequence[str]
    ) -> tuple[Hashes, np.ndarray, np.ndarray]:
        """Of every record of a partition before a position: the hash of its key, its offset, and whether it is of one of
        some subjects."""
        by = sorted({column for _, column in topic.private}) if subjects else []
        columns = list(dict.fromkeys([*topic.key, *by, "_offset"]))
        first = self._log.partitions(topic.name)[partition].first
        hashes, offsets, theirs = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)]
        for batch in read_records(self._log, topic.name, partition, (first, end), columns):
            hashes.append(key_hashes(batch.select(topic.key), range(len(topic.key))))
            offsets.append(batch.column("_offset").to_numpy())
            theirs.append(of_subjects(batch, by, subjects))
        return np.concatenate(hashes), np.concatenate(offsets), np.concatenate(theirs)


def _subjects(entries: Sequence[DeletionEntry]) -> list[str]:
    """Those who were forgotten."""
    return [entry.of for entry in entries if entry.forgets]


def _tombstones(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A record that deletes, for each key."""
    known = {name: keys.column(name) for name in keys.schema.names}
    known["_op"] = pa.array(["delete"] * keys.num_rows, pa.string())
    columns = [
        known[f.name].cast(f.type) if f.name in known else pa.nulls(keys.num_rows, f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _before_positions(rows: pa.RecordBatch, upto: Mapping[int, int]) -> pa.RecordBatch:
    """Those of some records that were read, by who stands at these positions."""
    partitions, offsets = (rows.column(name).to_numpy() for name in ("_partition", "_offset"))
    ends = np.array([upto.get(int(p), 0) for p in partitions], np.int64)
    return take_rows(rows, np.flatnonzero(offsets < ends))


def _meets(node: g.Node, known: Mapping[str, str], changed: set[str]) -> bool:
    """Whether rows of these topics and units reach a node."""
    read = {known[source.name] for source in g.sources(node) if source.name in known}
    return not changed.isdisjoint(read | set(map(view_of, read)))


def _is_retractable(node: g.Node) -> bool:
    """Whether an operator can take rows back, or its groups can be found in the log."""
    retraction = kind_of(node).retraction(node)
    return retraction == "rows" or (retraction == "groups" and all(map(is_linear, node.inputs)))


def _is_shown_by_key(root: g.Node) -> bool:
    """Whether a graph is one operator over single rows, and what it shows of a key can be found by it."""
    closes = [node for node in g.walk(root) if isinstance(node, g.Close)]
    found = operator_shown(root)
    if found is None or any(operator_shown(node.input) is None for node in closes):
        return False
    return kind_of(found[0]).lookup_keys(found[0]) is not None and all(map(is_linear, found[0].inputs))


def unsure(
    entries: Mapping[str, DeletionEntry],
    handled: Mapping[str, DeletionEntry],
    before: Manifest | None,
    read: Inputs,
) -> list[str]:
    """The excisions that were under way while a tick has read, and of records that it has read or would have."""
    known = before.extra.get(UNSURE, ()) if before is not None else ()
    found = []
    for name, entry in entries.items():
        if name in handled or not entry.excises or entry.tick is not None:
            continue
        if name in known or read.has_met(entry.of, offsets_of(entry)):
            found.append(name)
    return found
