"""The loop that turns commands into events: all waiting commands are decided one after the other, and written in one commit.

A command sees the results of the commands before it in the group. The commit expects every aggregate to be at the version on
which the decision was based; if another process was first, the whole group is decided again on the new state. No caller gets
an answer before the commit is durable.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import orjson
import xxhash

from headwater.catalog.conform import conform
from headwater.core.clock import Clock
from headwater.core.errors import (
    BadRowError,
    CommandIdUsedError,
    CommandRefusedError,
    ConflictError,
    EventCodeError,
    HeadwaterError,
    UsageError,
)
from headwater.core.group_commit import Request
from headwater.core.positions import Receipt
from headwater.events import claims
from headwater.events import command_log as answers
from headwater.events.aggregates import Aggregate
from headwater.events.claims import ClaimRegistry, HeldClaim
from headwater.events.command_log import CommandAnswer, CommandLog, answer_row
from headwater.events.envelope import Context, Outcome
from headwater.events.event_positions import KeyOffsets
from headwater.events.event_schema import EventLayout, all_columns
from headwater.events.field_types import json_default
from headwater.events.states import KnownAggregate, States
from headwater.log.protocol import Append, Log

S = TypeVar("S")
ATTEMPTS_MAX = 20
"""Maximum number of decisions for a group while other processes are first."""
CONFLICT_WAIT_MS = 20.0
RECENT_MAX = 10_000
"""Number of recent outcomes in memory, by which a command that is sent again at once is answered."""

Identity = tuple[str, str]
"""An aggregate id and a command id: such a command is executed once."""


class PendingCommand(Request):
    """A command that waits to be decided."""

    def __init__(
        self,
        aggregate_id: str,
        command: Any,
        command_id: str,
        given: bool,
        context: Context,
        version: int | None,
    ) -> None:
        """`given` is true if the caller named the id, and may send it again. `version` is the version that the aggregate
        must have."""
        super().__init__()
        self.aggregate_id = aggregate_id
        self.command = command
        self.command_id = command_id
        self.given = given
        self.context = context
        self.version = version
        self.outcome: Outcome[Any] | None = None

    @property
    def identity(self) -> Identity:
        """Aggregate id and command id, which identify the command."""
        return self.aggregate_id, self.command_id


def command_hash(command: Any) -> int:
    """Return a 64-bit hash of a command's class and fields: another hash under the same id is an error of the caller. Fields
    with their default value are left out, so that a class which later gets a field with a default keeps the hashes of
    earlier commands."""
    said = _fields_not_default(command)
    try:
        plain = orjson.dumps(said, default=_any_text, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    except TypeError:  # JSON cannot represent a value, such as an integer of more than 64 bits
        plain = repr(said).encode()
    digest = xxhash.xxh3_64_intdigest(type(command).__name__.encode() + b"\0" + plain)
    return digest - (1 << 64) if digest >= 1 << 63 else digest


def _fields_not_default(command: Any) -> Any:
    """Return a command's fields that differ from their defaults; the command itself if no field has a default."""
    defaults = _defaults(type(command))
    if not defaults:
        return command
    fields = {name: getattr(command, name) for name in command.__dataclass_fields__}
    return {
        name: value for name, value in fields.items() if name not in defaults or value != defaults[name]()
    }


