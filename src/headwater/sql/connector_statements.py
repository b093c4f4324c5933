"""Statements about external systems as plain values: sources, sinks and alerts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headwater.catalog.connectors import AlertDefinition, Options, SinkDefinition, SourceDefinition


@dataclass(frozen=True)
class CreateSource:
    """Create a source that captures an external system into topics, which exist when the statement returns.
    `ws.run()`, `ws.start()` and `headwater run` read sources.

    Syntax::

        CREATE [OR REPLACE] SOURCE [IF NOT EXISTS] name
          FROM { POSTGRES | FILES | PYTHON | WEBHOOK | STATSD }
          [WITH (option = value, ...)]

    Example::

        CREATE SOURCE shop FROM POSTGRES WITH (url = env('SHOP_URL'), tables = 'public.orders, public.customers')
    """

    definition: SourceDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateSink:
    """Create a sink that keeps an external system equal to a view. The key must be provably unique in the view, and
    the target empty, unless `adopt` is true.

    Syntax::

        CREATE [OR REPLACE] SINK [IF NOT EXISTS] name
          FROM view
          INTO { POSTGRES | REDIS | SEARCH | LAKE | PARQUET | TOPIC | WEBHOOK | PYTHON }
          [WITH (option = value, ...)]

    Example::

        CREATE SINK revenue_cache FROM revenue INTO REDIS WITH (url = env('CACHE_URL'), key = 'country')
    """

    definition: SinkDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateAlert:
    """Create an alert: one notice when a condition on the rows of a view, or on the `value` of a metric, begins to
    hold, and one when it no longer holds. FOR is the time that the condition must hold without a break.

    Syntax::

        CREATE [OR REPLACE] ALERT [IF NOT EXISTS] name
          ON { view | METRIC name [{label = 'value', ...}] }
          WHEN condition [FOR 'span']
          NOTIFY { WEBHOOK | EMAIL | TOPIC } WITH (option = value, ...)

    Example::

        CREATE ALERT low_stock ON stock WHEN n < 3 FOR '5 minutes' NOTIFY TOPIC WITH (topic = 'alarms')
    """

    definition: AlertDefinition
    if_not_exists: bool = False
    or_replace: bool = False


@dataclass(frozen=True)
class CreateDefaultAlerts:
    """Create the ready-made alerts that do not exist yet, all with one notification.

    Syntax::

        CREATE DEFAULT ALERTS NOTIFY { WEBHOOK | EMAIL | TOPIC } WITH (option = value, ...)

    Example::

        CREATE DEFAULT ALERTS NOTIFY WEBHOOK WITH (url = 'https://example.com/hook', secret = env('HOOK_SECRET'))
    """

    alerts: tuple[AlertDefinition, ...]


@dataclass(frozen=True)
class SetAlert:
    """Change options of an alert's notification; NULL removes an option.

    Syntax::

        ALTER ALERT name SET (option = value, ...)

    Example::

        ALTER ALERT low_stock SET (topic = 'warnings')
    """

    name: str
    options: Options


@dataclass(frozen=True)
class DropAlert:
    """Drop an alert. No end is sent for the episodes that are open.

    Syntax::

        DROP ALERT [IF EXISTS] name

    Example::

        DROP ALERT low_stock
    """

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowAlerts:
    """List the alerts, with their open episodes and the notices that are not sent yet.

    Syntax::

        SHOW ALERTS

    Example::

        SHOW ALERTS
    """


@dataclass(frozen=True)
class AlterSource:
    """Snapshot a table or a part of it beside the stream, pause and resume such snapshots, or capture a table or the
    whole source from the beginning. The condition is in the SQL of the source.

    Syntax::

        ALTER SOURCE name { SNAPSHOT table [WHERE 'condition'] | PAUSE | RESUME | RESTART [table] }

    Example::

        ALTER SOURCE shop SNAPSHOT public.orders WHERE 'id > 100'
    """

    name: str
    action: Literal["snapshot", "pause", "resume", "restart"]
    table: str | None = None
    where: str | None = None


@dataclass(frozen=True)
class SetSource:
    """Change options of a source, which continues from its position; NULL removes an option.

    Syntax::

        ALTER SOURCE name SET (option = value, ...)

    Example::

        ALTER SOURCE shop SET (max_wal = '10 GB', over_wal = 'stop')
    """

    name: str
    options: Options


@dataclass(frozen=True)
class SetSink:
    """Change options of a sink, which continues from its checkpoint; NULL removes an option.

    Syntax::

        ALTER SINK name SET (option = value, ...)

    Example::

        ALTER SINK revenue_cache SET (on_error = 'divert')
    """

    name: str
    options: Options


@dataclass(frozen=True)
class DropSource:
    """Drop a source, with its replication slot and publication. Its topics stay, unless CASCADE drops them too.

    Syntax::

        DROP SOURCE [IF EXISTS] name [CASCADE]

    Example::

        DROP SOURCE shop
    """

    name: str
    if_exists: bool = False
    cascade: bool = False


@dataclass(frozen=True)
class DropSink:
    """Drop a sink. The data that it has written stays.

    Syntax::

        DROP SINK [IF EXISTS] name

    Example::

        DROP SINK revenue_cache
    """

    name: str
    if_exists: bool = False


@dataclass(frozen=True)
class ShowSources:
    """List the sources: kind, topics, state and position.

    Syntax::

        SHOW SOURCES

    Example::

        SHOW SOURCES
    """


@dataclass(frozen=True)
class ShowSinks:
    """List the sinks: view, kind, state, tick and lag.

    Syntax::

        SHOW SINKS

    Example::

        SHOW SINKS
    """


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
