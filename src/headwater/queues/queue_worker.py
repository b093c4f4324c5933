"""Worker threads of a queue: they receive messages, call a handler, and acknowledge what it processed, until they are
stopped."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any

from headwater.core.arguments import whole_number
from headwater.core.clock import Microseconds, parse_span_us, to_us
from headwater.core.errors import HeadwaterError, LeaseLostError, UsageError
from headwater.core.parallel import WaitedThread
from headwater.queues.message import Message, Messages, Receiving, Span, error_summary
from headwater.queues.queue_definition import delay_of

STOP_CHECK_S = 0.5
"""Interval, in seconds, at which a waiting thread checks whether it should stop."""
BACK_OFF = "1 second"
BACK_OFF_MAX_US = parse_span_us("10 minutes")
RETRY_S = 0.2
"""Seconds that a thread waits after a retryable error, such as a full disk."""


@dataclass(frozen=True)
class WorkReport:
    """The work of a worker: messages that its handler processed, messages on which it failed, and the duration."""

    handled: int
    failed: int
    seconds: float


@dataclass(frozen=True)
class WorkOptions:
    """The options of a worker, which `queue.work` takes as keywords."""

    threads: int = 1
    """Number of threads that receive and handle messages."""
    max: int = 1
    """Largest number of messages that a thread receives at once."""
    batch: bool = False
    """Call `handler(messages)` once for all received messages, instead of `handler(message)` for one after the other."""
    extend: bool = True
    """Extend the leases of messages for as long as the handler runs."""
    delay: Span = BACK_OFF
    """Time after which a message whose handler failed is handed out again, doubled with each delivery."""
    idle: float | None = None
    """Seconds without a message after which the worker ends; None to continue until `stop()`."""


class Worker:
    """Threads that call a handler in the background; a context manager that stops them gracefully at its end.

    `WorkOptions` has the number of threads, and what else may be chosen. When the handler returns, its message is
    acknowledged, in the same commit as the next receive; when it raises, the message is given back with the error. A
    handler may settle a message itself.
    """

    def __init__(self, queue: Receiving, handler: Callable[[Any], object], options: WorkOptions) -> None:
        if not callable(handler):
            raise UsageError(
                f"a handler must be a function of a message, not {handler!r}",
                hint="queue.work(send)",
                argument="handler",
                value=handler,
            )
        self._queue = queue
        self._handler = handler
        self._max = whole_number(options.max, "max", least=1)
        self._batch = options.batch
        self._delay_us = delay_of(options.delay)
        self._idle = options.idle
        self._stopping = threading.Event()
        self._guard = threading.Lock()
        self._held: dict[int, Messages] = {}
        self._handled = self._failed = 0
        self._error: BaseException | None = None
        self._started = self._steady_s()
        self._threads = [
            WaitedThread(self._loop, f"queue {queue.name} {n}")
            for n in range(whole_number(options.threads, "threads", least=1))
        ]
        self._keeper = WaitedThread(self._keep, f"queue {queue.name} leases")
        for thread in [*self._threads, *([self._keeper] if options.extend else [])]:
            thread.start()

    @property
    def working(self) -> bool:
        """Whether a worker thread is alive."""
        return any(thread.is_alive() for thread in self._threads)

    def stop(self, timeout: float | None = None) -> WorkReport:
        """Receive no more messages, wait for those being handled, and return a report."""
        self._stopping.set()
        return self.wait(timeout)

    def stop_soon(self) -> None:
        """Receive no more messages, and return at once."""
        self._stopping.set()

    def end(self, timeout_s: float) -> None:
        """Stop, without raising the worker's error; a handler that runs for longer than the timeout keeps its thread."""
        self.stop_soon()
        until, mine = self._steady_s() + timeout_s, threading.current_thread()
        keeper = [] if mine in self._threads else [self._keeper]  # which waits for this one
        for thread in (*self._threads, *keeper):
            if thread.ident is not None and thread is not mine:
                thread.join(max(0.0, until - self._steady_s()))

    def wait(self, timeout: float | None = None) -> WorkReport:
        """Wait until the worker ends: by `stop()`, because no message arrived (`idle`), or because the queue failed;
        raises that error."""
        for thread in self._threads:
            thread.join(timeout)
        if not any(thread.is_alive() for thread in self._threads):
            self._stopping.set()
            if self._keeper.ident is not None:
                self._keeper.join(timeout)
        if self._error is not None:
            raise self._error
        with self._guard:
            return WorkReport(self._handled, self._failed, self._steady_s() - self._started)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _steady_s(self) -> float:
        return self._queue.clock.steady_ms() / 1e3

    # --- threads ---------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        done: list[Message] = []
        quiet_since = self._steady_s()
        while not self._stopping.is_set():
            try:
                messages = self._queue.receive(self._max, STOP_CHECK_S, ack=done or None)
                done = []
            except LeaseLostError:  # the message is delivered elsewhere, so its handler may be called twice
                done = []
                continue
            except Exception as error:  # noqa: BLE001 - `wait` raises it; a thread has no caller to raise it to
                if not (isinstance(error, HeadwaterError) and error.retryable):
                    self._error = error
                    self._stopping.set()
                    break
                self._stopping.wait(RETRY_S)
                continue
            if messages:
                done = self._handle(messages)
                quiet_since = self._steady_s()
            elif self._idle is not None and self._steady_s() - quiet_since >= self._idle:
                break
        if done:
            self._acknowledge(done)

    def _acknowledge(self, done: list[Message]) -> None:
        try:
            self._queue.ack(done)
        except LeaseLostError:
            pass
        except HeadwaterError as error:
            self._error = self._error or error

    def _handle(self, messages: Messages) -> list[Message]:
        """Call the handler; returns the messages to acknowledge."""
        mine = threading.get_ident()
        with self._guard:
            self._held[mine] = messages
        done: list[Message] = []
        groups = [list(messages)] if self._batch else [[message] for message in messages]
        try:
            for number, group in enumerate(groups):
                if self._stopping.is_set() and number:
                    self._release([m for rest in groups[number:] for m in rest])
                    break
                try:
                    self._handler(messages if self._batch else group[0])
                except Exception as error:  # noqa: BLE001 - a handler may raise anything; the message stores the error
                    self._give_back(group, error)
                else:
                    done += [message for message in group if not message.settled]
                    with self._guard:
                        self._handled += len(group)
        finally:
            with self._guard:
                self._held.pop(mine, None)
        return done

    def _release(self, messages: list[Message]) -> None:
        """Give back messages that no handler has seen."""
        with suppress(LeaseLostError):
            self._queue.release([message for message in messages if not message.settled])

    def _give_back(self, messages: list[Message], error: BaseException) -> None:
        left = [message for message in messages if not message.settled]
        with self._guard:
            self._failed += len(messages)
        if not left:
            return
        final = self._is_final(error)
        pause = timedelta(microseconds=self._pause_us(max(message.deliveries for message in left)))
        with suppress(LeaseLostError):
            self._queue.nack(left, delay=None if final else pause, error=self._said(error), final=final)

    def _is_final(self, error: BaseException) -> bool:
        """Whether an error means that delivering its message again is useless."""
        return False

    def _pause_us(self, deliveries: int) -> Microseconds:
        """Return the pause before a message with so many deliveries is handed out again."""
        return min(self._delay_us << min(deliveries - 1, 32), max(BACK_OFF_MAX_US, self._delay_us))

    def _said(self, error: BaseException) -> str:
        """Return the text that is stored with a message for an error."""
        return error_summary(error)

    def _keep(self) -> None:
        """Extend the leases of messages being handled, well before they expire."""
        every_s = self._queue.definition.lease_us / 3e6
        while any(thread.is_alive() for thread in self._threads):
            if self._stopping.wait(min(every_s, STOP_CHECK_S)) and not self._held:
                return
            now_us = self._queue.clock.now_us()
            with self._guard:
                held = list(self._held.values())
            for messages in held:
                left = [m for m in messages if not m.settled]
                if left and min(to_us(m.until) for m in left) - now_us < 2e6 * every_s:
                    try:
                        self._queue.extend(left)
                    except HeadwaterError:
                        continue  # lost, or the log cannot be written now: the handler's end will show which
