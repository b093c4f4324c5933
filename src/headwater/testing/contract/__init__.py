"""Log contract: what every log backend must do, as tests; one class to subclass, one module per subject.

Called by tests, through `headwater.testing`; imports catalog, core, log.

In import order, bottom to top:

    contract_base           base class of all subjects: a log per test, short append and read
    appending               partition, offset and append time; all or nothing
    backpressure            backpressure
    catalog                 catalog entries
    commit_ids              commit ids and receipts
    cursors                 cursors: named consumer positions
    cuts                    consistent cuts
    deletion                private columns, forgetting and excision
    device_clocks           device clocks
    groups                  consumer groups: one member per partition, fencing
    idempotent_producers    idempotent producers: retries answered, old epochs fenced
    maintenance             what maintenance may and may not remove
    optimistic_concurrency  optimistic concurrency
    producer_watermarks     producer watermarks
    reading                 half-open ranges, whole commits, selected columns
    staging                 staged atomic appends
    topic_names             case-insensitive topic names
    topics                  creating, altering and dropping topics
    types                   values of every type, unchanged
    waiting                 waiting without polling
    watermarks              watermarks, and seeking by time
    suite                   `LogContract`: all subjects in one class
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.testing.contract.suite import LogContract

__all__ = ["LogContract"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater.testing.contract' has no attribute {name!r}")
    return getattr(import_module("headwater.testing.contract.suite"), name)
