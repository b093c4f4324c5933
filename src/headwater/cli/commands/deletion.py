"""`headwater forget`, `excise`, `deletions` and `rotate-keys`: deletions, their progress, and the keys."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from headwater.cli.output import print_json, print_listing, print_table
from headwater.cli.session import CommandSession, complete_topic, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.deletion import Deletion


def _noted(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options for the person and reason of a deletion, and for confirmation."""
    yes = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
    reason = click.option("--reason", metavar="TEXT", help="The reason, recorded with the deletion.")
    by = click.option(
        "--by",
        metavar="NAME",
        help="Who deletes, recorded with the deletion. Default: the operating system's user.",
    )
    return by(reason(yes(command)))


@click.command()
@click.argument("subject")
@_noted
@json_option
@pass_session
def forget(
    session: CommandSession, subject: str, by: str | None, reason: str | None, yes: bool, as_json: bool
) -> None:
    """Destroy the key to the private values of SUBJECT.

    Values that are PRIVATE BY the subject cannot be read once this command returns. Views, and the sinks on them, lose
    them with the next tick. The report lists every place that contained such values, with its progress.
    """
    with session.open() as ws:
        _ask(f"Destroy the key of all private values of {subject!r}?", yes)
        deletion = ws.forget(subject, by=by, reason=reason)
    _print(deletion, as_json)


@click.command()
@click.argument("topic", shell_complete=complete_topic)
@click.option(
    "--where", required=True, metavar="CONDITION", help="Condition of SQL for the records to remove."
)
@_noted
@json_option
@pass_session
def excise(
    session: CommandSession,
    topic: str,
    where: str,
    by: str | None,
    reason: str | None,
    yes: bool,
    as_json: bool,
) -> None:
    """Remove matching records of TOPIC from the log for good.

    Their offsets remain as gaps that readers skip. From the next tick on, views, and the sinks on them, are as if these
    records had never been written.
    """
    with session.open() as ws:
        _ask(f"Remove the records of {topic} where {where}, for good?", yes)
        deletion = ws.excise(topic, where, by=by, reason=reason)
    _print(deletion, as_json)


@click.command()
@click.argument("name", required=False)
@json_option
@pass_session
def deletions(session: CommandSession, name: str | None, as_json: bool) -> None:
    """List deletions and their progress.

    Without NAME: forgotten subjects and excised records. With NAME: the progress of one deletion in every place.
    """
    from headwater.core.errors import UsageError

    with session.open() as ws:
        found = ws.deletions()
    if name is None:
        print_listing(
            map(_facts if as_json else _line, found),
            as_json=as_json,
            empty="no deletions",
            optional=("who", "reason"),
        )
        return
    one = next((deletion for deletion in found if deletion.name == name), None)
    if one is None:
        raise UsageError(
            f"there is no deletion {name!r}", hint="`headwater deletions` lists them", deletion=name
        )
    _print(one, as_json)


@click.command("rotate-keys")
@json_option
@pass_session
def rotate_keys(session: CommandSession, as_json: bool) -> None:
    """Wrap the keys of private columns with a new master key.

    The old master key is destroyed.
    """
    with session.open() as ws:
        keys = ws.rotate_keys()
    if as_json:
        print_json({"keys": keys})
    else:
        click.echo(f"{keys:,} key{'' if keys == 1 else 's'} wrapped with a new master key")


def _ask(question: str, yes: bool) -> None:
    if not yes and sys.stdin.isatty():
        click.confirm(question, abort=True, err=True)


def _line(one: Deletion) -> dict[str, Any]:
    return {
        "name": one.name,
        "of": one.of if one.where is None else f"{one.of} where {one.where}",
        "records": one.records,
        "at": one.at,
        "who": one.who,
        "reason": one.reason,
        "done": one.done,
    }


def _facts(one: Deletion) -> dict[str, Any]:
    places = [
        {"kind": p.kind, "name": p.name, "status": p.status, "at": p.at, "detail": p.detail}
        for p in one.places
    ]
    return {**_line(one), "of": one.of, "what": one.what, "where": one.where, "places": places}


def _print(one: Deletion, as_json: bool) -> None:
    if as_json:
        print_json(_facts(one))
        return
    what = f"forgot {one.of!r}" if one.what == "forget" else f"excised from {one.of}"
    click.echo(f"{one.name}: {what}, {one.records:,} record{'' if one.records == 1 else 's'}")
    print_table(
        [
            {"place": f"{p.kind} {p.name}", "status": p.status, "at": p.at, "detail": p.detail}
            for p in one.places
        ],
        ("at",),
    )
