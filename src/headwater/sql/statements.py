"""Statements as plain values: `parser` creates them from text, `headwater.execution` runs them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from headwater.catalog.connectors import EnvValue as EnvValue
from headwater.catalog.connectors import Options
from headwater.catalog.connectors import resolve as resolve
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.catalog.view_definitions import ViewDefinition, define_view
from headwater.core.clock import Microseconds
from headwater.sql.connector_statements import Alerting as Alerting
from headwater.sql.connector_statements import AlterSource as AlterSource
from headwater.sql.connector_statements import ConnectorStatement as ConnectorStatement
from headwater.sql.connector_statements import CreateAlert as CreateAlert
from headwater.sql.connector_statements import CreateDefaultAlerts as CreateDefaultAlerts
from headwater.sql.connector_statements import CreateSink as CreateSink
from headwater.sql.connector_statements import CreateSource as CreateSource
from headwater.sql.connector_statements import DropAlert as DropAlert
from headwater.sql.connector_statements import DropSink as DropSink
from headwater.sql.connector_statements import DropSource as DropSource
from headwater.sql.connector_statements import SetAlert as SetAlert
from headwater.sql.connector_statements import SetSink as SetSink
from headwater.sql.connector_statements import SetSource as SetSource
from headwater.sql.connector_statements import ShowAlerts as ShowAlerts
from headwater.sql.connector_statements import ShowSinks as ShowSinks
from headwater.sql.connector_statements import ShowSources as ShowSources
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
    """Create a topic. A topic with a PRIMARY KEY is the changelog of a table; WATERMARK FOR names the event time, and
    PRIVATE BY encrypts a column with a key for each subject. IF NOT EXISTS leaves an existing topic as it is; OR
    REPLACE replaces a topic that has no records and no readers.

    Syntax::

        CREATE [OR REPLACE] TOPIC [IF NOT EXISTS] name (
          column type [NOT NULL] [PRIMARY KEY] [PRIVATE BY (subject)], ...
          [, PRIMARY KEY (column, ...)]
          [, WATERMARK FOR column AS column [- INTERVAL 'span']]
        ) [WITH (option = value, ...)]

    Example::

        CREATE TOPIC clicks (user BIGINT, url STRING, at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '10 minutes')
          WITH (partitions = 4, partition_by = 'user', retention = '7 days')
    """

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
    """Answer a query over topics and views, all of them as of one tick. The query is Spark SQL in ANSI mode and UTC.

    Syntax::

        SELECT ... | WITH ... | FROM ... | VALUES ... | TABLE name

    Example::

        SELECT country, revenue FROM revenue WHERE revenue > 100
    """

    text: str
    """The query exactly as written. It is not parsed here: an error about characters a..b is shown in `source` at start + a..start + b."""
    start: int = field(default=0, compare=False)
    """Where the text begins in `source`, the text of all statements."""
    source: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True)
class CreateTopicAs:
    """Create a topic with the columns of a query, and append the rows of the query once, in one append. It is how
    records get another number of partitions, another key or other types.

    Syntax::

        CREATE [OR REPLACE] TOPIC [IF NOT EXISTS] name
          [([PRIMARY KEY (column, ...)] [, WATERMARK FOR column AS column [- INTERVAL 'span']])]
          [WITH (option = value, ...)]
        AS query

    Example::

        CREATE TOPIC orders_8 (PRIMARY KEY (id)) WITH (partitions = 8) AS SELECT * FROM orders
    """

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
    """Create a view whose result is kept up to date. A column list renames the columns of the query. With EMIT ON
    WINDOW CLOSE the view shows a row only when no row in time can change it. OR REPLACE builds the new version next
    to the old one, which is served meanwhile.

    Syntax::

        CREATE [OR REPLACE] MATERIALIZED VIEW [IF NOT EXISTS] name [(column, ...)]
          [WITH (option = value, ...)]
        AS query
        [EMIT ON WINDOW CLOSE]

    Example::

        CREATE MATERIALIZED VIEW per_minute WITH (late = 'divert') AS
        SELECT window(at, '1 minute') AS w, url, count(*) AS n FROM clicks GROUP BY window(at, '1 minute'), url
        EMIT ON WINDOW CLOSE
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
    """Drop a view with its state. It is refused while views, sinks or alerts use the view, unless CASCADE drops them
    too.

    Syntax::

        DROP [MATERIALIZED] VIEW [IF EXISTS] name [CASCADE | RESTRICT]

    Example::

        DROP VIEW IF EXISTS per_minute CASCADE
    """

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class AddColumn:
    """Add a column, which is NULL in records that are already in the log; NOT NULL is refused.

    Syntax::

        ALTER TOPIC name ADD [COLUMN] column type [PRIVATE BY (subject)]

    Example::

        ALTER TOPIC clicks ADD COLUMN referrer STRING
    """

    topic: str
    column: pa.Field
    subject: str | None = None
    private_at: Span | None = field(default=None, compare=False, repr=False)
    """Position of PRIVATE BY."""


