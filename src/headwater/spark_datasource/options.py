"""Options of `format("headwater")`: parses and checks Spark's string options, and returns settings.

A settings object contains everything that a task needs; Spark pickles it and sends it to the task.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from headwater.catalog.connectors import DELETION
from headwater.catalog.options import REQUIRED, Option, names_of
from headwater.catalog.view_definitions import ViewDefinition
from headwater.core.clock import SystemClock
from headwater.core.errors import UsageError, ViewNotFoundError, ViewUnavailableError
from headwater.core.storage import Storage
from headwater.log.append_rows import make_producer
from headwater.log.embedded.embedded_log import EmbeddedLog
from headwater.log.embedded.open_logs import open_log
from headwater.log.protocol import Producer
from headwater.log.reader import OnGap, Start
from headwater.state.store import StateStore

ROWS_PER_TASK = 250_000
"""About 100 ms of reading: more than the overhead of a task, and few enough rows to use every core."""

_WORKSPACE = Option("workspace", "text", REQUIRED, "Folder of the workspace.")
_TOPIC = Option("topic", "text", REQUIRED, "Name of the topic.")
_ROWS_PER_TASK = Option(
    "rowsPerTask", "whole number", f"{ROWS_PER_TASK}", "Largest number of rows that a task reads."
)
READ_OPTIONS = (
    _WORKSPACE,
    _TOPIC,
    Option(
        "starting",
        "text",
        "earliest",
        "Where to begin: `earliest`, `latest`, an append time such as `2026-01-31T12:00:00Z`, or positions such as "
        '`{"0": 17, "1": 4}`.',
    ),
    Option(
        "columns",
        "columns",
        "those of the topic",
        "Columns to read, also `_partition`, `_offset`, `_appended_at`, `_op`, `_watermark` and `_sequence`.",
    ),
    Option(
        "metadata",
        "boolean",
        "false",
        "Add `_partition`, `_offset` and `_appended_at` to the topic's columns.",
    ),
    Option(
        "maxRowsPerTrigger",
        "whole number",
        "unlimited",
        "For streams: largest number of rows in a micro-batch; an atomic append is never split.",
    ),
    Option(
        "onGap",
        "'fail' | 'skip'",
        "fail",
        "Reaction when records were removed before they were read: fail, or continue at the first record that is left.",
    ),
    _ROWS_PER_TASK,
)
"""Options of `spark.read` and `spark.readStream` of a topic."""
VIEW_OPTIONS = (
    _WORKSPACE,
    Option("view", "text", REQUIRED, "Name of the view."),
    Option(
        "as_of",
        "text",
        "the newest tick",
        "For batch reads: a tick, or a time such as `2026-01-31T12:00:00Z`: the last tick committed at or before it.",
    ),
    Option(
        "changes",
        "boolean",
        "false",
        "Read the changes, with `_weight` and `_tick`, instead of the rows; streams need it.",
    ),
    Option(
        "starting",
        "text",
        "earliest",
        "With `changes`: the tick after which to begin, `earliest` (all rows first) or `latest`.",
    ),
    Option("columns", "columns", "those of the view", "Columns to read."),
    Option(
        "maxTicksPerTrigger",
        "whole number",
        "unlimited",
        "For streams: largest number of ticks in a micro-batch.",
    ),
    _ROWS_PER_TASK,
)
"""Options of `spark.read` and `spark.readStream` of a view."""
WRITE_OPTIONS = (
    _WORKSPACE,
    _TOPIC,
    Option(
        "producer",
        "text",
        "none",
        "For batch writes: name of the producer, so that a repeated job writes once. A stream has a producer of its own.",
    ),
    Option("sequence", "whole number", "none", "For batch writes: number of the append by its producer."),
    Option(
        "epoch", "whole number", "none", "For batch writes: epoch of the producer; older epochs are fenced."
    ),
)
"""Options of `df.write` and `df.writeStream`."""
_READ, _VIEW, _WRITE = (names_of(options) for options in (READ_OPTIONS, VIEW_OPTIONS, WRITE_OPTIONS))
_OF_SPARK = (
    "path",
    "queryName",
    "checkpointLocation",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
"""Options of the query itself, which Spark passes to its sink too."""

_ON_GAP: Mapping[str, OnGap] = {"fail": "fail", "skip": "earliest"}


@dataclass(frozen=True)
class TopicLocation:
    """A topic of a workspace, given by the absolute path of its folder."""

    workspace: str
    topic: str

    def log(self) -> EmbeddedLog:
        """Return the workspace's log, cached in this process. Never created here; no upkeep runs on it."""
        return open_log(self.workspace)


