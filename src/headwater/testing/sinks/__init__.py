"""Sink contract: what every sink target must do, as tests, with a scripted view and injected faults.

Called by tests, through `headwater.testing`; imports core, operators, sinks, state, testing.faults.

In import order, bottom to top:

    failing_target        `UnsteadyTarget`: a target that fails on demand
    memory_target         `MemoryTarget`: the reference target, a dict
    scripted_feed         `ScriptedFeed`: a view written tick by tick
    sink_bench            base class of the tests: view, target, processes
    versions_contract     the contract of versions (blue/green)
    append_only_contract  `AppendContract`, for append-only targets
    sink_contract         `SinkContract`: one class to subclass
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.testing.sinks.append_only_contract import AppendContract
    from headwater.testing.sinks.failing_target import UnsteadyTarget
    from headwater.testing.sinks.memory_target import MemoryPlace, MemoryTarget
    from headwater.testing.sinks.scripted_feed import ScriptedFeed
    from headwater.testing.sinks.sink_contract import SinkContract

__all__ = ["AppendContract", "MemoryPlace", "MemoryTarget", "ScriptedFeed", "SinkContract", "UnsteadyTarget"]

_HOMES = {
    "AppendContract": "append_only_contract",
    "MemoryPlace": "memory_target",
    "MemoryTarget": "memory_target",
    "ScriptedFeed": "scripted_feed",
    "SinkContract": "sink_contract",
    "UnsteadyTarget": "failing_target",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.testing.sinks' has no attribute {name!r}")
    return getattr(import_module(f"headwater.testing.sinks.{_HOMES[name]}"), name)
