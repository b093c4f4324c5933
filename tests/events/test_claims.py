"""A name is one aggregate's at most: claimed in the commit of the events, let go, or lapsed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.events import Aggregate, Claim, Release
from tests.raising import raises


@dataclass(frozen=True)
class Registered:
    name: str


@dataclass(frozen=True)
class Left:
    name: str


@dataclass(frozen=True)
class Register:
    name: str
    until: datetime | None = None


@dataclass(frozen=True)
class Leave:
    pass


@dataclass(frozen=True)
class Swap:
    """Takes one name and lets another go."""

    name: str


@dataclass(frozen=True)
class User:
    name: str | None = None


def decide(user: User, command: Register | Leave | Swap) -> Iterator[Registered | Left | Claim | Release]:
    match command:
        case Register(name, until):
            yield Registered(name)
            yield Claim("user name", name, until)
        case Leave() if user.name:
            yield Left(user.name)
            yield Release("user name", user.name)
        case Swap(name) if user.name:
            yield Registered(name)
            yield Release("user name", user.name)
            yield Claim("user name", name)


def fold(user: User, event: Registered | Left) -> User:
    return User(event.name if isinstance(event, Registered) else None)


users = Aggregate("user", decide, fold)


def test_a_name_is_taken_once_and_again_when_it_was_released(ws: hw.Workspace) -> None:
    store = ws.store(users)
    store.execute("1", Register("ada"))
    with raises(hw.ClaimTakenError, kind="user name", name="ada", holder="user/1", until=None):
        store.execute("2", Register("ada"), command_id="x")
    assert "2" not in store
    store.execute("1", Leave())
    store.execute("2", Register("ada"))
    with pytest.raises(hw.ClaimTakenError):  # what was answered stays answered
        store.execute("2", Register("ada"), command_id="x")
    store.execute("2", Swap("bea"))
    store.execute("1", Register("ada"))
    with pytest.raises(hw.ClaimTakenError):
        store.execute("1", Swap("bea"))
    assert store.load("1").state.name == "ada"


def test_of_one_group_the_first_has_the_name(ws: hw.Workspace) -> None:
    store = ws.store(users)
    sends = [store.send(str(n), Register("ada")) for n in range(5)]
    done = store.execute_all([*sends, store.send("0", Leave()), store.send("3", Register("ada"))])
    assert [isinstance(one, hw.ClaimTakenError) for one in done] == [
        False,
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert store.load("3").state.name == "ada"


def test_to_claim_again_what_one_holds_changes_nothing(ws: hw.Workspace) -> None:
    store = ws.store(users)
    store.execute("1", Register("ada"))
    store.execute("1", Register("ada"))
    assert ws.log.partitions("_claims")[0].rows == 1


def test_a_tentative_claim_lapses_and_another_takes_it(ws: hw.Workspace, clock: ManualClock) -> None:
    store = ws.store(users)
    until = from_us(clock.now_us()) + timedelta(minutes=10)
    store.execute("1", Register("ada", until))
    with raises(hw.ClaimTakenError, name="ada", until=until.isoformat()):
        store.execute("2", Register("ada"))
    clock.advance("10 minutes")
    store.execute("2", Register("ada"))
    with pytest.raises(hw.ClaimTakenError):
        store.execute("1", Register("ada"))


def test_of_processes_that_want_the_same_name_one_gets_it(tmp_path: Path) -> None:
    wanted = [f"name {n}" for n in range(20)]
    won: list[str] = []

    def work(number: int) -> None:
        with hw.open(tmp_path) as ws:
            store = ws.store(users)
            for name in wanted:
                try:
                    store.execute(f"{number} {name}", Register(name))
                except hw.ClaimTakenError:
                    continue
                won.append(name)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == sorted(wanted)
    with hw.open(tmp_path) as ws:
        assert ws.log.partitions("user")[0].rows == ws.log.partitions("_claims")[0].rows == len(wanted)


def test_an_invalid_claim_is_refused(ws: hw.Workspace) -> None:
    store = ws.store(users)
    with raises(hw.UsageError, reason="invalid-claim"):
        store.execute("1", Register(7))  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="until", value="soon"):
        store.execute("1", Register("ada", "soon"))  # type: ignore[arg-type]
    assert "1" not in store
