"""What people did about dead letters: records of the workspace's own topic `_dead`, which keeps them for good.

A dead letter is a row that a view or a sink has refused; it lies where it was refused. What somebody does about it (edit, drop,
replay) is a record here, with who, when and why, and with the row as it was and as it was made. So the original and
every change of it stay, and what is to be said of a letter follows from where it lies and from its records. The topic counts
the records of every letter (`versioned_by`): who acts on what he has seen names that count, and of two who act at
once the second is refused.
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
class Deed:
    """What somebody did about a letter; where several may have refused one record, a replay is noted for the letter and for the
    record, whose name is that of a letter without its owner. `settled` says of a replay that the row was taken: it is done with. `error` is why
    the row was refused; `original` and `edited` are rows as JSON, `edited_arrow` is the edited one as an Arrow stream.
    `incarnation` tells the topic that the row lies in from another of its name."""

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
    """When: the time of its append."""


class Deeds:
    """What was done so far, by letter, each in order."""

    def __init__(self, found: Iterable[Deed] = ()) -> None:
        self.by_letter: dict[str, list[Deed]] = {}
        for deed in found:
            self.by_letter.setdefault(deed.letter, []).append(deed)

    def of(self, letter: str, incarnation: int | None = None) -> tuple[Deed, ...]:
        """What was done about a letter, in the topic that is there now."""
        found = self.by_letter.get(letter)
        if found is None:
            return ()
        return tuple(d for d in found if incarnation is None or d.incarnation == incarnation)

    def and_then(self, found: Iterable[Deed]) -> Deeds:
        """These and later ones; what is here stays as it is."""
        made = Deeds(found)
        made.by_letter = {
            **self.by_letter,
            **{name: [*self.by_letter.get(name, ()), *done] for name, done in made.by_letter.items()},
        }
        return made

    @cached_property
    def dropped(self) -> Mapping[str, Sequence[tuple[str, int]]]:
        """By owner, the letters that somebody has dropped, each with its incarnation, and nobody took up again."""
        found: dict[str, list[tuple[str, int]]] = {}
        for letter, done in self.letters():
            for deed in {deed.incarnation: deed for deed in done}.values():
                if deed.action == "drop":
                    found.setdefault(deed.owner, []).append((letter, deed.incarnation))
        return found

    def records(self, owner: str) -> list[str]:
        """The names of records that something was done about, by whomever, or for this owner's letters."""
        names = (name.partition("/") for name in self.by_letter)
        return [record if slash else whose for whose, slash, record in names if not slash or whose == owner]

    def letters(self) -> Iterator[tuple[str, list[Deed]]]:
        """The letters that something was done about, with that."""
        return ((name, done) for name, done in self.by_letter.items() if "/" in name)

    def version(self, letter: str) -> int:
        """The number of records of a letter, which whoever adds one names."""
        return len(self.by_letter.get(letter, ()))

    def is_dropped(self, letter: str, incarnation: int = 0) -> bool:
        """Whether somebody has dropped it, and nobody took it up again."""
        deeds = self.of(letter, incarnation)
        return bool(deeds) and deeds[-1].action == "drop"


def read_deeds(log: Log) -> Deeds:
    """Everything that was done so far. What was read once is kept, and only what came since is read."""
    topic = log.topics().get(TOPIC)
    if topic is None:
        return Deeds()
    _refuse_other(topic)
    with _guard:
        known = _known.get(log)
    bounds = {partition: (info.first, info.end) for partition, info in log.partitions(TOPIC).items()}
    if known is None or known.incarnation != topic.incarnation or not _goes_on(known.bounds, bounds):
        known = _Known(topic.incarnation, {p: (first, first) for p, (first, _) in bounds.items()}, Deeds())
    found: list[Deed] = []
    for partition, (_, end) in bounds.items():
        found += _deeds_of(log, partition, known.bounds[partition][1], end)
    if found:
        known = _Known(topic.incarnation, bounds, known.deeds.and_then(found))
    with _guard:
        _known[log] = known
    return known.deeds


@dataclass(frozen=True)
class _Known:
    """What was read of a log's topic."""

    incarnation: int
    bounds: Mapping[int, tuple[int, int]]
    """By partition, from where to where."""
    deeds: Deeds


_guard = threading.Lock()
_known: WeakKeyDictionary[Log, _Known] = WeakKeyDictionary()


