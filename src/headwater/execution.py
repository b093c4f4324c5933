"""Executes parsed SQL statements against a log, for `ws.sql`.

Each statement is at most one change of the log; a statement that fails changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater.catalog import definitions as catalog
from headwater.catalog.connectors import ALERT, SINK, SOURCE
from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.time_options import STORED
from headwater.core.clock import Clock, format_span, from_us
from headwater.core.errors import (
    ConflictError,
    HeadwaterError,
    SchemaError,
    StatementError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
    ViewNotFoundError,
)
from headwater.core.extras import require
from headwater.core.types import TIMESTAMP, format_type, quote
from headwater.log.append_rows import stage_rows
from headwater.log.cursor import lag_of
from headwater.log.protocol import Log, Producer
from headwater.log.topic_names import check_alterable, check_new
from headwater.queues.queue_ddl import drop_queue, queues_on
from headwater.sql import statements as s
from headwater.sql.lexer import words_of
from headwater.sql.standing_statements import QUERIES, parse_standing

if TYPE_CHECKING:
    from headwater.connectors.supervisor import Supervisor
    from headwater.views.view_manager import Views

ATTEMPTS_MAX = 100
"""Attempts of an ALTER when other processes change the topic at the same time."""
COPY = "copy"
"""Kind of the catalog entries that mark topics being filled by CREATE TOPIC ... AS."""


@dataclass(frozen=True)
class ExecutionContext:
    """The log, views and connectors that statements run against. Views and connectors are opened by the first statement
    to need them."""

    log: Log
    clock: Clock
    views: Callable[[], Views]
    supervisor: Callable[[], Supervisor]


def execute(
    log: Log,
    statement: s.Statement,
    clock: Clock,
    views: Callable[[], Views],
    supervisor: Callable[[], Supervisor],
) -> pa.Table | None:
    """Run one statement; SHOW, DESCRIBE, EXPLAIN and queries return a table, others None."""
    if isinstance(statement, s.ConnectorStatement):
        return supervisor().execute(statement)
    try:
        return _HANDLERS[type(statement)](ExecutionContext(log, clock, views, supervisor), statement)
    except TopicNotFoundError as error:
        raise _about_views(log, statement, error, views) from None


def _about_views(
    log: Log, statement: s.Statement, error: TopicNotFoundError, views: Callable[[], Views]
) -> HeadwaterError:
    """Return the error for a missing topic; its hint names the view of that name, or relations with similar names."""
    name = str(error.facts.get("topic"))
    if name in log.entries("view"):
        hint = f"{name} is a view" + (
            f": DROP VIEW {quote(name)}" if isinstance(statement, s.DropTopic) else ""
        )
        return TopicNotFoundError(error.message, hint=hint, **error.facts)
    if isinstance(statement, (s.Describe, s.Explain)) and log.entries("view"):
        return views().names.no_relation(name)
    return error


# --- views ---------------------------------------------------------------------------------------------------------


def _create_view(on: ExecutionContext, statement: s.CreateView) -> None:
    _refuse_plain_replacement(on, statement)
    on.views().declarations.create(statement)


def _drop_view(on: ExecutionContext, statement: s.DropView) -> None:
    _refuse_standing(on.log, statement)
    _drop_sinks_and_alerts(on, statement)
    on.views().declarations.drop(statement)


def _show_views(on: ExecutionContext, statement: s.ShowViews) -> pa.Table:
    return on.views().reports.show()


def _query(on: ExecutionContext, statement: s.QueryText) -> pa.Table:
    return on.views().reads.query(statement.text)


def _refuse_standing(log: Log, statement: s.DropView) -> None:
    """Raise UsageError for DROP VIEW of a standing query's view, which only DROP STANDING QUERY drops."""
    found = log.entries("view").get(statement.name)
    if found is not None and parse_standing(found.document["query"]) is not None:
        raise UsageError(
            f"view {found.name!r} belongs to a standing query, and is dropped with it",
            hint=f"DROP STANDING QUERY {quote(found.name)}",
            view=found.name,
        )


