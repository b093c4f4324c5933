"""Deletes data from the log and from everything derived from it: forgets subjects, excises records, and reports the progress.

Forgetting a subject destroys its key (crypto-shredding), which makes its private values unreadable at once; excision
removes records from the log (a hard delete). Both then append a record (topics `_forgotten` and `_excised`) and write a
catalog entry with the progress of the deletion. From this entry the next tick removes the data from the state of views,
and sinks are reconciled. Every step is idempotent: the next `open` resumes a deletion that a crash interrupted. It also
repeats a forgetting that the workspace has no entry of because it is an older copy: the key store has recorded it, and
the state of views is dropped before anything can be read.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.catalog.conform import conform
from headwater.catalog.connectors import SINK
from headwater.catalog.definitions import TopicDefinition, define_topic
from headwater.catalog.rules import DEAD
from headwater.core.arguments import kept_text
from headwater.core.arguments import text as text_of
from headwater.core.clock import Clock, Microseconds, from_us
from headwater.core.errors import ConflictError, EngineRunningError, TopicExistsError, UsageError
from headwater.core.types import TIMESTAMP, quote
from headwater.events.encrypted_state import CLAIMS
from headwater.log.deletion_entries import DeletionEntry, deletion_entries, put_deletion
from headwater.log.protocol import Append, Log, Producer
from headwater.log.topic_names import check_excision
from headwater.privacy.key_files import Forgetting
from headwater.privacy.subject_keys import subject_text
from headwater.queues.excised_messages import excise_messages
from headwater.queues.queue_ddl import queues_on
from headwater.sql.lexer import words_of

if TYPE_CHECKING:
    from headwater.connectors.deletion.erase_sinks import ProbedTargets
    from headwater.connectors.supervisor import Supervisor
    from headwater.views.view_manager import Views

FORGOTTEN, EXCISED = "_forgotten", "_excised"
"""Topics with a record of each deletion: what was deleted, when, by whom and why."""
_SCHEMAS = {
    FORGOTTEN: pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("subject", pa.string(), nullable=False),
            pa.field("at", TIMESTAMP, nullable=False),
            pa.field("who", pa.string()),
            pa.field("reason", pa.string()),
            pa.field("topics", pa.string()),
            pa.field("records", pa.int64(), nullable=False),
        ]
    ),
    EXCISED: pa.schema(
        [
            pa.field("number", pa.int64(), nullable=False),
            pa.field("topic", pa.string(), nullable=False),
            pa.field("condition", pa.string(), nullable=False),
            pa.field("at", TIMESTAMP, nullable=False),
            pa.field("who", pa.string()),
            pa.field("reason", pa.string()),
            pa.field("records", pa.int64(), nullable=False),
        ]
    ),
}
_PRODUCER = "headwater:"

Status = Literal["done", "scheduled", "out of reach"]


@dataclass(frozen=True)
class DeletionPlace:
    """A place that contained deleted data: when the data was removed from it, or what is still to be done."""

    kind: str
    """'log', 'keys', 'queue', 'states', 'letters', 'view', 'ticks', 'sink', 'past' (history that a sink's target itself
    keeps), 'logs' or 'copies'."""
    name: str
    status: Status
    at: datetime | None
    detail: str


@dataclass(frozen=True)
class Deletion:
    """A deletion, and the progress of it in every place that contained the data."""

    name: str
    what: Literal["forget", "excise"]
    of: str
    """The subject that was forgotten, or the topic that records were excised from."""
    where: str | None
    """The condition of an excision, with its literals replaced by `?`."""
    records: int
    at: datetime
    who: str | None
    reason: str | None
    places: tuple[DeletionPlace, ...] = field(repr=False)

    @property
    def done(self) -> bool:
        """Whether no place is scheduled any more. Places that are out of reach stay out of reach."""
        return all(place.status != "scheduled" for place in self.places)


class Deletions:
    """Forgets subjects and excises records of one workspace, and reports the progress of deletions."""

    def __init__(
        self,
        log: Log,
        clock: Clock,
        views: Callable[[], Views],
        supervisor: Callable[[], Supervisor],
        path: Path | None = None,
    ) -> None:
        self._path = path
        self._log = log
        self._clock = clock
        self._views = views
        self._supervisor = supervisor

    # --- forgetting ------------------------------------------------------------------------------------------------

    def forget(self, subject: Any, *, by: str | None, reason: str | None) -> Deletion:
        """Destroy a subject's key, and record the deletion for views and sinks."""
        text, who, why = subject_text(subject), _who(by), _why(reason)
        if text == CLAIMS:
            raise UsageError(
                f"{text!r} cannot be forgotten: its key serves to compare claimed names, of many subjects",
                hint="forget the subject that claimed a name",
                subject=text,
            )
        try:
            # also for dropped topics: a copy elsewhere may have their records
            forgotten = self._log.keys.forget(text, who, why)
        except UsageError:
            if self._private():
                raise
            raise UsageError(
                "there is nothing to forget: no topic of this workspace has private columns",
                hint="declare columns PRIVATE BY the column of their subject; "
                "`headwater excise` removes unencrypted records from the log",
                reason="no-private-columns",
            ) from None
        return self._follow(forgotten)

    def _private(self) -> list[TopicDefinition]:
        return [topic for topic in self._log.topics().values() if topic.private]

    def _follow(self, one: Forgetting) -> Deletion:
        """Append the record and write the catalog entry of a forgetting, unless the entry exists."""
        name = f"forget-{one.number}"
        if (known := deletion_entries(self._log).get(name)) is None:
            topics = {t.name: self._records_of(t, one.subject) for t in self._private()}
            topics = {topic: rows for topic, rows in topics.items() if rows}
            row = {
                "number": one.number,
                "subject": one.subject,
                "at": from_us(one.at),
                "who": one.who,
                # earlier versions did not check the type of a reason
                "reason": None if one.reason is None else str(one.reason),
                "topics": ", ".join(topics),
                "records": sum(topics.values()),
            }
            self._record(FORGOTTEN, one.number, row)
            begun = DeletionEntry(
                name=name,
                what="forget",
                of=one.subject,
                where=None,
                at=one.at,
                who=one.who,
                reason=one.reason,
                topics=topics,
            )
            known = put_deletion(self._log, begun, expect=None)
        return self._report(known)

    def _records_of(self, topic: TopicDefinition, subject: str) -> int:
        """Return the number of records of a topic that belong to a subject."""
        columns = sorted({by for _, by in topic.private})
        found = 0
        for partition, info in self._log.partitions(topic.name).items():
            for batch in self._log.read(topic.name, partition, info.first, info.end, columns):
                theirs = np.zeros(batch.num_rows, bool)
                for column in batch.columns:
                    equal = pc.equal(column.cast(pa.string()), subject).fill_null(False)
                    theirs |= equal.to_numpy(zero_copy_only=False)
                found += int(theirs.sum())
        return found

    # --- excising --------------------------------------------------------------------------------------------------

    def excise(self, topic: str, where: str, *, by: str | None, reason: str | None) -> Deletion:
        """Remove the records of a topic that match a condition, and record the deletion for views and sinks."""
        who, why = _who(by), _why(reason)
        made = self._log.topic(text_of(topic, "topic", hint='ws.excise("clicks", "user = 7")'))
        where = text_of(where, "where", hint='ws.excise("clicks", "user = 7")')
        if not where.strip():
            raise UsageError(
                "an excision needs a condition", hint='ws.excise("clicks", "user = 7")', reason="no-condition"
            )
        check_excision(made)
        if made.name.endswith(f".{DEAD}"):
            raise UsageError(
                f"topic {made.name!r} has copies of dead messages, which are removed together with their records",
                hint="excise the records from the topic of the queue, or `headwater dead drop` the messages",
                topic=made.name,
            )
        if made.name in _SCHEMAS:
            raise UsageError(
                f"records of topic {made.name!r} cannot be excised: they document deletions",
                topic=made.name,
                reason="record-of-deletions",
            )
        from headwater.serving.find_records import found as found_by

        found = found_by(self._log, made, where)
        records = sum(map(len, found.values()))
        if not records:
            raise UsageError(
                f"no record of topic {made.name!r} matches {where!r}: nothing was excised",
                hint=f"headwater tail {made.name} prints its records",
                topic=made.name,
            )
        self._refuse_based(made, found)
        return self._report(self._excised(made.name, found, _shape(where), who, why))

    def excise_copies(
        self, of: DeletionEntry, sink: str, topic: str, offsets: Mapping[int, list[int]]
    ) -> None:
        """Excise the copies, in a topic that a sink writes, of records that were excised."""
        self._excised(topic, offsets, f"copied by sink {sink} ({of.name})", of.who, of.reason)

    def _excised(
        self, topic: str, found: Mapping[int, list[int]], where: str, who: str | None, reason: str | None
    ) -> DeletionEntry:
        from headwater.engine.input.excised_records import packed_offsets

        begun = DeletionEntry(
            name="",
            what="excise",
            of=topic,
            where=where,
            at=self._clock.now_us(),
            who=who,
            reason=reason,
            topics={topic: sum(map(len, found.values()))},
            logged=False,
            offsets=packed_offsets(found),
            since=self._since(topic, found),
            incarnation=self._log.topic(topic).incarnation,
        )
        while True:
            number = len([n for n in deletion_entries(self._log) if n.startswith("excise-")]) + 1
            try:
                return self._remove(
                    put_deletion(self._log, replace(begun, name=f"excise-{number}"), expect=None)
                )
            except ConflictError:  # another process excised at the same time and took the number
                continue

    def _since(self, topic: str, offsets: Mapping[int, list[int]]) -> Microseconds:
        """Return when the first of these records was appended: nothing derived from them is older."""
        firsts = (
            batch.column(0).cast(pa.int64())[0].as_py()
            for partition, mine in offsets.items()
            for batch in self._log.read(topic, partition, mine[0], mine[0] + 1, ["_appended_at"])
        )
        return min(firsts, default=0)

    def _refuse_based(self, topic: TopicDefinition, found: Mapping[int, list[int]]) -> None:
        """Raise UsageError if a view has these records in its base: the base cannot be rebuilt without them."""
        if not self._log.entries("view"):
            return
        from headwater.engine.deletion.rebuild_after_delete import resting_on

        for view, positions in resting_on(self._log, self._views().store, topic.name).items():
            if any(offsets[0] < positions.get(p, 0) for p, offsets in found.items()):
                raise UsageError(
                    f"records of topic {topic.name!r} cannot be excised: view {view!r} has them in its base",
                    detail="retention has removed older records of the base, so it cannot be recomputed",
                    hint=f"DROP VIEW {quote(view)} first; then create it again, from the records that are left",
                    topic=topic.name,
                    view=view,
                )

    def _remove(self, entry: DeletionEntry) -> DeletionEntry:
        """Carry out the excision in an entry, as far as it is not done, and mark the entry as logged."""
        from headwater.engine.input.excised_records import keep, offsets_of

        offsets = offsets_of(entry)
        topic, copies = self._log.topics().get(entry.of), {}
        # a dropped topic took its records with it, and a new topic of its name has none of them
        if topic is not None and entry.incarnation in (None, topic.incarnation):
            if self._log.entries("view"):
                keep(self._log, self._views().store.storage, entry.name, topic, offsets)
            self._log.excise(topic.name, offsets)
            copies = excise_messages(self._log, topic.name, offsets)
        number = int(entry.name.removeprefix("excise-"))
        row = {
            "number": number,
            "topic": entry.of,
            "condition": entry.where,
            "at": from_us(entry.at),
            "who": entry.who,
            "reason": entry.reason,
            "records": entry.topics[entry.of],
        }
        self._record(EXCISED, number, row)
        done = replace(entry, logged=True, topics={**copies, **entry.topics})
        return put_deletion(self._log, done, expect=entry.sequence)

    # --- both ------------------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Complete deletions that a crash interrupted, and repeat forgettings that an older copy of the workspace has
        no entry of."""
        for entry in deletion_entries(self._log).values():
            if not entry.logged:
                self._remove(entry)
        known = deletion_entries(self._log)
        unknown = [one for one in self._log.keys.forgotten() if f"forget-{one.number}" not in known]
        if not unknown:
            return
        if self._log.entries("view"):
            try:
                self._views().drop_state()
            except EngineRunningError:  # the running engine rebuilds the views, from the entries below
                pass
        for one in unknown:
            self._follow(one)

    def all(self) -> list[Deletion]:
        """Return every deletion, in the order in which they began."""
        entries = sorted(deletion_entries(self._log).values(), key=lambda e: (e.at, e.name))
        if not entries or not self._log.entries(SINK):
            return [self._report(entry) for entry in entries]
        from headwater.connectors.deletion.erase_sinks import ProbedTargets

        with ProbedTargets(self._supervisor().sinks) as asked:
            return [self._report(entry, asked) for entry in entries]

    def _record(self, topic: str, number: int, row: Mapping[str, Any]) -> None:
        """Append the record of a deletion, exactly once."""
        if topic not in self._log.topics():
            try:
                self._log.create_topic(define_topic(topic, _SCHEMAS[topic]))
            except TopicExistsError:
                if topic not in self._log.topics():
                    raise
        batch = conform([row], self._log.topic(topic))
        producer = Producer(f"{_PRODUCER}{topic}", number, exact=False)
        self._log.append(Append({topic: [batch]}, producer))

    # --- reporting -------------------------------------------------------------------------------------------------

    def _report(self, entry: DeletionEntry, asked: ProbedTargets | None = None) -> Deletion:
        """Return the progress of a deletion. `asked` probes the history in the targets of sinks; None right after a
        deletion began, when no history is cleared yet."""
        return Deletion(
            name=entry.name,
            what=entry.what,
            of=entry.of,
            where=entry.where,
            records=sum(entry.topics.values()) if entry.forgets else entry.topics[entry.of],
            at=from_us(entry.at),
            who=entry.who,
            reason=entry.reason,
            places=(
                *self._in_log(entry),
                *self._other_stores(entry),
                *self._in_views(entry),
                *self._in_sinks(entry, asked),
                *self._beyond(),
            ),
        )

    def _in_log(self, entry: DeletionEntry) -> list[DeletionPlace]:
        at, forgets = from_us(entry.at), entry.forgets
        found = [DeletionPlace("keys", entry.of, "done", at, "the key was destroyed")] if forgets else []
        for topic, records in entry.topics.items():
            if not records:
                continue
            counted = f"{records} record{'' if records == 1 else 's'}"
            reads = "reads NULL, and has" if records == 1 else "read NULL, and have"
            detail = f"{counted} {reads} _forgotten" if forgets else f"{counted} removed"
            status: Status = "done" if entry.logged else "scheduled"
            found.append(DeletionPlace("log", topic, status, at, detail))
        return found

    def _other_stores(self, entry: DeletionEntry) -> list[DeletionPlace]:
        """Return the places outside the log: queues on the topics of a deletion, and stored states of aggregates."""
        at, forgets, known = from_us(entry.at), entry.forgets, self._log.topics()
        status: Status = "done" if entry.logged else "scheduled"
        found = []
        for topic in entry.topics:
            detail = (
                _FORGOTTEN_MESSAGES
                if forgets
                else "messages are not delivered any more, and their leases have ended"
            )
            found += [
                DeletionPlace("queue", queue, status, at, detail) for queue in queues_on(self._log, topic)
            ]
            if forgets and topic in known and known[topic].versioned_by is not None:
                found.append(DeletionPlace("states", topic, "done", at, _FORGOTTEN_STATES))
        if found and not forgets and _DEAD_LETTER_ACTIONS in known:
            found.append(DeletionPlace("letters", _DEAD_LETTER_ACTIONS, "out of reach", None, _EDITED))
        return found

    def _in_views(self, entry: DeletionEntry) -> list[DeletionPlace]:
        from headwater.engine.deletion.rebuild_after_delete import views_of

        if not self._log.entries("view") and entry.tick is None:
            return []
        status: Status = "done" if entry.tick is not None else "scheduled"
        at = _moment(entry.settled_at)
        when = f"at tick {entry.tick}" if status == "done" else "by the next tick: `headwater run --once`"
        views = views_of(self._log, self._views().store.latest_whole(), entry)
        done = [_RETRACTED if view in entry.mended else _REBUILT for view in views]
        how = done if status == "done" else [_TO_BE] * len(views)
        found = [
            DeletionPlace("view", v, status, at, f"{what} {when}") for v, what in zip(views, how, strict=True)
        ]
        past = "earlier ticks were removed: as_of recomputes them from the log as it is now"
        return [
            *found,
            DeletionPlace("ticks", "state", status, at, past if status == "done" else f"removed {when}"),
        ]

    def _beyond(self) -> list[DeletionPlace]:
        """Return the places that Headwater cannot delete from: log files and backups."""
        quoted = "log lines may quote a value that failed; the folder can be deleted"
        logged = self._path is not None and (self._path / _LOGS).exists()
        return [*([DeletionPlace("logs", _LOGS, "out of reach", None, quoted)] if logged else []), _COPIES]

    def _in_sinks(self, entry: DeletionEntry, asked: ProbedTargets | None) -> list[DeletionPlace]:
        if not self._log.entries(SINK):
            return []
        from headwater.connectors.deletion.erase_sinks import affected_sinks

        found = []
        for one in affected_sinks(
            self._log, self._views().store.latest_whole(), self._supervisor().sinks, entry, asked
        ):
            status: Status = "done" if one.at is not None else "scheduled"
            found.append(DeletionPlace("sink", one.sink, status, _moment(one.at), one.detail))
            if one.past is not None:
                status = "done" if one.past.gone_at is not None else "scheduled"
                found.append(
                    DeletionPlace("past", one.sink, status, _moment(one.past.gone_at), one.past.detail)
                )
            if one.beyond is not None:
                found.append(DeletionPlace("sink", one.sink, "out of reach", None, one.beyond))
        return found


_LOGS = "logs"
_TO_BE = "to be removed"
_RETRACTED, _REBUILT = "retracted, and its state rewritten,", "rebuilt from the log"
_FORGOTTEN_MESSAGES = "messages are received without the values; rows of dead and edited messages were encrypted with the same key"
_DEAD_LETTER_ACTIONS = "_dead"
_EDITED = "rows of dead messages that were edited, before and after the edit"
_FORGOTTEN_STATES = "folded again without the values; snapshots were encrypted with the same key"
_COPIES = DeletionPlace(
    "copies",
    "backups",
    "out of reach",
    None,
    "older copies of the folder: opened with the current keys they apply the deletion first; read otherwise they do not",
)


def _moment(at: Microseconds | None) -> datetime | None:
    return None if at is None else from_us(at)


def _who(by: str | None) -> str:
    if by is not None:
        return kept_text(by, "by", hint="by='anna'")
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the process runs as a user id without a name
        return "unknown"


def _why(reason: str | None) -> str | None:
    return None if reason is None else kept_text(reason, "reason", hint="reason='asked for it'")


def _shape(where: str) -> str:
    """Return a condition with its literals, which may be the data to delete, replaced: `user = ?`."""
    shown = where
    for word in reversed(list(words_of(where))):
        if word.kind in ("string", "number"):
            shown = f"{shown[: word.start]}?{shown[word.end :]}"
    return shown
