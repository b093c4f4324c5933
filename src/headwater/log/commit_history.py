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
    now = f"has the id {found}" if found else "does not exist"
    raise OtherHistoryError(
        f"commit {token.number} of this workspace is not the commit {token.number} of {of}",
        detail=f"{of} names commit {token}, but that commit {now}: an older copy of the workspace was restored, and other "
        "commits have been made since",
        hint="what was written or read since that copy may no longer exist: read the current contents and start again from them",
        token=str(token),
        found=found or None,
    )


def token_of(log: Log, sequence: int) -> Token | None:
    """Return the number and id of a commit as a token; None if its id is not known."""
    found = log.commit_id(sequence)
    return Token(sequence, found) if found else None