def _create_standing(on: ExecutionContext, statement: s.CreateStanding) -> None:
    """Create the topic that stores the queries, and the view of their matches."""
    log = on.log
    if statement.if_not_exists and statement.name in log.entries("view"):
        return
    standing = statement.standing
    require("search", f"standing query {statement.name!r}")
    documents = log.topic(standing.topic)  # fails here, before anything is created, if the topic is missing
    standing = dataclasses.replace(standing, topic=documents.name)
    queries = catalog.define_topic(standing.queries, QUERIES, key=("id",))
    made = queries.name not in log.topics()
    if made:
        create(log, queries)
    query = s.QueryText(standing.sql, 0, standing.sql)
    try:
        on.views().declarations.create(
            s.CreateView(
                statement.name,
                query,
                options={"on_error": "divert"},
                if_not_exists=statement.if_not_exists,
                or_replace=statement.or_replace,
            )
        )
    except BaseException:
        if made and not any(info.end for info in log.partitions(queries.name).values()):
            log.drop_topic(queries.name)
        raise


def _drop_standing(on: ExecutionContext, statement: s.DropStanding) -> None:
    """Drop the view of a standing query, and the topic of its stored queries unless that has other readers."""
    from headwater.views.standing_queries import find_standing

    try:
        name, standing = find_standing(on.log, statement.name)
    except ViewNotFoundError:
        if statement.if_exists:
            return
        raise
    drop = s.DropView(name, cascade=statement.cascade)
    _drop_sinks_and_alerts(on, drop)
    on.views().declarations.drop(drop)
    _drop_stored(on, standing.queries)


def _show_standing(on: ExecutionContext, statement: s.ShowStanding) -> pa.Table:
    from headwater.views.standing_queries import show_standing

    return show_standing(on.log)


def _drop_stored(on: ExecutionContext, queries: str) -> None:
    """Drop the stored queries of a dropped view, unless their topic has other readers."""
    with contextlib.suppress(UsageError, ConflictError):
        _drop_topic(on, s.DropTopic(queries, if_exists=True))


def _drop_sinks_and_alerts(on: ExecutionContext, statement: s.DropView) -> None:
    """Drop the sinks and alerts on a view, and on the views that read it, if `cascade` is given; otherwise raise
    UsageError for them."""
    if not on.log.entries(SINK) and not on.log.entries(ALERT):
        return
    gone = [statement.name]
    if statement.cascade:
        from headwater.engine.collections.dependencies import above

        gone = above(on.log, statement.name)
    sinks = [name for view in gone for name in on.supervisor().sinks.of_view(view)]
    alerts = [name for view in gone for name in on.supervisor().alerts.of_view(view)]
    for kind, readers in (("sink", sinks), ("alert", alerts)):
        if readers and not statement.cascade:
            facts: dict[str, Any] = {"view": statement.name, f"{kind}s": readers}
            raise UsageError(
                f"view {statement.name!r} cannot be dropped: it is read by {kind} {', '.join(readers)}",
                hint=f"DROP {kind.upper()} {quote(readers[0])} first, or DROP VIEW {quote(statement.name)} CASCADE",
                **facts,
            )
    for name in sinks:
        on.supervisor().execute(s.DropSink(name, if_exists=True))
    for name in alerts:
        on.supervisor().execute(s.DropAlert(name, if_exists=True))


def create(log: Log, definition: TopicDefinition) -> None:
    """Create a topic, or accept an existing one with an equal definition; TopicExistsError, with the difference, for
    another."""
    check_new(definition)
    existing = log.topics().get(definition.name)
    if existing is None:
        try:
            log.create_topic(definition)
            return
        except TopicExistsError:  # another process created it first, or a view has the name
            existing = log.topics().get(definition.name)
            if existing is None:
                raise
    if changes := catalog.difference(existing, definition):
        raise _exists(existing.name, changes, "ALTER TOPIC changes an existing topic")


