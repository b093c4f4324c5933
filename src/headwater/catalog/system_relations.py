"""Columns and topics that Headwater adds to those of users, each with its meaning, for the reference and for tests.

Only the meanings; schemas are in the modules that write the topics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class MetadataColumn:
    """A column that a relation has besides those that users declare. It is selected by name, and is no part of `*`."""

    name: str
    type: str
    on: str
    """The relations that have the column."""
    meaning: str


DESCRIBED_COLUMNS = (
    MetadataColumn("_partition", "INT", "every topic", "Partition of the record."),
    MetadataColumn(
        "_offset", "BIGINT", "every topic", "Offset of the record in its partition; it never changes."
    ),
    MetadataColumn("_appended_at", "TIMESTAMP", "every topic", "Time of the append, by the log's clock."),
    MetadataColumn(
        "_sequence",
        "BIGINT",
        "every topic",
        "Number of the commit that appended the record. It can be read from a topic, and not in a query.",
    ),
    MetadataColumn(
        "_watermark",
        "TIMESTAMP",
        "every topic",
        "Watermark of the partition at the record's offset. It can be read from a topic, and not in a query.",
    ),
    MetadataColumn(
        "_op",
        "STRING",
        "keyed topics, and views of their records",
        "Kind of the record, as listed below.",
    ),
    MetadataColumn(
        "_version",
        "BIGINT",
        "topics with `versioned_by`",
        "Number of the record among those of its aggregate, from 1 up.",
    ),
    MetadataColumn(
        "_forgotten",
        "BOOLEAN",
        "topics with private columns",
        "Whether the subject of the row was forgotten, so that its private values read NULL.",
    ),
    MetadataColumn(
        "_source_position",
        "BIGINT",
        "captured topics",
        "Position in the source's own log, such as an LSN; it rises.",
    ),
    MetadataColumn(
        "_source_time", "TIMESTAMP", "captured topics", "Commit time of the transaction in the source."
    ),
    MetadataColumn("_transaction", "BIGINT", "captured topics", "Number of the transaction in the source."),
    MetadataColumn(
        "_version",
        "STRING",
        "versions of keyed topics (`FOR SYSTEM_TIME AS OF`, `<topic>.versions`)",
        "Name of the version: `<partition>:<offset>` of its record; it never changes.",
    ),
    MetadataColumn(
        "_valid_from",
        "TIMESTAMP",
        "versions of keyed topics (`FOR SYSTEM_TIME AS OF`, `<topic>.versions`)",
        "Time from which the version is valid.",
    ),
    MetadataColumn(
        "_valid_to",
        "TIMESTAMP",
        "versions of keyed topics (`FOR SYSTEM_TIME AS OF`, `<topic>.versions`)",
        "Time at which the next version begins; NULL for the current one.",
    ),
    MetadataColumn(
        "_weight",
        "BIGINT",
        "changes of a view",
        "How often the row is added (+n) or removed (-n).",
    ),
    MetadataColumn("_tick", "BIGINT", "changes of a view", "Tick of the change."),
    MetadataColumn(
        "corrected_at",
        "TIMESTAMP",
        "topics with `clock`",
        "Event time, corrected for the offset of the device's clock; part of `*`.",
    ),
    MetadataColumn(
        "clock_offset",
        "BIGINT",
        "topics with `clock`",
        "Offset that was added to the device's time, in microseconds; part of `*`.",
    ),
    MetadataColumn(
        "clock_flag",
        "STRING",
        "topics with `clock`",
        "'ok', 'outlier' for a time far from the device's others, or 'impossible' without a usable clock; part of `*`.",
    ),
)

OPS: Mapping[str, str] = {
    "upsert": "A row of a keyed topic: it replaces the older one of its key.",
    "delete": "A tombstone: it deletes the row of its key.",
    "insert": "A captured row that was inserted.",
    "update": "A captured row that was updated.",
    "snapshot": "A captured row that a snapshot copied.",
}
"""Meaning of each value of `_op`."""


@dataclass(frozen=True)
class SystemTopic:
    """A topic that Headwater creates; programs can read it, and only Headwater writes it unless the meaning says otherwise."""

    name: str
    """The name, with a user's names in angle brackets."""
    meaning: str
    columns: Mapping[str, str]
    """Columns in order, each with its meaning."""


