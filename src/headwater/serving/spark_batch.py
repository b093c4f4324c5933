"""SELECTs run in batch by Spark over the log up to a cut: the reference for `verify`, and the source of older ticks.

This module uses neither the operators nor their state: topics are read from the log, keyed topics are reduced to their
current rows, and Spark runs the SELECT of each view over its inputs.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.errors import HeadwaterError
from headwater.core.positions import Ends
from headwater.engine.collections.version_table import all_records, batch_versions
from headwater.engine.dataflow.jvm_expressions import Evaluator, conformed
from headwater.engine.dataflow.row_matches import matches_at
from headwater.log.protocol import Log
from headwater.operators.window.emit_on_close import EARLIEST
from headwater.operators.zset.delta import concat_rows
from headwater.plan.match_recognize.clause import columns_matched, is_match, matched_by
from headwater.plan.planner import analyse, pin, refuser
from headwater.plan.relations.metadata_columns import (
    EVERY,
    hidden_in,
    is_versions,
    read_records,
    table_topic,
    topic_schema,
    version_schema,
    versions_of,
    visible,
)
from headwater.plan.relations.relations import Relation, with_versions
from headwater.plan.rewrite.approximate_answers import Answers
from headwater.plan.rewrite.cumulate_window import rewritten_plan
from headwater.plan.rewrite.exact_sum_rewrite import with_exact_aggregates
from headwater.plan.rewrite.relation_names import RelationPlan
from headwater.plan.rewrite.system_versions import Unversioned, VersionedNames
from headwater.plan.rewrite.udf_registration import SessionFunctions
from headwater.plan.time.event_time import timing_of, with_policy
from headwater.plan.time.late_policy import Policy
from headwater.plan.time.session_values import with_sessions_kept
from headwater.spark.catalyst import Catalyst, Jvm, collected, output_of, plain_type
from headwater.spark.spark_errors import evaluation_error, own_errors, unplanned
from headwater.sql import statements as s
from headwater.sql.ordered_aggregates import spark_query
from headwater.sql.system_time import may_read_versions
from headwater.udf.folds import parse_fold
from headwater.udf.udf_calls import worker_failure
from headwater.udf.udf_registry import Functions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCAL_ROWS_MAX = 200_000
"""Largest number of rows that are passed to Spark from memory; larger topics are passed as Parquet files."""
_EXCLUDED_RULES = "spark.sql.optimizer.excludedRules"
_EARLY = "org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation"
_FEW_RECORDS = 1 << 12
"""Minimum number of records to read at once: reading fewer takes as long."""


class BatchSession:
    """A Spark session in which the topics have their contents at a cut."""

    def __init__(
        self, spark: SparkSession, log: Log | None, cut: Ends, functions: Functions | None = None
    ) -> None:
        from headwater.spark.spark_session import own_session

        self._spark = own_session(spark)
        self._spark.conf.set("spark.sql.runSQLOnFiles", "false")  # only topics and views can be read
        # This rule evaluates expressions over in-memory rows before filters are pushed down to them: also on rows that a
        # join excludes because of a NULL key, where an expression may fail. Over files, and in views, such rows are
        # filtered out first.
        self._spark.conf.set(_EXCLUDED_RULES, _EARLY)
        self._catalyst = Catalyst(self._spark)
        self._functions = (
            None if functions is None else SessionFunctions(self._catalyst, functions, runs=True)
        )
        self._log = log
        self._cut = cut
        self._scratch = tempfile.TemporaryDirectory(prefix="headwater-")
        self._known: set[str] = set()
        self._tables: dict[str, pa.Table] = {}
        self._opened: dict[str, RelationPlan] = {}
        self.unversioned: dict[str, Unversioned] = {}
        """Reason why a relation has no versions, by its name."""
        self._every: dict[str, RelationPlan] = {}
        self._changelogs: dict[str, Jvm] = {}
        self._evaluator: Evaluator | None = None
        self._watermarks: Mapping[str, int] = {}

    def close(self) -> None:
        """Remove the files that were written for Spark."""
        self._scratch.cleanup()

    @own_errors(unplanned)
    def view(self, definition: ViewDefinition, answers: Answers = "approximate") -> DataFrame:
        """Return a view as a DataFrame, and register it for the views above it. The views that it reads must be registered.
        `answers` selects the answers of approximate functions."""
        for name in definition.reads:
            if name not in self._known:
                self.topic(name, definition.inputs[name], hidden_in(definition.query))
                if (
                    self._log is not None
                    and self._log.topic(name).key
                    and may_read_versions(definition.query)
                ):
                    self.versions(name, definition.inputs[name])
        return self._viewed(
            definition, self._apart(definition, self.query(definition.query, answers=answers))
        )

    @own_errors(unplanned)
    def timed_view(
        self,
        definition: ViewDefinition,
        relations: Mapping[str, Relation],
        watermarks: Mapping[str, int],
        answers: Answers = "approximate",
    ) -> tuple[DataFrame, list[tuple[str, DataFrame]]]:
        """Return a view that drops late rows, or emits only final rows, as a DataFrame at these watermarks of topics, and
        by topic the rows that may be late, as `with_policy` reports them. All relations that the view reads must be
        registered."""
        query, policy = s.QueryText(definition.query), Policy.of(definition)
        names = self._names(query, {n: self._every[n] for n in definition.reads})
        plan = pin(self._catalyst, query, self._functions, names, answers)
        timing = timing_of(
            self._catalyst, with_versions(relations), refuser(query), policy, self._changelogs.__getitem__
        )
        timed = with_policy(timing, plan)
        self._watermarks = watermarks
        frame = self._apart(definition, self._planned(timed.plan))
        if policy.emits:
            levels = [min(watermarks.get(topic, EARLIEST) for topic in topics) for topics in timed.domains]
            frame = _final(frame, definition.columns.names, levels)
        late = [(part.topic, self._planned(part.plan)) for part in timed.late]
        return self._viewed(definition, frame), late

    def _names(self, query: s.QueryText, opened: Mapping[str, RelationPlan]) -> VersionedNames:
        dotted = [name for name in self._known if "." in name]
        known: dict[str, RelationPlan | Unversioned] = {}
        if may_read_versions(query.text):
            known |= self.unversioned
            known |= {table_topic(name): self._opened[name] for name in self._opened if is_versions(name)}
        return VersionedNames(self._catalyst, opened, dotted, known, spark_query(query.text), refuser(query))

    def _apart(self, definition: ViewDefinition, frame: DataFrame) -> DataFrame:
        """Materialize the rows of a view with session windows: Spark would push a filter on a session, even one of another
        view, below the session aggregation, and would merge sessions that another view groups by into new ones."""
        if "session_window" not in definition.query.lower():
            return frame
        return self._frame(free_table(frame.toDF(*(f"column {i}" for i in range(len(frame.columns))))))

    def _viewed(self, definition: ViewDefinition, frame: DataFrame) -> DataFrame:
        frame = frame.toDF(*definition.columns.names)
        frame.createOrReplaceTempView(definition.name)
        self._every[definition.name] = RelationPlan(
            frame._jdf.queryExecution().analyzed(), len(definition.columns)
        )
        self._known.add(definition.name)
        return frame

    def _planned(self, plan: Jvm, *, is_view: bool = True) -> DataFrame:
        from pyspark.sql.classic.dataframe import DataFrame as Classic

        known = self._functions
        plan = plan if known is None else known.collected(plan)
        if self._catalyst.matches:
            plan = rewritten_plan(self._catalyst, plan, self._with_matches)
        plan = with_sessions_kept(self._catalyst, plan).plan
        if is_view:
            plan = with_exact_aggregates(self._catalyst, plan)
        return Classic(self._catalyst.dataset(plan), self._spark)

    def _with_matches(self, plan: Jvm) -> Jvm:
        """Return a plan node; MATCH_RECOGNIZE is replaced by the matches in all rows of its input, which are computed here."""
        if not is_match(plan):
            return plan
        c = self._catalyst
        if self._evaluator is None:
            self._evaluator = Evaluator(c)
        matching = matched_by(plan, c)
        rows = self._planned(c.plans.Project(c.seq(columns_matched(plan)), plan.child()))
        given = as_table(rows, matching.spec.schema).combine_chunks()
        made = matches_at(
            matching, self._evaluator, concat_rows(given.to_batches(), given.schema), self._watermarks
        )
        found = self._frame(pa.Table.from_batches([made]))._jdf.queryExecution().analyzed()
        named = [
            c.alias(c.cast(own, like.dataType()), like.name(), like=like)
            for own, like in zip(output_of(found), output_of(plan), strict=True)
        ]
        return c.plans.Project(c.seq(named), found)

    @own_errors(unplanned)
    def query(self, text: str, *, pinned: bool = True, answers: Answers = "approximate") -> DataFrame:
        """Return a query as a DataFrame; with `pinned`, choices that Spark leaves open are fixed as they are in views."""
        known = self._functions
        if known is not None and (fold := parse_fold(text)) is not None:
            return self._frame(known.folded(fold, self._tables[fold.topic]))
        query = s.QueryText(text)
        names = self._names(query, self._opened if hidden_in(text) else {})
        if pinned:
            plan = pin(self._catalyst, query, known, names, answers)
        else:
            plan = analyse(self._catalyst, query, known, names).queryExecution().analyzed()
        return self._planned(plan, is_view=pinned)

    def topic(self, name: str, columns: Sequence[str] | None = None, hidden: Sequence[str] = ()) -> None:
        """Register a topic's rows at the cut under its name; for a keyed topic, its current rows.

        `hidden` lists the metadata columns to include, which queries can then name.
        """
        assert self._log is not None
        topic = self._log.topic(name)
        rows = current_rows(self._log, topic, self._cut.get(topic.name), hidden)
        if columns is not None:
            known = visible(rows.schema)
            rows = rows.select([*columns, *(n for n in rows.schema.names if n not in known)])
        self.register(name, rows)

    def versions(self, name: str, columns: Sequence[str]) -> None:
        """Register the row versions of a keyed topic at the cut, with these columns and all metadata columns."""
        assert self._log is not None
        topic = self._log.topic(name)
        rows = self.version_rows(all_records(self._log, topic, self._cut.get(topic.name)), topic)
        schema = version_schema(topic, columns)
        self.register(versions_of(topic.name), rows.select(schema.names).cast(schema))

    def changelog(self, name: str, records: pa.RecordBatch, columns: Sequence[str]) -> None:
        """Register records of a keyed topic, with all metadata columns, as the input from which views that drop late rows
        derive versions.

        `columns` are the topic's columns that such a view reads.
        """
        hidden = [name for name in EVERY.names if name in records.schema.names and name not in columns]
        rows = pa.Table.from_batches([records]).select([*columns, *hidden])
        self._changelogs[name] = self._frame(rows)._jdf.queryExecution().analyzed()

    def version_rows(self, records: pa.RecordBatch, topic: TopicDefinition) -> pa.Table:
        """Compute by Spark the versions of a topic's rows from all of its records."""
        versions = batch_versions(self._frame(pa.Table.from_batches([records])), topic)
        return as_table(versions, version_schema(topic))

    @own_errors(evaluation_error)
    def register(self, name: str, rows: pa.Table) -> None:
        """Register a table under a name; columns that are marked as metadata columns are its last."""
        frame, shown = self._frame(rows), visible(rows.schema)
        self._opened.pop(name, None)
        self._every[name] = RelationPlan(frame._jdf.queryExecution().analyzed(), len(shown))
        if len(shown) < len(rows.schema):
            self._opened[name] = self._every[name]
            frame = frame.select(*(f"`{column}`" for column in shown))
        frame.createOrReplaceTempView(f"`{name}`")
        self._known.add(name)
        self._tables[name] = rows

    def _frame(self, rows: pa.Table) -> DataFrame:
        if rows.num_rows <= LOCAL_ROWS_MAX:
            schema = pa.schema([pa.field(f.name, plain_type(f.type)) for f in rows.schema])
            typed = [conformed(rows.column(i), f.type) for i, f in enumerate(schema)]
            return self._spark.createDataFrame(pa.Table.from_arrays(typed, schema=schema))
        path = Path(self._scratch.name) / f"{len(self._known)}.parquet"
        pq.write_table(rows, path, row_group_size=1 << 18)
        return self._spark.read.parquet(str(path))


