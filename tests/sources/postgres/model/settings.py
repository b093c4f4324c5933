"""The server that scripts are played on, and a source that looks around all the time instead of every ten seconds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.postgres import PostgresServer


def make_server() -> PostgresServer:
    """A server that sends what is larger than 64 kB before it is committed, and that can be promoted."""
    settings = {
        "logical_decoding_work_mem": "'64kB'",
        "wal_sender_timeout": "'10s'",
        "restore_command": "'false'",
    }
    return PostgresServer(settings=settings)


@contextmanager
def impatient() -> Iterator[None]:
    """The source looks around all the time, and waits for nothing long."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headwater.sources.postgres.capture_session.EVERY_S", 0.0)
        patch.setattr("headwater.sources.postgres.capture_session.QUIET_S", 0.02)
        patch.setattr("headwater.sources.postgres.postgres_source.QUIET_S", 0.02)
        patch.setattr("headwater.sources.postgres.postgres_source.BACKOFF_S", (0.0, 0.02, 0.1))
        patch.setattr("headwater.sources.postgres.snapshot.incremental_snapshot.AGAIN_S", 0.01)
        patch.setattr("headwater.sources.postgres.snapshot.table_locks.LOCK_WAIT_MS", 20)
        patch.setattr("headwater.sources.postgres.server.connection.LOCK_WAIT_MS", 20)
        yield
