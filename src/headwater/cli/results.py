"""Prints results of statements for people: rows in columns, facts as lines. Values are printed whole.

At a terminal rows fit its width; a pipe gets a line per row."""

from __future__ import annotations

import json
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.listings import OF_STATEMENTS
from headwater.cli.output import echo_table, plain, print_json, print_listing
from headwater.cli.output import print_facts as print_pairs
from headwater.cli.tables import Column, width

if TYPE_CHECKING:
    import pyarrow as pa

TERMINAL_ROWS_MAX = 1_000
"""Maximum number of rows printed on a terminal; a pipe and --json get all."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def print_rows(table: pa.Table, *, as_json: bool) -> None:
    """Print the result of a query."""
    if as_json:
        from headwater.core.json_csv import distinct

        names = distinct(table.column_names)
        print_json([dict(zip(names, row, strict=True)) for row in _values(table)])
    elif not table.num_rows:
        click.echo("no rows")
    elif sys.stdout.isatty():
        _print_fitting(table.slice(0, TERMINAL_ROWS_MAX))
        if table.num_rows > TERMINAL_ROWS_MAX:
            click.echo(
                f"the first {TERMINAL_ROWS_MAX:,} of {table.num_rows:,} rows; a pipe or --json gets all"
            )
    else:
        _print_aligned(table)


def print_result(kind: str, table: pa.Table | None, *, as_json: bool, sentence: str = "done") -> None:
    """Print the result of a statement; `kind` is its name in `headwater.sql.statements`. `sentence` is printed if it has no
    result."""
    if table is None:
        if as_json:
            print_json({"ok": True})
        else:
            click.echo(sentence)
    elif kind in ("Explain", "ExplainQuery"):
        print_facts(table, as_json=as_json)
    elif kind == "Query":
        print_rows(table, as_json=as_json)
    elif (listing := OF_STATEMENTS.get(kind)) is not None:
        listing.print(table.to_pylist(), as_json=as_json)
    else:
        print_listing(table.to_pylist(), as_json=as_json, empty="no rows")


def print_facts(table: pa.Table, *, as_json: bool) -> None:
    """Print the result of EXPLAIN: a line per fact, then the facts of several lines, each as a block."""
    facts = dict(zip(table.column(0).to_pylist(), table.column(1).to_pylist(), strict=True))
    if as_json:
        print_json([{"property": name, "value": value} for name, value in facts.items()])
        return
    single = {name: value for name, value in facts.items() if "\n" not in value}
    print_pairs((name, _printable(value)) for name, value in single.items())
    for name, value in facts.items():
        if name not in single:
            click.echo(f"\n{name}")
            for line in value.splitlines():
                click.echo(f"  {_printable(line)}")


def shown(value: Any) -> str:
    """Return the whole text of a value in a result."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        return _printable(json.dumps(value, ensure_ascii=False))
    return _printable(str(value))


def _values(table: pa.Table) -> list[tuple[Any, ...]]:
    """Return the rows, with values as JSON types."""
    from headwater.core.json_csv import json_encoder

    columns = []
    for field, column in zip(table.schema, table.columns, strict=True):
        encode = json_encoder(field.type)
        columns.append([plain(v if v is None or encode is None else encode(v)) for v in column.to_pylist()])
    return list(zip(*columns, strict=True))


def _numeric(table: pa.Table) -> list[bool]:
    import pyarrow as pa

    types = pa.types
    return [types.is_integer(t) or types.is_floating(t) or types.is_decimal(t) for t in table.schema.types]


def _print_fitting(table: pa.Table) -> None:
    """Print a table to a terminal: wide values are wrapped, none is cut; with many columns each row is a block of lines."""
    rows = [list(map(shown, row)) for row in _values(table)]
    columns = [
        Column(name, [row[at] for row in rows], numeric)
        for at, (name, numeric) in enumerate(zip(table.column_names, _numeric(table), strict=True))
    ]
    echo_table(columns, width())


def _print_aligned(table: pa.Table) -> None:
    """Print a table to a pipe: a line per row, as wide as needed."""
    rows = [[shown(v).replace("\n", "\\n").replace("\t", "\\t") for v in row] for row in _values(table)]
    lines = [list(table.column_names), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    numeric = _numeric(table)
    for line in lines:
        cells = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        click.echo("  ".join(cells).rstrip())


def _printable(text: str) -> str:
    """Return a text without control characters, which could manipulate the terminal."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
