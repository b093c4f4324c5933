"""Reactions: functions of events, or of a view's changes, that issue commands, each with exactly one effect despite crashes.

The log stores the position. Command ids are derived from the event or change, so what is repeated after a crash, before the
position was advanced, has no second effect, even if the function was changed meanwhile and would issue another command. A
refused command is counted, and the reaction continues; an error of another kind stops it at its position.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby
from typing import Any, Literal, Protocol

import orjson
import pyarrow as pa
import xxhash

from headwater.core.arguments import label
from headwater.core.clock import to_us
from headwater.core.errors import CommandIdUsedError, CommandRefusedError, ConflictError, UsageError
from headwater.core.faults import Faults
from headwater.events.aggregate_store import Send, Store
from headwater.events.aggregates import classes_of, parameter_hint, raising
from headwater.events.envelope import Context, Outcome, Recorded
from headwater.events.service_thread import Background
from headwater.log.protocol import CursorMove, Log

Since = Literal["beginning", "now"] | datetime
"""Start position of a new reaction."""
ENTRY = "reaction"
BATCH_EVENTS = 1_000
ATTEMPTS_MAX = 20
"""Number of attempts to write a position while another process advances it."""
CAUSE_CHARACTERS_MAX = 280
"""Maximum length of a cause in command ids, which have at most 500 characters."""


@dataclass(frozen=True)
class Reacted:
    """The result of a reaction's run: `repeated` is the number of issued commands that had had their effect before, as after
    a crash."""

    handled: int
    issued: int
    refused: int
    repeated: int = 0


@dataclass(frozen=True)
class Changed:
    """A change of a view's row at a tick: inserted (`weight` > 0) or deleted."""

    row: Mapping[str, Any]
    weight: int
    tick: int
    view: str


@dataclass(frozen=True)
class Cause:
    """An event or change to react to: the arguments of the function, and the ids for its commands."""

    arguments: tuple[Any, ...]
    id: str
    correlation_id: str | None


class ReactionFeed(Protocol):
    """The input of a reaction. Input that was read and not marked `advance` is read again."""

    def batches(self, timeout_s: float | None) -> Iterator[tuple[Sequence[Cause], Any]]:
        """Yield new input in order, each batch with the position after it; wait up to `timeout_s` for more, None does not
        wait."""
        ...

    def advance(self, position: Any) -> None:
        """Store the position to continue from."""
        ...


class EventFeed:
    """The events of a store. The position is a cursor of its topic."""

    def __init__(
        self, log: Log, store: Store[Any, Any, Any], name: str, since: Since, kinds: tuple[type, ...]
    ) -> None:
        self._log = log
        self._store = store
        self._cursor = f"reaction {name}"
        self._kinds = kinds
        if log.cursor(store.topic, self._cursor) is None:
            log.create_cursor(store.topic, self._cursor, _positions(log, store.topic, since), False)

    def batches(self, timeout_s: float | None) -> Iterator[tuple[Sequence[Cause], Any]]:
        """See `ReactionFeed`."""
        stored = self._log.cursor(self._store.topic, self._cursor)
        at = dict(stored.positions) if stored is not None else {}
        while True:
            ends = self._log.ends([self._store.topic])[self._store.topic]
            for partition, end in ends.items():
                while (start := at.get(partition, 0)) < end:
                    stop = min(end, start + BATCH_EVENTS)
                    events = self._store.recorded(partition, start, stop)
                    at[partition] = stop
                    yield [_cause(one) for one in events if isinstance(one.event, self._kinds)], dict(at)
            if timeout_s is None or not self._log.wait(self._store.topic, ends, timeout_s * 1e3):
                return

    def advance(self, position: Any) -> None:
        """See `ReactionFeed`."""
        self._log.move_cursor(CursorMove(self._store.topic, self._cursor, position))


