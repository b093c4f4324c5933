"""The kinds of sinks: each is opened by the class that its row in `headwater.catalog.connector_kinds` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headwater.catalog.connector_kinds import SINK_KINDS, SinkKind
from headwater.catalog.connectors import SinkDefinition
from headwater.core.errors import UsageError
from headwater.core.extras import require
from headwater.log.protocol import Log
from headwater.sinks.base.applier import OnError
from headwater.sinks.base.at_least_once import LogKeeper
from headwater.sinks.base.sink_setup import Function, SinkSetup, names
from headwater.sinks.base.target import Mode, Target
from headwater.sinks.topic.versions import VERSIONS

FOLDER = "sinks"
"""Folder in the workspace for data of sinks that has no other location."""


@dataclass(frozen=True)
class Wanted:
    """The mode, key and error handling that the declaration of a sink asks for."""

    mode: Mode
    key: tuple[str, ...] = ()
    on_error: OnError = "stop"


def kind_of(made: SinkDefinition) -> SinkKind:
    """Return the kind of a sink; UsageError if this version of Headwater does not have the kind."""
    if made.kind not in SINK_KINDS:
        raise UsageError(
            f"this version of Headwater has no sinks of kind {made.kind!r}",
            hint="upgrade Headwater",
            sink=made.name,
            kind=made.kind,
        )
    return SINK_KINDS[made.kind]


def wanted_of(made: SinkDefinition) -> Wanted:
    """Return the mode, key and error handling that a declaration asks for. Options are validated here as far as that does
    not depend on the target."""
    options = made.resolved()
    if options.get("on_error", "stop") not in ("stop", "divert"):
        raise UsageError(
            f"on_error of sink {made.name!r} must be 'stop' or 'divert', not {options['on_error']!r}",
            hint="on_error = 'divert' writes rejected rows to a topic and continues",
            sink=made.name,
            option="on_error",
            value=options["on_error"],
        )
    kind_of(made)
    return Wanted(mode_of(made.kind, options), names(options.get("key")), options.get("on_error", "stop"))


def mode_of(kind: str, options: Mapping[str, Any]) -> Mode:
    """Return the mode of a sink with these options; UsageError if its kind does not support the mode."""
    modes = SINK_KINDS[kind].modes
    given = options.get("mode", modes[0])
    if given not in modes:
        known = " or ".join(f"'{mode}'" for mode in modes)
        raise UsageError(
            f"mode of a sink into {kind.upper()} must be {known}, not {given!r}",
            option="mode",
            value=given,
            kind=kind,
        )
    return cast(Mode, given)


def open_target(made: SinkDefinition, root: Path, log: Log, functions: Mapping[str, Function]) -> Target:
    """Return the target of a sink, not connected yet. `root` is the folder of the workspace, `functions` are the user's
    functions by name."""
    kind, options = kind_of(made), made.resolved()
    if kind.extra is not None:
        require(kind.extra, f"sink {made.name!r} into {made.kind.upper()}")
    setup = SinkSetup(made.name, options, place_of(made, root), log, functions, dict(made.private))
    return cast(Target, kind.load().declared(setup))


def is_readable(made: SinkDefinition) -> bool:
    """Whether the contents of a sink can be read back, and so compared with its view."""
    return made.kind not in SINK_KINDS or SINK_KINDS[made.kind].readable


def guarantee_of(kind: str) -> str:
    """Return the delivery guarantee of a kind of sink, as a sentence."""
    row = SINK_KINDS[kind]
    if row.extra is not None:
        require(row.extra, f"a sink into {kind.upper()}")
    return str(row.load().guarantee)


def forget(made: SinkDefinition, log: Log) -> None:
    """Remove the checkpoint and the versions of a dropped sink, if they are stored in the workspace and not in the target."""
    if made.name in log.entries(VERSIONS):
        log.drop_entry(VERSIONS, made.name)
    if not is_readable(made):
        keeper_of(made, log).forget()


def keeper_of(made: SinkDefinition, log: Log) -> LogKeeper:
    """Return the checkpoint storage of a sink whose target cannot be read. The first option of the kind, such as the URL,
    identifies the receiver."""
    return LogKeeper(log, made.name, of=str(made.resolved()[kind_of(made).options[0].name]))


def place_of(made: SinkDefinition, root: Path) -> Path:
    """Return the folder for data of a sink that has no other location."""
    return root / FOLDER / made.name
