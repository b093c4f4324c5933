"""Checks that a commit number from outside names a commit of this log, and not one of another history.

A workspace that was restored from an older copy assigns commit numbers again that it had assigned before. Whatever stores a
commit number (a receipt, a client's position, a Spark checkpoint) stores the commit's id with it, and this module compares it.
"""

from __future__ import annotations

from headwater.core.errors import OtherHistoryError
from headwater.core.positions import Token
from headwater.log.protocol import Log


def check_commit(log: Log, token: Token | None, of: str = "the receipt") -> None:
    """Raise OtherHistoryError if the commit of `token` is not, or no longer, part of the log.

    `of` names the holder of the token in the error message. Without a token, or if an id is not known, the check passes.
    """
    if token is None or not token.differs(found := log.commit_id(token.number)):
        return
    now = f"the id {found}" if found else "not been made yet"
    raise OtherHistoryError(
        f"commit {token.number} of this workspace is not the commit {token.number} that {of} is of",
        detail=f"{of} says {token}, and that commit has {now}: an older copy of the workspace was put back, and has gone "
        "on in another way",
        hint="what was written or read before that may be gone: look at what is there now, and begin anew from it",
        token=str(token),
        found=found or None,
    )


def token_of(log: Log, sequence: int) -> Token | None:
    """Return the number and id of a commit as a token; None if its id is not known."""
    found = log.commit_id(sequence)
    return Token(sequence, found) if found else None
