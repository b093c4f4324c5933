"""An atomic append made step by step: everything in it becomes visible at once, or nothing does."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from headwater.core.errors import FencedError, UsageError
from headwater.core.positions import Receipt
from headwater.log.append_rows import Expect, append_rows, check_expect, stage_rows
from headwater.log.cursor import Consumer
from headwater.log.protocol import CursorMove, Log, Producer, Stage


class Transaction:
    """A transaction, used in a `with` block: committed at its end, aborted if an exception leaves it. May exceed memory."""

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
        self._consumer = check_consumer(commit)
        self._failed: BaseException | None = None
        self._stage: Stage | None = None
        self.receipt: Receipt | None = None
        """Set when the transaction was committed."""

    def __enter__(self) -> Transaction:
        for topic, given in (self._expect or {}).items():
            check_expect(given, self._log.topic(topic))
        self._failed = None
        self._stage = self._log.stage(self._producer)
        return self

    def append(self, topic: str, rows: Any) -> None:
        """Add rows; they are checked at once, and visible when the block ends.

        Once an append has failed, even if its error was caught, the transaction cannot be committed.
        """
        if self._stage is None:
            raise UsageError(
                "a transaction takes rows only inside its with block",
                hint="with ws.transaction() as tx: ...",
                reason="not-open",
            )
        if self._failed is not None:
            raise _broken(self._failed)
        try:
            stage_rows(self._stage, rows, self._log.topic(topic))
        except BaseException as error:
            self._failed = error
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stage, self._stage = self._stage, None
        if stage is None:
            return
        if kind is not None or self._failed is not None:
            stage.abort()
            if kind is None and self._failed is not None:
                raise _broken(self._failed)
            return
        try:
            with Moving(self._consumer) as moves:
                expect = self._expect and {
                    topic: check_expect(given, self._log.topic(topic))
                    for topic, given in self._expect.items()
                }
                self.receipt = stage.commit(producer=self._producer, expect=expect, moves=moves)
        except BaseException:
            stage.abort()
            raise


def _broken(cause: BaseException) -> UsageError:
    return UsageError(
        "the transaction cannot be committed: an append of it failed",
        detail=f"nothing of it is written; the append failed with: {str(cause).splitlines()[0] if str(cause) else cause!r}",
        hint="let the error leave the with block, and begin a new transaction with rows that fit",
        reason="failed",
    )


def check_consumer(commit: Any) -> Consumer | None:
    """Return the value of `commit=` if it is a cursor, a member of a group or None; UsageError otherwise."""
    if commit is None or isinstance(commit, Consumer):
        return commit
    raise UsageError(
        f"commit must be a cursor or a member of a group, not {commit!r}",
        hint='ws.append(..., commit=ws.topic("clicks").cursor("mailer"))',
        argument="commit",
        value=commit,
    )


class Moving:
    """A consumer's move carried by an append. Afterwards the consumer is notified whether the move was stored or fenced."""

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
    with Moving(check_consumer(commit)) as moves:
        return append_rows(log, rows, producer=producer, expect=expect, moves=moves)
