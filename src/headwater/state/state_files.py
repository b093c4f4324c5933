"""File names below `state/`, and the rule by which a file that no manifest names is garbage. Performs no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

FOLDER = "state"
MANIFESTS = "state/manifests"
RUNS = "state/runs"
CUTS = "state/cuts"
EXCHANGE = "state/exchange"

_MANIFEST = re.compile(r"^(\d{12})\.json$")
_RUNS = re.compile(r"^(\d{12})-(\d+)-([0-9a-z]+)(?:-\d+)?\.runs$")
_EXCHANGE = re.compile(r"^(\d{12})-(\d+)-([0-9a-z]+)-\d+$")
_TEMPORARY = re.compile(r"^(\d{12})\.(\d+)\.tmp$")
_LOCK_TEMPORARY = re.compile(r"engine-\d+\.[0-9a-f]+\.tmp")
EXCHANGE_FILES = re.compile(r"(?:input|output)-[0-9a-f-]+\.arrow")
"""Pattern of the files in an exchange folder."""
OWN = {
    MANIFESTS: re.compile(r"\d{12}\.(?:json|\d+\.tmp)"),
    RUNS: re.compile(r"\d{12}-\d+-[0-9a-z]+(?:-\d+)?\.runs"),
    EXCHANGE: re.compile(rf"\d{{12}}-\d+-[0-9a-z]+-\d+/{EXCHANGE_FILES.pattern}"),
}
"""Patterns of the files that the engine writes below `state/`, by folder. Other files are foreign and are not removed."""
_LOCK = re.compile(r"^engine-(\d+)\.lock$")


@dataclass(frozen=True)
class FileOrigin:
    """The origin of a file: the engine's `epoch`, the `tick` in progress, and the `attempt` at it."""

    tick: int
    epoch: int
    attempt: str = ""

    def is_past(self, tick: int, epoch: int) -> bool:
        """Whether a file that no manifest names can never be named any more, once `epoch` has committed `tick`.

        An engine of an older epoch can commit nothing after that. An engine of a newer epoch may be preparing its first tick.
        """
        return self.epoch < epoch or (self.epoch == epoch and self.tick <= tick)


def manifest_name(tick: int) -> str:
    """Return the name of a tick's manifest."""
    return f"{MANIFESTS}/{tick:012d}.json"


@lru_cache(maxsize=1 << 14)  # the folder is listed repeatedly
def manifest_tick(file: str) -> int | None:
    """Return the tick of a file in the manifests folder; None if the file is not a manifest."""
    match = _MANIFEST.match(file)
    return int(match[1]) if match else None


def temporary_name(tick: int, epoch: int) -> str:
    """Return the temporary name of a manifest before it is committed."""
    return f"{MANIFESTS}/{tick:012d}.{epoch}.tmp"


@lru_cache(maxsize=1 << 14)
def temporary_origin(file: str) -> FileOrigin | None:
    """Return the origin of an uncommitted manifest; None if the file is something else."""
    match = _TEMPORARY.match(file)
    return FileOrigin(int(match[1]), int(match[2])) if match else None


def runs_name(origin: FileOrigin, number: int) -> str:
    """Return the name, within the runs folder, of file number `number` of an attempt."""
    suffix = f"-{number}" if number else ""
    return f"{origin.tick:012d}-{origin.epoch}-{origin.attempt}{suffix}.runs"


def runs_origin(file: str) -> FileOrigin | None:
    """Return the origin of a file in the runs folder; None if it is not a file of runs."""
    match = _RUNS.match(file)
    return FileOrigin(int(match[1]), int(match[2]), match[3]) if match else None


def exchange_name(origin: FileOrigin, number: int) -> str:
    """Return the name, within the exchange folder, of the folder of step number `number` of an attempt."""
    return f"{origin.tick:012d}-{origin.epoch}-{origin.attempt}-{number}"


def exchange_origin(folder: str) -> FileOrigin | None:
    """Return the origin of an exchange folder; None if it is something else."""
    match = _EXCHANGE.match(folder)
    return FileOrigin(int(match[1]), int(match[2]), match[3]) if match else None


def lock_name(epoch: int) -> str:
    """Return the name of an engine's lock file, which the engine keeps locked while it runs."""
    return f"{FOLDER}/engine-{epoch}.lock"


def lock_epoch(file: str) -> int | None:
    """Return the epoch of a lock file; None if the file is something else."""
    match = _LOCK.match(file)
    return int(match[1]) if match else None


def lock_temporary(epoch: int, attempt: str) -> str:
    """Return the temporary name of a lock file before the epoch is claimed."""
    return f"{FOLDER}/engine-{epoch}.{attempt}.tmp"


def is_lock_temporary(file: str) -> bool:
    """Whether a file is the temporary lock file of an attempt to claim an epoch."""
    return _LOCK_TEMPORARY.fullmatch(file) is not None
