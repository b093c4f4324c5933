"""The program `headwater`: global options, commands and exit status.

0 is success, 1 is a failure or a finding, 2 is wrong usage, 130 is interrupted. Heavy modules are imported only by the
commands that need them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping
from itertools import chain
from typing import Any, NoReturn

import click

from headwater import __version__
from headwater.cli import INTERRUPTED
from headwater.cli.commands import (
    append,
    dead,
    deletion,
    demo,
    doctor,
    engine,
    late,
    maintenance,
    metrics,
    queue,
    rebuild,
    search,
    serve,
    standing,
    status,
    tail,
    topics,
    views,
    why,
)
from headwater.cli.output import print_error
from headwater.cli.session import FUNCTIONS_VARIABLE, VARIABLE, CommandSession
from headwater.core.errors import HeadwaterError, UsageError

FAILED, WRONG_USAGE = 1, 2
SHELLS = ("bash", "zsh", "fish")
COMPLETION_VARIABLE = "_HEADWATER_COMPLETE"


class Program(click.Group):
    """A command group that prints errors as sentences, treats a closed pipe as success, and groups commands in its help."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Ctrl-C raises an exception in it, so that open resources are closed; logging is disabled
        then, because calls to the JVM in progress would log errors."""
        if threading.current_thread() is not threading.main_thread():
            return self._run(ctx)
        before = signal.getsignal(signal.SIGINT)
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, _interrupt)
        try:
            return self._run(ctx)
        finally:
            signal.signal(signal.SIGINT, before)
            logging.disable(logging.NOTSET)

    def _run(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeadwaterError as error:
            if os.environ.get("HEADWATER_DEBUG") == "1":
                raise
            print_error(error)
            ctx.exit(WRONG_USAGE if isinstance(error, UsageError) else FAILED)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            # The reader of our output closed the pipe; keep the interpreter from complaining at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            ctx.exit(0)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of their groups."""
        return [command.name for commands in GROUPS.values() for command in commands if command.name]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with their summaries, group by group."""
        longest = max(map(len, self.commands))
        room = formatter.width - 6 - longest
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{command.name:<{longest}}", command.get_short_help_str(room)) for command in commands]
                )


def _interrupt(*_: Any) -> NoReturn:
    logging.disable(logging.CRITICAL)
    raise KeyboardInterrupt


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-w",
    "--workspace",
    metavar="PATH",
    type=click.Path(file_okay=False),
    help=f"Folder of the workspace. Default: ${VARIABLE}, or the current folder.",
)
@click.option(
    "--functions",
    metavar="MODULE",
    help=f"Python module with a function declare(ws) that declares functions of views. Default: ${FUNCTIONS_VARIABLE}.",
)
@click.version_option(__version__, prog_name="headwater", message="%(prog)s %(version)s")
@click.pass_context
def cli(context: click.Context, workspace: str | None, functions: str | None) -> None:
    """A streaming data platform in a folder: a durable log of typed topics, and SQL views that are updated incrementally.

    Exit status: 0 success, 1 failure or a finding, 2 wrong usage, 130 interrupted by Ctrl-C.
    """
    context.obj = CommandSession(workspace, functions)


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of SHELL.

    For bash: headwater completion bash >> ~/.bashrc
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None, "click knows these shells"
    click.echo(kind(cli, {}, "headwater", COMPLETION_VARIABLE).source())


GROUPS: Mapping[str, tuple[click.Command, ...]] = {
    "Start": (topics.init, demo.demo, doctor.doctor, completion),
    "Data": (topics.sql, topics.topics, append.append, tail.tail, queue.queue, maintenance.cursors),
    "Views": (engine.run, views.views, why.why, late.late, rebuild.rebuild, standing.standing),
    "Connectors": (dead.dead, search.search),
    "Operate": (
        status.status,
        maintenance.lag,
        metrics.metrics,
        serve.serve,
        serve.token,
        maintenance.verify,
        maintenance.maintain,
    ),
    "Delete": (deletion.forget, deletion.excise, deletion.deletions, deletion.rotate_keys),
}
"""Commands by the title under which `headwater --help` lists them."""

for command in chain.from_iterable(GROUPS.values()):
    cli.add_command(command)
