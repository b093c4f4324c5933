"""Handling of rows that a target rejects: the sink stops before them, or skips and reports them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headwater.core.errors import RowsRefusedError
from headwater.sinks.base.net_changes import Netted
from headwater.sinks.base.rejected_rows import ROWS_MAX, RejectedSinkRows
from headwater.sinks.base.sink_status import Letters, OnError
from headwater.sinks.base.target import SinkCheckpoint, SinkError, TargetShape
from headwater.sinks.base.text_values import shown


class Diversion:
    """Handles the rejected rows of one sink.

    `letters` receives rejected rows that are to be diverted. It is called after they were left out of the target, and called
    again with the same letters if it is unknown whether an earlier call completed.
    """

    def __init__(
        self, shape: TargetShape, on_error: OnError, letters: Callable[[Letters], None] | None
    ) -> None:
        self._shape = shape
        self._on_error = on_error
        self._letters = letters

    def recorded(self, checkpoint: SinkCheckpoint | None) -> RejectedSinkRows:
        """Return the rejected rows that a checkpoint records; none without a checkpoint."""
        if checkpoint is None:
            return RejectedSinkRows.none(self._shape.schema)
        return RejectedSinkRows.decode(checkpoint.rejected, self._shape.schema)

    def divert(
        self, error: RowsRefusedError, netted: Netted, rejected: RejectedSinkRows, serial: int
    ) -> RejectedSinkRows:
        """Return the rejected rows including those of a change that were rejected just now. SinkError if rejected rows stop
        the sink, or there are more than `ROWS_MAX`."""
        shape, first = self._shape, error.refused[0]
        if self._on_error == "stop" or self._letters is None:
            raise SinkError(
                f"the target of sink {shape.sink!r} rejects a row of view {shape.view!r}: {first.reason}",
                detail=f"the row is {shown(netted.rows.slice(first.index), 1)}",
                hint="correct the row at its source, or change the target to accept it; on_error = 'divert' writes rejected rows to a "
                "topic and continues",
                sink=shape.sink,
                view=shape.view,
                reason="rejected-row",
            ) from error
        rejected = rejected.with_rejected(netted.rows, netted.change, error.refused, serial)
        if len(rejected) > ROWS_MAX:
            raise SinkError(
                f"the target of sink {shape.sink!r} rejects more than {ROWS_MAX:,} rows: {first.reason}",
                hint="that many rows are not diverted: compare the columns of the view with those that the target accepts",
                sink=shape.sink,
                rows=len(rejected),
                rows_max=ROWS_MAX,
            ) from error
        return rejected

    def report_rejected(self, rejected: RejectedSinkRows, checkpoint: SinkCheckpoint) -> None:
        """Report the rows that were rejected last as dead letters. They may have been reported already; the receiver detects
        that by their serial."""
        if not len(rejected) or self._letters is None:
            return
        serial = int(rejected.letters.max())
        last = rejected.take(np.flatnonzero(rejected.letters == serial))
        self._letters(Letters(self._shape.sink, serial, checkpoint.tick, last.rows, last.reasons))
