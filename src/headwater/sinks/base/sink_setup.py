"""The inputs of a target: the declaration of its sink, and the resources of the workspace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from headwater.core.arguments import whole_number
from headwater.log.protocol import Log
from headwater.sinks.base.at_least_once import LogKeeper

Function = Callable[[pa.Table, str], object]
"""A user's function that takes a change and its idempotency key; its return value is ignored."""


@dataclass(frozen=True)
class SinkSetup:
    """The inputs of a target, from which the class method `declared` of its class creates it."""

    sink: str
    options: Mapping[str, Any]
    """Options of the WITH clause, with values from the environment resolved."""
    place: Path
    """Folder for data of the sink without another location."""
    log: Log
    functions: Mapping[str, Function]
    """Functions of the user by name, as far as this process has declared them."""
    private: Mapping[str, str]
    """Columns that are private in the copy, each with the column of its subject."""

    def count(self, name: str, usual: int) -> int:
        """Return an option that is a whole number of at least 1."""
        return whole_number(self.options.get(name, usual), name, least=1)

    def keeper(self, of: str) -> LogKeeper:
        """Return the checkpoint storage for a target that cannot be read; `of` identifies the receiver."""
        return LogKeeper(self.log, self.sink, of=of, workspace=self.place.parent.parent)


def names(given: Any) -> tuple[str, ...]:
    """Return the column names in an option such as `'country'` or `'shop, id'`."""
    return tuple(name.strip().strip("`") for name in str(given).split(",")) if given else ()
