"""What every log backend must do, as tests: one class to subclass, one module per subject."""

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
