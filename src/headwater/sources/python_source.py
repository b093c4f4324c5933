"""Python source: `CREATE SOURCE ... FROM PYTHON` runs a user's class; `Source` is the interface of such a class.

Guarantee: each item that the class yields is one atomic append, with the position of the item in the same commit. After a
crash, or an exception in the class, reading resumes from the last position in the log. So every row is in the log exactly once
if the class, given a position, yields what follows this position.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar, Self

import pyarrow as pa

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.arguments import span_us, text
from headwater.core.clock import Clock, SystemClock
from headwater.core.errors import HeadwaterError, SourceError, TopicNotFoundError, UsageError
from headwater.core.types import normalize_schema
from headwater.log.protocol import ProducerInfo
from headwater.sources.base import AGAIN, Commit, Event, Position, Quiet, Rows
from headwater.sources.clock_positions import ClockPositions, captured, owned, rows_of
from headwater.sources.source_setup import SourceSetup
from headwater.sql.parser import parse_columns

BACKOFF_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
TRIES_AWAITED = 4
"""Number of failed attempts after which a caller that waits for the end gets the error."""
QUIET_S = 0.2
EVERY_US = 1_000_000
SAID_EVERY_MS = 2_000.0


class Source:
    """A user-defined source: subclass it, declare the topics that it fills, and yield rows.

        class Clicks(hw.Source):
            topics = {"clicks": "user BIGINT, url STRING, at TIMESTAMP"}

            def read(self, position):
                after = position or 0
                for page in service.pages(after):
                    yield {"clicks": page.rows}, page.number

    `CREATE SOURCE site FROM PYTHON WITH (class = 'shop.sources:Clicks', options = '{"region": "eu"}')` declares one; the
    options are the arguments of `__init__`. An instance is created in the process that reads the source, and again after an
    exception.
    """

    topics: ClassVar[Mapping[str, Any]] = {}
    """By topic name: the columns as in CREATE TOPIC, with PRIMARY KEY and WATERMARK if there are any, or a pyarrow schema."""

    def read(self, position: Any) -> Iterator[tuple[Mapping[str, Any], Any] | None]:
        """Yield the rows after a position, repeatedly as pairs: rows by topic, and the position after them. The first position
        is None.

        Each pair is one atomic append. Rows have any form that `topic.append` accepts; on a keyed topic they may have an `_op`.
        Positions are plain JSON. Return when there is nothing more for now: `read` is called again after `every` (1 second). A
        source that waits for new data yields None about every second, which reports that everything available was yielded.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release external resources."""


class PythonSource:
    """Runs a `Source` of a user; see `headwater.sources.base` for the contract of each method."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        definition: Callable[[str], TopicDefinition | None],
        producer: Callable[[], ProducerInfo | None],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`definition` returns the current definition of a topic; `producer`, the producer state of this source in the log."""
        self.name = name
        self.state = "not reading"
        """Current activity of the source, or the reason why it is idle, in words."""
        self._path = text(options.get("class"), "class", hint="write class = 'package.module:Class'")
        self._arguments = _read_arguments(options.get("options"))
        every = options.get("every")
        self._every_s = (EVERY_US if every is None else span_us(every, "every")) / 1e6
        self._definition = definition
        self._producer = producer
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._is_awaited = False

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """Create the source of a declaration."""
        return cls(setup.name, setup.options, setup.lookups.definition, setup.producer)

    # --- declaring -------------------------------------------------------------------------------------------------

    def check(self) -> list[TopicDefinition]:
        """Load the class, and return the topics that it fills. An existing topic that the user created is not changed, and not
        returned."""
        kind = load(self._path)
        declared = getattr(kind, "topics", None)
        if not isinstance(declared, Mapping) or not declared:
            raise UsageError(
                f"{self._path} does not declare the topics that it writes to",
                hint="write topics = {'clicks': 'user BIGINT, url STRING'} in the class",
                source=self.name,
                reason="no-topics",
            )
        if not callable(getattr(kind, "read", None)):
            raise UsageError(
                f"{self._path} has no method read(position)",
                hint="implement the protocol headwater.Source",
                source=self.name,
                reason="no-read",
            )
        made = []
        for name, said in declared.items():
            existing = self._definition(name)
            if existing is None or existing.captured_by is not None:
                made.append(owned(self.name, _topic(name, said)))
        return made

    def drop(self) -> None:
        """Do nothing: nothing was created in an external system."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Yield what the class yields after the position. After an exception in the class, the state reports the error, and the
        class is tried again with a backoff."""
        moments = ClockPositions(self._clock, sequence, SAID_EVERY_MS)
        failures = 0
        while True:
            try:
                for event in self._passes(position, moments):
                    yield event
                    if isinstance(event, Commit):
                        position, failures = event.position, 0
            except (HeadwaterError, _UserError) as error:
                failures += 1
                stopped = self._stopped_by(error)
                if self._is_awaited and failures >= TRIES_AWAITED:
                    self.state = f"stopped: {stopped.message}"
                    raise stopped from error.__cause__ or error
                self.state = f"{AGAIN}: {stopped.message}"
            yield from self._wait(BACKOFF_S[min(failures - 1, len(BACKOFF_S) - 1)])

    def durable(self, sequence: int, position: Position | None) -> None:
        """Do nothing: the class is not notified, but later called again with a position."""

    def end(self) -> int:
        """Return the current time. The caller is going to wait for it, so from now on repeated errors are raised instead of
        retried for ever."""
        self._is_awaited = True
        known = self._producer()
        return max(self._clock.now_us(), -1 if known is None else known.sequence + 1)

    def close(self) -> None:
        """Do nothing: no resources are kept between runs of `read`."""

    def _passes(self, position: Position | None, moments: ClockPositions) -> Iterator[Event]:
        """Yield what one instance of the class yields, calling its `read` again and again."""
        made = _theirs(lambda: load(self._path)(**self._arguments))
        try:
            while True:
                at = None if position is None else position["position"]
                handed = _theirs(iter, _theirs(made.read, at))
                try:
                    while True:
                        moment = moments.now()
                        item = _theirs(next, handed, _DONE)
                        if item is None or item is _DONE:
                            yield moments.quiet_event(moment)
                        else:
                            position = yield from self._take(item, moments)
                        self.state = "reading"
                        if item is _DONE:
                            break
                finally:
                    if hasattr(handed, "close"):
                        with contextlib.suppress(Exception):
                            handed.close()
                yield from self._wait(self._every_s)
        finally:
            self.state = "not reading"
            if hasattr(made, "close"):
                with contextlib.suppress(Exception):
                    made.close()

    def _take(self, item: Any, moments: ClockPositions) -> Generator[Event, None, Position]:
        rows, position = self._pair(item)
        sequence = moments.within()
        now_us = self._clock.now_us()
        given = []
        for name, part in rows.items():
            topic = self._topic(name)
            batch = conform(part, rows_of(topic), captured=True)
            if batch.num_rows:
                given.append(Rows(topic.name, captured(batch, topic, sequence, now_us, sequence)))
        yield from given
        moments.report_next()
        yield Commit(sequence, position)
        return position

    def _pair(self, item: Any) -> tuple[Mapping[str, Any], Position]:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], Mapping):
            raise UsageError(
                f"{self._path}.read yielded {_short(item)} instead of rows by topic and a position",
                hint="yield {'topic': rows}, position",
                reason="not-a-pair",
            )
        rows, said = item
        try:
            plain = json.loads(json.dumps(said))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self._path}.read yielded the position {_short(said)}, which is not plain JSON: {error}",
                hint="build the position from numbers, text, lists and dicts",
                reason="position-not-json",
            ) from None
        if said is None:
            raise UsageError(
                f"{self._path}.read yielded the position None",
                hint="yield another position with rows: None means the beginning of the source",
                reason="no-position",
            )
        return rows, {"position": plain}

    def _topic(self, name: Any) -> TopicDefinition:
        topic = self._definition(name) if isinstance(name, str) else None
        if topic is None or topic.captured_by not in (None, self.name):
            raise TopicNotFoundError(
                f"{self._path}.read yielded rows for topic {name!r}, to which source {self.name!r} does not write",
                hint="add the topic to the topics of the class",
                topic=str(name),
            )
        return topic

    def _stopped_by(self, error: HeadwaterError | _UserError) -> SourceError:
        if isinstance(error, HeadwaterError):
            return SourceError(
                f"source {self.name!r} ({self._path}) cannot continue: {error.message}",
                detail=error.detail,
                hint=error.hint,
                **{**error.facts, "source": self.name},
            )
        cause = error.__cause__
        assert cause is not None
        frames = traceback.format_exception(cause)
        return SourceError(
            f"source {self.name!r} cannot continue: {self._path} raised {type(cause).__name__}: {cause}",
            detail="".join(frames).rstrip(),
            hint="correct the error; the source then resumes from its last position in the log",
            source=self.name,
            class_path=self._path,
        )

    def _wait(self, seconds: float) -> Iterator[Event]:
        while seconds > QUIET_S:
            self._sleep(QUIET_S)
            seconds -= QUIET_S
            yield Quiet()
        self._sleep(seconds)
        yield Quiet()


class _UserError(Exception):
    """An exception in the user's code, which is its cause."""


