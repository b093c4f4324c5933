"""Snapshots make loading fast, and nothing else: deleted, torn, or of other code, the events say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.events import Aggregate
from headwater.events.code_fingerprint import fingerprint_of
from headwater.events.snapshots import EVERY
from tests.events.accounts import Account, Deposit, Deposited, Withdraw, accounts, decide, fold
from tests.raising import raises


class Folds:
    """How many events were folded."""

    count = 0


FOLDS = Folds()


def counting(account: Account, event: Deposited) -> Account:
    FOLDS.count += 1
    return replace(account, balance=account.balance + event.amount)


counted = Aggregate("account", decide, counting, events=list(accounts.events.values()))


def fill(folder: Path, count: int) -> None:
    with hw.open(folder) as ws:
        store = ws.store(counted)
        store.execute_all([store.send("a", Deposit(1)) for _ in range(count)])


def loaded(folder: Path, aggregate: Any = counted) -> tuple[int, Account]:
    with hw.open(folder) as ws:
        store = ws.store(aggregate)
        FOLDS.count = 0
        state = store.load("a").state
        return FOLDS.count, state


def test_a_load_folds_what_came_after_the_snapshot_alone(tmp_path: Path) -> None:
    fill(tmp_path, 3 * EVERY)
    fill(tmp_path, 7)
    assert loaded(tmp_path) == (7, Account(balance=3 * EVERY + 7))


def test_deleting_them_changes_nothing_but_the_work(tmp_path: Path) -> None:
    fill(tmp_path, 2 * EVERY)
    with hw.open(tmp_path) as ws:
        ws.store(counted).snapshots.clear()
    assert loaded(tmp_path) == (2 * EVERY, Account(balance=2 * EVERY))
    assert loaded(tmp_path) == (0, Account(balance=2 * EVERY))  # a new snapshot was taken


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, None])
def test_a_torn_one_is_not_taken_up(tmp_path: Path, damage: bytes | None) -> None:
    fill(tmp_path, EVERY)
    (path,) = (tmp_path / "events").rglob("*.json")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2] if damage is None else damage)
    assert loaded(tmp_path) == (EVERY, Account(balance=EVERY))


def test_other_code_of_the_fold_makes_them_void(tmp_path: Path) -> None:
    def double(account: Account, event: Deposited) -> Account:
        FOLDS.count += 1
        return replace(account, balance=account.balance + 2 * event.amount)

    fill(tmp_path, EVERY)
    double.__annotations__.update(account=Account, event=Deposited)
    changed = Aggregate("account", decide, double, events=list(accounts.events.values()))
    assert loaded(tmp_path, changed) == (EVERY, Account(balance=2 * EVERY))
    bumped = Aggregate("account", decide, counting, events=list(accounts.events.values()), version=2)
    assert loaded(tmp_path, bumped) == (EVERY, Account(balance=EVERY))


def test_a_snapshot_of_another_topic_of_the_name_is_not_taken_up(tmp_path: Path) -> None:
    fill(tmp_path, EVERY)
    with hw.open(tmp_path) as ws:
        ws.sql("DROP TOPIC account")
    fill(tmp_path, 3)
    assert loaded(tmp_path) == (3, Account(balance=3))


def test_the_past_is_read_from_an_older_snapshot_or_from_the_beginning(tmp_path: Path) -> None:
    fill(tmp_path, EVERY)
    with hw.open(tmp_path) as ws:
        store = ws.store(counted)
        moment = store.load("a").at
        store.execute_all([store.send("a", Deposit(1)) for _ in range(2 * EVERY)])
        assert store.at("a", moment).state.balance == EVERY
        assert store.at("a", store.load("a").at).state.balance == 3 * EVERY


def test_a_state_that_json_does_not_hold_is_kept_in_no_file(tmp_path: Path) -> None:
    class Odd:
        def __init__(self, balance: int = 0) -> None:
            self.balance = balance

    def odd(state: Any, event: Any) -> Any:
        return Odd(state.balance + event.amount)

    aggregate = Aggregate("account", decide, odd, initial=Odd(), events=list(accounts.events.values()))
    aggregate.state_type = Odd
    with hw.open(tmp_path) as ws:
        store = ws.store(aggregate)
        store.execute_all([store.send("a", Deposit(1)) for _ in range(EVERY)])
        assert store.snapshots.why_not is not None
        assert store.load("a").state.balance == EVERY
    assert not list((tmp_path / "events").rglob("*.json"))


def test_a_refused_command_after_a_snapshot_sees_the_whole_state(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts)
        store.execute_all([store.send("a", Deposit(1)) for _ in range(EVERY)])
    with hw.open(tmp_path) as ws, raises(hw.CommandRefusedError, balance=EVERY):
        ws.store(accounts).execute("a", Withdraw(EVERY + 1))


def test_a_print_follows_what_a_function_names() -> None:
    space: dict[str, Any] = {"__name__": "program"}

    def compiled(text: str) -> str:
        space.clear()
        space["__name__"] = "program"
        exec(text, space)
        return fingerprint_of([space["f"]])

    base = compiled("K = 1\ndef g(x): return x + K\ndef f(x): return g(x)")
    assert (
        compiled("K = 1\ndef g(x):\n    '''Said.'''\n    return x + K\n\ndef f(x): return g(x)  # why")
        == base
    )
    assert compiled("K = 2\ndef g(x): return x + K\ndef f(x): return g(x)") != base
    assert compiled("K = 1\ndef g(x): return x - K\ndef f(x): return g(x)") != base
    assert fingerprint_of([fold]) != fingerprint_of([decide])

    @dataclass
    class A:
        n: int = 1

    @dataclass
    class B:
        n: int = 2

    B.__qualname__ = A.__qualname__
    assert fingerprint_of([A]) != fingerprint_of([B])
