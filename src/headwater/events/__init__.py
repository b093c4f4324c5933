"""Event sourcing: commands are decided, events are kept, and states, reactions and answers follow from them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.errors import CommandRefusedError as Refused
    from headwater.events.aggregate import Aggregate
    from headwater.events.calls import Call, Service
    from headwater.events.reactions import Changed, Reacted, Reaction
    from headwater.events.recorded import Context, History, Loaded, Outcome, Recorded, Step
    from headwater.events.reservations import Claim, Release
    from headwater.events.store import Send, Store

__all__ = [
    "Aggregate",
    "Call",
    "Changed",
    "Claim",
    "Context",
    "History",
    "Loaded",
    "Outcome",
    "Reacted",
    "Reaction",
    "Recorded",
    "Refused",
    "Release",
    "Send",
    "Service",
    "Step",
    "Store",
]

_HOMES = {
    "Aggregate": ("aggregate", "Aggregate"),
    "Claim": ("reservations", "Claim"),
    "Release": ("reservations", "Release"),
    "Call": ("calls", "Call"),
    "Service": ("calls", "Service"),
    **{name: ("reactions", name) for name in ("Changed", "Reacted", "Reaction")},
    "Send": ("store", "Send"),
    "Store": ("store", "Store"),
    **{name: ("recorded", name) for name in ("Context", "History", "Loaded", "Outcome", "Recorded", "Step")},
}


def __getattr__(name: str) -> Any:
    if name == "Refused":
        return import_module("headwater.errors").CommandRefusedError
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.events' has no attribute {name!r}")
    module, thing = _HOMES[name]
    return getattr(import_module(f"headwater.events.{module}"), thing)


def __dir__() -> list[str]:
    return __all__
