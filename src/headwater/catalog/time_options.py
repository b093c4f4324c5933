"""Time options of a topic: what raises its watermark, and which device clocks are corrected.

Only the rules; watermarks are defined in `headwater.log.watermarks`, clock correction in `headwater.log.device_clocks`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import SchemaError
from headwater.core.types import TIMESTAMP, format_type, quote

WatermarkBy = Literal["events", "producers"]
"""Source of a topic's watermark besides punctuation: the event times of its rows, or its producers' watermarks."""

OCCURRED, SENT = "occurred_at", "sent_at"
"""Default names of the time columns in a device's rows, unless `occurred` and `sent` name others."""
CORRECTED, OFFSET, FLAG = "corrected_at", "clock_offset", "clock_flag"
STORED = pa.schema([(CORRECTED, TIMESTAMP), (OFFSET, pa.int64()), (FLAG, pa.string())])
"""Columns that the log fills on a topic with device clocks: the corrected time, the offset that was added, in microseconds, and
'ok', 'outlier' or 'impossible'."""


class TimedTopic(Protocol):
    """Fields of a topic's definition that the rules check."""

    @property
    def name(self) -> str: ...
    @property
    def schema(self) -> pa.Schema: ...
    @property
    def time(self) -> str | None: ...
    @property
    def lateness_us(self) -> Microseconds: ...
    @property
    def max_ahead_us(self) -> Microseconds | None: ...
    @property
    def idle_after_us(self) -> Microseconds | None: ...
    @property
    def watermark(self) -> WatermarkBy: ...
    @property
    def producer_timeout_us(self) -> Microseconds | None: ...
    @property
    def clock(self) -> str | None: ...
    @property
    def occurred(self) -> str | None: ...
    @property
    def sent(self) -> str | None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def routing(self) -> tuple[str, ...]: ...


def check_time(topic: TimedTopic) -> None:
    """Raise SchemaError if the time options of a topic are inconsistent. The columns that they name must exist."""
    name = topic.name
    if topic.time and not pa.types.is_timestamp(topic.schema.field(topic.time).type):
        raise SchemaError(
            f"WATERMARK of topic {name!r} is for {topic.time!r}, which is not a TIMESTAMP",
            hint=f"declare {quote(topic.time)} TIMESTAMP",
            topic=name,
            column=topic.time,
            reason="not-timestamp",
        )
    if topic.lateness_us < 0:
        raise SchemaError(
            f"the lateness of topic {name!r} cannot be negative", topic=name, reason="negative-lateness"
        )
    if topic.max_ahead_us is not None and not topic.time:
        raise SchemaError(
            f"max_ahead of topic {name!r} needs a WATERMARK column",
            topic=name,
            option="max_ahead",
            reason="no-watermark",
        )
    if topic.watermark == "producers":
        _check_promised(topic)
    elif topic.watermark != "events":
        raise SchemaError(
            f"watermark must be 'events' or 'producers', not {topic.watermark!r}",
            topic=name,
            option="watermark",
            value=topic.watermark,
        )
    elif topic.producer_timeout_us is not None:
        raise SchemaError(
            f"producer_timeout of topic {name!r} needs watermark = 'producers'",
            hint="idle_after is for partitions without records; producer_timeout is for producers that declare watermarks",
            topic=name,
            option="producer_timeout",
            reason="not-producer-watermarks",
        )
    for option in ("idle_after", "producer_timeout"):
        span = getattr(topic, f"{option}_us")
        if span is not None and span <= 0:
            raise SchemaError(
                f"{option} of topic {name!r} must be greater than zero",
                topic=name,
                option=option,
                reason="not-positive",
            )
    if topic.clock is not None:
        _check_clock(topic)
    elif topic.occurred is not None or topic.sent is not None:
        given = "occurred" if topic.occurred is not None else "sent"
        raise SchemaError(
            f"{given} of topic {name!r} needs the option clock",
            hint="clock = 'device_id' names the column that identifies the device",
            topic=name,
            option=given,
            reason="missing-option",
        )


def _check_promised(topic: TimedTopic) -> None:
    if not topic.time:
        raise SchemaError(
            f"watermark = 'producers' of topic {topic.name!r} needs a WATERMARK column",
            hint="producers declare watermarks of that column: WATERMARK FOR at AS at - INTERVAL '0 seconds'",
            topic=topic.name,
            option="watermark",
            reason="no-watermark",
        )
    for option in ("max_ahead", "idle_after"):
        if getattr(topic, f"{option}_us") is not None:
            raise SchemaError(
                f"{option} of topic {topic.name!r} cannot be combined with watermark = 'producers'",
                detail="there only producer watermarks raise the watermark, in all partitions alike",
                hint="leave it out; producer_timeout says after how long without a sign of life a producer no longer counts",
                topic=topic.name,
                option=option,
                reason="producer-watermarks",
            )


def _check_clock(topic: TimedTopic) -> None:
    for option in ("occurred", "sent"):
        column = getattr(topic, option)
        if not pa.types.is_timestamp(topic.schema.field(column).type):
            raise SchemaError(
                f"{option} of topic {topic.name!r} is {column!r}, which is not a TIMESTAMP",
                hint=f"declare {quote(column)} TIMESTAMP, or name another column: {option} = '...'",
                topic=topic.name,
                column=column,
                reason="not-timestamp",
            )
    for column in (topic.clock, topic.occurred, topic.sent, *topic.routing):
        if column in STORED.names:
            raise SchemaError(
                f"column {column!r} of topic {topic.name!r} is computed by the log",
                hint=f"name another column: {option} = '...'",
                topic=topic.name,
                column=column,
                reason="computed-column",
            )
    if topic.partitions > 1 and topic.routing != (topic.clock,):
        raise SchemaError(
            f"topic {topic.name!r} corrects device clocks by {topic.clock!r} and must be partitioned by it",
            detail="rows of one device must be in one partition, because there is no order between partitions",
            hint=f"partition_by = '{topic.clock}'",
            topic=topic.name,
            option="partition_by",
            reason="not-clock",
        )


def with_clock(
    name: str, schema: pa.Schema, key: Sequence[str], values: Mapping[str, Any]
) -> tuple[pa.Schema, dict[str, Any]]:
    """Return the columns and options of a topic with the option `clock`. The clock column becomes NOT NULL and the partition
    column, unless another is declared; columns that the log fills are where they are declared, else last."""
    clock = values["clock"]
    fields = [f.with_nullable(f.nullable and f.name != clock) for f in schema]
    declared = {field.name.lower(): field for field in fields}
    for stored in STORED:
        found = declared.get(stored.name)
        if found is None:
            fields.append(stored)
        elif (found.name, found.type, found.nullable) != (stored.name, stored.type, True):
            raise SchemaError(
                f"column {found.name!r} of topic {name!r} is computed by the log and must be "
                f"{stored.name} {format_type(stored.type)}",
                hint="leave it out of the statement: it is added automatically",
                topic=name,
                column=found.name,
                reason="computed-column",
            )
    routed = values.get("partition_by") or values.get("versioned_by") or (key and clock not in key)
    usual = {"occurred": OCCURRED, "sent": SENT} | ({} if routed else {"partition_by": (clock,)})
    return pa.schema(fields), usual | {k: v for k, v in values.items() if v is not None}
