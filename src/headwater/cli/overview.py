"""The live table of `headwater run` at a terminal: sources, topics, views and sinks, with their rates and lags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headwater.cli.output import cell
from headwater.views.view_status import standings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headwater.connectors.health.health import Health
    from headwater.log.protocol import Log
    from headwater.state.manifest import Manifest


BAD = ("stopped", "failed", "retrying", "behind", "upstream stopped")
"""States that are shown in red."""


@dataclass(frozen=True)
class Line:
    """A row of the table: a topic, source, view or sink. Numbers that do not apply, or are not available yet, are None."""

    kind: str
    name: str
    state: str
    rows: int | None = None
    per_second: float | None = None
    behind: int | None = None


class Overview:
    """Computes the rows of the table, with rates since the previous call."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._before: dict[tuple[str, str], int] = {}
        self._sampled_ms: float | None = None

    def sample(
        self,
        manifest: Manifest | None,
        sources: Mapping[str, Mapping[str, Any]],
        sinks: Mapping[str, Mapping[str, Any]],
        now_ms: float,
        health: Health | None = None,
    ) -> list[Line]:
        """Return the rows of the table. `sources` and `sinks` are the facts that their runners report; unhealthy states
        replace them."""
        counts: dict[tuple[str, str], int] = {}
        lines = []
        for name, facts in sorted(sources.items()):
            counts["source", name] = int(facts.get("rows") or 0)
            lines.append(Line("source", name, "running" if facts.get("up", True) else "failed"))
        for name in sorted(self._log.topics()):
            if not name.startswith("_"):  # topics of the workspace's own
                counts["topic", name] = sum(info.end for info in self._log.partitions(name).values())
                lines.append(Line("topic", name, ""))
        for view in standings(self._log, manifest):
            counts["view", view.view] = view.ledger["read"]
            lines.append(Line("view", view.view, view.status, behind=view.behind_rows))
        for name, facts in sorted(sinks.items()):
            counts["sink", name] = int(facts["status"]["applied_rows"])
            lines.append(Line("sink", name, facts["status"]["state"], behind=facts["lag"]["rows"]))
        seconds = None if self._sampled_ms is None else (now_ms - self._sampled_ms) / 1_000
        found = [
            Line(
                line.kind,
                line.name,
                _state(line, health),
                counts[line.kind, line.name],
                self._rate(counts, (line.kind, line.name), seconds),
                line.behind,
            )
            for line in lines
        ]
        self._before, self._sampled_ms = counts, now_ms
        return found

    def _rate(
        self, counts: Mapping[tuple[str, str], int], place: tuple[str, str], seconds: float | None
    ) -> float | None:
        if not seconds or place not in self._before:
            return None
        return max(0, counts[place] - self._before[place]) / seconds  # counts restart at 0 with their thread


def _state(line: Line, health: Health | None) -> str:
    kind: Any = line.kind
    found = health.of(kind, line.name) if health is not None else None
    return line.state if found is None or found.severity == "ok" else found.state


def table_of(lines: list[Line], below: str) -> RenderableType:
    """Return the table, with lines below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_edge=False, header_style="dim")
    for name in ("", "name", "rows", "rows/s", "lag (rows)", "state"):
        numeric = name in ("rows", "rows/s", "lag (rows)")
        table.add_column(name, justify="right" if numeric else "left", no_wrap=True)
    for line in lines:
        style = "red" if line.state in BAD else ""
        rate = None if line.per_second is None else round(line.per_second)
        numbers = (cell(line.rows), cell(rate), "" if line.behind is None else cell(line.behind))
        table.add_row(Text(line.kind, "dim"), Text(line.name), *numbers, Text(line.state, style))
    return Group(table, Text(below))