class ReadableView(Protocol):
    """The part of a view that a reaction uses."""

    name: str

    def read(self, *, as_of: int) -> pa.Table:
        """Return the rows of the view at a tick."""
        ...

    def changes(self, since: int, *, follow: Literal[True], timeout: float) -> Iterator[pa.Table]:
        """Yield the changes after a tick, tick by tick."""
        ...


class ViewFeed:
    """The changes of a view. The position is a tick, in an entry of the catalog."""

    def __init__(
        self, log: Log, view: ReadableView, name: str, since: Since, newest: Callable[[], int]
    ) -> None:
        """`newest` returns the last tick; 0 before the first."""
        if isinstance(since, datetime):
            raise UsageError(
                "a reaction to a view starts at 'beginning' or 'now', not at a time",
                hint='since="now"',
                argument="since",
                value=since,
            )
        self._log = log
        self._view = view
        self._name = name
        if name not in log.entries(ENTRY):
            tick = newest()
            begun = since == "now" or tick == 0
            log.put_entry(ENTRY, name, {"view": view.name, "tick": tick, "begun": begun}, expect=None)

    def batches(self, timeout_s: float | None) -> Iterator[tuple[Sequence[Cause], Any]]:
        """See `ReactionFeed`."""
        document = self._log.entries(ENTRY)[self._name].document
        tick: int = document["tick"]
        if not document["begun"]:
            yield self._causes(self._view.read(as_of=tick), tick), tick
        following = self._view.changes(tick, follow=True, timeout=timeout_s or 0.0)
        for table in following:
            tick = table.column("_tick")[0].as_py() if table.num_rows else tick
            yield self._causes(table, tick), tick

    def advance(self, position: Any) -> None:
        """See `ReactionFeed`. If another process runs the same reaction, the later position wins."""
        for attempt in range(ATTEMPTS_MAX):
            known = self._log.entries(ENTRY)[self._name]
            if known.document["begun"] and known.document["tick"] >= position:
                return
            document = {**known.document, "tick": position, "begun": True}
            try:
                self._log.put_entry(ENTRY, self._name, document, expect=known.sequence)
                return
            except ConflictError:
                if attempt + 1 == ATTEMPTS_MAX:
                    raise

    def _causes(self, table: pa.Table, tick: int) -> list[Cause]:
        """Return a cause for each distinct row with its total weight, since equal rows cannot be told apart later either."""
        weights = (
            table.column("_weight").to_pylist() if "_weight" in table.column_names else [1] * table.num_rows
        )
        own = [name for name in table.column_names if name not in ("_weight", "_tick")]
        found: dict[bytes, tuple[dict[str, Any], int]] = {}
        for row, weight in zip(table.select(own).to_pylist(), weights, strict=True):
            plain = orjson.dumps(row, default=str, option=orjson.OPT_SORT_KEYS)
            found[plain] = row, weight + (found[plain][1] if plain in found else 0)
        causes = []
        for row, weight in found.values():
            plain = orjson.dumps([row, weight], default=str, option=orjson.OPT_SORT_KEYS)
            name = f"{self._view.name}@{tick}/{xxhash.xxh3_64_hexdigest(plain)}"
            if weight:
                causes.append(Cause((Changed(row, weight, tick, self._view.name),), name, None))
        return causes


