"""The bank of the examples: transfers arrive once or come back, and no money is made or lost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from examples.events import bank
from examples.events.bank import Account, Close, Deposit, Open, Transfer, account, reactions, settle
from headwater.events.reactions import EventFeed
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def opened(ws: hw.Workspace) -> bank.Accounts:
    accounts = ws.store(account)
    for owner in ("ada", "bob", "cyd"):
        accounts.execute(owner, Open(owner))
    accounts.execute("ada", Deposit(100))
    return accounts


def test_a_transfer_arrives_once(ws: hw.Workspace) -> None:
    accounts = opened(ws)
    for _ in range(2):
        accounts.execute("ada", Transfer("t1", "bob", 30), command_id="t1")
        settle(ws, accounts)
    assert accounts.load("ada").state == Account("ada", 70)
    assert accounts.load("bob").state == Account("bob", 30)
    arrived = accounts.events("bob")[-1]
    assert arrived.causation_id == "account/ada/3"
    assert arrived.correlation_id == "t1"


def test_a_closed_or_unknown_account_declines_and_the_money_comes_back(ws: hw.Workspace) -> None:
    accounts = opened(ws)
    accounts.execute("cyd", Close())
    accounts.execute("ada", Transfer("t1", "cyd", 30))
    accounts.execute("ada", Transfer("t2", "nobody", 20))
    settle(ws, accounts)
    assert accounts.load("ada").state.balance == 100


def test_a_crash_between_the_two_steps_changes_nothing(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = opened(ws)
    accounts.execute("ada", Transfer("t1", "bob", 30))
    with monkeypatch.context() as dying:
        dying.setattr(EventFeed, "advance", lambda *_: (_ for _ in ()).throw(hw.StorageError("gone")))
        with pytest.raises(hw.StorageError):
            reactions(ws, accounts)[0].run()
    settle(ws, accounts)
    assert accounts.load("bob").state.balance == 30


def test_what_is_not_there_cannot_be_sent(ws: hw.Workspace) -> None:
    accounts = opened(ws)
    with raises(hw.CommandRefusedError, balance=100, amount=101):
        accounts.execute("ada", Transfer("t1", "bob", 101))
    with raises(hw.CommandRefusedError, closed=False):
        accounts.execute("nobody", Deposit(1))
    with raises(hw.CommandRefusedError, balance=100, amount=None):
        accounts.execute("ada", Close())


def test_the_view_of_balances_is_what_the_accounts_say(tmp_path: Path, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark) as ws:
        accounts = opened(ws)
        accounts.execute("ada", Transfer("t1", "bob", 30))
        settle(ws, accounts)
        ws.sql(bank.BALANCES)
        ws.run()
        rows = ws.query("SELECT * FROM balances ORDER BY account").to_pylist()
        assert {row["account"]: row["balance"] for row in rows} == {
            one: accounts.load(one).state.balance for one in ("ada", "bob", "cyd")
        }


def test_the_story_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    bank.main()
    said = capsys.readouterr().out
    assert "ada Account(owner='ada', balance=70, closed=False)" in said
    assert "TransferReturned" in said
