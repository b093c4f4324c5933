"""`headwater dead`: the rows that sources, views, sinks and queues rejected, and the actions on them."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.output import print_facts, print_json, print_listing, print_table, print_text
from headwater.cli.session import CommandSession, json_option, pass_session, supervisor_of
from headwater.cli.tables import GAP, width
from headwater.core.errors import HeadwaterError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pyarrow as pa

    from headwater.connectors.dead_letter_store.letter_store import LetterState
    from headwater.connectors.dead_letters.dead_letters import DeadLetters
    from headwater.engine.row_errors.rejected_row_counts import RejectedRows
    from headwater.views.dead_letter_actions import LetterAction

NONE_DEAD = "no dead letters"
NONE_OPEN = "no open dead letters; --all lists dropped, replayed and resolved ones"
_LEFT_MAX = 10
"""Number of remaining letters that `replay` names."""
_TEXT_MIN, _TIMED_MIN = 16, 120
"""Minimum number of characters of an error and a row in the listing, and width from which on it shows times; `show` and
--json print all of them."""


def _complete_owner(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names of sources, views, sinks and queues for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        context.find_root().params.get("workspace")
    )
    try:
        with session.open() as ws:
            supervisor = supervisor_of(ws)
            names = [*supervisor.sinks.definitions()]
            names += [name for kind in ("source", "view", "queue") for name in ws.log.entries(kind)]
            return [name for name in sorted(set(names)) if name.startswith(incomplete)]
    except HeadwaterError:
        return []


def _by_whom(function: Callable[..., None]) -> Callable[..., None]:
    function = click.option("--reason", metavar="TEXT", help="The reason, recorded with the action.")(
        function
    )
    return click.option(
        "--by",
        metavar="NAME",
        help="Who acts, recorded with the action. Default: the operating system's user.",
    )(function)


def _which(function: Callable[..., None]) -> Callable[..., None]:
    of = click.option(
        "--of",
        "owner",
        metavar="NAME",
        shell_complete=_complete_owner,
        help="All open dead letters of this source, view, sink or queue.",
    )
    return click.argument("letters", nargs=-1, metavar="[LETTER]...")(of(function))


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def dead(context: click.Context, as_json: bool) -> None:
    """List, edit, drop and replay dead letters.

    Without a subcommand: the number of dead letters by source, view, sink and queue. A source, view or sink with
    on_error = 'divert' sets rejected rows aside and continues; a queue does so with messages that were delivered too
    often. Each of these is a dead letter, with a name such as revenue/orders-0-17. Every action on a dead letter is
    recorded with your name in the topic _dead. Rows that were late for a view (late), and rows that were left out and
    not kept (lost), are counted too; `headwater late` shows late rows.
    """
    if context.invoked_subcommand is not None:
        return
    session = context.ensure_object(CommandSession)
    with session.open() as ws:
        letters = ws.dead()
        found = letters.counts()
        _say_unreadable(letters)
        others = [one for one in supervisor_of(ws).rejected() if one.outcome != "diverted"]
    print_listing(
        _counts(found, others), as_json=as_json, empty=NONE_DEAD, optional=("resolved", "edited", "replayed")
    )
    for one in others if not as_json else ():
        print_text(one.sentence, indent=2, err=True)


def _counts(
    found: Mapping[tuple[str, str], Mapping[str, int]], others: Sequence[RejectedRows]
) -> list[dict[str, Any]]:
    """Return a row for each owner: its dead letters by state, and other rows that it left out. `late` rows are kept in
    `<view>.late`, `lost` rows are not kept; these two columns exist only if there are such rows."""
    from headwater.connectors.dead_letter_store.letter_store import STATES

    late, lost = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for one in others:
        (late if one.outcome == "late" else lost)[one.name, one.kind] += one.rows
    none: Mapping[str, int] = dict.fromkeys(STATES, 0)
    rows: list[dict[str, Any]] = []
    for of, kind in sorted({*found, *late, *lost}):
        more = {"late": late[of, kind], "lost": lost[of, kind]} if others else {}
        rows.append({"of": of, "kind": kind, **found.get((of, kind), none), **more})
    return rows


@dead.command("list")
@click.argument("of", required=False, shell_complete=_complete_owner)
@click.option("--all", "everything", is_flag=True, help="Also dropped, replayed and resolved dead letters.")
@click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Only the newest N.")
@json_option
@pass_session
def list_letters(
    session: CommandSession, of: str | None, everything: bool, limit: int | None, as_json: bool
) -> None:
    """List open dead letters, the newest first.

    All, or those of OF: a source, view, sink or queue. Long errors and rows are cut; `dead show` and --json have all of
    them.
    """
    from headwater.connectors.dead_letters.dead_letters import table_of

    with session.open() as ws:
        letters = ws.dead()
        found = letters.page(of, "all" if everything else "open", limit)
        _say_unreadable(letters)
        some = found.total > 0 or letters.page(of, "all", 1).total > 0
    shown = table_of(found.letters).to_pylist()
    if not as_json:
        shown = _fitting(shown)
    print_listing(shown, as_json=as_json, empty=NONE_OPEN if some else NONE_DEAD)
    if len(shown) < found.total and not as_json:
        click.echo(f"the newest {len(shown):,} of {found.total:,}", err=True)


@dead.command()
@click.argument("letter")
@json_option
@pass_session
def show(session: CommandSession, letter: str, as_json: bool) -> None:
    """Show the row, error and actions of LETTER."""
    with session.open() as ws:
        one = ws.dead().show(letter)
    if as_json:
        print_json(_facts(one))
        return
    _print(one)


@dead.command()
@click.argument("letter")
@click.option("--set", "values", multiple=True, metavar="COLUMN=VALUE", help="A new value, as in a CSV file.")
@click.option("--null", "nulls", multiple=True, metavar="COLUMN", help="Set a column to NULL.")
@click.option(
    "--row", "file", type=click.File("r"), metavar="FILE", help="New values as a JSON object; - is stdin."
)
@click.option(
    "--expect",
    type=click.IntRange(0),
    metavar="N",
    help="The version that the edit is based on; fails if there is a newer one.",
)
@_by_whom
@json_option
@pass_session
def edit(
    session: CommandSession,
    letter: str,
    values: Sequence[str],
    nulls: Sequence[str],
    file: Any,
    expect: int | None,
    by: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Change values of the row of LETTER, before a replay.

    The original row is kept.

    For example: headwater dead edit revenue/orders-0-17 --set amount=5 --reason "a typo"
    """
    with session.open() as ws:
        letters = ws.dead()
        columns = letters.columns(letter)
        given = {} if file is None else _from_json(file.read(), columns)
        given |= {name: _from_text(name, text, columns) for name, text in map(_split, values)}
        given |= dict.fromkeys(nulls)
        one = letters.edit(letter, given, by=by, reason=reason, expect=expect)
    if as_json:
        print_json(_facts(one))
    else:
        click.echo(f"{one.id} is edited: {one.row}\nnext: headwater dead replay {one.id}")


