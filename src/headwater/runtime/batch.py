"""The same SELECTs run in batch by Spark over the log up to a cut: what `verify` compares with, and older ticks.

Nothing here knows the operators or their state: topics are read from the log, keyed ones reduced to their current
rows, and each view's SELECT is run by Spark over what it reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.catalog import TopicDefinition, ViewDefinition
from headwater.log.protocol import Log
from headwater.operators.delta import concat_rows
from headwater.positions import Ends
from headwater.queries import statements as s
from headwater.runtime.catalog import in_order
from headwater.runtime.expressions import conformed, evaluation_error
from headwater.runtime.planning.catalyst import Catalyst, plain_type
from headwater.runtime.planning.planner import pin, statement_error

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_ROWS_MAX = 200_000
"""Topics up to this size are handed to Spark from memory; larger ones through Parquet files."""


class Batch:
    """A session in which the topics are what they were at a cut."""

    def __init__(self, spark: SparkSession, log: Log | None, cut: Ends) -> None:
        from headwater.runtime.session import SEMANTICS

        self._spark = spark.newSession()
        for name, value in SEMANTICS.items():
            self._spark.conf.set(name, value)
        self._catalyst = Catalyst(self._spark)
        self._log = log
        self._cut = cut
        self._scratch = tempfile.TemporaryDirectory(prefix="headwater-")
        self._known: set[str] = set()

    def close(self) -> None:
        """Remove what was written for Spark to read."""
        self._scratch.cleanup()

    def views(self, definitions: Mapping[str, ViewDefinition], wanted: Sequence[str]) -> dict[str, pa.Table]:
        """The contents of views, computed from the log alone."""
        needed = _below(definitions, wanted)
        contents: dict[str, pa.Table] = {}
        for definition in in_order(definitions):
            if definition.name in needed:
                frame = self.view(definition)
                if definition.name in wanted:
                    contents[definition.name] = as_table(frame, definition.columns)
        return contents

    def view(self, definition: ViewDefinition) -> DataFrame:
        """A view as a DataFrame, and as a name for those above it. Those that it reads must be there."""
        for name in definition.reads:
            if name not in self._known:
                self.topic(name, definition.inputs[name])
        frame = self.query(definition.query).toDF(*definition.columns.names)
        frame.createOrReplaceTempView(definition.name)
        self._known.add(definition.name)
        return frame

    def query(self, text: str, *, pinned: bool = True) -> DataFrame:
        """A query over what is there; `pinned`: with the choices that Spark leaves open made as in views."""
        from pyspark.errors import PySparkException
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        if pinned:
            return Classic(self._catalyst.dataset(pin(self._catalyst, s.Query(text))), self._spark)
        try:
            return self._spark.sql(text)
        except PySparkException as error:
            raise statement_error(s.Query(text), error) from None

    def topic(self, name: str, columns: Sequence[str] | None = None) -> None:
        """Make a topic's rows at the cut known under its name; those of a keyed one are its current rows."""
        assert self._log is not None
        topic = self._log.topic(name)
        rows = current_rows(self._log, topic, self._cut.get(topic.name))
        if columns is not None:
            rows = rows.select(list(columns))
        self.register(name, rows)

    def register(self, name: str, rows: pa.Table) -> None:
        """Make a table known under a name."""
        if rows.num_rows <= LOCAL_ROWS_MAX:
            schema = pa.schema([pa.field(f.name, plain_type(f.type)) for f in rows.schema])
            typed = [conformed(rows.column(i), f.type) for i, f in enumerate(schema)]
            frame: Any = self._spark.createDataFrame(pa.Table.from_arrays(typed, schema=schema))
        else:
            path = Path(self._scratch.name) / f"{len(self._known)}.parquet"
            pq.write_table(rows, path, row_group_size=1 << 18)
            frame = self._spark.read.parquet(str(path))
        frame.createOrReplaceTempView(name)
        self._known.add(name)


def current_rows(log: Log, topic: TopicDefinition, ends: Mapping[int, int] | None) -> pa.Table:
    """What a topic holds at a cut: all rows, or of a keyed topic the last of each key that is not a tombstone."""
    infos = log.partitions(topic.name)
    columns = [*topic.schema.names, "_op"] if topic.key else list(topic.schema.names)
    tables: list[pa.Table] = []
    for partition, info in sorted(infos.items()):
        end = info.end if ends is None else ends.get(partition, info.first)
        if info.first >= end:
            continue
        batches = list(log.read(topic.name, partition, info.first, end, columns))
        if batches:
            rows = concat_rows(batches, batches[0].schema)
            tables.append(_latest(rows, topic) if topic.key else pa.Table.from_batches([rows]))
    if not tables:
        return topic.schema.empty_table()
    return pa.concat_tables(tables).select(topic.schema.names).cast(topic.schema)


def _latest(rows: pa.RecordBatch, topic: TopicDefinition) -> pa.Table:
    """The last record of each key; a key has one partition, so that each is reduced alone."""
    numbered = pa.Table.from_batches([rows]).append_column("_n", pa.array(np.arange(rows.num_rows)))
    keys = list(topic.key)
    last = numbered.group_by(keys).aggregate([("_n", "max")]).column("_n_max")
    kept = numbered.take(last)
    return kept.filter(pc.not_equal(kept.column("_op"), "delete")).drop_columns(["_n", "_op"])


def as_table(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """A DataFrame as an Arrow table of exactly this schema."""
    table = frame.toArrow()
    columns = [conformed(table.column(i), f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def free_table(frame: DataFrame) -> pa.Table:
    """A DataFrame as an Arrow table of the types that Headwater has for Spark's; errors of its run as ours."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        table = frame.toArrow()
    except (PySparkException, Py4JJavaError) as error:
        raise evaluation_error(error) from error
    schema = pa.schema([pa.field(f.name, plain_type(f.type)) for f in table.schema])
    return pa.Table.from_arrays(
        [conformed(table.column(i), f.type) for i, f in enumerate(schema)], schema=schema
    )


def _below(definitions: Mapping[str, ViewDefinition], wanted: Sequence[str]) -> set[str]:
    needed: set[str] = set()
    left = list(wanted)
    while left:
        name = left.pop()
        if name in definitions and name not in needed:
            needed.add(name)
            left += definitions[name].reads
    return needed
