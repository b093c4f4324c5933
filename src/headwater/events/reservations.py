"""Names that one aggregate at most has: claimed and let go by what `decide` returns, in the commit of its events.

    return [Registered(name), Claim("user name", name)]

A claim with `until` is tentative: after that time another may take it. To claim again what one holds keeps it, with the new time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Claim:
    """Take a name of a kind: 'user name', 'seat'. The command is refused if another aggregate holds it."""

    kind: str
    name: str
    until: datetime | None = None
    """When it lapses by itself; None if it is for good."""
    private: bool = False
    """Whether the name itself is kept as a keyed digest alone, such as an e-mail address. Of one kind, always or never."""


@dataclass(frozen=True)
class Release:
    """Let go of a name; one that is not held stays as it is."""

    kind: str
    name: str
    private: bool = False
    """As it was claimed."""
