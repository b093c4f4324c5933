"""Events of all classes are one topic, which grows with them; old shapes are read step by step, or named."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.events import Aggregate
from tests.events.accounts import Deposit, accounts
from tests.raising import raises


@dataclass(frozen=True)
class Log:
    """A state that remembers its events."""

    seen: tuple[str, ...] = ()


@dataclass(frozen=True)
class Say:
    """A command that leads to the event it holds."""

    event: Any


def decide(state: Log, command: Say) -> list[Any]:
    return [command.event]


def fold(state: Log, event: Any) -> Log:
    return Log((*state.seen, repr(event)))


def noting(*events: type, initial: Any = None) -> Aggregate[Log, Say, Any]:
    return Aggregate("note", decide, fold, events=events, initial=initial)


def made(name: str, **fields: Any) -> Any:
    """A dataclass of an event, as a program of some time declares it."""
    kind = type(
        name, (), {"__annotations__": {f: t if not isinstance(t, tuple) else t[0] for f, t in fields.items()}}
    )
    for field, given in fields.items():
        if isinstance(given, tuple):
            setattr(kind, field, given[1])
    return dataclass(frozen=True)(kind)


def test_a_new_class_and_a_new_field_add_columns_and_old_events_read_on(tmp_path: Path) -> None:
    paid_1, paid_2, lost = (
        made("Paid", amount=int),
        made("Paid", amount=int, fee=(int, 0)),
        made("Lost", why=str),
    )
    with hw.open(tmp_path) as ws:
        ws.store(noting(paid_1)).execute("a", Say(paid_1(5)))
        store = ws.store(noting(paid_2, lost))
        store.execute("a", Say(paid_2(7, 1)))
        store.execute("a", Say(lost("wind")))
        assert ws.topic("note").schema.names[4:] == ["amount", "fee", "why"]
        assert store.load("a").state.seen == (
            "Paid(amount=5, fee=0)",
            "Paid(amount=7, fee=1)",
            "Lost(why='wind')",
        )


def test_a_process_with_older_classes_goes_on_beside_a_newer_one(tmp_path: Path) -> None:
    paid_1, paid_2 = made("Paid", amount=int), made("Paid", amount=int, fee=(int, 0))
    with hw.open(tmp_path) as one, hw.open(tmp_path) as two:
        old = one.store(noting(paid_1))
        old.execute("a", Say(paid_1(1)))
        new = two.store(noting(paid_2))
        new.execute("a", Say(paid_2(2, 9)))
        old.execute("a", Say(paid_1(3)))
        assert old.load("a").version == 3
        assert new.load("a").state.seen[1:] == ("Paid(amount=2, fee=9)", "Paid(amount=3, fee=0)")


def test_old_shapes_are_taken_step_by_step_and_renamed(tmp_path: Path) -> None:
    first, now = made("PaidIn", euros=int), made("Paid", cents=int, currency=str)
    with hw.open(tmp_path) as ws:
        ws.store(noting(first)).execute("a", Say(first(5)))
        old = noting(first)

        @old.upcast("PaidIn", 1)
        def same(fields: dict[str, Any]) -> dict[str, Any]:
            return fields

        ws.store(old).execute("a", Say(first(6)))  # written as version 2
        aggregate = noting(now)

        @aggregate.upcast("PaidIn", 1)
        def cents(fields: dict[str, Any]) -> dict[str, Any]:
            return {"cents": fields["euros"] * 100}

        @aggregate.upcast("PaidIn", 2, becomes="Paid")
        def renamed(fields: dict[str, Any]) -> dict[str, Any]:
            return {"cents": fields.get("cents", 100 * fields.get("euros", 0))}

        @aggregate.upcast("Paid", 1)
        def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
            return {**fields, "currency": "EUR"}

        store = ws.store(aggregate)
        store.execute("a", Say(now(7, "CHF")))
        assert store.load("a").state.seen == tuple(
            f"Paid(cents={cents}, currency={currency!r})"
            for cents, currency in [(500, "EUR"), (600, "EUR"), (7, "CHF")]
        )
        with raises(hw.UsageError, event="Paid", event_version=1):
            aggregate.upcast("Paid", 1)(with_currency)


def test_an_event_that_nobody_can_read_is_named(tmp_path: Path) -> None:
    gone, other = made("Gone", n=int), made("Other", n=int)
    with hw.open(tmp_path) as ws:
        ws.store(noting(gone)).execute("a", Say(gone(1)))
        store = ws.store(noting(other))
        with raises(
            hw.UnreadableEventError,
            topic="note",
            aggregate_id="a",
            version=1,
            event="Gone",
            event_version=1,
            reason="unknown-event",
        ):
            store.load("a")
        with pytest.raises(hw.UnreadableEventError):
            store.execute("a", Say(other(1)))
        store.execute("b", Say(other(1)))
        assert ws.log.partitions("note")[0].end == 2


def test_an_event_from_the_future_is_named(tmp_path: Path) -> None:
    kind = made("Paid", n=int)
    newer = noting(kind)
    newer.upcast("Paid", 1)(lambda fields: fields)
    with hw.open(tmp_path) as ws:
        ws.store(newer).execute("a", Say(kind(1)))
        with raises(hw.UnreadableEventError, event="Paid", event_version=2, reason="newer-version"):
            ws.store(noting(kind)).load("a")


def test_nothing_is_written_on_top_of_an_event_from_the_future_and_nothing_reacts_past_it(
    tmp_path: Path,
) -> None:
    kind = made("Paid", n=int)
    newer, older = noting(kind), noting(kind)
    newer.upcast("Paid", 1)(lambda fields: fields)
    with hw.open(tmp_path) as ws, hw.open(tmp_path) as ahead:
        store, end = ws.store(older), lambda: ws.log.partitions("note")[0].end
        store.execute("a", Say(kind(1)), command_id="1")
        ahead.store(newer).execute("a", Say(kind(2)), command_id="2")

        def react(event: object) -> None:
            return None

        react.__annotations__["event"] = kind
        reaction = ws.reaction("r", store)(react)
        for call in (
            lambda: store.execute("a", Say(kind(3)), command_id="3"),
            lambda: store.execute("a", Say(kind(2)), command_id="2"),
            lambda: store.load("a"),
            lambda: store.events("a"),
            lambda: store.history("a"),
            reaction.run,
        ):
            with raises(hw.UnreadableEventError, topic="note", aggregate_id="a", version=2):
                call()
        assert end() == 2
        assert store.execute("a", Say(kind(1)), command_id="1").repeated, "what can be read is answered"
        assert store.execute("b", Say(kind(9))).version == 1, "others go on"
        with pytest.raises(hw.UnreadableEventError):
            reaction.run()
        again = ahead.reaction("r", ahead.store(newer))(react)
        assert again.run().handled == 3, "whoever can read it goes on where it was left"


def test_a_field_without_a_value_is_named(tmp_path: Path) -> None:
    old, new = made("Paid", n=int), made("Paid", n=int, fee=int)
    with hw.open(tmp_path) as ws:
        ws.store(noting(old)).execute("a", Say(old(1)))
        with raises(hw.UnreadableEventError, reason="missing-value") as met:
            ws.store(noting(new)).load("a")
        assert "'fee'" in met.value.detail


def test_a_step_that_fails_is_named(tmp_path: Path) -> None:
    kind = made("Paid", n=int)
    with hw.open(tmp_path) as ws:
        ws.store(noting(kind)).execute("a", Say(kind(1)))
        aggregate = noting(kind)

        @aggregate.upcast("Paid", 1)
        def broken(fields: dict[str, Any]) -> dict[str, Any]:
            return {"n": fields["missing"]}

        with raises(
            hw.EventCodeError, function="broken", owner="note", input="event 'Paid' of version 1"
        ) as failed:
            ws.store(aggregate).load("a")
        assert isinstance(failed.value.__cause__, KeyError)


@pytest.mark.parametrize(
    ("events", "facts"),
    [
        ([made("A", n=int), made("B", n=str)], {"aggregate": "note", "field": "n"}),
        ([made("A", meta=int)], {"field": "meta", "reason": "reserved-name"}),
        ([made("A", n=object)], {"field": "n", "type": "object"}),
        ([made("A", n=tuple[int, str])], {"field": "n", "reason": "no-column-type"}),
        ([made("A", n=int), made("A", m=int)], {"name": "A", "reason": "duplicate-name"}),
        ([], {"function": "fold", "reason": "not-annotated"}),
    ],
)
def test_classes_that_cannot_be_columns_are_refused(events: list[type], facts: dict[str, str]) -> None:
    with hw.open("memory:") as ws:
        with raises(hw.SchemaError, **facts):
            ws.store(noting(*events))
        assert not ws.log.topics()


def test_a_field_of_another_type_is_refused_and_the_topic_stays(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        ws.store(noting(made("A", n=int)))
        with raises(hw.SchemaError, topic="note", field="n") as met:
            ws.store(noting(made("A", n=str)))
        assert "upcast" in met.value.hint
        ws.sql("CREATE TOPIC plain (n BIGINT)")
        with raises(hw.SchemaError, topic="plain", reason="other-layout"):
            ws.store(Aggregate("plain", decide, fold, events=[made("A", n=int)]))


def test_an_aggregate_without_annotations_or_a_beginning_is_refused() -> None:
    def bare(state, event):  # type: ignore[no-untyped-def]
        return state

    @dataclass(frozen=True)
    class Needs:
        name: str

    def takes(state: Any, event: Any) -> Any:
        return state

    with raises(hw.SchemaError, function="bare", reason="not-annotated"):
        Aggregate("x", decide, bare)
    takes.__annotations__["state"] = Needs
    with raises(hw.SchemaError, aggregate="x", reason="no-initial-state"):
        Aggregate("x", decide, takes, events=[made("A", n=int)])


def test_events_of_other_aggregates_are_refused() -> None:
    with hw.open("memory:") as ws:
        store = ws.store(noting(made("A", n=int)))
        with raises(hw.UsageError, aggregate="note", event="text"):
            store.execute("a", Say("text"))
        assert "a" not in store


def test_many_processes_may_make_the_topic_at_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        with hw.open(tmp_path) as ws:
            barrier.wait()
            try:
                ws.store(noting(made("A", **{f"f{number}": int})))
            except hw.HeadwaterError as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with hw.open(tmp_path) as ws:
        assert sorted(ws.topic("note").schema.names[4:]) == ["f0", "f1", "f2", "f3"]


def test_a_topic_that_a_view_has_the_name_of_is_refused(tmp_path: Path) -> None:
    with hw.open(tmp_path) as ws:
        ws.log.put_entry("view", "account", {"name": "account"}, expect=None)
        with pytest.raises(hw.TopicExistsError):
            ws.store(accounts).execute("a", Deposit(1))