def _add_column(on: ExecutionContext, statement: s.AddColumn) -> None:
    try:
        alter(on.log, statement.topic, lambda t: catalog.add_column(t, statement.column, statement.subject))
    except SchemaError as error:
        if statement.private_at is None or error.facts.get("private") != statement.column.name:
            raise
        raise statement.private_at.pointed(error) from None


def alter(log: Log, topic: str, change: Callable[[TopicDefinition], TopicDefinition]) -> None:
    """Change the definition of a topic; repeated on the newer definition if another process changes it at the same time."""
    for attempt in range(ATTEMPTS_MAX):
        old = log.topic(topic)
        check_alterable(old)
        new = change(old)
        if new == old:
            return
        try:
            log.alter_topic(old, new)
            return
        except ConflictError:
            if attempt + 1 == ATTEMPTS_MAX:
                raise


def _widen_column(on: ExecutionContext, statement: s.WidenColumn) -> None:
    def change(topic: TopicDefinition) -> TopicDefinition:
        return catalog.widen_column(topic, statement.column, statement.type)

    now = on.log.topic(statement.topic)
    wider = change(now)
    if not on.log.entries("view"):
        alter(on.log, statement.topic, change)
    else:
        on.views().declarations.widen(now, wider, lambda: alter(on.log, statement.topic, change))


def _drop_not_null(on: ExecutionContext, statement: s.DropNotNull) -> None:
    alter(on.log, statement.topic, lambda t: catalog.drop_not_null(t, statement.column))


def _accept_drop(on: ExecutionContext, statement: s.AcceptDrop) -> None:
    alter(on.log, statement.topic, lambda t: catalog.accept_drop(t, statement.column))


def _set_options(on: ExecutionContext, statement: s.SetOptions) -> None:
    log, topic = on.log, statement.topic
    if log.entries("view"):
        altered = catalog.alter_options(log.topic(topic), s.resolve(statement.options))
        on.views().declarations.refuse_losing_versions(altered)
        on.views().declarations.hold(topic)
    alter(log, topic, lambda t: catalog.alter_options(t, s.resolve(statement.options)))


def _create_topic(on: ExecutionContext, statement: s.CreateTopic) -> None:
    log = on.log
    definition = statement.definition()
    existing = log.topics().get(definition.name)
    if existing is None:
        create(log, definition)
        return
    changes = catalog.difference(existing, definition)
    if statement.if_not_exists or (statement.or_replace and not changes):
        return
    if not statement.or_replace:
        hint = f"CREATE TOPIC IF NOT EXISTS {quote(definition.name)} leaves it unchanged"
        raise _exists(existing.name, changes, hint)
    _refuse_replacing(log, existing, changes)
    log.replace_topic(existing, definition)


def _refuse_replacing(log: Log, existing: TopicDefinition, changes: list[str]) -> None:
    if any(info.rows for info in log.partitions(existing.name).values()):
        raise _exists(
            existing.name,
            changes,
            "only a topic without records can be replaced; ALTER TOPIC changes one with records",
        )
    _refuse_while_read(log, existing.name, "replaced")


