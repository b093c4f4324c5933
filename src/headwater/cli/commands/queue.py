"""`headwater queue`: status and content of queues, and their messages for shell scripts."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import headwater as hw
from headwater.cli.listings import QUEUES
from headwater.cli.output import print_facts, print_json, print_listing, shown_seconds
from headwater.cli.session import CommandSession, json_option, pass_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.queues.message import Message
    from headwater.queues.queue import Queue

SHELL = "shell"
"""Name of the worker that receives and acknowledges in a shell, unless another is given."""
POLL_S = 0.2
_LISTED = ("queue", "topic", "waiting", "leased", "delayed", "dead", "oldest_seconds")


def _complete_queue(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return queue names for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        context.find_root().params.get("workspace")
    )
    try:
        with session.open() as ws:
            return [name for name in sorted(ws.log.entries("queue")) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def _queue_argument(function: Callable[..., None]) -> Callable[..., None]:
    return click.argument("name", metavar="QUEUE", shell_complete=_complete_queue)(function)


def _worker_option(function: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--worker",
        default=SHELL,
        show_default=True,
        metavar="NAME",
        help="Name of the worker that holds the messages.",
    )(function)


def queue_rows(ws: hw.Workspace) -> list[dict[str, Any]]:
    """Return a row for each queue, for listings."""
    return [{name: asdict(queue.standing())[name] for name in _LISTED} for queue in ws.queues()]


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def queue(context: click.Context, as_json: bool) -> None:
    """List queues; receive and acknowledge messages.

    A queue leases the records of a topic to workers, message by message. `headwater dead` lists messages that were
    delivered too often.
    """
    if context.invoked_subcommand is None:
        _list(context.ensure_object(CommandSession), as_json)


@queue.command("list")
@json_option
@pass_session
def list_queues(session: CommandSession, as_json: bool) -> None:
    """List the queues.

    The numbers of waiting, leased, delayed and dead messages, and the age of the oldest message that is not acknowledged.
    """
    _list(session, as_json)


def _list(session: CommandSession, as_json: bool) -> None:
    with session.open() as ws:
        rows = queue_rows(ws)
    QUEUES.print(rows, as_json=as_json)


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("topic")
@click.option(
    "--key",
    multiple=True,
    metavar="COLUMN",
    help="Messages with equal values of this column are delivered in order.",
)
@click.option("--delay", metavar="COLUMN", help="The column with the time from which a message is delivered.")
@click.option(
    "--lease", metavar="SPAN", help="How long a message belongs to one worker. Default: 30 seconds."
)
@click.option(
    "--deliveries",
    type=click.IntRange(1),
    metavar="N",
    help="Deliveries before a message is dead. Default: 5.",
)
@pass_session
def make(
    session: CommandSession,
    name: str,
    topic: str,
    key: tuple[str, ...],
    delay: str | None,
    lease: str | None,
    deliveries: int | None,
) -> None:
    """Create a queue over the records of TOPIC."""
    given: dict[str, Any] = {
        "key": list(key) or None,
        "delay": delay,
        "lease": lease,
        "deliveries": deliveries,
    }
    with session.open() as ws:
        created = ws.queue(name, topic, **given)
    click.echo(f"queue {created.name} on topic {created.definition.topic} is ready")


@queue.command()
@_queue_argument
@json_option
@pass_session
def show(session: CommandSession, name: str, as_json: bool) -> None:
    """Show the definition, status and leases of a queue."""
    with session.open() as ws:
        found = ws.queue(name)
        facts = {
            **found.definition.shown(),
            **{k: v for k, v in asdict(found.standing()).items() if k != "topic"},
        }
        holders = found.leases()
    if as_json:
        print_json({**facts, "leases": holders})
        return
    facts["oldest"] = None if facts["oldest_seconds"] is None else shown_seconds(facts["oldest_seconds"])
    print_facts((key, value) for key, value in facts.items() if key != "oldest_seconds")
    if holders:
        click.echo()
        print_listing(holders, as_json=False, empty="")


@queue.command()
@_queue_argument
@click.option(
    "-n",
    "--max",
    "count",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    metavar="N",
    help="At most N messages.",
)
@json_option
@pass_session
def peek(session: CommandSession, name: str, count: int, as_json: bool) -> None:
    """Show the next messages without receiving them."""
    with session.open() as ws:
        rows = ws.queue(name).peek(count).to_pylist()
    print_listing(rows, as_json=as_json, empty="no message is ready")


@queue.command()
@_queue_argument
@click.option(
    "-n",
    "--max",
    "count",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="At most N messages.",
)
@click.option(
    "--wait", type=float, default=0.0, metavar="SECONDS", help="How long to wait for the first message."
)
@click.option("--lease", metavar="SPAN", help="How long to hold the messages. Default: the queue's lease.")
@_worker_option
@json_option
@pass_session
def receive(
    session: CommandSession, name: str, count: int, wait: float, lease: str | None, worker: str, as_json: bool
) -> None:
    """Receive messages, each with the token of its lease.

    `ack`, `nack`, `release` and `extend` take the token. Exit status 1 if no message is ready.
    """
    with session.open() as ws:
        messages = [_facts(m) for m in ws.queue(name, worker=worker).receive(count, wait, lease=lease)]
    print_listing(messages, as_json=as_json, empty="no message is ready")
    if not messages:
        raise SystemExit(1)


def _facts(message: Message) -> dict[str, Any]:
    from headwater.core.json_csv import as_json

    return {
        "token": message.token,
        "deliveries": message.deliveries,
        "until": message.until,
        "error": message.error,
        "row": as_json(message.row),
    }


def _settling(function: Callable[..., None]) -> Callable[..., None]:
    tokens = click.argument("tokens", nargs=-1, required=True, metavar="TOKEN...")
    return _queue_argument(tokens(_worker_option(function)))


def _settle(session: CommandSession, name: str, worker: str, act: Callable[[Queue], None]) -> None:
    with session.open() as ws:
        act(ws.queue(name, worker=worker))


@queue.command()
@_settling
@pass_session
def ack(session: CommandSession, name: str, tokens: Sequence[str], worker: str) -> None:
    """Acknowledge messages: they are not delivered again."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "ack"))


