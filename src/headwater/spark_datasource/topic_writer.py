"""Writes to a topic from Spark: each task stages its rows in a file, and the driver appends all of them in one commit.

So a write is visible as a whole or not at all, whichever tasks failed, ran twice or were abandoned. Appends of a
streaming query have the query's id as their producer and the batch's number as their sequence: a batch that Spark
repeats, because it crashed between Headwater's commit and its own, is recognized and not appended again.

Staged files are in a folder named after a process of the driver, like those of the log's own transactions; the log's
maintenance removes the files that a crash leaves behind.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headwater.catalog.conform import conform
from headwater.core.errors import BadRowError, HeadwaterError, TopicNotFoundError, UsageError
from headwater.core.storage import File, SequentialWriter, Storage
from headwater.log.embedded.embedded_log import EmbeddedLog
from headwater.log.embedded.journal.file_names import STAGED_FILES
from headwater.log.embedded.staging import FOLDER
from headwater.log.protocol import Producer
from headwater.spark_datasource.conversion import written_names
from headwater.spark_datasource.options import WriteSettings

QUERY_ID = "sql.streaming.queryId"
"""Local property with which Spark passes the query's id to its tasks; the query's checkpoint stores the id."""
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class StagedRows(WriterCommitMessage):
    """A task's message to the driver: the file of its rows, and the topic that they were conformed to."""

    file: str
    rows: int
    topic: str
    incarnation: int
    query: str | None
    batch: str | None


class _StagingWriter:
    """The staging of rows that batch and stream writers share."""

    def __init__(self, settings: WriteSettings, schema: StructType) -> None:
        self._settings = settings
        self._names = written_names(schema, settings.place.log().topic(settings.place.topic))
        # The parent of this process lives as long as Spark; maintenance removes the files of processes that ended.
        self._folder = f"{FOLDER}/{os.getppid()}-spark-{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedRows:
        """Conform rows to the topic and write them to a file of this attempt; BadRowError if a row does not fit. Runs
        in a task."""
        task = TaskContext.get()
        log = self._settings.place.log()
        topic = log.topic(self._settings.place.topic)
        number = 0 if task is None else task.partitionId()
        file = f"{self._folder}/{number}-{uuid.uuid4().hex}.arrow"
        with _StageFile(log.storage, file) as stage:
            for batch in iterator:
                try:
                    stage.add(conform(batch.rename_columns(self._names), topic))
                except BadRowError as error:
                    raise _located(error, stage.rows, number) from None
        return StagedRows(
            file,
            stage.rows,
            topic.name,
            topic.incarnation,
            None if task is None else task.getLocalProperty(QUERY_ID),
            None if task is None else task.getLocalProperty(BATCH_ID),
        )

    def _append(self, messages: Sequence[StagedRows], producer: Producer | None) -> None:
        """Append all rows in one commit, then remove the files; runs on the driver."""
        log = self._settings.place.log()
        if any(message.rows for message in messages):
            _append(log, [message for message in messages if message.rows], producer)
        self._discard(messages)

    def _discard(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the staged files, and those of failed attempts, as far as possible now."""
        staged = {os.path.dirname(message.file) for message in messages if isinstance(message, StagedRows)}
        storage = self._settings.place.log().storage
        for folder in {self._folder, *staged}:
            # An attempt that is still running may add a file to the folder; maintenance removes it later.
            with contextlib.suppress(HeadwaterError, OSError):
                storage.remove_dir(folder, STAGED_FILES)


class TopicBatchWriter(_StagingWriter, DataSourceArrowWriter):
    """`df.write`: one atomic append; with the options producer and sequence, exactly once however often it is repeated."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append all staged rows."""
        self._append(_all_staged(messages), self._settings.producer)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Discard all staged rows."""
        self._discard(messages)


class TopicStreamWriter(_StagingWriter, DataSourceStreamArrowWriter):
    """`df.writeStream`: one atomic append per micro-batch, exactly once however often Spark repeats the batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append all staged rows, unless this batch of this query was appended before."""
        staged = _all_staged(messages)
        self._append(staged, _producer(staged, batchId) if staged else None)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Discard all staged rows."""
        self._discard(messages)


class _StageFile:
    """A file of conformed rows, created with the first of them. Not synced: after a crash Spark repeats the task."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.rows = 0
        self._storage = storage
        self._name = name
        self._file: File | None = None
        self._writer: pa.RecordBatchWriter | None = None

    def __enter__(self) -> _StageFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if self._writer is not None and kind is None:
            self._writer.close()
        if self._file is not None:
            self._file.close()
            if kind is not None:
                with contextlib.suppress(HeadwaterError):
                    self._storage.remove(self._name)

    def add(self, batch: pa.RecordBatch) -> None:
        """Write a batch of rows."""
        if not batch.num_rows:
            return
        if self._writer is None:
            self._storage.make_dirs(os.path.dirname(self._name))
            self._file = self._storage.open(self._name, exclusive=True)
            self._writer = pa.ipc.new_stream(SequentialWriter(self._file), batch.schema)
        self._writer.write_batch(batch)
        self.rows += batch.num_rows


def _all_staged(messages: Sequence[WriterCommitMessage | None]) -> list[StagedRows]:
    """Return the message of every task. Spark commits only when all tasks succeeded; a missing message would lose rows."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if len(staged) < len(messages):
        raise UsageError(
            f"{len(messages) - len(staged)} of {len(messages)} tasks did not report what they wrote",
            hint="run the write again; nothing of it was written",
            reason="reports-missing",
            tasks=len(messages) - len(staged),
        )
    return staged


def _producer(staged: Sequence[StagedRows], batch: int) -> Producer:
    queries = {(message.query, message.batch) for message in staged}
    query, number = queries.pop()
    if queries or not query or number not in (None, str(batch)):
        raise UsageError(
            "Spark did not pass the ids of the query and the batch to the tasks",
            detail=f"the tasks of batch {batch} have query {query!r} and batch {number!r}; without the ids, a repeated batch "
            "would be written twice",
            hint="use foreachBatch with the options producer and sequence",
            reason="query-unknown",
            query=query,
        )
    return Producer(f"spark:{query}", batch, exact=False)


def _append(log: EmbeddedLog, messages: Sequence[StagedRows], producer: Producer | None) -> None:
    if len({message.incarnation for message in messages}) > 1:
        raise TopicNotFoundError(
            f"topic {messages[0].topic!r} was dropped and recreated during the write",
            hint="run the write again; nothing of it was written",
            reason="recreated",
            topic=messages[0].topic,
        )
    stage = log.stage()
    try:
        for message in messages:
            with pa.memory_map(log.storage.path(message.file)) as file, pa.ipc.open_stream(file) as rows:
                for batch in rows:
                    stage.add(message.topic, batch, message.incarnation)
        stage.commit(producer=producer)
    except BaseException:
        stage.abort()
        raise


def _located(error: BadRowError, before: int, task: int) -> BadRowError:
    """Return the error with the row counted from the beginning of the task's rows."""
    row = before + error.row
    return BadRowError(
        error.message.replace(f"row {error.row} ", f"row {row} ", 1),
        detail=f"the row number is that in partition {task} of the DataFrame; nothing of this write was written",
        hint=error.hint,
        **{**error.facts, "row": row, "task": task},
    )
