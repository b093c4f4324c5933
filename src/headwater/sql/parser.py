"""Text to statements: a recursive-descent parser per statement, with errors that point at the position.

All statements of a text are parsed before the first is run, and everything that can be checked without the log is checked
here. Queries are not parsed: their text is passed to Spark unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import pyarrow as pa

from headwater.catalog.connectors import (
    SINK_OPTIONS,
    SOURCE_OPTIONS,
    EnvValue,
    SinkDefinition,
    SourceDefinition,
    check_connection,
)
from headwater.catalog.definitions import OPTION_NAMES
from headwater.catalog.rules import DEAD
from headwater.catalog.view_definitions import VIEW_OPTION_NAMES, check_view, view_options
from headwater.core.clock import Microseconds, parse_span_us
from headwater.core.types import COLUMN_KEYWORDS, RELATION_KEYWORDS, parse_type, quote
from headwater.sql.alert_statements import alter_alert, create_alert, drop_alert
from headwater.sql.clauses import (
    check_unquoted,
    checked,
    read_kind,
    read_new_name,
    read_options,
    read_set,
    read_string,
)
from headwater.sql.foreign.foreign_spellings import refuse_foreign
from headwater.sql.foreign.foreign_statements import refuse_kind, refuse_statement
from headwater.sql.lexer import Span, Word, Words, shown
from headwater.sql.standing_statements import ShowStanding, create_standing, drop_standing
from headwater.sql.statements import (
    AcceptDrop,
    AddColumn,
    AlterSource,
    CreateSink,
    CreateSource,
    CreateTopic,
    CreateTopicAs,
    CreateView,
    Describe,
    DropNotNull,
    DropSink,
    DropSource,
    DropTopic,
    DropView,
    Explain,
    ExplainQuery,
    QueryText,
    SetOptions,
    SetSink,
    SetSource,
    ShowAlerts,
    ShowCursors,
    ShowSinks,
    ShowSources,
    ShowTopics,
    ShowViews,
    Statement,
    TopicColumns,
    WidenColumn,
)

_EXAMPLES = (
    "CREATE TOPIC, CREATE MATERIALIZED VIEW, CREATE STANDING QUERY, CREATE SOURCE, CREATE SINK, CREATE ALERT, "
    "ALTER <kind> <name>, DROP <kind> <name>, "
    "SHOW TOPICS, VIEWS, STANDING QUERIES, SOURCES, SINKS, ALERTS or CURSORS, DESCRIBE <name>, EXPLAIN <name or query> and SELECT work"
)
_QUERY = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "(")
"""Keywords that begin a query."""
_EMIT = ("EMIT", "ON", "WINDOW", "CLOSE")
_LATER = {
    "UPDATE": "UPDATE; append a newer row of the same key instead",
    "DELETE": "DELETE; ws.topic(name).delete(rows) appends tombstones",
}


def parse(text: str) -> list[Statement]:
    """Parse the statements of a text, separated by `;`. StatementError, pointing at the position, if one is invalid."""
    words = Words(text)
    statements: list[Statement] = []
    while not words.at_end():
        if words.accept(";"):
            continue
        refuse_foreign(words.text, words.statement())
        statements.append(_statement(words))
        if not words.at_end() and not words.next.is_(";"):
            words.fail(
                f"unexpected {shown(words.next)} after the end of the statement",
                hint="separate statements with ;",
                reason="not-at-end",
                found=words.next.text,
            )
    return statements


def parse_columns(ddl: str) -> TopicColumns:
    """Parse the columns of `ws.topic(schema="id BIGINT, name STRING NOT NULL, PRIMARY KEY (id)")`."""
    words = Words(ddl)
    columns = _columns(words)
    if not words.at_end():
        words.fail(
            f"expected a comma or the end, found {shown(words.next)}", expected=",", found=words.next.text
        )
    return columns


def _statement(words: Words) -> Statement:
    readers: dict[str, Callable[[Words], Statement]] = {
        "CREATE": _create,
        "ALTER": _alter,
        "DROP": _drop,
        "SHOW": _show,
        "DESCRIBE": _describe,
        "DESC": _describe,
        "EXPLAIN": _explain,
    }
    first = words.next
    if first.is_(*_QUERY):
        return _query(words)
    reader = readers.get(first.text.upper()) if first.kind == "word" else None
    if reader is None:
        _refuse_later(words, first.text)
        refuse_statement(words)
        words.fail(
            f"no statement begins with {shown(first)}",
            hint=_EXAMPLES,
            reason="unknown-statement",
            found=first.text,
        )
    words.take()
    return reader(words)


def _refuse_later(words: Words, what: str) -> None:
    if words.next.kind == "word" and (plain := _LATER.get(what.upper())):
        words.fail(
            f"Headwater does not have {plain}", hint=_EXAMPLES, reason="not-supported", statement=what.upper()
        )


def _expect_topic(words: Words, verb: str) -> None:
    _refuse_later(words, words.next.text)
    refuse_kind(words, verb)
    words.expect("TOPIC", hint=f"write {verb} TOPIC name")


def _create(words: Words) -> Statement:
    replace = words.accept("OR", "REPLACE")
    if words.accept("SOURCE"):
        return _create_source(words, replace)
    if words.accept("SINK"):
        return _create_sink(words, replace)
    if words.next.is_("ALERT") or (words.next.is_("DEFAULT") and words.ahead(1).is_("ALERTS")):
        return create_alert(words, replace)
    if words.accept("STANDING"):
        return create_standing(words, replace)
    if words.accept("MATERIALIZED"):
        words.expect("VIEW", hint="write CREATE MATERIALIZED VIEW name AS SELECT ...")
        return _create_view(words, replace)
    if words.next.is_("VIEW", "TEMPORARY", "TEMP"):
        words.fail(
            "views are always materialized",
            hint="write CREATE MATERIALIZED VIEW name AS SELECT ...",
            reason="view-not-materialized",
        )
    _expect_topic(words, "CREATE")
    lenient = words.accept("IF", "NOT", "EXISTS")
    name = words.name("the name of the topic")
    check_unquoted(words, name, RELATION_KEYWORDS, "topic")
    if words.next.is_("WITH", "AS"):
        options = read_options(words) if words.accept("WITH") else {}
        words.expect("AS", hint="write columns before WITH, or a query after it: AS SELECT ...")
        return CreateTopicAs(name.text, _query(words), TopicColumns(pa.schema([])), options, lenient, replace)
    words.expect("(", hint=f"write the columns: CREATE TOPIC {quote(name.text)} (id BIGINT, ...)")
    columns = _columns(words)
    last = words.expect(")")
    options = read_options(words) if words.accept("WITH") else {}
    if words.next.is_("AS"):
        if len(columns.schema):
            words.fail(
                "CREATE TOPIC AS takes its columns from the query",
                hint="leave the columns out; PRIMARY KEY and WATERMARK can stay",
                reason="columns-of-query",
            )
        words.take()
        return CreateTopicAs(name.text, _query(words), columns, options, lenient, replace)
    statement = CreateTopic(name.text, columns, options, lenient, replace)
    if not any(isinstance(v, EnvValue) for v in options.values()):
        checked(words, name, last, statement.definition, private=columns.private_at)
    return statement


def _create_view(words: Words, replace: bool) -> CreateView:
    lenient, name = read_new_name(words, replace, "view")
    check_unquoted(words, name, RELATION_KEYWORDS, "view")
    columns = _column_names(words) if words.accept("(") else ()
    first = words.next
    options = read_options(words, VIEW_OPTION_NAMES, "view") if words.accept("WITH") else {}
    last = words.expect("AS", hint=f"write CREATE MATERIALIZED VIEW {quote(name.text)} AS SELECT ...")
    query, emit = _emitting_query(words)
    checked(words, name, name, lambda: check_view(name.text, columns))
    if not any(isinstance(v, EnvValue) for v in options.values()):
        checked(words, first, last, lambda: view_options(options))
    return CreateView(name.text, query, columns, options, emit, lenient, replace)


def _create_source(words: Words, replace: bool) -> CreateSource:
    lenient, name = read_new_name(words, replace, "source")
    words.expect("FROM", hint=f"write CREATE SOURCE {quote(name.text)} FROM POSTGRES WITH (url = '...')")
    kind = read_kind(words, SOURCE_OPTIONS, "source")
    options = read_options(words, SOURCE_OPTIONS[kind], f"{kind} source") if words.accept("WITH") else {}
    made = SourceDefinition(name.text, kind, options)
    checked(words, name, words.before(1), lambda: check_connection(made))
    return CreateSource(made, lenient, replace)


def _create_sink(words: Words, replace: bool) -> CreateSink:
    lenient, name = read_new_name(words, replace, "sink")
    hint = f"write CREATE SINK {quote(name.text)} FROM view INTO REDIS WITH (url = '...')"
    words.expect("FROM", hint=hint)
    view = words.name("the name of a view")
    words.expect("INTO", hint=hint)
    kind = read_kind(words, SINK_OPTIONS, "sink")
    options = read_options(words, SINK_OPTIONS[kind], f"{kind} sink") if words.accept("WITH") else {}
    made = SinkDefinition(name.text, kind, options, view.text)
    checked(words, name, words.before(1), lambda: check_connection(made))
    return CreateSink(made, lenient, replace)


def _column_names(words: Words) -> tuple[str, ...]:
    names: list[str] = []
    while not names or words.accept(","):
        name = words.name("the name of a column")
        check_unquoted(words, name, COLUMN_KEYWORDS, "column")
        names.append(name.text)
        if words.next.kind == "word":
            words.fail(
                "a column of a view is declared without a type: the query defines it",
                hint="write only the names of the columns",
                reason="column-type",
            )
    words.expect(")")
    return tuple(names)


def _query(words: Words) -> QueryText:
    """Return the query up to the end of the statement, unchanged."""
    query, emit = _emitting_query(words)
    if emit:
        words.fail(
            "EMIT ON WINDOW CLOSE is part of CREATE MATERIALIZED VIEW",
            at=words.before(len(_EMIT)),
            hint="CREATE MATERIALIZED VIEW name AS SELECT ... EMIT ON WINDOW CLOSE",
            reason="emit-outside-view",
        )
    return query


def _emitting_query(words: Words) -> tuple[QueryText, bool]:
    """Return the query up to the end of the statement or EMIT ON WINDOW CLOSE, and whether that clause was given."""
    if not words.next.is_(*_QUERY):
        words.fail(
            f"expected a query, found {shown(words.next)}",
            hint="such as SELECT * FROM clicks",
            expected="a query",
            found=words.next.text,
        )
    taken = words.take_until(";")
    emit = len(taken) > len(_EMIT) and all(w.is_(k) for w, k in zip(taken[-4:], _EMIT, strict=True))
    if _emits_otherwise(taken):
        words.fail(
            f"EMIT {taken[-1].text.upper()} is not supported",
            at=taken[-2],
            hint="a view emits every change; EMIT ON WINDOW CLOSE emits only final rows",
            reason="unknown-emit",
            found=taken[-1].text,
        )
    taken = taken[: -len(_EMIT)] if emit else taken
    start, end = taken[0].start, taken[-1].end
    return QueryText(words.text[start:end], start, words.text), emit


def _emits_otherwise(taken: Sequence[Word]) -> bool:
    """Whether a query ends in an EMIT clause of another engine, as opposed to a table named emit."""
    if len(taken) < 3 or not taken[-2].is_("EMIT") or not taken[-1].is_("CHANGES", "FINAL"):
        return False
    return not taken[-3].is_("FROM", "JOIN", ",", ".")


def _columns(words: Words) -> TopicColumns:
    fields: list[pa.Field] = []
    private: dict[str, str] = {}
    private_at: dict[str, Span] = {}
    key: tuple[str, ...] = ()
    time: tuple[str, Microseconds] | None = None
    while True:
        start = words.next
        if words.next.is_("PRIMARY") and words.ahead(1).is_("KEY"):
            found = _key(words)
            if key:
                words.fail("the primary key is given twice", at=start, reason="primary-key-twice")
            key = found
        elif words.next.is_("WATERMARK") and words.ahead(1).is_("FOR"):
            if time:
                words.fail("a topic has only one WATERMARK", at=start, reason="watermark-twice")
            time = _watermark(words)
        else:
            column, is_key, subject = _column(words)
            if subject is not None:
                private[column.name], private_at[column.name] = subject
            if is_key and key:
                words.fail(
                    "the primary key is given twice",
                    at=start,
                    hint="for several columns, write PRIMARY KEY (a, b)",
                    reason="primary-key-twice",
                )
            key = (column.name,) if is_key else key
            fields.append(column)
        if not words.accept(","):
            break
    schema = pa.schema([f.with_nullable(f.nullable and f.name not in key) for f in fields])
    event_time, lateness_us = time or (None, 0)
    return TopicColumns(schema, key, event_time, lateness_us, private, private_at)


def _column(words: Words) -> tuple[pa.Field, bool, tuple[str, Span] | None]:
    """Parse a column; return its field, whether it is the primary key, and the column it is PRIVATE BY with its position,
    if any."""
    name = words.name("a column")
    check_unquoted(words, name, COLUMN_KEYWORDS, "column")
    kind = _type(words, name)
    nullable, is_key = True, False
    subject: tuple[str, Span] | None = None
    while True:
        if words.accept("NOT", "NULL"):
            nullable = False
        elif words.accept("PRIMARY", "KEY"):
            is_key = True
        elif words.next.is_("PRIVATE"):
            if subject is not None:
                words.fail(
                    f"column {name.text!r} has PRIVATE BY twice", reason="private-twice", private=name.text
                )
            hint = f"write {quote(name.text)} ... PRIVATE BY (user), with the column that identifies the data subject"
            start = words.next.start
            words.expect("PRIVATE", "BY", "(", hint=hint)
            by = words.name("the column of the data subject").text
            subject = by, Span(words.text, start, words.expect(")", hint=hint).end)
        elif words.next.is_("DEFAULT", "GENERATED", "COMMENT", "CHECK", "UNIQUE", "REFERENCES"):
            words.fail(
                f"a column of a topic cannot have {words.next.text.upper()}",
                hint="NOT NULL, PRIMARY KEY and PRIVATE BY (...) can follow a type",
                reason="column-constraint",
                found=words.next.text,
            )
        else:
            return pa.field(name.text, kind, nullable and not is_key), is_key, subject


def _type(words: Words, column: Word) -> pa.DataType:
    first, depth, text = words.next, 0, ""
    while not words.at_end():
        word = words.next
        if depth == 0 and text and not word.is_("<", "("):
            break
        if depth == 0 and word.is_(",", ")", ";", "NOT"):
            break
        depth += word.text.count("<") + word.text.count("(") if word.kind == "sign" else 0
        depth -= word.text.count(">") + word.text.count(")") if word.kind == "sign" else 0
        text += f" `{word.text.replace('`', '``')}`" if word.kind == "quoted" else f" {word.text}"
        last = words.take()
    if not text:
        words.fail(
            f"column {column.text!r} has no type",
            at=column,
            hint=f"such as {quote(column.text)} STRING",
            reason="no-type",
        )
    source = words.text[first.start : last.end]
    if "/*" not in source and "--" not in source:
        text = source
    return checked(words, first, last, lambda: parse_type(text.strip()))


def _key(words: Words) -> tuple[str, ...]:
    words.expect("PRIMARY", "KEY", "(")
    names = [words.name("a key column").text]
    while words.accept(","):
        names.append(words.name("a key column").text)
    words.expect(")")
    return tuple(names)


def _watermark(words: Words) -> tuple[str, Microseconds]:
    words.expect("WATERMARK", "FOR")
    column = words.name("the event time column")
    name = quote(column.text)
    hint = f"write WATERMARK FOR {name} AS {name} - INTERVAL '10 minutes'"
    if not words.accept("AS"):
        return column.text, 0
    start = words.next
    if not (start.is_name and start.text == column.text):
        words.fail("a watermark is its column minus an interval", hint=hint, reason="watermark-expression")
    words.take()
    if words.next.is_(",", ")", ";") or words.at_end():
        return column.text, 0
    if not words.accept("-"):
        words.fail(
            "a watermark is its column minus an interval",
            hint=hint,
            at=words.next,
            reason="watermark-expression",
        )
    words.expect("INTERVAL", hint=hint)
    return column.text, _interval(words, hint)


def _interval(words: Words, hint: str) -> Microseconds:
    amount = words.next
    if amount.kind not in ("string", "number"):
        words.fail(
            f"expected the length of the interval, found {shown(amount)}",
            hint=hint,
            expected="an interval",
            found=amount.text,
        )
    words.take()
    text, last = amount.text, amount
    if words.next.kind == "word":
        last = words.take()
        text = f"{text} {last.text}"
    return checked(words, amount, last, lambda: parse_span_us(text), hint)


def _alter(words: Words) -> Statement:
    if words.next.is_("VIEW", "MATERIALIZED"):
        words.fail(
            "ALTER VIEW is not supported",
            hint="CREATE OR REPLACE MATERIALIZED VIEW replaces a view",
            reason="alter-view",
        )
    if words.accept("SOURCE"):
        return _alter_source(words)
    if words.accept("SINK"):
        return _alter_sink(words)
    if words.accept("ALERT"):
        return alter_alert(words)
    _expect_topic(words, "ALTER")
    topic = words.name("the name of a topic").text
    if words.accept("ADD"):
        words.accept("COLUMN")
        column, is_key, subject = _column(words)
        if is_key:
            words.fail(
                "the primary key is fixed when the topic is created",
                hint="create another topic, and copy the records: CREATE TOPIC ... AS SELECT",
                reason="primary-key-fixed",
            )
        by, private_at = subject or (None, None)
        return AddColumn(topic, column, by, private_at)
    if words.accept("ALTER"):
        words.accept("COLUMN")
        name = words.name("a column")
        if words.accept("TYPE") or words.accept("SET", "DATA", "TYPE"):
            return WidenColumn(topic, name.text, _type(words, name))
        if words.accept("DROP", "NOT", "NULL"):
            return DropNotNull(topic, name.text)
        if words.accept("ACCEPT", "DROP"):
            return AcceptDrop(topic, name.text)
        words.fail(
            f"expected TYPE, DROP NOT NULL or ACCEPT DROP, found {shown(words.next)}",
            hint="ALTER COLUMN n TYPE BIGINT",
            expected="TYPE, DROP NOT NULL or ACCEPT DROP",
            found=words.next.text,
        )
    if words.accept("SET"):
        return SetOptions(topic, read_set(words, OPTION_NAMES, "topic", "retention = '7 days'"))
    if words.next.is_("DROP", "RENAME"):
        words.fail(
            f"ALTER TOPIC has no {words.next.text.upper()}: it would change the meaning of records in the log",
            hint="it has ADD COLUMN, ALTER COLUMN ... TYPE, ALTER COLUMN ... DROP NOT NULL and SET (...)",
            reason="alter-topic",
            found=words.next.text,
        )
    raise words.error(
        f"expected a change of the topic, found {shown(words.next)}",
        hint="ADD COLUMN, ALTER COLUMN ... TYPE, ALTER COLUMN ... DROP NOT NULL or SET (...)",
        expected="a change",
        found=words.next.text,
    )


def _alter_sink(words: Words) -> SetSink:
    name = words.name("the name of a sink").text
    words.expect("SET", hint=f"write ALTER SINK {quote(name)} SET (on_error = 'divert')")
    return SetSink(name, read_set(words, _every(SINK_OPTIONS), "sink", "on_error = 'divert'"))


def _every(options: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the options of all kinds: ALTER does not name the kind."""
    return list(dict.fromkeys(name for names in options.values() for name in names))