def _goes_on(was: Mapping[int, tuple[int, int]], now: Mapping[int, tuple[int, int]]) -> bool:
    return was.keys() == now.keys() and all(
        was[p][0] == first and was[p][1] <= end for p, (first, end) in now.items()
    )


def _deeds_of(log: Log, partition: int, start: int, end: int) -> Iterator[Deed]:
    if start >= end:
        return
    for batch in log.read(TOPIC, partition, start, end, [*SCHEMA.names, "_appended_at"]):
        times = batch.column("_appended_at").cast(pa.int64()).to_pylist()
        rows = batch.select(SCHEMA.names).to_pylist()
        yield from (Deed(**row, at=at) for row, at in zip(rows, times, strict=True))


def write_deeds(
    log: Log,
    deeds: Sequence[Deed],
    versions: Mapping[str, int],
    *,
    rows: Mapping[str, pa.RecordBatch] | None = None,
    expect: Mapping[str, Mapping[int, int]] | None = None,
) -> Receipt:
    """Write what was done, and rows of other topics with it, in one append. ConflictError, and nothing is written, if somebody
    did something else about one of these letters, so that it has not these `versions`, or a topic is not where it is expected to
    be."""
    topic = _topic(log)
    told = [_without_private(log, deed) for deed in deeds]
    noted = [{name: getattr(deed, name) for name in SCHEMA.names} for deed in told]
    batches = {topic.name: [conform(noted, topic)]}
    made_for = {topic.name: topic.incarnation}
    for name, batch in (rows or {}).items():
        batches[name] = [batch]
        made_for[name] = log.topic(name).incarnation
    return log.append(Append(batches, expect={**(expect or {}), topic.name: versions}, incarnations=made_for))


def _without_private(log: Log, deed: Deed) -> Deed:
    """A deed as it is kept for good: of a row with private values no copy is made, since it could not be forgotten."""
    topic = log.topics().get(_topic_of(deed.letter))
    if topic is None or not topic.private:
        return deed
    if deed.edited_arrow is not None:
        raise UsageError(
            f"{deed.letter} cannot be edited: topic {topic.name!r} has private columns, and the row as it was would be kept",
            hint=f"append the row as it should be to {topic.name}, and drop the letter",
            topic=topic.name,
        )
    return replace(deed, original=None, error=None, edited=None)


def with_dropped(
    log: Log, view: str, accounts: dict[str, dict[str, int]], errors: Callable[[], pa.Table]
) -> dict[str, dict[str, int]]:
    """A view's accounts by topic, in which the rows that failed and were dropped since are dropped. `errors` are the rows that it
    refuses; they are read only where somebody has dropped some."""
    dropped = read_deeds(log).dropped.get(view)
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
    """The names of the records that the rows of a view's errors are of, as `record_of` makes them."""
    places = (errors[name].cast(pa.string()) for name in ("_topic", "_partition", "_offset"))
    return pc.binary_join_element_wise(*places, "-")


def _topic_of(letter: str) -> str:
    return letter.partition("/")[2].rsplit("-", 2)[0]


def letter_of(view: str, place: Mapping[str, object]) -> str:
    """The name of the letter that a view made of a record: a row of its errors."""
    return f"{view}/{record_of(place)}"


def record_of(place: Mapping[str, object]) -> str:
    """The name of a record, from a row of a view's errors."""
    return f"{place['_topic']}-{place['_partition']}-{place['_offset']}"


def conflict(letters: Iterable[str], error: ConflictError) -> ConflictError:
    """The error for somebody who was second."""
    names = ", ".join(letters)
    return ConflictError(
        f"somebody else has just acted on {names}",
        detail="nothing was done",
        hint="`headwater dead show` says what was done; look at it again, and decide anew",
        **error.facts,
    )


def _topic(log: Log) -> TopicDefinition:
    known = log.topics().get(TOPIC)
    if known is None:
        try:
            log.create_topic(define_topic(TOPIC, SCHEMA, options={"versioned_by": "letter"}))
        except TopicExistsError:  # somebody made it just now
            pass
        known = log.topic(TOPIC)
    _refuse_other(known)
    return known


def _refuse_other(known: TopicDefinition) -> None:
    if known.versioned_by != "letter" or not known.schema.equals(SCHEMA):
        raise UsageError(
            f"what is done about dead letters is kept in topic {TOPIC!r}, which is there and has other columns",
            hint=f"copy it to another topic, and DROP TOPIC {TOPIC}",
            topic=TOPIC,
        )