@dead.command()
@_which
@_by_whom
@json_option
@pass_session
def drop(
    session: CommandSession,
    letters: Sequence[str],
    owner: str | None,
    by: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Drop dead letters: they are counted as dropped from then on."""
    with session.open() as ws:
        dropped = ws.dead().drop(list(letters) or None, of=owner, by=by, reason=reason)
    if as_json:
        print_json({"dropped": list(dropped)})
    else:
        click.echo(f"{_counted(len(dropped))} dropped")


@dead.command()
@_which
@click.option("--force", is_flag=True, help="Also if the row would replace or duplicate another row.")
@_by_whom
@json_option
@pass_session
@click.pass_context
def replay(
    context: click.Context,
    session: CommandSession,
    letters: Sequence[str],
    owner: str | None,
    force: bool,
    by: str | None,
    reason: str | None,
    as_json: bool,
) -> None:
    """Replay rows to the source, view, sink or queue that rejected them.

    After an edit of the rows, or a correction of the target. A row is applied once, however often it is replayed. Exit
    status 1 if a row is rejected again.
    """
    with session.open() as ws:
        done = ws.dead().replay(list(letters) or None, of=owner, by=by, reason=reason, force=force)
    if as_json:
        print_json({"taken": list(done.taken), "before": list(done.before), "left": dict(done.left)})
    else:
        click.echo(f"{_counted(len(done.taken))} replayed")
        if done.before:
            click.echo(f"replayed before: {', '.join(done.before)}")
        for letter, why in islice(done.left.items(), _LEFT_MAX):
            click.echo(f"{letter} was not replayed: {why}", err=True)
        if len(done.left) > _LEFT_MAX:
            click.echo(f"and {len(done.left) - _LEFT_MAX:,} more; --json lists all", err=True)
    if not done.ok:
        context.exit(1)


def _say_unreadable(letters: DeadLetters) -> None:
    for owner, why in letters.unreadable.items():
        click.echo(f"the dead letters of {owner} cannot be read: {why}", err=True)


def _counted(number: int) -> str:
    return f"{number:,} dead {'letter' if number == 1 else 'letters'}"


def _fitting(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return dead letters formatted for people: a line each, with names whole and texts cut to the width."""
    names = max((len(row["letter"]) for row in rows), default=0)
    timed = width() >= _TIMED_MIN
    taken = names + len("replayed") + 3 * GAP + (len("2026-01-31T12:00:00Z") + GAP if timed else 0)
    room = max((width() - taken) // 2, _TEXT_MIN)
    return [
        {
            "letter": row["letter"],
            "state": row["state"],
            **({"at": row["at"]} if timed else {}),
            "error": _cut(row["error"], room),
            "row": _cut(row["row"], room),
        }
        for row in rows
    ]


def _cut(text: str, length: int) -> str:
    from headwater.cli.results import shown

    first = shown(text.partition("\n")[0])
    return first if len(first) <= length else f"{first[: length - 3]}..."


def _print(one: LetterState) -> None:
    from headwater.cli.results import shown
    from headwater.core.clock import from_us, timestamp

    letter = one.letter
    facts = {"letter": one.id, "state": one.state, "rejected by": f"{letter.kind} {letter.owner}"}
    if letter.at:
        facts["at"] = timestamp(from_us(letter.at))
    facts |= {"error": letter.error, "row": letter.row}
    if one.edit is not None:
        facts["edited"] = one.row
    if letter.copies > 1:
        facts["rows"] = f"{letter.copies:,} equal rows"
    facts["version"] = str(one.version)
    print_facts((name, shown(value)) for name, value in facts.items())
    if one.actions:
        click.echo()
        print_table([_action_row(record) for record in one.actions], ("edited row", "reason"))


def _action_row(record: LetterAction) -> dict[str, Any]:
    from headwater.core.clock import from_us

    return {
        "at": from_us(record.at),
        "who": record.who,
        "action": _action(record),
        "reason": record.reason,
        "edited row": record.edited,
    }


def _action(record: LetterAction) -> str:
    return "replay, applied" if record.settled else record.action


def _facts(one: LetterState) -> dict[str, Any]:
    from headwater.core.clock import from_us

    letter = one.letter
    return {
        "letter": one.id,
        "kind": letter.kind,
        "owner": letter.owner,
        "state": one.state,
        "at": from_us(letter.at) if letter.at else None,
        "error": letter.error,
        "original": letter.row,
        "row": one.row,
        "copies": letter.copies,
        "version": one.version,
        "deeds": [
            {
                "at": from_us(record.at),
                "who": record.who,
                "action": record.action,
                "settled": record.settled,
                "reason": record.reason,
                "original": record.original,
                "edited": record.edited,
            }
            for record in one.actions
        ],
    }


def _split(given: str) -> tuple[str, str]:
    name, equals, text = given.partition("=")
    if not equals or not name:
        raise UsageError(
            f"--set takes COLUMN=VALUE, not {given!r}", hint="--set amount=5", option="set", value=given
        )
    return name.strip(), text


def _from_text(name: str, text: str, columns: pa.Schema) -> Any:
    from headwater.core.json_csv import text_decoder

    if name not in columns.names:
        return text  # `edit` rejects the column, with the names of those that exist
    return _decoded(name, text, text_decoder(columns.field(name).type), columns)


def _from_json(text: str, columns: pa.Schema) -> dict[str, Any]:
    from headwater.core.json_csv import json_decoder

    try:
        row = json.loads(text, parse_float=Decimal)
    except ValueError as error:
        raise UsageError(
            f"the row is not valid JSON: {error}", hint='for example {"amount": 5}', option="row"
        ) from None
    if not isinstance(row, dict):
        raise UsageError("the row is not a JSON object", hint='for example {"amount": 5}', option="row")
    given = {}
    for name, value in row.items():
        decode = json_decoder(columns.field(name).type) if name in columns.names else None
        given[name] = value if decode is None or value is None else _decoded(name, value, decode, columns)
    return given


def _decoded(name: str, value: Any, decode: Callable[[Any], Any], columns: pa.Schema) -> Any:
    from headwater.core.types import format_type

    try:
        return decode(value)
    except (ValueError, TypeError) as error:
        kind = format_type(columns.field(name).type)
        raise UsageError(
            f"{value!r} is not a value of column {name!r}, which has the type {kind}: {error}",
            column=name,
            value=value,
            expected=kind,
        ) from None
