"""Capture from a user's own class: the source that `CREATE SOURCE ... FROM PYTHON` makes, and what such a class is.

Guarantee: each thing that the class hands over is one atomic append, with the position that it gave in the same commit; after
a crash, or an error of its own, it is asked to go on from the last position that the log has. So every row is in the log once if
the class, asked again from a position, hands over what comes after it.
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
from headwater.sources.clock_positions import Moments, captured, owned, rows_of
from headwater.sources.source_setup import SourceSetup
from headwater.sql.parser import parse_columns

BACKOFF_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
TRIES_AWAITED = 4
"""How often is tried in vain before somebody who waits for the end is told."""
QUIET_S = 0.2
EVERY_US = 1_000_000
SAID_EVERY_MS = 2_000.0


class Source:
    """A source of your own: subclass it, say which topics it fills, and hand over rows.

        class Clicks(hw.Source):
            topics = {"clicks": "user BIGINT, url STRING, at TIMESTAMP"}

            def read(self, position):
                after = position or 0
                for page in service.pages(after):
                    yield {"clicks": page.rows}, page.number

    `CREATE SOURCE site FROM PYTHON WITH (class = 'shop.sources:Clicks', options = '{"region": "eu"}')` makes one; the options are
    the arguments of `__init__`. It is made where it is read, and again after an error of its own.
    """

    topics: ClassVar[Mapping[str, Any]] = {}
    """By name: columns as in CREATE TOPIC, with PRIMARY KEY and WATERMARK if there is one, or a pyarrow schema."""

    def read(self, position: Any) -> Iterator[tuple[Mapping[str, Any], Any] | None]:
        """Everything after a position, None at first: rows by topic, and the position after them, again and again.

        Each is one atomic append. Rows are what `topic.append` takes; on a keyed topic they may have an `_op`. Positions are plain
        JSON. Return when there is nothing more for now: it is called again after `every` (1 second). One that waits for what
        comes yields None meanwhile, every second or so, which says that nothing is there that was not handed over.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Let go of what is outside."""


class PythonSource:
    """A `Source` of a user's class; see `headwater.sources.base` for what each method promises."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        definition: Callable[[str], TopicDefinition | None],
        standing: Callable[[], ProducerInfo | None],
        *,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`definition` tells a topic as it is now; `standing`, what the log has of this source."""
        self.name = name
        self.state = "not reading"
        """What it does, or why it does nothing, in words."""
        self._path = text(options.get("class"), "class", hint="write class = 'package.module:Class'")
        self._arguments = _read_arguments(options.get("options"))
        every = options.get("every")
        self._every_s = (EVERY_US if every is None else span_us(every, "every")) / 1e6
        self._definition = definition
        self._standing = standing
        self._clock = clock or SystemClock()
        self._sleep = sleep
        self._is_awaited = False

    @classmethod
    def declared(cls, setup: SourceSetup) -> Self:
        """The source that a declaration asks for."""
        return cls(setup.name, setup.options, setup.lookups.definition, setup.standing)

    # --- declaring -------------------------------------------------------------------------------------------------

    def check(self) -> list[TopicDefinition]:
        """Load the class, and say which topics it fills. A topic that is the user's own stays as it is."""
        kind = load(self._path)
        declared = getattr(kind, "topics", None)
        if not isinstance(declared, Mapping) or not declared:
            raise UsageError(
                f"{self._path} does not say which topics it fills",
                hint="write topics = {'clicks': 'user BIGINT, url STRING'} in the class",
            )
        if not callable(getattr(kind, "read", None)):
            raise UsageError(f"{self._path} has no method read(position)", hint="see headwater.Source")
        made = []
        for name, said in declared.items():
            existing = self._definition(name)
            if existing is None or existing.captured_by is not None:
                made.append(owned(self.name, _topic(name, said)))
        return made

    def drop(self) -> None:
        """Nothing was made outside."""

    # --- reading ---------------------------------------------------------------------------------------------------

    def read(self, position: Position | None, sequence: int) -> Iterator[Event]:
        """Everything that the class hands over from there on. An error of its own is waited out, and told in the state."""
        moments = Moments(self._clock, sequence, SAID_EVERY_MS)
        failures = 0
        while True:
            try:
                for event in self._passes(position, moments):
                    yield event
                    if isinstance(event, Commit):
                        position, failures = event.position, 0
            except (HeadwaterError, _UserError) as error:
                failures += 1
                told = self._told(error)
                if self._is_awaited and failures >= TRIES_AWAITED:
                    self.state = f"stopped: {told.message}"
                    raise told from error.__cause__ or error
                self.state = f"{AGAIN}: {told.message}"
            yield from self._wait(BACKOFF_S[min(failures - 1, len(BACKOFF_S) - 1)])

    def durable(self, sequence: int, position: Position | None) -> None:
        """The class is told nothing: it is asked from the position again."""

    def end(self) -> int:
        """The present. Whoever asks waits for it, and is told of errors instead of waiting for ever."""
        self._is_awaited = True
        known = self._standing()
        return max(self._clock.now_us(), -1 if known is None else known.sequence + 1)

    def close(self) -> None:
        """Nothing is held between readings."""

    def _passes(self, position: Position | None, moments: Moments) -> Iterator[Event]:
        """What the class hands over, asked again and again."""
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
                            yield moments.quiet(moment)
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

    def _take(self, item: Any, moments: Moments) -> Generator[Event, None, Position]:
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
        moments.speak()
        yield Commit(sequence, position)
        return position

    def _pair(self, item: Any) -> tuple[Mapping[str, Any], Position]:
        if not isinstance(item, tuple) or len(item) != 2 or not isinstance(item[0], Mapping):
            raise UsageError(
                f"{self._path}.read gave {_short(item)}, not rows by topic and a position",
                hint="yield {'topic': rows}, position",
            )
        rows, said = item
        try:
            plain = json.loads(json.dumps(said))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"{self._path}.read gave the position {_short(said)}, which is not plain JSON: {error}",
                hint="a position is made of numbers, text, lists and dicts",
            ) from None
        if said is None:
            raise UsageError(f"{self._path}.read gave no position", hint="None is where it all begins")
        return rows, {"position": plain}

    def _topic(self, name: Any) -> TopicDefinition:
        topic = self._definition(name) if isinstance(name, str) else None
        if topic is None or topic.captured_by not in (None, self.name):
            raise TopicNotFoundError(
                f"{self._path}.read gave rows for topic {name!r}, which source {self.name!r} does not fill",
                hint="name it among the topics of the class",
                topic=str(name),
            )
        return topic

    def _told(self, error: HeadwaterError | _UserError) -> SourceError:
        if isinstance(error, HeadwaterError):
            return SourceError(
                f"source {self.name!r} ({self._path}) cannot go on: {error.message}",
                detail=error.detail,
                hint=error.hint,
                source=self.name,
            )
        cause = error.__cause__
        assert cause is not None
        frames = traceback.format_exception(cause)
        return SourceError(
            f"source {self.name!r} cannot go on: {self._path} raised {type(cause).__name__}: {cause}",
            detail="".join(frames).rstrip(),
            hint="it is asked again from the last position in the log once it can be",
            source=self.name,
        )

    def _wait(self, seconds: float) -> Iterator[Event]:
        while seconds > QUIET_S:
            self._sleep(QUIET_S)
            seconds -= QUIET_S
            yield Quiet()
        self._sleep(seconds)
        yield Quiet()


class _UserError(Exception):
    """The user's code raised its cause."""


_DONE = object()


def _theirs(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code."""
    try:
        return call(*arguments)
    except Exception as error:
        if error.__traceback__ is not None:
            error.__traceback__ = error.__traceback__.tb_next or error.__traceback__  # from their code on
        raise _UserError from error


def load(path: str) -> Callable[..., Any]:
    """The class that a path such as `package.module:Class` names; also from the folder where the process runs."""
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
                f"{path!r} does not name a class", hint="write class = 'package.module:Class'"
            ) from None
        raise UsageError(
            f"there is no class {path}: {error}",
            hint="is its module where Python looks for it, in the process that runs the workspace?",
        ) from error
    if not callable(found):
        raise UsageError(f"{path} is not a class")
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
            f"options are a JSON object: {error}", hint='options = \'{"region": "eu"}\''
        ) from None
    if not isinstance(arguments, dict):
        raise UsageError("options are a JSON object", hint='options = \'{"region": "eu"}\'')
    return arguments


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else shown[:57] + "..."
