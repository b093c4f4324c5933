"""What becomes of rows that a target refuses: the sink stops before them, or they are left out and told of."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from headwater.core.errors import RowsRefusedError
from headwater.sinks.base.net_changes import Netted
from headwater.sinks.base.rejected_rows import ROWS_MAX, Withheld
from headwater.sinks.base.sink_status import Letters, OnError
from headwater.sinks.base.target import SinkCheckpoint, SinkError, TargetShape
from headwater.sinks.base.text_values import shown


class Diversion:
    """The refused rows of one sink.

    `letters` takes rows that were refused, if they are to be diverted: it is called after they were left out, and is
    called again with the same letters if it is not known whether it came to its end.
    """

    def __init__(
        self, shape: TargetShape, on_error: OnError, letters: Callable[[Letters], None] | None
    ) -> None:
        self._shape = shape
        self._on_error = on_error
        self._letters = letters

    def withheld(self, stand: SinkCheckpoint | None) -> Withheld:
        """The rows that are left out of a target which stands there."""
        if stand is None:
            return Withheld.none(self._shape.schema)
        return Withheld.decode(stand.withheld, self._shape.schema)

    def divert(self, error: RowsRefusedError, netted: Netted, withheld: Withheld, serial: int) -> Withheld:
        """Leave out the rows of a change that were refused, beside those that are left out; SinkError if they are to stop the
        sink, or are too many."""
        shape, first = self._shape, error.refused[0]
        if self._on_error == "stop" or self._letters is None:
            raise SinkError(
                f"the target of sink {shape.sink!r} refuses a row of view {shape.view!r}: {first.reason}",
                detail=f"the row is {shown(netted.rows.slice(first.index), 1)}",
                hint="mend it where it comes from, or let the target take it; on_error = 'divert' leaves such rows out and "
                "puts them on a topic",
                sink=shape.sink,
            ) from error
        withheld = withheld.and_refused(netted.rows, netted.change, error.refused, serial)
        if len(withheld) > ROWS_MAX:
            raise SinkError(
                f"the target of sink {shape.sink!r} refuses more than {ROWS_MAX:,} rows: {first.reason}",
                hint="so many rows are not diverted: compare the columns of the view with what the target takes",
                sink=shape.sink,
            ) from error
        return withheld

    def tell_of(self, withheld: Withheld, stand: SinkCheckpoint) -> None:
        """Tell of the rows that were refused last: once more if that is so already, which is for the receiver to see."""
        if not len(withheld) or self._letters is None:
            return
        serial = int(withheld.letters.max())
        last = withheld.take(np.flatnonzero(withheld.letters == serial))
        self._letters(Letters(self._shape.sink, serial, stand.tick, last.rows, last.reasons))
