"""Faults: errors of background threads, stored in the workspace until the work succeeds again.

A fault belongs to a component: the engine, a source, a sink, or a piece of background work such as maintenance. Each is one
small file, so that processes report and clear faults without waiting for each other, and a process that starts later still
finds them. Faults describe the present: a cleared fault leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final, Literal

import orjson

from headwater.core.clock import Clock, Microseconds
from headwater.core.errors import HeadwaterError
from headwater.core.storage import Storage
from headwater.core.trusted_clock import Doubt

FOLDER = "faults"
FaultKind = Literal["engine", "source", "sink", "background", "clock"]
CLOCK: Final = "clock"
REASON_CHARACTERS_MAX = 2_000


@dataclass(frozen=True)
class Fault:
    """An error that prevents the work of a component. `since` is when the component began to fail."""

    kind: FaultKind
    name: str
    reason: str
    hint: str | None
    since: Microseconds


class Faults:
    """The faults of a workspace. All methods are safe to call from any thread and any process."""

    def __init__(self, storage: Storage | None, clock: Clock) -> None:
        """Create the faults of a workspace; `storage` is None for a workspace in memory."""
        # A process may change its working directory: a relative path would then lead to another workspace.
        self._storage = Storage(storage.root.absolute()) if type(storage) is Storage else storage
        self._clock = clock
        self._guard = threading.Lock()
        self._unwritten: dict[tuple[str, str], Fault] = {}
        """Faults without a file: those of a workspace in memory, and those that a full disk had no room for."""

    def report(self, kind: FaultKind, name: str, error: BaseException | str, hint: str | None = None) -> None:
        """Record that a component fails. The time of its first failure is kept."""
        reason, hint = described(error, hint)
        with self._guard:
            known = self._unwritten.pop((kind, name), None) or self._stored(_file(kind, name))
            fault = Fault(kind, name, reason, hint, self._clock.now_us() if known is None else known.since)
            try:
                if self._storage is None or not self._storage.root.is_dir():  # do not recreate the folder
                    self._unwritten[kind, name] = fault
                elif fault != known or not self._storage.exists(_file(kind, name)):
                    self._storage.make_dirs(FOLDER)
                    self._storage.put(_file(kind, name), orjson.dumps(asdict(fault)))
            except (HeadwaterError, OSError):
                self._unwritten[kind, name] = fault

    def clear(self, kind: FaultKind, name: str) -> None:
        """Record that a component works. Costs one look at the folder if there is nothing to clear."""
        with self._guard, suppress(HeadwaterError, OSError):
            self._unwritten.pop((kind, name), None)
            if self._storage is not None and self._storage.exists(_file(kind, name)):
                self._storage.remove(_file(kind, name))

    def current(self) -> list[Fault]:
        """Return every fault, by kind and name. A file that cannot be read is left out."""
        with self._guard:
            found = dict(self._unwritten)
        if self._storage is not None:
            with suppress(HeadwaterError, OSError):
                for name in self._storage.list(FOLDER):
                    fault = self._stored(f"{FOLDER}/{name}") if name.endswith(".json") else None
                    if (
                        fault is not None and _file(fault.kind, fault.name) == f"{FOLDER}/{name}"
                    ):  # skip copies
                        found[fault.kind, fault.name] = fault
        return [fault for _, fault in sorted(found.items())]

    def _stored(self, file: str) -> Fault | None:
        if self._storage is None:
            return None
        try:
            return Fault(**orjson.loads(self._storage.read(file)))
        except (HeadwaterError, OSError, ValueError, TypeError):
            return None


class Component:
    """Reports whether one component fails or works. Accesses the disk only on a change, so that it can be called at every
    step."""

    def __init__(self, faults: Faults, kind: FaultKind, name: str) -> None:
        self._faults = faults
        self._kind = kind
        self._name = name
        self._is_well: bool | None = None
        """None before the first step: an earlier process may have reported a fault."""

    def begin(self) -> None:
        """Start working: another process may have reported or cleared the fault since the last step here."""
        self._is_well = None

    def failed(self, error: BaseException | str, hint: str | None = None) -> None:
        """Report the fault of the component."""
        self._is_well = False
        self._faults.report(self._kind, self._name, error, hint)

    def works(self) -> None:
        """Clear the fault of the component, if there is one."""
        if self._is_well is not True:
            self._is_well = True
            self._faults.clear(self._kind, self._name)


def report_clock(faults: Faults, doubt: Doubt | None) -> None:
    """Report that the wall clock is in doubt, or reliable again."""
    if doubt is None:
        faults.clear(CLOCK, CLOCK)
    else:
        faults.report(CLOCK, CLOCK, doubt.reason, doubt.hint)


def _file(kind: str, name: str) -> str:
    """Return the file of a fault. The file is named by a digest, because names may have any characters."""
    return f"{FOLDER}/{kind}-{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"


def described(error: BaseException | str, hint: str | None) -> tuple[str, str | None]:
    """Return the reason and the hint of an error, as shown to users. `hint` takes precedence over the error's own."""
    if isinstance(error, HeadwaterError):
        detail = f": {error.detail}" if error.detail else ""
        return f"{error.message}{detail}"[:REASON_CHARACTERS_MAX], hint or error.hint
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return text[:REASON_CHARACTERS_MAX], hint
