"""Commands have one effect each, on the aggregate as it is, whoever sends them and however often."""

from __future__ import annotations

import asyncio
import enum
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.events import command_loop
from headwater.events.aggregate_store import Store
from tests.events.accounts import (
    Account,
    Break,
    Command,
    Deposit,
    Deposited,
    Event,
    Open,
    Opened,
    Touch,
    Withdraw,
    Withdrawn,
    accounts,
)
from tests.raising import raises


class Color(enum.Enum):
    RED = "red"


@dataclass(frozen=True)
class Paint:
    color: Color


@dataclass(frozen=True)
class Painted:
    color: Color


def paint(colors: tuple[Color, ...], command: Paint) -> Painted:
    return Painted(command.color)


def painted(colors: tuple[Color, ...], event: Painted) -> tuple[Color, ...]:
    return (*colors, event.color)


paints = hw.Aggregate("paint", paint, painted, initial=())
ROOT = Path(__file__).resolve().parents[2]
Accounts = Store[Account, Command, Event]


@pytest.fixture(params=["memory", "folder", "four partitions"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Accounts]:
    with hw.open("memory:" if request.param == "memory" else tmp_path) as ws:
        yield ws.store(accounts, partitions=4 if request.param == "four partitions" else None)


def test_a_command_leads_to_events_and_they_to_a_state(store: Accounts) -> None:
    store.execute("a", Open("ada"))
    outcome = store.execute("a", Deposit(5))
    assert (outcome.version, outcome.events, outcome.repeated) == (2, (Deposited(5),), False)
    store.execute("b", Deposit(7))
    assert store.load("a").state == Account("ada", 5)
    assert store.load("b").version == 1
    assert "a" in store
    assert "c" not in store


def test_a_refused_command_changes_nothing_and_says_why(store: Accounts) -> None:
    store.execute("a", Deposit(5))
    with raises(hw.CommandRefusedError, balance=5):
        store.execute("a", Withdraw(6))
    assert store.load("a").version == 1


def test_the_same_id_has_one_effect_and_gets_the_same_answer(store: Accounts) -> None:
    first = store.execute("a", Deposit(5), command_id="pay day")
    again = store.execute("a", Deposit(5), command_id="pay day")
    assert again == first
    assert again.repeated
    assert store.load("a").state.balance == 5
    assert (
        store.execute("b", Deposit(5), command_id="pay day").aggregate_id == "b"
    )  # an id is of an aggregate
    with raises(hw.CommandIdUsedError, aggregate_id="a", command_id="pay day"):
        store.execute("a", Deposit(6), command_id="pay day")


def test_a_refusal_and_an_answer_without_events_stay_what_they_were(store: Accounts) -> None:
    with raises(hw.CommandRefusedError, balance=0) as first:
        store.execute("a", Withdraw(5), command_id="too early")
    nothing = store.execute("a", Touch(), command_id="nothing")
    store.execute("a", Deposit(50))
    with raises(hw.CommandRefusedError, balance=0) as refused:
        store.execute("a", Withdraw(5), command_id="too early")
    assert str(refused.value) == str(first.value)
    assert store.execute("a", Touch(), command_id="nothing") == nothing
    assert store.load("a").state.balance == 50


def test_answers_survive_the_process(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        first = ws.store(accounts).execute("a", Deposit(5), command_id="1")
        with pytest.raises(hw.CommandRefusedError):
            ws.store(accounts).execute("a", Withdraw(9), command_id="2")
    script = (
        "import headwater as hw, sys\n"
        "from tests.events.accounts import *\n"
        f"with hw.open({str(tmp_path)!r}) as ws:\n"
        "    store = ws.store(accounts)\n"
        "    store.execute('a', Deposit(90))\n"
        "    again = store.execute('a', Deposit(5), command_id='1')\n"
        "    try: store.execute('a', Withdraw(9), command_id='2')\n"
        "    except hw.CommandRefusedError as error: print(again.version, again.repeated, error.message)\n"
        "    assert not any(name.split('.')[0] in ('pyspark', 'py4j', 'pandas') for name in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == f"{first.version} True only 5 is there", done.stderr


def test_a_command_twice_in_one_group_is_done_once(store: Accounts) -> None:
    sends = [store.send("a", Deposit(5), command_id="x") for _ in range(3)]
    sends += [store.send("a", Withdraw(9), command_id="y") for _ in range(2)]
    *paid, one, two = store.execute_all(sends)
    assert [outcome.repeated for outcome in paid if isinstance(outcome, hw.events.Outcome)] == [
        False,
        True,
        True,
    ]
    assert isinstance(one, hw.CommandRefusedError)
    assert isinstance(two, hw.CommandRefusedError)
    assert store.load("a").version == 1


def test_commands_of_one_group_see_each_other(store: Accounts) -> None:
    sends = [
        store.send("a", Deposit(3)),
        store.send("a", Withdraw(2)),
        store.send("a", Withdraw(2)),
        store.send("a", Deposit(1)),
    ]
    done = store.execute_all(sends)
    assert [getattr(outcome, "version", None) for outcome in done] == [1, 2, None, 3]
    assert store.load("a").state.balance == 2


def test_the_loser_of_a_race_decides_again_on_the_new_state(tmp_path: Path) -> None:
    with hw.open(tmp_path) as one, hw.open(tmp_path) as two:
        mine, yours = one.store(accounts), two.store(accounts)
        mine.execute("a", Deposit(5))
        append, raced = two.log.append, threading.Event()

        def late(what: object) -> object:
            if not raced.is_set():
                raced.set()
                mine.execute("a", Withdraw(4))
            return append(what)

        two.log.append = late  # type: ignore[method-assign]
        with raises(hw.CommandRefusedError, balance=1):
            yours.execute("a", Withdraw(4), command_id="late")
        assert yours.load("a").state.balance == 1


def test_a_command_that_always_loses_fails_after_a_bounded_number_of_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_loop, "ATTEMPTS_MAX", 3)
    monkeypatch.setattr(command_loop, "CONFLICT_WAIT_MS", 1.0)
    with hw.open(tmp_path) as one, hw.open(tmp_path) as two:
        mine, yours = one.store(accounts), two.store(accounts)
        append = two.log.append

        def late(what: object) -> object:
            mine.execute("a", Deposit(1))
            return append(what)

        two.log.append = late  # type: ignore[method-assign]
        with raises(hw.ConflictError, attempts=3):
            yours.execute("a", Deposit(100))
        assert mine.load("a").state.balance == 3


def test_a_version_that_is_named_must_be_the_current_one(store: Accounts) -> None:
    store.execute("a", Deposit(5))
    store.execute("a", Deposit(5), version=1)
    with raises(hw.ConflictError, aggregate_id="a", expected=1, actual=2):
        store.execute("a", Deposit(5), version=1)


def test_threads_share_commits(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts)
        before = ws.log.sequence()

        def work(number: int) -> None:
            for _ in range(10):
                store.execute(f"a{number % 3}", Deposit(1))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(store.load(f"a{n}").state.balance for n in range(3)) == 200
        assert ws.log.sequence() - before < 200


def test_event_loops_share_commits_with_threads(store: Accounts) -> None:
    async def main() -> list[int]:
        jobs = [store.execute_async("a", Deposit(1), command_id=str(n % 50)) for n in range(100)]
        jobs.append(store.execute_async("a", Withdraw(1_000)))
        *done, refused = await asyncio.gather(*jobs, return_exceptions=True)
        assert isinstance(refused, hw.CommandRefusedError)
        assert (await store.load_async("a")).state.balance == 50
        return [outcome.version for outcome in done if isinstance(outcome, hw.events.Outcome)]

    assert sorted(set(asyncio.run(main()))) == list(range(1, 51))


def test_the_past_and_how_it_came_about(tmp_path: Path) -> None:
    clock = ManualClock()
    with hw.open(tmp_path, clock=clock) as ws:
        store = ws.store(accounts)
        store.execute("a", Open("ada"), actor="desk 4", reason="new customer")
        clock.advance("1 day")
        store.execute("a", Deposit(5), correlation_id="salaries", causation_id="mail 17", command_id="c")
        now = from_us(clock.now_us())
        assert store.at("a", now - timedelta(hours=1)).state == Account("ada", 0)
        assert store.at("a", now).state == Account("ada", 5)
        with raises(hw.AggregateNotFoundError, aggregate_id="a", at=now - timedelta(days=2)):
            store.at("a", now - timedelta(days=2))
        first, second = store.history("a")
        assert (first.recorded.actor, first.recorded.reason) == ("desk 4", "new customer")
        assert (second.recorded.correlation_id, second.recorded.causation_id) == ("salaries", "mail 17")
        assert (second.recorded.command, second.recorded.command_id) == ("Deposit", "c")
        assert second.recorded.id == "account/a/2"
        assert (first.state, second.state) == (Account("ada", 0), Account("ada", 5))
        assert second.recorded.at == now
        assert asyncio.run(store.history_async("a")) == store.history("a")
        assert asyncio.run(store.at_async("a", now)) == store.at("a", now)
        text = str(store.history("a"))
        assert "Opened(owner='ada')  (Open " in text
        assert "by desk 4, because new customer" in text


def test_events_are_rows_that_sql_reads_like_any_others(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        store = ws.store(accounts)
        store.execute("a", Open("ada"), actor="desk")
        receipt = store.execute("a", Deposit(5)).receipt
        rows = [row for batch in ws.topic("account").read() for row in batch.to_pylist()]
        assert [(row["event"], row["owner"], row["amount"]) for row in rows] == [
            ("Opened", "ada", None),
            ("Deposited", None, 5),
        ]
        assert rows[0]["meta"]["actor"] == "desk"
        assert receipt.positions == {"account": {0: (1, 2)}}


@pytest.mark.parametrize("bad", ["", None, 7, "x" * 501, "\ud800"])
def test_an_invalid_id_is_refused(store: Accounts, bad: object) -> None:
    with raises(hw.UsageError, argument="aggregate_id", value=bad):
        store.execute(bad, Deposit(1))  # type: ignore[arg-type]
    if bad is not None:
        with raises(hw.UsageError, argument="command_id", value=bad):
            store.execute("a", Deposit(1), command_id=bad)  # type: ignore[arg-type]


def test_bad_input_is_reported_and_changes_nothing(store: Accounts) -> None:
    store.execute("a", Deposit(5))
    with raises(hw.AggregateNotFoundError, topic="account", aggregate_id="nobody"):
        store.load("nobody")
    with pytest.raises(hw.AggregateNotFoundError):
        store.history("nobody")
    with raises(hw.UsageError, aggregate="account", command="Deposit"):
        store.execute("a", "Deposit")  # type: ignore[arg-type]
    with raises(hw.UsageError, reason="context-not-text"):
        store.execute("a", Deposit(1), actor=7)  # type: ignore[arg-type]
    with raises(hw.BadRowError, column="amount", aggregate_id="a", command=Deposit("much")):  # type: ignore[arg-type]
        store.execute("a", Deposit("much"), command_id="typed")  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="version", value="1"):
        store.execute("a", Deposit(1), version="1")  # type: ignore[arg-type]
    with raises(hw.UsageError, reason="not-a-send", value=Deposit(1)):
        store.execute_all([Deposit(1)])  # type: ignore[list-item]
    with raises(hw.EventCodeError, function="decide", owner="account", input="command Break()") as failed:
        store.execute("a", Break())
    assert isinstance(failed.value.__cause__, ZeroDivisionError)
    with raises(hw.UsageError, argument="when", value="yesterday"):
        store.at("a", "yesterday")  # type: ignore[arg-type]
    assert store.load("a") == store.at("a", datetime.now(UTC) + timedelta(days=1))
    assert store.load("a").version == 1


def test_one_bad_event_of_a_group_is_refused_by_itself(store: Accounts) -> None:
    sends = [store.send("a", Deposit(1)), store.send("a", Deposit(2**70)), store.send("b", Deposit(2))]
    one, bad, two = store.execute_all(sends)
    assert isinstance(bad, hw.BadRowError)
    assert isinstance(one, hw.events.Outcome)
    assert isinstance(two, hw.events.Outcome)
    assert (store.load("a").version, store.load("b").version) == (1, 1)


def test_an_aggregate_is_tested_without_a_store() -> None:
    state = accounts.replay([Opened("ada"), Deposited(9), Withdrawn(4)])
    assert state == Account("ada", 5)
    assert accounts.decide(state, Withdraw(5)).events == (Withdrawn(5),)
    with pytest.raises(hw.CommandRefusedError):
        accounts.decide(state, Withdraw(6))


def test_a_value_that_has_no_form_in_a_row_is_reported_to_its_command_alone(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        store = ws.store(paints)
        good, bad = store.execute_all([store.send("a", Paint(Color.RED)), store.send("a", Paint("mauve"))])  # type: ignore[arg-type]
        assert isinstance(good, hw.events.Outcome)
        assert isinstance(bad, hw.UsageError)
        assert bad.reason == "wrong-type"
        assert store.load("a").state == (Color.RED,)


@pytest.mark.parametrize("name", hw.events.__all__)
def test_every_export_of_the_station_resolves(name: str) -> None:
    assert getattr(hw.events, name) is not None
    assert name in dir(hw.events)


def test_a_text_that_no_column_holds_is_reported_to_its_command_alone(store: Accounts) -> None:
    odd = store.send("a", Withdraw(9), command_id="w")
    sends = [store.send("a", Deposit(1), command_id="d"), replace(odd, command=Open("\ud800")), odd]
    good, bad, refused = store.execute_all(sends)
    assert isinstance(good, hw.events.Outcome)
    assert isinstance(bad, hw.BadRowError)
    assert isinstance(refused, hw.UsageError | hw.CommandRefusedError)
    assert store.load("a").version == 1


def test_a_command_class_that_gets_a_field_with_a_default_is_known_by_its_old_ids(store: Accounts) -> None:
    @dataclass(frozen=True)
    class Later:
        amount: int
        note: str = ""
        tags: list[str] = field(default_factory=list)

    @dataclass(frozen=True)
    class LaterStill:
        amount: int
        note: str = ""
        tags: list[str] = field(default_factory=list)
        urgent: bool = False

    Later.__name__ = LaterStill.__name__ = "Deposit"
    assert command_loop.command_hash(Deposit(5)) == command_loop.command_hash(LaterStill(5))
    assert command_loop.command_hash(Later(5, "rent")) == command_loop.command_hash(LaterStill(5, "rent"))
    different = [
        LaterStill(5),
        LaterStill(6),
        LaterStill(5, "rent"),
        LaterStill(5, tags=["x"]),
        LaterStill(5, urgent=True),
    ]
    assert len({command_loop.command_hash(one) for one in different}) == len(different)


@dataclass
class Basket:
    """A state that can be changed in place."""

    items: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Put:
    item: str


def put(basket: Basket, command: Put) -> Put:
    basket.items.append("of decide alone")
    if command.item in basket.items:
        raise hw.CommandRefusedError("it is there")
    return command


def grown(basket: Basket, event: Put) -> Basket:
    basket.items.append(event.item)
    return basket


def test_a_fold_that_changes_its_state_in_place_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    baskets = hw.Aggregate("basket", put, grown)
    with hw.open(tmp_path) as ws, hw.open(tmp_path) as elsewhere:
        store, other = ws.store(baskets), elsewhere.store(baskets)
        store.execute("a", Put("pen"))
        moment = store.load("a").at
        other.execute("a", Put("ink"))
        store.execute("a", Put("cap"))
        store.execute("b", Put("cup"))
        loaded = store.load("a")
        loaded.state.items.clear()
        assert store.load("a").state == other.load("a").state == Basket(["pen", "ink", "cap"])
        assert store.load("b").state == Basket(["cup"])
        assert [step.state.items for step in store.history("a")] == [
            ["pen"],
            ["pen", "ink"],
            ["pen", "ink", "cap"],
        ]
        assert store.at("a", moment).state.items[:1] == ["pen"]
        assert baskets.initial == Basket()
        with monkeypatch.context() as lost:
            lost.setattr(ws.log, "append", lambda *_: (_ for _ in ()).throw(hw.StorageError("gone")))
            with pytest.raises(hw.StorageError):
                store.execute("a", Put("nib"))
        assert store.load("a").state == Basket(["pen", "ink", "cap"]), "what was not written has not happened"
