"""Every error that a user can get, with its facts as attributes and a hint that names the next step.

HeadwaterError
├── UsageError                 the call itself is wrong; nothing was attempted
│   ├── CommandIdUsedError     a command id that is already used for another command
│   └── StatementError         a SQL statement that cannot be parsed or is rejected
│       ├── QueryError         a standing query that cannot be parsed, with the position of the mistake
│       └── ColumnDroppedError a view reads a column that was dropped from the captured table
├── SchemaError                a schema, or a change of one, that is not possible
├── TopicNotFoundError         no topic of that name
├── TopicExistsError           a topic of that name exists already, and differs
├── ViewNotFoundError          no view of that name
├── ViewExistsError            a view of that name exists already
├── SourceNotFoundError        no source of that name
├── SourceExistsError          a source of that name exists already
├── SinkNotFoundError          no sink of that name
├── SinkExistsError            a sink of that name exists already
├── AlertNotFoundError         no alert of that name
├── AlertExistsError           an alert of that name exists already
├── QueueNotFoundError         no queue of that name
├── QueueExistsError           a queue of that name exists already, and differs
├── LeaseLostError             a worker's lease of a message has expired, or the message was settled
├── MessageNotFoundError       no message of a queue has the requested position
├── BacklogError               holding cursors of a topic are too far behind for another append (retryable)
├── ViewUnavailableError       a view is not part of the requested tick: behind, stopped, or missing
├── TickNotKeptError           a tick can no longer, or not yet, be read
│   └── OtherHistoryError      a tick or commit of another history, in which its number has another meaning
├── RowNotFoundError           no row of a view has the requested key
├── LetterNotFoundError        no dead letter has the requested name, or no owner of that name has any
├── SubscriptionTooLargeError  a subscription would hold more rows than its limit
├── EngineRunningError         another engine runs on this workspace
├── EvaluationError            an expression of a view failed on a row
├── SparkJobError              Spark failed to run a step of the engine (retryable)
├── FunctionMissingError       a view needs a user's function whose code this process does not have
├── ArithmeticOverflowError    a sum does not fit its type
├── BadRowError                a row does not fit its topic's schema; nothing of the append was written
├── ConflictError              another writer was first: the expected position has passed (retryable)
│   └── SequenceReusedError    a producer's sequence was already written with other rows
├── FencedError                a newer epoch or member has taken over; this one must stop
├── AlreadyWrittenError        this sequence was written long ago and its receipt is no longer kept
├── GapError                   a reader's position was removed by retention
├── CorruptionError            bytes on disk fail their checksum
├── KeyStoreError              the keys to private values are missing or damaged
│   └── KeyServiceError        the key management service did not answer (retryable)
├── StorageError               a disk operation failed
│   ├── DiskFullError          no space left (retryable once there is space)
│   ├── PermissionDeniedError  the operating system refused access
│   ├── WorkspaceMissingError  the workspace's folder does not exist
│   └── SyncFailedError        a sync failed: it is not known whether the commit took effect
├── NewerVersionError          written by a newer version of Headwater
├── NotAWorkspaceError         the folder holds something else
├── LogTimeoutError            a lock or a wait took longer than allowed (retryable)
├── CommitInterruptedError     the thread that wrote for several was interrupted: the outcome is unknown
├── ClosedError                the workspace was closed
├── JavaMissingError           Spark is needed and no Java 17+ was found
├── ExtraMissingError          a feature's extra is not installed
├── SourceError                a source cannot continue
│   ├── SourceUnreachableError there is no connection now (retryable)
│   ├── SourceLockedError      another transaction holds a lock that the source needs (retryable)
│   ├── SourceRefusedError     the server refuses: password, privileges, database, settings
│   ├── SlotError              the replication slot is missing, invalid, in use, or not the expected one
│   ├── PublicationError       the publication is missing, or does not publish the captured tables
│   ├── TableStoppedError      one table can no longer be captured; the others continue
│   └── WalBudgetError         the slot retains more of the server's WAL than its budget
├── SignatureError             a request without a valid signature, or signed at another time
├── SinkError                  a sink cannot continue without manual action
│   ├── TargetDownError        a target does not answer (retryable)
│   ├── CheckpointConflictError  a target is not at the checkpoint that its sink left (retryable)
│   └── RowsRefusedError       a target rejects some rows
├── CommandRefusedError        raised by `decide` for a command that it rejects
│   └── ClaimTakenError        a name claimed by the command belongs to another aggregate
├── AggregateNotFoundError     no event has this aggregate id, or none had at that time
├── UnreadableEventError       an event of a shape for which no class or upcast is declared, any more or yet
├── EventCodeError             a user's decide, fold, upcast, reaction or service failed
├── CallFailedError            the server of a call answered with an error
└── RefusedRowError            raised by a user's function for a row that it rejects
"""

