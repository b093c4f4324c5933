"""The machine that figures were taken on, as far as it matters to them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa

import headwater


def describe(folder: Path) -> dict[str, str]:
    """Facts by name; `folder` is where the benchmark writes."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(folder),
        "python": platform.python_version(),
        "pyarrow": pa.__version__,
        "headwater": headwater.__version__,
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system; without the name of a device or a path."""
    if sys.platform == "darwin":
        return "apfs"
    done = subprocess.run(
        ["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"
