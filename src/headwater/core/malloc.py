"""Keeps freed memory in the process for the next tick, if the C library supports it.

glibc returns large blocks, and the end of its heap, to the system as soon as they are free, and a tick of a million rows
allocates and frees hundreds of megabytes: without this a tenth to a fifth of its time goes into the system clearing the same
pages again.
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
    """Keep up to half a gigabyte of freed memory in the process; MALLOC_* environment variables take precedence."""
    if not sys.platform.startswith("linux") or any(name.startswith("MALLOC_") for name in os.environ):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
