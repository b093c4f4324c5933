"""Dead letters of views: records of topics on which the expressions of a view fail, from `<view>.errors`.

Such a letter is derived: a view that is replaced by one that accepts the record no longer has it. The action on the record
itself is to append a corrected one to its topic, in one append with the record of the action. On a topic with a primary key
the correction replaces the record, for all readers. On another topic the correction is an additional record: a reader that
used the original would see both, so the replay is rejected if another view has used it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import conform
from headwater.catalog.connectors import SINK, SinkDefinition
from headwater.catalog.definitions import TopicDefinition
from headwater.connectors.dead_letter_store.letter_store import (
    OPEN,
    Edited,
    Letter,
    LetterState,
    NewestLetters,
    Note,
    as_json,
    packed,
    state_in_store,
    unpacked,
)
from headwater.core.errors import ConflictError, GapError, UsageError, ViewUnavailableError
from headwater.core.hashing import identities
from headwater.engine.collections.collections import ERRORS_NAME
from headwater.engine.collections.workload import definitions, derived_of
from headwater.log.protocol import Log
from headwater.sinks.topic.versions import topics_of
from headwater.views.dead_letter_actions import (
    LetterActions,
    letter_of,
    read_actions,
    record_of,
    records_of,
    write_actions,
)

if TYPE_CHECKING:
    from headwater.views.view_manager import Views

_RECORD, _PLACE, _AT = "_record", "_place", "_appended_at"
ATTEMPTS_MAX = 100
"""Number of attempts to append while another writer appends to the same partition."""


@dataclass(frozen=True)
class _Place:
    """The topic, partition and offset of a letter's record."""

    topic: TopicDefinition
    partition: int
    offset: int


