"""Looks after the slot while it is read from: what it costs the server, and what is done when that is too much."""

from __future__ import annotations

from dataclasses import dataclass

from headwater.core.errors import WalBudgetError
from headwater.core.settings import format_bytes
from headwater.sources.postgres.server.connection import Connection
from headwater.sources.postgres.server.options import PostgresOptions
from headwater.sources.postgres.server.publications import check_slot, find_slot

EVERY_S = 10.0
"""How often the slot is looked at."""


@dataclass(frozen=True)
class SlotHealth:
    """What a slot costs its server."""

    retained_bytes: int
    """WAL that the server keeps for it."""
    behind_bytes: int
    """WAL that was not confirmed yet."""
    wal_status: str | None
    failover: bool
    over_budget: bool


def look_after(connection: Connection, options: PostgresOptions, source: str) -> SlotHealth:
    """What the slot costs now. SlotError if it can no longer be read; WalBudgetError if it costs too much and that is to stop."""
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
    """The error for a slot that costs its server too much."""
    budget = options.max_wal_bytes or 0
    kept, allowed = format_bytes(retained >> 20 << 20), format_bytes(budget)
    done = (
        "it was dropped, as over_wal = 'drop_slot' says"
        if dropped
        else "the source has stopped, the slot is still there"
    )
    again = f"ALTER SOURCE {source} RESTART makes a new slot and snapshots the tables anew"
    hint = (
        again
        if dropped
        else f"raise max_wal, or drop the slot: SELECT pg_drop_replication_slot('{options.slot}'); then {again}"
    )
    return WalBudgetError(
        f"slot {options.slot!r} of source {source!r} holds back {kept} of WAL, more than the {allowed} it may",
        detail=done,
        hint=hint,
        source=source,
        slot=options.slot,
        retained_bytes=retained,
        budget_bytes=budget,
        dropped=dropped,
    )
