"""A reaction issues the commands that events lead to, once each, from the beginning or from now on, whatever dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.events import Changed, Recorded, Send
from headwater.events.reactions import EventFeed, Reacted, ViewFeed
from tests.events.accounts import Deposit, Deposited, Open, Opened, Withdraw, accounts
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Other:
    """No event of an account."""


def bonus(ws: hw.Workspace, since: Any = "beginning", name: str = "bonus") -> Any:
    """Whoever opens an account gets one unit."""
    store = ws.store(accounts)

    @ws.reaction(name, store, since=since)
    def give(event: Opened, recorded: Recorded[Opened]) -> Send[Any]:
        return store.send(recorded.aggregate_id, Deposit(1), reason=f"welcome {event.owner}")

    return give


def test_it_reacts_to_past_and_coming_events_once(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    store.execute("a", Open("ada"), correlation_id="visit")
    give = bonus(ws)
    assert (give.run().issued, give.run().issued) == (1, 0)
    store.execute("b", Open("bob"))
    assert bonus(ws).run().issued == 1  # another object of the same name goes on where it was left
    assert (store.load("a").state.balance, store.load("b").state.balance) == (1, 1)
    gift = store.events("a")[1]
    assert (gift.actor, gift.reason) == ("reaction bonus", "welcome ada")
    assert (gift.causation_id, gift.correlation_id) == ("account/a/1", "visit")
    assert gift.command_id == "bonus:account/a/1:0"


def test_one_that_is_added_later_reacts_from_now_on_if_so_chosen(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    store = ws.store(accounts)
    store.execute("a", Open("ada"))
    clock.advance("1 hour")
    moment = from_us(clock.now_us())
    store.execute("b", Open("bob"))
    now, since = bonus(ws, "now", "from now"), bonus(ws, moment, "since a time")
    store.execute("c", Open("cyd"))
    assert now.run().issued == 1
    assert since.run().issued == 2
    assert [store.load(one).state.balance for one in "abc"] == [0, 1, 2]


def test_what_is_done_again_after_a_crash_has_no_second_effect(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ws.store(accounts)
    for one in "abc":
        store.execute(one, Open(one))
    give = bonus(ws)
    done = EventFeed.advance
    monkeypatch.setattr(EventFeed, "advance", lambda *_: (_ for _ in ()).throw(hw.StorageError("gone")))
    with pytest.raises(hw.StorageError):
        give.run()
    monkeypatch.setattr(EventFeed, "advance", done)
    assert give.run() == Reacted(handled=3, issued=3, refused=0, repeated=3)
    assert [store.load(one).state.balance for one in "abc"] == [1, 1, 1]


def test_other_code_after_a_crash_has_no_second_effect_and_goes_on(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ws.store(accounts)
    store.execute("a", Open("ada"))
    with monkeypatch.context() as crash:
        crash.setattr(EventFeed, "advance", lambda *_: (_ for _ in ()).throw(hw.StorageError("gone")))
        with pytest.raises(hw.StorageError):
            bonus(ws).run()

    @ws.reaction("bonus", store)
    def give_more(event: Opened, recorded: Recorded[Opened]) -> Send[Any]:
        return store.send(recorded.aggregate_id, Deposit(2))

    store.execute("b", Open("bob"))
    assert give_more.run() == Reacted(handled=2, issued=2, refused=0, repeated=1)
    assert [store.load(one).state.balance for one in "ab"] == [1, 2]


def test_an_id_of_its_own_that_is_another_commands_stops_it(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    store.execute("a", Open("ada"), command_id="mine")

    @ws.reaction("again", store)
    def again(event: Opened) -> Send[Any]:
        return store.send("a", Deposit(1), command_id="mine")

    with raises(hw.CommandIdUsedError, aggregate_id="a", command_id="mine"):
        again.run()


def test_names_as_long_as_they_may_be_are_reacted_to(ws: hw.Workspace) -> None:
    store, name = ws.store(accounts), "a" * 500
    give = bonus(ws, name="b" * 200)
    store.execute(name, Open("ada"))
    assert give.run().issued == 1
    assert store.load(name).state.balance == 1


def test_in_the_background_retryable_errors_are_retried_and_others_reported(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, tried = ws.store(accounts), threading.Semaphore(0)
    failing: list[Exception] = [hw.DiskFullError("no space")] * 2
    done = EventFeed.advance

    def at_times(feed: EventFeed, position: Any) -> None:
        tried.release()
        if failing:
            raise failing.pop()
        done(feed, position)

    monkeypatch.setattr(EventFeed, "advance", at_times)
    give = bonus(ws)
    give.start()
    store.execute("a", Open("ada"))
    for _ in range(3):
        assert tried.acquire(timeout=20)
    give.stop()
    assert store.load("a").state.balance == 1
    failing.append(RuntimeError("a fault of the program"))
    give.start()
    store.execute("b", Open("bob"))
    assert tried.acquire(timeout=20)
    while give.failure is None:
        threading.Event().wait(0.01)
    with pytest.raises(RuntimeError):
        give.stop()
    give.start()  # it goes on where it was left
    assert tried.acquire(timeout=20)
    give.stop()
    assert store.load("b").state.balance == 1


def test_a_reaction_may_be_a_coroutine_function(ws: hw.Workspace) -> None:
    store = ws.store(accounts)

    @ws.reaction("give", store)
    async def give(event: Opened, recorded: Recorded[Opened]) -> Send[Any]:
        await asyncio.sleep(0)
        return store.send(recorded.aggregate_id, Deposit(1))

    async def main() -> None:
        await store.execute_async("a", Open("ada"))
        assert (await give.run_async()).issued == 1
        given = await store.execute_all_async([store.send("a", Deposit(2)), store.send("a", Withdraw(9))])
        assert [type(one).__name__ for one in given] == ["Outcome", "CommandRefusedError"]
        assert [one.event for one in await store.events_async("a")] == store_events(store)

    asyncio.run(main())
    assert give.run().issued == 0


def store_events(store: Any) -> list[Any]:
    return [one.event for one in store.events("a")]


class FakeView:
    """A view of two rows that are equal."""

    name = "doubles"

    def read(self, *, as_of: int) -> pa.Table:
        return pa.table({"id": ["a", "a"]})

    def changes(self, since: int, *, follow: bool, timeout: float) -> Iterator[pa.Table]:
        yield pa.table({"id": ["a", "b", "b"], "_weight": [-1, 1, -1], "_tick": [since + 1] * 3})


def test_rows_of_a_view_that_are_equal_are_one_cause_and_two_processes_may_react(ws: hw.Workspace) -> None:
    seen: list[list[tuple[str, int]]] = []
    one, other = (ViewFeed(ws.log, FakeView(), "doubles", "beginning", lambda: 4) for _ in range(2))
    at_first, at_second = one.batches(0), other.batches(0)
    for _ in range(2):
        (causes, position), (same, _) = next(at_first), next(at_second)
        assert [cause.id for cause in causes] == [cause.id for cause in same]
        seen.append([(cause.arguments[0].row["id"], cause.arguments[0].weight) for cause in causes])
        one.advance(position)
        other.advance(position)  # the slower one
    assert seen == [[("a", 2)], [("a", -1)]]
    one.advance(4)
    assert ws.log.entries("reaction")["doubles"].document["tick"] == 5, "never back"


def test_a_refused_command_is_counted_and_an_error_stops_it(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    store.execute("a", Open("ada"))
    fail = True

    @ws.reaction("fee", store)
    def charge(event: Opened | Deposited, recorded: Recorded[Any]) -> Iterator[Send[Any]]:
        if fail and isinstance(event, Deposited):
            raise KeyError("rate")
        yield store.send(recorded.aggregate_id, Withdraw(5))

    assert charge.run().refused == 1
    store.execute("a", Deposit(9))
    with raises(hw.EventCodeError, owner="reaction fee", input="account/a/2") as failed:
        charge.run()
    assert isinstance(failed.value.__cause__, KeyError)
    fail = False
    assert charge.run().issued == 1
    assert store.load("a").state.balance == 4


def test_in_the_background_it_reacts_to_what_comes(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    give = bonus(ws)
    reached = threading.Event()

    @ws.reaction("tell", store)
    def tell(event: Deposited) -> None:
        reached.set()

    give.start()
    tell.start()
    with raises(hw.UsageError, reason="already-running"):
        give.start()
    store.execute("a", Open("ada"))
    assert reached.wait(20)
    give.stop()
    tell.stop()
    give.stop()
    assert store.load("a").state.balance == 1


def test_it_says_which_events_it_is_for(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    with raises(hw.UsageError, aggregate="account", reason="not-annotated"):

        @ws.reaction("x", store)
        def untyped(event):  # type: ignore[no-untyped-def]
            return None

    with raises(hw.UsageError, aggregate="account", reason="unknown-event", event="Other"):

        @ws.reaction("x", store)
        def strange(event: Other) -> None:
            return None

    with raises(hw.UsageError, argument="reaction", value=""):
        bonus(ws, name="")
    with raises(hw.UsageError, argument="to", value=accounts):
        ws.reaction("x", accounts)  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="aggregate", value="account"):
        ws.store("account")  # type: ignore[arg-type]
    with raises(hw.UsageError, argument="since", value="yesterday"):
        bonus(ws, "yesterday")

    @ws.reaction("y", store)
    def wrong(event: Opened) -> Any:
        return "text"

    store.execute("a", Open("ada"))
    with raises(hw.UsageError, reason="not-a-send", reaction="y"):
        wrong.run()


def test_it_reacts_to_the_changes_of_a_view(tmp_path: Any, spark: SparkSession) -> None:
    with hw.open(tmp_path, spark=spark) as ws:
        store = ws.store(accounts)
        ws.sql(
            "CREATE MATERIALIZED VIEW totals AS SELECT aggregate_id, sum(amount) AS paid FROM account"
            " WHERE event = 'Deposited' GROUP BY aggregate_id"
        )
        ws.sql("CREATE MATERIALIZED VIEW large AS SELECT * FROM totals WHERE paid >= 10")
        store.execute("a", Deposit(10))
        ws.run()

        def open_large(change: Changed) -> Send[Any] | None:
            known = store.load(change.row["aggregate_id"]).state.owner
            return (
                None if change.weight < 0 or known else store.send(change.row["aggregate_id"], Open("large"))
            )

        past, now = (
            ws.reaction("past", "large")(open_large),
            ws.reaction("now", "large", since="now")(open_large),
        )
        assert now.run().issued == 0
        assert past.run().issued == 1
        assert store.events("a")[1].command_id.startswith("past:large@")
        store.execute("b", Deposit(20))
        ws.run()
        assert now.run().issued == 1
        assert past.run().issued == 0  # it was opened meanwhile
        assert ws.reaction("now", "large")(open_large).run().handled == 0
        assert store.load("b").state.owner == "large"
        since = store.load("a").at
        with raises(hw.UsageError, argument="since", value=since):
            ws.reaction("late", "large", since=since)(open_large)
