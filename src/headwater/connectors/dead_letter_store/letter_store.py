"""Where dead letters lie, and what can be said of one: the contract of a *shelf*, which every kind of owner has one of.

A shelf shows the rows that its owners refuse now. It does not know what people did about them: that is in `runtime.deeds`, and
`known` puts both together. A new kind of owner, such as a queue, is a new shelf.
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
from headwater.serving.name_hints import nearest
from headwater.views.dead_letter_actions import Deed, Deeds

State = Literal["open", "edited", "dropped", "replayed", "resolved"]
"""'open': refused, and nobody did anything about it. 'edited': there is another row to replay in its place. 'dropped': it stays
refused. 'replayed': it was given back and taken. 'resolved': it is refused no more, since its owner or its row has changed."""
STATES: tuple[State, ...] = get_args(State)
OPEN: tuple[State, ...] = ("open", "edited")
"""Those that wait for somebody."""


@dataclass(frozen=True)
class Letter:
    """A row that was refused: by whom, since when, why, and the row as JSON. `incarnation` tells the topic that it lies in from
    another of its name. `copies` are the rows that it stands for. `record` is what the row is called where several may
    refuse the same: whoever replays it, it is replayed for all of them."""

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
    """Its order among letters of one moment."""


@dataclass(frozen=True)
class LetterState:
    """A letter and what was done about it."""

    letter: Letter
    state: State
    deeds: tuple[Deed, ...] = ()
    """In order; also those that are settled."""
    version: int = 0
    """How many deeds there are of it: `expect=` of whoever acts on what he sees here."""
    record_version: int = 0
    """And of its record."""

    @property
    def id(self) -> str:
        """What it is called."""
        return self.letter.id

    @property
    def versions(self) -> dict[str, int]:
        """What a replay expects."""
        record = self.letter.record
        return {self.id: self.version} | ({} if record is None else {record: self.record_version})

    @property
    def edit(self) -> Deed | None:
        """The last edit that was not replayed yet."""
        return pending_edit(self.deeds)

    @property
    def row(self) -> str:
        """The row as it would be replayed, as JSON."""
        edit = self.edit
        return self.letter.row if edit is None or edit.edited is None else edit.edited


@dataclass(frozen=True)
class Edited:
    """A row as it was and as it is to be, as JSON; and the latter exactly, as an Arrow stream."""

    original: str
    edited: str
    edited_arrow: bytes


@dataclass(frozen=True)
class Note:
    """Who does something, and why."""

    who: str
    reason: str | None = None

    def deed(self, letter: Letter, **what: Any) -> Deed:
        """A record of it."""
        facts = {"original": letter.row, "error": letter.error, **what}
        return Deed(
            letter.id,
            letter.kind,
            letter.owner,
            who=self.who,
            reason=self.reason,
            incarnation=letter.incarnation,
            **facts,
        )


@dataclass(frozen=True)
class Pile:
    """Letters of an owner, and how many `more` there are of it, all older, that nobody did anything about."""

    letters: Sequence[Letter]
    more: int = 0


class Shelf(Protocol):
    """The letters of one kind of owner."""

    kind: ClassVar[str]
    lingers: ClassVar[bool]
    """Whether a letter still lies here after it was replayed; otherwise one that lies here was refused again."""

    def owners(self) -> Sequence[str]:
        """Who may have letters, by name."""
        ...

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """What an owner refuses now, or at least the one of that name, in any case. An error if it cannot be asked."""
        ...

    def newest(self, owner: str, count: int, deeds: Deeds) -> Pile:
        """What an owner refuses now: all that something was done about, and at least so many of the others, the newest."""
        ...

    def columns(self, letter: Letter) -> pa.Schema:
        """The columns of its row. UsageError, with the reason and what to do instead, if it cannot be edited."""
        ...

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Its row, as it was edited last, with other values; BadRowError if they do not fit. They are of its columns."""
        ...

    def replay(
        self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool
    ) -> Mapping[str, str]:
        """Have an owner take these again, as they were edited, and write down that it did; of those that it did not take, why.
        However often it is called, and wherever it breaks off, a row is taken once: what is written down expects each letter
        to be of the version that it is given as."""
        ...


def known(letter: Letter, deeds: Deeds, *, lingers: bool) -> LetterState:
    """What is to be said of a letter that lies on its shelf."""
    done = deeds.of(letter.id, letter.incarnation)
    shared = () if letter.record is None else deeds.of(letter.record, letter.incarnation)
    last = done[-1] if done else None
    state: State = "open"
    if shared:
        state = "replayed"
        done += tuple(deed for deed in shared if deed.owner != letter.owner)
    elif last is not None:
        if last.action == "replay" and last.settled:
            state = "replayed" if lingers else "open"
        elif last.action == "drop":
            state = "dropped"
        elif pending_edit(done) is not None:
            state = "edited"
    record_version = 0 if letter.record is None else deeds.version(letter.record)
    return LetterState(letter, state, done, deeds.version(letter.id), record_version)


def gone(done: Sequence[Deed], version: int) -> LetterState:
    """What is to be said of a letter that lies on no shelf any more, from what was done about it."""
    last, original = done[-1], next((d.original for d in done if d.original is not None), "")
    settled = last.action == "replay" and last.settled
    letter = Letter(
        last.letter, last.kind, last.owner, last.error or "", original, incarnation=last.incarnation
    )
    return LetterState(letter, "replayed" if settled else "resolved", tuple(done), version)


def pending_edit(done: Sequence[Deed]) -> Deed | None:
    """The last edit of a letter that was not replayed yet."""
    for deed in reversed(done):
        if deed.action == "replay" and deed.settled:
            return None
        if deed.action == "edit":
            return deed
    return None


# --- rows ----------------------------------------------------------------------------------------------------------


def refuse_unknown(values: Mapping[str, Any], schema: pa.Schema, letter: str) -> None:
    """UsageError if an edit names no column, or one that the row does not have."""
    if not values:
        raise UsageError(f"an edit of {letter} names no column", hint="edit(letter, {'amount': 5})")
    for name in values:
        if name not in schema.names:
            near = nearest(str(name), schema.names)
            hint = f"did you mean {near}?" if near else f"its columns are {', '.join(schema.names)}"
            raise UsageError(f"the row of {letter} has no column {name!r}", hint=hint, column=name)


def fitted(row: Mapping[str, Any], schema: pa.Schema, letter: str) -> pa.RecordBatch:
    """A row with the columns of a view; BadRowError if a value does not fit."""
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
