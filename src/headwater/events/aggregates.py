"""The declaration of an aggregate: two pure functions and plain dataclasses. A store (`aggregate_store`) executes it.

`decide(state, command)` returns the events that a command leads to, or refuses it; `fold(state, event)` returns the state
after an event. The classes of commands, events and states are read from their annotations. This module is independent of
topics.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Generic, TypeVar, Union, get_args, get_origin

from headwater.catalog.rules import check_free
from headwater.core.errors import (
    CommandRefusedError,
    EventCodeError,
    HeadwaterError,
    SchemaError,
    UsageError,
)
from headwater.events.field_types import fields_of, hints_of
from headwater.events.reservations import Claim, Release

S = TypeVar("S")
C = TypeVar("C")
E = TypeVar("E")

Fields = dict[str, Any]
Step = Callable[[Fields], Fields]
Shape = tuple[str, int]
"""The name of an event and the version of its fields."""


@dataclasses.dataclass(frozen=True)
class Decision(Generic[E]):
    """The result of a command: events, and names that are claimed or released with them."""

    events: tuple[E, ...]
    claims: tuple[Claim | Release, ...] = ()


class Aggregate(Generic[S, C, E]):
    """An aggregate, declared as `Aggregate("account", decide, fold)`. Its events are the topic of that name.

    The state before any event is `initial`; by default, an instance of the state class without arguments. `commands` and
    `events` name the classes if annotations do not. Another `version` invalidates snapshots, for changes that the code of
    `fold` does not show. `private` names the fields of events that are encrypted, and read as None once their subject was
    forgotten (crypto-shredding): the subject is the aggregate's id, or another field that all events have, {"email":
    "customer_id"}.
    """

    def __init__(
        self,
        name: str,
        decide: Callable[[S, C], Any],
        fold: Callable[[S, E], S],
        *,
        initial: S | None = None,
        commands: Sequence[type] | None = None,
        events: Sequence[type] | None = None,
        version: int | str = 1,
        private: Sequence[str] | Mapping[str, str] = (),
    ) -> None:
        if isinstance(name, str):
            check_free(name)
        self.name = name
        self.decide_function = decide
        self.fold_function = fold
        self.commands = _classes(decide, 1, "commands", commands)
        self.events = {kind.__name__: kind for kind in _classes(fold, 1, "events", events)}
        self.state_type = _state_type(fold, initial)
        self.initial: S = _initial(name, self.state_type, initial)
        self._changeable = _changeable(type(self.initial))
        self.version = version
        self.private = _private(name, self.events, private)
        self.steps: dict[Shape, tuple[Shape, Step]] = {}

    def __repr__(self) -> str:
        return f"<Aggregate {self.name}: {', '.join(self.events)}>"

    def decide(self, state: S, command: C) -> Decision[E]:
        """Return the validated result of a command; CommandRefusedError if it is refused. Works without a store, for tests
        too."""
        if not isinstance(command, self.commands):
            raise UsageError(
                f"{_shown(command)} is not a command of aggregate {self.name!r}",
                hint=f"its commands are {', '.join(kind.__name__ for kind in self.commands)}",
                aggregate=self.name,
                command=command,
            )
        try:
            given = self.decide_function(state, command)
            made = [given] if type(given) in self.events.values() else list(given or ())
        except CommandRefusedError:
            raise
        except Exception as error:
            raise _failed(self.decide_function, self.name, f"command {_shown(command)}", error) from error
        events: list[Any] = []
        claims: list[Claim | Release] = []
        for one in made:
            if isinstance(one, (Claim, Release)):
                claims.append(one)
            elif self.events.get(type(one).__name__) is type(one):
                events.append(one)
            else:
                raise UsageError(
                    f"decide of {self.name!r} returned {_shown(one)} for {_shown(command)}, which is not one of its events",
                    hint=f"add its class to the annotation of fold's event; the events are {', '.join(self.events)}",
                    aggregate=self.name,
                    event=one,
                )
        return Decision(tuple(events), tuple(claims))

    def fold(self, state: S, event: E) -> S:
        """Return the state after an event."""
        try:
            return self.fold_function(state, event)
        except Exception as error:
            raise _failed(self.fold_function, self.name, f"event {_shown(event)}", error) from error

    def own(self, state: S) -> S:
        """Return a state for `fold` to start from. `fold` should be pure, but a fold that changes its state in place is
        easily written: a changeable state is therefore copied, so that no other reference to it sees the change."""
        return copy.deepcopy(state) if self._changeable else state

    def replay(self, events: Iterable[E], state: S | None = None) -> S:
        """Return the state after events, from the initial state or from `state`."""
        at = self.own(self.initial if state is None else state)
        for event in events:
            at = self.fold(at, event)
        return at

    def upcast(
        self, event: str, version: Any, *, becomes: str | tuple[str, int] | None = None
    ) -> Callable[[Step], Step]:
        """Declare one step from an old version of an event to the next: a function from the fields of the old version, as a
        dict without null values, to those of the next. If the event was renamed, `becomes` is the new name, or name and
        version."""
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise UsageError(
                f"the version of an event must be a whole number from 1, not {version!r}",
                argument="version",
                value=version,
            )
        goal = (
            (event, version + 1)
            if becomes is None
            else becomes
            if isinstance(becomes, tuple)
            else (becomes, 1)
        )

        def declare(step: Step) -> Step:
            if (event, version) in self.steps:
                raise UsageError(
                    f"an upcast from version {version} of {event!r} is already declared",
                    aggregate=self.name,
                    event=event,
                    event_version=version,
                )
            self.steps[event, version] = goal, step
            return step

        return declare

    def current(self, event: str) -> int:
        """Return the version in which an event is written now: one more than the version of its last step."""
        return 1 + max((version for name, version in self.steps if name == event), default=0)


def raising(function: Callable[..., Any], arguments: Sequence[Any], of: str, what: str) -> Any:
    """Call a user's function; EventCodeError, with the user's own error as its cause, if it fails."""
    try:
        return function(*arguments)
    except HeadwaterError:
        raise
    except Exception as error:
        raise _failed(function, of, what, error) from error


def _failed(function: Callable[..., Any], of: str, what: str, error: Exception) -> EventCodeError:
    name = getattr(function, "__name__", str(function))
    return EventCodeError(
        f"{name} of {of!r} failed on {what}: {type(error).__name__}: {error}",
        detail="nothing was written",
        hint="correct the function; to refuse a command, raise headwater.events.Refused in decide",
        function=name,
        owner=of,
        input=what,
    )


def classes_of(hint: Any) -> tuple[type, ...]:
    """Return the classes that an annotation names: one, or a union of several."""
    if get_origin(hint) is Union or get_origin(hint) is types.UnionType:
        return tuple(kind for part in get_args(hint) for kind in classes_of(part))
    return (hint,) if isinstance(hint, type) else ()


def parameter_hint(function: Callable[..., Any], place: int) -> Any:
    """Return the annotation of a function's parameter; None if it has none, SchemaError if it cannot be resolved."""
    code = getattr(function, "__code__", None)
    names: Sequence[str] = code.co_varnames[: code.co_argcount] if code is not None else ()
    return hints_of(function).get(names[place]) if len(names) > place else None