def _create_topic_as(on: ExecutionContext, statement: s.CreateTopicAs) -> None:
    """Create a topic and append the rows of a query, which become visible together.

    The topic must exist before rows can be staged for it, so a catalog entry marks it as being filled. If this process
    dies before the rows are committed, the same statement, run again, finds the empty topic and the entry, and
    continues. The append has the topic's incarnation as its producer, so the rows are appended at most once.
    """
    log, name = on.log, statement.name
    unfinished = log.entries(COPY).get(name)
    existing = log.topics().get(name)
    if existing is not None and unfinished is None and statement.if_not_exists:
        return
    private = _private_in_copy(on, statement)
    rows = on.views().reads.rows(statement.query)
    definition = statement.definition(rows.schema, private=private)
    check_new(definition)
    changes = catalog.difference(existing, definition) if existing is not None else []
    if existing is not None and unfinished is None and not statement.or_replace:
        raise _exists(existing.name, changes, f"CREATE TOPIC IF NOT EXISTS {quote(name)} leaves it unchanged")
    if existing is not None and (changes or unfinished is None):
        _refuse_replacing(log, existing, changes)
    if unfinished is None:
        log.put_entry(COPY, name, {}, expect=None)
    made: TopicDefinition | None = None
    try:
        if existing is None:
            log.create_topic(definition)
        elif changes or unfinished is None:
            log.replace_topic(existing, definition)
        made = log.topic(name)
        _fill(log, made, rows.batches)
    except BaseException:
        _undo(log, made, existing if unfinished is None else None)
        _finish(log, name)
        raise
    _finish(log, name)


def _refuse_plain_replacement(on: ExecutionContext, statement: s.CreateView) -> None:
    if statement.or_replace and on.log.entries(SINK) and statement.name in on.log.entries("view"):
        from headwater.connectors.manage.sink_private_copies import refuse_plain_replacement

        refuse_plain_replacement(on.log, on.views(), on.views().declarations.define(statement))


def _private_in_copy(on: ExecutionContext, statement: s.CreateTopicAs) -> Mapping[str, str]:
    """Return the columns of the copy that are derived from private ones, each with the column that names its subject.
    UsageError if no column names the subject: the copy would be unencrypted, and forgetting would not reach it."""
    from headwater.engine.collections.dependencies import private_below

    words = sorted({word.text for word in words_of(statement.query.text) if word.is_name})
    hides = next(
        ((name, topic) for name in words if (topic := private_below(on.log, name)) is not None), None
    )
    if hides is None:
        return {}
    from headwater.views.private_copies import copied_by_query

    why, remedy = f"{hides[1]} has private columns", None
    try:
        copied = copied_by_query(on.log, on.views().tools().catalog, statement.query, statement.columns.key)
    except StatementError:  # the query may still run once, but its columns are not traced
        copied = None
    if copied is not None:
        untraced = [one for one in copied if one.by is None]
        if not untraced:
            return {one.column: one.by for one in copied if one.by is not None}
        why, remedy = untraced[0].why, untraced[0].remedy
    made = f"CREATE TOPIC {quote(statement.name)} (...) with columns PRIVATE BY the subject, and append the rows of a query"
    raise UsageError(
        f"topic {statement.name!r} would be an unencrypted copy of {hides[0]}: {why}",
        hint=made if remedy is None else f"{remedy}; or {made}",
        topic=statement.name,
    )


def _fill(log: Log, topic: TopicDefinition, batches: Iterator[pa.RecordBatch]) -> None:
    first = next(batches, None)
    if first is None:
        return
    stage = log.stage()
    try:
        stage_rows(stage, itertools.chain([first], batches), topic)
        stage.commit(producer=Producer(f"{COPY}:{topic.name}:{topic.incarnation}", 0, exact=False))
    except BaseException:
        stage.abort()
        raise


def _undo(log: Log, made: TopicDefinition | None, before: TopicDefinition | None) -> None:
    """Remove a topic that could not be filled, unless another process has written to it or reads it."""
    if made is None:
        return
    with contextlib.suppress(ConflictError, TopicNotFoundError):
        if before is not None:
            log.replace_topic(made, before)
        elif not any(info.end for info in log.partitions(made.name).values()) and not log.cursors(made.name):
            log.drop_topic(made.name)


def _finish(log: Log, name: str) -> None:
    """Remove the mark that a topic is being filled."""
    with contextlib.suppress(ConflictError):  # a concurrent run of the same statement removed it
        log.drop_entry(COPY, name)


