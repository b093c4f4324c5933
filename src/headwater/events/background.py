"""Something that goes on in a thread until it is told to stop: reactions and services."""

from __future__ import annotations

import abc
import threading

from headwater.errors import HeadwaterError, UsageError

LOOK_S = 0.5
"""How long it waits in silence before it looks whether it is to stop."""


class Background(abc.ABC):
    """`start` and `stop` for what can do a step."""

    name: str

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failure: BaseException | None = None

    @abc.abstractmethod
    def _step(self, timeout_s: float) -> None:
        """Do what there is to do, and wait so long for more."""

    def start(self) -> None:
        """Do what is there and what comes, in a thread, until `stop()`."""
        if self._thread is not None:
            raise UsageError(f"{self.name!r} runs already")
        self._stopping.clear()
        self._thread = threading.Thread(target=self._keep_going, name=self.name, daemon=True)
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

    def _keep_going(self) -> None:
        try:
            while not self._stopping.is_set():
                self._step(LOOK_S)
        except HeadwaterError as error:
            self._failure = error
