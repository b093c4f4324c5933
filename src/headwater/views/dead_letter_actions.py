"""Actions on dead letters, as records of the workspace's own topic `_dead`, which keeps them forever.

A dead letter is a row that a view or a sink rejected; it stays in the dead-letter store of its owner. An action on it (edit,
drop, replay) is a record here, with the person, time and reason, and with the row before and after. So the original and
every change are kept, and the state of a letter follows from its store and its records. The topic counts the records of
every letter (`versioned_by`): an action names the count that its author has seen, so that of two concurrent actions the
second is rejected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import conform
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.core.clock import Microseconds
from headwater.core.errors import ConflictError, TopicExistsError, UsageError, ViewUnavailableError
from headwater.core.positions import Receipt
from headwater.log.protocol import Append, Log

TOPIC = "_dead"
SCHEMA = pa.schema(
    [
        pa.field("letter", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("owner", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("settled", pa.bool_(), nullable=False),
        pa.field("who", pa.string(), nullable=False),
        pa.field("reason", pa.string()),
        pa.field("error", pa.string()),
        pa.field("original", pa.string()),
        pa.field("edited", pa.string()),
        pa.field("edited_arrow", pa.binary()),
        pa.field("incarnation", pa.int64(), nullable=False),
    ]
)

Action = Literal["edit", "drop", "replay"]


@dataclass(frozen=True)
class LetterAction:
    """An action on a dead letter. If several owners may have rejected one record, a replay is recorded for the letter and
    for the record, whose name is that of a letter without the owner. `settled` marks a replay whose row was accepted.
    `error` is the reason of the rejection; `original` and `edited` are rows as JSON, `edited_arrow` is the edited row as an
    Arrow stream. `incarnation` distinguishes the topic of the row from another one of the same name."""

    letter: str
    kind: str
    owner: str
    action: Action
    who: str
    settled: bool = False
    reason: str | None = None
    error: str | None = None
    original: str | None = None
    edited: str | None = None
    edited_arrow: bytes | None = None
    incarnation: int = 0
    at: Microseconds = 0
    """Time of the append that recorded the action."""


class LetterActions:
    """The actions so far, by letter, in order."""

    def __init__(self, found: Iterable[LetterAction] = ()) -> None:
        self.by_letter: dict[str, list[LetterAction]] = {}
        for record in found:
            self.by_letter.setdefault(record.letter, []).append(record)

    def of(self, letter: str, incarnation: int | None = None) -> tuple[LetterAction, ...]:
        """Return the actions on a letter, optionally only those of one incarnation of its topic."""
        found = self.by_letter.get(letter)
        if found is None:
            return ()
        return tuple(d for d in found if incarnation is None or d.incarnation == incarnation)

    def and_then(self, found: Iterable[LetterAction]) -> LetterActions:
        """Return these actions together with later ones; this object stays unchanged."""
        made = LetterActions(found)
        made.by_letter = {
            **self.by_letter,
            **{name: [*self.by_letter.get(name, ()), *done] for name, done in made.by_letter.items()},
        }
        return made

    @cached_property
    def dropped(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """By owner, the letters whose last action is a drop, each with its incarnation."""
        found: dict[str, list[tuple[str, int]]] = {}
        for letter, done in self.letters():
            for record in {record.incarnation: record for record in done}.values():
                if record.action == "drop":
                    found.setdefault(record.owner, []).append((letter, record.incarnation))
        return found

    def records(self, owner: str) -> list[str]:
        """Return the names of records with actions: on the record itself, or on this owner's letters."""
        names = (name.partition("/") for name in self.by_letter)
        return [record if slash else whose for whose, slash, record in names if not slash or whose == owner]

    def letters(self) -> Iterator[tuple[str, list[LetterAction]]]:
        """Yield the letters with actions, and these actions."""
        return ((name, done) for name, done in self.by_letter.items() if "/" in name)

    def version(self, letter: str) -> int:
        """Return the number of actions on a letter, which the next action must name."""
        return len(self.by_letter.get(letter, ()))

    def is_dropped(self, letter: str, incarnation: int = 0) -> bool:
        """Whether the last action on a letter is a drop."""
        actions = self.of(letter, incarnation)
        return bool(actions) and actions[-1].action == "drop"


def read_actions(log: Log) -> LetterActions:
    """Return all actions so far. Actions are cached, and only new records are read."""
    topic = log.topics().get(TOPIC)
    if topic is None:
        return LetterActions()
    _refuse_other(topic)
    with _guard:
        known = _known.get(log)
    bounds = {partition: (info.first, info.end) for partition, info in log.partitions(TOPIC).items()}
    if known is None or known.incarnation != topic.incarnation or not _goes_on(known.bounds, bounds):
        known = _Known(
            topic.incarnation, {p: (first, first) for p, (first, _) in bounds.items()}, LetterActions()
        )
    found: list[LetterAction] = []
    for partition, (_, end) in bounds.items():
        found += _actions_of(log, partition, known.bounds[partition][1], end)
    if found:
        known = _Known(topic.incarnation, bounds, known.actions.and_then(found))
    with _guard:
        _known[log] = known
    return known.actions


@dataclass(frozen=True)
class _Known:
    """The cached contents of a log's topic."""

    incarnation: int
    bounds: Mapping[int, tuple[int, int]]
    """First and end offset of what was read, by partition."""
    actions: LetterActions


_guard = threading.Lock()
_known: WeakKeyDictionary[Log, _Known] = WeakKeyDictionary()


