"""An atomic append made step by step: everything in it becomes visible at once, or nothing does."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from headwater.errors import FencedError, UsageError
from headwater.log.appending import Expect, append_rows, stage_rows
from headwater.log.cursor import Consumer
from headwater.log.protocol import CursorMove, Log, Producer, Stage
from headwater.positions import Receipt


class Transaction:
    """Use it in a `with` block: committed at its end, given up if an exception leaves it. May exceed memory."""

    def __init__(
        self,
        log: Log,
        *,
        producer: Producer | None = None,
        expect: dict[str, Expect] | None = None,
        commit: Consumer | None = None,
    ) -> None:
        self._log = log
        self._producer = producer
        self._expect = expect
        self._consumer = commit
        self._stage: Stage | None = None
        self.receipt: Receipt | None = None
        """Set when the transaction was committed."""

    def __enter__(self) -> Transaction:
        self._stage = self._log.stage()
        return self

    def append(self, topic: str, rows: Any) -> None:
        """Add rows; they are checked at once, and visible when the block ends."""
        if self._stage is None:
            raise UsageError(
                "a transaction takes rows inside its with block", hint="with ws.transaction() as tx: ..."
            )
        stage_rows(self._stage, rows, self._log.topic(topic))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stage, self._stage = self._stage, None
        if stage is None:
            return
        if kind is not None:
            stage.abort()
            return
        try:
            with Moving(self._consumer) as moves:
                self.receipt = stage.commit(producer=self._producer, expect=self._expect, moves=moves)
        except BaseException:
            stage.abort()
            raise


class Moving:
    """A consumer's move carried by an append: told afterwards whether it was stored or fenced."""

    def __init__(self, consumer: Consumer | None) -> None:
        self._consumer = consumer
        self._moves: tuple[CursorMove, ...] = ()

    def __enter__(self) -> tuple[CursorMove, ...]:
        if self._consumer is not None:
            move = self._consumer.pending_move()
            self._moves = (move,) if move.positions or move.lost else ()
        return self._moves

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._consumer is None:
            return
        if kind is None:
            for move in self._moves:
                self._consumer.committed(move)
        elif issubclass(kind, FencedError):
            self._consumer.refused()


def append_moving(
    log: Log,
    rows: dict[str, Any],
    *,
    producer: Producer | None,
    expect: dict[str, Expect] | None,
    commit: Consumer | None,
) -> Receipt:
    """Append to several topics in one commit, with a consumer's position moved in it."""
    with Moving(commit) as moves:
        return append_rows(log, rows, producer=producer, expect=expect, moves=moves)