@dataclass(frozen=True)
class ReadSettings:
    """The checked options of a read of a topic."""

    place: TopicLocation
    starting: Start = "earliest"
    columns: tuple[str, ...] | None = None
    metadata: bool = False
    rows_per_trigger: int | None = None
    on_gap: OnGap = "fail"
    rows_per_task: int = ROWS_PER_TASK


@dataclass(frozen=True)
class ViewPlace:
    """A view of a workspace, given by the absolute path of its folder."""

    workspace: str
    view: str

    def definition(self) -> ViewDefinition:
        """Return the view's definition; ViewNotFoundError."""
        views = open_log(self.workspace).entries("view")
        if self.view not in views:
            near = difflib.get_close_matches(self.view, list(views), 1)
            hint = f"did you mean {near[0]!r}?" if near else "SHOW VIEWS lists those that are there"
            raise ViewNotFoundError(f"there is no view {self.view!r}", hint=hint, view=self.view)
        return ViewDefinition.from_document(views[self.view].document)

    def name(self) -> str:
        """Return the view's name as it was declared."""
        return self.definition().name

    def store(self) -> StateStore:
        """Return the store of the workspace's ticks, which is cheap to open. ViewUnavailableError if a subject was forgotten
        that this copy of the workspace may still have in its ticks: opening it as a workspace applies the forgetting."""
        log = open_log(self.workspace)
        known = log.entries(DELETION)
        if any(f"forget-{one.number}" not in known for one in log.keys.forgotten()):
            raise ViewUnavailableError(
                f"view {self.view!r} cannot be read: somebody was forgotten, and this copy of the workspace does not know it yet",
                hint=f"hw.open({self.workspace!r}) applies it, and ws.run() makes the views anew",
                view=self.view,
            )
        return StateStore(Storage(self.workspace), SystemClock())


@dataclass(frozen=True)
class ViewSettings:
    """The checked options of a read of a view."""

    place: ViewPlace
    as_of: int | datetime | None = None
    changes: bool = False
    starting: Literal["earliest", "latest"] | int = "earliest"
    given_starting: bool = False
    columns: tuple[str, ...] | None = None
    ticks_per_trigger: int | None = None
    rows_per_task: int = ROWS_PER_TASK

    def refuse_for_batch(self) -> None:
        """Raise UsageError for options that only streams, or only reads of changes, support."""
        if self.ticks_per_trigger is not None:
            raise UsageError("option maxTicksPerTrigger is for streams", hint="leave it out")
        if self.given_starting and not self.changes:
            raise UsageError(
                "option starting says from where on changes are read, and this reads rows",
                hint='the rows at a tick: .option("as_of", 41); the changes after it: .option("changes", True)',
            )

    def refuse_for_stream(self) -> None:
        """Raise UsageError for options that only batch reads support, and for a stream without `changes`."""
        if self.as_of is not None:
            raise UsageError(
                "option as_of is for batch reads: a stream goes on",
                hint='begin at a tick: .option("starting", 41)',
            )
        if not self.changes:
            raise UsageError(
                "a stream of a view is a stream of its changes, with _weight and _tick",
                detail="Spark asks for the columns before it says whether it streams, so this has to be said too",
                hint='.option("changes", True)',
            )


@dataclass(frozen=True)
class WriteSettings:
    """The checked options of a write. `producer` makes a batch write idempotent; a stream has a producer of its own."""

    place: TopicLocation
    producer: Producer | None = None


def read_settings(options: Mapping[str, str]) -> ReadSettings:
    """Return the settings of a read of a topic; UsageError for a missing, unknown or invalid option."""
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


