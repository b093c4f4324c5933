"""Checks that the server is the one that a position was read from, with the same history and the same slot.

The checks run before anything is read, at every connect. `stream_overlap` checks what can only be seen in the stream itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headwater.core.errors import HeadwaterError, SlotError, SourceRefusedError
from headwater.sources.base import Position
from headwater.sources.postgres.server.connection import Replication, lsn_of, lsn_text
from headwater.sources.postgres.server.publications import SlotState
from headwater.sources.postgres.server.stream_overlap import LastTransaction, set_back

GAPS = frozenset({"gone", "lost", "advanced", "set back", "other server", "unpublished", "undecodable"})
"""Reasons of errors for missing changes: only a new slot and new snapshots help."""


@dataclass(frozen=True)
class Server:
    """Result of IDENTIFY_SYSTEM: system identifier, timeline, and end of the WAL."""

    system: str
    timeline: int
    flushed: int


def read_server(replication: Replication) -> Server:
    """Return the identity of the server of a connection."""
    system, timeline, flushed = replication.command("IDENTIFY_SYSTEM")[0][:3]
    return Server(str(system), int(str(timeline)), lsn_of(str(flushed)))


def is_gap(error: HeadwaterError) -> bool:
    """Whether an error means that the server no longer has what follows the position, or is not the server of the position."""
    return error.facts.get("reason") in GAPS


def other_server(source: str, slot: str) -> SlotError:
    """Return the error for a url that leads to another server than before."""
    return SlotError(
        f"source {source!r} was read from another server than the one its url leads to now",
        detail="positions in the log of one server mean nothing on another",
        hint=f"ALTER SOURCE {source} RESTART snapshots the tables anew; with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="other server",
        source=source,
    )


def begins_before(source: str, slot: str, begins: int, taken: int) -> SlotError:
    """Return the error for a slot that begins before what the log has: its positions would not increase."""
    return SlotError(
        f"replication slot {slot!r} of source {source!r} begins at {lsn_text(begins)}, and was read up to {lsn_text(taken)}",
        detail="the server was set back, or it is another one",
        hint=f"ALTER SOURCE {source} RESTART snapshots the tables anew; with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="other server",
        source=source,
    )


def undecodable(source: str, slot: str, cause: HeadwaterError) -> SlotError:
    """Return the error for a transaction that Postgres cannot decode, not even at its commit: nothing after it can be read from
    the slot."""
    return SlotError(
        f"Postgres cannot decode a transaction that source {source!r} is to read: {cause.message}",
        detail="it fails so at every attempt; what was committed since can be had from the tables alone",
        hint=f"ALTER SOURCE {source} RESTART makes a new slot and snapshots the tables anew; "
        "with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="undecodable",
        source=source,
    )


def check_history(
    replication: Replication, server: Server, position: Position, taken: int, source: str
) -> None:
    """Raise SlotError unless the server has everything up to `taken`, on the timeline of the position or on one that branched
    off after it."""
    slot = str(position.get("slot"))
    if server.flushed < taken:
        detail = f"its log ends at {lsn_text(server.flushed)}, before what was taken in"
        raise set_back(source, slot, taken, detail)
    was = position.get("timeline")
    if was is None or was == server.timeline:
        return
    anchor = LastTransaction.from_json(position["anchor"]) if "anchor" in position else LastTransaction(taken)
    left = _left_at(replication, server.timeline, int(was))
    if left is None or left < anchor.lsn:
        where = "does not come from" if left is None else f"has left at {lsn_text(left)}"
        raise set_back(
            source, slot, anchor.lsn, f"it is on timeline {server.timeline}, which {where} timeline {was}"
        )


def check_confirmed(slot: SlotState, position: Position, taken: int, source: str) -> None:
    """Raise SlotError if a slot begins after what was captured: the changes in between are lost."""
    if "anchor" not in position or slot.confirmed <= taken:
        return  # an older version could confirm more than the log had
    raise SlotError(
        f"replication slot {slot.name!r} of source {source!r} begins at {lsn_text(slot.confirmed)}, "
        f"and was read up to {lsn_text(taken)}: changes in between are lost",
        detail="it was dropped and created again, somebody else has read from it or advanced it, "
        "or the workspace is an older copy",
        hint=f"ALTER SOURCE {source} RESTART makes a new slot and snapshots the tables anew; "
        "with on_gap = 'snapshot' that happens by itself",
        slot=slot.name,
        reason="advanced",
        source=source,
    )


def _left_at(replication: Replication, timeline: int, was: int) -> int | None:
    """Return the LSN at which the server's history branched off a timeline; None if it was never on it."""
    if timeline < was:
        return None
    try:
        content = replication.command(f"TIMELINE_HISTORY {timeline}")[0][1]
    except SourceRefusedError:
        return None
    for line in (content or "").splitlines():
        fields: Sequence[str] = line.split()
        if len(fields) >= 2 and fields[0] == str(was):
            return lsn_of(fields[1])
    return None
