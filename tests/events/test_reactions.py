"""A reaction issues the commands that events lead to, once each, from the beginning or from now on, whatever dies."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.clock import ManualClock, from_us
from headwater.events import Changed, Recorded, Send
from headwater.events.reactions import EventFeed
from tests.events.accounts import Deposit, Deposited, Open, Opened, Withdraw, accounts

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
    done = EventFeed.done
    monkeypatch.setattr(EventFeed, "done", lambda *_: (_ for _ in ()).throw(hw.StorageError("gone")))
    with pytest.raises(hw.StorageError):
        give.run()
    monkeypatch.setattr(EventFeed, "done", done)
    assert give.run().issued == 3
    assert [store.load(one).state.balance for one in "abc"] == [1, 1, 1]


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
    with pytest.raises(hw.EventCodeError, match="'reaction fee' failed on account/a/2: KeyError"):
        charge.run()
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
    with pytest.raises(hw.UsageError, match="runs already"):
        give.start()
    store.execute("a", Open("ada"))
    assert reached.wait(20)
    give.stop()
    tell.stop()
    give.stop()
    assert store.load("a").state.balance == 1


def test_it_says_which_events_it_is_for(ws: hw.Workspace) -> None:
    store = ws.store(accounts)
    with pytest.raises(hw.UsageError, match="says by its first parameter which events"):

        @ws.reaction("x", store)
        def untyped(event):  # type: ignore[no-untyped-def]
            return None

    with pytest.raises(hw.UsageError, match="says Other, which is none of them"):

        @ws.reaction("x", store)
        def strange(event: Other) -> None:
            return None

    with pytest.raises(hw.UsageError, match="begins at 'beginning'"):
        bonus(ws, "yesterday")

    @ws.reaction("y", store)
    def wrong(event: Opened) -> Any:
        return "text"

    store.execute("a", Open("ada"))
    with pytest.raises(hw.UsageError, match="which is no command on its way"):
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
        with pytest.raises(hw.UsageError, match="begins with what is there, or now"):
            ws.reaction("late", "large", since=store.load("a").at)(open_large)