@dataclass(frozen=True)
class WidenColumn:
    """Widen the type of a column; views that use it are rebuilt next to the versions that are served.

    Syntax::

        ALTER TOPIC name ALTER [COLUMN] column { TYPE | SET DATA TYPE } type

    Example::

        ALTER TOPIC clicks ALTER COLUMN user TYPE BIGINT
    """

    topic: str
    column: str
    type: pa.DataType


@dataclass(frozen=True)
class DropNotNull:
    """Allow NULL in a column.

    Syntax::

        ALTER TOPIC name ALTER [COLUMN] column DROP NOT NULL

    Example::

        ALTER TOPIC clicks ALTER COLUMN user DROP NOT NULL
    """

    topic: str
    column: str


@dataclass(frozen=True)
class AcceptDrop:
    """Let views continue with NULL in a column that was dropped from the captured table.

    Syntax::

        ALTER TOPIC name ALTER [COLUMN] column ACCEPT DROP

    Example::

        ALTER TOPIC orders ALTER COLUMN note ACCEPT DROP
    """

    topic: str
    column: str


@dataclass(frozen=True)
class SetOptions:
    """Change options of a topic; NULL sets an option to its default.

    Syntax::

        ALTER TOPIC name SET (option = value, ...)

    Example::

        ALTER TOPIC clicks SET (retention = '30 days')
    """

    topic: str
    options: Options


@dataclass(frozen=True)
class DropTopic:
    """Drop a topic with its records. It is refused while views or cursors read the topic, unless CASCADE drops
    them too.

    Syntax::

        DROP TOPIC [IF EXISTS] name [CASCADE | RESTRICT]

    Example::

        DROP TOPIC clicks
    """

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class ShowTopics:
    """List the topics: columns, key, rows, size, watermark and retention.

    Syntax::

        SHOW TOPICS

    Example::

        SHOW TOPICS
    """


@dataclass(frozen=True)
class ShowCursors:
    """List the cursors and consumer groups, with their lag.

    Syntax::

        SHOW CURSORS

    Example::

        SHOW CURSORS
    """


@dataclass(frozen=True)
class ShowViews:
    """List the views: status, newest tick, state, watermark and row counts.

    Syntax::

        SHOW [MATERIALIZED] VIEWS

    Example::

        SHOW VIEWS
    """


@dataclass(frozen=True)
class Describe:
    """List the columns of a topic, a view, or a relation derived from a view such as `per_minute.late`.

    Syntax::

        { DESCRIBE | DESC } [TOPIC | [MATERIALIZED] VIEW | STANDING QUERY] name

    Example::

        DESCRIBE per_minute.late
    """

    name: str


@dataclass(frozen=True)
class Explain:
    """Show what is known of a topic, view, source or sink. Without a kind, the name is resolved as a topic or view,
    then as a source, then as a sink.

    Syntax::

        EXPLAIN [TOPIC | [MATERIALIZED] VIEW | STANDING QUERY | SOURCE | SINK] name

    Example::

        EXPLAIN SINK revenue_cache
    """

    name: str
    kind: Literal["source", "sink"] | None = None


@dataclass(frozen=True)
class ExplainQuery:
    """Show how a query would be kept as a view: its operators, what each change costs, and what bounds its state.

    Syntax::

        EXPLAIN query [EMIT ON WINDOW CLOSE]

    Example::

        EXPLAIN SELECT url, count(*) AS n FROM clicks GROUP BY url
    """

    query: QueryText
    emit_on_close: bool = False


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