def _alter_source(words: Words) -> AlterSource | SetSource:
    name = words.name("the name of a source").text
    hint = "SET (...), SNAPSHOT table [WHERE 'condition'], PAUSE, RESUME or RESTART [table]"
    if words.accept("SET"):
        return SetSource(name, read_set(words, _every(SOURCE_OPTIONS), "source", "max_wal = '10 GB'"))
    if words.accept("PAUSE"):
        return AlterSource(name, "pause")
    if words.accept("RESUME"):
        return AlterSource(name, "resume")
    if words.accept("RESTART"):
        whole = words.at_end() or words.next.is_(";")
        return AlterSource(name, "restart", None if whole else _table(words))
    if words.accept("SNAPSHOT"):
        table, where = _table(words), None
        if words.accept("WHERE"):
            if words.next.kind != "string":
                words.fail(
                    "the condition of SNAPSHOT is a string of the source's SQL",
                    hint="WHERE 'id > 100'",
                    reason="condition-not-string",
                )
            where = read_string(words, words.take())
        return AlterSource(name, "snapshot", table, where)
    raise words.error(
        f"expected an action, found {shown(words.next)}",
        hint=hint,
        expected="an action",
        found=words.next.text,
    )


def _table(words: Words) -> str:
    """Parse a table of a source: a string, or a name that may be qualified by a schema."""
    if words.next.kind == "string":
        return read_string(words, words.take())
    name = words.name("the name of a table").text
    return f"{name}.{words.name('the name of a table').text}" if words.accept(".") else name


