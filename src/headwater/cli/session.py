"""Which workspace a command works on, opened when the command needs it and closed when the command ends."""

from __future__ import annotations

import importlib
import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import headwater as hw
from headwater.cli.logs import failure_logged
from headwater.core.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headwater import Workspace
    from headwater.connectors.supervisor import Supervisor
    from headwater.views.view_manager import Views

VARIABLE = "HEADWATER_WORKSPACE"
FUNCTIONS_VARIABLE = "HEADWATER_FUNCTIONS"


@dataclass
class CommandSession:
    """What the options before the command said."""

    workspace: str | None = None
    functions: str | None = None

    @property
    def path(self) -> str:
        """The workspace's folder: the option, else the environment, else where we are."""
        return self.workspace or os.environ.get(VARIABLE) or "."

    @property
    def chosen(self) -> bool:
        """Whether someone said which workspace is meant."""
        return bool(self.workspace or os.environ.get(VARIABLE))

    @contextmanager
    def open(self, *, keep_ticks: int | None = None) -> Iterator[Workspace]:
        """The workspace; an error with the way out if there is none. What fails within the block is in its log."""
        context = click.get_current_context(silent=True)
        what = "" if context is None else context.command_path.partition(" ")[2]
        with failure_logged(Path(self.path), what):
            with self._opened(keep_ticks) as workspace:
                yield workspace

    @contextmanager
    def _opened(self, keep_ticks: int | None) -> Iterator[Workspace]:
        try:
            workspace = hw.open(self.path, create=False, keep_ticks=keep_ticks)
        except (hw.NotAWorkspaceError, hw.WorkspaceMissingError) as error:
            if self.chosen:
                raise
            raise type(error)(
                "this folder is not a workspace, and no other was named",
                hint=f"name one with -w PATH or {VARIABLE}, or make one here with `headwater init`",
            ) from None
        with workspace:
            try:
                if module := self.functions or os.environ.get(FUNCTIONS_VARIABLE):
                    _declare(module, workspace)
                yield workspace
            except hw.TopicNotFoundError as error:
                raise _about_view(error, workspace) from None


def _declare(module: str, workspace: Workspace) -> None:
    """Have the user's functions declared by their own code, found from where we are."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        declare = importlib.import_module(module).declare
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"there is no declare(ws) in module {module!r}: {error}",
            hint="write def declare(ws): ws.function(...) in it, and name it as for import, without .py",
        ) from error
    declare(workspace)


def _about_view(error: hw.TopicNotFoundError, workspace: Workspace) -> hw.TopicNotFoundError:
    """The error; where a view has the name and nothing was said of that, with how to read it."""
    name = str(error.facts.get("topic"))
    if name not in workspace.log.entries("view") or (error.hint or "").startswith(f"{name} is a view"):
        return error
    hint = f'{name} is a view: headwater sql "SELECT * FROM {name}"'
    return hw.TopicNotFoundError(error.message, detail=error.detail, hint=hint, **error.facts)


def views_of(workspace: Workspace) -> Views:
    """The views behind a workspace, for what only the command line asks of them."""
    return workspace._views


def outside_of(workspace: Workspace) -> Supervisor:
    """The sources and sinks behind a workspace."""
    return workspace._outside


pass_session = click.make_pass_decorator(CommandSession, ensure=True)


def complete_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Topic names for the shell; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [t.name for t in ws.topics() if t.name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_view(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """View names for the shell; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [name for name in sorted(ws.log.entries("view")) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_sink(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Sink names for the shell; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [name for name in sorted(ws.log.entries("sink")) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_built(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of views and sinks for the shell; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            names = {*ws.log.entries("view"), *ws.log.entries("sink")}
            return [name for name in sorted(names) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def topic_argument(function: Callable[..., None]) -> Callable[..., None]:
    """The TOPIC argument, completed by the shell."""
    return click.argument("topic", shell_complete=complete_topic)(function)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
