"""Counts of the rows that were left out: who left them out, what became of them, and where they can be looked at.

This module holds what a count is, and compares two of them. `headwater.connectors.health.rejected_counts` counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["source", "view", "sink", "queue"]
Outcome = Literal["rejected", "diverted", "late", "dropped"]
"""'rejected': refused, and only the count is kept (a webhook delivery, a malformed line of StatsD). 'diverted': refused and kept
as a dead letter. 'late': came too late for a view, and kept in `<view>.late`. 'dropped': left out and not kept (late rows of a
view with `late = 'drop'`, datagrams that nobody had room for)."""


@dataclass(frozen=True)
class RejectedRows:
    """The number of rows that a source, a view, a sink or a queue left out in one way."""

    kind: Kind
    name: str
    outcome: Outcome
    rows: int
    """All of them, as far as the log and the state know; of a webhook, all that its servers have stored or tell now."""
    open: int | None = None
    """Of dead letters: how many wait for somebody; None if the rows are no dead letters, or nobody can tell now."""
    where: str | None = None
    """The command that shows the rows."""
    unit: str = "rows"
    """What is counted: rows, lines, deliveries, datagrams or messages."""

    @property
    def noun(self) -> str:
        """The unit in the number of the count: `row` of one, `rows` of others."""
        if self.rows != 1:
            return self.unit
        return "delivery" if self.unit == "deliveries" else self.unit.removesuffix("s")

    @property
    def sentence(self) -> str:
        """The count for people, such as `2,000 rows rejected by source logs (headwater dead list logs)`."""
        unit = self.noun
        what = {
            "rejected": f"{unit} rejected by",
            "diverted": f"{unit} rejected by",
            "late": f"{unit} too late for",
            "dropped": f"late {unit} dropped by" if self.kind == "view" else f"{unit} dropped by",
        }[self.outcome]
        said = f"{self.rows:,} {what} {self.kind} {self.name}"
        return said if self.where is None else f"{said} ({self.where})"


def since(before: Iterable[RejectedRows], now: Iterable[RejectedRows]) -> Sequence[RejectedRows]:
    """What was left out between two counts. A count that fell, because a view was rebuilt, begins anew."""
    known = {(one.kind, one.name, one.outcome): one.rows for one in before}
    found = []
    for one in now:
        was = known.get((one.kind, one.name, one.outcome), 0)
        rows = one.rows - was if one.rows >= was else one.rows
        if rows:
            found.append(replace(one, rows=rows))
    return tuple(found)
