"""`Queue` for asyncio: its methods, awaitable. Calls run in threads, so that calls of concurrent tasks share commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from headwater.core.errors import LeaseLostError
from headwater.queues.message import Message, Messages, Receiving, Span, error_summary

PIECE_S = 0.5
"""Longest single wait in a thread: a wait is split, so that a cancelled task leaves no thread behind for longer."""


class AsyncQueue:
    """A queue for asyncio: `async for message in queue`, and awaitable `receive`, `ack`, `nack`, `release` and `extend`."""

    def __init__(self, queue: Receiving) -> None:
        self.queue = queue

    async def receive(self, max: int = 1, wait: float | None = 0, **options: Any) -> Messages:
        """Receive messages as `Queue.receive` does. Messages that a cancelled call still gets are given back at once."""
        until = None if wait is None else self._steady_s() + wait
        while True:
            left = PIECE_S if until is None else min(PIECE_S, until - self._steady_s())
            call = asyncio.ensure_future(
                asyncio.to_thread(self.queue.receive, max, 0 if left < 0 else left, **options)
            )
            try:
                messages = await asyncio.shield(call)
            except asyncio.CancelledError:
                call.add_done_callback(self._give_back)
                raise
            options.pop("ack", None)
            if messages or left <= 0:
                return messages

    async def ack(self, messages: Any) -> None:
        """Acknowledge messages as done; see `Queue.ack`."""
        await asyncio.to_thread(self.queue.ack, messages)

    async def nack(
        self, messages: Any, *, delay: Span | None = None, error: str | None = None, final: bool = False
    ) -> None:
        """Give messages back as not done; see `Queue.nack`."""
        await asyncio.to_thread(partial(self.queue.nack, messages, delay=delay, error=error, final=final))

    async def release(self, messages: Any) -> None:
        """Give messages back unprocessed; see `Queue.release`."""
        await asyncio.to_thread(self.queue.release, messages)

    async def extend(self, messages: Any, lease: Span | None = None) -> None:
        """Extend the leases of messages; see `Queue.extend`."""
        await asyncio.to_thread(self.queue.extend, messages, lease)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Iterate over messages, waiting for more; the caller acknowledges each or gives it back."""
        while True:
            for message in await self.receive(1, None):
                yield message

    async def work(
        self, handler: Callable[[Message], Awaitable[object]], *, tasks: int = 1, delay: Span | None = None
    ) -> None:
        """Call `await handler(message)` for every message, in `tasks` concurrent tasks, until this call is cancelled;
        messages being handled then are given back."""

        async def loop() -> None:
            async for message in self:
                try:
                    await handler(message)
                except asyncio.CancelledError:
                    if not message.settled:
                        with suppress(LeaseLostError):
                            self.queue.nack(message)
                    raise
                except Exception as error:  # noqa: BLE001 - a handler may raise anything; the message stores the error
                    await self._settled(self.nack(message, delay=delay, error=error_summary(error)))
                else:
                    if not message.settled:
                        await self._settled(self.ack(message))

        async with asyncio.TaskGroup() as group:
            for _ in range(tasks):
                group.create_task(loop())

    @staticmethod
    async def _settled(call: Awaitable[None]) -> None:
        try:
            await call
        except LeaseLostError:
            pass  # the message is delivered again

    def _steady_s(self) -> float:
        return self.queue.clock.steady_ms() / 1e3

    def _give_back(self, call: asyncio.Future[Messages]) -> None:
        if not call.cancelled() and call.exception() is None and call.result():
            self.queue.release(call.result())
