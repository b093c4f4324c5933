"""Targets made of the options of a declaration: SEARCH, LAKE, PARQUET, TOPIC, WEBHOOK and PYTHON.

Each library is loaded when a target that needs it is made, and not before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import orjson

from headwater.arguments import span_us, text, whole_number
from headwater.errors import UsageError
from headwater.log.protocol import Log
from headwater.sinks.circuit import CircuitOptions
from headwater.sinks.deliveries import LogKeeper
from headwater.sinks.python import Function, PythonTarget
from headwater.sinks.target import Mode, Target

MODES: Mapping[str, tuple[Mode, ...]] = {
    "search": ("upsert",),
    **dict.fromkeys(("lake", "parquet", "topic", "webhook", "python"), ("upsert", "append", "changelog")),
}
"""How each kind takes changes; the first is the one it takes them in unless `mode` says another."""


def mode_of(kind: str, options: Mapping[str, Any]) -> Mode:
    """How a sink of these options takes changes."""
    given = options.get("mode", MODES[kind][0])
    if given not in MODES[kind]:
        known = " or ".join(f"'{mode}'" for mode in MODES[kind])
        raise UsageError(f"mode of a sink into {kind.upper()} is {known}, not {given!r}")
    return cast(Mode, given)


def open_declared(
    kind: str,
    sink: str,
    options: Mapping[str, Any],
    *,
    place: Path,
    log: Log,
    function: Function | None = None,
    private: Mapping[str, str] | None = None,
) -> Target:
    """The target of a sink, not connected yet. `place` is a folder for what has no other place; `function` is the user's, for
    PYTHON; `private` are the columns that are so in a TOPIC, by their subject's."""
    match kind:
        case "search":
            from headwater.sinks.search import SearchTarget

            columns = _names(options["text"]) if options.get("text") is not None else None
            return SearchTarget(
                options.get("path") or place,
                text=columns,
                language=options.get("language"),
                accents=options.get("accents", "keep"),
            )
        case "lake":
            from headwater.sinks.lake import LakeTarget

            return LakeTarget(
                options.get("warehouse") or place,
                text(options.get("table") or sink, "table"),
                catalog=_catalog(options.get("catalog")),
                file_rows=_count(options, "file_rows", 250_000),
                snapshots=_count(options, "snapshots", 100),
            )
        case "parquet":
            from headwater.sinks.parquet import ParquetTarget

            return ParquetTarget(options.get("path") or place)
        case "topic":
            from headwater.sinks.topic import TopicTarget

            made = {
                name: options[name] for name in ("partitions", "durability", "cleanup") if name in options
            }
            return TopicTarget(log, text(options.get("topic"), "topic"), options=made, private=private)
        case "webhook":
            from headwater.sinks.webhook import WebhookOptions, WebhookTarget

            url = text(options.get("url"), "url")
            chosen = WebhookOptions(
                secret=options.get("secret"),
                token=options.get("token"),
                timeout_s=span_us(options.get("timeout", "10 seconds"), "timeout") / 1e6,
                rows=_count(options, "rows", 500),
                previous_secret=options.get("previous_secret"),
                circuit=CircuitOptions(
                    _count(options, "open_after", CircuitOptions.opens_after),
                    span_us(options.get("open_for", f"{CircuitOptions.open_s} s"), "open_for") / 1e6,
                ),
            )
            return WebhookTarget(url, LogKeeper(log, sink, of=url), chosen)
        case "python":
            if function is None:
                raise UsageError(f"sink {sink!r} needs its function, and this process has no code for it")
            name = text(options.get("function"), "function")
            return PythonTarget(function, LogKeeper(log, sink, of=name), rows=_count(options, "rows", 10_000))
    raise UsageError(f"there are no sinks of kind {kind!r}")


def _names(given: Any) -> tuple[str, ...]:
    return tuple(name.strip().strip("`") for name in text(given, "text").split(",") if name.strip())


def _count(options: Mapping[str, Any], name: str, usual: int) -> int:
    return whole_number(options.get(name, usual), name, least=1)


def _catalog(given: Any) -> dict[str, str] | None:
    """The properties of a catalog: a JSON object, or the name of one that pyiceberg is configured with."""
    if given is None:
        return None
    said = text(given, "catalog")
    if not said.lstrip().startswith("{"):
        return {"name": said}
    try:
        properties = orjson.loads(said)
        return {str(name): str(value) for name, value in properties.items()}
    except ValueError:
        raise UsageError(
            "catalog is the name of a catalog that pyiceberg is configured with, or a JSON object of its properties",
            hint="""catalog = '{"type": "rest", "uri": "https://..."}', or catalog = env('LAKE_CATALOG')""",
        ) from None
