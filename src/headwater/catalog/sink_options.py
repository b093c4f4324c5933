"""Options of CREATE SINK ... WITH (...) and of the notifications of alerts, by kind. The first option of a kind is the place that
it writes to."""

from __future__ import annotations

from dataclasses import replace

from headwater.catalog.options import REQUIRED, Option

_KEY = Option(
    "key",
    "columns",
    "the key that the view's query implies",
    "Columns by which rows are replaced and deleted; they must be provably unique in the view.",
)
_MODE = Option(
    "mode",
    "'upsert' | 'append' | 'changelog'",
    "'upsert'",
    "Form of the target: current rows, replaced and deleted by key; rows of a view that only grows; or every change, with `_weight` "
    "and `_tick`.",
)
_ADOPT = Option(
    "adopt",
    "boolean",
    "false",
    "Whether CREATE SINK may take a target that already has rows; those that the view does not have are removed.",
)
_ON_ERROR = Option(
    "on_error",
    "'stop' | 'divert'",
    "'stop'",
    "Handling of rows that the target rejects: stop the sink, or write them to the topic `<sink>_errors` as dead letters.",
    settable=True,
)
_SECRET = Option(
    "secret",
    "text",
    "none",
    "Secret that signs requests, as in Standard Webhooks; best given as `env('NAME')`.",
    settable=True,
)
_PREVIOUS_SECRET = Option(
    "previous_secret",
    "text",
    "none",
    "Second secret that requests are also signed with, while the receiver changes from it to `secret`.",
    settable=True,
)
_TOKEN = Option(
    "token",
    "text",
    "none",
    "Bearer token of the header `Authorization`; best given as `env('NAME')`.",
    settable=True,
)
_TIMEOUT = Option(
    "timeout", "span", "'10 seconds'", "Longest time of a request with its answer.", settable=True
)

POSTGRES = (
    Option("url", "text", REQUIRED, "Connection URL of the database, best given as `env('NAME')`.", True),
    Option(
        "table",
        "text",
        "the name of the sink",
        "Table, with its schema if it is not the current one; created if it is missing.",
    ),
    _KEY,
    Option("mode", "'upsert'", "'upsert'", "Form of the target: rows are replaced and deleted by key."),
    _ADOPT,
    _ON_ERROR,
)
REDIS = (
    Option("url", "text", REQUIRED, "URL of the server, best given as `env('NAME')`.", True),
    _KEY,
    Option(
        "as",
        "'hash' | 'string' | 'zset'",
        "'hash'",
        "Type of a row in Redis: a hash of its columns, a JSON string, or a member of a sorted set.",
    ),
    Option("prefix", "text", "`<sink>:`", "Prefix of the names of all rows."),
    Option("score", "column", "none", "For `as = 'zset'`, which needs it: the column to sort by."),
    Option(
        "member",
        "columns",
        "the last column of the key",
        "For `as = 'zset'`: the key columns that name a member; the others name the set.",
    ),
    _ADOPT,
    _ON_ERROR,
)
SEARCH = (
    Option("path", "text", "a folder in the workspace", "Folder of the index."),
    _KEY,
    Option(
        "text",
        "columns",
        "every STRING column that is not part of the key",
        "Columns whose words can be searched.",
    ),
    Option(
        "language",
        "text",
        "none",
        "Language whose stems are searched, such as `'english'`; without one, words match as they are written.",
    ),
    Option("accents", "'keep' | 'fold'", "'keep'", "Whether accents count: with 'fold', é equals e."),
    _ADOPT,
    _ON_ERROR,
)
LAKE = (
    Option("warehouse", "text", "a folder in the workspace", "Location of the Iceberg warehouse."),
    Option("table", "text", "the name of the sink", "Table, with its namespace if it has one."),
    _KEY,
    _MODE,
    Option(
        "catalog",
        "text",
        "a SQLite catalog in the warehouse",
        "Iceberg catalog: the name of one in the configuration of pyiceberg, or a JSON object of its properties.",
        settable=True,
    ),
    Option("file_rows", "whole number", "250000", "Largest number of rows in a data file.", settable=True),
    Option("snapshots", "whole number", "100", "Number of snapshots of the table to keep.", settable=True),
    _ADOPT,
    _ON_ERROR,
)
PARQUET = (
    Option("path", "text", "a folder in the workspace", "Folder of the files."),
    _KEY,
    _MODE,
    _ADOPT,
    _ON_ERROR,
)
TOPIC = (
    Option("topic", "text", REQUIRED, "Topic of the workspace to write to, created if it is missing."),
    _KEY,
    _MODE,
    Option("partitions", "whole number", "1", "Number of partitions of the created topic."),
    Option(
        "durability",
        "'fsync' | 'group' | 'os'",
        "that of the workspace",
        "Durability of the created topic.",
    ),
    Option(
        "cleanup",
        "'delete' | 'compact'",
        "'compact' with a key, else 'delete'",
        "Cleanup of the created topic.",
    ),
    _ADOPT,
    _ON_ERROR,
)
WEBHOOK = (
    Option("url", "text", REQUIRED, "URL that changes are posted to."),
    _KEY,
    _MODE,
    _SECRET,
    _PREVIOUS_SECRET,
    _TOKEN,
    _TIMEOUT,
    Option("rows", "whole number", "500", "Largest number of rows in a request.", settable=True),
    Option(
        "open_after",
        "whole number",
        "5",
        "Number of failures in a row after which the circuit opens and no request is sent.",
        settable=True,
    ),
    Option(
        "open_for",
        "span",
        "'30 seconds'",
        "Time that the circuit stays open before one request is tried.",
        settable=True,
    ),
    _ON_ERROR,
)
PYTHON = (
    Option(
        "function",
        "text",
        REQUIRED,
        "Function `fn(change, key)`: a name given to `ws.sink_function`, or `package.module:name`.",
    ),
    _KEY,
    _MODE,
    Option("rows", "whole number", "10000", "Largest number of rows in a call.", settable=True),
    _ON_ERROR,
)

NOTIFY_WEBHOOK = (
    Option("url", "text", REQUIRED, "URL that notices are posted to.", settable=True),
    replace(_SECRET, meaning="Secret that signs requests, as in Standard Webhooks, only as `env('NAME')`."),
    replace(
        _PREVIOUS_SECRET,
        meaning="Second secret that requests are also signed with, while the receiver changes from it, only as `env('NAME')`.",
    ),
    replace(_TOKEN, meaning="Bearer token of the header `Authorization`, only as `env('NAME')`."),
    _TIMEOUT,
)
NOTIFY_EMAIL = (
    Option("to", "text", REQUIRED, "Address of the recipient; several are separated by commas.", True),
    Option("host", "text", REQUIRED, "SMTP server.", settable=True),
    Option("port", "whole number", "25; 587 with `starttls`", "Port of the SMTP server.", settable=True),
    Option("from", "text", "'headwater@localhost'", "Address of the sender.", settable=True),
    Option(
        "starttls", "boolean", "false", "Whether the connection is encrypted with STARTTLS.", settable=True
    ),
    Option("user", "text", "none", "User to log in as; without one there is no login.", settable=True),
    Option("password", "text", "none", "Password of the user, only as `env('NAME')`.", settable=True),
    _TIMEOUT,
)
NOTIFY_TOPIC = (
    Option(
        "topic", "text", REQUIRED, "Topic that gets the notices, created if it is missing.", settable=True
    ),
)
