"""Statements as plain values: `parser` creates them from text, `headwater.execution` runs them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from headwater.catalog.connectors import AlertDefinition, Options, SinkDefinition, SourceDefinition
from headwater.catalog.connectors import EnvValue as EnvValue
from headwater.catalog.connectors import resolve as resolve
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.catalog.view_definitions import ViewDefinition, define_view
from headwater.core.clock import Microseconds
from headwater.sql.lexer import Span
from headwater.sql.standing_statements import CreateStanding as CreateStanding
from headwater.sql.standing_statements import DropStanding as DropStanding
from headwater.sql.standing_statements import ShowStanding as ShowStanding


@dataclass(frozen=True)
class TopicColumns:
    """The definitions between the parentheses of CREATE TOPIC."""

    schema: pa.Schema
    key: tuple[str, ...] = ()
    time: str | None = None
    lateness_us: Microseconds = 0
    private: Mapping[str, str] = field(default_factory=dict)
    """PRIVATE columns, by name, with the subject column given in PRIVATE BY."""
    private_at: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)
    """Positions of the PRIVATE BY clauses."""


@dataclass(frozen=True)
class CreateTopic:
    """CREATE [OR REPLACE] TOPIC [IF NOT EXISTS] name (...) WITH (...)."""

    name: str
    columns: TopicColumns
    options: Options = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False

    def definition(self, environ: Mapping[str, str] = os.environ) -> TopicDefinition:
        """Return the checked definition, with `env(...)` resolved."""
        c = self.columns
        return define_topic(
            self.name,
            c.schema,
            key=c.key,
            time=c.time,
            lateness=c.lateness_us,
            options=resolve(self.options, environ),
            private=c.private,
        )


@dataclass(frozen=True)
class QueryText:
    """A query exactly as written: `text` begins at `start` of the whole text, `source`.

    The query is not parsed here. An error about characters a..b of `text` is shown in `source` at start + a..start + b.
    """

    text: str
    start: int = field(default=0, compare=False)
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class CreateTopicAs:
    """CREATE [OR REPLACE] TOPIC [IF NOT EXISTS] name [(PRIMARY KEY ..., WATERMARK ...)] [WITH (...)] AS query."""

    name: str
    query: QueryText
    columns: TopicColumns = TopicColumns(pa.schema([]))
    """The key and the event time; the columns themselves are those of the query."""
    options: Options = field(default_factory=dict)
    if_not_exists: bool = False
    or_replace: bool = False

    def definition(
        self,
        schema: pa.Schema,
        environ: Mapping[str, str] = os.environ,
        *,
        private: Mapping[str, str] | None = None,
    ) -> TopicDefinition:
        """Return the checked definition, with the columns of the query; `private` has the columns derived from private
        ones."""
        by, hidden = set((private or {}).values()), set(private or {})
        schema = pa.schema(
            [f.with_nullable((f.nullable or f.name in hidden) and f.name not in by) for f in schema]
        )
        columns = dataclasses.replace(self.columns, schema=schema, private=private or {})
        given = CreateTopic(self.name, columns, self.options)
        return given.definition(environ)


@dataclass(frozen=True)
class CreateView:
    """CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [(column, ...)] [WITH (...)] AS query
    [EMIT ON WINDOW CLOSE].
    """

    name: str
    query: QueryText
    columns: tuple[str, ...] = ()
    """New names for the columns of the query, in order; empty to keep the original names."""
    options: Options = field(default_factory=dict)
    emit_on_close: bool = False
    if_not_exists: bool = False
    or_replace: bool = False

    def definition(
        self,
        schema: pa.Schema,
        inputs: Mapping[str, Sequence[str]],
        environ: Mapping[str, str] = os.environ,
        *,
        late: pa.Schema | None = None,
    ) -> ViewDefinition:
        """Return the checked definition, given the columns of the query, its inputs with their columns, and the columns of
        its late rows, if the view reports these."""
        return define_view(
            self.name,
            self.query.text,
            schema,
            names=self.columns,
            options=resolve(self.options, environ),
            emit_on_close=self.emit_on_close,
            inputs=inputs,
            late=late,
        )


@dataclass(frozen=True)
class DropView:
    """DROP [MATERIALIZED] VIEW [IF EXISTS] name [CASCADE]."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class CreateSource:
    """CREATE [OR REPLACE] SOURCE [IF NOT EXISTS] name FROM kind [WITH (...)]."""

    definition: SourceDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateSink:
    """CREATE [OR REPLACE] SINK [IF NOT EXISTS] name FROM view INTO kind [WITH (...)]."""

    definition: SinkDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateAlert:
    """CREATE [OR REPLACE] ALERT [IF NOT EXISTS] name ON view | METRIC name[{label = 'value', ...}] WHEN condition
    [FOR 'span'] NOTIFY kind WITH (...)."""

    definition: AlertDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateDefaultAlerts:
    """CREATE DEFAULT ALERTS NOTIFY kind WITH (...): creates the built-in alerts that do not exist yet."""

    alerts: tuple[AlertDefinition, ...]


