"""The few settings of a workspace, each with its unit, its default and the reason for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

from headwater.core.errors import UsageError

Durability = Literal["fsync", "group", "os"]
DURABILITIES: tuple[str, ...] = get_args(Durability)

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([KMGT]?)I?B?\s*$")
_SCALE = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class LogSettings:
    """Settings of the embedded log.

    `durability`: 'fsync' syncs before an append is acknowledged; 'group' does too, but lets concurrent appends wait for
    `group_window_ms` so that they share one sync; 'os' leaves it to the operating system, which is safe against the death of a
    process but not against loss of power.
    """

    durability: Durability = "fsync"
    group_window_ms: float = 2.0
    segment_bytes_max: int = 64 << 20
    """A segment is closed at this size: large enough to scan fast, small enough to rewrite within a second."""
    inline_bytes_max: int = 64 << 10
    """Appends up to this size are carried by the journal, so that one sync makes them durable in every partition."""
    staging_bytes_max: int = 32 << 20
    """A transaction that grows beyond this size is staged on disk."""
    checkpoint_bytes: int = 8 << 20
    checkpoint_records: int = 4_000
    """Size or number of records at which the journal is folded into a checkpoint, which bounds the time to open."""
    lock_timeout_ms: float = 3_000
    """A writer that holds the lock for longer (a frozen process) is fenced."""
    compaction_rows_max: int = 4_000_000
    """Number of records whose key hashes one compaction pass holds (24 bytes each); more records take more passes."""
    maintenance_every_ms: float = 5_000
    """Interval at which an appending process checks for segments to seal, remove or compact; 0 disables it."""
    receipts_max: int = 1_000
    """Number of receipts kept per producer, to answer retries."""


def parse_bytes(text: str | int) -> int:
    """Return a size such as '64 MB' (powers of 1024) in bytes."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    match = _SIZE.match(text.upper()) if isinstance(text, str) else None
    if not match:
        raise UsageError(
            f"{text!r} is not a size", hint="write it as a number and a unit, such as '512 MB'", value=text
        )
    return int(float(match[1]) * _SCALE[match[2]])


def format_bytes(size: int) -> str:
    """Return a size in the largest unit that divides it."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _SCALE[unit] == 0:
            return f"{size // _SCALE[unit]} {unit}B"
    return str(size)
