"""The interface of a dead-letter store (`LetterStore`), which every kind of owner implements, and the state of a dead letter.

A store lists the rows that its owners reject now. It has no record of the actions that people took on them: these are in
`headwater.views.dead_letter_actions`, and `state_in_store` combines both. A new kind of owner, such as a queue, is a new store.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import pyarrow as pa

from headwater.core.clock import Microseconds
from headwater.core.errors import BadRowError, UsageError
from headwater.core.json_csv import as_json as as_json
from headwater.core.json_csv import packed as packed
from headwater.core.json_csv import unpacked as unpacked
from headwater.core.types import format_type
from headwater.core.values import UNFIT, array_of
from headwater.serving.name_hints import suggest
from headwater.views.dead_letter_actions import LetterAction, LetterActions

State = Literal["open", "edited", "dropped", "replayed", "resolved"]
"""State of a dead letter. 'open': rejected, and no action was taken. 'edited': another row is to be replayed in its place.
'dropped': it stays rejected. 'replayed': it was replayed and accepted. 'resolved': it is no longer rejected, since its owner
or its row has changed."""
STATES: tuple[State, ...] = get_args(State)
OPEN: tuple[State, ...] = ("open", "edited")
"""States in which a dead letter waits for an action."""


@dataclass(frozen=True)
class Letter:
    """A rejected row: its owner, the time, the error, and the row as JSON. `incarnation` distinguishes its topic from
    another one of the same name. `copies` is the number of equal rows that it represents. `record` names the source record
    if several owners may reject it: a replay for one of them is a replay for all."""

    id: str
    kind: str
    owner: str
    error: str
    row: str
    at: Microseconds | None = None
    incarnation: int = 0
    copies: int = 1
    record: str | None = None
    place: int = 0
    """Order among letters of the same time."""


@dataclass(frozen=True)
class LetterState:
    """A dead letter and the actions taken on it."""

    letter: Letter
    state: State
    actions: tuple[LetterAction, ...] = ()
    """Actions in order, including settled ones."""
    version: int = 0
    """Number of actions on the letter: the `expect=` of a caller that acts on this state."""
    record_version: int = 0
    """Number of actions on its record."""

    @property
    def id(self) -> str:
        """Name of the letter."""
        return self.letter.id

    @property
    def versions(self) -> dict[str, int]:
        """Versions that a replay expects."""
        record = self.letter.record
        return {self.id: self.version} | ({} if record is None else {record: self.record_version})

    @property
    def edit(self) -> LetterAction | None:
        """Last edit that was not replayed yet."""
        return pending_edit(self.actions)

    @property
    def row(self) -> str:
        """Row as it would be replayed, as JSON."""
        edit = self.edit
        return self.letter.row if edit is None or edit.edited is None else edit.edited


@dataclass(frozen=True)
class Edited:
    """A row before and after an edit, as JSON, and the edited row exactly, as an Arrow stream."""

    original: str
    edited: str
    edited_arrow: bytes


@dataclass(frozen=True)
class Note:
    """The person who takes an action, and the reason."""

    who: str
    reason: str | None = None

    def record(self, letter: Letter, **what: Any) -> LetterAction:
        """Return the record of an action on a letter."""
        facts = {"original": letter.row, "error": letter.error, **what}
        return LetterAction(
            letter.id,
            letter.kind,
            letter.owner,
            who=self.who,
            reason=self.reason,
            incarnation=letter.incarnation,
            **facts,
        )


@dataclass(frozen=True)
class NewestLetters:
    """Dead letters of an owner, and the number of `more` ones, all older, on which no action was taken."""

    letters: Sequence[Letter]
    more: int = 0


class LetterStore(Protocol):
    """A dead-letter store: the dead letters of one kind of owner."""

    kind: ClassVar[str]
    keeps_replayed: ClassVar[bool]
    """Whether a letter stays in the store after it was replayed; if not, a replayed letter in the store was rejected again."""

    def owners(self) -> Sequence[str]:
        """Return the names of all possible owners of letters."""
        ...

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """Return the letters of an owner's rejected rows, or at least the letter with the given name, in any case. An error
        is raised if the owner cannot be read."""
        ...

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        """Return the letters of an owner's rejected rows: all on which an action was taken, and at least the newest `count`
        others."""
        ...

    def columns(self, letter: Letter) -> pa.Schema:
        """Return the columns of a letter's row. UsageError, with the reason and an alternative, if it cannot be edited."""
        ...

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Return the row of a letter, as it was last edited, with other values; BadRowError if a value does not fit.
        `values` must name columns of the row."""
        ...

    def replay(
        self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool
    ) -> Mapping[str, str]:
        """Replay letters of an owner, as they were edited, and record it; return the reason for each letter that was not
        accepted. Each row is accepted once, however often this is called and wherever it is interrupted: the record expects
        each letter to be at the given version."""
        ...


def state_in_store(letter: Letter, actions: LetterActions, *, keeps_replayed: bool) -> LetterState:
    """Return the state of a letter that is in its store."""
    done = actions.of(letter.id, letter.incarnation)
    shared = () if letter.record is None else actions.of(letter.record, letter.incarnation)
    last = done[-1] if done else None
    state: State = "open"
    if shared:
        state = "replayed"
        done += tuple(record for record in shared if record.owner != letter.owner)
    elif last is not None:
        if last.action == "replay" and last.settled:
            state = "replayed" if keeps_replayed else "open"
        elif last.action == "drop":
            state = "dropped"
        elif pending_edit(done) is not None:
            state = "edited"
    record_version = 0 if letter.record is None else actions.version(letter.record)
    return LetterState(letter, state, done, actions.version(letter.id), record_version)


def state_from_actions(done: Sequence[LetterAction], version: int) -> LetterState:
    """Return the state of a letter that is in no store any more, from the actions taken on it."""
    last, original = done[-1], next((d.original for d in done if d.original is not None), "")
    settled = last.action == "replay" and last.settled
    letter = Letter(
        last.letter, last.kind, last.owner, last.error or "", original, incarnation=last.incarnation
    )
    return LetterState(letter, "replayed" if settled else "resolved", tuple(done), version)


def pending_edit(done: Sequence[LetterAction]) -> LetterAction | None:
    """Return the last edit that was not replayed yet."""
    for record in reversed(done):
        if record.action == "replay" and record.settled:
            return None
        if record.action == "edit":
            return record
    return None


# --- rows ----------------------------------------------------------------------------------------------------------


def refuse_unknown_columns(values: Mapping[str, Any], schema: pa.Schema, letter: str) -> None:
    """Raise UsageError if an edit names no column, or a column that the row does not have."""
    if not values:
        raise UsageError(
            f"an edit of {letter} names no column", hint="edit(letter, {'amount': 5})", letter=letter
        )
    for name in values:
        if name not in schema.names:
            near = suggest(str(name), schema.names)
            hint = f"did you mean {near}?" if near else f"its columns are {', '.join(schema.names)}"
            raise UsageError(
                f"the row of {letter} has no column {name!r}", hint=hint, letter=letter, column=name
            )


def fitted(row: Mapping[str, Any], schema: pa.Schema, letter: str) -> pa.RecordBatch:
    """Return a row with the columns of a view; BadRowError if a value does not fit."""
    columns = []
    for field in schema:
        value = row[field.name]
        try:
            columns.append(array_of([value], field.type))
        except UNFIT:
            raise BadRowError(
                f"column {field.name!r} of {letter} is {value!r}, expected {format_type(field.type)}",
                hint="correct the value",
                column=field.name,
                value=value,
                expected=format_type(field.type),
            ) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema)
