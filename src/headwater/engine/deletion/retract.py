"""Retraction of deleted values from the state, where possible: the cost depends on what was deleted, not on what remains.

    contents = SELECT over the log as it is now = contents before + change by the deletion

If records were excised from a stream, a view reads the same records once more, with weight -1: they were stored for
that. If they were excised from a keyed topic, its table reads, for each affected key, the record that is now the last
one, or a tombstone if there is none: the retracted row is the one in the table, so no encryption key is needed. A
collection with all versions of rows gets the positions of the removed records. Collections that read these get their
changes, as in any other tick. Then every affected arrangement is rewritten as one run, without the retracted rows.

Operators whose state is insufficient to retract a row recompute the affected groups from the log, and so do views with
values of private columns of a stream whose subject was forgotten (`recompute_groups`). If these groups are not known,
or the output depends on when rows arrived, a view is rebuilt instead.
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
from headwater.engine.collections.shadow_builds import SHADOW
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
"""Key in a manifest's `extra`: excisions for which it is unknown whether the tick has read the records before their
removal."""


class Retraction:
    """The retraction of deletions from the state of a tick, and the collections that it is possible for."""

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
        """Names of the collections from which the deletions are retracted."""
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
                and all(self._knows_removed_rows(unit, entry) for entry in mine)
                and self._can_retract(unit, state, mine, set(below))
            ):
                self.units.add(unit.name)

    def arrangements(self, units: Sequence[Collection]) -> set[str]:
        """Return the IDs of the arrangements of these collections from which the deletions are retracted."""
        return {arrangement_id(u, slot) for u in units if u.name in self.units for slot in u.slots}

    def added(
        self, unit: Collection, changes: Mapping[str, Delta | pa.RecordBatch], start: Ends, inputs: Inputs
    ) -> dict[str, Delta | pa.RecordBatch]:
        """Return the changes of a collection's topics from some positions on, with retractions of deleted records
        before them."""
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
        """Return the recomputation of a view's groups up to a cut, for changes that cannot be determined otherwise."""
        mine = [] if (state := self._before.views.get(unit.name)) is None else self._touching(state)
        subjects = _subjects(mine)
        gone = {
            topic: [inputs.shown(unit, topic, r) for e in mine if e.of == topic for r in self._rows_of(e)]
            for topic in (unit.named if subjects else ())
        }
        return GroupRecomputation(
            unit.pipeline, SourceScan(unit, end, inputs, contents, Forgotten(subjects, gone))
        )

    def _can_retract(
        self, unit: Collection, state: ViewState, mine: Sequence[DeletionEntry], below: set[str]
    ) -> bool:
        """Whether a collection can retract what deletions remove from its topics, and from the collections in `below`."""
        forgets = any(entry.forgets for entry in mine)
        if isinstance(unit, TableCollection):
            # values are found by their records, and it may contain values of records that no longer exist
            scans = forgets or isinstance(unit, VersionCollection)
            return not scans or not removed(self._log, state.record.begins)
        if unit.replaces is not None or unit.name.endswith(SHADOW) or unit.definition.replayed:
            return False
        changed = below | {e.of for e in mine if e.excises}
        changed |= set(unit.keeps) if forgets else set()
        known = {**unit.sources, **{name: topic for topic, name in unit.named.items()}}
        met = [node for node in g.walk(unit.plan.root) if _is_reached(node, known, changed)]
        reads_again = forgets or any(kind_of(node).retraction(node) == "groups" for node in met)
        if reads_again and removed(self._log, state.record.begins):
            return False  # the records from which it was built can no longer be read
        if forgets and unit.derived:
            return False  # its derived relations contain whole rows
        expiring = {id(n) for n, op in unit.pipeline.nodes if any(slot.expires for slot in op.slots)}
        if any(id(node) in expiring for node in met) and not _is_shown_by_key(unit.plan.root):
            return False
        if forgets and readers(unit.plan.root, private_of(unit, self._log.topic)) is None:
            return False
        return all(map(_is_retractable, met))

    def _touching(self, state: ViewState) -> list[DeletionEntry]:
        """Return the deletions of records that a collection has read itself."""
        private, read = kept_private(state), set(state.record.begins)
        return [
            entry
            for entry in self._entries.values()
            if (private if entry.forgets else read) & set(entry.topics)
        ]

    def _knows_removed_rows(self, unit: Collection, entry: DeletionEntry) -> bool:
        """Whether the records that a deletion removes from a collection are known."""
        if entry.forgets:
            return True
        if {entry.of} < set(entry.topics) & {entry.of, *unit.topics}:
            return False  # it reads copies of the records, which were not stored
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
        """Return the records that an excision has removed from its topic; None if they were not stored."""
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
        """Return records that update a table to the log as it is now, up to some positions, for the keys that deletions
        affect.

        These are a tombstone for each key, and then the remaining records of the key.
        """
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
        """Return the changes by deletions before some positions: removed records, and current records that replace
        earlier ones.

        Removed records are identified by their keys and positions.
        """
        definition, subjects = self._log.topic(topic), _subjects(entries)
        changes = [Delta.of(fitted(rows, schema)).negated() for rows in self._excised(entries)]
        for partition, end in sorted(upto.items()) if subjects else ():
            _, offsets, theirs = self._places(definition, partition, end, subjects)
            for batch in records_at(self._log, topic, partition, offsets[theirs], schema.names):
                now = Delta.of(fitted(batch, schema))
                changes += [now.negated(), now]
        return changes

    def _excised(self, entries: Sequence[DeletionEntry]) -> list[pa.RecordBatch]:
        """Return the records that the excisions among some deletions have removed."""
        return [rows for entry in entries for rows in self._rows_of(entry)]

    def _places(
        self, topic: TopicDefinition, partition: int, end: int, subjects: Sequence[str]
    ) -> tuple[Hashes, np.ndarray, np.ndarray]:
        """Return, for every record of a partition before an offset: the hash of its key, its offset, and whether it
        belongs to any of these subjects."""
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
    """Return the forgotten subjects among deletions."""
    return [entry.of for entry in entries if entry.forgets]