_DONE = object()


def _theirs(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code; _UserError if it raises an exception."""
    try:
        return call(*arguments)
    except Exception as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next or error.__traceback__  # skip our frame
        raise _UserError from error


def load(path: str) -> Callable[..., Any]:
    """Return the class that a path such as `package.module:Class` names. The working directory of the process is searched,
    too."""
    module, colon, name = path.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        if not colon or not module or not name:
            raise UsageError(
                f"{path!r} is not the path of a class",
                hint="write class = 'package.module:Class'",
                option="class",
                reason="path",
            ) from None
        raise UsageError(
            f"cannot import class {path}: {error}",
            hint="make its module importable in the process that runs the workspace, such as through PYTHONPATH",
            option="class",
            reason="import",
        ) from error
    if not callable(found):
        raise UsageError(f"{path} is not a class", option="class", reason="not-a-class")
    return found  # type: ignore[no-any-return]


def _topic(name: str, said: Any) -> TopicDefinition:
    if isinstance(said, pa.Schema):
        return define_topic(name, normalize_schema(said))
    columns = parse_columns(text(said, f"the columns of topic {name!r}"))
    return define_topic(
        name,
        columns.schema,
        key=columns.key,
        time=columns.time,
        lateness=columns.lateness_us,
        private=columns.private,
    )


def _read_arguments(said: Any) -> dict[str, Any]:
    if said is None:
        return {}
    try:
        arguments = json.loads(text(said, "options"))
    except ValueError as error:
        raise UsageError(
            f"options is not valid JSON: {error}", hint='options = \'{"region": "eu"}\'', option="options"
        ) from None
    if not isinstance(arguments, dict):
        raise UsageError(
            "options must be a JSON object", hint='options = \'{"region": "eu"}\'', option="options"
        )
    return arguments


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
