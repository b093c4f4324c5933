"""The Spark data source `format("headwater")`: topics and views in any PySpark program, batch and streaming.

Spark discovers it where Headwater is installed (through the package `pyspark_headwater`); `register` registers it
explicitly. Headwater's own engine does not use it: it reads the log directly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from headwater.core.errors import UsageError
from headwater.spark_datasource.conversion import spark_schema, view_schema
from headwater.spark_datasource.options import read_settings, reads_view, view_settings, write_settings
from headwater.spark_datasource.topic_reader import TopicBatchReader
from headwater.spark_datasource.topic_stream import TopicStreamReader
from headwater.spark_datasource.topic_writer import TopicBatchWriter, TopicStreamWriter
from headwater.spark_datasource.view_reader import ViewBatchReader, ViewStreamReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = "headwater"


class HeadwaterDataSource(DataSource):
    """The data source of one topic or view of one workspace. Every task must reach the workspace's folder by the same path.

    Options to read a topic: `workspace`, `topic`, `starting`, `columns`, `metadata`, `maxRowsPerTrigger`, `onGap`,
    `rowsPerTask`; a view: `workspace`, `view`, `as_of`, `changes`, `starting`, `columns`, `maxTicksPerTrigger`,
    `rowsPerTask`. Options to write: `workspace`, `topic`, and for batches `producer`, `sequence`, `epoch`.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of a read with these options."""
        if reads_view(self.options):
            return view_schema(view_settings(self.options))
        settings = read_settings(self.options)
        return spark_schema(settings.place.log().topic(settings.place.topic), settings)

    def reader(self, schema: StructType) -> TopicBatchReader | ViewBatchReader:
        """Return the reader for `spark.read`."""
        if reads_view(self.options):
            return ViewBatchReader(view_settings(self.options), schema)
        return TopicBatchReader(read_settings(self.options), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader | ViewStreamReader:
        """Return the reader for `spark.readStream`."""
        if reads_view(self.options):
            return ViewStreamReader(view_settings(self.options), schema)
        return TopicStreamReader(read_settings(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """Return the writer for `df.write`."""
        if overwrite:
            raise UsageError(
                "a topic cannot be overwritten: it is append-only",
                hint='use .mode("append"); on a keyed topic a newer row replaces the older row of its key',
                reason="overwrite",
            )
        return TopicBatchWriter(write_settings(self.options, stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """Return the writer for `df.writeStream`."""
        if overwrite:
            raise UsageError(
                "outputMode 'complete' is not supported: every batch would overwrite the topic, which is append-only",
                hint="use outputMode 'append', or foreachBatch with upserts to a keyed topic",
                reason="overwrite",
            )
        return TopicStreamWriter(write_settings(self.options, stream=True), schema)


def register(spark: SparkSession) -> None:
    """Register `format("headwater")` with a session that does not discover it."""
    spark.dataSource.register(HeadwaterDataSource)
