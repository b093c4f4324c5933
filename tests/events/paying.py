"""A service that tests call: whoever pays gets to know the balance."""

from __future__ import annotations

from dataclasses import dataclass

import headwater as hw
from headwater.events import Call, Service
from tests.events.accounts import Deposit, accounts


@dataclass(frozen=True)
class Pay:
    account: str
    amount: int


@dataclass(frozen=True)
class Paid:
    balance: int
    version: int


def serving(ws: hw.Workspace) -> Service:
    store = ws.store(accounts)

    @ws.serve("pay")
    def pay(request: Pay, call: Call) -> Paid:
        if request.amount < 0:
            raise hw.CommandRefusedError("an amount is positive")
        if request.amount == 0:
            raise ZeroDivisionError("nothing")
        done = store.execute(request.account, Deposit(request.amount), command_id=call.id)
        return Paid(store.load(request.account).state.balance, done.version)

    return pay