def _goes_on(was: Mapping[int, tuple[int, int]], now: Mapping[int, tuple[int, int]]) -> bool:
    return was.keys() == now.keys() and all(
        was[p][0] == first and was[p][1] <= end for p, (first, end) in now.items()
    )


def _actions_of(log: Log, partition: int, start: int, end: int) -> Iterator[LetterAction]:
    if start >= end:
        return
    for batch in log.read(TOPIC, partition, start, end, [*SCHEMA.names, "_appended_at"]):
        times = batch.column("_appended_at").cast(pa.int64()).to_pylist()
        rows = batch.select(SCHEMA.names).to_pylist()
        yield from (LetterAction(**row, at=at) for row, at in zip(rows, times, strict=True))


def write_actions(
    log: Log,
    actions: Sequence[LetterAction],
    versions: Mapping[str, int],
    *,
    rows: Mapping[str, pa.RecordBatch] | None = None,
    expect: Mapping[str, Mapping[int, int]] | None = None,
) -> Receipt:
    """Write actions, and rows of other topics, in one append. ConflictError, with nothing written, if a letter has another
    version than in `versions`, because another action was recorded, or if a topic does not end where `expect` says."""
    topic = _topic(log)
    recorded = [_without_private(log, record) for record in actions]
    noted = [{name: getattr(record, name) for name in SCHEMA.names} for record in recorded]
    batches = {topic.name: [conform(noted, topic)]}
    made_for = {topic.name: topic.incarnation}
    for name, batch in (rows or {}).items():
        batches[name] = [batch]
        made_for[name] = log.topic(name).incarnation
    return log.append(Append(batches, expect={**(expect or {}), topic.name: versions}, incarnations=made_for))


def _without_private(log: Log, record: LetterAction) -> LetterAction:
    """Return an action as it is stored forever: rows with private values are left out, since a copy could not be deleted.
    UsageError for an edit of such a row."""
    topic = log.topics().get(_topic_of(record.letter))
    if topic is None or not topic.private:
        return record
    if record.edited_arrow is not None:
        raise UsageError(
            f"{record.letter} cannot be edited: topic {topic.name!r} has private columns, and the edit would keep a copy of the row",
            hint=f"append the corrected row to {topic.name}, and drop the dead letter",
            topic=topic.name,
            letter=record.letter,
        )
    return replace(record, original=None, error=None, edited=None)


def with_dropped(
    log: Log, view: str, accounts: dict[str, dict[str, int]], errors: Callable[[], pa.Table]
) -> dict[str, dict[str, int]]:
    """Return the accounts of a view by topic, with failed rows whose letters were dropped counted as dropped. `errors`
    returns the rejected rows of the view, and is only called if letters were dropped."""
    dropped = read_actions(log).dropped.get(view)
    if not dropped:
        return accounts
    try:
        refused = errors()
    except ViewUnavailableError:
        return accounts
    if not refused.num_rows:
        return accounts
    incarnations = {name: topic.incarnation for name, topic in log.topics().items()}
    records = [
        letter.partition("/")[2] for letter, of in dropped if of == incarnations.get(_topic_of(letter))
    ]
    met = refused.filter(pc.is_in(records_of(refused), value_set=pa.array(records, pa.string())))
    settled = {topic: dict(account) for topic, account in accounts.items()}
    if not met.num_rows:
        return settled
    for counted in pc.value_counts(met["_topic"].cast(pa.string())).to_pylist():
        settled[counted["values"]]["failed"] -= counted["counts"]
        settled[counted["values"]]["dropped"] += counted["counts"]
    return settled


def records_of(errors: pa.Table) -> pa.ChunkedArray:
    """Return the names of the records in the rows of a view's errors, like `record_of`."""
    places = (errors[name].cast(pa.string()) for name in ("_topic", "_partition", "_offset"))
    return pc.binary_join_element_wise(*places, "-")


def _topic_of(letter: str) -> str:
    return letter.partition("/")[2].rsplit("-", 2)[0]


def letter_of(view: str, place: Mapping[str, object]) -> str:
    """Return the name of a view's letter, from a row of its errors."""
    return f"{view}/{record_of(place)}"


def record_of(place: Mapping[str, object]) -> str:
    """Return the name of a record, from a row of a view's errors."""
    return f"{place['_topic']}-{place['_partition']}-{place['_offset']}"


def conflict(letters: Iterable[str], error: ConflictError) -> ConflictError:
    """Return the error for the second of two concurrent actions."""
    names = ", ".join(letters)
    return ConflictError(
        f"another action on {names} was recorded at the same time",
        detail="this action was not recorded",
        hint="`headwater dead show` shows the other action; look at it, and decide again",
        **error.facts,
    )


def _topic(log: Log) -> TopicDefinition:
    known = log.topics().get(TOPIC)
    if known is None:
        try:
            log.create_topic(define_topic(TOPIC, SCHEMA, options={"versioned_by": "letter"}))
        except TopicExistsError:
            # another process has just created it
            pass
        known = log.topic(TOPIC)
    _refuse_other(known)
    return known


def _refuse_other(known: TopicDefinition) -> None:
    if known.versioned_by != "letter" or not known.schema.equals(SCHEMA):
        raise UsageError(
            f"topic {TOPIC!r}, which records actions on dead letters, exists with other columns",
            hint=f"copy the topic to another one, and DROP TOPIC {TOPIC}",
            topic=TOPIC,
        )