_OFFSETS = {
    "_partition": "Partition of the record.",
    "_offset": "Offset of the record.",
}

DERIVED_TOPICS = (
    SystemTopic(
        "<view>.late",
        "Late rows of a view with `late = 'divert'` or `correct_for`, a record for each window that a row missed: the columns of the "
        "topic, then those below. It is part of the tick of the view.",
        {
            "_window_start": "Begin of the window that the row missed; NULL without a window.",
            "_window_end": "End of the window that the row missed; NULL without a window.",
            "_lateness": "How far the row was behind the watermark, in microseconds.",
            "_watermark": "Watermark of the row's partition at its offset.",
            **_OFFSETS,
        },
    ),
    SystemTopic(
        "<view>.errors",
        "Rows of a view with `on_error = 'divert'` whose expressions failed. It is part of the tick of the view.",
        {
            "_topic": "Topic of the row.",
            **_OFFSETS,
            "_appended_at": "Time of the append of the row.",
            "_error": "Error of the expression.",
            "_row": "The row, as JSON.",
        },
    ),
    SystemTopic(
        "<queue>.dead",
        "Dead letters of a queue: messages that were delivered too often, or returned with `final`.",
        {
            "partition": "Partition of the message.",
            "offset": "Offset of the message.",
            "deliveries": "Number of deliveries.",
            "error": "Error of the last delivery.",
            "row": "The row, as JSON.",
            "row_arrow": "The row, as an Arrow stream.",
        },
    ),
    SystemTopic(
        "<sink>_errors",
        "Dead letters of a sink with `on_error = 'divert'`: rows that its target rejects.",
        {
            "sink": "Name of the sink.",
            "tick": "Tick in which the row was rejected.",
            "reason": "Error of the target.",
            "row": "The row, as JSON.",
        },
    ),
    SystemTopic(
        "<source>_errors",
        "Dead letters of a FILES source with `on_error = 'divert'`: lines that cannot be read.",
        {
            "file": "Path of the file.",
            "byte": "Position of the line in the file.",
            "line": "The line.",
            "reason": "Error of the line.",
            "header": "First line of a CSV file with a header.",
        },
    ),
    SystemTopic(
        "<outbox>",
        "Events of an outbox in Postgres, on the topic that they name, if that topic did not exist.",
        {
            "id": "Id of the event.",
            "aggregate_id": "Aggregate of the event; events of one aggregate are in order.",
            "type": "Type of the event.",
            "payload": "The event, as JSON.",
        },
    ),
    SystemTopic(
        "<standing query>_queries",
        "Stored queries of a standing query, by `id`; programs may append to it.",
        {
            "id": "Id of the query; a newer record replaces the older one.",
            "query": "Text of the query.",
            "kind": "Language of the query: NULL for Lucene syntax, 'sql' for a condition in SQL.",
            "owner": "Owner, which matches show.",
            "backfill": "Span of earlier documents that the query is matched with.",
            "allow_scans": "Whether the query may be evaluated on every document.",
        },
    ),
    SystemTopic(
        "<topic of alerts>",
        "Notices of alerts with NOTIFY TOPIC.",
        {
            "alert": "Name of the alert.",
            "event": "'fired' or 'over'.",
            "key": "Key of the row or labels of the metric, as JSON; '*' for a view that is watched as a whole.",
            "episode": "Time at which the condition began to hold.",
            "at": "Time of the notice.",
            "on": "View or metric that is watched.",
            "condition": "Condition of the alert.",
            "row": "The row that met the condition when the alert fired, as JSON.",
        },
    ),
    SystemTopic(
        "<topic of an aggregate>",
        "Events of an aggregate: the columns below, then those of the events' fields.",
        {
            "aggregate_id": "Id of the aggregate.",
            "event": "Type of the event.",
            "event_version": "Version of the event's type.",
            "meta": "Command, actor and cause of the event: a STRUCT, whose fields are listed below.",
        },
    ),
    SystemTopic(
        "meta",
        "Fields of the STRUCT `meta` of an event.",
        {
            "command_id": "Id of the command that the event follows from.",
            "command": "Type of the command.",
            "command_hash": "Hash of the command, to notice another command under the same id.",
            "correlation_id": "Id that a chain of commands shares.",
            "causation_id": "Id of what caused the command.",
            "actor": "Who sent the command.",
            "reason": "Why, as the sender gave it.",
        },
    ),
    SystemTopic(
        "<topic of calls>",
        "Requests of `ws.call`: the column below, then those of the request.",
        {"call_id": "Id of the call."},
    ),
    SystemTopic(
        "<topic of calls>_replies",
        "Replies to `ws.call`: the columns below, then those of the reply.",
        {"call_id": "Id of the call.", "error": "Error of the service, if it failed."},
    ),
)
"""Topics that belong to a view, queue, sink, source, alert or aggregate of a user."""

