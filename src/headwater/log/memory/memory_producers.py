"""State of idempotent producers: the epoch, the last sequence, the latest receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.core.errors import AlreadyWrittenError, FencedError
from headwater.core.positions import Receipt
from headwater.log.protocol import Producer, ProducerInfo
from headwater.log.repeated_appends import Sums, check_repeat


@dataclass
class ProducerHistory:
    """History of one producer name, over the whole workspace and all its epochs."""

    epoch: int
    last: int
    receipts: dict[int, Receipt] = field(default_factory=dict)
    note: Mapping[str, Any] | None = None
    sums: dict[int, Sums] = field(default_factory=dict)
    """Sums of the rows by sequence, where they are known."""


class Producers:
    """Histories of every producer that has appended."""

    def __init__(self, receipts_max: int) -> None:
        self._receipts_max = receipts_max
        self._histories: dict[str, ProducerHistory] = {}

    def check(self, producer: Producer, sums: Sums | None) -> Receipt | None:
        """Return the first receipt of a sequence that was written; None if the sequence is new. FencedError or
        AlreadyWrittenError if it must not be written. `sums` are those of the rows that come with it."""
        history = self._histories.get(producer.name)
        if history is None:
            return None
        if producer.epoch < history.epoch:
            raise FencedError(
                f"producer {producer.name!r} of epoch {producer.epoch} was fenced by epoch {history.epoch}",
                hint="stop this producer: a newer instance has taken over",
                producer=producer.name,
                epoch=producer.epoch,
                current=history.epoch,
            )
        if producer.sequence in history.receipts:
            receipt = history.receipts[producer.sequence]
            if producer.exact:
                check_repeat(producer, receipt, history.sums.get(producer.sequence), sums)
            return receipt
        if producer.sequence <= history.last:
            raise AlreadyWrittenError(
                f"sequence {producer.sequence} of producer {producer.name!r} is too old: the last one written is {history.last}",
                detail="its receipt is no longer kept, or the sequence was skipped",
                hint="use a higher sequence",
                producer=producer.name,
                sequence=producer.sequence,
                last=history.last,
            )
        return None

    def raise_epoch(self, producer: Producer) -> bool:
        """Fence all older epochs; return whether the epoch rose."""
        history = self._histories[producer.name]
        raised = producer.epoch > history.epoch
        history.epoch = producer.epoch
        return raised

    def remember(self, producer: Producer, receipt: Receipt, sums: Sums | None) -> None:
        """Record that a sequence was written, with rows that have the sums `sums`."""
        history = self._histories.setdefault(
            producer.name, ProducerHistory(producer.epoch, producer.sequence)
        )
        history.epoch, history.last = producer.epoch, producer.sequence
        history.receipts[producer.sequence] = receipt
        if sums is not None:
            history.sums[producer.sequence] = sums
        while len(history.receipts) > self._receipts_max:
            oldest = min(history.receipts)
            del history.receipts[oldest]
            history.sums.pop(oldest, None)
        if producer.note is not None:
            history.note = dict(producer.note)

    def excised(self, topic: int) -> None:
        """Remove the sums of appends to a topic of which records were excised."""
        for history in self._histories.values():
            history.sums = {s: one for s, one in history.sums.items() if str(topic) not in one}

    def info(self, name: str) -> ProducerInfo | None:
        """Return the state of a producer, or None if it is unknown."""
        history = self._histories.get(name)
        return None if history is None else ProducerInfo(history.last, history.epoch, history.note)
