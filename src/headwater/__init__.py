"""Headwater: a durable, typed, partitioned log, and the views that follow it.

Everything a program needs is here, loaded when it is first used: `import headwater` alone loads neither
pyarrow nor pyspark and starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater import events
    from headwater.bloom import BloomFilter
    from headwater.capture.python import Source
    from headwater.errors import (
        AggregateNotFoundError,
        AlertExistsError,
        AlertNotFoundError,
        AlreadyWrittenError,
        ArithmeticOverflowError,
        BacklogError,
        BadRowError,
        CallFailedError,
        ClaimTakenError,
        ClosedError,
        ColumnDroppedError,
        CommandIdUsedError,
        CommandRefusedError,
        CommitInterruptedError,
        ConflictError,
        CorruptionError,
        DiskFullError,
        EngineRunningError,
        EvaluationError,
        EventCodeError,
        FencedError,
        FunctionMissingError,
        GapError,
        HeadwaterError,
        JavaMissingError,
        KeyServiceError,
        KeyStoreError,
        LeaseLostError,
        LetterNotFoundError,
        LogTimeoutError,
        MessageNotFoundError,
        NewerVersionError,
        NotAWorkspaceError,
        PermissionDeniedError,
        PublicationError,
        QueryError,
        QueueExistsError,
        QueueNotFoundError,
        RefusedRowError,
        RowNotFoundError,
        RowsRefusedError,
        SchemaError,
        SignatureError,
        SinkError,
        SinkExistsError,
        SinkNotFoundError,
        SlotError,
        SourceError,
        SourceExistsError,
        SourceNotFoundError,
        SourceRefusedError,
        SourceUnreachableError,
        SparkJobError,
        StandMovedError,
        StatementError,
        StorageError,
        SubscriptionTooLargeError,
        SyncFailedError,
        TableStoppedError,
        TargetDownError,
        TickNotKeptError,
        TopicExistsError,
        TopicNotFoundError,
        UnreadableEventError,
        UsageError,
        ViewExistsError,
        ViewNotFoundError,
        ViewUnavailableError,
        WalBudgetError,
        WorkspaceMissingError,
    )
    from headwater.events.aggregate import Aggregate
    from headwater.positions import Receipt
    from headwater.workspace import Workspace, open

__version__ = "0.1.0"

__all__ = [
    "Aggregate",
    "AggregateNotFoundError",
    "AlertExistsError",
    "AlertNotFoundError",
    "AlreadyWrittenError",
    "ArithmeticOverflowError",
    "BacklogError",
    "BadRowError",
    "BloomFilter",
    "CallFailedError",
    "ClaimTakenError",
    "ClosedError",
    "ColumnDroppedError",
    "CommandIdUsedError",
    "CommandRefusedError",
    "CommitInterruptedError",
    "ConflictError",
    "CorruptionError",
    "DiskFullError",
    "EngineRunningError",
    "EvaluationError",
    "EventCodeError",
    "FencedError",
    "FunctionMissingError",
    "GapError",
    "HeadwaterError",
    "JavaMissingError",
    "KeyServiceError",
    "KeyStoreError",
    "LeaseLostError",
    "LetterNotFoundError",
    "LogTimeoutError",
    "MessageNotFoundError",
    "NewerVersionError",
    "NotAWorkspaceError",
    "PermissionDeniedError",
    "PublicationError",
    "QueryError",
    "QueueExistsError",
    "QueueNotFoundError",
    "Receipt",
    "RefusedRowError",
    "RowNotFoundError",
    "RowsRefusedError",
    "SchemaError",
    "SignatureError",
    "SinkError",
    "SinkExistsError",
    "SinkNotFoundError",
    "SlotError",
    "Source",
    "SourceError",
    "SourceExistsError",
    "SourceNotFoundError",
    "SourceRefusedError",
    "SourceUnreachableError",
    "SparkJobError",
    "StandMovedError",
    "StatementError",
    "StorageError",
    "SubscriptionTooLargeError",
    "SyncFailedError",
    "TableStoppedError",
    "TargetDownError",
    "TickNotKeptError",
    "TopicExistsError",
    "TopicNotFoundError",
    "UnreadableEventError",
    "UsageError",
    "ViewExistsError",
    "ViewNotFoundError",
    "ViewUnavailableError",
    "WalBudgetError",
    "Workspace",
    "WorkspaceMissingError",
    "__version__",
    "events",
    "open",
]

_HOMES = {
    "Aggregate": "headwater.events.aggregate",
    "BloomFilter": "headwater.bloom",
    "Receipt": "headwater.positions",
    "Source": "headwater.capture.python",
    "Workspace": "headwater.workspace",
    "open": "headwater.workspace",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    if name == "events":
        return import_module("headwater.events")
    value = getattr(import_module(_HOMES.get(name, "headwater.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