def _exists(name: str, changes: list[str], hint: str) -> TopicExistsError:
    said = "with the same definition" if not changes else "with another definition"
    detail = "".join(f"\n    {line}" for line in changes)
    return TopicExistsError(
        f"topic {name!r} already exists {said}",
        detail=f"- existing, + requested{detail}" if changes else None,
        hint=hint,
        topic=name,
        difference=changes,
    )


def _drop_topic(on: ExecutionContext, statement: s.DropTopic) -> None:
    log = on.log
    if statement.if_exists and statement.name not in log.topics():
        return
    topic = log.topic(statement.name)
    check_alterable(topic)
    stored: list[str] = []
    if log.entries("view"):
        stored = _stored_for(log, topic.name) if statement.cascade else []
        on.views().declarations.drop_readers(topic.name, statement.cascade, "topic")
    if not statement.cascade:
        _refuse_while_read(log, statement.name, "dropped", f"DROP TOPIC {quote(statement.name)} CASCADE")
    for queue in queues_on(log, topic.name):
        drop_queue(log, queue)
    log.drop_topic(statement.name)
    for queries in stored:
        _drop_stored(on, queries)
    if topic.name in log.entries(COPY):
        _finish(log, topic.name)


def _stored_for(log: Log, topic: str) -> list[str]:
    """Return the topics of stored queries that match the records of a topic."""
    from headwater.engine.collections.workload import definitions

    known = [parse_standing(view.query) for view in definitions(log).values()]
    return sorted({one.queries for one in known if one is not None and one.topic == topic})


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
    """Return the result of SHOW TOPICS: a row per topic."""
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
                "watermark": _lowest([i.watermark for i in infos]),
                "ahead": sum(i.ahead for i in infos),
                "cleanup": topic.cleanup,
                "retention": None if topic.retention_us is None else format_span(topic.retention_us),
                "last_appended_at": from_us(max(appended)) if appended else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=_TOPICS)


def _lowest(watermarks: list[int | None]) -> datetime | None:
    """Return the watermark of a topic: the lowest of its partitions; None while a partition has none."""
    known = [watermark for watermark in watermarks if watermark is not None]
    return from_us(min(known)) if known and len(known) == len(watermarks) else None


def show_cursors(log: Log, clock: Clock) -> pa.Table:
    """Return the result of SHOW CURSORS: a row per cursor."""
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
    """Return the result of DESCRIBE for a view: a row per column."""
    rows = [{"column": f.name, "type": str(f.type), "nullable": f.nullable, "role": None} for f in schema]
    return pa.Table.from_pylist(rows, schema=_COLUMNS)


