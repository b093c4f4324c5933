"""Device clocks: the columns that the log adds to a row whose timestamps come from the clock of a device.

Each transmission of a device is one measurement of its clock: the *offset* is the append time less the time at which the device
says that it sent. Rows of a device that were sent at the same time and appended together are one transmission. The smoothed
offset is the median (the lower of two) over the device's latest nine transmissions, including the current one: late deliveries
and single jumps do not change it, and a clock that was reset is followed once most of the nine agree.

Each row then gets
  corrected_at   the time at which it occurred plus the smoothed offset, but not later than its append time
  clock_offset   the smoothed offset, in microseconds
  clock_flag     'ok'; or 'outlier', if its own offset is far from the smoothed one: more than ten seconds, and more than
                 five times the median distance of the nine; or 'impossible'
A row with an impossible clock (no time, sent before it occurred, an offset of more than ten years) does not enter the median:
it gets its append time, and no offset.

Pure: a function of the records before and of the append. Both backends use it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import DELETE
from headwater.catalog.definitions import TopicDefinition
from headwater.catalog.time_options import CORRECTED, FLAG, OFFSET
from headwater.core.clock import Microseconds, parse_span_us
from headwater.core.types import TIMESTAMP
from headwater.log.watermarks import NONE

WINDOW = 9
"""Number of a device's transmissions over which its offset is the median."""
JUDGED_FROM = 4
"""Minimum number of transmissions for calling one of them an outlier."""
OUTLIER_MIN_US = parse_span_us("10 seconds")
OUTLIER_SPREADS = 5
IMPOSSIBLE_US = 10 * parse_span_us("365 days")
FLAGS = ("ok", "outlier", "impossible")
WINDOWS_AT_ONCE = 65_536
READ_BACK_ROWS = 1_000_000
"""Maximum number of records of a partition that are read to restore the state of its devices."""

_MISSING = np.iinfo(np.int64).max
_EARLIEST = NONE // 2

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class DeviceChange:
    """Changes to the device state caused by some rows; `Devices.advance` applies them once the rows are committed."""

    new: list[Any]
    places: Integers
    windows: Integers
    latest: Integers


@dataclass(frozen=True)
class _Judged:
    """By row: the smoothed offset, and whether the row's own offset is far from it."""

    offsets: Integers
    outliers: Mask