@queue.command()
@_settling
@click.option("--delay", metavar="SPAN", help="Deliver them again after this time.")
@click.option("--error", metavar="TEXT", help="The reason, kept with the message.")
@click.option("--final", is_flag=True, help="Do not retry: the messages are dead at once.")
@pass_session
def nack(
    session: CommandSession,
    name: str,
    tokens: Sequence[str],
    worker: str,
    delay: str | None,
    error: str | None,
    final: bool,
) -> None:
    """Reject messages: they are delivered again, or are dead."""

    def act(found: Queue) -> None:
        found.settle(tokens, "nack", delay=delay, error=error, final=final)

    _settle(session, name, worker, act)


@queue.command()
@_settling
@pass_session
def release(session: CommandSession, name: str, tokens: Sequence[str], worker: str) -> None:
    """Return messages unprocessed: this delivery does not count."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "release"))


@queue.command()
@_settling
@click.option("--lease", metavar="SPAN", help="The new lease, from now. Default: the queue's lease.")
@pass_session
def extend(session: CommandSession, name: str, tokens: Sequence[str], worker: str, lease: str | None) -> None:
    """Extend the leases of messages."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "extend", delay=lease))


@queue.command()
@_queue_argument
@click.argument("url")
@click.option(
    "--secret", metavar="VARIABLE", help="Environment variable with the secret that signs requests."
)
@click.option(
    "--previous-secret", metavar="VARIABLE", help="Variable with the previous secret, during a rotation."
)
@click.option("--token", metavar="VARIABLE", help="Variable with the bearer token to send.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Requests at a time."
)
@click.option("--timeout", metavar="SPAN", help="Time limit of a request. Default: 10 seconds.")
@click.option("--idle", type=float, metavar="SECONDS", help="Stop when no message was ready for this time.")
@pass_session
def post(
    session: CommandSession,
    name: str,
    url: str,
    secret: str | None,
    previous_secret: str | None,
    token: str | None,
    threads: int,
    timeout: str | None,
    idle: float | None,
) -> None:
    """Post messages to a URL, until Ctrl-C.

    A message is acknowledged when the response is 2xx; otherwise it is retried, and is dead after the number of
    deliveries that the queue allows.
    """
    from headwater.cli.live_progress import asked_to_stop

    named = {"secret": secret, "previous_secret": previous_secret, "token": token}
    options: dict[str, Any] = {k: _environment(v) for k, v in named.items() if v is not None}
    options |= {} if timeout is None else {"timeout": timeout}
    with session.open() as ws, asked_to_stop() as asked:
        poster = ws.post(name, url, threads=threads, idle=idle, **options)
        click.echo(f"posting queue {name}; Ctrl-C stops", err=True)
        while poster.working and not asked.wait(POLL_S):
            pass
        done = poster.stop()
    click.echo(f"{done.handled:,} messages delivered, {done.failed:,} failed")


def _environment(variable: str) -> str:
    """Return the value of an environment variable; unlike arguments, variables are not shown in process listings."""
    found = os.environ.get(variable)
    if found is None:
        raise hw.UsageError(
            f"the environment variable {variable!r} is not set",
            hint="the option takes the name of a variable, not the secret itself",
            variable=variable,
        )
    return found


@queue.command()
@_queue_argument
@pass_session
def drop(session: CommandSession, name: str) -> None:
    """Drop a queue, its leases and its dead messages.

    The topic stays as it is.
    """
    with session.open() as ws:
        ws.drop_queue(name)
    click.echo(f"dropped queue {name}")