def _drop(words: Words) -> Statement:
    if words.accept("ALERT"):
        return drop_alert(words)
    if words.accept("STANDING"):
        return drop_standing(words)
    for what in ("SOURCE", "SINK"):
        if words.accept(what):
            lenient = words.accept("IF", "EXISTS")
            name = words.name(f"the name of a {what.lower()}").text
            return (
                DropSink(name, lenient)
                if what == "SINK"
                else DropSource(name, lenient, words.accept("CASCADE"))
            )
    view = words.accept("VIEW") or words.accept("MATERIALIZED", "VIEW")
    if not view:
        _expect_topic(words, "DROP")
    lenient = words.accept("IF", "EXISTS")
    name = words.name("the name of a view" if view else "the name of a topic").text
    if words.next.is_(".") and words.ahead(1).is_name:
        _refuse_part(words, name)
    cascade = words.accept("CASCADE")
    if not cascade:
        words.accept("RESTRICT")
    return DropView(name, lenient, cascade) if view else DropTopic(name, lenient, cascade)


def _refuse_part(words: Words, view: str) -> None:
    """Reject DROP VIEW of a relation derived from a view."""
    words.take()
    part = words.next
    option = {"late": "late rows", "errors": "failed rows"}.get(part.text.lower())
    if part.text.lower() == DEAD:
        words.fail(
            f"{view}.{part.text} is part of queue {view}, and is dropped with it",
            hint=f'ws.drop_queue("{view}")',
            reason="part-of-queue",
            view=view,
        )
    if option is None:
        words.fail(
            f"there is no {view}.{part.text} to drop",
            hint=f"DROP VIEW {quote(view)}",
            reason="unknown-part",
            view=view,
        )
    words.fail(
        f"{view}.{part.text} is part of view {view}, and is dropped with it",
        hint=f"DROP VIEW {quote(view)}; or CREATE OR REPLACE the view with another policy for {option}",
        reason="part-of-view",
        view=view,
    )


