"""In-memory log: the log protocol over plain lists and dicts, as a readable specification of every backend.

Called by testing, workspace; imports catalog, core, privacy, modules of log.

In import order, bottom to top:

    memory_groups     consumer groups: members and assignments
    memory_partition  records of one partition: append, read, seek, expire, compact
    memory_producers  idempotent producers: epoch, last sequence, latest receipts
    memory_stage      a staged append: batches until it is committed
    memory_topic      a topic: its definition and its partitions
    memory_append     routing and checks of an append, without side effects
    memory_log        `MemoryLog`: the whole protocol
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.log.memory.memory_log import MemoryLog

__all__ = ["MemoryLog"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater.log.memory' has no attribute {name!r}")
    return getattr(import_module("headwater.log.memory.memory_log"), name)
