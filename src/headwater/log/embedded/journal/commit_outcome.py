"""Adds the outcome of a commit to its error. A commit counts once its record is in the journal: before that point nothing is
written; after it the outcome is unknown, because the next commit of any process may make the record visible."""

from __future__ import annotations

from types import TracebackType

from headwater.core.errors import DiskFullError, HeadwaterError, SyncFailedError

NOTHING_WRITTEN = "nothing of this append was written"
OUTCOME_UNKNOWN = "it is not known whether this commit took effect"
READ_OR_REPEAT = (
    "read what is there, or append with producer= and sequence=, which can be repeated and is written once"
)


class nothing_written:
    """Wraps the work before the record of an append is written: after a full disk nothing of the append was written.

    A class, because a generator would cost some microseconds per append.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error of a full disk with the outcome of the append."""
        if isinstance(error, DiskFullError):
            hint = "free some space and append again; no restart is needed"
            facts = {**error.facts, "outcome": "not-written"}
            raise DiskFullError(error.message, detail=NOTHING_WRITTEN, hint=hint, **facts) from error


class outcome_unknown:
    """Wraps the work after the record of a commit is written: errors report an unknown outcome, and are not retryable."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Raise the error with the outcome of the commit."""
        if not isinstance(error, HeadwaterError) or error.facts.get("outcome") == "unknown":
            return
        as_kind = SyncFailedError if error.retryable else type(error)
        detail = f"{OUTCOME_UNKNOWN}; {error.detail}" if error.detail else OUTCOME_UNKNOWN
        hint = (
            READ_OR_REPEAT
            if error.hint is None or as_kind is SyncFailedError
            else f"{error.hint}; then {READ_OR_REPEAT}"
        )
        facts = {**error.facts, "outcome": "unknown"}
        raise as_kind(error.message, detail=detail, hint=hint, **facts) from error