class Reaction(Background):
    """A reaction with its function: `run()` reacts to present input, `start()` continues in the background."""

    def __init__(self, name: str, function: Callable[..., Any], feed: ReactionFeed, faults: Faults) -> None:
        self.name = label(name, "reaction")
        super().__init__(faults, f"reaction {name}")
        self._function = function
        self._called = self._plain(function)
        self._feed = feed

    def __call__(self, *arguments: Any) -> Any:
        """Call the function directly, for tests."""
        return self._function(*arguments)

    def __repr__(self) -> str:
        return f"<Reaction {self.name}>"

    def run(self) -> Reacted:
        """React to all present input."""
        return self._react(None)

    async def run_async(self) -> Reacted:
        """`run` for an event loop."""
        return await asyncio.to_thread(self.run)

    def _step(self, timeout_s: float) -> None:
        self._react(timeout_s)

    def _react(self, timeout_s: float | None) -> Reacted:
        handled = issued = refused = repeated = 0
        for causes, position in self._feed.batches(timeout_s):
            sends = [send for cause in causes for send in self._sends(cause)]
            for store, some in groupby(sends, key=lambda send: send.store):
                for outcome in store.execute_all(some):
                    issued += 1
                    if isinstance(outcome, Outcome):
                        repeated += outcome.repeated
                    elif isinstance(outcome, CommandRefusedError):
                        refused += 1
                    elif isinstance(outcome, CommandIdUsedError) and outcome.command_id.startswith(self._own):
                        # handled before a crash, by another version of the function
                        repeated += 1
                    else:
                        raise outcome
            self._feed.advance(position)
            handled += len(causes)
            if self._stopping.is_set():
                break
        return Reacted(handled, issued, refused, repeated)

    @property
    def _own(self) -> str:
        """Prefix of command ids derived by this reaction."""
        return f"{self.name}:"

    def _sends(self, cause: Cause) -> list[Send[Any]]:
        """Return the commands that a cause leads to, with ids derived from it."""
        count = len(inspect.signature(self._function).parameters)
        given = raising(self._called, cause.arguments[:count], f"reaction {self.name}", cause.id)
        made = (
            [given]
            if isinstance(given, Send)
            else raising(list, [given or ()], f"reaction {self.name}", cause.id)
        )
        named = []
        for number, send in enumerate(made):
            if not isinstance(send, Send):
                raise UsageError(
                    f"reaction {self.name!r} returned {send!r}, which is not a command from store.send()",
                    hint="return store.send(aggregate_id, command), a list of such commands, or None",
                    reason="not-a-send",
                    reaction=self.name,
                    value=send,
                )
            said = send.context
            context = Context(
                said.actor or f"reaction {self.name}", said.reason, cause.correlation_id, cause.id
            )
            command_id = send.command_id or f"{self._own}{_short(cause.id)}:{number}"
            named.append(replace(send, command_id=command_id, context=context))
        return named


def _short(name: str) -> str:
    """Return the name of a cause, or a shortened form with a hash if it is too long for a command id."""
    if len(name) <= CAUSE_CHARACTERS_MAX:
        return name
    return f"{name[: CAUSE_CHARACTERS_MAX // 2]}#{xxhash.xxh3_128_hexdigest(name.encode())}"


def event_kinds(function: Callable[..., Any], store: Store[Any, Any, Any]) -> tuple[type, ...]:
    """Return the events that a reaction is for: those in the annotation of its first parameter."""
    hint = parameter_hint(function, 0)
    kinds = classes_of(hint)
    known = tuple(store.aggregate.events.values())
    strange = [kind for kind in kinds if kind not in known]
    if not kinds or strange:
        detail = f"{strange[0].__name__} is not one of them" if strange else "it has no annotation"
        raise UsageError(
            f"the first parameter of a reaction to {store.aggregate.name!r} must be annotated with events of it",
            detail=detail,
            hint=f"def react(event: {' | '.join(store.aggregate.events)}, recorded: Recorded): ...",
            reason="unknown-event" if strange else "not-annotated",
            aggregate=store.aggregate.name,
            event=strange[0].__name__ if strange else None,
        )
    return kinds


def _cause(recorded: Recorded[Any]) -> Cause:
    return Cause((recorded.event, recorded), recorded.id, recorded.correlation_id)


def _positions(log: Log, topic: str, since: Since) -> dict[int, int]:
    ends = log.ends([topic])[topic]
    if isinstance(since, datetime):
        return {p: log.offset_at(topic, p, to_us(since), "appended") for p in ends}
    if since not in ("beginning", "now"):
        raise UsageError(
            f"a reaction starts at 'beginning', 'now' or a datetime, not {since!r}",
            argument="since",
            value=since,
        )
    return dict(ends) if since == "now" else dict.fromkeys(ends, 0)
