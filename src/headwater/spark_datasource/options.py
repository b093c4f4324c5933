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
            hint = f"did you mean {near[0]!r}?" if near else "SHOW VIEWS lists the existing views"
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
                f"view {self.view!r} cannot be read: a subject was forgotten, and this copy of the workspace has not applied that yet",
                hint=f"hw.open({self.workspace!r}) applies it, and ws.run() rebuilds the views",
                reason="forgetting-pending",
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
            raise UsageError(
                "option maxTicksPerTrigger is only for streams",
                hint="omit it",
                option="maxTicksPerTrigger",
                reason="stream-only",
            )
        if self.given_starting and not self.changes:
            raise UsageError(
                "option starting is only for reads of changes, and this read returns the rows at a tick",
                hint='for the rows at a tick: .option("as_of", 41); for the changes after it: .option("changes", True)',
                option="starting",
                reason="changes-only",
            )

    def refuse_for_stream(self) -> None:
        """Raise UsageError for options that only batch reads support, and for a stream without `changes`."""
        if self.as_of is not None:
            raise UsageError(
                "option as_of is only for batch reads",
                hint='to start a stream after a tick: .option("starting", 41)',
                option="as_of",
                reason="batch-only",
            )
        if not self.changes:
            raise UsageError(
                "a stream of a view needs the option changes: it reads changes, with _weight and _tick",
                detail="Spark asks for the columns before it says whether the read is a stream",
                hint='.option("changes", True)',
                option="changes",
                reason="missing-option",
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
        raise UsageError(
            f"option onGap must be 'fail' or 'skip', not {given.get('onGap')!r}",
            option="onGap",
            value=given.get("onGap"),
        )
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
    return UsageError(
        "the options view and topic exclude each other", hint="omit one of them", reason="view-and-topic"
    )


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
            f"option {named[0]} is only for batch writes",
            detail="a streaming query is its own producer, and the number of the batch is the sequence",
            hint="omit it",
            option=named[0],
            reason="batch-only",
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
                "a view cannot be written to: its SELECT computes its rows",
                hint='write to a topic that it reads: .option("topic", ...)',
                option="view",
                reason="read-only",
            )
        names = {name.lower(): name for name in (*known, *_OF_SPARK)}
        for name in self._given:
            if name not in names:
                near = difflib.get_close_matches(name, names, n=1)
                raise UsageError(
                    f"there is no option {name!r} to {verb} a {what}",
                    hint=f"did you mean {names[near[0]]}?" if near else f"the options are {', '.join(known)}",
                    option=name,
                    reason="unknown-option",
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
                    option=name,
                    reason="missing-option",
                )
        if self.get("workspace") == "memory:":
            raise UsageError(
                "Spark cannot read or write a workspace in memory: its tasks are other processes",
                hint="open a workspace in a folder",
                option="workspace",
                value="memory:",
            )
        # A task may have another working directory than the driver, where this runs.
        return os.path.abspath(self.get("workspace")), self.get(what).strip()

    def flag(self, name: str) -> bool:
        value = self.get(name, "false").strip().lower()
        if value not in ("true", "false"):
            raise UsageError(
                f"option {name} must be 'true' or 'false', not {self.get(name)!r}",
                option=name,
                value=self.get(name),
            )
        return value == "true"

    def count(self, name: str, least: int = 1) -> int | None:
        value = self.get(name).strip()
        if not value and name.lower() not in self._given:
            return None
        if not value.isdecimal() or int(value) < least:
            raise UsageError(
                f"option {name} must be an integer of at least {least}, not {self.get(name)!r}",
                hint=f'.option("{name}", {max(least, 1000)})',
                option=name,
                value=self.get(name),
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
            f"option columns must be a list of distinct names, not {text!r}",
            hint='.option("columns", "user, url")',
            option="columns",
            value=text,
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
            f"option starting is not a start position: {text!r}",
            hint="use 'earliest', 'latest', a time such as '2026-01-31T12:00:00Z', or offsets such as '{\"0\": 17, \"1\": 4}'",
            option="starting",
            value=text,
        ) from None


def _starting_tick(text: str) -> Literal["earliest", "latest"] | int:
    text = text.strip()
    if text.lower() == "earliest":
        return "earliest"
    if text.lower() == "latest":
        return "latest"
    if not text.isdecimal():
        raise UsageError(
            f"option starting is not the number of a tick: {text!r}",
            hint="use 'earliest', 'latest', or the number of a tick",
            option="starting",
            value=text,
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
            f"option as_of is neither the number of a tick nor a time: {text!r}",
            hint="use a number such as 41, or a time such as '2026-01-31T12:00:00Z'",
            option="as_of",
            value=text,
        ) from None


def _offset(given: object) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError
    return given
