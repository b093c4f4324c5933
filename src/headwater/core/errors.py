"""Every error a user can meet, with its facts as attributes and a hint that names the next step.

HeadwaterError
├── UsageError                 the call itself is wrong; nothing was tried
│   ├── CommandIdUsedError     a command id that stands for another command already
│   └── StatementError         a SQL statement that cannot be read or is refused
│       ├── QueryError         a standing query that cannot be read, with where the mistake is
│       └── ColumnDroppedError a view reads a column that is no longer there where its topic is captured from
├── SchemaError                a schema, or a change of one, that is not possible
├── TopicNotFoundError         no topic of that name
├── TopicExistsError           a topic of that name is there already, and differs
├── ViewNotFoundError          no view of that name
├── ViewExistsError            a view of that name is there already
├── SourceNotFoundError        no source of that name
├── SourceExistsError          a source of that name is there already
├── SinkNotFoundError          no sink of that name
├── SinkExistsError            a sink of that name is there already
├── AlertNotFoundError         no alert of that name
├── AlertExistsError           an alert of that name is there already
├── QueueNotFoundError         no queue of that name
├── QueueExistsError           a queue of that name is there already, and differs
├── LeaseLostError             a message is no longer this worker's: its lease ran out, or was settled
├── MessageNotFoundError       no message of a queue has the place asked for
├── BacklogError               a topic's readers are too far behind for another append (retryable)
├── ViewUnavailableError       a view that is no part of the tick asked for: behind, stopped, or not there then
├── TickNotKeptError           a tick that can no longer, or not yet, be read
│   └── OtherHistoryError      a tick or commit of another history, in which its number stands for something else
├── RowNotFoundError           no row of a view has the key asked for
├── LetterNotFoundError        no dead letter has the name asked for, or nobody of that name has any
├── SubscriptionTooLargeError  a subscription that would hold more rows than it may
├── EngineRunningError         another engine runs on this workspace
├── EvaluationError            an expression of a view failed on a row
├── SparkJobError              Spark gave up on a step of the engine (retryable)
├── FunctionMissingError       a view needs a user's function that this process has no code for
├── ArithmeticOverflowError    a sum does not fit its type
├── BadRowError                a row does not fit its topic's schema; nothing of the append was written
├── ConflictError              someone else was first: the expected position has passed (retryable)
│   └── SequenceReusedError    a producer's sequence is already written, with other rows
├── FencedError                a newer epoch or member has taken over; this one must stop
├── AlreadyWrittenError        this sequence was written long ago and its receipt is no longer kept
├── GapError                   a reader's position was removed by retention
├── CorruptionError            bytes on disk fail their checksum
├── KeyStoreError              the keys to private values are not where they should be, or damaged
│   └── KeyServiceError        the key management service did not answer (retryable)
├── StorageError               the disk said no
│   ├── DiskFullError          no space left (retryable once there is space)
│   ├── PermissionDeniedError  the operating system refused access
│   ├── WorkspaceMissingError  the workspace's folder is gone
│   └── SyncFailedError        a sync failed: whether the commit counts is not known
├── NewerVersionError          written by a newer version of Headwater
├── NotAWorkspaceError         the folder holds something else
├── LogTimeoutError            a lock or a wait took longer than allowed (retryable)
├── CommitInterruptedError     a thread that wrote for several was interrupted: whether it was written is not known
├── ClosedError                the workspace was closed
├── JavaMissingError           Spark is needed and no Java 17+ was found
├── ExtraMissingError          a feature's extra is not installed
├── SourceError                a source cannot go on
│   ├── SourceUnreachableError there is no connection now (retryable)
│   ├── SourceLockedError      another transaction holds a lock that the source needs (retryable)
│   ├── SourceRefusedError     the server answers, and says no: password, rights, database, settings
│   ├── SlotError              the replication slot is gone, invalid, taken, or another one than was expected
│   ├── PublicationError       the publication is gone, or does not publish what is captured
│   ├── TableStoppedError      one table cannot be captured any more; the others go on
│   └── WalBudgetError         the slot holds back more of the server's write-ahead log than it may
├── SignatureError             a request that is not signed as it must be, or was at another time
├── SinkError                  a sink cannot go on until somebody does something
│   ├── TargetDownError        a target does not answer (retryable)
│   ├── CheckpointConflictError        a target is not where it was left (retryable)
│   └── RowsRefusedError       a target does not take some rows
├── CommandRefusedError        raised by `decide` for a command that it does not take
│   └── ClaimTakenError        a name that the command claims is held by another aggregate
├── AggregateNotFoundError     no event has this aggregate id, or none had then
├── UnreadableEventError       an event that nobody can read any more, or not yet
├── EventCodeError             a user's decide, fold, upcast, reaction or service failed
├── CallFailedError            whoever serves a call has answered that it failed
└── RefusedRowError            raised by a user's function for a row that it does not take
"""

from __future__ import annotations

from typing import Any, ClassVar


