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
"""Below the workspace: what sinks keep that have no other place."""


@dataclass(frozen=True)
class Wanted:
    """How a sink takes the changes of its view, and by which key, as far as its declaration says."""

    mode: Mode
    key: tuple[str, ...] = ()
    on_error: OnError = "stop"


def kind_of(made: SinkDefinition) -> SinkKind:
    """The kind of a sink; UsageError if it is one of a newer version."""
    if made.kind not in SINK_KINDS:
        raise UsageError(f"there are no sinks of kind {made.kind!r}")
    return SINK_KINDS[made.kind]


def wanted_of(made: SinkDefinition) -> Wanted:
    """What a declaration asks for. Its options are checked here as far as they do not depend on the target."""
    options = made.resolved()
    if options.get("on_error", "stop") not in ("stop", "divert"):
        raise UsageError(
            f"on_error of sink {made.name!r} is 'stop' or 'divert', not {options['on_error']!r}",
            hint="on_error = 'divert' puts rows that the target refuses on a topic, and goes on",
        )
    kind_of(made)
    return Wanted(mode_of(made.kind, options), names(options.get("key")), options.get("on_error", "stop"))


def mode_of(kind: str, options: Mapping[str, Any]) -> Mode:
    """How a sink of these options takes changes."""
    modes = SINK_KINDS[kind].modes
    given = options.get("mode", modes[0])
    if given not in modes:
        known = " or ".join(f"'{mode}'" for mode in modes)
        raise UsageError(f"mode of a sink into {kind.upper()} is {known}, not {given!r}")
    return cast(Mode, given)


def open_target(made: SinkDefinition, root: Path, log: Log, functions: Mapping[str, Function]) -> Target:
    """The target of a sink, not connected yet. `root` is the workspace's folder, `functions` are the user's by name."""
    kind, options = kind_of(made), made.resolved()
    if kind.extra is not None:
        require(kind.extra, f"sink {made.name!r} into {made.kind.upper()}")
    setup = SinkSetup(made.name, options, place_of(made, root), log, functions, dict(made.private))
    return cast(Target, kind.load().declared(setup))


def is_readable(made: SinkDefinition) -> bool:
    """Whether what a sink holds can be read back, and so be compared with its view."""
    return made.kind not in SINK_KINDS or SINK_KINDS[made.kind].readable


def guarantee_of(kind: str) -> str:
    """What a kind of sink promises, in a sentence."""
    row = SINK_KINDS[kind]
    if row.extra is not None:
        require(row.extra, f"a sink into {kind.upper()}")
    return str(row.load().guarantee)


def forget(made: SinkDefinition, log: Log) -> None:
    """Forget where a sink stood that is dropped, and which versions it had, if that is kept here and not in its target."""
    if made.name in log.entries(VERSIONS):
        log.drop_entry(VERSIONS, made.name)
    if not is_readable(made):
        keeper_of(made, log).forget()


def keeper_of(made: SinkDefinition, log: Log) -> LogKeeper:
    """Who keeps the stand of a sink whose target cannot be read: of whom, its first option says."""
    return LogKeeper(log, made.name, of=str(made.resolved()[kind_of(made).options[0]]))


def place_of(made: SinkDefinition, root: Path) -> Path:
    """Where a sink keeps what it has no other place for."""
    return root / FOLDER / made.name
