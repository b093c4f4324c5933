"""The server behind a position: whether it is the one that the position was read from, with the same history and the same slot.

Checked before anything is read, whenever the source connects. What can only be seen in the stream itself is checked by `overlap`.
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
"""Reasons of errors that say that changes are missing: only a new slot and new snapshots help."""


@dataclass(frozen=True)
class Server:
    """IDENTIFY_SYSTEM: the system, the timeline that it is on, and where its log ends."""

    system: str
    timeline: int
    flushed: int


def read_server(replication: Replication) -> Server:
    """The server that a connection leads to."""
    system, timeline, flushed = replication.command("IDENTIFY_SYSTEM")[0][:3]
    return Server(str(system), int(str(timeline)), lsn_of(str(flushed)))


def is_gap(error: HeadwaterError) -> bool:
    """Whether an error says that the server does not have any more, or is not, what a position says."""
    return error.facts.get("reason") in GAPS


def other_server(source: str, slot: str) -> SlotError:
    """The error for a url that leads to another server than before."""
    return SlotError(
        f"source {source!r} was read from another server than the one its url leads to now",
        detail="positions in the log of one server mean nothing on another",
        hint=f"ALTER SOURCE {source} RESTART snapshots the tables anew; with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="other server",
        source=source,
    )


def begins_before(source: str, slot: str, begins: int, taken: int) -> SlotError:
    """The error for a slot that begins before what the log has: its positions would not rise."""
    return SlotError(
        f"replication slot {slot!r} of source {source!r} begins at {lsn_text(begins)}, and was read up to {lsn_text(taken)}",
        detail="the server was set back, or it is another one",
        hint=f"ALTER SOURCE {source} RESTART snapshots the tables anew; with on_gap = 'snapshot' that happens by itself",
        slot=slot,
        reason="other server",
        source=source,
    )


def undecodable(source: str, slot: str, cause: HeadwaterError) -> SlotError:
    """The error for a transaction that Postgres fails to decode, at its commit too: nothing behind it can be read from the slot."""
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
    """SlotError unless the server has everything up to `taken`, on a timeline that goes on from the one it was read on."""
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
    """SlotError if a slot begins behind what was taken in: what is in between is lost."""
    if "anchor" not in position or slot.confirmed <= taken:
        return  # an older version told the slot of what the log did not know yet
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
    """Where the server's history has left a timeline; None if it never was on it."""
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
