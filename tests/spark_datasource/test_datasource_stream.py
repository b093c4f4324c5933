"""`spark.readStream` and `df.writeStream` with format("headwater"): each record once, whatever is repeated."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.slow

TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Pipeline:
    """A query that copies topic `source` to topic `target`, started again and again from one checkpoint."""

    spark: "SparkSession"
    ws: hw.Workspace
    checkpoint: Path

    def append(self, *numbers: int) -> None:
        self.ws.topic("source").append([{"n": n} for n in numbers])

    def run(
        self, change: "Callable[[DataFrame], DataFrame]" = lambda df: df, **options: Any
    ) -> "StreamingQuery":
        """Run the query over what is available now, to its end."""
        reader = self.spark.readStream.format("headwater").options(**self._place("source"), **options)
        writer = change(reader.load()).writeStream.format("headwater").options(**self._place("target"))
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        if not query.awaitTermination(TIMEOUT_SECONDS):
            query.stop()
            pytest.fail("the query did not end")
        return query

    def batch_rows(self) -> list[int]:
        """How many rows each append to the target has, in order."""
        found = [
            number
            for batch in self.ws.topic("target").read(columns=["_sequence"])
            for number in batch["_sequence"].to_pylist()
        ]
        return [found.count(number) for number in sorted(set(found))]

    def written(self) -> list[int]:
        return sorted(n for batch in self.ws.topic("target").read() for n in batch["n"].to_pylist())

    def staged(self) -> list[Path]:
        assert self.ws.path is not None
        return list((self.ws.path / "staging").glob("*"))

    def forget_last_commit(self) -> int:
        """As if Spark had died after its last batch was in the log, before it noted that in its checkpoint."""
        batch = max(int(file.name) for file in (self.checkpoint / "commits").iterdir() if file.name.isdigit())
        for name in (f"{batch}", f".{batch}.crc"):
            (self.checkpoint / "commits" / name).unlink(missing_ok=True)
        return batch

    def _place(self, topic: str) -> dict[str, str]:
        return {"workspace": str(self.ws.path), "topic": topic}


@pytest.fixture
def pipeline(spark: "SparkSession", tmp_path: Path) -> Iterator[Pipeline]:
    """A workspace with a source of two partitions and a target of three."""
    with hw.open(tmp_path / "shop", durability="os") as ws:
        ws.topic("source", "n BIGINT", partitions=2, partition_by="n")
        ws.topic("target", "n BIGINT", partitions=3, partition_by="n")
        yield Pipeline(spark, ws, tmp_path / "checkpoint")


def test_a_query_goes_on_from_its_checkpoint_and_a_batch_that_spark_repeats_is_written_once(
    pipeline: Pipeline,
) -> None:
    pipeline.append(*range(100))
    pipeline.run()
    assert pipeline.forget_last_commit() == 0
    pipeline.append(*range(100, 150))
    pipeline.run()
    assert pipeline.forget_last_commit() == 1
    pipeline.run()
    assert pipeline.written() == list(range(150))
    assert pipeline.batch_rows() == [100, 50]
    assert pipeline.staged() == []


def test_a_batch_whose_task_fails_and_is_repeated_is_written_once(pipeline: Pipeline) -> None:
    def stumble(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            raise RuntimeError("a task that fails once")

    pipeline.append(*range(100))
    pipeline.run(lambda df: df.mapInArrow(stumble, "n BIGINT"))
    assert pipeline.written() == list(range(100))
    assert pipeline.batch_rows() == [100]
    assert pipeline.staged() == []


def test_batches_keep_to_their_bound_and_split_no_append(pipeline: Pipeline) -> None:
    for first in (0, 4, 8):
        pipeline.append(*range(first, first + 4))
    pipeline.append(*range(12, 32))
    pipeline.append(32)
    query = pipeline.run(maxRowsPerTrigger=9)
    assert pipeline.written() == list(range(33))
    assert pipeline.batch_rows() == [8, 4, 20, 1]
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [8, 4, 20, 1]


def test_a_running_query_follows_its_topic(pipeline: Pipeline) -> None:
    place = {"workspace": str(pipeline.ws.path)}
    reader = pipeline.spark.readStream.format("headwater").options(**place, topic="source")
    writer = reader.load().writeStream.format("headwater").options(**place, topic="target")
    query = writer.option("checkpointLocation", str(pipeline.checkpoint)).start()
    try:
        for first in (0, 10):
            pipeline.append(*range(first, first + 10))
            follow = pipeline.ws.topic("target").read(follow=True, timeout=TIMEOUT_SECONDS)
            seen = 0
            while seen < first + 10:
                seen += next(follow).num_rows
    finally:
        query.stop()
    assert pipeline.written() == list(range(20))