class ViewLetterStore:
    """The dead-letter store of views."""

    kind: ClassVar[str] = "view"
    keeps_replayed: ClassVar[bool] = True

    def __init__(self, log: Log, views: Callable[[], Views]) -> None:
        self._log = log
        self._views = views

    def owners(self) -> list[str]:
        """Return the views that divert rows."""
        return [
            name for name, view in sorted(definitions(self._log).items()) if _errors(name) in derived_of(view)
        ]

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        """Return the rows in the errors of a view at the newest tick."""
        views, topics = self._views(), self._log.topics()
        if views.store.latest() is None:
            return []
        errors = views.reads.contents(_errors(owner))
        if letter is not None:
            offset = letter.rpartition("-")[2]
            errors = errors.filter(pc.equal(errors["_offset"].cast(pa.string()), offset))
        return self._letters(owner, errors, topics)

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        """Return the newest letters. They are selected in columns, because there may be very many."""
        views, topics = self._views(), self._log.topics()
        if views.store.latest() is None:
            return NewestLetters([])
        errors = views.reads.contents(_errors(owner))
        if not errors.num_rows:
            return NewestLetters([])
        records = records_of(errors)
        is_acted_on = pc.is_in(records, value_set=pa.array(actions.records(owner), pa.string()))
        place = pa.array(np.arange(errors.num_rows))
        others = pa.table({_RECORD: records, _AT: errors[_AT], _PLACE: place}).filter(pc.invert(is_acted_on))
        # a record may fail in several ways
        if pc.count_distinct(others[_RECORD]).as_py() < others.num_rows:
            once = others.group_by(_RECORD).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"]
            others = others.filter(pc.is_in(others[_PLACE], value_set=once))
        total = others.num_rows
        if count < total:
            order = [(_AT, "descending"), (_RECORD, "descending")]
            others = others.take(pc.select_k_unstable(others, count, order)) if count else others.slice(0, 0)
        acted_on = np.flatnonzero(is_acted_on.to_numpy())
        chosen = np.concatenate([acted_on, others[_PLACE].to_numpy()])
        return NewestLetters(
            self._letters(owner, errors.take(pa.array(chosen)), topics), total - others.num_rows
        )

    def count_open(self, owner: str, actions: LetterActions) -> int:
        """Return the number of a view's open letters; ViewUnavailableError if the view is not part of the tick."""
        newest = self.newest(owner, 0, actions)
        return newest.more + sum(
            state_in_store(one, actions, keeps_replayed=True).state in OPEN for one in newest.letters
        )

    def _letters(self, owner: str, errors: pa.Table, topics: Mapping[str, TopicDefinition]) -> list[Letter]:
        places = errors.select(["_topic", "_partition", "_offset"]).to_pylist()
        known = {name: topic.incarnation for name, topic in topics.items()}
        columns = (errors[name].to_pylist() for name in ("_error", "_row"))
        times = errors["_appended_at"].cast(pa.int64()).to_pylist()
        return [
            Letter(
                letter_of(owner, place),
                self.kind,
                owner,
                error,
                row,
                at,
                known.get(place["_topic"], 0),
                record=record_of(place),
            )
            for place, error, row, at in zip(places, *columns, times, strict=True)
        ]

    # --- editing ---------------------------------------------------------------------------------------------------

    def columns(self, letter: Letter) -> pa.Schema:
        """Return the columns of the record's topic; UsageError if people must not write to it."""
        place = self._place(letter)
        self._refuse_filled(place.topic)
        return place.topic.given.schema

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        """Return the record, as last edited, with other values; it conforms to its topic."""
        place = self._place(known.letter)
        original = self._record(place, known.letter)
        edit, row = known.edit, dict(original)
        if edit is not None and edit.edited_arrow is not None:
            row |= unpacked(edit.edited_arrow).to_pylist()[0]
        for name in place.topic.key:
            if name in values and values[name] != original[name]:
                raise UsageError(
                    f"{name!r} is the key of topic {place.topic.name!r}, and the key of a row cannot be edited",
                    hint=f"append the intended row, and drop {known.id}",
                    topic=place.topic.name,
                    column=name,
                )
        row |= values
        fit = conform([row], place.topic).select(place.topic.given.schema.names)
        return Edited(as_json(original), as_json(fit.to_pylist()[0]), packed(fit))

    def _refuse_filled(self, topic: TopicDefinition) -> None:
        """Raise UsageError if a topic is filled by a source or a sink exclusively."""
        if topic.captured_by is not None:
            raise UsageError(
                f"only source {topic.captured_by!r} writes to topic {topic.name!r}",
                hint="correct the row in the system that is captured; or drop the letter",
                topic=topic.name,
                source=topic.captured_by,
            )
        for entry in self._log.entries(SINK).values():
            made = SinkDefinition.from_document(entry.document)
            if made.kind != "topic":
                continue
            kept = topics_of(self._log, made.name, str(made.options["topic"]))
            if topic.name.lower() in map(str.lower, filter(None, asdict(kept).values())):
                raise UsageError(
                    f"only sink {made.name!r} writes to topic {topic.name!r}, from view {made.view!r}",
                    hint=f"correct the input of view {made.view}; or drop the letter",
                    topic=topic.name,
                    sink=made.name,
                )

    def _place(self, letter: Letter) -> _Place:
        topic, partition, offset = letter.id.partition("/")[2].rsplit("-", 2)
        return _Place(self._log.topic(topic), int(partition), int(offset))

    def _record(self, place: _Place, letter: Letter) -> dict[str, Any]:
        names = place.topic.given.schema.names
        try:
            batches = self._log.read(place.topic.name, place.partition, place.offset, place.offset + 1, names)
            rows = [row for batch in batches for row in batch.to_pylist()]
        except GapError:
            rows = []
        if len(rows) != 1:
            raise UsageError(
                f"the record of {letter.id} was removed from its topic, and cannot be edited",
                hint=f"append the intended row to {place.topic.name}, and drop the letter",
                letter=letter.id,
                topic=place.topic.name,
            )
        found: dict[str, Any] = rows[0]
        return found

    # --- replaying -------------------------------------------------------------------------------------------------

    def replay(self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool) -> dict[str, str]:
        """Append the edited records, each in one append with the record of the action."""
        left = {}
        readers = _Readers(self._log, self._views())
        for one in chosen:
            if one.state == "dropped":
                left[one.id] = f"it was dropped by {one.actions[-1].who}; an edit reopens it"
            elif one.edit is None:
                left[one.id] = (
                    f"view {owner} rejects it unchanged: edit it, or replace the view with one that accepts it"
                )
            else:
                why = self._append(one, note, readers, force)
                left |= {} if why is None else {one.id: why}
        return left

    def _append(self, one: LetterState, note: Note, readers: _Readers, force: bool) -> str | None:
        place = self._place(one.letter)
        self._refuse_filled(place.topic)
        assert one.edit is not None
        assert one.edit.edited_arrow is not None
        row = conform(unpacked(one.edit.edited_arrow), place.topic)
        if not place.topic.key and not force and (users := readers.of(one.letter.owner, place)):
            reads = "reads" if len(users) == 1 else "read"
            return (
                f"{' and '.join(users)} {reads} the original record, and would see both it and the correction: "
                "force replays it anyway"
            )
        assert one.letter.record is not None
        noted = (one.letter, replace(one.letter, id=one.letter.record))
        what = {"action": "replay", "settled": True, "edited": one.edit.edited}
        done = [note.record(letter, **what) for letter in noted]
        seen = place.offset + 1
        for _ in range(ATTEMPTS_MAX):
            end = self._log.partitions(place.topic.name)[place.partition].end
            if place.topic.key and not force:
                if (why := self._replaced(place, row, seen, end)) is not None:
                    return why
                seen = end
            try:
                write_actions(
                    self._log,
                    done,
                    one.versions,
                    rows={place.topic.name: row},
                    expect={place.topic.name: {place.partition: end}} if place.topic.key else {},
                )
                return None
            except ConflictError:
                now = read_actions(self._log)
                if any(now.version(name) != version for name, version in one.versions.items()):
                    again = state_in_store(one.letter, now, keeps_replayed=True)
                    if again.state == "replayed":
                        return f"{again.actions[-1].who} has just replayed it"
                    return "another action was recorded meanwhile: read the letter again"
        return f"too many concurrent appends to topic {place.topic.name}: try again"

    def _replaced(self, place: _Place, row: pa.RecordBatch, start: int, end: int) -> str | None:
        """Return a message if a record from `start` on has the key of a row, or may have had it."""
        names = list(place.topic.key)
        high, low = identities(row.select(names).columns, 1, exact=False)
        try:
            for batch in self._log.read(place.topic.name, place.partition, start, end, names):
                highs, lows = identities(batch.select(names).columns, batch.num_rows, exact=False)
                if bool(((highs == high) & (lows == low)).any()):
                    return "a newer record of its key exists: force replaces that record"
        except GapError:
            return (
                f"later records of topic {place.topic.name} were removed, and may have included one of its key: "
                "force replays it anyway"
            )
        return None


