"""The options of `format("headwater")`: texts, as Spark has them, checked and turned into settings.

Everything a task needs to know is in a settings object, which travels to it as it is.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from headwater.errors import UsageError
from headwater.log.appending import make_producer
from headwater.log.embedded.log import EmbeddedLog
from headwater.log.protocol import Producer
from headwater.log.reader import OnGap, Start
from headwater.runtime.datasource.logs import open_log

ROWS_PER_TASK = 250_000
"""Some 100 ms of reading: more than it costs to run a task, and few enough rows to keep every core busy."""

_COMMON = ("workspace", "topic")
_READ = (*_COMMON, "starting", "columns", "metadata", "maxRowsPerTrigger", "onGap", "rowsPerTask")
_WRITE = (*_COMMON, "producer", "sequence", "epoch")
_OF_SPARK = (
    "path",
    "queryName",
    "checkpointLocation",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options that belong to the query and are handed to its sink too."""

_ON_GAP: Mapping[str, OnGap] = {"fail": "fail", "skip": "earliest"}


@dataclass(frozen=True)
class Place:
    """A topic of a workspace, by the absolute path of its folder."""

    workspace: str
    topic: str

    def log(self) -> EmbeddedLog:
        """The workspace's log, which is never made here and for which no upkeep is done. It belongs to the process."""
        return open_log(self.workspace)


@dataclass(frozen=True)
class ReadSettings:
    """What a read was asked for."""

    place: Place
    starting: Start = "earliest"
    columns: tuple[str, ...] | None = None
    metadata: bool = False
    rows_per_trigger: int | None = None
    on_gap: OnGap = "fail"
    rows_per_task: int = ROWS_PER_TASK


@dataclass(frozen=True)
class WriteSettings:
    """What a write was asked for; `producer` makes a batch write idempotent, a stream has its own."""

    place: Place
    producer: Producer | None = None


def read_settings(options: Mapping[str, str]) -> ReadSettings:
    """The settings of a read; UsageError for an option that is missing, unknown or wrong."""
    given = _Options(options, _READ, "read")
    on_gap = given.get("onGap", "fail").strip().lower()
    if on_gap not in _ON_GAP:
        raise UsageError(f"option onGap is 'fail' or 'skip', not {given.get('onGap')!r}")
    return ReadSettings(
        place=given.place(),
        starting=_starting(given.get("starting", "earliest")),
        columns=_columns(given),
        metadata=given.flag("metadata"),
        rows_per_trigger=given.count("maxRowsPerTrigger"),
        on_gap=_ON_GAP[on_gap],
        rows_per_task=given.count("rowsPerTask") or ROWS_PER_TASK,
    )


def write_settings(options: Mapping[str, str], *, stream: bool) -> WriteSettings:
    """The settings of a write; UsageError for an option that is missing, unknown or wrong."""
    given = _Options(options, _WRITE, "write")
    named = [name for name in ("producer", "sequence", "epoch") if given.get(name)]
    if stream and named:
        raise UsageError(
            f"option {named[0]} is for batch writes",
            detail="a streaming query is its own producer, and the batch's number is the sequence",
            hint="leave it out",
        )
    producer = given.get("producer") or None
    return WriteSettings(
        given.place(),
        make_producer(producer, given.count("sequence", least=0), given.count("epoch", least=0)),
    )


class _Options:
    """Options by name, whatever the case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], verb: Literal["read", "write"]):
        self._given = {name.lower(): value for name, value in options.items()}
        if "view" in self._given:
            raise UsageError(
                "option view: views cannot be reached through Spark's data source yet",
                hint='read one with ws.query("SELECT * FROM ..."), or name a topic: .option("topic", ...)',
            )
        names = {name.lower(): name for name in (*known, *_OF_SPARK)}
        for name in self._given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise UsageError(
                    f"{name!r} is not an option to {verb} a topic with",
                    hint=f"did you mean {names[near[0]]}?" if near else f"the options are {', '.join(known)}",
                )

    def get(self, name: str, default: str = "") -> str:
        return str(self._given.get(name.lower(), default))

    def place(self) -> Place:
        for name in _COMMON:
            if not self.get(name).strip():
                raise UsageError(
                    f"option {name} is missing",
                    hint='.format("headwater").option("workspace", "shop").option("topic", "clicks")',
                )
        if self.get("workspace") == "memory:":
            raise UsageError(
                "a workspace in memory cannot be reached from Spark",
                hint="its tasks are other processes: open a workspace in a folder",
            )
        # A task may have another working folder than the driver, where this is run.
        return Place(os.path.abspath(self.get("workspace")), self.get("topic").strip())

    def flag(self, name: str) -> bool:
        value = self.get(name, "false").strip().lower()
        if value not in ("true", "false"):
            raise UsageError(f"option {name} is 'true' or 'false', not {self.get(name)!r}")
        return value == "true"

    def count(self, name: str, least: int = 1) -> int | None:
        value = self.get(name).strip()
        if not value and name.lower() not in self._given:
            return None
        if not value.isdecimal() or int(value) < least:
            raise UsageError(
                f"option {name} is a whole number from {least} up, not {self.get(name)!r}",
                hint=f'.option("{name}", {max(least, 1000)})',
            )
        return int(value)


def _columns(given: _Options) -> tuple[str, ...] | None:
    text = given.get("columns")
    names = tuple(name.strip().strip("`") for name in text.split(","))
    if not text:
        return None
    folded = [name.lower() for name in names]
    if not all(names) or len(set(folded)) < len(folded):
        raise UsageError(
            f"option columns is a list of different names, not {text!r}",
            hint='.option("columns", "user, url")',
        )
    return names


def _starting(text: str) -> Start:
    text = text.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    try:
        if text.startswith("{"):
            return {int(p): _offset(at) for p, at in json.loads(text).items()}
        return datetime.fromisoformat(text)
    except (ValueError, TypeError):
        raise UsageError(
            f"option starting does not say where to begin: {text!r}",
            hint="'earliest', 'latest', a time such as '2026-01-31T12:00:00Z', or positions as '{\"0\": 17, \"1\": 4}'",
        ) from None


def _offset(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError
    return given
