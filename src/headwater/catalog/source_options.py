"""Options of CREATE SOURCE ... WITH (...), by kind. The first option of a kind is required."""

from __future__ import annotations

from headwater.catalog.options import REQUIRED, Option

POSTGRES = (
    Option(
        "url",
        "text",
        REQUIRED,
        "Connection URL of the database, best given as `env('NAME')` so that the catalog has no password.",
        settable=True,
    ),
    Option(
        "tables",
        "text",
        "required, unless `outbox` is given",
        "Tables to capture, separated by commas: `public.orders`, `sales.*` for all tables of a schema, "
        '`crm."Order" AS crm_orders` to name the topic.',
        settable=True,
    ),
    Option(
        "slot",
        "text",
        "`headwater_<source>`",
        "Name of the replication slot. A slot that is named here is used as it is; a slot named by Headwater is created and dropped "
        "with the source.",
    ),
    Option(
        "publication",
        "text",
        "`headwater_<source>`",
        "Name of the publication. A publication that is named here is used as it is, except that missing tables are added to it.",
    ),
    Option(
        "snapshot",
        "'initial' | 'incremental' | 'none'",
        "'initial'",
        "Copy of the rows that the tables already have: in one append as of one moment, in chunks while changes are read, or not at "
        "all.",
    ),
    Option(
        "failover",
        "boolean",
        "false",
        "Create the slot with failover to standbys (Postgres 17 and later).",
    ),
    Option(
        "max_wal",
        "size",
        "none",
        "Budget for the WAL that the server retains for the slot; `over_wal` says what happens beyond it.",
        settable=True,
    ),
    Option(
        "over_wal",
        "'warn' | 'stop' | 'drop_slot'",
        "'warn'",
        "Reaction when more WAL than `max_wal` is retained: report it, stop the source, or drop the slot so that the server's disk "
        "does not fill.",
        settable=True,
    ),
    Option(
        "on_gap",
        "'stop' | 'snapshot'",
        "'stop'",
        "Reaction when changes are missing, because the slot was lost or the server is another one: stop the source, or take a new "
        "snapshot.",
        settable=True,
    ),
    Option(
        "outbox",
        "text",
        "none",
        "Outbox table, whose inserted rows become events on the topics that they name; `'messages'` for events that are written with "
        "`pg_logical_emit_message` alone.",
    ),
    Option(
        "outbox_prefix",
        "text",
        "'outbox'",
        "Prefix of the logical messages that are events.",
    ),
    Option(
        "chunk_rows",
        "whole number",
        "50000",
        "Number of rows in a chunk of an incremental snapshot.",
        settable=True,
    ),
    Option(
        "types",
        "text",
        "by the type in Postgres",
        "Types of columns that differ from the default, separated by commas: `public.orders.amount DECIMAL(20, 4)`.",
        settable=True,
    ),
)
FILES = (
    Option(
        "path",
        "text",
        REQUIRED,
        "A file, a folder (all files in it), or a pattern with `*`, `?`, `[...]` and, for folders at any depth, `**`.",
        settable=True,
    ),
    Option("topic", "text", "the name of the source", "Topic that gets the rows."),
    Option(
        "format",
        "'json' | 'csv' | 'lines' | 'parquet'",
        "by the suffix of `path`",
        "Format of the files: JSON lines, CSV, lines of text, or Parquet. `.gz` files are decompressed.",
    ),
    Option(
        "columns",
        "columns with types",
        "those of an existing topic, or of the first Parquet file; `line STRING NOT NULL` for lines without a pattern",
        "Columns of the topic as in CREATE TOPIC, with PRIMARY KEY and WATERMARK if wanted.",
    ),
    Option("key", "columns", "none", "Primary key of the topic, if `columns` has none."),
    Option(
        "pattern",
        "text",
        "none",
        "For lines: a regular expression (RE2) that the whole line matches; its named groups are columns.",
    ),
    Option("header", "boolean", "true", "For CSV: whether the first line of each file names the columns."),
    Option(
        "delimiter",
        "text",
        "`,`; a tab for `.tsv`",
        "For CSV: the one character between fields.",
    ),
    Option(
        "null",
        "text",
        "the empty text",
        "For CSV and lines: the text that means NULL.",
        settable=True,
    ),
    Option("multiline", "boolean", "false", "For CSV: whether quoted fields may contain line ends."),
    Option(
        "time_format",
        "text",
        "ISO 8601",
        "For CSV, lines and JSON: format of timestamps as for `strptime`, with `%z` for the zone.",
        settable=True,
    ),
    Option(
        "extra",
        "'refuse' | 'ignore'",
        "'refuse'",
        "Handling of fields that are no columns of the topic: the line is rejected, or the fields are left out.",
        settable=True,
    ),
    Option(
        "on_error",
        "'stop' | 'divert'",
        "'stop'",
        "Handling of lines that cannot be read: stop the source, or write them to the topic `<source>_errors` as dead letters.",
        settable=True,
    ),
    Option(
        "settle",
        "span",
        "'5 seconds'",
        "Time without changes after which a last line without a line end is taken as it is.",
        settable=True,
    ),
)
PYTHON = (
    Option(
        "class",
        "text",
        REQUIRED,
        "Subclass of `headwater.Source`, as `package.module:Class`.",
    ),
    Option(
        "options",
        "JSON object",
        "`{}`",
        "Keyword arguments of the class.",
        settable=True,
    ),
    Option(
        "every",
        "span",
        "'1 second'",
        "Time between two calls of `read`, after the first one has returned.",
        settable=True,
    ),
)
WEBHOOK = (
    Option(
        "secret",
        "text",
        REQUIRED,
        "Secret that verifies signatures, only as `env('NAME')`: base64 after `whsec_`, or the text itself.",
        settable=True,
    ),
    Option(
        "previous_secret",
        "text",
        "none",
        "Second secret that is accepted while senders change from it to `secret`, only as `env('NAME')`.",
        settable=True,
    ),
    Option(
        "scheme",
        "'standard' | 'github' | 'stripe'",
        "'standard'",
        "Format of signatures and delivery ids: Standard Webhooks, GitHub or Stripe.",
    ),
    Option("topic", "text", "the name of the source", "Topic that gets the deliveries."),
    Option(
        "columns",
        "columns with types",
        "none",
        "Columns beside `delivery`, `received_at` and `body`, each filled from the field of its name or of `paths`.",
        settable=True,
    ),
    Option(
        "paths",
        "JSON object",
        "`{}`",
        'Where the value of a column is in the body, such as `{"country": "data.buyer.country"}`; `header:<name>` is a header.',
        settable=True,
    ),
    Option(
        "tolerance",
        "span",
        "'5 minutes'",
        "Largest difference between the signed time and the clock; other deliveries are rejected.",
        settable=True,
    ),
    Option("max_body", "size", "'1 MB'", "Largest body; larger ones are rejected.", settable=True),
)
STATSD = (
    Option("port", "whole number", REQUIRED, "UDP port to listen at.", settable=True),
    Option("topic", "text", "the name of the source", "Topic that gets the metrics."),
    Option("host", "text", "'127.0.0.1'", "Address to listen at.", settable=True),
    Option(
        "every",
        "span",
        "'1 second'",
        "Time after which received lines are appended.",
        settable=True,
    ),
    Option(
        "rows",
        "whole number",
        "50000",
        "Number of received lines at which they are appended before `every` is over.",
        settable=True,
    ),
    Option(
        "receive_buffer",
        "size",
        "'4 MB'",
        "Size of the kernel's receive buffer, where datagrams wait to be read.",
        settable=True,
    ),
    Option(
        "lateness",
        "span",
        "'10 seconds'",
        "Lateness of the topic's watermark, when the source creates the topic.",
    ),
)