class _Readers:
    """Finds the other readers of a topic's record."""

    def __init__(self, log: Log, views: Views) -> None:
        self._log = log
        self._views = views
        self._refused: dict[str, pa.ChunkedArray | None] = {}

    def of(self, owner: str, place: _Place) -> list[str]:
        """Return the views besides the owner that have not rejected a record: they have used it, or still may. A view that
        rejected it, too, takes the one correction."""
        record = record_of(
            {"_topic": place.topic.name, "_partition": place.partition, "_offset": place.offset}
        )
        views = sorted(definitions(self._log).items())
        readers = [name for name, view in views if name != owner and place.topic.name in view.reads]
        return [name for name in readers if not self._has_refused(name, record)]

    def _has_refused(self, view: str, record: str) -> bool:
        refused = self._errors(view)
        return refused is not None and len(refused) > 0 and pc.index(refused, record).as_py() >= 0

    def _errors(self, view: str) -> pa.ChunkedArray | None:
        """Return the records that a view rejects; None if it has no errors, or is not part of the tick."""
        if view not in self._refused:
            found: pa.ChunkedArray | None = None
            if _errors(view) in derived_of(definitions(self._log)[view]):
                try:
                    found = records_of(self._views.reads.contents(_errors(view)))
                except ViewUnavailableError:
                    found = None
            self._refused[view] = found
        return self._refused[view]


def _errors(view: str) -> str:
    return f"{view}.{ERRORS_NAME}"
