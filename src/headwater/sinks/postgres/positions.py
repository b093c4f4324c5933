"""The table of checkpoints: one row for each sink whose target is a table of the schema."""

from __future__ import annotations

from typing import Any

from headwater.sinks.base.target import SinkCheckpoint
from headwater.sinks.postgres.tables import quote

POSITIONS = "headwater_positions"
_ID = "@"
"""Separator of history and tick id, which share one column."""


class PositionTable:
    """The table of checkpoints in a schema, with a row for each sink and version."""

    def __init__(self, schema: str) -> None:
        self.name = f"{quote(schema)}.{POSITIONS}"

    def create(self, connection: Any) -> None:
        """Create the table if it is missing."""
        connection.execute(
            f"CREATE TABLE IF NOT EXISTS {self.name} (sink text PRIMARY KEY, tick bigint NOT NULL, "
            "history text NOT NULL, checksum numeric(20) NOT NULL, rows bigint NOT NULL, withheld bytea NOT NULL, "
            "whole boolean NOT NULL, moved_at timestamptz NOT NULL)"
        )

    def read(self, connection: Any, position: str, lock: str = "") -> SinkCheckpoint | None:
        """Return the checkpoint stored under a name; `lock` is the locking clause of the SELECT."""
        row = connection.execute(
            f"SELECT tick, history, checksum, rows, withheld, whole FROM {self.name} WHERE sink = %s{lock}",
            [position],
        ).fetchone()
        if row is None:
            return None
        history, _, identity = row[1].partition(_ID)
        return SinkCheckpoint(row[0], history, int(row[2]), row[3], bytes(row[4]), row[5], identity)

    def write(
        self, connection: Any, position: str, before: SinkCheckpoint | None, after: SinkCheckpoint
    ) -> None:
        """Store a checkpoint under a name, in place of the one before."""
        values = [
            after.tick,
            f"{after.history}{_ID}{after.id}" if after.id else after.history,
            after.checksum,
            after.rows,
            after.rejected,
            after.whole,
            position,
        ]
        if before is None:
            connection.execute(
                f"INSERT INTO {self.name} (tick, history, checksum, rows, withheld, whole, moved_at, sink) "
                "VALUES (%s, %s, %s, %s, %s, %s, now(), %s)",
                values,
            )
        else:
            connection.execute(
                f"UPDATE {self.name} SET tick = %s, history = %s, checksum = %s, rows = %s, withheld = %s, "
                "whole = %s, moved_at = now() WHERE sink = %s",
                values,
            )
