"""Whether a commit that somebody names is the one that this log has under its number, and not one of another history.

An older copy of a workspace that is put back goes on with the numbers that were given before. What holds a number from then
(a receipt, a position of a client, a checkpoint of Spark) holds the id of the commit with it, and it is compared here.
"""

from __future__ import annotations

from headwater.core.errors import OtherHistoryError
from headwater.core.positions import Token
from headwater.log.protocol import Log


def check_commit(log: Log, token: Token | None, of: str = "the receipt") -> None:
    """OtherHistoryError if a commit is not, or no longer, part of the log; `of` is what names it."""
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
    """What names a commit; None if its id is not known."""
    found = log.commit_id(sequence)
    return Token(sequence, found) if found else None
