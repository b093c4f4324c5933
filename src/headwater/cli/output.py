"""Output of commands: tables that fit the terminal, JSON, errors as message, detail and hint, and progress.

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
"""Formats that `headwater append` reads."""
PLAIN_LINE_SECONDS = 5.0
"""Seconds between lines of progress without a terminal."""


def print_json(value: Any) -> None:
    """Print one JSON value, indented on a terminal, otherwise on one line."""
    click.echo(json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return a value as JSON types."""
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
    """Print rows as JSON or as a table; `empty` is printed instead of an empty table."""
    listed = list(rows)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo(empty)
    else:
        print_table(listed)


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table that fits the terminal; without a terminal it is as wide as needed."""
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
    """Return the text of a value in a table."""
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
    """Return a size formatted for people."""
    amount = float(size)
    for unit in ("B", "KB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def print_error(error: HeadwaterError) -> None:
    """Print an error to stderr: message, detail, hint, code and notes."""
    click.echo(f"error: {error.message}", err=True)
    if error.detail:
        click.echo(f"detail: {error.detail}", err=True)
    if error.hint:
        click.echo(f"hint: {error.hint}", err=True)
    click.echo(f"code: {error.code} (docs/error-codes.md)", err=True)
    for note in getattr(error, "__notes__", ()):
        click.echo(note, err=True)


class ReportAdvance(Protocol):
    """Reports progress: the amount done and a note; `total` if it has changed."""

    def __call__(self, done: int, note: str, total: int | None = None) -> None:
        """Show the progress."""
        ...


@contextmanager
def progress(what: str, total: int | None, *, unit: str = "bytes") -> Iterator[ReportAdvance]:
    """Show progress while the block runs; call the yielded function with the amount done so far."""
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
        TextColumn("{task.fields[note]}", markup=False),  # last: a narrow terminal cuts off the end
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
