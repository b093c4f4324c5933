"""The names that programs and people use, table by table of docs/compatibility.md, as the code has them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

import headwater as hw
import pyspark_headwater
from headwater.catalog import connectors, definitions, view_definitions
from headwater.core import errors
from headwater.engine.metrics import phases
from headwater.testing import inspect_workspace
from tests.repo.code_values import (
    argument,
    calls,
    keys_beside,
    keys_written,
    keyword,
)
from tests.repo.compatibility_page import GOLDEN, Rows, table
from tests.repo.tree import ROOT


def _errors() -> dict[str, type[errors.HeadwaterError]]:
    every = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: kind for name, kind in every.items() if issubclass(kind, errors.HeadwaterError)}


@table("Import paths")
def _imports() -> Rows:
    import headwater.events
    import headwater.testing

    return {
        "headwater": set(hw.__all__) - set(_errors()),
        "headwater.events": set(headwater.events.__all__),
        "headwater.testing": set(headwater.testing.__all__),
    }


@table("Names in packages")
def _scripts() -> Rows:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    from headwater.spark_datasource.datasource import HeadwaterDataSource

    return {
        "headwater": (project["scripts"]["headwater"],),
        "pyspark_headwater": (*pyspark_headwater.__all__, HeadwaterDataSource.name()),
    }


@table("Error classes")
def _error_classes() -> Rows:
    assert set(_errors()) <= set(hw.__all__)
    return {name: (kind.__base__.__name__,) for name, kind in _errors().items() if name != "HeadwaterError"}


@table("HTTP routes")
def _routes() -> Rows:
    from headwater.web import app
    from headwater.web.console import console_api

    return {f"{method} {path}" for method, path, _ in (*app.ROUTES, *console_api.ROUTES)}


@table("Problem types")
def _problems() -> Rows:
    from headwater.web import problems
    from headwater.web.problem_types import SERVER_PROBLEMS

    own = set(SERVER_PROBLEMS)  # test_reference.py compares it with what is raised
    answered = (errors.ViewUnavailableError, errors.TickNotKeptError, errors.ClosedError)
    answered += tuple(kind for kind, _ in problems._STATUSES)  # type: ignore[assignment]
    told = {
        kind
        for kind in _errors().values()
        if issubclass(kind, answered)
        or (kind.retryable and not issubclass(kind, errors.StorageError | errors.CorruptionError))
    }
    return {str(kind) for kind in own} | {kind.code for kind in told}


@table("Metrics")
def _metrics() -> Rows:
    return families()


@cache
def families() -> dict[str, frozenset[str]]:
    with hw.open("memory:") as ws:
        every = list(inspect_workspace(ws).metric_families())  # type: ignore[attr-defined]
    ending = {"counter": "_total"}
    return {f"{f.name}{ending.get(f.type, '')}": frozenset(f._labelnames) for f in every}


@table("Spans")
def _spans() -> Rows:
    from headwater.engine.tick.tracing import _Spans

    every = {value for name, value in vars(phases).items() if name.isupper()}
    facts = {f"headwater.{name}" for name in keys_written(_Spans.ticked, _Spans.failed, into="facts")}
    facts |= set(keys_written(_Spans._tick, into="span") | keyword(_Spans._tick, "attributes"))
    of_tick = {name for name in facts if name.startswith("headwater.")} | {"headwater.seconds"}
    return {
        "tick": of_tick,
        **{phase: {"headwater.seconds"} for phase in every},
        "view stopped": keys_written(_Spans.ticked, into="attributes"),
        "exception": keys_written(_Spans.failed, into="attributes"),
    }


@table("Loggers")
def _loggers() -> Rows:
    found = {argument(module, call, 0) for module, call in calls("getLogger")}
    return frozenset(str(name) for name in found if name is not None and name.startswith("headwater"))


@table("Lines of the log file")
def _log_lines() -> Rows:
    from headwater.cli.logs import JsonLines

    return keys_written(JsonLines.format)


@table("Commands")
def _commands() -> Rows:
    return {path: options for path, (options, _) in _tree().items()}


@cache
def _tree() -> dict[str, tuple[set[str], click.Command]]:
    from headwater.cli.program import cli

    def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                below = command.get_command(click.Context(command), name)
                assert below is not None
                yield from walk(below, f"{path} {name}")

    return {
        path: (
            {
                option
                for parameter in command.params
                if isinstance(parameter, click.Option)
                for option in (*parameter.opts, *parameter.secondary_opts)
            },
            command,
        )
        for path, command in walk(cli, "headwater")
    }


@table("Options of sources")
def _source_options() -> Rows:
    return {kind: set(options) for kind, options in connectors.SOURCE_OPTIONS.items()}


@table("Options of sinks")
def _sink_options() -> Rows:
    return {kind: set(options) for kind, options in connectors.SINK_OPTIONS.items()}


@table("Options of alerts")
def _alert_options() -> Rows:
    return {kind: set(options) for kind, options in connectors.ALERT_OPTIONS.items()}


@table("Options of topics, views and standing queries")
def _statement_options() -> Rows:
    from headwater.sql import standing_statements

    return {
        "TOPIC": set(definitions.OPTION_NAMES),
        "MATERIALIZED VIEW": set(view_definitions.VIEW_OPTION_NAMES),
        "STANDING QUERY": set(standing_statements.OPTIONS),
    }


@table("Options of the Spark data source")
def _spark_options() -> Rows:
    from headwater.spark_datasource import options

    return {
        "reading a topic": set(options._READ),
        "reading a view": set(options._VIEW),
        "writing": set(options._WRITE),
    }


OPEN = frozenset(
    (
        "counts",
        "kept_for_views",
        "labels",
        "last_refused",
        "left",
        "path",
        "phases",
        "records",
        "stopped",
        "errors",
    )
)
"""Objects whose keys are names or values of users, and lists of texts."""


def _flat(value: Any, before: str = "") -> Iterator[str]:
    """The keys of a JSON document: `views[].view`, `disk.free_bytes`."""
    if isinstance(value, list):
        for item in value:
            yield from _flat(item, f"{before}[]" if before else "")
    elif isinstance(value, dict):
        for key, inner in value.items():
            name = f"{before}.{key}" if before else key
            yield name
            if key not in OPEN:
                yield from _flat(inner, name)


RUN: Mapping[str, tuple[str, ...]] = {
    "headwater cursors": ("cursors",),
    "headwater dead": ("dead",),
    "headwater dead list": ("dead", "list"),
    "headwater dead show": ("dead", "show", "jobs/0-0"),
    "headwater deletions": ("deletions",),
    "headwater lag": ("lag",),
    "headwater maintain": ("maintain",),
    "headwater metrics": ("metrics",),
    "headwater queue": ("queue",),
    "headwater queue list": ("queue", "list"),
    "headwater queue receive": ("queue", "receive", "jobs"),
    "headwater queue show": ("queue", "show", "jobs"),
    "headwater rotate-keys": ("rotate-keys",),
    "headwater status": ("status",),
    "headwater token create": ("token", "create", "reader"),
    "headwater token list": ("token", "list"),
    "headwater topics": ("topics",),
    "headwater views": ("views",),
}
"""Commands that are run on a copy of a golden workspace, in this order."""


def fill(folder: Path) -> None:
    shutil.copytree(GOLDEN / "state-2" / "workspace", folder)
    sink = connectors.SinkDefinition(
        "copies", "parquet", {"path": str(folder.parent / "copies")}, "spent", ("customer",)
    )
    with hw.open(folder) as ws:
        ws.sql("""
            CREATE TOPIC people (id STRING NOT NULL, mail STRING PRIVATE BY (id));
            CREATE SOURCE hook FROM WEBHOOK WITH (secret = env('PATH'), topic = 'hooked', scheme = 'github');
            CREATE ALERT full ON METRIC headwater_disk_free_bytes WHEN value < 1 NOTIFY TOPIC WITH (topic = 'alarms');
        """)
        ws.log.put_entry("sink", sink.name, sink.to_document(), expect=None)
        queue = ws.queue("jobs", "people")
        people = ws.topic("people")
        people.append([{"id": name, "mail": "m"} for name in "abcd"], producer="loader", sequence=1)
        people.cursor("mailer").commit()
        queue.receive(1)[0].nack(final=True, error="no")
        queue.receive(1)
        ws.forget("a")


@cache
def _printed() -> Mapping[str, set[str]]:
    """The keys that each of these commands prints."""
    import tempfile

    from headwater.cli.program import cli

    found = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "ws"
        fill(folder)
        for command, words in RUN.items():
            done = CliRunner().invoke(cli, ["-w", str(folder), *words, "--json"])
            assert done.exit_code == 0, (command, done.output)
            found[command] = set(_flat(json.loads(done.stdout)))
    return found


@table("Keys of `--json`")
def _json_keys() -> Rows:
    from headwater.cli.commands import (
        append,
        dead,
        doctor,
        engine,
        late,
        maintenance,
        rebuild,
        standing,
        status,
        why,
    )
    from headwater.connectors.alerts.alerts import ActiveAlert
    from headwater.engine.row_errors.rejected_row_counts import RejectedRows
    from headwater.log.protocol import FailedWork, Finding, HeldRecords
    from headwater.sinks.base.sink_rebuild import Rebuilt
    from headwater.views.runner import RunReport
    from headwater.views.standing_queries import _SHOWN

    def fields(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    def below(name: str, keys: Collection[str]) -> set[str]:
        return {f"{name}[].{key}" for key in keys}

    printed = {command: set(keys) for command, keys in _printed().items()}
    shown = printed["headwater status"]
    shown |= below("alerts", fields(ActiveAlert)) | {
        f"engine.{key}" for key in keys_beside(status._about, "pid")
    }
    shown |= {key.replace("warnings", "unhealthy") for key in shown if key.startswith("health.warnings[]")}
    printed["headwater status"] |= below("rejected", fields(RejectedRows))
    verified = {
        *below("differences", fields(Finding)),
        "ok",
        *keys_written(maintenance.verify, into="checked"),
        "differences",
    }
    verified |= below("views", keys_written(maintenance._view)) | below(
        "sinks", keys_written(maintenance._sink)
    )
    printed["headwater maintain"] |= below("waiting", fields(HeldRecords)) | below(
        "failed", fields(FailedWork)
    )
    excised = printed["headwater deletions"]
    written = {
        "headwater append": keys_written(append.append),
        "headwater dead drop": keys_written(dead.drop),
        "headwater dead edit": keys_written(dead._facts),
        "headwater dead replay": keys_written(dead.replay),
        "headwater doctor": fields(doctor.Check),
        "headwater excise": excised,
        "headwater forget": excised,
        "headwater late": keys_written(late._accounts),
        "headwater late replay": keys_written(late._say_replayed),
        "headwater rebuild": keys_written(rebuild._view, rebuild._drop_view, rebuild._sink) | fields(Rebuilt),
        "headwater run": fields(RunReport)
        | below("rejected", fields(RejectedRows))
        | keys_written(engine._report),
        "headwater standing": set(_SHOWN.names),
        "headwater standing add": keys_written(standing._print),
        "headwater standing remove": keys_written(standing._print),
        "headwater verify": verified,
        "headwater why": keys_written(why._document),
    }
    rows_of_users = {
        "headwater queue peek",
        "headwater search",
        "headwater sql",
        "headwater standing list",
        "headwater tail",
    }
    every = {path for path, (options, _) in _tree().items() if "--json" in options}
    assert every == {*printed, *written, *rows_of_users}, "a command that prints JSON is run or read here"
    return {**printed, **written}
