"""A queue for asyncio: the same calls, awaited. They run in threads, where those of many tasks share a commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from headwater.core.errors import LeaseLostError
from headwater.queues.message import Message, Messages, Receiving, Span, said

PIECE_S = 0.5
"""A wait is made of pieces, so that a task that is cancelled leaves no thread behind for longer."""


class AsyncQueue:
    """`async for message in queue`, and `await queue.aio.receive(...)`, `ack`, `nack`, `release`, `extend`."""

    def __init__(self, queue: Receiving) -> None:
        self.queue = queue

    async def receive(self, max: int = 1, wait: float | None = 0, **options: Any) -> Messages:
        """As `Queue.receive`. What a call that was cancelled still gets is given back at once."""
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
        """As `Queue.ack`."""
        await asyncio.to_thread(self.queue.ack, messages)

    async def nack(
        self, messages: Any, *, delay: Span | None = None, error: str | None = None, final: bool = False
    ) -> None:
        """As `Queue.nack`."""
        await asyncio.to_thread(partial(self.queue.nack, messages, delay=delay, error=error, final=final))

    async def release(self, messages: Any) -> None:
        """As `Queue.release`."""
        await asyncio.to_thread(self.queue.release, messages)

    async def extend(self, messages: Any, lease: Span | None = None) -> None:
        """As `Queue.extend`."""
        await asyncio.to_thread(self.queue.extend, messages, lease)

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Messages one by one, waiting for more; each is yours to acknowledge or to give back."""
        while True:
            for message in await self.receive(1, None):
                yield message

    async def work(
        self, handler: Callable[[Message], Awaitable[object]], *, tasks: int = 1, delay: Span | None = None
    ) -> None:
        """Have `await handler(message)` called for every message, in so many tasks, until this is cancelled: what is being
        handled then is given back."""

        async def loop() -> None:
            async for message in self:
                try:
                    await handler(message)
                except asyncio.CancelledError:
                    if not message.settled:
                        with suppress(LeaseLostError):
                            self.queue.nack(message)
                    raise
                except Exception as error:  # noqa: BLE001 - a handler may raise anything; the message says what
                    await self._settled(self.nack(message, delay=delay, error=said(error)))
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
            pass  # it comes again

    def _steady_s(self) -> float:
        return self.queue.clock.steady_ms() / 1e3

    def _give_back(self, call: asyncio.Future[Messages]) -> None:
        if not call.cancelled() and call.exception() is None and call.result():
            self.queue.release(call.result())
