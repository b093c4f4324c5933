"""An atomic append in progress, in memory: a list of batches until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from headwater.core.errors import UsageError
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, CursorMove, Producer


class MemoryStage:
    """See Stage. If a commit raises, the stage is unchanged and the commit can be retried."""

    def __init__(self, append: Callable[[Append], Receipt], producer: Producer | None = None) -> None:
        """Begin a stage. `producer` is the producer that `commit` will name, if already known: see `Log.stage`."""
        self._append = append
        self._adds_up = producer is not None and producer.exact
        self._batches: dict[str, list[pa.RecordBatch]] = {}
        self._incarnations: dict[str, int] = {}
        self._ended = False

    def add(self, topic: str, batch: pa.RecordBatch, incarnation: int | None = None) -> None:
        """See Stage."""
        self._check_going_on()
        if incarnation is not None:
            self._incarnations.setdefault(topic, incarnation)
        self._batches.setdefault(topic, []).append(batch)

    def commit(
        self,
        *,
        producer: Producer | None = None,
        expect: Mapping[str, int | Mapping[Any, int]] | None = None,
        moves: tuple[CursorMove, ...] = (),
    ) -> Receipt:
        """See Stage."""
        self._check_going_on()
        if producer is not None and not self._adds_up:
            producer = replace(producer, exact=False)
        receipt = self._append(Append(self._batches, producer, expect or {}, moves, self._incarnations))
        self._ended = True
        return receipt

    def abort(self) -> None:
        """See Stage. Has no effect if the stage has ended already."""
        self._ended = True
        self._batches = {}

    def _check_going_on(self) -> None:
        if self._ended:
            raise UsageError("this transaction has ended", hint="begin a new one", reason="ended")
