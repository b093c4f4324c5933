"""Access tokens with a scope, of which the workspace stores only digests.

A token is 256 random bits, so that its SHA-256 cannot be reversed by brute force; it is printed once, when it is
created. Tokens are catalog entries: any process that can write the workspace's folder can create one, and all servers
of the workspace accept it. Another entry records that the workspace has had a token: with none left it stays closed.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from headwater.core.clock import from_us
from headwater.core.errors import ConflictError, HeadwaterError, UsageError

if TYPE_CHECKING:
    from headwater.log.protocol import Log

TOKEN = "token"
"""Kind of the catalog entries of tokens."""
PREFIX = "hw_"
"""Prefix of tokens, by which one that leaked into a log or a repository is found."""
CLOSED = "tokens"
"""Kind of the catalog entry that records that there has been a token. No operation removes it."""
_NEEDED = "needed"
OPENING = "headwater token create NAME --read --write creates a token; headwater serve --insecure allows access without one"
"""How to open a workspace that is closed and has no token left."""
Scope = Literal["read", "write"]
SCOPES: tuple[Scope, ...] = ("read", "write")

_logger = logging.getLogger("headwater.web")


@dataclass(frozen=True)
class AccessToken:
    """A token as it is stored."""

    name: str
    digest: str
    scopes: tuple[Scope, ...]
    created_at: datetime


def create(log: Log, name: str, scopes: Sequence[Scope]) -> str:
    """Create a token and return it; it is never shown again."""
    if not name or len(name) > 100 or any(not c.isprintable() for c in name):
        raise UsageError(
            "a token has a name of 1 to 100 printable characters", hint="name the program that uses it"
        )
    wanted = [scope for scope in SCOPES if scope in scopes]
    if not wanted:
        raise UsageError("a token needs a scope: read, write, or both", reason="no-scope")
    secret = PREFIX + secrets.token_urlsafe(32)
    document = {"sha256": _digest(secret), "scopes": wanted}
    close(log)  # before the token: a crash in between leaves the workspace closed
    try:
        log.put_entry(TOKEN, name, document, expect=None)
    except ConflictError:
        raise UsageError(
            f"token {name!r} already exists", hint=f"headwater token revoke {name!r} revokes it", token=name
        ) from None
    return secret


def tokens(log: Log) -> list[AccessToken]:
    """Return every token, by name."""
    return [
        AccessToken(
            entry.name,
            str(entry.document["sha256"]),
            tuple(scope for scope in SCOPES if scope in entry.document["scopes"]),
            from_us(entry.created_at),
        )
        for entry in log.entries(TOKEN).values()
    ]


def revoke(log: Log, name: str) -> None:
    """Revoke a token."""
    known = [token.name for token in tokens(log)]
    if name not in known:
        raise UsageError(
            f"there is no token {name!r}",
            hint=f"the tokens are {', '.join(known)}" if known else "there are no tokens",
            token=name,
        )
    close(log)  # an earlier version, which did not record this, may have created the token
    log.drop_entry(TOKEN, name)


def is_closed(log: Log) -> bool:
    """Whether the workspace has or had a token, so that requests need one."""
    return bool(log.entries(CLOSED) or log.entries(TOKEN))


def close(log: Log) -> None:
    """Record durably that the workspace has had a token."""
    if not log.entries(CLOSED):
        with suppress(ConflictError):  # another process was first
            log.put_entry(CLOSED, _NEEDED, {}, expect=None)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8")).hexdigest()


class Guests:
    """The tokens as a server has last read them; `refresh` reads them again."""

    def __init__(self, log: Log, *, insecure: bool = False) -> None:
        """`insecure`: accept all requests when no token is left."""
        self._log = log
        self._insecure = insecure
        self._guard = threading.Lock()
        self._tokens: tuple[AccessToken, ...] = ()
        self._closed = False

    @property
    def has_tokens(self) -> bool:
        """Whether there is a token."""
        return bool(self._tokens)

    @property
    def expected(self) -> bool:
        """Whether a request needs a token, even if none exists."""
        return bool(self._tokens) or (self._closed and not self._insecure)

    def may_stay(self, digest: str) -> bool:
        """Whether a client admitted by the token of this digest, or without one (''), would still be admitted."""
        return not self.expected or any(token.digest == digest for token in self._tokens)

    def refresh(self) -> None:
        """Read the tokens again. If an earlier version created them, record that the workspace has tokens."""
        with self._guard:  # a later read must not be overwritten by an earlier one
            found = tuple(tokens(self._log))
            remembered = bool(self._log.entries(CLOSED))
            self._closed = self._closed or remembered or bool(found)
            self._tokens = found
            if found and not remembered:
                try:
                    close(self._log)
                except (HeadwaterError, OSError) as error:  # the next refresh tries again
                    _logger.warning("that the workspace has tokens could not be recorded yet: %s", error)

    def admit(self, secret: str) -> AccessToken | None:
        """Return the token with this secret, or None. All tokens are compared in full, so that the time taken reveals
        nothing."""
        digest, found = _digest(secret), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found