@dataclass(frozen=True)
class SetAlert:
    """ALTER ALERT name SET (option = value, ...); NULL removes an option."""

    name: str
    options: Options


@dataclass(frozen=True)
class DropAlert:
    """DROP ALERT [IF EXISTS] name: no resolution is sent for notices already sent."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowAlerts:
    """SHOW ALERTS."""


@dataclass(frozen=True)
class AlterSource:
    """ALTER SOURCE name SNAPSHOT table [WHERE 'condition'] | PAUSE | RESUME | RESTART [table]. See `SetSource`."""

    name: str
    action: Literal["snapshot", "pause", "resume", "restart"]
    table: str | None = None
    where: str | None = None


@dataclass(frozen=True)
class SetSource:
    """ALTER SOURCE name SET (option = value, ...); NULL removes an option."""

    name: str
    options: Options


@dataclass(frozen=True)
class SetSink:
    """ALTER SINK name SET (option = value, ...); NULL removes an option."""

    name: str
    options: Options


@dataclass(frozen=True)
class DropSource:
    """DROP SOURCE [IF EXISTS] name [CASCADE]: keeps the source's topics, unless CASCADE is given."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class DropSink:
    """DROP SINK [IF EXISTS] name: keeps the data that the sink has written."""

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class AddColumn:
    """ALTER TOPIC name ADD COLUMN c type [NOT NULL] [PRIVATE BY (subject)]."""

    topic: str
    column: pa.Field
    subject: str | None = None
    private_at: Span | None = field(default=None, compare=False, repr=False)
    """Position of PRIVATE BY."""


@dataclass(frozen=True)
class WidenColumn:
    """ALTER TOPIC name ALTER COLUMN c TYPE type."""

    topic: str
    column: str
    type: pa.DataType


@dataclass(frozen=True)
class DropNotNull:
    """ALTER TOPIC name ALTER COLUMN c DROP NOT NULL."""

    topic: str
    column: str


@dataclass(frozen=True)
class AcceptDrop:
    """ALTER TOPIC name ALTER COLUMN c ACCEPT DROP: views continue with NULL in a column that the source dropped."""

    topic: str
    column: str


@dataclass(frozen=True)
class SetOptions:
    """ALTER TOPIC name SET (option = value, ...); NULL removes an option."""

    topic: str
    options: Options


@dataclass(frozen=True)
class DropTopic:
    """DROP TOPIC [IF EXISTS] name [CASCADE]."""

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class ShowTopics:
    """SHOW TOPICS."""


@dataclass(frozen=True)
class ShowCursors:
    """SHOW CURSORS."""


@dataclass(frozen=True)
class ShowViews:
    """SHOW VIEWS."""


@dataclass(frozen=True)
class ShowSources:
    """SHOW SOURCES."""


@dataclass(frozen=True)
class ShowSinks:
    """SHOW SINKS."""


@dataclass(frozen=True)
class Describe:
    """DESCRIBE name: the columns of a topic, a view, or a relation derived from a view (`per_minute.late`)."""

    name: str


@dataclass(frozen=True)
class Explain:
    """EXPLAIN [TOPIC | VIEW | SOURCE | SINK] name: all available information. Without a kind, the name is resolved as a
    topic or view, then as a source, then as a sink."""

    name: str
    kind: Literal["source", "sink"] | None = None


@dataclass(frozen=True)
class ExplainQuery:
    """EXPLAIN query [EMIT ON WINDOW CLOSE]: how the query would be maintained as a view."""

    query: QueryText
    emit_on_close: bool = False


Alerting = CreateAlert | CreateDefaultAlerts | SetAlert | DropAlert | ShowAlerts
"""Statements about alerts."""

ConnectorStatement = (
    CreateSource
    | CreateSink
    | AlterSource
    | SetSource
    | SetSink
    | DropSource
    | DropSink
    | Alerting
    | ShowSources
    | ShowSinks
)
"""Statements about external systems."""

Statement = (
    CreateTopic
    | CreateTopicAs
    | CreateView
    | DropView
    | ConnectorStatement
    | QueryText
    | AddColumn
    | WidenColumn
    | DropNotNull
    | AcceptDrop
    | SetOptions
    | DropTopic
    | ShowTopics
    | ShowCursors
    | ShowViews
    | CreateStanding
    | DropStanding
    | ShowStanding
    | Describe
    | Explain
    | ExplainQuery
)
