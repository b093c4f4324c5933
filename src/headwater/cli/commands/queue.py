"""`headwater queue`: status and content of queues, and their messages for shell scripts."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

import headwater as hw
from headwater.cli.output import print_json, print_listing
from headwater.cli.session import CommandSession, json_option, pass_session
from headwater.core.clock import format_span

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headwater.queues.message import Message
    from headwater.queues.queue import Queue

SHELL = "shell"
"""Name of the worker that receives and acknowledges in a shell, unless another is given."""
LOOK_S = 0.2
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
        "--worker", default=SHELL, show_default=True, metavar="NAME", help="Who holds the messages."
    )(function)


def standings(ws: hw.Workspace) -> list[dict[str, Any]]:
    """Return a row for each queue, for listings."""
    return [{name: asdict(queue.standing())[name] for name in _LISTED} for queue in ws.queues()]


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def queue(context: click.Context, as_json: bool) -> None:
    """List the queues; with a command, inspect one or receive messages from it.

    Workers share the records of a queue's topic message by message. Use `headwater dead` for dead messages.
    """
    if context.invoked_subcommand is None:
        _list(context.ensure_object(CommandSession), as_json)


@queue.command("list")
@json_option
@pass_session
def list_queues(session: CommandSession, as_json: bool) -> None:
    """List the queues: numbers of waiting, leased, delayed and dead messages, and the age of the oldest one that is not
    done."""
    _list(session, as_json)


def _list(session: CommandSession, as_json: bool) -> None:
    with session.open() as ws:
        rows = standings(ws)
    if not as_json:
        rows = [
            {"oldest" if k == "oldest_seconds" else k: _shown(k, v) for k, v in row.items()} for row in rows
        ]
    print_listing(
        rows, as_json=as_json, empty="no queues yet; make one with: headwater queue make QUEUE TOPIC"
    )


def _shown(name: str, value: Any) -> Any:
    return (
        None if value is None else format_span(int(value) * 1_000_000) if name == "oldest_seconds" else value
    )


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.argument("topic")
@click.option(
    "--key", multiple=True, metavar="COLUMN", help="Keep the order of messages that are equal here."
)
@click.option("--delay", metavar="COLUMN", help="The column that says from when on a message is handed out.")
@click.option("--lease", metavar="SPAN", help="How long a worker holds a message. Default: 30 seconds.")
@click.option(
    "--deliveries", type=click.IntRange(1), metavar="N", help="So often, then it is dead. Default: 5."
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
    """Make the queue QUEUE of the records of TOPIC."""
    given: dict[str, Any] = {
        "key": list(key) or None,
        "delay": delay,
        "lease": lease,
        "deliveries": deliveries,
    }
    with session.open() as ws:
        made = ws.queue(name, topic, **given)
    click.echo(f"queue {made.name} is there, on topic {made.definition.topic}")


@queue.command()
@_queue_argument
@json_option
@pass_session
def show(session: CommandSession, name: str, as_json: bool) -> None:
    """Show one QUEUE: definition, status and leases."""
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
    width = max(map(len, facts))
    for key, value in facts.items():
        click.echo(f"{key:<{width}}  {'-' if value is None else value}")
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
    """Show the messages of QUEUE that would be handed out next, without taking them."""
    with session.open() as ws:
        rows = ws.queue(name).peek(count).to_pylist()
    print_listing(rows, as_json=as_json, empty="nothing to be handed out now")


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
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait so long for the first.")
@click.option("--lease", metavar="SPAN", help="Hold them for so long.")
@_worker_option
@json_option
@pass_session
def receive(
    session: CommandSession, name: str, count: int, wait: float, lease: str | None, worker: str, as_json: bool
) -> None:
    """Take messages from QUEUE, each with a token to acknowledge it by. Exit status 1 if there is none."""
    with session.open() as ws:
        messages = [_facts(m) for m in ws.queue(name, worker=worker).receive(count, wait, lease=lease)]
    print_listing(messages, as_json=as_json, empty="nothing to be had now")
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
    """Acknowledge messages of QUEUE: they are done, and never come again."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "ack"))


@queue.command()
@_settling
@click.option("--delay", metavar="SPAN", help="Hand them out again after so long.")
@click.option("--error", metavar="TEXT", help="Why they are not done.")
@click.option("--final", is_flag=True, help="Give them up: they are dead at once.")
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
    """Give messages of QUEUE back as not done: they are handed out again."""

    def act(found: Queue) -> None:
        found.settle(tokens, "nack", delay=delay, error=error, final=final)

    _settle(session, name, worker, act)


@queue.command()
@_settling
@pass_session
def release(session: CommandSession, name: str, tokens: Sequence[str], worker: str) -> None:
    """Give messages of QUEUE back unprocessed: this delivery does not count."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "release"))


@queue.command()
@_settling
@click.option("--lease", metavar="SPAN", help="For so long from now on. Default: the queue's lease.")
@pass_session
def extend(session: CommandSession, name: str, tokens: Sequence[str], worker: str, lease: str | None) -> None:
    """Extend the leases of messages of QUEUE."""
    _settle(session, name, worker, lambda found: found.settle(tokens, "extend", delay=lease))


@queue.command()
@_queue_argument
@click.argument("url")
@click.option(
    "--secret", metavar="VARIABLE", help="The environment variable with the secret that signs requests."
)
@click.option("--previous-secret", metavar="VARIABLE", help="With the one before it, while it is rotated.")
@click.option("--token", metavar="VARIABLE", help="With the bearer token that is sent.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Requests at a time."
)
@click.option("--timeout", metavar="SPAN", help="For the whole answer to a request. Default: 10 seconds.")
@click.option("--idle", type=float, metavar="SECONDS", help="End once nothing has come for so long.")
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
    """Post the messages of QUEUE to URL, until Ctrl-C.

    A message is done when it is answered with 2xx; otherwise it is retried, and is dead after as many deliveries as the
    queue allows.
    """
    from headwater.cli.live_progress import asked_to_stop

    named = {"secret": secret, "previous_secret": previous_secret, "token": token}
    options: dict[str, Any] = {k: _environment(v) for k, v in named.items() if v is not None}
    options |= {} if timeout is None else {"timeout": timeout}
    with session.open() as ws, asked_to_stop() as asked:
        poster = ws.post(name, url, threads=threads, idle=idle, **options)
        click.echo(f"posting queue {name}; Ctrl-C ends it", err=True)
        while poster.working and not asked.wait(LOOK_S):
            pass
        done = poster.stop()
    click.echo(f"{done.handled} messages were taken, {done.failed} were not")


def _environment(variable: str) -> str:
    """Return the value of an environment variable; unlike arguments, variables are not shown in process listings."""
    found = os.environ.get(variable)
    if found is None:
        raise hw.UsageError(
            f"there is no environment variable {variable!r}",
            hint="it is named here, and not the secret itself",
        )
    return found


@queue.command()
@_queue_argument
@pass_session
def drop(session: CommandSession, name: str) -> None:
    """Drop QUEUE, with its leases and dead messages; its topic stays unchanged."""
    with session.open() as ws:
        ws.drop_queue(name)
    click.echo(f"queue {name} is gone")
