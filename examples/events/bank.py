"""A bank: accounts, and transfers between them that arrive once or come back, whatever dies in between.

    python examples/events/bank.py

A transfer is two steps on two accounts. The first is an event of the sender; a reaction takes it to the receiver, under an id that
follows from that event, so a crash in between repeats it without a second effect. An account that is closed declines, which is an
event too, and a second reaction brings the money back. At every moment the money is on an account or on its way.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace

import headwater as hw
from headwater.events import Aggregate, Reaction, Recorded, Refused, Send, Store


@dataclass(frozen=True)
class Opened:
    owner: str


@dataclass(frozen=True)
class Deposited:
    amount: int


@dataclass(frozen=True)
class TransferSent:
    transfer: str
    to: str
    amount: int


@dataclass(frozen=True)
class TransferReceived:
    transfer: str
    sender: str
    amount: int


@dataclass(frozen=True)
class TransferDeclined:
    transfer: str
    sender: str
    declined: int


@dataclass(frozen=True)
class TransferReturned:
    transfer: str
    amount: int


@dataclass(frozen=True)
class Closed:
    pass


@dataclass(frozen=True)
class Open:
    owner: str


@dataclass(frozen=True)
class Deposit:
    amount: int


@dataclass(frozen=True)
class Transfer:
    transfer: str
    to: str
    amount: int


@dataclass(frozen=True)
class Receive:
    transfer: str
    sender: str
    amount: int


@dataclass(frozen=True)
class TakeBack:
    transfer: str
    amount: int


@dataclass(frozen=True)
class Close:
    pass


@dataclass(frozen=True)
class Account:
    owner: str | None = None
    balance: int = 0
    closed: bool = False

    @property
    def usable(self) -> bool:
        return self.owner is not None and not self.closed


Command = Open | Deposit | Transfer | Receive | TakeBack | Close
Event = Opened | Deposited | TransferSent | TransferReceived | TransferDeclined | TransferReturned | Closed


def decide(account: Account, command: Command) -> Iterator[Event]:
    match command:
        case Open(owner):
            if account.owner is not None:
                raise Refused(f"the account belongs to {account.owner}", owner=account.owner)
            yield Opened(owner)
        case Receive(transfer, sender, amount):
            if account.usable:
                yield TransferReceived(transfer, sender, amount)
            else:
                yield TransferDeclined(transfer, sender, amount)
        case TakeBack(transfer, amount):
            yield TransferReturned(transfer, amount)
        case _ if not account.usable:
            raise Refused("the account does not exist, or is closed", closed=account.closed)
        case Deposit(amount):
            yield Deposited(amount)
        case Transfer(transfer, to, amount):
            if amount > account.balance:
                raise Refused(
                    f"the balance is only {account.balance}", balance=account.balance, amount=amount
                )
            yield TransferSent(transfer, to, amount)
        case Close():
            if account.balance:
                raise Refused(f"the balance is still {account.balance}", balance=account.balance)
            yield Closed()


def fold(account: Account, event: Event) -> Account:
    match event:
        case Opened(owner):
            return replace(account, owner=owner)
        case Deposited(amount) | TransferReceived(amount=amount) | TransferReturned(amount=amount):
            return replace(account, balance=account.balance + amount)
        case TransferSent(amount=amount):
            return replace(account, balance=account.balance - amount)
        case Closed():
            return replace(account, closed=True)
        case TransferDeclined():
            return account


account = Aggregate("account", decide, fold)
Accounts = Store[Account, Command, Event]

BALANCES = """
    CREATE MATERIALIZED VIEW IF NOT EXISTS balances AS
    SELECT aggregate_id AS account,
           sum(CASE WHEN event IN ('Deposited', 'TransferReceived', 'TransferReturned') THEN amount
                    WHEN event = 'TransferSent' THEN -amount ELSE 0 END) AS balance
    FROM account GROUP BY aggregate_id
"""


def reactions(ws: hw.Workspace, accounts: Accounts) -> list[Reaction]:
    """What takes money to where it goes, and back from where it is declined."""

    @ws.reaction("deliver transfers", accounts)
    def deliver(event: TransferSent, recorded: Recorded[TransferSent]) -> Send[Command]:
        return accounts.send(event.to, Receive(event.transfer, recorded.aggregate_id, event.amount))

    @ws.reaction("return transfers", accounts)
    def bring_back(event: TransferDeclined, recorded: Recorded[TransferDeclined]) -> Send[Command]:
        return accounts.send(event.sender, TakeBack(event.transfer, event.declined), reason="declined")

    return [deliver, bring_back]


def settle(ws: hw.Workspace, accounts: Accounts) -> None:
    """Let reactions run until there is nothing left to do. A service would `start()` them instead."""
    while any(reaction.run().issued for reaction in reactions(ws, accounts)):
        pass


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder, hw.open(folder) as ws:
        accounts = ws.store(account)
        for owner in ("ada", "bob", "cyd"):
            accounts.execute(owner, Open(owner))
        accounts.execute("ada", Deposit(100), actor="teller 3")
        accounts.execute("cyd", Close())
        for to, amount in (("bob", 30), ("cyd", 20)):
            accounts.execute(
                "ada", Transfer(f"ada to {to}", to, amount), actor="ada", command_id=f"ada to {to}"
            )
        accounts.execute(
            "ada", Transfer("ada to bob", "bob", 30), command_id="ada to bob"
        )  # sent twice, done once
        settle(ws, accounts)
        for one in ("ada", "bob", "cyd"):
            print(one, accounts.load(one).state)
        print(accounts.history("ada"))


if __name__ == "__main__":
    main()
