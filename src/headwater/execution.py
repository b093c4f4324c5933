"""Runs statements against a log: what `ws.sql` does once a text has been read.

Each statement is one change of the log or none; a statement that fails leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater import catalog
from headwater.catalog import TopicDefinition
from headwater.clock import Clock, format_span, from_us
from headwater.errors import ConflictError, TopicExistsError, UsageError
from headwater.log.cursor import lag_of
from headwater.log.protocol import Log
from headwater.queries import statements as s
from headwater.types import TIMESTAMP, format_type, quote

if TYPE_CHECKING:
    from headwater.runtime.views import Views

ATTEMPTS_MAX = 100
"""How often an ALTER is done again because someone else changed the topic meanwhile."""


def execute(log: Log, statement: s.Statement, clock: Clock, views: Callable[[], Views]) -> pa.Table | None:
    """Run one statement; SHOW, DESCRIBE, EXPLAIN and queries give a table."""
    match statement:
        case s.CreateTopic():
            _create(log, statement)
        case s.DropTopic():
            _drop(log, statement, views)
        case s.CreateView():
            views().create(statement)
        case s.DropView():
            views().drop(statement)
        case s.ShowViews():
            return views().show()
        case s.Query(text):
            return views().query(text)
        case s.AddColumn(topic, column):
            alter(log, topic, lambda t: catalog.add_column(t, column))
        case s.WidenColumn(topic, column, kind):
            alter(log, topic, lambda t: catalog.widen_column(t, column, kind))
        case s.DropNotNull(topic, column):
            alter(log, topic, lambda t: catalog.drop_not_null(t, column))
        case s.SetOptions(topic, options):
            alter(log, topic, lambda t: catalog.alter_options(t, s.resolve(options)))
        case s.ShowTopics():
            return show_topics(log)
        case s.ShowCursors():
            return show_cursors(log, clock)
        case s.Describe(name):
            if name in log.entries("view"):
                return describe_columns(views().describe(name).columns)
            return describe(log.topic(name))
        case s.Explain(name):
            return views().explain(name) if name in log.entries("view") else explain(log, name)
        case s.ExplainQuery(query):
            return views().explain_query(query)
        case _:
            raise UsageError(
                "this version of Headwater does not have CREATE TOPIC ... AS SELECT",
                hint="create the topic, then append ws.query(...) to it",
            )
    return None


def create(log: Log, definition: TopicDefinition) -> None:
    """Create a topic, or find that it is there just so; TopicExistsError, with the difference, if it is not."""
    existing = log.topics().get(definition.name)
    if existing is None:
        try:
            log.create_topic(definition)
            return
        except TopicExistsError:  # someone was first, or a view has the name
            existing = log.topics().get(definition.name)
            if existing is None:
                raise
    if changes := catalog.difference(existing, definition):
        raise _exists(existing.name, changes, "ALTER TOPIC changes a topic that is there")


def alter(log: Log, topic: str, change: Callable[[TopicDefinition], TopicDefinition]) -> None:
    """Change a definition; done again on the newer one if someone else changes it meanwhile."""
    for attempt in range(ATTEMPTS_MAX):
        old = log.topic(topic)
        new = change(old)
        if new == old:
            return
        try:
            log.alter_topic(old, new)
            return
        except ConflictError:
            if attempt + 1 == ATTEMPTS_MAX:
                raise


def _create(log: Log, statement: s.CreateTopic) -> None:
    definition = statement.definition()
    existing = log.topics().get(definition.name)
    if existing is None:
        create(log, definition)
        return
    changes = catalog.difference(existing, definition)
    if statement.if_not_exists or (statement.or_replace and not changes):
        return
    if not statement.or_replace:
        hint = f"CREATE TOPIC IF NOT EXISTS {quote(definition.name)} leaves it as it is"
        raise _exists(existing.name, changes, hint)
    if any(info.rows for info in log.partitions(definition.name).values()):
        raise _exists(
            existing.name,
            changes,
            "only a topic without records is replaced; ALTER TOPIC changes one that has some",
        )
    _refuse_while_read(log, definition.name, "replaced")
    log.replace_topic(existing, definition)


def _exists(name: str, changes: list[str], hint: str) -> TopicExistsError:
    said = "and is the same" if not changes else "and differs"
    detail = "".join(f"\n    {line}" for line in changes)
    return TopicExistsError(
        f"topic {name!r} is there already {said}",
        detail=f"- is there, + is asked for{detail}" if changes else None,
        hint=hint,
        topic=name,
        difference=changes,
    )


def _drop(log: Log, statement: s.DropTopic, views: Callable[[], Views]) -> None:
    if statement.if_exists and statement.name not in log.topics():
        return
    topic = log.topic(statement.name)
    if log.entries("view"):
        views().drop_readers(topic.name, statement.cascade, "topic")
    if not statement.cascade:
        _refuse_while_read(log, statement.name, "dropped", f"DROP TOPIC {quote(statement.name)} CASCADE")
    log.drop_topic(statement.name)


def _refuse_while_read(log: Log, topic: str, what: str, hint: str | None = None) -> None:
    readers = sorted(c.name for c in log.cursors(topic))
    if readers:
        raise UsageError(
            f"topic {topic!r} cannot be {what}: it is read by {', '.join(readers)}",
            hint=f"drop the cursors first, or {hint}" if hint else "drop the cursors first",
            topic=topic,
            cursors=readers,
        )


def show_topics(log: Log) -> pa.Table:
    """SHOW TOPICS: a row per topic."""
    rows: list[dict[str, Any]] = []
    for name, topic in sorted(log.topics().items()):
        infos = log.partitions(name).values()
        appended = [i.last_appended_at for i in infos if i.last_appended_at is not None]
        rows.append(
            {
                "topic": name,
                "columns": len(topic.schema),
                "partitions": topic.partitions,
                "rows": sum(i.rows for i in infos),
                "size_bytes": sum(i.size_bytes for i in infos),
                "key": ", ".join(topic.key) or None,
                "time": topic.time,
                "cleanup": topic.cleanup,
                "retention": None if topic.retention_us is None else format_span(topic.retention_us),
                "last_appended_at": from_us(max(appended)) if appended else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=_TOPICS)


def show_cursors(log: Log, clock: Clock) -> pa.Table:
    """SHOW CURSORS: a row per cursor."""
    rows = []
    for cursor in sorted(log.cursors(), key=lambda c: (c.topic, c.name)):
        lag = lag_of(log, cursor, clock)
        group = log.group(cursor.topic, cursor.name)
        rows.append(
            {
                "topic": cursor.topic,
                "cursor": cursor.name,
                "members": len(group.members) if group else 0,
                "lag_rows": lag.rows,
                "lag_seconds": lag.seconds,
                "hold": cursor.hold,
                "lost": cursor.lost,
                "committed_at": None if cursor.committed_at is None else from_us(cursor.committed_at),
            }
        )
    return pa.Table.from_pylist(rows, schema=_CURSORS)


def describe_columns(schema: pa.Schema) -> pa.Table:
    """DESCRIBE view: a row per column."""
    rows = [{"column": f.name, "type": str(f.type), "nullable": f.nullable, "role": None} for f in schema]
    return pa.Table.from_pylist(rows, schema=_COLUMNS)


def describe(topic: TopicDefinition) -> pa.Table:
    """DESCRIBE: a row per column."""
    roles = {
        "key": topic.key,
        "partition": topic.routing,
        "time": (topic.time,),
        "version": (topic.versioned_by,),
    }
    rows = [
        {
            "column": f.name,
            "type": format_type(f.type),
            "nullable": f.nullable,
            "role": ", ".join(role for role, columns in roles.items() if f.name in columns) or None,
        }
        for f in topic.schema
    ]
    return pa.Table.from_pylist(rows, schema=_COLUMNS)


def explain(log: Log, name: str) -> pa.Table:
    """EXPLAIN: what a topic is, and what it holds."""
    topic = log.topic(name)
    facts = {"topic": topic.name, "statement": topic.to_sql(), "schema version": str(topic.schema_version)}
    for partition, info in log.partitions(name).items():
        watermark = "none" if info.watermark is None else from_us(info.watermark).isoformat()
        facts[f"partition {partition}"] = (
            f"offsets {info.first} to {info.end}, {info.rows} rows, {info.size_bytes} bytes, "
            f"{info.segments} segments, watermark {watermark}"
            + (f", {info.ahead} rows ahead" if info.ahead else "")
        )
    for cursor in log.cursors(name):
        facts[f"cursor {cursor.name}"] = ", ".join(
            f"{p}@{offset}" for p, offset in sorted(cursor.positions.items())
        )
    return pa.table({"property": list(facts), "value": list(facts.values())})


_TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("columns", pa.int32()),
        ("partitions", pa.int32()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("key", pa.string()),
        ("time", pa.string()),
        ("cleanup", pa.string()),
        ("retention", pa.string()),
        ("last_appended_at", TIMESTAMP),
    ]
)
_CURSORS = pa.schema(
    [
        ("topic", pa.string()),
        ("cursor", pa.string()),
        ("members", pa.int32()),
        ("lag_rows", pa.int64()),
        ("lag_seconds", pa.float64()),
        ("hold", pa.bool_()),
        ("lost", pa.int64()),
        ("committed_at", TIMESTAMP),
    ]
)
_COLUMNS = pa.schema(
    [("column", pa.string()), ("type", pa.string()), ("nullable", pa.bool_()), ("role", pa.string())]
)
