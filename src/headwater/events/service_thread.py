"""Something that goes on in a thread until it is told to stop: reactions and services."""

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

LOOK_S = 0.5
"""How long it waits in silence before it looks whether it is to stop."""
RETRY_S = 0.2
"""How long it rests after an error that may pass, such as a full disk; twice as long after each."""
RETRY_MAX_S = 10.0

_log = logging.getLogger("headwater")


class Background(abc.ABC):
    """`start` and `stop` for what can do a step."""

    name: str

    def __init__(self, faults: Faults, component: str) -> None:
        """`component` is the name under which a failure is reported to people."""
        self._component = Component(faults, "background", component)
        self._thread: WaitedThread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None
        self._loop: asyncio.Runner | None = None

    @abc.abstractmethod
    def _step(self, timeout_s: float) -> None:
        """Do what there is to do, and wait so long for more."""

    @property
    def failure(self) -> BaseException | None:
        """What has stopped it; None while nothing has."""
        return self._failure

    def start(self) -> None:
        """Do what is there and what comes, in a thread, until `stop()`."""
        if self._thread is not None and self._thread.is_alive():
            raise UsageError(f"{self.name!r} runs already")
        self._stopping.clear()
        self._failure = None
        self._thread = WaitedThread(self._keep_going, self.name)
        self._thread.start()

    def stop_soon(self) -> None:
        """Have it stop after what is being done, and wait for nothing."""
        self._stopping.set()

    def end(self, timeout_s: float) -> None:
        """Stop for good, whatever has become of it; what takes longer is left to its thread."""
        self.stop_soon()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def stop(self) -> None:
        """Stop after what is being done; raises the error that stopped it before, if one did."""
        if self._thread is None:
            return
        self._stopping.set()
        self._thread.join()
        self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self._component.works()  # an error that was retried is over, too: nothing is tried any more

    def _keep_going(self) -> None:
        pause_s = RETRY_S
        self._component.begin()
        while not self._stopping.is_set():
            try:
                self._step(LOOK_S)
                self._component.works()
                pause_s = RETRY_S
            except Exception as error:  # noqa: BLE001 - `stop` raises it; a thread has nobody else to tell
                if not (isinstance(error, HeadwaterError) and error.retryable):
                    self._failure = error
                    self._component.failed(error, "correct the cause, and start it again")
                    _log.error("%s has stopped: %s", self.name, error)
                    return
                self._component.failed(error)
                _log.warning("%s tries again in %.1f s: %s", self.name, pause_s, error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)

    def _plain(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function as it is, and a coroutine function as one that returns when it is done. All calls share one event loop, so
        that what is bound to it, such as connections, lives on from call to call."""
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        def awaited(*arguments: Any) -> Any:
            if self._loop is None:
                self._loop = asyncio.Runner()
                weakref.finalize(self, self._loop.close)
            return self._loop.run(function(*arguments))

        return awaited
