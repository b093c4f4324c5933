"""`headwater search`: full text search and filters on the index of a SEARCH sink."""

from __future__ import annotations

import html
import re
import sys
from typing import TYPE_CHECKING

import click

from headwater.cli.results import print_rows, shown
from headwater.cli.session import CommandSession, complete_sink, json_option, pass_session, supervisor_of

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.text import Text

HIGHLIGHT = "_highlight"
_BOLD = re.compile(r"<b>(.*?)</b>", re.DOTALL)


@click.command()
@click.argument("sink", shell_complete=complete_sink)
@click.argument("text", required=False)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="Only rows with this value; also != < <= > >=.",
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="Maximum number of rows.",
)
@click.option("--highlight", is_flag=True, help="Show the matching parts of texts; bold on a terminal.")
@json_option
@pass_session
def search(
    session: CommandSession,
    sink: str,
    text: str | None,
    filters: tuple[str, ...],
    limit: int,
    highlight: bool,
    as_json: bool,
) -> None:
    """Search the index of SINK, which is of kind SEARCH.

    The rows that match TEXT, the best first. TEXT has words, "phrases", column:word, +must, -not, AND, OR and parentheses.
    Without it every row matches.
    """
    with session.open() as ws:
        from headwater.connectors.manage.search_filters import read_filter

        index = supervisor_of(ws).sinks.index(sink)
        layout = index.layout
        chosen = [read_filter(one, layout.schema) for one in filters] if layout is not None else []
        found = index.query(text, chosen, limit, highlight)
    if as_json or not highlight:
        print_rows(found, as_json=as_json)
    elif found.num_rows and sys.stdout.isatty():
        _print_bold(found)
    else:
        print_rows(_with_pieces(found), as_json=False)


def _with_pieces(found: pa.Table) -> pa.Table:
    """Return the rows with the highlighted pieces instead of the whole texts, as plain text."""
    import pyarrow as pa

    pieces = found.column(HIGHLIGHT).to_pylist()
    rows = found.drop_columns([HIGHLIGHT])
    for place, field in enumerate(rows.schema):
        texts = [(piece or {}).get(field.name) for piece in pieces]
        if any(text is not None for text in texts):
            whole = rows.column(place).to_pylist()
            plain = [
                w if t is None else html.unescape(_BOLD.sub(r"\1", t))
                for w, t in zip(whole, texts, strict=True)
            ]
            rows = rows.set_column(place, field, pa.array(plain, field.type))
    return rows


def _print_bold(found: pa.Table) -> None:
    """Print rows to a terminal: wide values are folded, and the words found are bold."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    names = [name for name in found.column_names if name != HIGHLIGHT]
    for name in names:
        drawn.add_column(name, overflow="fold")
    for row in found.to_pylist():
        pieces = row[HIGHLIGHT] or {}
        drawn.add_row(*(shown(row[n]) if pieces.get(n) is None else _bold(pieces[n]) for n in names))
    Console(file=sys.stdout, markup=False, highlight=False).print(drawn)


def _bold(piece: str) -> Text:
    from rich.text import Text

    text = Text()
    for number, part in enumerate(_BOLD.split(piece)):
        text.append(shown(html.unescape(part)), style="bold" if number % 2 else "")
    return text