def reads_view(options: Mapping[str, str]) -> bool:
    """Whether these options read a view; UsageError if they name a topic too."""
    names = {name.lower() for name in options}
    if {"view", "topic"} <= names:
        raise _both()
    return "view" in names


def _both() -> UsageError:
    return UsageError("option view and option topic exclude each other", hint="leave one of them out")


def view_settings(options: Mapping[str, str]) -> ViewSettings:
    """Return the settings of a read of a view; UsageError for a missing, unknown or invalid option."""
    given = _Options(options, _VIEW, "read", "view")
    workspace, view = given.workspace("view", "revenue")
    return ViewSettings(
        place=ViewPlace(workspace, view),
        as_of=_as_of(given.get("as_of")),
        changes=given.flag("changes"),
        starting=_starting_tick(given.get("starting", "earliest")),
        given_starting=bool(given.get("starting")),
        columns=_columns(given),
        ticks_per_trigger=given.count("maxTicksPerTrigger"),
        rows_per_task=given.count("rowsPerTask") or ROWS_PER_TASK,
    )


def write_settings(options: Mapping[str, str], *, stream: bool) -> WriteSettings:
    """Return the settings of a write; UsageError for a missing, unknown or invalid option."""
    given = _Options(options, _WRITE, "write")
    named = [name for name in ("producer", "sequence", "epoch") if given.get(name)]
    if stream and named:
        raise UsageError(
            f"option {named[0]} is for batch writes",
            detail="a streaming query is its own producer, and the batch's number is the sequence",
            hint="leave it out",
        )
    producer = make_producer(
        given.get("producer") or None, given.count("sequence", least=0), given.count("epoch", least=0)
    )
    # Not exact: rows that Spark computes again may differ, in `foreachBatch` as well: rand(), uuid(), a source that has
    # changed.
    return WriteSettings(given.place(), None if producer is None else replace(producer, exact=False))


class _Options:
    """Options by name, case-insensitive."""

    def __init__(
        self,
        options: Mapping[str, str],
        known: tuple[str, ...],
        verb: Literal["read", "write"],
        what: Literal["topic", "view"] = "topic",
    ) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        if what == "topic" and "view" in self._given:
            if verb == "read":
                raise _both()
            raise UsageError(
                "a view is made by its SELECT, and cannot be written to",
                hint='write to a topic that it reads: .option("topic", ...)',
            )
        names = {name.lower(): name for name in (*known, *_OF_SPARK)}
        for name in self._given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise UsageError(
                    f"{name!r} is not an option to {verb} a {what} with",
                    hint=f"did you mean {names[near[0]]}?" if near else f"the options are {', '.join(known)}",
                )

    def get(self, name: str, default: str = "") -> str:
        return str(self._given.get(name.lower(), default))

    def place(self) -> TopicLocation:
        return TopicLocation(*self.workspace("topic", "clicks"))

    def workspace(self, what: str, example: str) -> tuple[str, str]:
        """Return the absolute path of the workspace's folder, and the name of the topic or view."""
        for name in ("workspace", what):
            if not self.get(name).strip():
                raise UsageError(
                    f"option {name} is missing",
                    hint=f'.format("headwater").option("workspace", "shop").option("{what}", "{example}")',
                )
        if self.get("workspace") == "memory:":
            raise UsageError(
                "a workspace in memory cannot be reached from Spark",
                hint="its tasks are other processes: open a workspace in a folder",
            )
        # A task may have another working directory than the driver, where this runs.
        return os.path.abspath(self.get("workspace")), self.get(what).strip()

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


def _starting_tick(text: str) -> Literal["earliest", "latest"] | int:
    text = text.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if not text.isdecimal():
        raise UsageError(
            f"option starting does not say after which tick to begin: {text!r}",
            hint="'earliest', 'latest', or the number of a tick",
        )
    return int(text)


def _as_of(text: str) -> int | datetime | None:
    text = text.strip()
    if not text:
        return None
    try:
        return int(text) if text.isdecimal() else datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"option as_of names no tick: {text!r}", hint="a number, or a time such as '2026-01-31T12:00:00Z'"
        ) from None


def _offset(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError
    return given