from __future__ import annotations

from typing import Any, ClassVar


def shown(value: object, characters_max: int = 60) -> str:
    """Return a value's `repr` for a message, truncated if it is long. A value whose `repr` fails is described by its type."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or a number with too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


class HeadwaterError(Exception):
    """Root of all errors: one sentence, an optional detail, a hint; `code` and `retryable` are properties of the type.

    Facts are attributes, such as `topic`, `column` or `value`. Where a type has several causes, the fact `reason` tells them
    apart: a short word that does not change.
    """

    code: ClassVar[str] = "error"
    """The stable name of the error, as in `docs/error-codes.md` and in the `type` of HTTP problem documents."""
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
    """Return the line of a text with a part of it underlined, as a detail, and the part's line and column, from 1."""
    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", start)
    line = text[line_start : line_end if line_end >= 0 else len(text)]
    number = text.count("\n", 0, start) + 1
    column = start - line_start
    width = max(1, min(end, line_start + len(line)) - start)
    pad = "".join("\t" if c == "\t" else " " for c in line[:column])
    return f"line {number}, column {column + 1}\n    {line}\n    {pad}{'^' * width}", number, column + 1


class UsageError(HeadwaterError):
    """The call itself is wrong; nothing was attempted. Facts, where they apply: argument or option, value, topic, column,
    reason."""

    code = "bad-request"


class StatementError(UsageError):
    """A SQL statement that cannot be parsed, or is rejected."""

    code = "statement"


class QueryError(StatementError):
    """A standing query that cannot be parsed, or is rejected; facts: start, end (characters of its text), line, column."""

    code = "query"


class ColumnDroppedError(StatementError):
    """A view reads a column that was dropped from the captured table; facts: topic, column, view."""

    code = "column-dropped"


class SchemaError(HeadwaterError):
    """A schema, or a change of one, that is not possible; facts: topic, column or option, value, reason."""

    code = "schema"


class TopicNotFoundError(HeadwaterError):
    """No topic of that name."""

    code = "topic-not-found"


class TopicExistsError(HeadwaterError):
    """A topic of that name exists already, and differs."""

    code = "topic-exists"


class ViewNotFoundError(HeadwaterError):
    """No view of that name."""

    code = "view-not-found"


class ViewExistsError(HeadwaterError):
    """A view of that name exists already; facts: view, same."""

    code = "view-exists"


class SourceNotFoundError(HeadwaterError):
    """No source of that name."""

    code = "source-not-found"


class SourceExistsError(HeadwaterError):
    """A source of that name exists already; facts: source, difference."""

    code = "source-exists"


class SinkNotFoundError(HeadwaterError):
    """No sink of that name."""

    code = "sink-not-found"


class SinkExistsError(HeadwaterError):
    """A sink of that name exists already; facts: sink, difference."""

    code = "sink-exists"


class AlertNotFoundError(HeadwaterError):
    """No alert of that name."""

    code = "alert-not-found"


class AlertExistsError(HeadwaterError):
    """An alert of that name exists already; facts: alert, difference."""

    code = "alert-exists"


class QueueNotFoundError(HeadwaterError):
    """No queue of that name; facts: queue."""

    code = "queue-not-found"


class QueueExistsError(HeadwaterError):
    """A queue of that name exists already; facts: queue, difference."""

    code = "queue-exists"


class LeaseLostError(HeadwaterError):
    """A worker no longer holds the lease of a message, and nothing was done with the message; facts: queue, worker, messages
    (the positions lost, as 'partition-offset'), holder (the worker that has the first of them now, or None)."""

    code = "lease-lost"


class MessageNotFoundError(HeadwaterError):
    """No message of the queue has this position; facts: queue, place ('partition-offset')."""

    code = "message-not-found"


class BacklogError(HeadwaterError):
    """A cursor with `hold` is too far behind for another append; facts: topic, cursor, rows, backlog_rows, waited."""

    code = "backlog"
    retryable = True


