"""Columns of a topic that are no longer there where it is captured from: what is known of them, and what is said of them.

Such a column stays in the topic, so that old records can be read, and is NULL from then on. Views that read it stop at the
records before the change, until somebody says what is to become of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from headwater.core.errors import ColumnDroppedError
from headwater.core.types import quote

SchemaChanges = Literal["follow", "refuse"]
"""What a topic does when what it is captured from has other columns: it has them too, or its table stops."""


@dataclass(frozen=True)
class DroppedColumn:
    """A column that is NULL from some record on."""

    column: str
    change: str
    """What happened to it, in words, where and when."""
    sequence: int = 0
    """The last commit of the log before it: views take in everything up to there."""
    accepted: bool = False
    """Whether somebody has said that views may go on with NULL."""

    def to_json(self) -> list[Any]:
        """A plain form that `from_json` reads back."""
        return list(dataclasses.astuple(self))

    @classmethod
    def from_json(cls, plain: Iterable[Any]) -> DroppedColumn:
        """What `to_json` wrote."""
        return cls(*plain)

    def error(self, topic: str, view: str | None = None) -> ColumnDroppedError:
        """Why a view that reads it stops, or cannot be made, and what can be done."""
        instead = f"CREATE OR REPLACE MATERIALIZED VIEW {quote(view)}" if view else "write the query"
        return ColumnDroppedError(
            f"column {self.column!r} of topic {topic!r} is not there any more: {self.change}",
            detail="records from then on have NULL in it; those before keep their values, and can be read",
            hint=f"{instead} without it, or ALTER TOPIC {quote(topic)} ALTER COLUMN {quote(self.column)} ACCEPT DROP "
            "lets views go on with NULL",
            topic=topic,
            column=self.column,
            view=view,
        )
