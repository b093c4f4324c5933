"""Who may come in: tokens with a scope, of which the workspace keeps digests alone.

A token is 256 random bits, so that its SHA-256 cannot be gone through; it is shown once, when it is made. Tokens are entries of
the catalog: whoever can write the workspace's folder can make one, and every server of it knows them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from headwater.clock import from_us
from headwater.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from headwater.log.protocol import Log

TOKEN = "token"
"""The kind of the entries."""
PREFIX = "hw_"
"""By which a token that has got into a log or a repository is found."""
Scope = Literal["read", "write"]
SCOPES: tuple[Scope, ...] = ("read", "write")


@dataclass(frozen=True)
class Token:
    """A token as it is kept."""

    name: str
    digest: str
    scopes: tuple[Scope, ...]
    created_at: datetime


def create(log: Log, name: str, scopes: Sequence[Scope]) -> str:
    """Make a token; the only time that it is seen."""
    if not name or len(name) > 100 or any(not c.isprintable() for c in name):
        raise UsageError("a token has a name of 1 to 100 printable characters", hint="who is it for?")
    wanted = [scope for scope in SCOPES if scope in scopes]
    if not wanted:
        raise UsageError("a token is for reading, for writing, or for both")
    secret = PREFIX + secrets.token_urlsafe(32)
    document = {"sha256": _digest(secret), "scopes": wanted}
    try:
        log.put_entry(TOKEN, name, document, expect=None)
    except ConflictError:
        raise UsageError(
            f"there is a token {name!r} already", hint=f"headwater token revoke {name!r} ends it"
        ) from None
    return secret


def tokens(log: Log) -> list[Token]:
    """Every token, by name."""
    return [
        Token(
            entry.name,
            str(entry.document["sha256"]),
            tuple(scope for scope in SCOPES if scope in entry.document["scopes"]),
            from_us(entry.created_at),
        )
        for entry in log.entries(TOKEN).values()
    ]


def revoke(log: Log, name: str) -> None:
    """End a token."""
    known = [token.name for token in tokens(log)]
    if name not in known:
        raise UsageError(
            f"there is no token {name!r}", hint=f"there are {', '.join(known)}" if known else "there is none"
        )
    log.drop_entry(TOKEN, name)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()


class Guests:
    """The tokens as a server knows them; `refresh` looks again."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._guard = threading.Lock()
        self._tokens: tuple[Token, ...] = ()

    @property
    def expected(self) -> bool:
        """Whether a token is needed at all."""
        return bool(self._tokens)

    def refresh(self) -> None:
        """Read the tokens anew."""
        with self._guard:  # what is read later is newer
            self._tokens = tuple(tokens(self._log))

    def admit(self, secret: str) -> Token | None:
        """Whose token this is. Every one is compared, and each in full, so that the time taken says nothing."""
        digest, found = _digest(secret), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found
