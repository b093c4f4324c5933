"""Private fields of events: forgotten with their subject, in events, states, snapshots, answers and claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater.events import Aggregate, Claim, Refused
from headwater.events.aggregate_store import Store
from headwater.events.snapshots import EVERY
from tests.raising import raises


@dataclass(frozen=True)
class Register:
    email: str | None


@dataclass(frozen=True)
class Rename:
    name: str | None


@dataclass(frozen=True)
class Registered:
    email: str | None


@dataclass(frozen=True)
class Renamed:
    name: str | None
    count: int = 1


@dataclass(frozen=True)
class Person:
    email: str | None = None
    name: str | None = None
    renames: int = 0


def decide(person: Person, command: Register | Rename) -> Iterator[Any]:
    match command:
        case Register(email):
            if person.email is not None:
                raise Refused(f"{person.email} is registered", email=person.email)
            yield Registered(email)
            yield Claim("email", email or "", private=True)
        case Rename(name):
            yield Renamed(name)


def fold(person: Person, event: Registered | Renamed) -> Person:
    match event:
        case Registered(email):
            return replace(person, email=email)
        case Renamed(name, count):
            return replace(person, name=name, renames=person.renames + count)


def people() -> Aggregate[Any, Any, Any]:
    return Aggregate("person", decide, fold, private=["email", "name"])


SECRETS = ("ada@example.com", "Augusta Ada")


def filled(store: Store[Any, Any, Any]) -> None:
    store.execute("p-1", Register(SECRETS[0]), command_id="c-1")
    store.execute("p-2", Register("bob@example.com"))
    for number in range(EVERY + 5):
        store.execute("p-1", Rename(SECRETS[1]), command_id=f"r-{number}")
    with raises(Refused, email=SECRETS[0]):
        store.execute("p-1", Register("other@example.com"), command_id="c-2")


def holding(folder: Path, texts: tuple[str, ...]) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if any(text.encode() in path.read_bytes() for text in texts)]


def test_a_forgotten_person_is_nowhere_and_everything_still_works(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with hw.open(folder) as ws, hw.open(folder) as elsewhere:
        store, other = ws.store(people()), elsewhere.store(people())
        filled(store)
        assert any((folder / "events").rglob("snapshots/*/*.json"))
        assert not holding(folder, SECRETS)  # nothing of it is ever on disk in plain
        before = datetime.now(UTC)
        assert other.load("p-1").state == Person(*SECRETS, EVERY + 5)
        other.forget()
        assert other.snapshots.find("p-1") is not None
        assert other.load("p-1").state == Person(*SECRETS, EVERY + 5)

        done = ws.forget("p-1")
        places = {(place.kind, place.name, place.status) for place in done.places}
        assert places >= {
            ("log", "person", "done"),
            ("states", "person", "done"),
            ("log", "_answers", "done"),
        }
        for each in (store, other):
            assert each.load("p-1").state == Person(None, None, EVERY + 5)
            assert each.at("p-1", before).state == Person(None, None, EVERY + 5)
            assert each.events("p-1")[0].event == Registered(None)
            assert str(each.history("p-1"))
            assert each.load("p-2").state.email == "bob@example.com"
            again = each.execute("p-1", Register(SECRETS[0]), command_id="c-1")
            assert (again.repeated, again.events) == (True, (Registered(None),))
            with raises(hw.CommandRefusedError, reason="forgotten", aggregate_id="p-1", command_id="c-2"):
                each.execute("p-1", Register("other@example.com"), command_id="c-2")
        assert not holding(folder, SECRETS)
        rows = ws.query("SELECT email, name FROM person WHERE aggregate_id = 'p-1'").to_pylist()
        assert {(row["email"], row["name"]) for row in rows} == {(None, None)}
        assert ws.verify().ok
    with hw.open(folder) as ws:
        store = ws.store(people())
        assert store.load("p-1").state == Person(None, None, EVERY + 5)
        store.execute("p-1", Rename("again"))
        assert store.load("p-1").state.name == "again"


def test_a_state_from_before_makes_no_snapshot_that_can_be_read(tmp_path: Path) -> None:
    with hw.open(tmp_path / "shop") as ws:
        store = ws.store(people())
        store.execute("p-1", Register(SECRETS[0]))
        state = store._states.current("p-1")
        ws.forget("p-1")
        assert not store.snapshots.keep("p-1", state)  # type: ignore[arg-type]
        assert store.snapshots.find("p-1") is None


def test_claimed_names_are_digests(ws: hw.Workspace) -> None:
    store = ws.store(people())
    store.execute("p-1", Register(SECRETS[0]))
    with pytest.raises(hw.ClaimTakenError):
        store.execute("p-2", Register(SECRETS[0]))
    (row,) = [row for batch in ws.topic("_claims").read() for row in batch.to_pylist()]
    assert row["name"].startswith("#")
    assert SECRETS[0] not in str(row)
    ws.forget("p-1")
    with pytest.raises(hw.ClaimTakenError):  # it is still taken: let go of it before forgetting
        store.execute("p-2", Register(SECRETS[0]))
    with raises(hw.UsageError, subject="headwater:claims"):
        ws.forget("headwater:claims")


@dataclass(frozen=True)
class Ordered:
    customer: int
    address: str | None


def order(orders: tuple[str | None, ...], command: Ordered) -> Ordered:
    return command


def add(orders: tuple[str | None, ...], event: Ordered) -> tuple[str | None, ...]:
    return (*orders, event.address)


def test_fields_may_be_of_another_subject(ws: hw.Workspace) -> None:
    orders = Aggregate("orders", order, add, initial=(), private={"address": "customer"})
    store = ws.store(orders)
    for customer in (7, 8):
        store.execute("o-1", Ordered(customer, f"street {customer}"))
    assert store.load("o-1").state == ("street 7", "street 8")
    ws.forget(7)
    assert store.load("o-1").state == (None, "street 8")
    assert store.snapshots.why_not is not None


@dataclass(frozen=True)
class Named:
    name: str


def test_what_fold_could_not_be_without_is_refused(ws: hw.Workspace) -> None:
    def take(state: int, command: Named) -> Named:
        return command

    def count(state: int, event: Named) -> int:
        return state + 1

    def either(state: int, event: Named | Ordered) -> int:
        return state + 1

    with raises(hw.SchemaError, field="name", reason="not-optional"):
        Aggregate("named", take, count, initial=0, private=["name"])
    with raises(hw.SchemaError, field="email", reason="no-such-field"):
        Aggregate("named", take, count, initial=0, private=["email"])
    with raises(hw.SchemaError, event="Named", field="address", subject="customer"):
        Aggregate("named", take, either, initial=0, private={"address": "customer"})
    ws.store(Aggregate("orders", order, add, initial=()))
    with raises(hw.SchemaError, topic="orders", field="address", subject="aggregate_id"):
        ws.store(Aggregate("orders", order, add, initial=(), private=["address"]))


@dataclass(frozen=True)
class Ask:
    customer: int
    email: str | None


@dataclass(frozen=True)
class Told:
    customer: int
    email: str | None


def test_requests_and_replies_are_as_private_as_their_topics(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    columns = "customer BIGINT NOT NULL, email STRING PRIVATE BY (customer)"
    with hw.open(folder) as ws:
        for topic, more in (("lookups", ""), ("lookups_replies", "error STRING, ")):
            ws.sql(
                f"CREATE TOPIC {topic} (call_id STRING NOT NULL, {more}{columns}) WITH (versioned_by = 'call_id')"
            )

        @ws.serve("lookups")
        def look(request: Ask) -> Told:
            if request.customer == 8:
                raise hw.UsageError("nobody knows 8")
            return Told(request.customer, request.email)

        look.start()
        answer = ws.call("lookups", Ask(7, SECRETS[0]), call_id="one", returns=Told)
        assert answer == Told(7, SECRETS[0])
        assert not holding(folder, SECRETS)
        ws.forget(7)
        again = ws.call("lookups", Ask(7, SECRETS[0]), call_id="one", returns=Told)
        assert again == Told(7, None)
        with raises(hw.CallFailedError, topic="lookups") as failed:
            ws.call("lookups", Ask(8, SECRETS[1]), returns=Told)
        assert failed.value.message == "nobody knows 8"
        assert not holding(folder, SECRETS)