def shown(value: object, characters_max: int = 60) -> str:
    """A value for a message, as Python writes it, cut off where it is long. Values that Python cannot write are named by type."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number of too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


class HeadwaterError(Exception):
    """The root: one sentence, an optional detail, a hint; `retryable` is a property of the type."""

    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str, *, detail: str | None = None, hint: str | None = None, **facts: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.facts = facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name in facts:
            return facts[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __str__(self) -> str:
        lines = [self.message]
        if self.detail:
            lines.append(f"  detail: {self.detail}")
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.detail, self.hint, self.facts)


def _rebuild(
    kind: type[HeadwaterError], message: str, detail: str | None, hint: str | None, facts: dict[str, Any]
) -> HeadwaterError:
    return kind(message, detail=detail, hint=hint, **facts)


def underlined(text: str, start: int, end: int) -> tuple[str, int, int]:
    """The line of a text with a part of it underlined, as a detail, and the line and column where it begins, from 1."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    number = text.count("\n", 0, start) + 1
    column = start - line_start
    width = max(1, min(end, line_start + len(line)) - start)
    pad = "".join("\t" if c == "\t" else " " for c in line[:column])
    return f"line {number}, column {column + 1}\n    {line}\n    {pad}{'^' * width}", number, column + 1


class UsageError(HeadwaterError):
    """The call itself is wrong; nothing was tried."""


class StatementError(UsageError):
    """A SQL statement that cannot be read, or is refused."""


class QueryError(StatementError):
    """A standing query that cannot be read, or is refused; facts: start, end (characters of its text), line, column."""


class ColumnDroppedError(StatementError):
    """A view reads a column that was dropped where its topic is captured from; facts: topic, column, view."""


class SchemaError(HeadwaterError):
    """A schema, or a change of one, that is not possible."""


class TopicNotFoundError(HeadwaterError):
    """No topic of that name."""


class TopicExistsError(HeadwaterError):
    """A topic of that name is there already, and differs."""


class ViewNotFoundError(HeadwaterError):
    """No view of that name."""


class ViewExistsError(HeadwaterError):
    """A view of that name is there already; facts: view, same."""


class SourceNotFoundError(HeadwaterError):
    """No source of that name."""


class SourceExistsError(HeadwaterError):
    """A source of that name is there already; facts: source, difference."""


class SinkNotFoundError(HeadwaterError):
    """No sink of that name."""


class SinkExistsError(HeadwaterError):
    """A sink of that name is there already; facts: sink, difference."""


class AlertNotFoundError(HeadwaterError):
    """No alert of that name."""


class AlertExistsError(HeadwaterError):
    """An alert of that name is there already; facts: alert, difference."""


class QueueNotFoundError(HeadwaterError):
    """No queue of that name; facts: queue."""


class QueueExistsError(HeadwaterError):
    """A queue of that name is there already; facts: queue, difference."""


class LeaseLostError(HeadwaterError):
    """A message is no longer leased to this worker, and nothing was done with it; facts: queue, worker, messages (the places
    that are lost, as 'partition-offset'), holder (who has the first of them now, or None)."""


class MessageNotFoundError(HeadwaterError):
    """No message of the queue is at this place; facts: queue, place ('partition-offset')."""


class BacklogError(HeadwaterError):
    """A cursor marked `hold` is too far behind for another append; facts: topic, cursor, rows, backlog_rows."""

    retryable = True


class ViewUnavailableError(HeadwaterError):
    """The view is no part of this tick; facts: view, status ('missing' if it is not there at all), tick, last_tick."""


class TickNotKeptError(HeadwaterError):
    """The tick was collected, or is not there yet; facts: tick, first_available and last_available (None if there is
    no tick at all)."""


class OtherHistoryError(TickNotKeptError):
    """The workspace has another tick or commit of this number: an older copy of it was put back since the number was given;
    facts: token (the text that was given), found (the id of what has the number now, None if nothing has), and those of
    TickNotKeptError where it is a tick."""


class SubscriptionTooLargeError(HeadwaterError):
    """A subscription holds more rows than it may; facts: rows, rows_max."""


class RowNotFoundError(HeadwaterError):
    """No row of the view has the key; facts: view, key, tick."""


class LetterNotFoundError(HeadwaterError):
    """No dead letter has this name (facts: letter), or no view or sink of this name diverts rows (facts: owner)."""


class EngineRunningError(HeadwaterError):
    """Another engine runs on this workspace; facts: pid, host, since (a datetime), epoch."""


class EvaluationError(HeadwaterError):
    """An expression failed on a row, as ANSI SQL demands: a bad cast, an overflow, a division by zero. Or a user's
    function did; then facts: row, number (its place in the batch, None if unknown), and `__cause__` is the user's."""


class SparkJobError(HeadwaterError):
    """Spark gave up on a step that was to run in its tasks; nothing of it is seen, and it can be done again."""

    retryable = True


class FunctionMissingError(HeadwaterError):
    """This process has no code for a declared function; facts: function, version."""


class ArithmeticOverflowError(HeadwaterError):
    """A sum does not fit its type; facts: function, key."""


class BadRowError(HeadwaterError):
    """A row does not fit; facts: topic, row, column, value, expected."""


