"""Past states are what was appended by then, at any moment; and whoever awaits gets what others get."""

from __future__ import annotations

import asyncio
import inspect
import os
import random
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.events import snapshots, states
from headwater.events.aggregate_store import Store
from tests.events.accounts import Account, Deposit, Open, Withdraw, accounts
from tests.raising import raises

SEEDS = range(40 if os.environ.get("HEADWATER_LONG") == "1" else 3)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_any_moment_it_is_the_fold_of_what_was_there(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two events, at the very microsecond of one, of several at once, with and without snapshots, in another process."""
    chance, clock = random.Random(seed), ManualClock()
    for module in (snapshots, states):
        monkeypatch.setattr(module, "EVERY", 5)
    told: dict[str, list[tuple[int, Account]]] = {"a": [], "b": []}
    with hw.open(tmp_path / "ws", clock=clock, durability="os") as ws:
        store = ws.store(accounts)
        for _ in range(60):
            name = chance.choice("ab")
            store.execute(name, Deposit(chance.randint(1, 9)))
            told[name].append((clock.now_us(), store.load(name).state))
            if chance.random() < 0.6:
                clock.advance(f"{chance.choice([1, 1, 2, 5_000_000])} microseconds")
    moments = sorted({at + step for seen in told.values() for at, _ in seen for step in (-1, 0, 1)})
    with hw.open(tmp_path / "ws", clock=clock, durability="os") as ws:
        store = ws.store(accounts)
        for moment in chance.sample(moments, 40):
            for name, seen in told.items():
                by_then = [(number, state) for number, (at, state) in enumerate(seen, 1) if at <= moment]
                if not by_then:
                    with raises(hw.AggregateNotFoundError, aggregate_id=name, at=from_us(moment)):
                        store.at(name, from_us(moment))
                    continue
                loaded = store.at(name, from_us(moment))
                assert (loaded.version, loaded.state) == by_then[-1]
        for name, seen in told.items():
            steps = list(store.history(name))
            assert [step.state for step in steps] == [state for _, state in seen]


def test_a_moment_is_the_same_in_every_zone_and_without_one_it_is_utc(tmp_path: Path) -> None:
    with hw.open(tmp_path, clock=ManualClock(), durability="os") as ws:
        store = ws.store(accounts)
        store.execute("a", Open("ada"))
        now = store.load("a").at
        east = now.astimezone(timezone(timedelta(hours=9)))
        assert store.at("a", east) == store.at("a", now) == store.at("a", now.replace(tzinfo=None))
        assert store.at("a", datetime(2999, 1, 1, tzinfo=UTC)).version == 1, "the future is what is there now"
        for wrong in ("2026-01-01", 7, None, now.date()):
            with raises(hw.UsageError, argument="when", value=wrong):
                store.at("a", wrong)  # type: ignore[arg-type]


def test_whoever_awaits_gets_what_others_get(tmp_path: Path) -> None:
    """Every call that looks at the log has a twin for event loops, with the same parameters and the same answers and errors."""
    here = {"send", "recorded", "forget", "close"}
    """These are done at once, or are for reactions."""
    calls = {
        name: call
        for name, call in inspect.getmembers(Store, inspect.isfunction)
        if not name.startswith("_") and not name.endswith("_async")
    }
    for name in calls.keys() - here:
        twin = getattr(Store, f"{name}_async")
        assert inspect.signature(twin).parameters.keys() == inspect.signature(calls[name]).parameters.keys()

    async def both(name: str, *given: Any, **named: Any) -> Any:
        def outcome(result: Any) -> Any:
            is_error = isinstance(result, BaseException)
            return (type(result), str(result)) if is_error else result

        (awaited,) = await asyncio.gather(
            getattr(store, f"{name}_async")(*given, **named), return_exceptions=True
        )
        try:
            called = getattr(store, name)(*given, **named)
        except hw.HeadwaterError as error:
            called = error
        assert outcome(awaited) == outcome(called)
        return awaited

    async def main() -> None:
        first = await both("execute", "a", Deposit(5), command_id="1", actor="desk", reason="pay day")
        assert first.version == 1
        assert isinstance(await both("execute", "a", Withdraw(9), command_id="2"), hw.CommandRefusedError)
        assert isinstance(await both("execute", "a", Deposit(6), command_id="1"), hw.UsageError)
        assert isinstance(await both("execute", "a", Deposit(6), version=7), hw.ConflictError)
        assert isinstance(await both("execute", "", Deposit(6)), hw.UsageError)
        loaded = await both("load", "a")
        assert isinstance(await both("load", "nobody"), hw.AggregateNotFoundError)
        assert (await both("at", "a", loaded.at)).version == 1
        assert isinstance(await both("at", "a", "then"), hw.UsageError)
        assert len(await both("events", "a")) == 1
        assert isinstance(await both("history", "nobody"), hw.AggregateNotFoundError)
        await both("history", "a")
        once, again = await both("execute_all", [store.send("a", Deposit(1), command_id="3")] * 2)
        assert once == again

    with hw.open(tmp_path, durability="os") as ws:
        store = ws.store(accounts)
        asyncio.run(main())
