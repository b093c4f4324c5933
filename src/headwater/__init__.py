"""Headwater: a durable, typed, partitioned log, and SQL views over it that are maintained incrementally.

The public API is exported here, and each name is imported on first use: `import headwater` alone loads neither pyarrow
nor pyspark and starts nothing. ARCHITECTURE.md lists the packages in import order.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater import events
    from headwater.core.errors import (
        AggregateNotFoundError,
        AlertExistsError,
        AlertNotFoundError,
        AlreadyWrittenError,
        ArithmeticOverflowError,
        BacklogError,
        BadRowError,
        CallFailedError,
        CheckpointConflictError,
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
        ExtraMissingError,
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
        OtherHistoryError,
        PermissionDeniedError,
        PublicationError,
        QueryError,
        QueueExistsError,
        QueueNotFoundError,
        RefusedRowError,
        RowNotFoundError,
        RowsRefusedError,
        SchemaError,
        SequenceReusedError,
        SignatureError,
        SinkError,
        SinkExistsError,
        SinkNotFoundError,
        SlotError,
        SourceError,
        SourceExistsError,
        SourceLockedError,
        SourceNotFoundError,
        SourceRefusedError,
        SourceUnreachableError,
        SparkJobError,
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
    from headwater.core.positions import Receipt
    from headwater.events.aggregates import Aggregate
    from headwater.sources.python_source import Source
    from headwater.udf.bloom import BloomFilter
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
    "CheckpointConflictError",
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
    "ExtraMissingError",
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
    "OtherHistoryError",
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
    "SequenceReusedError",
    "SignatureError",
    "SinkError",
    "SinkExistsError",
    "SinkNotFoundError",
    "SlotError",
    "Source",
    "SourceError",
    "SourceExistsError",
    "SourceLockedError",
    "SourceNotFoundError",
    "SourceRefusedError",
    "SourceUnreachableError",
    "SparkJobError",
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
    "Aggregate": "headwater.events.aggregates",
    "BloomFilter": "headwater.udf.bloom",
    "Receipt": "headwater.core.positions",
    "Source": "headwater.sources.python_source",
    "Workspace": "headwater.workspace",
    "open": "headwater.workspace",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}")
    if name == "events":
        return import_module("headwater.events")
    value = getattr(import_module(_HOMES.get(name, "headwater.core.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
