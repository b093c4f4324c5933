"""What commands print: tables that fit the terminal, JSON, errors as a sentence, a detail and a hint, and progress.

Results go to stdout; errors and progress go to stderr.
"""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Protocol

import click

from headwater.core.clock import SystemClock, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from headwater.core.errors import HeadwaterError

INPUT_FORMATS = ("json", "csv", "tsv", "parquet", "arrow")
"""What `headwater append` reads."""
PLAIN_LINE_SECONDS = 5.0
"""Without a terminal, progress is a line so often."""


def print_json(value: Any) -> None:
    """One JSON value, indented for a terminal and on one line elsewhere."""
    click.echo(json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def plain(value: Any) -> Any:
    """A value as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, datetime):
        return timestamp(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def print_listing(rows: Iterable[Mapping[str, Any]], *, as_json: bool, empty: str) -> None:
    """Rows as JSON or as a table; `empty` is the sentence for none."""
    listed = list(rows)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo(empty)
    else:
        print_table(listed)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A table that fits the terminal; elsewhere it is as wide as it needs to be."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    terminal = sys.stdout.isatty()
    table = Table(box=SIMPLE_HEAD if terminal else None, pad_edge=False, show_edge=False)
    for name in rows[0]:
        numeric = all(isinstance(r[name], (int, float)) and not isinstance(r[name], bool) for r in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row.values()))
    width = None if terminal else 10_000
    console = Console(file=sys.stdout, width=width, markup=False, highlight=False)
    console.print(table)


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, datetime):
        return timestamp(value.replace(microsecond=0))
    return value.isoformat() if isinstance(value, date) else str(value)


def shown_bytes(size: int) -> str:
    """A size for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def print_error(error: HeadwaterError) -> None:
    """An error as people read it."""
    click.echo(f"error: {error.message}", err=True)
    if error.detail:
        click.echo(f"detail: {error.detail}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(note, err=True)


class ReportAdvance(Protocol):
    """Says how much is done, with a word on it; `total` if that is another than it was."""

    def __call__(self, done: int, note: str, total: int | None = None) -> None:
        """Show it."""
        ...


@contextmanager
def progress(what: str, total: int | None, *, unit: str = "bytes") -> Iterator[ReportAdvance]:
    """Show progress while the block runs; call what it gives with what is done so far."""
    if sys.stderr.isatty():
        with _bar(what, total, unit) as advance:
            yield advance
    else:
        yield _lines(what, total, unit)


@contextmanager
def _bar(what: str, total: int | None, unit: str) -> Iterator[ReportAdvance]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn()
        if unit == "bytes"
        else TextColumn("{task.completed:,.0f} of {task.total:,.0f} " + unit),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}", markup=False),  # last: what a narrow terminal cuts off
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total, note="")

        def advance(done: int, note: str, total: int | None = None) -> None:
            bar.update(task, completed=done, note=note, total=total)

        yield advance


def _lines(what: str, total: int | None, unit: str) -> ReportAdvance:
    clock = SystemClock()
    last = clock.steady_ms()
    whole = total

    def advance(done: int, note: str, total: int | None = None) -> None:
        nonlocal last, whole
        whole = total if total is not None else whole
        if clock.steady_ms() - last >= PLAIN_LINE_SECONDS * 1_000:
            last = clock.steady_ms()
            share = f" ({done / whole:.0%})" if whole else ""
            amount = shown_bytes(done) if unit == "bytes" else f"{done:,} {unit}"
            click.echo(f"{what}: {amount}{share} {note}".rstrip(), err=True)

    return advance
