"""The error for a tick that cannot be read, worded by what is there instead."""

from __future__ import annotations

from typing import Any

from headwater.errors import TickNotKeptError


def tick_not_kept(tick: int, ticks: list[int]) -> TickNotKeptError:
    """The error for `tick` where `ticks` are those that are there."""
    facts: dict[str, Any] = {
        "tick": tick,
        "first_available": ticks[0] if ticks else None,
        "last_available": ticks[-1] if ticks else None,
    }
    if not ticks:
        return TickNotKeptError(
            f"tick {tick} is not there: no tick was made yet",
            hint="`headwater run --once` makes the first",
            **facts,
        )
    if tick > ticks[-1]:
        return TickNotKeptError(
            f"tick {tick} was not made yet: the newest is {ticks[-1]}",
            hint="`headwater run --once` brings the views up to the log",
            **facts,
        )
    first = next((kept for kept in ticks if kept > tick), ticks[-1])
    facts["first_available"] = first
    return TickNotKeptError(
        f"tick {tick} is no longer kept: the first available is {first}",
        hint=f"ask for tick {first} or a later one",
        **facts,
    )
