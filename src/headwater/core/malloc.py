"""Memory that is freed is kept for the next tick, as far as the C library lets itself be told.

glibc hands large blocks, and the end of its heap, back to the system as soon as they are free, and a tick of a million
rows makes and frees hundreds of megabytes: without this a tenth to a fifth of its time goes into having the system clear
the same pages again.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 512 << 20
_LARGE_BYTES = 256 << 20


@cache
def keep_freed_memory() -> None:
    """Keep up to half a gigabyte of freed memory in the process; MALLOC_* variables of the environment go first."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
