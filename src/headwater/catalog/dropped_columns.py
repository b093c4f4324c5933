"""Columns of a topic that were dropped from the captured table: their state, and the resulting errors.

Such a column stays in the topic, so that old records can be read, and is NULL from then on. Views that read it stop at the
records before the change, until the user decides how they continue.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from headwater.core.errors import ColumnDroppedError
from headwater.core.types import quote

SchemaChanges = Literal["follow", "refuse"]
"""Reaction of a topic to changed columns of its captured table: it gets them too, or the capture of the table stops."""


@dataclass(frozen=True)
class DroppedColumn:
    """A column that is NULL from some record on."""

    column: str
    change: str
    """Description of the change, with its place and time."""
    sequence: int = 0
    """The last commit of the log before the change: views process everything up to it."""
    accepted: bool = False
    """Whether the user has accepted that views continue with NULL."""

    def to_json(self) -> list[Any]:
        """Return a plain form that `from_json` reads back."""
        return list(dataclasses.astuple(self))

    @classmethod
    def from_json(cls, plain: Iterable[Any]) -> DroppedColumn:
        """Return the column that `to_json` wrote."""
        return cls(*plain)

    def error(self, topic: str, view: str | None = None) -> ColumnDroppedError:
        """Return the error for a view that reads the column and therefore stops, or cannot be created, with its remedies."""
        instead = f"CREATE OR REPLACE MATERIALIZED VIEW {quote(view)}" if view else "write the query"
        return ColumnDroppedError(
            f"column {self.column!r} of topic {topic!r} no longer exists: {self.change}",
            detail="it is NULL in later records; earlier records keep their values",
            hint=f"{instead} without it, or ALTER TOPIC {quote(topic)} ALTER COLUMN {quote(self.column)} ACCEPT DROP "
            "lets views continue with NULL",
            topic=topic,
            column=self.column,
            view=view,
        )
