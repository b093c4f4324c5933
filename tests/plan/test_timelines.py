"""The timelines of docs/time.md are so: they are read from the page, and run line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.settings import LogSettings
from tests.repo.tree import ROOT, blocks

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "time.md"
HEADER = ("comes", "shown", "EMIT ON WINDOW CLOSE", "late = 'divert'")
VIEWS = {
    "shown": "CREATE MATERIALIZED VIEW {name} AS {query}",
    "final": "CREATE MATERIALIZED VIEW {name} AS {query} EMIT ON WINDOW CLOSE",
    "diverted": "CREATE MATERIALIZED VIEW {name} WITH (late = 'divert') AS {query} EMIT ON WINDOW CLOSE",
}
"""The views of a timeline, by the columns of its table."""
COMES = re.compile(r"(order|click|price|no price) ?(\w*) (\d\d:\d\d)")
DAY = datetime(2026, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Timeline:
    """A query, and what its views show after each thing that comes."""

    query: str
    steps: tuple[tuple[str, ...], ...]


def timelines() -> Iterator[Timeline]:
    """Those of the page: a table with the header belongs to the SQL before it."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    queries = {block.line: block.text for block in blocks(PAGE) if block.language == "sql"}
    query = ""
    steps: list[tuple[str, ...]] = []
    for number, line in enumerate([*lines, ""], start=1):
        query = queries.get(number, query)
        cells = tuple(cell.strip() for cell in line.split("|")[1:-1])
        if cells == HEADER:
            steps = []
        elif not cells and steps:
            yield Timeline(query, tuple(steps))
            steps = []
        elif len(cells) == len(HEADER) and COMES.fullmatch(cells[0]):
            steps.append(cells)


def declarations() -> str:
    return next(block.text for block in blocks(PAGE) if block.text.startswith("CREATE TOPIC orders"))


def comes(ws: hw.Workspace, what: str) -> None:
    """Append what a line says."""
    found = COMES.fullmatch(what)
    assert found is not None, what
    kind, name, clock = found.groups()
    hour, minute = map(int, clock.split(":"))
    row = {"item": "i", "at": DAY.replace(hour=hour, minute=minute)}
    if kind == "no price":
        ws.topic("prices").append([{**row, "_op": "delete"}])
    elif kind == "price":
        ws.topic("prices").append([{**row, "price": name}])
    else:
        ws.topic(f"{kind}s").append([{**row, "id": name}])


def contents(ws: hw.Workspace, view: str) -> list[str]:
    """The rows of a view as the page writes them."""
    rows = ws.view(view).read().to_pylist()
    return sorted(" ".join(_written(value) for value in row.values()) for row in rows)


def _written(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:%H:%M}" if isinstance(value, datetime) else str(value)


TIMELINES = list(timelines())


def test_the_page_has_timelines_of_windows_and_joins() -> None:
    told = " ".join(timeline.query for timeline in TIMELINES)
    for word in ("window(", "cumulate_window(", "session_window(", "OVER (", "BETWEEN", "SYSTEM_TIME"):
        assert word in told
    assert len(TIMELINES) >= 9
    assert all(len(timeline.steps) >= 4 for timeline in TIMELINES)


@pytest.mark.parametrize("timeline", TIMELINES, ids=lambda timeline: timeline.query[:60])
def test_a_timeline_is_as_the_page_says(timeline: Timeline, tmp_path: Path, spark: Any) -> None:
    settings = LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "w", spark=spark, settings=settings) as ws:
        ws.sql(declarations())
        for name, statement in VIEWS.items():
            ws.sql(statement.format(name=name, query=timeline.query))
        story = []
        for what, *expected in timeline.steps:
            comes(ws, what)
            ws.run()
            story.append(what)
            for view, cell in zip(VIEWS, expected, strict=True):
                told = sorted(filter(None, (row.strip() for row in cell.split(","))))
                assert contents(ws, view) == told, f"{view} after {'; '.join(story)}"
        assert ws.verify().ok
