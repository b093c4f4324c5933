"""TOPIC: the rows of a view on another topic of the same workspace, as records and tombstones of a table or as a changelog.

Guarantee: exactly once. Records and the checkpoint, which is the note of the producer `sink:<name>`, are one commit of the
log, as durable as the topic is. A sequence that the log already has writes nothing again.

In mode 'upsert' the topic has the sink's key as its primary key: a row is a record that replaces the one before it, and a
deleted row is a tombstone. In mode 'changelog' every change is a record with `_weight` and `_tick`. Views that read the
topic see the records of a tick in a later tick.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import DELETE, UPSERT, conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import text
from headwater.core.errors import (
    BadRowError,
    DiskFullError,
    LogTimeoutError,
    SchemaError,
    StorageError,
    TopicExistsError,
    TopicNotFoundError,
)
from headwater.core.hashing import identities
from headwater.log.protocol import Append, Log, Producer
from headwater.log.topic_names import check_new
from headwater.operators.zset.delta import concat_rows, take_rows
from headwater.sinks.base.blue_green import Version
from headwater.sinks.base.sink_setup import SinkSetup
from headwater.sinks.base.target import (
    TICK,
    WEIGHT,
    CheckpointConflictError,
    RefusedRow,
    RowsRefusedError,
    SinkCheckpoint,
    SinkError,
    TargetChange,
    TargetDownError,
    TargetShape,
)
from headwater.sinks.topic.versions import TopicVersions, topics_of

_TOPIC_OPTIONS = ("partitions", "durability", "cleanup")
"""Options of the sink that apply to its topic."""


class TopicTarget:
    """A topic, created with the WITH options `options` (partitions, durability, ...) if it does not exist."""

    guarantee: ClassVar[str] = "exactly once: records and checkpoint are one commit of the log"

    def __init__(
        self,
        log: Log,
        topic: str,
        *,
        options: Mapping[str, Any] | None = None,
        version: Version | None = None,
        like: TopicDefinition | None = None,
        private: Mapping[str, str] | None = None,
    ) -> None:
        """`private` maps columns derived from private ones to the columns of their subjects; they are private in this topic,
        too."""
        self._given = topic
        self._like = like
        self._version = version
        self._log = log
        self._options = dict(options or {})
        self._private = dict(private or {})
        self._shape: TargetShape | None = None

    @classmethod
    def declared(cls, setup: SinkSetup) -> Self:
        """Return the target that a declaration asks for."""
        made = {name: setup.options[name] for name in _TOPIC_OPTIONS if name in setup.options}
        topic = text(setup.options.get("topic"), "topic")
        return cls(setup.log, topic, options=made, private=setup.private)

    @property
    def topic(self) -> str:
        """Name of the topic, which changes when a rebuilt version becomes active."""
        if self._shape is None or self._version is not None:
            return self._given
        return topics_of(self._log, self._shape.sink, self._given).in_force

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the shape."""
        return () if self._shape is None else self._shape.key

    def prepare(self, shape: TargetShape) -> None:
        """Create the topic, or check that the existing one has these columns and this key, and retains all records."""
        if shape.mode == "upsert" and not shape.key:
            raise SinkError(
                f"sink {shape.sink!r} into TOPIC needs a key, or mode = 'changelog'",
                sink=shape.sink,
                reason="no-key",
            )
        self._shape = shape
        if self.topic not in self._log.topics():
            compact = {"cleanup": "compact"} if shape.key else {}
            made = define_topic(
                self.topic,
                self._columns(),
                key=shape.key,
                options={**compact, **self._options},
                private=self._private,
            )
            if self._like is not None and self._like.private:
                # a copy of private columns is private, too
                made = replace(self._like, name=self.topic)
            try:
                check_new(made)
                self._log.create_topic(made)
            except SchemaError as error:
                raise SinkError(error.message, hint=error.hint, sink=shape.sink) from None
            except TopicExistsError as error:
                if self.topic not in self._log.topics():
                    raise SinkError(error.message, hint=error.hint, sink=shape.sink) from None
        self._check(shape, self._topic())

    def stored_form(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows unchanged."""
        return rows

    def checkpoint(self) -> SinkCheckpoint | None:
        """Return the checkpoint in the producer's note, if it is of this very topic."""
        self._log.settle()
        known = self._log.producer(self._producer())
        topic = self._topic()
        note = None if known is None else known.note
        if note is None or (note.get("topic"), note.get("incarnation")) != (topic.name, topic.incarnation):
            return None
        return SinkCheckpoint.parse(note["stand"])

    def apply(self, change: TargetChange, before: SinkCheckpoint | None, after: SinkCheckpoint) -> None:
        """Append tombstones, records and the note in one commit."""
        topic = self._topic()
        found = self.checkpoint()
        if found != before:
            raise self._moved(found)
        known = self._log.producer(self._producer())
        batches = [b for b in self._records(change, topic) if b.num_rows]
        # Usually the tick; higher if a target is reconciled twice at one tick, or the ticks of a view start
        # again.
        sequence = max(after.tick, 0 if known is None else known.sequence + 1)
        note = {"topic": topic.name, "incarnation": topic.incarnation, "stand": after.text()}
        producer = Producer(
            self._producer(), sequence, 0 if known is None else known.epoch, note, exact=False
        )
        append = Append({topic.name: batches}, producer, incarnations={topic.name: topic.incarnation})
        try:
            self._log.append(append)
        except (DiskFullError, LogTimeoutError, StorageError) as error:
            raise TargetDownError(
                f"topic {self.topic!r} cannot be written: {error.message}", hint=error.hint, topic=self.topic
            ) from error
        except TopicNotFoundError as error:
            raise self._moved(None) from error
        # If another process used the sequence first, the log returned its receipt and wrote nothing.
        if (now := self.checkpoint()) != after:
            raise self._moved(now)

    def contents(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest record of each key unless it is a tombstone; without a key, every record."""
        shape, topic = self._prepared(), self._topic()
        for partition, info in self._log.partitions(topic.name).items():
            columns = [*shape.schema.names, *(["_op"] if shape.key else [])]
            columns += [WEIGHT.name] if shape.mode == "changelog" else []
            batches = self._log.read(topic.name, partition, info.first, info.end, columns)
            if not shape.key:
                for batch in batches:
                    yield batch.cast(self._stored_schema())
                continue
            read = list(batches)
            if read:
                yield self._newest(concat_rows(read, read[0].schema))

    def versions(self) -> TopicVersions:
        """See `headwater.sinks.base.blue_green`."""
        shape = self._prepared()

        def make(topic: str, version: Version) -> TopicTarget:
            like, private = self._topic(), self._private
            return TopicTarget(
                self._log, topic, options=self._options, version=version, like=like, private=private
            )

        def checkpoint(topic: str) -> SinkCheckpoint | None:
            # a fixed version, since the name of the active topic changes
            target = make(topic, "old")
            target._shape = shape
            return target.checkpoint()

        return TopicVersions(shape.sink, self._log, self._given, make, checkpoint)

    def close(self) -> None:
        """Do nothing: the log belongs to the workspace."""

    # --- records ---------------------------------------------------------------------------------------------------

    def _records(self, change: TargetChange, topic: TopicDefinition) -> list[pa.RecordBatch]:
        rows = change.upserts if self.key else change.records
        self._refuse(rows, topic)
        try:
            if not self.key:
                return [conform(rows, topic)]
            gone = change.deletes
            # a row with a NULL key was never written
            for name in self.key:
                if gone.column(name).null_count:
                    gone = gone.filter(gone.column(name).is_valid())
            return [
                conform(_with_op(gone, topic, DELETE), topic),
                conform(_with_op(rows, topic, UPSERT), topic),
            ]
        except BadRowError as error:
            raise RowsRefusedError(error.message, refused=[RefusedRow(error.row, error.message)]) from error

    def _refuse(self, rows: pa.RecordBatch, topic: TopicDefinition) -> None:
        """Raise RowsRefusedError for rows with NULL in columns of the topic that are NOT NULL."""
        reasons: dict[int, str] = {}
        for field in topic.schema:
            needed = not field.nullable or field.name == topic.time
            if needed and field.name in rows.schema.names and rows.column(field.name).null_count:
                role = "the key" if field.name in self.key else "NOT NULL"
                for row in np.flatnonzero(rows.column(field.name).is_null().to_numpy(zero_copy_only=False)):
                    reasons.setdefault(
                        int(row), f"column {field.name!r}, which is {role} in topic {topic.name!r}, is NULL"
                    )
        if reasons:
            refused = [RefusedRow(row, reasons[row]) for row in sorted(reasons)]
            raise RowsRefusedError(f"topic {topic.name!r} rejects {len(refused)} rows", refused=refused)

    def _newest(self, records: pa.RecordBatch) -> pa.RecordBatch:
        first, second = identities([records.column(n) for n in self.key], records.num_rows, exact=False)
        order = np.lexsort((np.arange(records.num_rows), second, first))
        last = np.ones(len(order), dtype=np.bool_)
        a, b = first[order], second[order]
        last[:-1] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        alive = pc.not_equal(records.column("_op"), "delete").to_numpy(zero_copy_only=False)
        places = order[last]
        rows = take_rows(records, np.sort(places[alive[places]]))
        return rows.select(self._prepared().schema.names).cast(self._stored_schema())

    # --- the topic -------------------------------------------------------------------------------------------------

    def _prepared(self) -> TargetShape:
        if self._shape is None:
            raise RuntimeError("prepare was not called")
        return self._shape

    def _producer(self) -> str:
        """Return the name of the producer: that of the sink for its first topic; a topic that was built as a version has a
        producer of its own, and keeps it."""
        whole = f"sink:{self._prepared().sink}"
        of_topic = f"{whole}~{self.topic}"
        is_own = self._version == "new" or self._log.producer(of_topic) is not None
        return of_topic if is_own else whole

    def _topic(self) -> TopicDefinition:
        try:
            return self._log.topic(self.topic)
        except TopicNotFoundError as error:
            raise TargetDownError(
                f"topic {self.topic!r} was dropped",
                hint="restart the sink, which creates the topic again",
                topic=self.topic,
            ) from error

    def _stored_schema(self) -> pa.Schema:
        shape = self._prepared()
        return shape.schema.append(WEIGHT) if shape.mode == "changelog" else shape.schema

    def _columns(self) -> pa.Schema:
        shape = self._prepared()
        more = [WEIGHT, TICK] if shape.mode == "changelog" else []
        subjects = set(self._private.values())
        return pa.schema(
            [*(pa.field(f.name, f.type, nullable=f.name not in subjects) for f in shape.schema), *more]
        )

    def _check(self, shape: TargetShape, topic: TopicDefinition) -> None:
        expected = {f.name: f.type for f in self._columns()}
        found = {f.name: f.type for f in topic.schema}
        wrong = None
        if topic.captured_by is not None:
            wrong = f"it belongs to source {topic.captured_by!r}", "source"
        elif topic.versioned_by is not None:
            wrong = f"it has versioned_by = {topic.versioned_by!r}", "versioned-by"
        elif set(topic.key) != set(shape.key):
            wrong = (
                f"its key is ({', '.join(topic.key)}), and the key of the sink is ({', '.join(shape.key)})",
                "key",
            )
        elif found != expected:
            wrong = f"it has the columns {_shown(found)}; the sink writes {_shown(expected)}", "columns"
        elif plain := set(self._private.items()) - set(topic.private):
            column, by = min(plain)
            wrong = f"its column {column} is not PRIVATE BY ({by}), as the column of the view is", "private"
        elif topic.retention_us is not None or topic.retention_bytes is not None:
            wrong = "it has a retention, which removes records that the view still has", "retention"
        if wrong is not None:
            raise SinkError(
                f"sink {shape.sink!r} cannot write to topic {topic.name!r}",
                detail=wrong[0],
                hint="name another topic; a topic that does not exist is created",
                sink=shape.sink,
                topic=topic.name,
                reason=wrong[1],
            )

    def _moved(self, found: SinkCheckpoint | None) -> CheckpointConflictError:
        return CheckpointConflictError(
            f"the checkpoint of sink {self._prepared().sink!r} on topic {self.topic!r} was changed by another process",
            found=found,
        )


def _with_op(rows: pa.RecordBatch, topic: TopicDefinition, op: int) -> pa.RecordBatch:
    """Return rows in the columns of the topic; missing columns are NULL."""
    schema = topic.row_schema
    columns = [
        rows.column(field.name) if field.name in rows.schema.names else pa.nulls(rows.num_rows, field.type)
        for field in schema
        if field.name != "_op"
    ]
    ops = pa.repeat(pa.scalar(op, schema.field("_op").type), rows.num_rows)
    return pa.RecordBatch.from_arrays([*columns, ops], schema=schema)


def _shown(columns: Mapping[str, pa.DataType]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
