"""A few rows of a table as text that fits a terminal, for `str()`. The output of the command line is in `cli`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pyarrow as pa

ROWS_MAX = 20
WIDTH_MAX = 110
CELL_MAX = 32


def listed(table: pa.Table) -> str:
    """Return the rows in columns, one line each. Omitted rows and columns are mentioned."""
    shown = table.slice(0, ROWS_MAX)
    columns = [
        [_cut(name), *(_cut(_shown(v)) for v in column.to_pylist())]
        for name, column in zip(shown.column_names, shown.columns, strict=True)
    ]
    widths = [max(map(len, column)) for column in columns]
    fitting = len(columns)
    while fitting > 1 and sum(widths[:fitting]) + 2 * fitting > WIDTH_MAX:
        fitting -= 1
    numeric = [
        pa.types.is_integer(t) or pa.types.is_floating(t) or pa.types.is_decimal(t)
        for t in table.schema.types
    ]
    lines = []
    for cells in zip(*columns[:fitting], strict=True):
        aligned = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(cells, widths, numeric, strict=False))
        lines.append("  " + "  ".join(aligned).rstrip())
    if table.num_rows > ROWS_MAX:
        lines.append(f"  and {table.num_rows - ROWS_MAX:,} more")
    if fitting < len(columns):
        lines[0] += f"  (and {', '.join(table.column_names[fitting:])})"
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(sep=" ")
    return str(value)


def _cut(text: str) -> str:
    line = " ".join(text.split("\n"))
    return line if len(line) <= CELL_MAX else line[: CELL_MAX - 1] + "…"
