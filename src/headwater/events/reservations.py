"""Unique names held by at most one aggregate: claimed and released by what `decide` returns, in the commit of its events.

    return [Registered(name), Claim("user name", name)]

A claim with `until` is tentative: after that time another aggregate may claim the name. A claim by its current holder keeps
the name, with the new time.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Claim:
    """A claim of a name of a kind: 'user name', 'seat'. The command is refused if another aggregate holds the name."""

    kind: str
    name: str
    until: datetime | None = None
    """Expiry time of the claim; None means never."""
    private: bool = False
    """Whether only a keyed digest of the name is stored, for example of an e-mail address. The same for all names of a kind."""


@dataclass(frozen=True)
class Release:
    """A release of a name; without effect if the aggregate does not hold it."""

    kind: str
    name: str
    private: bool = False
    """Value of `private` in the claim."""
