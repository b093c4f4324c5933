"""Topics and views as a data source of any PySpark program: `format("headwater")` for batch and streaming.

Spark finds it by itself where Headwater is installed (through the package `pyspark_headwater`); `register` does the same
by hand. The engine of this package does not use it: it reads the log itself.
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
    """One topic or view of one workspace. The workspace's folder must be where every task can reach it by the same path.

    Options to read a topic: `workspace`, `topic`, `starting`, `columns`, `metadata`, `maxRowsPerTrigger`, `onGap`,
    `rowsPerTask`; a view: `workspace`, `view`, `as_of`, `changes`, `starting`, `columns`, `maxTicksPerTrigger`,
    `rowsPerTask`. Options to write: `workspace`, `topic`, and for batches `producer`, `sequence`, `epoch`.
    """

    @classmethod
    def name(cls) -> str:
        """The name after `format`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns that a read with these options shows."""
        if reads_view(self.options):
            return view_schema(view_settings(self.options))
        settings = read_settings(self.options)
        return spark_schema(settings.place.log().topic(settings.place.topic), settings)

    def reader(self, schema: StructType) -> TopicBatchReader | ViewBatchReader:
        """For `spark.read`."""
        if reads_view(self.options):
            return ViewBatchReader(view_settings(self.options), schema)
        return TopicBatchReader(read_settings(self.options), schema)

    def streamReader(self, schema: StructType) -> TopicStreamReader | ViewStreamReader:
        """For `spark.readStream`."""
        if reads_view(self.options):
            return ViewStreamReader(view_settings(self.options), schema)
        return TopicStreamReader(read_settings(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        """For `df.write`."""
        if overwrite:
            raise UsageError(
                "a topic cannot be overwritten: what was appended to a log stays",
                hint='.mode("append"); on a keyed topic a newer row replaces the older one of its key',
            )
        return TopicBatchWriter(write_settings(self.options, stream=False), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:
        """For `df.writeStream`."""
        if overwrite:
            raise UsageError(
                "outputMode 'complete' would overwrite the topic with every batch, and a log only grows",
                hint="use outputMode 'append', or foreachBatch with upserts to a keyed topic",
            )
        return TopicStreamWriter(write_settings(self.options, stream=True), schema)


def register(spark: SparkSession) -> None:
    """Make `format("headwater")` known to a session that does not find it by itself."""
    spark.dataSource.register(HeadwaterDataSource)
