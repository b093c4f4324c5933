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
    """Settings of the embedded log, which `hw.open(settings=...)` takes."""

    durability: Durability = "fsync"
    """When an append is acknowledged. 'fsync': after a sync. 'group': after a sync that concurrent appends share. 'os': without a
    sync, which survives the death of a process but not a loss of power."""
    group_window_ms: float = 2.0
    """With 'group': time that an append waits for others to share its sync."""
    segment_bytes_max: int = 64 << 20
    """A segment is closed at this size: large enough to scan fast, small enough to rewrite within a second."""
    inline_bytes_max: int = 64 << 10
    """Appends up to this size are carried by the journal, so that one sync makes them durable in every partition."""
    staging_bytes_max: int = 32 << 20
    """A transaction that grows beyond this size is staged on disk."""
    checkpoint_bytes: int = 8 << 20
    """Size at which the journal is folded into a checkpoint, which bounds the time to open."""
    checkpoint_records: int = 4_000
    """Number of records at which the journal is folded into a checkpoint."""
    lock_timeout_ms: float = 3_000
    """A writer that holds the lock for longer (a frozen process) is fenced."""
    compaction_rows_max: int = 4_000_000
    """Number of records whose key hashes one compaction pass holds (24 bytes each); more records take more passes."""
    maintenance_every_ms: float = 5_000
    """Interval at which an appending process checks for segments to seal, remove or compact; 0 disables it."""
    receipts_max: int = 1_000
    """Number of receipts kept per producer, to answer retries."""


@dataclass(frozen=True)
class EnvironmentVariable:
    """A variable of the environment that Headwater reads; the module that uses a variable reads it by its name."""

    name: str
    default: str
    """The value, or a phrase that says what applies without the variable."""
    meaning: str


ENVIRONMENT = (
    EnvironmentVariable(
        "HEADWATER_WORKSPACE", "the current folder", "Workspace of the command line, if `-w` is not given."
    ),
    EnvironmentVariable(
        "HEADWATER_FUNCTIONS",
        "none",
        "Python module whose `declare(ws)` declares functions, if `--functions` is not given.",
    ),
    EnvironmentVariable(
        "HEADWATER_LOG",
        "info",
        "Level of the log file of `run` and `serve`: `debug`, `info`, `warning`, `error` or `off`.",
    ),
    EnvironmentVariable("HEADWATER_DEBUG", "not set", "With `1`, errors are printed with their traceback."),
    EnvironmentVariable(
        "HEADWATER_KEYS",
        "`<workspace>.keys`, next to the workspace",
        "Folder of the keys of private columns, never inside the workspace.",
    ),
    EnvironmentVariable(
        "HEADWATER_KMS",
        "none",
        "Object that wraps the master key of private columns, as `module:name`, with `wrap(bytes)` and `unwrap(bytes)`.",
    ),
    EnvironmentVariable(
        "HEADWATER_MEMORY",
        "a quarter of the memory of the machine, or of the limit of the container",
        "Memory that a tick may use for its rows, such as `4 GB`.",
    ),
    EnvironmentVariable(
        "HEADWATER_PLACEMENT",
        "auto",
        "Where steps of ticks run: `driver`, in the process of the engine; `tasks`, in tasks of Spark; `auto`, by size on a cluster.",
    ),
    EnvironmentVariable(
        "HEADWATER_PLACED_ROWS_MIN",
        "500000; 200000 for rankings",
        "With `auto`: number of rows from which a step is divided among tasks, in local mode too if the variable is set.",
    ),
    EnvironmentVariable(
        "HEADWATER_SPARK_*",
        "none",
        "Setting of Spark: `HEADWATER_SPARK_DRIVER_MEMORY` is `spark.driver.memory`.",
    ),
    EnvironmentVariable(
        "HEADWATER_NATIVE_OFF",
        "not set",
        "If set, Spark evaluates every expression, for comparison with the evaluation on Arrow.",
    ),
    EnvironmentVariable(
        "HEADWATER_DEMO_SECONDS", "120", "Duration of `headwater demo`, if `--seconds` is not given."
    ),
    EnvironmentVariable(
        "_HEADWATER_COMPLETE", "not set", "Set by the script of `headwater completion` for the shell."
    ),
)
"""Every variable that Headwater reads, besides those of OpenTelemetry and Java."""


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