def _show(words: Words) -> Statement:
    if words.accept("TOPICS"):
        return ShowTopics()
    if words.accept("CURSORS"):
        return ShowCursors()
    if words.accept("VIEWS") or words.accept("MATERIALIZED", "VIEWS"):
        return ShowViews()
    if words.accept("SOURCES"):
        return ShowSources()
    if words.accept("SINKS"):
        return ShowSinks()
    if words.accept("ALERTS"):
        return ShowAlerts()
    if words.accept("STANDING", "QUERIES"):
        return ShowStanding()
    raise words.error(
        f"SHOW {words.next.text.upper()} is not supported",
        hint="write SHOW TOPICS, VIEWS, SOURCES, SINKS, ALERTS, STANDING QUERIES or CURSORS",
        reason="unknown-show",
        found=words.next.text,
    )


def _describe(words: Words) -> Describe:
    return Describe(_relation(words))


def _explain(words: Words) -> Explain | ExplainQuery:
    if words.next.is_(*_QUERY) and not _is_name(words):
        return ExplainQuery(*_emitting_query(words))
    kinds: tuple[Literal["source", "sink"], ...] = ("source", "sink")
    for kind in kinds:
        if not _is_name(words) and words.accept(kind.upper()):
            return Explain(words.name(f"the name of a {kind}").text, kind)
    return Explain(_relation(words))


def _relation(words: Words) -> str:
    """Parse the name of a topic, a view or a relation derived from a view, after an optional kind."""
    if not _is_name(words) and not words.accept("TOPIC") and not words.accept("VIEW"):
        words.accept("MATERIALIZED", "VIEW")
        words.accept("STANDING", "QUERY")
    name = words.name("the name of a topic or a view").text
    while words.accept("."):
        name += "." + words.name("the rest of the name").text
    return name


def _is_name(words: Words) -> bool:
    """Whether the next word is the name itself, not a keyword before it: only a dot or the end follows."""
    return words.ahead(1).kind == "end" or words.ahead(1).is_(";", ".")