def _tombstones(keys: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a tombstone for each key."""
    known = {name: keys.column(name) for name in keys.schema.names}
    known["_op"] = pa.array(["delete"] * keys.num_rows, pa.string())
    columns = [
        known[f.name].cast(f.type) if f.name in known else pa.nulls(keys.num_rows, f.type) for f in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _before_positions(rows: pa.RecordBatch, upto: Mapping[int, int]) -> pa.RecordBatch:
    """Return the records before these positions."""
    partitions, offsets = (rows.column(name).to_numpy() for name in ("_partition", "_offset"))
    ends = np.array([upto.get(int(p), 0) for p in partitions], np.int64)
    return take_rows(rows, np.flatnonzero(offsets < ends))


def _is_reached(node: g.Node, known: Mapping[str, str], changed: set[str]) -> bool:
    """Whether rows of any of these topics and collections reach a node."""
    read = {known[source.name] for source in g.sources(node) if source.name in known}
    return not changed.isdisjoint(read | set(map(view_of, read)))


def _is_retractable(node: g.Node) -> bool:
    """Whether an operator can retract rows, or its groups can be recomputed from the log."""
    retraction = kind_of(node).retraction(node)
    return retraction == "rows" or (retraction == "groups" and all(map(is_linear, node.inputs)))


def _is_shown_by_key(root: g.Node) -> bool:
    """Whether a graph is a single operator over single rows, whose output rows can be found by their key."""
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
    """Return the excisions in progress during the tick of which it has read records, or would have without the removal."""
    known = before.extra.get(UNSURE, ()) if before is not None else ()
    found = []
    for name, entry in entries.items():
        if name in handled or not entry.excises or entry.tick is not None:
            continue
        if name in known or read.has_met(entry.of, offsets_of(entry)):
            found.append(name)
    return found
