"""Positions in sources, as their users write them."""

from __future__ import annotations

from headwater.catalog.connector_kinds import SOURCE_KINDS
from headwater.core.clock import from_us
from headwater.core.errors import UsageError


def position_text(kind: str, sequence: int) -> str | None:
    """A place in a source as its users write it."""
    if SOURCE_KINDS[kind].positions == "lsn":
        return format_lsn(sequence)
    return None if sequence < 0 else str(from_us(sequence))


def format_lsn(sequence: int) -> str | None:
    """A position in Postgres' log as Postgres writes it."""
    return None if sequence < 0 else f"{sequence >> 32:X}/{sequence & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> int:
    """The position that a text such as `0/16B3748` says."""
    high, slash, low = text.strip().partition("/")
    try:
        if slash:
            return (int(high, 16) << 32) | int(low, 16)
    except ValueError:
        pass
    raise UsageError(
        f"{text!r} is not a position in a Postgres log",
        hint="SELECT pg_current_wal_insert_lsn() gives one, such as 0/16B3748",
    )
