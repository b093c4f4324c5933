"""Background threads of reactions and services, which run until they are stopped."""

from __future__ import annotations

import abc
import asyncio
import functools
import inspect
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any

from headwater.core.errors import HeadwaterError, UsageError
from headwater.core.faults import Component, Faults
from headwater.core.parallel import WaitedThread

STOP_CHECK_S = 0.5
"""Time that a step waits without input before the thread checks whether to stop."""
RETRY_S = 0.2
"""Pause after a retryable error, such as a full disk; doubled after each further one."""
RETRY_MAX_S = 10.0

_log = logging.getLogger("headwater")


class Background(abc.ABC):
    """A task that runs step by step in a thread: `start` and `stop`."""

    name: str

    def __init__(self, faults: Faults, component: str) -> None:
        """`component` is the name under which failures are reported to people."""
        self._component = Component(faults, "background", component)
        self._thread: WaitedThread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.Runner | None = None

    @abc.abstractmethod
    def _step(self, timeout_s: float) -> None:
        """Process the present input, and wait up to `timeout_s` for more."""

    @property
    def failure(self) -> BaseException | None:
        """Error that has stopped the thread, or None."""
        return self._failure

    def start(self) -> None:
        """Process present and future input in a thread, until `stop()`."""
        if self._thread is not None and self._thread.is_alive():
            raise UsageError(
                f"{self.name!r} is already running",
                hint="call stop() before start()",
                reason="already-running",
                component=self.name,
            )
        self._stopping.clear()
        self._failure = None
        self._thread = WaitedThread(self._keep_going, self.name)
        self._thread.start()

    def stop_soon(self) -> None:
        """Request a stop after the current step, without waiting."""
        self._stopping.set()

    def end(self, timeout_s: float) -> None:
        """Stop for good and discard errors; after the timeout the thread is left to finish."""
        self.stop_soon()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def stop(self) -> None:
        """Stop after the current step; raises the error that stopped the thread before, if any."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        # clear the fault of a retried error, since nothing is retried any more
        self._component.works()

    def _keep_going(self) -> None:
        pause_s = RETRY_S
        self._component.begin()
        while not self._stopping.is_set():
            try:
                self._step(STOP_CHECK_S)
                self._component.works()
                pause_s = RETRY_S
            except Exception as error:  # noqa: BLE001 - `stop` raises it; a thread has no caller
                if not (isinstance(error, HeadwaterError) and error.retryable):
                    self._failure = error
                    self._component.failed(error, "correct the cause, then call start() again")
                    _log.error("%s stopped with an error: %s", self.name, error)
                    return
                self._component.failed(error)
                _log.warning("%s failed and retries in %.1f s: %s", self.name, pause_s, error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function unchanged, and a coroutine function as a function that returns when it is done. All calls share
        one event loop, so that objects bound to it, such as connections, survive from call to call."""
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        def awaited(*arguments: Any) -> Any:
            if self._loop is None:
                self._loop = asyncio.Runner()
                weakref.finalize(self, _close, self._loop)
            return self._loop.run(function(*arguments))

        return awaited


def _close(loop: asyncio.Runner) -> None:
    """Close an event loop. Garbage collection may call this in a thread that runs another loop, where it cannot be closed."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.close()
    else:
        thread = threading.Thread(target=loop.close)
        thread.start()
        thread.join()
