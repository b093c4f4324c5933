"""What a target is made of: the declaration of its sink, and what the workspace has for it."""

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
"""Takes a change and its idempotency key; what it returns is not looked at."""


@dataclass(frozen=True)
class SinkSetup:
    """What a target is made of. The class of a kind takes what it needs of it in its class method `declared`."""

    sink: str
    options: Mapping[str, Any]
    """What WITH says, with what stands in the environment looked up."""
    place: Path
    """A folder for what has no other place."""
    log: Log
    functions: Mapping[str, Function]
    """The user's, by name, as far as this process has declared them."""
    private: Mapping[str, str]
    """The columns that are private in a copy, by their subject's."""

    def count(self, name: str, usual: int) -> int:
        """An option that is a whole number from 1 up."""
        return whole_number(self.options.get(name, usual), name, least=1)

    def keeper(self, of: str) -> LogKeeper:
        """Who keeps the checkpoint, for a target that cannot be read; `of` says of whom."""
        return LogKeeper(self.log, self.sink, of=of, workspace=self.place.parent.parent)


def names(given: Any) -> tuple[str, ...]:
    """Columns as an option names them: `'country'`, or `'shop, id'`."""
    return tuple(name.strip().strip("`") for name in str(given).split(",")) if given else ()
