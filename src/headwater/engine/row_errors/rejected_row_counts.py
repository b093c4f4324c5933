"""Counts of excluded rows: the component that excluded them, the outcome, and the command that shows them.

This module defines a count, and compares two of them. `headwater.connectors.health.rejected_counts` collects the counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["source", "view", "sink", "queue"]
Outcome = Literal["rejected", "diverted", "late", "dropped"]
"""'rejected': excluded, and only counted (a webhook delivery, a malformed line of StatsD). 'diverted': excluded and
stored as a dead letter. 'late': too late for a view, and stored in `<view>.late`. 'dropped': excluded and not stored
(late rows of a view with `late = 'drop'`, datagrams for which there was no buffer space)."""


@dataclass(frozen=True)
class RejectedRows:
    """The number of rows that a source, a view, a sink or a queue has excluded with one outcome."""

    kind: Kind
    name: str
    outcome: Outcome
    rows: int
    """Total number, as far as the log and the state record it; for a webhook, all that its servers have stored or
    report now."""
    open: int | None = None
    """Number of dead letters that wait for an action; None if the rows are not dead letters, or the number is not
    available now."""
    where: str | None = None
    """The command that shows the rows."""
    unit: str = "rows"
    """The unit of the count: rows, lines, deliveries, datagrams or messages."""

    @property
    def noun(self) -> str:
        """The unit in singular or plural, according to the count."""
        if self.rows != 1:
            return self.unit
        return "delivery" if self.unit == "deliveries" else self.unit.removesuffix("s")

    @property
    def sentence(self) -> str:
        """The count as a sentence, such as `2,000 rows rejected by source logs (headwater dead list logs)`."""
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
    """Return the rows that were excluded between two counts; a count that fell, because a view was rebuilt, starts
    again at zero."""
    known = {(one.kind, one.name, one.outcome): one.rows for one in before}
    found = []
    for one in now:
        was = known.get((one.kind, one.name, one.outcome), 0)
        rows = one.rows - was if one.rows >= was else one.rows
        if rows:
            found.append(replace(one, rows=rows))
    return tuple(found)
