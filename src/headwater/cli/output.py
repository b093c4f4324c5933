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

from headwater.cli.tables import Column, fact_lines, table_lines, width, wrapped
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


def print_listing(
    rows: Iterable[Mapping[str, Any]], *, as_json: bool, empty: str, optional: Sequence[str] = ()
) -> None:
    """Print rows as JSON or as a table; `empty` is printed instead of an empty table. `optional` is as in `print_table`."""
    listed = list(rows)
    if as_json:
        print_json(listed)
    elif not listed:
        click.echo(empty)
    else:
        print_table(listed, optional)


def print_table(rows: Sequence[Mapping[str, Any]], optional: Sequence[str] = ()) -> None:
    """Print a table that fits the terminal, or 80 columns without one. Columns of `optional` that have no value in any
    row are left out; if the table is too wide, others of them are left out, too, the first one first."""
    columns = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in optional and all(value in (None, "", 0, "-") for value in values):
            continue
        known = [value for value in values if value is not None]
        numeric = bool(known) and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known)
        rank = len(optional) - optional.index(name) if name in optional else 0
        columns.append(Column(name, [cell(value) for value in values], numeric, rank))
    echo_table(columns, width())


def echo_table(columns: Sequence[Column], room: int) -> None:
    """Print a table of at most `room` characters a line; on a terminal the header is bold, with a line below it."""
    header, lines = table_lines(columns, room)
    terminal = sys.stdout.isatty()
    for line in header:
        click.echo(click.style(line, bold=True) if terminal else line)
    if terminal and header:
        click.echo(click.style("─" * max(map(len, (*header, *lines))), dim=True))
    for line in lines:
        click.echo(line)


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print a line for each fact; long values continue in lines below, indented."""
    for line in fact_lines([(name, cell(value)) for name, value in facts], width()):
        click.echo(line)


def print_text(text: str, *, indent: int = 0, err: bool = False) -> None:
    """Print a sentence, wrapped to the width, with further lines indented."""
    first, *more = wrapped(text, width() - indent)
    for line in (first, *(f"{'':{indent}}{line}" for line in more)):
        click.echo(line, err=err)


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


def shown_seconds(seconds: float) -> str:
    """Return a duration formatted for people: one unit, about two digits."""
    for unit, length in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


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
