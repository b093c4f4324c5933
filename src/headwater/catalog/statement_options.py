"""Options of CREATE TOPIC, CREATE MATERIALIZED VIEW and CREATE STANDING QUERY."""

from __future__ import annotations

from headwater.catalog.options import Option

TOPIC = (
    Option("partitions", "whole number", "1", "Number of partitions, at most 4096; it never changes."),
    Option(
        "partition_by",
        "columns",
        "the primary key, or `versioned_by`",
        "Columns whose hash chooses the partition of a row. Without any, rows are spread over the partitions.",
    ),
    Option(
        "versioned_by",
        "column",
        "none",
        "Column that identifies an aggregate: the topic is event-sourced, and appends can expect the number of its events.",
    ),
    Option(
        "max_ahead",
        "span",
        "none",
        "Limit beyond which an event time ahead of its append time does not raise the watermark.",
    ),
    Option(
        "watermark",
        "'events' | 'producers'",
        "'events'",
        "What raises the watermark: event times, or the watermarks that producers declare with `punctuate(t, producer=...)`.",
    ),
    Option(
        "clock",
        "column",
        "none",
        "Column that identifies a device, whose clock is corrected.",
    ),
    Option(
        "occurred",
        "column",
        "'occurred_at'",
        "With `clock`: the column with the event time by the device's clock.",
    ),
    Option(
        "sent",
        "column",
        "'sent_at'",
        "With `clock`: the column with the time of sending by the device's clock.",
    ),
    Option(
        "retention",
        "span",
        "forever",
        "Time for which records are kept; whole segments of older records are removed.",
        settable=True,
    ),
    Option(
        "retention_bytes",
        "size",
        "unlimited",
        "Size that each partition keeps at least; the oldest segments beyond it are removed.",
        settable=True,
    ),
    Option(
        "tombstone_retention",
        "span",
        "'1 day'",
        "Time for which compaction keeps a tombstone.",
        settable=True,
    ),
    Option(
        "cleanup",
        "'delete' | 'compact'",
        "'delete'",
        "With 'compact', only the newest record of each key is kept; it needs a primary key.",
        settable=True,
    ),
    Option(
        "idle_after",
        "span",
        "never",
        "Time without records after which a partition is idle and no longer holds the watermark back.",
        settable=True,
    ),
    Option(
        "producer_timeout",
        "span",
        "never",
        "With `watermark = 'producers'`: time without a sign of life after which a producer is retired.",
        settable=True,
    ),
    Option(
        "versions_for",
        "span",
        "not at all",
        "Time for which compaction keeps superseded records, for joins `FOR SYSTEM_TIME AS OF`.",
        settable=True,
    ),
    Option(
        "durability",
        "'fsync' | 'group' | 'os'",
        "that of the workspace",
        "When an append is acknowledged: after its own sync, after a sync that concurrent appends share, or without a sync.",
        settable=True,
    ),
    Option(
        "schema_changes",
        "'follow' | 'refuse'",
        "'follow'",
        "For a captured topic: whether changed columns of its table change the topic, or stop the capture of the table.",
        settable=True,
    ),
    Option(
        "backlog_rows",
        "whole number",
        "unlimited",
        "Number of rows that a holding cursor may be behind before `when_behind` applies.",
        settable=True,
    ),
    Option(
        "when_behind",
        "'grow' | 'block' | 'refuse' | 'drop_oldest'",
        "'grow'",
        "Effect on an append when a holding cursor is further behind than `backlog_rows`: none, it waits, it fails with "
        "BacklogError, or the oldest records are removed.",
        settable=True,
    ),
    Option(
        "block_for",
        "span",
        "'1 minute'",
        "With `when_behind = 'block'`: longest time that an append waits before it fails with BacklogError.",
        settable=True,
    ),
)
"""Options of a topic. Those that are not settable are fixed: they determine the meaning of records in the log."""

VIEW = (
    Option(
        "late",
        "'correct' | 'divert' | 'drop'",
        "'correct'",
        "Handling of rows that are too late for their window: they correct the result, go to `<view>.late`, or are counted and left "
        "out.",
    ),
    Option(
        "correct_for",
        "span",
        "without limit",
        "With `late = 'correct'`: how far behind the watermark a late row may still change a result.",
    ),
    Option(
        "on_error",
        "'stop' | 'divert'",
        "'stop'",
        "Handling of a row whose expressions fail: it stops the view, or goes to `<view>.errors` and the view continues without it.",
    ),
    Option(
        "state",
        "'any' | 'bounded'",
        "'any'",
        "With 'bounded', a query is refused if its state grows with the records of a topic.",
    ),
)

STANDING_QUERY = (
    Option(
        "queries",
        "text",
        "`<name>_queries`",
        "Keyed topic with the stored queries, created if it is missing.",
    ),
    Option(
        "text",
        "columns",
        "every STRING column that is not part of the key",
        "Columns that are tokenized into words.",
    ),
    Option("language", "text", "none", "Language whose stems are matched, such as `'english'`."),
    Option("accents", "boolean", "true", "Whether accents count; with false, é equals e."),
    Option(
        "operator",
        "'or' | 'and'",
        "'or'",
        "Operator between words of a query that have none between them.",
    ),
    Option("show", "columns", "none", "Document columns that matches show beside the document's id."),
    Option(
        "backfill",
        "boolean",
        "true",
        "Whether queries may be matched with earlier documents, which are kept for this purpose.",
    ),
    Option(
        "allow_scans",
        "boolean",
        "false",
        "Whether queries are accepted that must be evaluated on every document.",
    ),
)