def _classes(
    function: Callable[..., Any], place: int, what: str, given: Sequence[type] | None
) -> tuple[type, ...]:
    found: tuple[Any, ...] = (
        tuple(given) if given is not None else classes_of(parameter_hint(function, place))
    )
    if not found or not all(isinstance(kind, type) and dataclasses.is_dataclass(kind) for kind in found):
        name = getattr(function, "__name__", str(function))
        raise SchemaError(
            f"the second parameter of {name} must be annotated with the {what} that it takes",
            detail=f"{what} are dataclasses: the annotation is one of them, or a union",
            hint=f"def {name}(state: State, {what[:-1]}: This | That) -> ..., or {what}=[This, That]",
            function=name,
            reason="not-annotated",
        )
    names = [kind.__name__ for kind in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SchemaError(
            f"two {what} have the same class name, {twice!r}",
            hint="rename one of them: records are stored under the name of their class",
            reason="duplicate-name",
            name=twice,
        )
    return found


def _state_type(fold: Callable[..., Any], initial: Any) -> Any:
    hint = parameter_hint(fold, 0)
    return hint if hint is not None else type(initial)


def _initial(name: str, kind: Any, initial: Any) -> Any:
    if initial is not None:
        return initial
    try:
        return kind()
    except TypeError:
        raise SchemaError(
            f"aggregate {name!r} has no initial state",
            detail=f"{getattr(kind, '__name__', kind)} cannot be created without arguments",
            hint=f'Aggregate("{name}", decide, fold, initial=...), or give every field of its state a default',
            aggregate=name,
            reason="no-initial-state",
        ) from None


def _changeable(kind: type) -> bool:
    """Whether instances of a state class can be changed in place."""
    if dataclasses.is_dataclass(kind):
        return not kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return not issubclass(kind, _FIXED)


_FIXED = (str, bytes, int, float, complex, tuple, frozenset, enum.Enum, date, Decimal, uuid.UUID, type(None))


SUBJECT = "aggregate_id"
"""Default subject of private fields."""


def _private(
    name: str, events: Mapping[str, type], given: Sequence[str] | Mapping[str, str]
) -> Mapping[str, str]:
    """Return the subject of each private field; SchemaError if the field cannot be None, or an event may lack the subject."""
    if isinstance(given, str) or not isinstance(given, (Sequence, Mapping)):
        raise SchemaError(
            f"private of {name!r} must be a list of fields of its events, or a mapping, not {given!r}",
            hint='private=["email"]',
            argument="private",
            value=given,
        )
    found = dict(given) if isinstance(given, Mapping) else dict.fromkeys(given, SUBJECT)
    shapes = {event: fields_of(kind) for event, kind in events.items()} if found else {}
    for field, subject in found.items():
        having = [event for event, fields in shapes.items() if field in fields]
        if not having:
            raise SchemaError(
                f"private field {field!r} does not exist in any event of {name!r}",
                hint="list fields of events in `private`",
                aggregate=name,
                field=field,
                reason="no-such-field",
            )
        for event in having:
            if not shapes[event][field][1].optional:
                raise SchemaError(
                    f"private field {field!r} of {event} must accept None",
                    detail="its value is None after its subject was forgotten, and fold must accept that",
                    hint=f"annotate it as Optional: {field}: ... | None",
                    event=event,
                    field=field,
                    reason="not-optional",
                )
        for event, fields in shapes.items():
            if subject != SUBJECT and (subject not in fields or fields[subject][1].optional):
                raise SchemaError(
                    f"field {field!r} of {name!r} cannot be private by {subject!r}: {event} lacks that field, or it may be None",
                    hint="the subject must be a field that every event has and that is never None, or the aggregate's id: "
                    f'private=["{field}"]',
                    event=event,
                    field=field,
                    subject=subject,
                )
    return found


def _shown(thing: Any) -> str:
    text = repr(thing)
    return text if len(text) <= 200 else f"{text[:197]}..."
