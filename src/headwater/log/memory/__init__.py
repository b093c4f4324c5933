"""The log in memory: the readable specification of what every backend does."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.log.memory.log import MemoryLog

__all__ = ["MemoryLog"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater.log.memory' has no attribute {name!r}")
    return getattr(import_module("headwater.log.memory.log"), name)
