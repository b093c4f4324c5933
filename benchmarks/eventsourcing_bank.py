"""The account of `examples/events/bank.py` as the package `eventsourcing` has it, on SQLite, with its cache of aggregates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError


class Account(Aggregate):
    """An account."""

    @event("Opened")
    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.balance = 0

    @event("Deposited")
    def deposit(self, amount: int) -> None:
        """Pay in."""
        self.balance += amount


class Bank(Application):
    """Accounts, with snapshots."""

    is_snapshotting_enabled = True


class EventsourcingBank:
    """A bank in a file."""

    def __init__(self, file: Path, accounts: int) -> None:
        self._app = Bank(
            env={
                "PERSISTENCE_MODULE": "eventsourcing.sqlite",
                "SQLITE_DBNAME": str(file),
                "SQLITE_LOCK_TIMEOUT": "60",
                "AGGREGATE_CACHE_MAXSIZE": "10000",
            }
        )
        opened = [Account("ada") for _ in range(accounts)]
        self._app.save(*opened)
        self._ids = {str(number): one.id for number, one in enumerate(opened)}

    def deposit(self, name: str) -> None:
        """Execute a command; one that lost a race is tried again."""
        while True:
            account: Any = self._app.repository.get(self._ids[name])
            account.deposit(1)
            try:
                self._app.save(account)
            except IntegrityError:
                continue
            return

    def fill(self, name: str, events: int) -> None:
        """An account with many events."""
        account = Account("ada")
        for _ in range(events - 1):
            account.deposit(1)
        self._app.save(account)
        self._ids[name] = account.id

    def load(self, name: str) -> Any:
        """An account as it is now."""
        return self._app.repository.get(self._ids[name])

    def snapshot(self, name: str) -> None:
        """Take a snapshot."""
        self._app.take_snapshot(self._ids[name])

    def forget(self) -> None:
        """Drop what is in memory."""
        cache: Any = self._app.repository.cache
        cache.cache.clear()

    def close(self) -> None:
        """Close the database."""
        self._app.close()
