"""The workspace of a command, opened when the command needs it and closed when the command ends."""

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
    """The global options, given before the command."""

    workspace: str | None = None
    functions: str | None = None

    @property
    def path(self) -> str:
        """The workspace's folder: from the option, the environment, or the current folder."""
        return self.workspace or os.environ.get(VARIABLE) or "."

    @property
    def chosen(self) -> bool:
        """Whether the user has named a workspace."""
        return bool(self.workspace or os.environ.get(VARIABLE))

    @contextmanager
    def open(self, *, keep_ticks: int | None = None) -> Iterator[Workspace]:
        """Open the workspace; the error for a missing one has a hint. A failure within the block is logged in the
        workspace."""
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
                "the current folder is not a workspace",
                hint=f"name a workspace with -w PATH or {VARIABLE}, or create one here with `headwater init`",
            ) from None
        with workspace:
            try:
                if module := self.functions or os.environ.get(FUNCTIONS_VARIABLE):
                    _declare(module, workspace)
                yield workspace
            except hw.TopicNotFoundError as error:
                raise _about_view(error, workspace) from None


def _declare(module: str, workspace: Workspace) -> None:
    """Call the user's `declare(ws)`, in a module that is searched from the current folder."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        declare = importlib.import_module(module).declare
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"module {module!r} has no function declare(ws): {error}",
            hint="define declare(ws), which calls ws.function(...), and name the module as in an import, without .py",
            module=module,
        ) from error
    declare(workspace)


def _about_view(error: hw.TopicNotFoundError, workspace: Workspace) -> hw.TopicNotFoundError:
    """Return the error; if a view has the topic's name, with a hint how to read it."""
    name = str(error.facts.get("topic"))
    if name not in workspace.log.entries("view") or (error.hint or "").startswith(f"{name} is a view"):
        return error
    hint = f'{name} is a view: headwater sql "SELECT * FROM {name}"'
    return hw.TopicNotFoundError(error.message, detail=error.detail, hint=hint, **error.facts)


def views_of(workspace: Workspace) -> Views:
    """Return the views of a workspace, for operations that only the command line has."""
    return workspace._views


def supervisor_of(workspace: Workspace) -> Supervisor:
    """Return the supervisor of a workspace's sources and sinks."""
    return workspace._supervisor


pass_session = click.make_pass_decorator(CommandSession, ensure=True)


def complete_topic(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return topic names for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [t.name for t in ws.topics() if t.name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_view(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return view names for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [name for name in sorted(ws.log.entries("view")) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_sink(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return sink names for shell completion; none if the workspace cannot be read."""
    session = context.find_object(CommandSession) or CommandSession(
        (context.parent and context.parent.params.get("workspace")) or None
    )
    try:
        with session.open() as ws:
            return [name for name in sorted(ws.log.entries("sink")) if name.startswith(incomplete)]
    except hw.HeadwaterError:
        return []


def complete_built(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return names of views and sinks for shell completion; none if the workspace cannot be read."""
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
    """Add the TOPIC argument, with shell completion."""
    return click.argument("topic", shell_complete=complete_topic)(function)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
