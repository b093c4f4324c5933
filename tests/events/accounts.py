"""The aggregate that most tests of event sourcing use: an account that is opened, paid into and drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headwater.events import Aggregate, Refused


@dataclass(frozen=True)
class Opened:
    owner: str


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass(frozen=True)
class Withdrawn:
    amount: int


@dataclass(frozen=True)
class Open:
    owner: str


@dataclass(frozen=True)
class Deposit:
    amount: int


@dataclass(frozen=True)
class Withdraw:
    amount: int


@dataclass(frozen=True)
class Touch:
    """Leads to nothing."""


@dataclass(frozen=True)
class Break:
    """Makes decide fail."""


@dataclass(frozen=True)
class Account:
    owner: str | None = None
    balance: int = 0


Command = Open | Deposit | Withdraw | Touch | Break
Event = Opened | Deposited | Withdrawn


def decide(account: Account, command: Command) -> Iterator[Event]:
    match command:
        case Open(owner):
            if account.owner is not None:
                raise Refused(f"it is {account.owner}'s already", owner=account.owner)
            yield Opened(owner)
        case Deposit(amount):
            yield Deposited(amount)
        case Withdraw(amount):
            if amount > account.balance:
                raise Refused(f"only {account.balance} is there", balance=account.balance)
            yield Withdrawn(amount)
        case Break():
            raise ZeroDivisionError("broken")


def fold(account: Account, event: Event) -> Account:
    match event:
        case Opened(owner):
            return replace(account, owner=owner)
        case Deposited(amount):
            return replace(account, balance=account.balance + amount)
        case Withdrawn(amount):
            return replace(account, balance=account.balance - amount)


accounts = Aggregate("account", decide, fold)
