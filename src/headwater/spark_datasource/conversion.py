"""Converts schemas and batches between Headwater and Spark: the columns of a read or write, their types, and batches
cast to them."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import StructField, StructType

from headwater.catalog.definitions import METADATA_COLUMNS, TopicDefinition
from headwater.catalog.rules import FORGOTTEN
from headwater.catalog.view_definitions import VIEW_METADATA_COLUMNS
from headwater.core.errors import HeadwaterError, SchemaError, UsageError
from headwater.core.types import TIMESTAMP, format_type
from headwater.spark_datasource.options import ReadSettings, ViewSettings
from headwater.state.view_reader import changes_schema

METADATA = ("_partition", "_offset", "_appended_at")
"""Columns that the option `metadata` adds to a read. A keyed topic's `_op` is always included."""

_HIDDEN_TYPES = {
    "_partition": pa.int32(),
    "_offset": pa.int64(),
    "_appended_at": TIMESTAMP,
    "_op": pa.string(),
    "_watermark": TIMESTAMP,
    "_sequence": pa.int64(),
    "_version": pa.int64(),
    FORGOTTEN: pa.bool_(),
}


def spark_schema(topic: TopicDefinition, settings: ReadSettings) -> StructType:
    """Return the columns of a read. All are nullable: a tombstone has only its key, and NOT NULL may be dropped later."""
    own = (*topic.schema.names, *(("_op",) if topic.keyed else ()))
    names = tuple(_find(topic, name) for name in settings.columns) if settings.columns else own
    if settings.metadata:
        names = (*names, *(name for name in METADATA if name not in names))
    return StructType([StructField(name, from_arrow_type(column_type(topic, name))) for name in names])


def column_type(topic: TopicDefinition, name: str) -> pa.DataType:
    """Return the type of a column of the topic, or of a metadata column."""
    if name in METADATA_COLUMNS or (name == FORGOTTEN and topic.private):
        return _HIDDEN_TYPES[name]
    declared = topic.schema if name in topic.schema.names else topic.source_columns
    return declared.field(name).type


def arrow_schema(schema: StructType, topic: TopicDefinition) -> pa.Schema:
    """Return the schema of batches for Spark; UsageError if the topic cannot be read with the requested schema."""
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        name = _find(topic, field.name)
        actual = _plain(column_type(topic, name))
        if name != field.name or _requested_type(field) != actual or not field.nullable:
            raise UsageError(
                f"column {field.name!r} of topic {topic.name!r} is read as {name} {actual}, not as "
                f"{field.name} {_requested_type(field)}{'' if field.nullable else ' NOT NULL'}",
                hint="omit the schema, or cast after reading",
                topic=topic.name,
                column=field.name,
                reason="other-type",
            )
    return wanted


def view_schema(settings: ViewSettings) -> StructType:
    """Return the columns of a read of a view; a read of changes adds `_weight` and `_tick`."""
    columns = _view_columns(settings)
    chosen = columns.names
    if settings.columns:
        extra = [name for name in VIEW_METADATA_COLUMNS if settings.changes and name not in settings.columns]
        chosen = [_column(columns, name, settings.place.view).name for name in (*settings.columns, *extra)]
    return StructType([StructField(name, from_arrow_type(columns.field(name).type)) for name in chosen])


def view_arrow_schema(schema: StructType, settings: ViewSettings) -> pa.Schema:
    """Return the schema of batches for Spark; UsageError if the view cannot be read with the requested schema."""
    columns, view = _view_columns(settings), settings.place.view
    wanted = to_arrow_schema(schema, timezone="UTC")
    for field in wanted:
        own = _column(columns, field.name, view)
        known = to_arrow_schema(
            StructType([StructField(own.name, from_arrow_type(own.type))]), timezone="UTC"
        )
        if not known.field(0).equals(field):
            raise UsageError(
                f"column {field.name!r} of view {view!r} is read as {own.name} {own.type}, not as {field}",
                hint="omit the schema, or cast after reading",
                view=view,
                column=field.name,
                reason="other-type",
            )
    return wanted


def _view_columns(settings: ViewSettings) -> pa.Schema:
    """Return the columns of the view, or of its changes if these are read."""
    columns = settings.place.definition().columns
    return changes_schema(columns) if settings.changes else columns


def _column(columns: pa.Schema, name: str, view: str) -> pa.Field:
    for field in columns:
        if field.name.lower() == name.lower():
            return field
    raise UsageError(
        f"view {view!r} has no column {name!r}",
        hint=f"its columns are {', '.join(columns.names)}",
        view=view,
        column=name,
        reason="no-such-column",
    )


def to_spark(batch: pa.RecordBatch, wanted: pa.Schema, topic: str) -> pa.RecordBatch:
    """Return a batch cast to exactly these types, as Spark expects."""
    if batch.schema.equals(wanted):
        return batch
    columns = []
    for field, column in zip(wanted, batch.columns, strict=True):
        try:
            columns.append(column if column.type.equals(field.type) else column.cast(field.type))
        except pa.ArrowException as error:
            raise SchemaError(
                f"column {field.name!r} of topic {topic!r} no longer fits {format_type(field.type)}",
                detail=f"the topic was altered after the query started: {error}",
                hint="restart the query from the same checkpoint",
                topic=topic,
                column=field.name,
                expected=format_type(field.type),
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def written_names(schema: StructType, topic: TopicDefinition) -> list[str]:
    """Return the topic's names of the columns to write; as in Spark, case is ignored."""
    known = {name.lower(): name for name in (*topic.schema.names, *(("_op",) if topic.keyed else ()))}
    for name in schema.names:
        if name.lower() not in known:
            drop = [n for n in schema.names if n in METADATA_COLUMNS and n.lower() not in known]
            raise UsageError(
                f"topic {topic.name!r} has no column {name!r} to write to",
                hint=f"drop the metadata columns: df.drop({', '.join(map(repr, drop))})"
                if name in drop
                else f"its columns are {', '.join(known.values())}; ALTER TOPIC {topic.name} ADD COLUMN adds one",
                topic=topic.name,
                column=name,
            )
    return [known[name.lower()] for name in schema.names]


def _find(topic: TopicDefinition, name: str) -> str:
    lacks = {"_op"} if not topic.keyed else set()
    if topic.versioned_by is None:
        lacks.add("_version")
    hidden = [name for name in METADATA_COLUMNS if name not in lacks] + ([FORGOTTEN] if topic.private else [])
    known = [*topic.schema.names, *hidden, *topic.source_columns.names]
    for each in known:
        if each.lower() == name.lower():
            return str(each)
    raise UsageError(
        f"topic {topic.name!r} has no column {name!r}",
        hint=f"its columns are {', '.join(known)}",
        topic=topic.name,
        column=name,
        reason="no-such-column",
    )


def _requested_type(field: pa.Field) -> str:
    try:
        return _plain(field.type)
    except HeadwaterError:
        return str(field.type)


def _plain(kind: pa.DataType) -> str:
    """Return a type as text, without NOT NULL in its parts."""
    return format_type(kind).replace(" NOT NULL", "")