def _final(frame: DataFrame, names: Sequence[str], levels: Sequence[int]) -> DataFrame:
    """Return the rows that are final at some watermarks, by the last two columns, which are dropped."""
    columns = [f"shown {i}" for i in range(len(names))]
    reached = " OR ".join(f"(`domain` = {i} AND `close` <= {level})" for i, level in enumerate(levels))
    final = frame.toDF(*columns, "close", "domain").where(f"`close` IS NULL OR {reached or 'false'}")
    return final.select(*(f"`{column}`" for column in columns))


def current_rows(
    log: Log,
    topic: TopicDefinition,
    ends: Mapping[int, int] | None,
    hidden: Sequence[str] = (),
    first: int | None = None,
) -> pa.Table:
    """Return the rows of a topic at a cut: all records, or of a keyed topic the last of each key that is not a tombstone.

    `hidden` lists the metadata columns to include, where the topic has them. With `first`, a topic without a key is read
    only as far as needed for that many rows.
    """
    infos = log.partitions(topic.name)
    schema = topic_schema(topic, hidden)
    columns = list(dict.fromkeys([*schema.names, "_op"])) if topic.key else schema.names
    tables: list[pa.Table] = []
    for partition, info in sorted(infos.items()):
        end = info.end if ends is None else ends.get(partition, info.first)
        if info.first >= end:
            continue
        read = partial(read_records, log, topic.name, partition, columns=columns)
        if topic.key or first is None:
            batches = list(read(span=(info.first, end)))
        else:
            batches = _with_rows(read, info.first, end, first - sum(map(len, tables)))
        if batches:
            rows = concat_rows(batches, batches[0].schema)
            tables.append(_latest(rows, topic) if topic.key else pa.Table.from_batches([rows]))
    if not tables:
        return schema.empty_table()
    return pa.concat_tables(tables).select(schema.names).cast(schema)


