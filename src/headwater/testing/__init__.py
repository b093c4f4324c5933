"""The test kit: what backends and pipelines are tested with. Nothing here imports pytest; the suites are for it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.clock import ManualClock
    from headwater.log.memory import MemoryLog
    from headwater.testing.contract import LogContract
    from headwater.testing.faults import Crash, FaultyStorage
    from headwater.testing.sinks import AppendContract, SinkContract
    from headwater.testing.sources import SourceContract

__all__ = [
    "AppendContract",
    "Crash",
    "FaultyStorage",
    "LogContract",
    "ManualClock",
    "MemoryLog",
    "SinkContract",
    "SourceContract",
]

_HOMES = {
    "Crash": "headwater.testing.faults",
    "FaultyStorage": "headwater.testing.faults",
    "LogContract": "headwater.testing.contract",
    "ManualClock": "headwater.clock",
    "MemoryLog": "headwater.log.memory",
    "AppendContract": "headwater.testing.sinks",
    "SinkContract": "headwater.testing.sinks",
    "SourceContract": "headwater.testing.sources",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
