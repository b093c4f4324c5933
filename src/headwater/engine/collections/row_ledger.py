"""Row accounting: for each topic of a view, how many rows it has read and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

ACCOUNT = ("read", "used", "diverted", "dropped", "failed")
Ledger = Mapping[str, Mapping[str, int]]
"""By topic, counts of the rows that a view has read, and of those that it has not used, by reason."""


def added(ledger: Ledger, more: Ledger) -> Ledger:
    """Return the sum of two ledgers."""
    return {
        topic: {
            what: ledger.get(topic, {}).get(what, 0) + more.get(topic, {}).get(what, 0)
            for what in dict.fromkeys((*ledger.get(topic, {}), *more.get(topic, {})))
        }
        for topic in dict.fromkeys((*ledger, *more))
    }


def total(accounts: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    """Return the sum of the accounts of all topics."""
    return {what: sum(account[what] for account in accounts.values()) for what in ACCOUNT}


def balanced(ledger: Ledger, topics: Iterable[str] = ()) -> dict[str, dict[str, int]]:
    """Return a full account by topic: every row that was read was used, diverted or dropped as late, or has failed."""
    accounts = {}
    for topic in dict.fromkeys((*topics, *ledger)):
        counted = ledger.get(topic, {})
        left_out = {what: counted.get(what, 0) for what in ("diverted", "dropped", "failed")}
        read = counted.get("read", 0)
        accounts[topic] = {"read": read, "used": read - sum(left_out.values()), **left_out}
    return accounts