WORKSPACE_TOPICS = (
    SystemTopic(
        "_dead",
        "Actions on dead letters of views, sinks, sources and queues.",
        {
            "letter": "Name of the dead letter.",
            "kind": "Kind of its owner: source, view, sink or queue.",
            "owner": "Name of its owner.",
            "action": "'edit', 'drop' or 'replay'.",
            "settled": "Whether the action is a replay whose row was accepted.",
            "who": "Who did it.",
            "reason": "Why.",
            "error": "Error for which the row was rejected.",
            "original": "The rejected row, as JSON.",
            "edited": "The edited row, as JSON.",
            "edited_arrow": "The edited row, as an Arrow stream.",
            "incarnation": "Build of the view, or creation of the other owner.",
        },
    ),
    SystemTopic(
        "_alerts",
        "Episodes of alerts, the newest record of each alert and key.",
        {
            "alert": "Name of the alert.",
            "key": "Key of the episode.",
            "episode": "Time at which the condition began to hold, in microseconds.",
            "incarnation": "Creation of the alert, which tells it from a dropped one of the same name.",
            "state": "'pending', 'firing' or 'over'.",
            "told": "Newest notice that was sent: 'fired' or 'over'.",
            "fired_at": "Time at which the alert fired, in microseconds.",
            "ended_at": "Time at which the condition no longer held, in microseconds.",
            "row": "The row that met the condition, as JSON.",
        },
    ),
    SystemTopic(
        "_claims",
        "Names that aggregates claim, such as e-mail addresses.",
        {
            "claim": "Kind and name together, the key.",
            "kind": "Kind of the claim.",
            "name": "Claimed name.",
            "holder": "Aggregate that holds the claim.",
            "until": "End of a claim that expires.",
            "command_id": "Command that made the claim.",
        },
    ),
    SystemTopic(
        "_answers",
        "Answers to commands that wrote no events, so that a repeated command gets the same answer.",
        {
            "topic": "Topic of the aggregate.",
            "aggregate_id": "Id of the aggregate.",
            "command_id": "Id of the command.",
            "command_hash": "Hash of the command.",
            "version": "Version of the aggregate at the answer.",
            "refusal": "Refusal, as JSON.",
            "refusal_private": "Refusal of an aggregate with private fields, encrypted.",
        },
    ),
    SystemTopic(
        "_forgotten",
        "Subjects that were forgotten.",
        {
            "number": "Number of the deletion.",
            "subject": "The subject.",
            "at": "Time of the deletion.",
            "who": "Who did it.",
            "reason": "Why.",
            "topics": "Topics with private values of the subject, separated by commas.",
            "records": "Number of records with private values of the subject.",
        },
    ),
    SystemTopic(
        "_excised",
        "Excisions of records.",
        {
            "number": "Number of the deletion.",
            "topic": "Topic of the records.",
            "condition": "Condition that chose the records.",
            "at": "Time of the deletion.",
            "who": "Who did it.",
            "reason": "Why.",
            "records": "Number of removed records.",
        },
    ),
    SystemTopic(
        "_queue_<queue>",
        "Operations of a queue on its messages, from which every process computes the state of the queue.",
        {
            "kind": "Kind of the operation, such as `claim` or `ack`.",
            "worker": "Name of the worker.",
            "lease": "Number of the lease.",
            "count": "Number of messages.",
            "deliveries": "Limit of deliveries.",
            "span_us": "Duration of the lease or delay, in microseconds.",
            "firsts": "First positions of ranges of messages.",
            "ends": "End positions of ranges of messages.",
            "keys": "Keys of messages.",
            "error": "Error that a worker gave.",
            "body": "State of the queue, in a checkpoint.",
        },
    ),
)
"""Topics of the workspace itself."""
