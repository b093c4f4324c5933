"""Test kit: contract suites for log backends, sources and sinks, and fault injection; also for users' own tests.

No module here imports pytest.

Called by tests; imports catalog, connectors, core, engine, log, operators, sinks, sources, state, views, workspace.

In import order, bottom to top:

    contract/        `LogContract`: what every log backend must do
    inspection       `inspect_workspace`: the ticks, engine and connectors of a workspace, for tests
    faults           `FaultyStorage`: crashes, power loss, I/O errors and bit flips on demand
    sinks/           `SinkContract`: what every sink target must do
    source_contract  `SourceContract`: what every source must do
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.core.clock import ManualClock
    from headwater.log.memory import MemoryLog
    from headwater.testing.contract import LogContract
    from headwater.testing.faults import Crash, FaultyStorage
    from headwater.testing.inspection import WorkspaceInspection, inspect_workspace
    from headwater.testing.sinks import AppendContract, SinkContract
    from headwater.testing.source_contract import SourceContract

__all__ = [
    "AppendContract",
    "Crash",
    "FaultyStorage",
    "LogContract",
    "ManualClock",
    "MemoryLog",
    "SinkContract",
    "SourceContract",
    "WorkspaceInspection",
    "inspect_workspace",
]

_HOMES = {
    "Crash": "headwater.testing.faults",
    "FaultyStorage": "headwater.testing.faults",
    "LogContract": "headwater.testing.contract",
    "ManualClock": "headwater.core.clock",
    "MemoryLog": "headwater.log.memory",
    "AppendContract": "headwater.testing.sinks",
    "SinkContract": "headwater.testing.sinks",
    "SourceContract": "headwater.testing.source_contract",
    "WorkspaceInspection": "headwater.testing.inspection",
    "inspect_workspace": "headwater.testing.inspection",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.testing' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