class ViewUnavailableError(HeadwaterError):
    """The view is not part of this tick; facts: view, status ('missing' if there is no such view), tick, last_tick."""

    code = "view-unavailable"


class TickNotKeptError(HeadwaterError):
    """The tick was collected, or does not exist yet; facts: tick, first_available and last_available (None if there is no tick
    at all)."""

    code = "tick-not-kept"


class OtherHistoryError(TickNotKeptError):
    """The workspace has another tick or commit of this number: an older copy of it was restored since the number was issued;
    facts: token (the text that was given), found (the id that the number has now, None if it has none), and for a tick the
    facts of TickNotKeptError."""

    code = "other-history"


class SubscriptionTooLargeError(HeadwaterError):
    """A subscription has more rows than its limit; facts: rows, rows_max."""

    code = "subscription-too-large"


class RowNotFoundError(HeadwaterError):
    """No row of the view has the key; facts: view, key, tick."""

    code = "row-not-found"


class LetterNotFoundError(HeadwaterError):
    """No dead letter has this name (facts: letter), or no view or sink of this name has dead letters (facts: owner)."""

    code = "letter-not-found"


class EngineRunningError(HeadwaterError):
    """Another engine runs on this workspace; facts: pid, host, since (a datetime), epoch."""

    code = "engine-running"


class EvaluationError(HeadwaterError):
    """An expression failed on a row, as ANSI SQL requires: a bad cast, an overflow, a division by zero. Or a user's function
    failed; then facts: row, number (its index in the batch, None if unknown), and `__cause__` is the user's error."""

    code = "evaluation"


class SparkJobError(HeadwaterError):
    """Spark failed to run a step in its tasks; no result of it is visible, and it can be repeated."""

    code = "spark-job"
    retryable = True


class FunctionMissingError(HeadwaterError):
    """This process has no code for a declared function; facts: function, version."""

    code = "function-missing"


class ArithmeticOverflowError(HeadwaterError):
    """A sum does not fit its type; facts: function, key."""

    code = "arithmetic-overflow"


class BadRowError(HeadwaterError):
    """A row does not fit; facts: topic, row, column, value, expected."""

    code = "bad-row"


class ConflictError(HeadwaterError):
    """The expected position has passed; facts: topic, expected, actual."""

    code = "conflict"
    retryable = True


class SequenceReusedError(ConflictError):
    """A sequence was already written with other rows; facts: producer, sequence, receipt (of the first append, as text),
    reason ('other-count', 'other-topics' or 'other-values'), expected and actual (numbers of rows)."""

    code = "sequence-reused"
    retryable = False


class FencedError(HeadwaterError):
    """A newer epoch or another member has taken over."""

    code = "fenced"


class AlreadyWrittenError(HeadwaterError):
    """This sequence is older than the receipts that are kept; facts: producer, sequence, last."""

    code = "already-written"


class GapError(HeadwaterError):
    """The position was removed; facts: topic, partition, position, first_available, missed."""

    code = "gap"


class CorruptionError(HeadwaterError):
    """Bytes fail their checksum; facts: file, offset (byte), and where known topic, partition, next_offset, tick, reason."""

    code = "corruption"


class KeyStoreError(HeadwaterError):
    """The keys to private values are missing, damaged, or cannot be unwrapped; facts: folder, reason."""

    code = "key-store"


class KeyServiceError(KeyStoreError):
    """The key management service did not answer, or failed; facts: folder, reason ('failed', 'timeout'), operation."""

    code = "key-service"
    retryable = True


class StorageError(HeadwaterError):
    """A disk operation failed; facts: file."""

    code = "storage"


class DiskFullError(StorageError):
    """No space left; appends continue without a restart once there is space. Facts: outcome ('not-written') for an
    append."""

    code = "disk-full"
    retryable = True


class PermissionDeniedError(StorageError):
    """The operating system refused access."""

    code = "permission-denied"


class WorkspaceMissingError(StorageError):
    """The workspace's folder, or a part of it, does not exist."""

    code = "workspace-missing"


class SyncFailedError(StorageError):
    """A commit was written but could not be synced or published: it is not known whether it took effect. The page cache may
    differ from the disk, so the writer recovers from what is on disk instead of syncing again; facts: outcome ('unknown')."""

    code = "sync-failed"


