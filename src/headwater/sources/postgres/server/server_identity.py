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
        f"the url of source {source!r} leads to another server than before",
        detail="WAL positions of one server have no meaning on another server",
        hint=f"ALTER SOURCE {source} RESTART takes a new snapshot of the tables; on_gap = 'snapshot' does that automatically",
        slot=slot,
        reason="other server",
        source=source,
    )


def begins_before(source: str, slot: str, begins: int, taken: int) -> SlotError:
    """Return the error for a slot that begins before what the log has: its positions would not increase."""
    return SlotError(
        f"replication slot {slot!r} of source {source!r} begins at {lsn_text(begins)}, before the position {lsn_text(taken)} of the source",
        detail="the server was restored to an earlier state, or is another server",
        hint=f"ALTER SOURCE {source} RESTART takes a new snapshot of the tables; on_gap = 'snapshot' does that automatically",
        slot=slot,
        reason="other server",
        source=source,
    )


def undecodable(source: str, slot: str, cause: HeadwaterError) -> SlotError:
    """Return the error for a transaction that Postgres cannot decode, not even at its commit: nothing after it can be read from
    the slot."""
    return SlotError(
        f"Postgres cannot decode the next transaction of source {source!r}: {cause.message}",
        detail="every attempt fails in the same way; only a new snapshot can read the changes committed since",
        hint=f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables; "
        "on_gap = 'snapshot' does that automatically",
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
        detail = f"its WAL ends at {lsn_text(server.flushed)}, before the position of the source"
        raise set_back(source, slot, taken, detail, server_lsn=server.flushed)
    was = position.get("timeline")
    if was is None or was == server.timeline:
        return
    anchor = LastTransaction.from_json(position["anchor"]) if "anchor" in position else LastTransaction(taken)
    left = _left_at(replication, server.timeline, int(was))
    if left is None or left < anchor.lsn:
        where = "did not branch off from" if left is None else f"branched off at {lsn_text(left)} from"
        raise set_back(
            source,
            slot,
            anchor.lsn,
            f"it is on timeline {server.timeline}, which {where} timeline {was}",
            timeline=server.timeline,
        )


def check_confirmed(slot: SlotState, position: Position, taken: int, source: str) -> None:
    """Raise SlotError if a slot begins after what was captured: the changes in between are lost."""
    if "anchor" not in position or slot.confirmed <= taken:
        return  # an older version could confirm more than the log had
    raise SlotError(
        f"replication slot {slot.name!r} of source {source!r} begins at {lsn_text(slot.confirmed)}, "
        f"after the position {lsn_text(taken)} of the source: changes in between are lost",
        detail="the slot was dropped and created again, another client read from it or advanced it, "
        "or the workspace is an older copy",
        hint=f"ALTER SOURCE {source} RESTART creates a new slot and takes a new snapshot of the tables; "
        "on_gap = 'snapshot' does that automatically",
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
