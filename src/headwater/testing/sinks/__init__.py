"""What every target of a sink must do, as tests: one class to subclass, and the parts it is made of."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.testing.sinks.appending import AppendContract
    from headwater.testing.sinks.feed import ScriptedFeed
    from headwater.testing.sinks.memory import MemoryPlace, MemoryTarget
    from headwater.testing.sinks.suite import SinkContract
    from headwater.testing.sinks.unsteady import UnsteadyTarget

__all__ = ["AppendContract", "MemoryPlace", "MemoryTarget", "ScriptedFeed", "SinkContract", "UnsteadyTarget"]

_HOMES = {
    "AppendContract": "appending",
    "MemoryPlace": "memory",
    "MemoryTarget": "memory",
    "ScriptedFeed": "feed",
    "SinkContract": "suite",
    "UnsteadyTarget": "unsteady",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.testing.sinks' has no attribute {name!r}")
    return getattr(import_module(f"headwater.testing.sinks.{_HOMES[name]}"), name)
