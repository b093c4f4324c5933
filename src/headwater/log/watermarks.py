"""The watermark as a function of the records: the watermark before a row is the higher of two values, the highest eligible
event time before it less the lateness, and the highest punctuation before it.

Rows are eligible if they are not further ahead of their append time than `max_ahead`; no row is on a topic with producer
watermarks (see `producer_watermarks`), where only punctuation raises the watermark. Pure; both backends use it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.catalog.definitions import TopicDefinition
from headwater.core.clock import Microseconds

NONE: Microseconds = -(2**63)
"""No watermark yet: earlier than every possible time."""


def event_times(batch: pa.RecordBatch, topic: TopicDefinition) -> npt.NDArray[np.int64] | None:
    """Return the event times of a batch, NONE where a tombstone has none; None on topics without event time."""
    if topic.time is None:
        return None
    column = batch.column(topic.time).view(pa.int64())
    if column.null_count:
        column = column.fill_null(NONE)
    times: npt.NDArray[np.int64] = column.to_numpy()
    return times


def row_watermarks(
    times: npt.NDArray[np.int64], before: Microseconds, appended_at: Microseconds, topic: TopicDefinition
) -> tuple[npt.NDArray[np.int64], Microseconds, int]:
    """Return, for rows of one append, the watermark before each, the watermark after all, and how many were too far ahead."""
    if topic.watermark == "producers":
        return np.full(len(times), before, dtype=np.int64), before, 0
    ahead = 0
    if topic.max_ahead_us is not None:
        too_far = times > appended_at + topic.max_ahead_us
        ahead = int(too_far.sum())
        times = np.where(too_far, NONE, times)
    raised = np.where(times > NONE + topic.lateness_us, times - topic.lateness_us, NONE)
    running = np.maximum.accumulate(np.concatenate(([before], raised)))
    return running[:-1], int(running[-1]), ahead


def latest_of(times: npt.NDArray[np.int64]) -> Microseconds:
    """Return the highest event time of `times`, NONE if it is empty."""
    return int(np.max(times)) if len(times) else NONE


def watermark_after(
    times: npt.NDArray[np.int64], before: Microseconds, appended_at: Microseconds, topic: TopicDefinition
) -> tuple[Microseconds, int]:
    """Return the last two values of `row_watermarks`, without computing the watermark of each row."""
    if topic.watermark == "producers":
        return before, 0
    ahead = 0
    if topic.max_ahead_us is not None:
        eligible = times[times <= appended_at + topic.max_ahead_us]
        ahead, times = len(times) - len(eligible), eligible
    latest = latest_of(times)
    return (max(before, latest - topic.lateness_us) if latest > NONE + topic.lateness_us else before), ahead


def decisive_times(
    times: npt.NDArray[np.int64], now: Microseconds, topic: TopicDefinition
) -> npt.NDArray[np.int64]:
    """Return the few event times that suffice to compute the effect of these rows on the watermark, if they are appended at
    `now` or later: the highest of those that are not too far ahead at `now`, and all that are."""
    if topic.max_ahead_us is None:
        return times.max(keepdims=True) if len(times) else times
    too_far = times > now + topic.max_ahead_us
    return np.append(times[too_far], latest_of(times[~too_far]))


def watermark_array(values: npt.NDArray[np.int64]) -> pa.Array:
    """Return watermarks as timestamps, null for NONE."""
    missing = values == NONE
    return pa.array(values, pa.int64(), mask=missing if missing.any() else None).view(
        pa.timestamp("us", "UTC")
    )