def _with_rows(
    read: Callable[..., Iterable[pa.RecordBatch]], start: int, end: int, count: int
) -> list[pa.RecordBatch]:
    """Return the first records between two positions, at least `count` if there are that many; offsets may have gaps."""
    found: list[pa.RecordBatch] = []
    width = max(count, _FEW_RECORDS)
    while start < end and sum(map(len, found)) < count:
        found += read(span=(start, min(end, start + width)))
        start, width = start + width, 2 * width
    return found


def _latest(rows: pa.RecordBatch, topic: TopicDefinition) -> pa.Table:
    """Return the last record of each key; a key has one partition, so partitions are reduced separately."""
    numbered = pa.Table.from_batches([rows]).append_column("_n", pa.array(np.arange(rows.num_rows)))
    keys = list(topic.key)
    last = numbered.group_by(keys).aggregate([("_n", "max")]).column("_n_max")
    kept = numbered.take(last)
    return kept.filter(pc.not_equal(kept.column("_op"), "delete"))


def as_table(frame: DataFrame, schema: pa.Schema) -> pa.Table:
    """Return a DataFrame as an Arrow table of exactly this schema."""
    with own_errors(_failure):
        table = collected(frame)
        columns = [conformed(table.column(i), f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def free_table(frame: DataFrame) -> pa.Table:
    """Return a DataFrame as an Arrow table, with Headwater's Arrow types for its Spark types; errors of the run are
    translated."""
    with own_errors(_failure):
        table = collected(frame)
        schema = pa.schema([pa.field(f.name, plain_type(f.type)) for f in table.schema])
        columns = [conformed(table.column(i), f.type) for i, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def _failure(error: Exception) -> HeadwaterError:
    return worker_failure(str(error)) or evaluation_error(error)