def describe(topic: TopicDefinition) -> pa.Table:
    """Return the result of DESCRIBE for a topic: a row per column."""
    roles = {
        "key": topic.key,
        "partition": topic.routing,
        "time": (topic.time,),
        "version": (topic.versioned_by,),
        "clock": (topic.clock,),
        "occurred": (topic.occurred,),
        "sent": (topic.sent,),
        "filled by the log": STORED.names if topic.clock is not None else (),
        "dropped at its source": [one.column for one in topic.dropped],
        "private": [column for column, _ in topic.private],
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
    """Return the result of EXPLAIN for a topic: its definition, partitions and cursors, as properties."""
    topic = log.topic(name)
    facts = {"topic": topic.name, "statement": topic.to_sql(), "schema version": str(topic.schema_version)}
    facts |= _time_facts(log, topic)
    if topic.captured_by is not None:
        facts["captured by"] = f"source {topic.captured_by}"
    for one in topic.dropped:
        goes_on = "views continue with NULL" if one.accepted else "views that read it are stopped"
        facts[f"dropped column {one.column}"] = f"{one.change}; {goes_on}"
    if name in log.entries(COPY):
        facts["unfinished"] = "CREATE TOPIC ... AS did not finish: run it again, or DROP TOPIC"
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


def _time_facts(log: Log, topic: TopicDefinition) -> dict[str, str]:
    """Return how the watermark of a topic advances, the watermarks of its producers, and its clock correction."""
    facts: dict[str, str] = {}
    if topic.time is not None and topic.watermark == "producers":
        facts["watermark"] = f"the lowest that its producers declare for {topic.time}"
    elif topic.time is not None:
        facts["watermark"] = f"{topic.time} minus {format_span(topic.lateness_us)}"
    bounds = {
        "max_ahead": "rows further ahead of their append time do not raise the watermark",
        "idle_after": "a running engine advances an idle partition",
        "producer_timeout": "a running engine retires an idle producer",
    }
    for option, meaning in bounds.items():
        if (span := getattr(topic, f"{option}_us")) is not None:
            facts[option] = f"{format_span(span)}: {meaning}"
    if topic.clock is not None:
        facts["clock"] = f"of {topic.clock}: {topic.occurred} and {topic.sent} give {', '.join(STORED.names)}"
    for producer, watermark in sorted(log.producer_watermarks(topic.name).items()):
        said = (
            "no watermark declared yet, which holds back that of the topic"
            if watermark.moment is None
            else f"declared {from_us(watermark.moment).isoformat()}"
        )
        facts[f"producer {producer}"] = (
            f"{said}, last heard from at {from_us(watermark.heard_at).isoformat()}"
        )
    return facts


_TOPICS = pa.schema(
    [
        ("topic", pa.string()),
        ("columns", pa.int32()),
        ("partitions", pa.int32()),
        ("rows", pa.int64()),
        ("size_bytes", pa.int64()),
        ("key", pa.string()),
        ("time", pa.string()),
        ("watermark", TIMESTAMP),
        ("ahead", pa.int64()),
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


def _show_topics(on: ExecutionContext, statement: s.ShowTopics) -> pa.Table:
    return show_topics(on.log)


def _show_cursors(on: ExecutionContext, statement: s.ShowCursors) -> pa.Table:
    return show_cursors(on.log, on.clock)


def _describe(on: ExecutionContext, statement: s.Describe) -> pa.Table:
    if _is_view(on.log, statement.name):
        return describe_columns(on.views().names.columns(statement.name))
    return describe(on.log.topic(statement.name))


def _explain(on: ExecutionContext, statement: s.Explain) -> pa.Table:
    log, name, kind = on.log, statement.name, statement.kind
    is_view = _is_view(log, name)
    may_be_connector = bool(log.entries(SOURCE) or log.entries(SINK)) and not (
        is_view or name in log.topics()
    )
    if (kind or may_be_connector) and (explained := on.supervisor().explain(name, kind)) is not None:
        return explained
    return on.views().reports.explain(name) if is_view else explain(log, name)


def _explain_query(on: ExecutionContext, statement: s.ExplainQuery) -> pa.Table:
    return on.views().reports.explain_query(statement.query)


def _is_view(log: Log, name: str) -> bool:
    """Whether a name is that of a view, or of a relation derived from a view, such as `revenue.late`."""
    return name in log.entries("view") or ("." in name and name not in log.topics())


_HANDLERS: Mapping[type, Callable[[ExecutionContext, Any], pa.Table | None]] = {
    s.AcceptDrop: _accept_drop,
    s.AddColumn: _add_column,
    s.CreateStanding: _create_standing,
    s.CreateTopic: _create_topic,
    s.CreateTopicAs: _create_topic_as,
    s.CreateView: _create_view,
    s.Describe: _describe,
    s.DropNotNull: _drop_not_null,
    s.DropStanding: _drop_standing,
    s.DropTopic: _drop_topic,
    s.DropView: _drop_view,
    s.Explain: _explain,
    s.ExplainQuery: _explain_query,
    s.QueryText: _query,
    s.SetOptions: _set_options,
    s.ShowCursors: _show_cursors,
    s.ShowStanding: _show_standing,
    s.ShowTopics: _show_topics,
    s.ShowViews: _show_views,
    s.WidenColumn: _widen_column,
}
"""The function that runs each kind of statement; the supervisor runs those about sources, sinks and alerts."""
