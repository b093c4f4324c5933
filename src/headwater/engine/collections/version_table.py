"""All versions of a keyed topic's rows, maintained incrementally; `FOR SYSTEM_TIME AS OF` joins with them.

A version is a record that is no tombstone. It begins at the first of these times that exists: the topic's WATERMARK column,
its `_source_time`, the time at which it was appended. It ends where the next record of its key begins. It is permanently
identified by its position in the log, `_version`: `<partition>:<offset>`. In Spark SQL, over all records of the topic:

    SELECT * FROM (
      SELECT *, lead(_valid_from) OVER (PARTITION BY <key> ORDER BY _valid_from, _offset) AS _valid_to,
             concat(_partition, ':', _offset) AS _version
      FROM (SELECT *, coalesce(<WATERMARK column>, _source_time, _appended_at) AS _valid_from FROM <records>))
    WHERE _op <> 'delete'

`batch_versions` computes them in this way; the collection maintains the same incrementally.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.definitions import TopicDefinition
from headwater.core.types import TIMESTAMP, quote
from headwater.engine.collections.collection_stages import TableStage
from headwater.engine.collections.collections import CONTENTS, TableCollection
from headwater.engine.dataflow.executor import Rows
from headwater.engine.dataflow.operator_interface import ArrangementSpec, StepState
from headwater.engine.merging.run_compaction import merged_run
from headwater.log.protocol import Log
from headwater.operators.table import table_versions
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, empty_rows, take_rows
from headwater.operators.zset.ordered_runs import arrange_ordered
from headwater.operators.zset.runs import Run, among, is_among, key_hashes
from headwater.plan.relations.metadata_columns import (
    VERSIONED,
    every_hidden,
    hidden_schema,
    read_records,
    version_hidden,
    versions_of,
)
from headwater.plan.relations.relations import VersionedRelation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SOURCE_TIME = "_source_time"


class VersionCollection(TableCollection):
    """A keyed topic as all versions of its rows. Its arrangement has the records, including tombstones, in order of time."""

    def __init__(self, topic: TopicDefinition) -> None:
        super().__init__(topic)
        self.name = versions_of(topic.name)
        self.identity = self.fingerprint = self.name + self.identity.removeprefix(topic.name)
        self.schema = pa.schema([*topic.schema, *version_hidden(topic)])
        self._topic = topic
        self._records = pa.schema([*topic.schema, *hidden_schema(topic), VERSIONED.field("_valid_from")])
        place = self._records.get_field_index
        self._spec = table_versions.VersionSpec(
            self.key, place("_valid_from"), place("_offset"), place("_op")
        )
        self.contents = ArrangementSpec(CONTENTS, "ordered", self.key, self._spec.order, self._records)
        self.slots = (self.contents,)
        self.stages = (TableStage(self),)

    def apply(self, records: Rows, state: StepState) -> tuple[Delta, Run]:
        """Return the change of versions that records cause, in the order of the log, and the run to add.

        Records that are retracted come as a change: they are identified by their keys and positions.
        """
        runs = [self._evolved(run) for run in state(self.contents)]
        if isinstance(records, Delta):
            change, run = self._exchanged(records, runs)
        else:
            change, run = table_versions.step(self._spec, runs, self.records(records))
        return self._known(change), run

    def _exchanged(self, given: Delta, runs: Sequence[Run]) -> tuple[Delta, Run]:
        """Run a step over a change with retracted records: all versions of their keys are recomputed from the remaining
        records."""
        slot, records = self.contents, self.records(given.rows)
        hashes, goes = key_hashes(records, self.key), given.weights < 0
        touched = np.unique(hashes[goes])
        rest = take_rows(records, np.flatnonzero(~is_among(hashes, touched)))
        change, run = table_versions.step(self._spec, runs, rest)
        held = [among(each, touched) for each in runs]
        rows = merged_run(slot, held, bottom=True).rows if held else empty_rows(self._records)
        stay = take_rows(rows, np.flatnonzero(~_is_at(rows, take_rows(records, np.flatnonzero(goes)))))
        come = take_rows(records, np.flatnonzero(~goes & is_among(hashes, touched)))
        made = arrange_ordered(Delta.of(concat_rows([stay, come], self._records)), slot.key, slot.order)
        then, now = (table_versions.contents(self._spec, each, self._records) for each in (held, [made]))
        gone = [Run(each.hashes, each.rows, -each.weights) for each in held]
        changes = concat([change, then.negated(), now], change.rows.schema)
        return consolidate(changes), merged_run(slot, [run, *gone, made], bottom=False)

    def records(self, given: pa.RecordBatch) -> pa.RecordBatch:
        """Return records of the topic, with its metadata columns, in the schema of the arrangement: with `_valid_from`."""
        times = [given.column(name).cast(TIMESTAMP) for name in begins_at(self._topic)]
        names = self._records.names[:-1]
        columns = [given.column(name) for name in names]
        return pa.RecordBatch.from_arrays([*columns, pc.coalesce(*times)], schema=self._records)

    def rows(self, runs: Sequence[Run]) -> Delta:
        """Return all versions."""
        return self._known(
            table_versions.contents(self._spec, [self._evolved(run) for run in runs], self._records)
        )

    def of_records(self, given: pa.RecordBatch) -> Delta:
        """Return all versions of the given records, which must be all records of their keys, in the order of the log."""
        return self._known(table_versions.step(self._spec, [], self.records(given))[0])

    def _evolved(self, run: Run) -> Run:
        return self._as_now(run, self._records)

    def _known(self, change: Delta) -> Delta:
        """Return versions with their `_version` column."""
        partition, offset = (change.rows.column(name).cast(pa.string()) for name in ("_partition", "_offset"))
        known = pc.binary_join_element_wise(partition, offset, ":")
        rows = pa.RecordBatch.from_arrays([*change.rows.columns, known], schema=self.schema)
        return change.renamed(rows)


def _is_at(records: pa.RecordBatch, others: pa.RecordBatch) -> np.ndarray:
    """Return a mask of the records that have the log position of any of the others."""
    mine, theirs = (
        np.rec.fromarrays([batch.column(name).to_numpy() for name in ("_partition", "_offset")])
        for batch in (records, others)
    )
    return np.isin(mine, theirs)


def all_records(
    log: Log, topic: TopicDefinition, ends: Mapping[int, int] | None, *, met: bool = False
) -> pa.RecordBatch:
    """Return every record of a topic up to some positions, including tombstones, in the order of the log, with its
    metadata columns.

    `met`: whether to include the watermark at which each record was appended.
    """
    own = [field.with_nullable(True) for field in topic.schema]  # a tombstone has its key alone
    schema = pa.schema([*own, *(every_hidden(topic) if met else hidden_schema(topic))])
    batches: list[pa.RecordBatch] = []
    for partition, info in sorted(log.partitions(topic.name).items()):
        end = info.end if ends is None else ends.get(partition, info.first)
        if info.first < end:
            batches += read_records(log, topic.name, partition, (info.first, end), schema.names)
    return concat_rows([batch.cast(schema) for batch in batches], schema)


def readable_versions(topic: TopicDefinition) -> VersionedRelation:
    """Return how a query can read the versions of a topic's rows, or why it cannot."""
    if not topic.key:
        return VersionedRelation(
            refusal=(
                f"topic {topic.name!r} has no versions: it has no PRIMARY KEY",
                "join with the topic by a key and a range of time: ON a.id = b.id AND b.at BETWEEN ... AND ...",
            )
        )
    own = next((name for name in topic.schema.names if name.lower() in VERSIONED.names), None)
    if own is not None:
        return VersionedRelation(
            refusal=(
                f"topic {topic.name!r} has a column named {own!r}, which is a metadata column of versions",
                f"copy the topic without this column: CREATE TOPIC ... AS SELECT ... FROM {topic.name}",
            )
        )
    if topic.cleanup == "compact" and topic.versions_for_us is None:
        return VersionedRelation(
            refusal=(
                f"topic {topic.name!r} is compacted, which can remove replaced versions at any time",
                f"keep versions for a time: ALTER TOPIC {topic.name} SET (versions_for = '30 days')",
            )
        )
    key = tuple(map(topic.schema.get_field_index, topic.key))
    return VersionedRelation(version_hidden(topic), key, tuple(begins_at(topic)))


def begins_at(topic: TopicDefinition) -> list[str]:
    """Return the columns that define when a record of a topic becomes valid: the first that is not NULL."""
    own = [topic.time] if topic.time is not None else []
    known = (*topic.schema.names, *topic.source_columns.names)
    return [*own, *(name for name in [_SOURCE_TIME] if name in known), "_appended_at"]


def batch_versions(records: DataFrame, topic: TopicDefinition) -> DataFrame:
    """Compute the versions of a topic's records with Spark: the topic's columns, then the metadata columns."""
    begins = ", ".join(f"CAST({quote(name)} AS TIMESTAMP)" for name in begins_at(topic))
    key = ", ".join(map(quote, topic.key))
    begun = records.selectExpr("*", f"coalesce({begins}) AS _valid_from")
    spans = begun.selectExpr(
        "*",
        f"lead(_valid_from) OVER (PARTITION BY {key} ORDER BY _valid_from, _offset) AS _valid_to",
        "concat(_partition, ':', _offset) AS _version",
    )
    columns = [*topic.schema.names, *version_hidden(topic).names]
    return spans.where("_op <> 'delete'").select(*map(quote, columns))