class ConflictError(HeadwaterError):
    """The expected position has passed; facts: topic, expected, actual."""

    retryable = True


class SequenceReusedError(ConflictError):
    """A sequence is already written, with other rows; facts: producer, sequence, receipt (of the first append, as text)."""

    retryable = False


class FencedError(HeadwaterError):
    """A newer epoch or another member has taken over."""


class AlreadyWrittenError(HeadwaterError):
    """This sequence is older than the receipts that are kept; facts: producer, sequence, last."""


class GapError(HeadwaterError):
    """The position was removed; facts: topic, partition, position, first_available, missed."""


class CorruptionError(HeadwaterError):
    """Bytes fail their checksum; facts: file, offset (byte), and where known topic, partition, next_offset."""


class KeyStoreError(HeadwaterError):
    """The keys to private values are not where they should be, are damaged, or cannot be unwrapped; facts: folder."""


class KeyServiceError(KeyStoreError):
    """The key management service did not answer, or failed; facts: folder."""

    retryable = True


class StorageError(HeadwaterError):
    """The disk said no; facts: file."""


class DiskFullError(StorageError):
    """No space left; appends go on by themselves once there is space."""

    retryable = True


class PermissionDeniedError(StorageError):
    """The operating system refused access."""


class WorkspaceMissingError(StorageError):
    """The workspace's folder, or a part of it, is gone."""


class SyncFailedError(StorageError):
    """A commit was written and could not be synced or shown: whether it counts is not known. The page cache may have lied, so the
    writer recovers from what is on disk instead of syncing again."""


class NewerVersionError(HeadwaterError):
    """Written by a newer version of Headwater; facts: found, supported."""


class NotAWorkspaceError(HeadwaterError):
    """The folder holds something else."""


class LogTimeoutError(HeadwaterError):
    """A lock or a wait took longer than allowed."""

    retryable = True


class CommitInterruptedError(HeadwaterError):
    """A thread that wrote for several was interrupted while it did; whether it was written is not known."""


class ClosedError(HeadwaterError):
    """The workspace was closed."""


class JavaMissingError(HeadwaterError):
    """Spark is needed and no Java 17 or later was found."""


class ExtraMissingError(HeadwaterError):
    """An optional part of the package that a feature needs is not installed; facts: extra. The hint is the command that installs it."""


class SourceError(HeadwaterError):
    """A source cannot go on; facts: source."""


class SourceUnreachableError(SourceError):
    """There is no connection now; reading goes on by itself once there is one."""

    retryable = True


class SourceLockedError(SourceError):
    """Another transaction holds a lock that the source needs; reading goes on by itself once that transaction has ended."""

    retryable = True


class SourceRefusedError(SourceError):
    """The server answers, and says no."""


class SlotError(SourceError):
    """The replication slot cannot be read from; facts: slot, reason ('gone', 'lost', 'advanced', 'set back',
    'in use', 'unfit', 'events lost', 'other server')."""


class PublicationError(SourceError):
    """The publication is gone, or does not publish what is captured; facts: publication, reason ('unpublished': it was gone)."""


class TableStoppedError(SourceError):
    """A table can no longer be captured; facts: table, topic."""


class WalBudgetError(SourceError):
    """The slot holds back more WAL than it may; facts: slot, retained_bytes, budget_bytes, dropped."""


class SignatureError(HeadwaterError):
    """A request is not signed as it must be; facts: reason ('missing', 'wrong', 'stale')."""


class SinkError(HeadwaterError):
    """A sink cannot go on until somebody does something; facts: sink."""


class TargetDownError(SinkError):
    """A target does not answer, or broke off; it is tried again."""

    retryable = True


class CheckpointConflictError(SinkError):
    """A target is not where it was left; facts: found (a Stand or None)."""

    retryable = True


class RowsRefusedError(SinkError):
    """A target does not take some rows of a change, and nothing of it was done; facts: refused, a list of Refused, which
    has at least one."""


class RefusedRowError(HeadwaterError):
    """Raised by a user's function for a row that it does not take; facts: row, its number in the table that was given."""

    def __init__(
        self, reason: str, *, row: int, detail: str | None = None, hint: str | None = None, **facts: Any
    ) -> None:
        super().__init__(reason, detail=detail, hint=hint, row=row, **facts)


class CommandRefusedError(HeadwaterError):
    """A command was refused by what the aggregate is at the moment; nothing was written. `decide` raises it, with facts of its own."""


class ClaimTakenError(CommandRefusedError):
    """A name is held by another aggregate; facts: kind, name, holder."""


class CommandIdUsedError(UsageError):
    """A command id stands for another command of the same aggregate; facts: aggregate_id, command_id."""


class AggregateNotFoundError(HeadwaterError):
    """No event has this aggregate id; facts: topic, aggregate_id."""


class UnreadableEventError(HeadwaterError):
    """An event has a shape that no class and no step is declared for; facts: topic, aggregate_id, version, event,
    event_version."""


class EventCodeError(HeadwaterError):
    """A function of the user's failed; facts: function. Its own error is the cause."""


class CallFailedError(HeadwaterError):
    """A call was answered with an error; facts: topic, call_id."""
