"""Errors for ticks that cannot be read, with the ticks that are available instead."""

from __future__ import annotations

from typing import Any

from headwater.core.errors import OtherHistoryError, TickNotKeptError
from headwater.core.positions import Token


def tick_not_kept(tick: int, ticks: list[int]) -> TickNotKeptError:
    """Return the error for a missing `tick`; `ticks` are the available ones."""
    facts: dict[str, Any] = {
        "tick": tick,
        "first_available": ticks[0] if ticks else None,
        "last_available": ticks[-1] if ticks else None,
    }
    if not ticks:
        return TickNotKeptError(
            f"tick {tick} does not exist: no tick has been committed yet",
            hint="`headwater run --once` commits the first",
            **facts,
        )
    if tick > ticks[-1]:
        return TickNotKeptError(
            f"tick {tick} does not exist yet: the newest is {ticks[-1]}",
            hint="`headwater run --once` updates the views",
            **facts,
        )
    first = next((kept for kept in ticks if kept > tick), ticks[-1])
    facts["first_available"] = first
    return TickNotKeptError(
        f"tick {tick} is no longer kept: the first available is {first}",
        hint=f"request tick {first} or a later one",
        **facts,
    )


def other_history(token: Token, found: str | None, ticks: list[int], what: str = "") -> OtherHistoryError:
    """Return the error for a tick whose id differs from the token's; `what` names what was read up to the token."""
    return OtherHistoryError(
        f"tick {token.number} of this workspace is not the tick {token.number} of {what or 'the token'}",
        detail=f"the token is {token}, but the id of the tick is {found or 'different'}: an older copy of the workspace was "
        "restored, and other ticks have been committed since",
        hint="what was read up to that tick may no longer exist: read the current contents and follow the changes from there",
        token=str(token),
        found=found,
        tick=token.number,
        first_available=ticks[-1] if ticks else None,
        last_available=ticks[-1] if ticks else None,
        rebuilt_at=ticks[-1] if ticks else None,
    )
