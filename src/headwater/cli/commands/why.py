"""`headwater why`: the records that a row of a view comes from."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.output import plain, print_json
from headwater.cli.results import print_rows
from headwater.cli.session import CommandSession, complete_view, json_option, pass_session, views_of
from headwater.core.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from headwater.lineage.why import Why
    from headwater.state.manifest import ViewState


@click.command()
@click.argument("view", shell_complete=complete_view)
@click.argument("key", nargs=-1, required=True)
@click.option("--as-of", type=click.IntRange(1), metavar="TICK", help="At an earlier tick.")
@json_option
@pass_session
def why(session: CommandSession, view: str, key: tuple[str, ...], as_of: int | None, as_json: bool) -> None:
    """Show the log records that a row of a view comes from.

    And the tick that last changed the row. KEY is the value of the column that VIEW is arranged by, such as that of its
    GROUP BY; several values are separated by commas. Or name any columns: country=ch year=2026. The word NULL is null. If
    KEY matches several rows, the result covers all of them.
    """
    with session.open() as ws:
        views = views_of(ws)
        from headwater.cli.live_progress import TickProgress

        views.listener = TickProgress(ws.log)
        handle = ws.view(view)
        manifest = views.reads.at(as_of)
        state = manifest.views.get(handle.name) if manifest is not None else None
        # for a view that is in no tick yet, `why` raises an error that explains it
        found = handle.why({} if state is None else _key(state, key), as_of=as_of)
    if as_json:
        print_json(_document(found))
    else:
        _print(found)


def _key(state: ViewState, texts: tuple[str, ...]) -> dict[str, Any]:
    """Return the columns and values of a key on the command line."""
    schema = state.arrow_schema
    names = {name.lower(): name for name in schema.names}
    named = [text.partition("=") for text in texts]
    if all(equals and name.lower() in names for name, equals, _ in named):
        return {names[name.lower()]: _value(schema.field(names[name.lower()]), v) for name, _, v in named}
    _refuse_misspelled(state.name, list(names.values()), [name for name, equals, _ in named if equals])
    own = [schema.field(int(c)) for c in state.record.key]
    values = texts if len(texts) > 1 or len(own) == 1 else texts[0].split(",")
    if len(values) != len(own):
        raise UsageError(
            f"the key of view {state.name!r} is {', '.join(f.name for f in own)}: "
            f"{len(own)} values, not {len(values)}",
            hint=f"or name any columns: headwater why {state.name} {own[0].name}=...",
            view=state.name,
            expected=len(own),
            actual=len(values),
        )
    return {field.name: _value(field, text) for field, text in zip(own, values, strict=True)}


def _refuse_misspelled(view: str, columns: list[str], named: list[str]) -> None:
    """Raise UsageError for a misspelled column. A value may have = in it, but not after a text close to a column's
    name, or next to named columns."""
    known = {column.lower() for column in columns}
    for name in named:
        near = difflib.get_close_matches(name.lower(), known, 1)
        if name.lower() not in known and name.isidentifier() and (near or known & set(map(str.lower, named))):
            meant = next((column for column in columns if near and column.lower() == near[0]), None)
            raise UsageError(
                f"view {view!r} has no column {name!r}",
                hint=f"did you mean {meant}?" if meant else f"its columns are {', '.join(columns)}",
                view=view,
                column=name,
            )


def _value(field: pa.Field, text: str) -> Any:
    from headwater.core.json_csv import text_decoder
    from headwater.core.types import format_type

    if text.upper() == "NULL":
        return None
    try:
        return text_decoder(field.type)(text)
    except (ValueError, TypeError) as error:
        kind = format_type(field.type)
        raise UsageError(
            f"{text!r} is not a value of column {field.name!r}, which has the type {kind}",
            column=field.name,
            value=text,
            expected=kind,
        ) from error


def _print(found: Why) -> None:
    click.echo(f"{found.view} at tick {found.tick}, {found.changed}")
    print_rows(found.rows, as_json=False)
    for view, rows in reversed(list(found.path.items())):
        click.echo(f"\nthrough {_counted(rows, 'row')} of {view}")
        print_rows(rows, as_json=False)
    for topic, rows in found.records.items():
        click.echo(f"\nfrom {_counted(rows, 'record')} of {topic}")
        print_rows(rows, as_json=False)
    for line in found.remarks:
        click.echo(f"\n{line}")


def _document(found: Why) -> dict[str, Any]:
    return {
        "view": found.view,
        "tick": found.tick,
        "changed_tick": found.changed_tick,
        "kept_from": found.kept_from,
        "complete": found.complete,
        "rows": _objects(found.rows),
        "path": {view: _objects(rows) for view, rows in found.path.items()},
        "records": {topic: _objects(rows) for topic, rows in found.records.items()},
    }


def _objects(table: pa.Table) -> list[dict[str, Any]]:
    from headwater.core.json_csv import json_encoder

    encoders = {field.name: json_encoder(field.type) or (lambda value: value) for field in table.schema}
    return [
        {name: None if value is None else plain(encoders[name](value)) for name, value in row.items()}
        for row in table.to_pylist()
    ]


def _counted(rows: pa.Table, what: str) -> str:
    return f"{rows.num_rows:,} {what}" + ("" if rows.num_rows == 1 else "s")