def _defaults(kind: type) -> Mapping[str, Callable[[], Any]]:
    """Return the fields that have a default, with a function that returns the default."""
    found = _DEFAULTS.get(kind)
    if found is None:
        found = _DEFAULTS[kind] = {}
        for field in dataclasses.fields(kind):
            if field.default is not dataclasses.MISSING:
                found[field.name] = partial(_same, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                found[field.name] = field.default_factory
    return found


def _same(value: Any) -> Any:
    return value


_DEFAULTS: dict[type, dict[str, Callable[[], Any]]] = {}


def _any_text(value: Any) -> Any:
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    try:
        return json_default(value)
    except TypeError:
        return repr(value)


@dataclasses.dataclass
class _Group(Generic[S]):
    """The rows that a group of commands writes, and the answer to each command."""

    possibly_executed: set[Identity] = dataclasses.field(default_factory=set)
    """Commands that may have left events or an answer before."""
    states: dict[str, KnownAggregate[S]] = dataclasses.field(default_factory=dict)
    """States after the commands so far, without the offsets of the new events."""
    expected: dict[str, int] = dataclasses.field(default_factory=dict)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    owners: dict[str, list[PendingCommand]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    """By topic, the command of each row."""
    answered: list[tuple[PendingCommand, Outcome[Any] | HeadwaterError]] = dataclasses.field(
        default_factory=list
    )
    first: dict[Identity, PendingCommand] = dataclasses.field(default_factory=dict)
    repeats: list[tuple[PendingCommand, PendingCommand]] = dataclasses.field(default_factory=list)
    """Commands that are in the group twice, with the first of each."""
    answers: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    held_claims: dict[str, HeldClaim] = dataclasses.field(default_factory=dict)
    claims: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    claimed: dict[str, int] = dataclasses.field(default_factory=dict)
    """By name, the expected number of records."""


@dataclasses.dataclass(frozen=True)
class EventIndexes:
    """The indexes of the events of a topic: by aggregate, and by aggregate and command id."""

    by_aggregate: KeyOffsets
    by_command: KeyOffsets


class CommandLoop(Generic[S]):
    """Decides groups of commands for one topic. `lock` is held while states are used, but not during writes."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        layout: EventLayout,
        states: States[S],
        indexes: EventIndexes,
        lock: threading.RLock,
    ) -> None:
        self._log = log
        self._aggregate: Aggregate[S, Any, Any] = layout.aggregate
        self._layout = layout
        self._states = states
        self._key_offsets = indexes.by_aggregate
        self._commands = indexes.by_command
        self._lock = lock
        self._answers = CommandLog(log)
        self._private = bool(states.topic.private)
        self._claims = ClaimRegistry(log, clock)
        self._recent: OrderedDict[Identity, tuple[int, Outcome[Any]]] = OrderedDict()

    def refresh(self) -> None:
        """Read what was appended since, by any process."""
        if self._states.forget_forgotten():
            self._recent.clear()
        self._key_offsets.refresh()
        self._commands.refresh()
        self._answers.refresh()
        self._claims.refresh()

    def work(self, asks: Sequence[PendingCommand]) -> None:
        """Give every command of a group its outcome or error."""
        waiting, attempts = list(asks), 0
        while waiting:
            seen = self._log.sequence()
            with self._lock:
                self.refresh()
                group = self._decided(waiting)
            try:
                receipt = self._append(group)
            except BadRowError as error:
                culprit = group.owners[error.topic][error.row]
                culprit.error = _bad_event(culprit, error)
                waiting.remove(culprit)
                continue
            except ConflictError as conflict:
                attempts += 1
                if attempts >= ATTEMPTS_MAX:
                    self._give_up(waiting, conflict)
                    return
                # the commit that was first may not be visible yet
                self._log.wait_commit(seen, CONFLICT_WAIT_MS)
                continue
            with self._lock:
                self._complete(group, receipt)
            return

    # --- deciding (nothing is written) -----------------------------------------------------------------------------

    def _decided(self, asks: Sequence[PendingCommand]) -> _Group[S]:
        group: _Group[S] = _Group(possibly_executed=self._possibly_executed(asks))
        for ask in asks:
            try:
                self._decide(ask, group)
            except HeadwaterError as error:
                group.answered.append((ask, error))
        return group

    def _decide(self, ask: PendingCommand, group: _Group[S]) -> None:
        if ask.given:
            before = group.first.get(ask.identity)
            if before is not None:
                _check_same(ask, command_hash(before.command))
                group.repeats.append((ask, before))
                return
            known = self._earlier_answer(ask, group.possibly_executed)
            if known is not None:
                group.answered.append((ask, known))
                return
            group.first[ask.identity] = ask
        state = group.states.get(ask.aggregate_id) or self._states.current(ask.aggregate_id)
        _check_version(ask, state.version)
        try:
            self._accept(ask, state, group)
        except CommandRefusedError as refusal:
            self._answer(ask, state, group, refusal)

    def _accept(self, ask: PendingCommand, known: KnownAggregate[S], group: _Group[S]) -> None:
        decision = self._aggregate.decide(self._aggregate.own(known.state), ask.command)
        held: dict[str, HeldClaim] = {}
        claim_rows: list[dict[str, Any]] = []
        if decision.claims:
            holder = f"{self._layout.aggregate.name}/{ask.aggregate_id}"
            held, claim_rows = self._claims.apply(decision.claims, holder, ask.command_id, group.held_claims)
        if not decision.events and not claim_rows:
            self._answer(ask, known, group, None)
            return
        if not decision.events:
            raise UsageError(
                f"decide of {self._aggregate.name!r} returned a claim without an event for {type(ask.command).__name__}",
                hint="let decide return an event with the claim",
                reason="claim-without-event",
                aggregate=self._aggregate.name,
                command=ask.command,
            )
        events, rows = self._rows(ask, decision.events)
        try:
            state = self._aggregate.replay(events, known.state)
        except EventCodeError:
            try:
                conform(
                    rows, self._states.topic
                )  # a value of a wrong type in the event is the error to report
            except BadRowError as error:
                raise _bad_event(ask, error) from None
            raise
        if claim_rows:
            touched = [row["claim"] for row in claim_rows]
            for name in set(touched):
                group.claimed.setdefault(name, held[name].count - touched.count(name))
            group.held_claims = {**group.held_claims, **held}
            group.claims += claim_rows
            group.owners[claims.TOPIC] += [ask] * len(claim_rows)
        group.expected.setdefault(ask.aggregate_id, known.version)
        group.rows += rows
        group.owners[self._states.topic.name] += [ask] * len(events)
        version = known.version + len(events)
        group.states[ask.aggregate_id] = KnownAggregate(state, version, known.offset, known.at, known.kept)
        group.answered.append((ask, Outcome(ask.aggregate_id, ask.command_id, version, events, Receipt({}))))

    def _rows(
        self, ask: PendingCommand, given: Sequence[Any]
    ) -> tuple[tuple[Any, ...], list[dict[str, Any]]]:
        """Return events as they will be read back, and as rows; UsageError if a value is not of its field's type."""
        meta = _meta(ask)
        try:
            events = tuple(self._layout.canonical(event) for event in given)
            return events, [self._layout.row(ask.aggregate_id, event, meta) for event in events]
        except (TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"an event of {type(ask.command).__name__} has a value that does not match its field's type: {error}",
                detail=f"the events are {', '.join(map(repr, given))}; nothing was written",
                hint="let decide return events whose values match the annotations of their fields",
                reason="wrong-type",
                aggregate_id=ask.aggregate_id,
                command=ask.command,
            ) from error

    def _answer(
        self,
        ask: PendingCommand,
        known: KnownAggregate[S],
        group: _Group[S],
        refusal: CommandRefusedError | None,
    ) -> None:
        """Answer a command that leaves no event; the answer is stored if the command may be sent again."""
        if ask.given:
            group.expected.setdefault(ask.aggregate_id, known.version)
            answer = CommandAnswer(command_hash(ask.command), known.version, refusal)
            name = self._layout.aggregate.name
            row = answer_row(name, ask.aggregate_id, ask.command_id, answer, private=self._private)
            group.answers.append(row)
            group.owners[answers.TOPIC].append(ask)
        nothing = Outcome[Any](ask.aggregate_id, ask.command_id, known.version, (), Receipt({}))
        group.answered.append((ask, refusal or nothing))

    def _possibly_executed(self, asks: Sequence[PendingCommand]) -> set[Identity]:
        """Return the commands that may have left events or an answer before, with one lookup for all."""
        by_partition: dict[int, list[Identity]] = {}
        for ask in asks:
            if ask.given:
                by_partition.setdefault(self._states.partition(ask.aggregate_id), []).append(ask.identity)
        found = {
            (one[0], one[1])
            for partition, some in by_partition.items()
            for one in self._commands.among(partition, some)
        }
        every = [one for some in by_partition.values() for one in some]
        return found | self._answers.among(self._layout.aggregate.name, every)

    def _earlier_answer(
        self, ask: PendingCommand, known: set[Identity]
    ) -> Outcome[Any] | CommandRefusedError | None:
        """Return the earlier answer to a command with this id, from this process or another; None if there is none."""
        recent = self._recent.get(ask.identity)
        if recent is not None:
            _check_same(ask, recent[0])
            return dataclasses.replace(recent[1], repeated=True)
        if ask.identity not in known:
            return None
        partition = self._states.partition(ask.aggregate_id)
        offsets = self._commands.offsets(partition, ask.identity)
        if len(offsets):
            batches = list(
                self._commands.records(partition, ask.identity, offsets, all_columns(self._states.topic))
            )
            if batches:
                _check_same(ask, batches[0].column("meta")[0]["command_hash"].as_py())
                topic = self._states.topic
                found = [one for batch in batches for one in self._layout.recorded(topic, partition, batch)]
                receipt = Receipt({topic.name: {partition: (found[0].offset, found[-1].offset + 1)}})
                events = tuple(one.event for one in found)
                return Outcome(*ask.identity, found[-1].version, events, receipt, repeated=True)
        answer = self._answers.find(self._layout.aggregate.name, *ask.identity)
        if answer is None:
            return None
        _check_same(ask, answer.command_hash)
        return answer.refusal or Outcome(*ask.identity, answer.version, (), Receipt({}), repeated=True)

    # --- writing ---------------------------------------------------------------------------------------------------

    def _append(self, group: _Group[S]) -> Receipt:
        topic = self._states.topic
        batches: dict[str, Any] = {}
        expect: dict[str, Mapping[Any, int]] = {}
        made_for: dict[str, int] = {}
        parts: tuple[tuple[list[dict[str, Any]], Callable[[], Any]], ...] = (
            (group.rows, lambda: topic),
            (group.answers, lambda: self._answers.ensure_topic(private=self._private)),
            (group.claims, self._claims.ensure_topic),
        )
        for rows, made in parts:
            if rows:
                definition = made()
                batches[definition.name] = [conform(rows, definition)]
                made_for[definition.name] = definition.incarnation
        if not batches:
            return Receipt({})
        expect[topic.name] = group.expected
        if group.claimed:
            expect[claims.TOPIC] = group.claimed
        return self._log.append(Append(batches, expect=expect, incarnations=made_for))

    def _complete(self, group: _Group[S], receipt: Receipt) -> None:
        """Give every command its answer, and store the new states in memory."""
        places = self._noted(group, receipt)
        at = 0
        for ask, outcome in group.answered:
            if isinstance(outcome, HeadwaterError):
                ask.error = outcome
                continue
            count = 0 if outcome.repeated else len(outcome.events)
            if count:
                partition, first, last = places[at][0], places[at][1], places[at + count - 1][1]
                own = Receipt({self._states.topic.name: {partition: (first, last + 1)}}, receipt.commit)
                outcome = Outcome(
                    outcome.aggregate_id, outcome.command_id, outcome.version, outcome.events, own
                )
                known = group.states[ask.aggregate_id]
                group.states[ask.aggregate_id] = KnownAggregate(
                    known.state, known.version, last, None, known.kept
                )
                at += count
            ask.outcome, ask.done = outcome, True
            if ask.given and not outcome.repeated:
                self._remember(ask, outcome)
        for ask, before in group.repeats:
            ask.error, ask.done = before.error, before.done
            if before.outcome is not None:
                ask.outcome = dataclasses.replace(before.outcome, repeated=True)
        for aggregate_id, known in group.states.items():
            self._states.put(aggregate_id, known)

    def _noted(self, group: _Group[S], receipt: Receipt) -> list[tuple[int, int]]:
        """Return partition and offset of each row, and add the rows to the indexes without reading them."""
        topic = self._states.topic
        spans = receipt.positions.get(topic.name, {})
        following = {partition: first for partition, (first, _) in spans.items()}
        partitions = {one: self._states.partition(one) for one in group.states}
        found: list[tuple[int, int]] = []
        rows: dict[int, list[PendingCommand]] = {partition: [] for partition in spans}
        for ask in group.owners[topic.name]:
            partition = partitions[ask.aggregate_id]
            found.append((partition, following[partition]))
            following[partition] += 1
            rows[partition].append(ask)
        for partition, asks in rows.items():
            first = spans[partition][0]
            self._key_offsets.note(partition, first, [(ask.aggregate_id,) for ask in asks])
            self._commands.note(partition, first, [ask.identity for ask in asks])
        return found

    def _remember(self, ask: PendingCommand, outcome: Outcome[Any]) -> None:
        self._recent[ask.identity] = command_hash(ask.command), outcome
        while len(self._recent) > RECENT_MAX:
            self._recent.popitem(last=False)

    def _give_up(self, waiting: Sequence[PendingCommand], conflict: ConflictError) -> None:
        for ask in waiting:
            ask.error = ConflictError(
                f"{type(ask.command).__name__} of {ask.aggregate_id!r} was decided {ATTEMPTS_MAX} times, "
                "and each time another process wrote first",
                detail=conflict.message,
                hint="nothing was written; send the command again with the same id",
                **{**conflict.facts, "attempts": ATTEMPTS_MAX},
            )


def _meta(ask: PendingCommand) -> dict[str, Any]:
    context = ask.context
    return {
        "command_id": ask.command_id,
        "command": type(ask.command).__name__,
        "command_hash": command_hash(ask.command),
        "correlation_id": context.correlation_id or ask.command_id,
        "causation_id": context.causation_id,
        "actor": context.actor,
        "reason": context.reason,
    }


def _check_same(ask: PendingCommand, known: int) -> None:
    if known != command_hash(ask.command):
        raise CommandIdUsedError(
            f"command id {ask.command_id!r} is already used for another command of {ask.aggregate_id!r}",
            hint="use a new id for a new command; the same command with the same id gets the same answer",
            aggregate_id=ask.aggregate_id,
            command_id=ask.command_id,
        )


def _bad_event(ask: PendingCommand, error: BadRowError) -> BadRowError:
    """Return the error for an event with a value that its column does not accept."""
    return BadRowError(
        error.message,
        detail=f"the row is an event of {ask.command!r} on {ask.aggregate_id!r}; none of its events were written",
        hint="let decide return events whose values match the annotations of their fields",
        **{**error.facts, "aggregate_id": ask.aggregate_id, "command": ask.command},
    )


def _check_version(ask: PendingCommand, version: int) -> None:
    if ask.version is not None and ask.version != version:
        raise ConflictError(
            f"aggregate {ask.aggregate_id!r} is at version {version}, not {ask.version}",
            detail="another command was first; nothing was written",
            hint="load the aggregate, decide again, and send the command with the new version",
            aggregate_id=ask.aggregate_id,
            expected=ask.version,
            actual=version,
        )
