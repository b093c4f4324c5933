"""The kinds of sinks: what each is made from, and what it wants of its view."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from headwater.connections import SinkDefinition
from headwater.errors import UsageError
from headwater.log.protocol import Log
from headwater.sinks.applying import OnError
from headwater.sinks.declared import MODES, mode_of, open_declared
from headwater.sinks.deliveries import LogKeeper
from headwater.sinks.python import Function
from headwater.sinks.target import Mode, SinkError, Target
from headwater.sinks.topic_versions import VERSIONS

FOLDER = "sinks"
"""Below the workspace: what sinks keep that have no other place."""


@dataclass(frozen=True)
class Wanted:
    """How a sink takes the changes of its view, and by which key, as far as its declaration says."""

    mode: Mode
    key: tuple[str, ...] = ()
    on_error: OnError = "stop"


def wanted_of(made: SinkDefinition) -> Wanted:
    """What a declaration asks for. Its options are checked here as far as they do not depend on the target."""
    options = made.resolved()
    if options.get("on_error", "stop") not in ("stop", "divert"):
        raise UsageError(
            f"on_error of sink {made.name!r} is 'stop' or 'divert', not {options['on_error']!r}",
            hint="on_error = 'divert' puts rows that the target refuses on a topic, and goes on",
        )
    mode = mode_of(made.kind, options) if made.kind in MODES else options.get("mode", "upsert")
    if mode not in get_args(Mode):
        known = ", ".join(map(repr, get_args(Mode)))
        raise UsageError(f"mode of sink {made.name!r} is one of {known}, not {mode!r}")
    return Wanted(mode, names(options.get("key")), options.get("on_error", "stop"))


def open_target(made: SinkDefinition, root: Path, log: Log, functions: Mapping[str, Function]) -> Target:
    """The target of a sink, not connected yet. `root` is the workspace's folder, `functions` are the user's by name."""
    options = made.resolved()
    match made.kind:
        case "postgres":
            from headwater.sinks.postgres import PostgresTarget

            return PostgresTarget(options["url"], options.get("table") or made.name)
        case "redis":
            from headwater.sinks.redis import RedisTarget

            return RedisTarget(
                options["url"],
                as_=options.get("as", "hash"),
                prefix=options.get("prefix"),
                score=options.get("score"),
                member=names(options.get("member")),
            )
    function = _function(made, str(options["function"]), functions) if made.kind == "python" else None
    place = place_of(made, root)
    private = dict(made.private)
    return open_declared(
        made.kind, made.name, options, place=place, log=log, function=function, private=private
    )


def is_readable(made: SinkDefinition) -> bool:
    """Whether what a sink holds can be read back, and so be compared with its view."""
    return made.kind not in ("webhook", "python")


def forget(made: SinkDefinition, log: Log) -> None:
    """Forget where a sink stood that is dropped, and which versions it had, if that is kept here and not in its target."""
    if made.name in log.entries(VERSIONS):
        log.drop_entry(VERSIONS, made.name)
    if not is_readable(made):
        keeper_of(made, log).forget()


def keeper_of(made: SinkDefinition, log: Log) -> LogKeeper:
    """Who keeps the stand of a sink whose target cannot be read."""
    options = made.resolved()
    return LogKeeper(log, made.name, of=str(options.get("url") or options.get("function")))


def place_of(made: SinkDefinition, root: Path) -> Path:
    """Where a sink keeps what it has no other place for."""
    return root / FOLDER / made.name


def _function(made: SinkDefinition, name: str, functions: Mapping[str, Function]) -> Function:
    """The user's function that a sink calls: one that was declared in this process, or `package.module:function`."""
    if name in functions:
        return functions[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SinkError(
            f"this process has no function {name!r} for sink {made.name!r}",
            detail=str(error) or None,
            hint="declare it with ws.sink_function(name, fn), or write function = 'package.module:function'",
            sink=made.name,
        ) from error
    function: Function = found
    return function


def names(given: Any) -> tuple[str, ...]:
    """Columns as an option names them: `'country'`, or `'shop, id'`."""
    return tuple(name.strip().strip("`") for name in str(given).split(",")) if given else ()
