"""What is remembered of idempotent producers: the epoch, the last sequence, the latest receipts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headwater.errors import AlreadyWrittenError, FencedError
from headwater.log.protocol import Producer, ProducerInfo
from headwater.positions import Receipt


@dataclass
class History:
    """Of one producer name, over the whole workspace and all its epochs."""

    epoch: int
    last: int
    receipts: dict[int, Receipt] = field(default_factory=dict)
    note: Mapping[str, Any] | None = None


class Producers:
    """Every producer that has appended."""

    def __init__(self, receipts_max: int) -> None:
        self._receipts_max = receipts_max
        self._histories: dict[str, History] = {}

    def check(self, producer: Producer) -> Receipt | None:
        """The first receipt of a sequence that is known; None if this is to be written; an error if it must not be."""
        history = self._histories.get(producer.name)
        if history is None:
            return None
        if producer.epoch < history.epoch:
            raise FencedError(
                f"producer {producer.name!r} of epoch {producer.epoch} was fenced off by epoch {history.epoch}",
                hint="another instance of this producer has taken over: stop this one",
                producer=producer.name,
                epoch=producer.epoch,
                current=history.epoch,
            )
        if producer.sequence in history.receipts:
            return history.receipts[producer.sequence]
        if producer.sequence <= history.last:
            raise AlreadyWrittenError(
                f"sequence {producer.sequence} of producer {producer.name!r} is older than the receipts that are kept",
                detail=f"its last sequence is {history.last}",
                hint="go on with a higher sequence",
                producer=producer.name,
                sequence=producer.sequence,
                last=history.last,
            )
        return None

    def raise_epoch(self, producer: Producer) -> bool:
        """From now on older epochs are fenced; whether that is news."""
        history = self._histories[producer.name]
        raised = producer.epoch > history.epoch
        history.epoch = producer.epoch
        return raised

    def remember(self, producer: Producer, receipt: Receipt) -> None:
        """A sequence has been written."""
        history = self._histories.setdefault(producer.name, History(producer.epoch, producer.sequence))
        history.epoch, history.last = producer.epoch, producer.sequence
        history.receipts[producer.sequence] = receipt
        while len(history.receipts) > self._receipts_max:
            del history.receipts[min(history.receipts)]
        if producer.note is not None:
            history.note = dict(producer.note)

    def info(self, name: str) -> ProducerInfo | None:
        """What is known of one."""
        history = self._histories.get(name)
        return None if history is None else ProducerInfo(history.last, history.epoch, history.note)
