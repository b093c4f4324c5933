"""Names of the files below `state/`, and when a file that no manifest names is garbage. Reads and writes nothing."""

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
"""What is in the folder of an exchange."""
OWN = {
    MANIFESTS: re.compile(r"\d{12}\.(?:json|\d+\.tmp)"),
    RUNS: re.compile(r"\d{12}-\d+-[0-9a-z]+(?:-\d+)?\.runs"),
    EXCHANGE: re.compile(rf"\d{{12}}-\d+-[0-9a-z]+-\d+/{EXCHANGE_FILES.pattern}"),
}
"""What the engine writes below `state/`, by the folder that it is in. Other files there are somebody else's and stay."""
_LOCK = re.compile(r"^engine-(\d+)\.lock$")


@dataclass(frozen=True)
class FileOrigin:
    """Who wrote a file: the engine of `epoch`, on the way to `tick`, in one `attempt`."""

    tick: int
    epoch: int
    attempt: str = ""

    def is_past(self, tick: int, epoch: int) -> bool:
        """Whether no commit can name the file any more, if it is not named yet, once `epoch` has committed `tick`.

        An engine of an older epoch can commit nothing after that. One of a newer epoch is just preparing its first.
        """
        return self.epoch < epoch or (self.epoch == epoch and self.tick <= tick)


def manifest_name(tick: int) -> str:
    """The manifest of a tick."""
    return f"{MANIFESTS}/{tick:012d}.json"


@lru_cache(maxsize=1 << 14)  # the folder is listed again and again
def manifest_tick(file: str) -> int | None:
    """The tick of a file in the folder of manifests; None if it is none."""
    match = _MANIFEST.match(file)
    return int(match[1]) if match else None


def temporary_name(tick: int, epoch: int) -> str:
    """What a manifest is called before it is committed."""
    return f"{MANIFESTS}/{tick:012d}.{epoch}.tmp"


@lru_cache(maxsize=1 << 14)
def temporary_origin(file: str) -> FileOrigin | None:
    """Who wrote a manifest that was not committed; None if the file is something else."""
    match = _TEMPORARY.match(file)
    return FileOrigin(int(match[1]), int(match[2])) if match else None


def runs_name(origin: FileOrigin, number: int) -> str:
    """The file, within the folder of runs, that is number `number` of an attempt."""
    suffix = f"-{number}" if number else ""
    return f"{origin.tick:012d}-{origin.epoch}-{origin.attempt}{suffix}.runs"


def runs_origin(file: str) -> FileOrigin | None:
    """Who wrote a file in the folder of runs; None if it is something else."""
    match = _RUNS.match(file)
    return FileOrigin(int(match[1]), int(match[2]), match[3]) if match else None


def exchange_name(origin: FileOrigin, number: int) -> str:
    """The folder, within that of exchanges, of step number `number` of an attempt."""
    return f"{origin.tick:012d}-{origin.epoch}-{origin.attempt}-{number}"


def exchange_origin(folder: str) -> FileOrigin | None:
    """Who made a folder of an exchange; None if it is something else."""
    match = _EXCHANGE.match(folder)
    return FileOrigin(int(match[1]), int(match[2]), match[3]) if match else None


def lock_name(epoch: int) -> str:
    """The file of the engine of an epoch, which it holds the lock of as long as it lives."""
    return f"{FOLDER}/engine-{epoch}.lock"


def lock_epoch(file: str) -> int | None:
    """The epoch of such a file; None if it is something else."""
    match = _LOCK.match(file)
    return int(match[1]) if match else None


def lock_temporary(epoch: int, attempt: str) -> str:
    """What such a file is called before the epoch is taken."""
    return f"{FOLDER}/engine-{epoch}.{attempt}.tmp"


def is_lock_temporary(file: str) -> bool:
    """Whether an attempt to take an epoch made the file."""
    return _LOCK_TEMPORARY.fullmatch(file) is not None
