"""Event sourcing: commands decided by aggregates, their events in the log, reactions and calls.

Needs the log alone and starts no JVM.

Called by deletion, workspace; imports catalog, core, log, privacy.

In import order, bottom to top:

    code_fingerprint  a fingerprint of code, which invalidates snapshots
    encrypted_state   states and answers of private aggregates, encrypted
    envelope          an event as recorded, and the outcome of a command
    event_positions   an index from key to records of a topic, kept up to date with the log
    field_types       Python types as column types, values both ways
    reservations      `Claim` and `Release`, as returned by `decide`
    service_thread    the thread of a reaction or a service
    aggregates        `Aggregate`: `decide`, `fold` and dataclasses, as users declare them
    command_log       answers of commands that left no event
    snapshots         stored snapshots of states
    claims            unique names claimed in the same commit as events
    event_schema      the topic of an aggregate: events as typed columns
    calls             request and reply over the log
    states            states from memory, a snapshot or the events
    command_loop      waiting commands decided in order and committed together
    aggregate_store   `Store`: send commands, load states and histories
    reactions         functions of events or view changes that send commands
    workspace_events  the workspace methods for event sourcing: stores, reactions, calls
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.core.errors import CommandRefusedError as Refused
    from headwater.events.aggregate_store import Send, Store
    from headwater.events.aggregates import Aggregate
    from headwater.events.calls import Call, Service
    from headwater.events.envelope import Context, History, Loaded, Outcome, Recorded, Step
    from headwater.events.reactions import Changed, Reacted, Reaction
    from headwater.events.reservations import Claim, Release

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
    "Aggregate": ("aggregates", "Aggregate"),
    "Claim": ("reservations", "Claim"),
    "Release": ("reservations", "Release"),
    "Call": ("calls", "Call"),
    "Service": ("calls", "Service"),
    **{name: ("reactions", name) for name in ("Changed", "Reacted", "Reaction")},
    "Send": ("aggregate_store", "Send"),
    "Store": ("aggregate_store", "Store"),
    **{name: ("envelope", name) for name in ("Context", "History", "Loaded", "Outcome", "Recorded", "Step")},
}


def __getattr__(name: str) -> Any:
    if name == "Refused":
        return import_module("headwater.core.errors").CommandRefusedError
    if name not in _HOMES:
        raise AttributeError(f"module 'headwater.events' has no attribute {name!r}")
    module, thing = _HOMES[name]
    return getattr(import_module(f"headwater.events.{module}"), thing)


def __dir__() -> list[str]:
    return __all__