class Devices:
    """The latest transmissions of each device of a partition."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}
        self._windows: Integers = np.empty((0, WINDOW), np.int64)
        self._latest: Integers = np.empty((0, 2), np.int64)

    def correct(
        self, batch: pa.RecordBatch, topic: TopicDefinition, appended_at: Microseconds
    ) -> tuple[pa.RecordBatch, DeviceChange]:
        """Return the rows of one append with the columns that the log fills, and the resulting change of the device state."""
        assert topic.clock is not None
        assert topic.occurred is not None
        assert topic.sent is not None
        occurred, sent = (_times(batch.column(name)) for name in (topic.occurred, topic.sent))
        received = np.full(batch.num_rows, appended_at, np.int64)
        possible = (occurred > _EARLIEST) & (sent >= occurred)
        possible &= (sent >= appended_at - IMPOSSIBLE_US) & (sent <= appended_at + IMPOSSIBLE_US)
        rows = np.flatnonzero(possible)
        judged, change = self._judge(batch.column(topic.clock), rows, sent, received)
        corrected, offsets = received.copy(), np.zeros(batch.num_rows, np.int64)
        flags = np.full(batch.num_rows, FLAGS.index("impossible"), np.int8)
        offsets[rows] = judged.offsets
        corrected[rows] = np.minimum(occurred[rows] + judged.offsets, appended_at)
        flags[rows] = judged.outliers
        bare = _bare_tombstones(batch, topic, occurred)
        filled = {
            CORRECTED: pa.array(corrected, pa.int64(), mask=bare).view(TIMESTAMP),
            OFFSET: pa.array(offsets, pa.int64(), mask=~possible),
            FLAG: pa.array(FLAGS).take(pa.array(flags, pa.int8(), mask=bare)),
        }
        for name, column in filled.items():
            place = batch.schema.get_field_index(name)
            batch = batch.set_column(place, batch.schema.field(place), column)
        return batch, change

    def absorb(self, batch: pa.RecordBatch, topic: TopicDefinition) -> None:
        """Update the state from records of the log, in order. `batch` has the columns of `read_back`."""
        assert topic.clock is not None
        assert topic.sent is not None
        flags = batch.column(FLAG)
        rows = np.flatnonzero(pc.is_in(flags, pa.array(FLAGS[:2])).to_numpy(zero_copy_only=False))
        sent, received = (_times(batch.column(name)) for name in (topic.sent, "_appended_at"))
        self.advance(self._judge(batch.column(topic.clock), rows, sent, received)[1])

    def advance(self, change: DeviceChange) -> None:
        """Apply the changes of committed rows."""
        for device in change.new:
            self._places[device] = len(self._places)
        grown = len(self._places) - len(self._windows)
        if grown > 0:  # double the capacity, because devices are added one by one
            room = max(grown, len(self._windows))
            self._windows = np.vstack([self._windows, np.full((room, WINDOW), _MISSING)])
            self._latest = np.vstack([self._latest, np.full((room, 2), NONE)])
        self._windows[change.places] = change.windows
        self._latest[change.places] = change.latest

    def _judge(
        self, devices: pa.Array, rows: Integers, sent: Integers, received: Integers
    ) -> tuple[_Judged, DeviceChange]:
        """Return the smoothed offset and outlier flag of each of `rows`, in order, and the resulting change of the device
        state."""
        places, new = self._find(devices.take(pa.array(rows)))
        order = np.argsort(places, kind="stable")
        places, reported = places[order], np.column_stack([sent[rows], received[rows]])[order]
        starts = np.flatnonzero(np.append(True, places[1:] != places[:-1])) if len(places) else places
        before = reported[np.arange(len(reported)) - 1]
        known, stored = self._latest_of(places[starts])
        before[starts] = known
        fresh = (reported != before).any(axis=1)

        # One block for each device: its stored window, then its new transmissions. A row's window ends at its transmission.
        counts = np.add.reduceat(fresh, starts, dtype=np.int64) if len(starts) else starts
        sizes = WINDOW + counts
        begins = np.cumsum(sizes) - sizes
        line = np.empty(int(sizes.sum()), np.int64)
        line[(begins[:, None] + np.arange(WINDOW)).ravel()] = stored.ravel()
        block = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(places))))
        seen = np.cumsum(fresh)
        within = seen - (seen - fresh)[starts][block] if len(starts) else seen
        ends = begins[block] + WINDOW - 1 + within
        line[ends[fresh]] = (reported[:, 1] - reported[:, 0])[fresh]

        middle, outlier = _smooth(line)
        judged = _Judged(np.empty(len(rows), np.int64), np.empty(len(rows), np.bool_))
        judged.offsets[order], judged.outliers[order] = middle[ends], outlier[ends]
        last = begins + sizes - 1
        windows = line[(last[:, None] - np.arange(WINDOW)[::-1]).ravel()].reshape(-1, WINDOW)
        closing = np.append(starts[1:], len(places)) - 1 if len(starts) else starts
        return judged, DeviceChange(new, places[starts], windows, reported[closing])

    def _find(self, devices: pa.Array) -> tuple[Integers, list[Any]]:
        """Return the index of each device, and the new devices in the order of the indices that they will get."""
        encoded = devices.dictionary_encode(null_encoding="encode")
        values = encoded.dictionary.to_pylist()
        new: list[Any] = []
        places = np.empty(len(values), np.int64)
        for at, device in enumerate(values):
            place = self._places.get(device)
            if place is None:
                place = len(self._places) + len(new)
                new.append(device)
            places[at] = place
        return places[encoded.indices.to_numpy(zero_copy_only=False)], new

    def _latest_of(self, places: Integers) -> tuple[Integers, Integers]:
        """Return the latest transmission and the window at each index; placeholder values for a new device."""
        latest, windows = np.full((len(places), 2), NONE), np.full((len(places), WINDOW), _MISSING)
        old = places < len(self._windows)
        latest[old], windows[old] = self._latest[places[old]], self._windows[places[old]]
        return latest, windows


def read_back(topic: TopicDefinition) -> list[str]:
    """Return the columns that `Devices.absorb` needs."""
    return [str(topic.clock), str(topic.sent), FLAG, "_appended_at"]


def _smooth(line: Integers) -> tuple[Integers, Mask]:
    """Return, for each position in a sequence of offsets, the median of the window that ends there, and whether the window's
    last offset is an outlier. Positions before the first complete window have no meaningful value."""
    middle, outlier = np.zeros(len(line), np.int64), np.zeros(len(line), np.bool_)
    if len(line) >= WINDOW:
        windows = np.lib.stride_tricks.sliding_window_view(line, WINDOW)
        for start in range(0, len(windows), WINDOWS_AT_ONCE):
            some = windows[start : start + WINDOWS_AT_ONCE]
            place = slice(start + WINDOW - 1, start + WINDOW - 1 + len(some))
            middle[place], outlier[place] = _smooth_each(some)
    return middle, outlier


def _smooth_each(windows: Integers) -> tuple[Integers, Mask]:
    missing = windows == _MISSING
    counts = WINDOW - missing.sum(axis=1)
    chosen = np.maximum(counts - 1, 0) // 2
    every = np.arange(len(windows))
    medians = np.sort(windows, axis=1)[every, chosen]
    distances = np.where(missing, _MISSING, np.abs(windows - medians[:, None]))
    spread = np.sort(distances, axis=1)[every, chosen]
    limit = np.maximum(OUTLIER_MIN_US, OUTLIER_SPREADS * np.minimum(spread, 2 * IMPOSSIBLE_US))
    return medians, (counts >= JUDGED_FROM) & (distances[:, -1] > limit)


def _times(column: pa.Array) -> Integers:
    values = column.view(pa.int64())
    return np.asarray(values.fill_null(NONE).to_numpy(zero_copy_only=False), dtype=np.int64)


def _bare_tombstones(batch: pa.RecordBatch, topic: TopicDefinition, occurred: Integers) -> Mask:
    """Return the mask of tombstones without an event time, whose corrected time stays null."""
    if not topic.keyed:
        return np.zeros(batch.num_rows, np.bool_)
    bare: Mask = (batch.column("_op").to_numpy(zero_copy_only=False) == DELETE) & (occurred == NONE)
    return bare
