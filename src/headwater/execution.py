"""Runs statements against a log: what `ws.sql` does once a text has been read.

Each statement is one change of the log or none; a statement that fails leaves everything as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headwater import catalog
from headwater.catalog import TopicDefinition
from headwater.clock import Clock, format_span, from_us
from headwater.connections import ALERT, SINK, SOURCE
from headwater.errors import (
    ConflictError,
    HeadwaterError,
    SchemaError,
    StatementError,
    TopicExistsError,
    TopicNotFoundError,
    UsageError,
    ViewNotFoundError,
)
from headwater.log.appending import stage_rows
from headwater.log.cursor import lag_of
from headwater.log.names import check_left, check_new
from headwater.log.protocol import Log, Producer
from headwater.queries import statements as s
from headwater.queries.dialect import words_of
from headwater.queries.standing import QUERIES, parse_standing
from headwater.queues.declaring import drop_queue, queues_on
from headwater.timing import STORED
from headwater.types import TIMESTAMP, format_type, quote

if TYPE_CHECKING:
    from headwater.connected.outside import Outside
    from headwater.runtime.views import Views

ATTEMPTS_MAX = 100
"""How often an ALTER is done again because someone else changed the topic meanwhile."""
COPY = "copy"
"""The kind of the entries that name the topics which are being filled."""


def execute(
    log: Log,
    statement: s.Statement,
    clock: Clock,
    views: Callable[[], Views],
    outside: Callable[[], Outside],
) -> pa.Table | None:
    """Run one statement; SHOW, DESCRIBE, EXPLAIN and queries give a table."""
    if isinstance(statement, s.Outside):
        return outside().execute(statement)
    try:
        return _execute(log, statement, clock, views, outside)
    except TopicNotFoundError as error:
        raise _about_views(log, statement, error, views) from None


def _about_views(
    log: Log, statement: s.Statement, error: TopicNotFoundError, views: Callable[[], Views]
) -> HeadwaterError:
    """The error for a topic that is not there, where a view is there or may have been meant."""
    name = str(error.facts.get("topic"))
    if name in log.entries("view"):
        hint = f"{name} is a view" + (
            f": DROP VIEW {quote(name)}" if isinstance(statement, s.DropTopic) else ""
        )
        return TopicNotFoundError(error.message, hint=hint, **error.facts)
    if isinstance(statement, (s.Describe, s.Explain)) and log.entries("view"):
        return views().no_relation(name)
    return error


def _execute(
    log: Log,
    statement: s.Statement,
    clock: Clock,
    views: Callable[[], Views],
    outside: Callable[[], Outside],
) -> pa.Table | None:
    match statement:
        case s.CreateTopic():
            _create(log, statement)
        case s.CreateTopicAs():
            _create_as(log, statement, views)
        case s.DropTopic():
            _drop(log, statement, views)
        case s.CreateView():
            _refuse_plain_replacement(log, statement, views)
            views().create(statement)
        case s.DropView():
            _refuse_standing(log, statement)
            _drop_followers(log, statement, outside)
            views().drop(statement)
        case s.ShowViews():
            return views().show()
        case s.CreateStanding():
            _create_standing(log, statement, views)
        case s.DropStanding():
            _drop_standing(log, statement, views, outside)
        case s.ShowStanding():
            from headwater.runtime.stored import show_standing

            return show_standing(log)
        case s.Query(text):
            return views().query(text)
        case s.AddColumn():
            _add_column(log, statement)
        case s.WidenColumn(topic, column, kind):
            _widen(log, topic, lambda t: catalog.widen_column(t, column, kind), views)
        case s.DropNotNull(topic, column):
            alter(log, topic, lambda t: catalog.drop_not_null(t, column))
        case s.AcceptDrop(topic, column):
            alter(log, topic, lambda t: catalog.accept_drop(t, column))
        case s.SetOptions(topic, options):
            if log.entries("view"):
                views().refuse_losing_versions(catalog.alter_options(log.topic(topic), s.resolve(options)))
                views().hold(topic)
            alter(log, topic, lambda t: catalog.alter_options(t, s.resolve(options)))
        case s.ShowTopics():
            return show_topics(log)
        case s.ShowCursors():
            return show_cursors(log, clock)
        case s.Describe(name):
            if name in log.entries("view") or ("." in name and name not in log.topics()):
                return describe_columns(views().columns(name))
            return describe(log.topic(name))
        case s.Explain(name, kind):
            is_view = name in log.entries("view") or ("." in name and name not in log.topics())
            has_outside = bool(log.entries(SOURCE) or log.entries(SINK)) and not (
                is_view or name in log.topics()
            )
            if (kind or has_outside) and (told := outside().explain(name, kind)) is not None:
                return told
            return views().explain(name) if is_view else explain(log, name)
        case s.ExplainQuery(query):
            return views().explain_query(query)
    return None


def _refuse_standing(log: Log, statement: s.DropView) -> None:
    """Stored queries go with the view of their matches."""
    found = log.entries("view").get(statement.name)
    if found is not None and parse_standing(found.document["query"]) is not None:
        raise UsageError(
            f"view {found.name!r} shows the matches of stored queries, which go with it",
            hint=f"DROP STANDING QUERY {quote(found.name)}",
        )


def _create_standing(log: Log, statement: s.CreateStanding, views: Callable[[], Views]) -> None:
    """The topic that queries are stored in, and the view of what they match."""
    if statement.if_not_exists and statement.name in log.entries("view"):
        return
    standing = statement.standing
    documents = log.topic(standing.topic)  # before anything is made
    standing = dataclasses.replace(standing, topic=documents.name)
    queries = catalog.define_topic(standing.queries, QUERIES, key=("id",))
    made = queries.name not in log.topics()
    if made:
        create(log, queries)
    query = s.Query(standing.sql, 0, standing.sql)
    try:
        views().create(
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


def _drop_standing(
    log: Log, statement: s.DropStanding, views: Callable[[], Views], outside: Callable[[], Outside]
) -> None:
    """The view, and its stored queries, unless somebody else reads them."""
    from headwater.runtime.stored import find_standing

    try:
        name, standing = find_standing(log, statement.name)
    except ViewNotFoundError:
        if statement.if_exists:
            return
        raise
    drop = s.DropView(name, cascade=statement.cascade)
    _drop_followers(log, drop, outside)
    views().drop(drop)
    _drop_stored(log, standing.queries, views)


def _drop_stored(log: Log, queries: str, views: Callable[[], Views]) -> None:
    """Queries that were stored for a view that is gone, unless somebody else reads them."""
    with contextlib.suppress(UsageError, ConflictError):
        _drop(log, s.DropTopic(queries, if_exists=True), views)


def _drop_followers(log: Log, statement: s.DropView, outside: Callable[[], Outside]) -> None:
    """Sinks that follow a view, or one that reads it, and alerts on it go with it, or it stays."""
    if not log.entries(SINK) and not log.entries(ALERT):
        return
    gone = [statement.name]
    if statement.cascade:
        from headwater.runtime.dependencies import above

        gone = above(log, statement.name)
    followers = [name for view in gone for name in outside().sinks.of_view(view)]
    if followers and not statement.cascade:
        raise UsageError(
            f"view {statement.name!r} cannot be dropped: it is followed by {', '.join(followers)}",
            hint=f"DROP SINK {quote(followers[0])} first, or DROP VIEW {quote(statement.name)} CASCADE",
        )
    alerts = [name for view in gone for name in outside().alerts.of_view(view)]
    if alerts and not statement.cascade:
        raise UsageError(
            f"view {statement.name!r} cannot be dropped: it is watched by {', '.join(alerts)}",
            hint=f"DROP ALERT {quote(alerts[0])} first, or DROP VIEW {quote(statement.name)} CASCADE",
        )
    for name in followers:
        outside().execute(s.DropSink(name, if_exists=True))
    for name in alerts:
        outside().execute(s.DropAlert(name, if_exists=True))


def create(log: Log, definition: TopicDefinition) -> None:
    """Create a topic, or find that it is there just so; TopicExistsError, with the difference, if it is not."""
    check_new(definition)
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


def _add_column(log: Log, statement: s.AddColumn) -> None:
    try:
        alter(log, statement.topic, lambda t: catalog.add_column(t, statement.column, statement.subject))
    except SchemaError as error:
        if statement.private_at is None or error.facts.get("private") != statement.column.name:
            raise
        raise statement.private_at.pointed(error) from None


def alter(log: Log, topic: str, change: Callable[[TopicDefinition], TopicDefinition]) -> None:
    """Change a definition; done again on the newer one if someone else changes it meanwhile."""
    for attempt in range(ATTEMPTS_MAX):
        old = log.topic(topic)
        check_left(old)
        new = change(old)
        if new == old:
            return
        try:
            log.alter_topic(old, new)
            return
        except ConflictError:
            if attempt + 1 == ATTEMPTS_MAX:
                raise


def _widen(
    log: Log,
    topic: str,
    change: Callable[[TopicDefinition], TopicDefinition],
    views: Callable[[], Views],
) -> None:
    now = log.topic(topic)
    wider = change(now)
    if not log.entries("view"):
        alter(log, topic, change)
    else:
        views().widen(now, wider, lambda: alter(log, topic, change))


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
    _refuse_replacing(log, existing, changes)
    log.replace_topic(existing, definition)


def _refuse_replacing(log: Log, existing: TopicDefinition, changes: list[str]) -> None:
    if any(info.rows for info in log.partitions(existing.name).values()):
        raise _exists(
            existing.name,
            changes,
            "only a topic without records is replaced; ALTER TOPIC changes one that has some",
        )
    _refuse_while_read(log, existing.name, "replaced")


def _create_as(log: Log, statement: s.CreateTopicAs, views: Callable[[], Views]) -> None:
    """Make a topic and append the rows of a query, which become visible together.

    The topic has to be there before rows can be staged for it. So an entry of the catalog says that it is being filled:
    should this process die before the rows are committed, the same statement, run again, finds the topic empty and the
    entry beside it, and goes on. The append has the topic's incarnation as producer: it is written once at most.
    """
    name = statement.name
    unfinished = log.entries(COPY).get(name)
    existing = log.topics().get(name)
    if existing is not None and unfinished is None and statement.if_not_exists:
        return
    private = _private_in_copy(log, statement, views)
    rows = views().rows(statement.query)
    definition = statement.definition(rows.schema, private=private)
    check_new(definition)
    changes = catalog.difference(existing, definition) if existing is not None else []
    if existing is not None and unfinished is None and not statement.or_replace:
        raise _exists(existing.name, changes, f"CREATE TOPIC IF NOT EXISTS {quote(name)} leaves it as it is")
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


def _refuse_plain_replacement(log: Log, statement: s.CreateView, views: Callable[[], Views]) -> None:
    if statement.or_replace and log.entries(SINK) and statement.name in log.entries("view"):
        from headwater.connected.copies import refuse_plain_replacement

        refuse_plain_replacement(log, views(), views().define(statement))


def _private_in_copy(log: Log, statement: s.CreateTopicAs, views: Callable[[], Views]) -> Mapping[str, str]:
    """The columns of the copy that come from private ones, by the columns that say whose they are; UsageError if nothing does: such
    a copy would be in plain, where forgetting does not reach it."""
    from headwater.runtime.dependencies import private_below

    words = sorted({word.text for word in words_of(statement.query.text) if word.is_name})
    hides = next(((name, topic) for name in words if (topic := private_below(log, name)) is not None), None)
    if hides is None:
        return {}
    from headwater.runtime.origins import copied_by_query

    why, remedy = f"{hides[1]} has private columns", None
    try:
        copied = copied_by_query(log, views().tools().catalog, statement.query, statement.columns.key)
    except StatementError:  # it may be fine to run once, and nothing is known of its columns
        copied = None
    if copied is not None:
        told = [one for one in copied if one.by is None]
        if not told:
            return {one.column: one.by for one in copied if one.by is not None}
        why, remedy = told[0].why, told[0].remedy
    made = f"CREATE TOPIC {quote(statement.name)} (...) with columns PRIVATE BY the subject, and append what a query gives"
    raise UsageError(
        f"topic {statement.name!r} would be a copy of {hides[0]} in plain: {why}",
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
        stage.commit(producer=Producer(f"{COPY}:{topic.name}:{topic.incarnation}", 0))
    except BaseException:
        stage.abort()
        raise


def _undo(log: Log, made: TopicDefinition | None, before: TopicDefinition | None) -> None:
    """Take a topic away that could not be filled, unless someone else has written to it or reads it meanwhile."""
    if made is None:
        return
    with contextlib.suppress(ConflictError, TopicNotFoundError):
        if before is not None:
            log.replace_topic(made, before)
        elif not any(info.end for info in log.partitions(made.name).values()) and not log.cursors(made.name):
            log.drop_topic(made.name)


def _finish(log: Log, name: str) -> None:
    """A topic is no longer being filled."""
    with contextlib.suppress(ConflictError):  # whoever ran the same statement at the same time was first
        log.drop_entry(COPY, name)


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
    check_left(topic)
    stored: list[str] = []
    if log.entries("view"):
        stored = _stored_for(log, topic.name) if statement.cascade else []
        views().drop_readers(topic.name, statement.cascade, "topic")
    if not statement.cascade:
        _refuse_while_read(log, statement.name, "dropped", f"DROP TOPIC {quote(statement.name)} CASCADE")
    for queue in queues_on(log, topic.name):
        drop_queue(log, queue)
    log.drop_topic(statement.name)
    for queries in stored:
        _drop_stored(log, queries, views)
    if topic.name in log.entries(COPY):
        _finish(log, topic.name)


def _stored_for(log: Log, topic: str) -> list[str]:
    """The topics of queries that are asked of the records of a topic."""
    from headwater.runtime.catalog import definitions

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
                "watermark": _lowest([i.watermark for i in infos]),
                "ahead": sum(i.ahead for i in infos),
                "cleanup": topic.cleanup,
                "retention": None if topic.retention_us is None else format_span(topic.retention_us),
                "last_appended_at": from_us(max(appended)) if appended else None,
            }
        )
    return pa.Table.from_pylist(rows, schema=_TOPICS)


def _lowest(watermarks: list[int | None]) -> datetime | None:
    """The watermark of a topic: the lowest of its partitions, none while one has none."""
    known = [watermark for watermark in watermarks if watermark is not None]
    return from_us(min(known)) if known and len(known) == len(watermarks) else None


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
    """EXPLAIN: what a topic is, and what it holds."""
    topic = log.topic(name)
    facts = {"topic": topic.name, "statement": topic.to_sql(), "schema version": str(topic.schema_version)}
    facts |= _time_facts(log, topic)
    if topic.captured_by is not None:
        facts["captured by"] = f"source {topic.captured_by}"
    for one in topic.dropped:
        goes_on = "views go on with NULL" if one.accepted else "views that read it are stopped"
        facts[f"dropped column {one.column}"] = f"{one.change}; {goes_on}"
    if name in log.entries(COPY):
        facts["unfinished"] = "CREATE TOPIC ... AS did not end: run it again, or DROP TOPIC"
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
    """What raises the watermark of a topic, who has promised what, and whose clocks are corrected."""
    facts: dict[str, str] = {}
    if topic.time is not None and topic.watermark == "producers":
        facts["watermark"] = f"what its producers have promised of {topic.time}"
    elif topic.time is not None:
        facts["watermark"] = f"{topic.time} less {format_span(topic.lateness_us)}"
    bounds = {
        "max_ahead": "rows further ahead of their append time do not raise the watermark",
        "idle_after": "a silent partition is raised by a running engine",
        "producer_timeout": "a silent producer is retired by a running engine",
    }
    for option, meaning in bounds.items():
        if (span := getattr(topic, f"{option}_us")) is not None:
            facts[option] = f"{format_span(span)}: {meaning}"
    if topic.clock is not None:
        facts["clock"] = f"of {topic.clock}: {topic.occurred} and {topic.sent} give {', '.join(STORED.names)}"
    for producer, promise in sorted(log.promises(topic.name).items()):
        said = (
            "promised nothing yet, which holds the watermark"
            if promise.moment is None
            else f"promised {from_us(promise.moment).isoformat()}"
        )
        facts[f"producer {producer}"] = f"{said}, heard of at {from_us(promise.heard_at).isoformat()}"
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
