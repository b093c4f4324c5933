"""Monitors the slot while it is read: the WAL that it retains on the server, and the reaction to too much of it."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import WalBudgetError
from headwater.core.settings import format_bytes
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.options import PostgresOptions
from headwater.sources.postgres.server.publications import check_slot, find_slot

EVERY_S = 10.0
"""Interval between checks of the slot."""


@dataclass(frozen=True)
class SlotHealth:
    """WAL that a slot retains on the server."""

    retained_bytes: int
    """Number of bytes of WAL that the server retains for the slot."""
    behind_bytes: int
    """Number of bytes of WAL that the source has not confirmed yet."""
    wal_status: str | None
    failover: bool
    over_budget: bool


def read_slot_health(connection: Connection, options: PostgresOptions, source: str) -> SlotHealth:
    """Return the current health of the slot. SlotError if it can no longer be read; WalBudgetError if it exceeds the budget and
    over_wal = 'stop'."""
    slot = check_slot(connection, find_slot(connection, options.slot), options.slot, source)
    retained, behind = connection.rows(
        "SELECT pg_wal_lsn_diff(now, restart_lsn)::int8, pg_wal_lsn_diff(now, confirmed_flush_lsn)::int8 "
        "FROM pg_replication_slots, (SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_lsn() END AS now) AS at WHERE slot_name = %s",
        options.slot,
    )[0]
    budget = options.max_wal_bytes
    over = budget is not None and retained > budget
    if over and options.over_wal == "stop":
        raise over_budget(options, source, retained, dropped=False)
    return SlotHealth(retained, behind, slot.wal_status, slot.failover, over)


def over_budget(options: PostgresOptions, source: str, retained: int, *, dropped: bool) -> WalBudgetError:
    """Return the error for a slot that exceeds its WAL budget."""
    budget = options.max_wal_bytes or 0
    kept, allowed = format_bytes(retained >> 20 << 20), format_bytes(budget)
    done = (
        "the slot was dropped, because over_wal = 'drop_slot'"
        if dropped
        else "the source has stopped; the slot still exists"
    )
    again = f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables"
    hint = (
        again
        if dropped
        else f"raise max_wal, or drop the slot: SELECT pg_drop_replication_slot('{options.slot}'); then {again}"
    )
    return WalBudgetError(
        f"slot {options.slot!r} of source {source!r} retains {kept} of WAL, more than max_wal = {allowed}",
        detail=done,
        hint=hint,
        source=source,
        slot=options.slot,
        retained_bytes=retained,
        budget_bytes=budget,
        dropped=dropped,
    )
