"""Positions in sources, in the form that users write."""

from __future__ import annotations

from headwater.catalog.connector_kinds import SOURCE_KINDS
from headwater.core.clock import from_us
from headwater.core.errors import UsageError


def position_text(kind: str, sequence: int) -> str | None:
    """Return a position in a source as users write it; None before the first."""
    if SOURCE_KINDS[kind].positions == "lsn":
        return format_lsn(sequence)
    return None if sequence < 0 else str(from_us(sequence))


def format_lsn(sequence: int) -> str | None:
    """Return a position in the Postgres log as Postgres writes it; None before the first."""
    return None if sequence < 0 else f"{sequence >> 32:X}/{sequence & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """Return the position in a text such as `0/16B3748`; UsageError if it is not one."""
    high, slash, low = text.strip().partition("/")
    try:
        if slash:
            return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is not an LSN of Postgres",
        hint="SELECT pg_current_wal_insert_lsn() returns one, such as 0/16B3748",
        value=text,
    )
