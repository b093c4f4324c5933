"""Figures for people: a table on a terminal, plain lines elsewhere, and the page `docs/benchmarks.md`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import LOWER_IS_BETTER, Row


def figure(value: float, unit: str) -> str:
    """A figure as precise as it is meant."""
    if unit in ("records/s", "MB/s"):
        digits = max(0, len(str(int(value))) - 3)
        return f"{round(value, -digits):,.0f}"
    return f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def goal(row: Row) -> str:
    """The goal with its sign, and whether it is met."""
    if row.goal is None:
        return ""
    sign = "<=" if row.unit in LOWER_IS_BETTER else ">="
    return f"{sign} {row.goal:,.0f}: {row.verdict}"


def cells(row: Row) -> tuple[str, ...]:
    """Name, best, median, ratio, goal."""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.name, figure(row.best, row.unit), figure(row.median, row.unit), row.unit, ratio, goal(row)


HEADINGS = ("", "best", "median", "unit", "ratio", "goal")


class Printer:
    """Shows rows as they come: gathered into tables on a terminal, a line each elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._waiting: list[Row] = []

    def title(self, name: str, title: str) -> None:
        """Begin a subject."""
        self._console.print(f"\n[bold]{title}[/bold] ({name})" if self._console.is_terminal else f"# {title}")

    def row(self, row: Row) -> None:
        """Show a row, now or with its group."""
        if not self._console.is_terminal:
            best, median, unit = cells(row)[1:4]
            said = [row.subject, row.group, row.name, f"best {best}", f"median {median}", unit]
            said += [f"ratio {row.ratio:.2f}"] if row.ratio is not None else []
            said += [f"goal {goal(row)}"] if row.goal is not None else []
            self._console.print(" | ".join(said), soft_wrap=True, markup=False, highlight=False)
            return
        if self._waiting and self._waiting[0].group != row.group:
            self.flush()
        self._waiting.append(row)

    def flush(self) -> None:
        """Show the table of the group that is complete."""
        if not self._waiting:
            return
        table = Table(title=self._waiting[0].group, title_justify="left", title_style="italic")
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading in ("best", "median", "ratio") else "left")
        for row in self._waiting:
            style = {"met": "green", "missed": "red"}.get(row.verdict, "yellow" if row.verdict else "")
            table.add_row(*cells(row), style=style)
        self._console.print(table)
        self._waiting = []


INTRODUCTION = """# Benchmarks

What the log costs and gives, measured by `make bench` on the machine below. Figures of a shared machine move by tens of
per cent from run to run; ratios within a table move less, because the alternatives take turns in one run. A ratio is
to the first row of its table. The goals are judged by the median.

A record is a click of about 100 bytes: a user, a time and a url of 80 characters. The yardsticks do less than
Headwater: SQLite is given rows as tuples and returns tuples, in one file without partitions; the plain file is bytes
at the end of a file and an `fsync`.

Views read events of eight columns, about 75 bytes each, a million to a tick. Structured Streaming reads from each file the
columns that the query needs, and keeps no log; Headwater first appends all eight to its log and syncs them, while its
engine makes a tick of what was appended before. Reading the file and appending is two thirds of the time where a tick has
little else to do (filter, group by 100 keys, tumbling window). Thirty views cost 2.9 times one: steps of one shape are
taken together, and what they write is one stream; what is left is a third of a millisecond a view.

Windows and joins in time drop late rows on both sides; sessions are shown when they are closed, because Spark does so
alone. What a join as of a time and a join of two changing tables are beside is no stream: Spark has none for them, and
computes all anew. What operators keep falls when runs are merged, so it is the most within 30 days.

Event sourcing executes commands on a thousand accounts, each acknowledged when it is durable: many callers share a commit, one alone
has one for each command. The package `eventsourcing` does the same on SQLite, with its cache of aggregates.

Standing queries are matched with documents of 100 words out of a vocabulary of 50,000, a thousand at a time, with scores and highlights. With ten
times as many queries of the same kind there are ten times as many matches, each of which is a row. tantivy has no standing queries; beside
it stands what its users do: index the batch, and run every query over it.

Patterns are a small payment, medium ones and a large one within an hour, of 100,000 accounts: in a view, which appends the payments
to its log, and in the kernels alone, which are given them in memory. So is Flink, with its state in memory and no checkpoints.

This page is written by `python -m benchmarks --write-docs` from the last run;
do not edit it.
"""


def page(machine: Mapping[str, str], subjects: Mapping[str, Mapping[str, Any]]) -> str:
    """`docs/benchmarks.md` from results as they are stored."""
    lines = [INTRODUCTION, "## The machine\n", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in machine.items()]
    rows = [Row(**plain) for subject in subjects.values() for plain in subject["rows"]]
    lines += ["\n## Goals\n", *_table((r for r in rows if r.goal is not None), place=True)]
    for subject in subjects.values():
        lines.append(f"\n## {subject['title']}")
        found = [Row(**plain) for plain in subject["rows"]]
        for group in dict.fromkeys(row.group for row in found):
            lines += [f"\n{group}:\n", *_table(row for row in found if row.group == group)]
    return "\n".join(lines) + "\n"


def _table(rows: Iterable[Row], *, place: bool = False) -> list[str]:
    headings = ("measured", *HEADINGS[1:])
    lines = [f"| {' | '.join(headings)} |", "| --- | ---: | ---: | --- | ---: | --- |"]
    for row in rows:
        name, *rest = cells(row)
        lines.append(f"| {f'{row.subject}, {row.group}: {name}' if place else name} | {' | '.join(rest)} |")
    return lines