class NewerVersionError(HeadwaterError):
    """Written by a newer version of Headwater; facts: found, supported."""

    code = "newer-version"


class NotAWorkspaceError(HeadwaterError):
    """The folder holds something else."""

    code = "not-a-workspace"


class LogTimeoutError(HeadwaterError):
    """A lock or a wait took longer than allowed."""

    code = "log-timeout"
    retryable = True


class CommitInterruptedError(HeadwaterError):
    """The thread that wrote for several was interrupted; it is not known whether the write took effect."""

    code = "commit-interrupted"


class ClosedError(HeadwaterError):
    """The workspace was closed."""

    code = "closed"


class JavaMissingError(HeadwaterError):
    """Spark is needed and no Java 17 or later was found."""

    code = "java-missing"


class ExtraMissingError(HeadwaterError):
    """An optional part of the package that a feature needs is not installed; facts: extra. The hint is the install command."""

    code = "extra-missing"


class SourceError(HeadwaterError):
    """A source cannot continue; facts: source."""

    code = "source"


class SourceUnreachableError(SourceError):
    """The source cannot be reached now; reading continues once it can."""

    code = "source-unreachable"
    retryable = True


class SourceLockedError(SourceError):
    """Another transaction holds a lock that the source needs; reading continues once that transaction has ended."""

    code = "source-locked"
    retryable = True


class SourceRefusedError(SourceError):
    """The server refuses the connection or a request."""

    code = "source-refused"


class SlotError(SourceError):
    """The replication slot cannot be read from; facts: slot, reason ('gone', 'lost', 'advanced', 'set back',
    'in use', 'unfit', 'events lost', 'other server')."""

    code = "slot"


class PublicationError(SourceError):
    """The publication is missing, or does not publish the captured tables; facts: publication, reason ('unpublished': it was
    missing)."""

    code = "publication"


class TableStoppedError(SourceError):
    """A table can no longer be captured; facts: table, topic."""

    code = "table-stopped"


class WalBudgetError(SourceError):
    """The slot retains more WAL than its budget; facts: slot, retained_bytes, budget_bytes, dropped."""

    code = "wal-budget"


class SignatureError(HeadwaterError):
    """A request has no valid signature; facts: reason ('missing', 'wrong', 'stale')."""

    code = "signature"


class SinkError(HeadwaterError):
    """A sink cannot continue without manual action; facts: sink."""

    code = "sink"


class TargetDownError(SinkError):
    """A target does not answer, or broke off the connection; the sink retries."""

    code = "target-down"
    retryable = True


class CheckpointConflictError(SinkError):
    """A target is not at the checkpoint that its sink left; facts: found (a `SinkCheckpoint`, or None)."""

    code = "checkpoint-conflict"
    retryable = True


class RowsRefusedError(SinkError):
    """A target rejects some rows of a change, and applied nothing of it; facts: refused, a non-empty list of `RefusedRow`."""

    code = "rows-refused"


class RefusedRowError(HeadwaterError):
    """Raised by a user's function for a row that it rejects; facts: row, its number in the table that was passed."""

    code = "refused-row"

    def __init__(
        self, reason: str, *, row: int, detail: str | None = None, hint: str | None = None, **facts: Any
    ) -> None:
        super().__init__(reason, detail=detail, hint=hint, row=row, **facts)


class CommandRefusedError(HeadwaterError):
    """A command was rejected by the present state of its aggregate; nothing was written. `decide` raises it, with facts of its
    own."""

    code = "command-refused"


class ClaimTakenError(CommandRefusedError):
    """A name is claimed by another aggregate; facts: kind, name, holder."""

    code = "claim-taken"


class CommandIdUsedError(UsageError):
    """A command id is already used for another command of the same aggregate; facts: aggregate_id, command_id."""

    code = "command-id-used"


class AggregateNotFoundError(HeadwaterError):
    """No event has this aggregate id; facts: topic, aggregate_id."""

    code = "aggregate-not-found"


class UnreadableEventError(HeadwaterError):
    """An event has a shape for which no class and no upcast step is declared; facts: topic, aggregate_id, version, event,
    event_version."""

    code = "unreadable-event"


class EventCodeError(HeadwaterError):
    """A user's function failed; facts: function. The user's error is the cause."""

    code = "event-code"


class CallFailedError(HeadwaterError):
    """A call was answered with an error; facts: topic, call_id."""

    code = "call-failed"
