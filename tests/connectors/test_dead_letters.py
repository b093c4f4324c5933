"""Dead letters in a store of the test: the state of each, the actions allowed on it, and the record of them."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headwater as hw
from headwater.catalog.definitions import define_topic
from headwater.connectors.dead_letter_store.letter_store import (
    Edited,
    Letter,
    LetterState,
    NewestLetters,
    Note,
    as_json,
    fitted,
    packed,
)
from headwater.connectors.dead_letters.dead_letters import DeadLetters
from headwater.views.dead_letter_actions import SCHEMA, TOPIC, LetterActions, read_actions, write_actions
from tests.raising import raises

COLUMNS = pa.schema([("id", pa.int64()), ("amount", pa.string())])


class Box:
    """A store whose owners accept the rows that the test names."""

    kind: ClassVar[str] = "box"
    keeps_replayed: ClassVar[bool] = False

    def __init__(self, ws: hw.Workspace) -> None:
        self.log = ws.log
        self.there: dict[str, list[Letter]] = {"red": [], "blue": []}
        self.takes: set[str] = set()
        self.away: set[str] = set()

    def put(self, owner: str, number: int) -> str:
        row = as_json({"id": number, "amount": "n/a"})
        self.there[owner].append(Letter(f"{owner}/{number}", self.kind, owner, "no number", row, at=number))
        return f"{owner}/{number}"

    def owners(self) -> list[str]:
        return list(self.there)

    def letters(self, owner: str, letter: str | None = None) -> list[Letter]:
        if owner in self.away:
            raise hw.TargetDownError(f"{owner} does not answer")
        return list(self.there[owner])

    def newest(self, owner: str, count: int, actions: LetterActions) -> NewestLetters:
        letters = sorted(self.letters(owner), key=lambda one: one.at or 0, reverse=True)
        acted_on = [one for one in letters if one.id in actions.by_letter]
        others = [one for one in letters if one not in acted_on]
        return NewestLetters(acted_on + others[:count], len(others[count:]))

    def columns(self, letter: Letter) -> pa.Schema:
        return COLUMNS

    def edited(self, known: LetterState, values: Mapping[str, Any]) -> Edited:
        row = fitted({"id": 1, "amount": None, **values}, COLUMNS, known.id)
        return Edited(known.letter.row, as_json(row.to_pylist()[0]), packed(row))

    def replay(
        self, owner: str, chosen: Sequence[LetterState], note: Note, *, force: bool
    ) -> Mapping[str, str]:
        taken = [one for one in chosen if one.id in self.takes or one.edit is not None]
        self.there[owner] = [one for one in self.there[owner] if one.id not in {t.id for t in taken}]
        done = [note.record(one.letter, action="replay", settled=True, edited=one.row) for one in taken]
        if done:
            write_actions(self.log, done, {one.id: one.version for one in taken})
        return {one.id: one.letter.error for one in chosen if one not in taken}


@pytest.fixture
def box(ws: hw.Workspace) -> Box:
    return Box(ws)


@pytest.fixture
def dead(ws: hw.Workspace, box: Box) -> DeadLetters:
    return DeadLetters(ws.log, (box,))


def listed(dead: DeadLetters, of: str | None = None, state: str = "open") -> list[tuple[str, str]]:
    found = dead.list(of, state).to_pylist()
    return [(row["letter"], row["state"]) for row in found]


def test_letters_are_listed_the_newest_first_and_nothing_is_written(
    ws: hw.Workspace, dead: DeadLetters, box: Box
) -> None:
    assert dead.list().num_rows == 0
    for owner, number in (("red", 1), ("blue", 2), ("red", 3)):
        box.put(owner, number)
    assert listed(dead) == [("red/3", "open"), ("blue/2", "open"), ("red/1", "open")]
    assert listed(dead, "RED") == [("red/3", "open"), ("red/1", "open")]
    assert dead.list().to_pylist()[0]["row"] == '{"id":3,"amount":"n/a"}'
    assert TOPIC not in ws.log.topics()
    with raises(hw.UsageError, state="closed"):
        dead.list(state="closed")


def test_of_many_only_the_newest_are_read_and_all_are_counted(dead: DeadLetters, box: Box) -> None:
    for number in range(1, 9):
        box.put("red", number)
    box.put("blue", 9)
    dead.drop("red/8")
    dead.edit("red/2", {"amount": "5"})
    for state in ("open", "all", "dropped", "resolved"):
        whole = dead.find(state=state)
        for limit in (0, 1, 3, 100):
            page = dead.page(state=state, limit=limit)
            assert [one.id for one in page.letters] == [one.id for one in whole[:limit]]
            assert page.total == len(whole)
    assert dead.list("red", limit=2)["letter"].to_pylist() == ["red/7", "red/6"]
    none = {"edited": 0, "dropped": 0, "replayed": 0, "resolved": 0}
    assert dead.counts() == {
        ("red", "box"): {**none, "open": 6, "edited": 1, "dropped": 1},
        ("blue", "box"): {**none, "open": 1},
    }
    with raises(hw.UsageError, argument="limit", value=-1):
        dead.list(limit=-1)


def test_what_was_done_is_read_once(dead: DeadLetters, box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    read, spans = box.log.read, list[tuple[int, int]]()

    def noted(topic: str, partition: int, start: int, end: int, columns: Any = None) -> Any:
        spans.append((start, end))
        return read(topic, partition, start, end, columns)

    monkeypatch.setattr(box.log, "read", noted)
    dead.drop([box.put("red", 1), box.put("red", 2)])
    assert listed(dead, state="dropped") == [("red/2", "dropped"), ("red/1", "dropped")]
    dead.edit("red/1", {"amount": "5"})
    assert listed(dead, state="edited") == [("red/1", "edited")]
    assert read_actions(box.log).dropped == {"red": [("red/2", 0)]}
    assert spans == [(0, 2), (2, 3)]


def test_an_edit_keeps_the_original_and_who_changed_it(dead: DeadLetters, box: Box) -> None:
    name = box.put("red", 1)
    dead.edit(name, {"amount": "4"}, by="anna", reason="typo")
    one = dead.edit(name, {"amount": "5"}, by="ben")
    assert (one.state, one.version) == ("edited", 2)
    assert one.letter.row == '{"id":1,"amount":"n/a"}'
    assert one.row == '{"id":1,"amount":"5"}'
    assert [(d.action, d.who, d.reason, d.edited) for d in one.actions] == [
        ("edit", "anna", "typo", '{"id":1,"amount":"4"}'),
        ("edit", "ben", None, '{"id":1,"amount":"5"}'),
    ]
    assert {d.original for d in one.actions} == {'{"id":1,"amount":"n/a"}'}
    assert all(d.at for d in one.actions)
    assert dead.list(state="edited").to_pylist()[0]["who"] == "ben"
    done = dead.replay(name, by="ben")
    assert (done.taken, done.ok) == ((name,), True)
    assert listed(dead) == []
    one = dead.show(name)
    assert (one.state, one.edit) == ("replayed", None)
    assert (one.letter.row, one.actions[-1].edited) == ('{"id":1,"amount":"n/a"}', '{"id":1,"amount":"5"}')
    assert dead.replay(name).before == (name,)
    with raises(hw.UsageError, letter=name, state="replayed") as refused:
        dead.edit(name, {"amount": "6"})
    assert "ben" in refused.value.message


def test_what_is_dropped_stays_out_of_sight_until_it_is_taken_up_again(dead: DeadLetters, box: Box) -> None:
    names = [box.put("red", n) for n in (1, 2)]
    assert dead.drop(names[0], by="anna", reason="a test order") == (names[0],)
    assert dead.drop(names[0], by="ben") == ()
    assert listed(dead) == [("red/2", "open")]
    assert listed(dead, state="all") == [("red/2", "open"), ("red/1", "dropped")]
    assert [d.who for d in dead.show(names[0]).actions] == ["anna"]
    box.takes = set(names)
    assert dead.replay(of="red").taken == (names[1],)  # not what was dropped
    assert dead.edit(names[0], {"amount": "1"}).state == "edited"
    assert dead.replay(of="red").taken == (names[0],)
    assert listed(dead, state="replayed") == [("red/2", "replayed"), ("red/1", "replayed")]


def test_what_is_still_refused_says_why_and_stays(dead: DeadLetters, box: Box) -> None:
    name = box.put("red", 1)
    done = dead.replay(name)
    assert (done.taken, done.ok, dict(done.left)) == ((), False, {name: "no number"})
    assert listed(dead) == [("red/1", "open")]


def test_a_letter_that_is_refused_no_more_is_resolved_if_somebody_had_acted_on_it(
    dead: DeadLetters, box: Box
) -> None:
    names = [box.put("red", n) for n in (1, 2)]
    dead.edit(names[0], {"amount": "1"})
    box.there["red"].clear()
    assert listed(dead, state="all") == [("red/1", "resolved")]
    assert dead.replay(names[0]).before == (names[0],)
    with raises(hw.UsageError, letter=names[0], state="resolved"):
        dead.drop(names[0])


def test_one_that_is_refused_again_is_open_again(dead: DeadLetters, box: Box) -> None:
    name = box.put("red", 1)
    dead.edit(name, {"amount": "1"})
    dead.replay(name)
    box.put("red", 1)
    one = dead.show(name)
    assert (one.state, one.edit, one.version) == ("open", None, 2)


def test_of_two_who_decide_on_the_same_the_second_is_refused(dead: DeadLetters, box: Box) -> None:
    name = box.put("red", 1)
    seen = dead.show(name).version
    dead.edit(name, {"amount": "1"}, by="anna", expect=seen)
    with raises(hw.ConflictError, topic=TOPIC, expected={"red/1": 0}, actual={"red/1": 1}):
        dead.edit(name, {"amount": "2"}, by="ben", expect=seen)
    with pytest.raises(hw.ConflictError):
        dead.drop(name, by="ben", expect=seen)
    assert [d.who for d in dead.show(name).actions] == ["anna"]


def test_of_many_at_once_one_edits(dead: DeadLetters, box: Box) -> None:
    name = box.put("red", 1)
    seen, outcome = dead.show(name).version, list[str]()
    ready = threading.Barrier(6)

    def act(who: str) -> None:
        ready.wait()
        try:
            dead.edit(name, {"amount": who}, by=who, expect=seen)
            outcome.append("done")
        except hw.ConflictError:
            outcome.append("refused")

    threads = [threading.Thread(target=act, args=(str(n),)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcome) == ["done", *["refused"] * 5]
    assert dead.show(name).version == 1


def test_who_does_it_is_the_user_of_the_system_unless_said(
    dead: DeadLetters, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "carla")
    dead.drop(box.put("red", 1))
    assert dead.show("red/1").actions[0].who == "carla"


def test_names_that_are_not_there_are_told_with_what_was_meant(dead: DeadLetters, box: Box) -> None:
    box.put("red", 17)
    for name in ("red/71", "red", "rad/17"):
        with pytest.raises(hw.LetterNotFoundError) as told:
            dead.show(name)
        assert (told.value.hint or "").startswith(
            "did you mean red/17" if name == "red/71" else "`headwater dead list`"
        )
    assert dead.show("RED/17").id == "red/17"
    with raises(hw.LetterNotFoundError, owner="rad") as told:
        dead.list(of="rad")
    assert told.value.hint == "did you mean red?"
    with raises(hw.UsageError, letter="red/17", column="amout") as wrong:
        dead.edit("red/17", {"amout": 5})
    assert wrong.value.hint == "did you mean amount?"
    with raises(hw.BadRowError, column="amount", expected="STRING"):
        dead.edit("red/17", {"amount": 5})
    for letters, of in ((None, None), ("red/17", "red")):
        with raises(hw.UsageError, reason="letters-or-of"):
            dead.drop(letters, of=of)


def test_an_owner_that_does_not_answer_hides_no_other(dead: DeadLetters, box: Box) -> None:
    box.put("red", 1)
    dead.edit(box.put("blue", 2), {"amount": "1"})
    box.away.add("blue")
    assert listed(dead, state="all") == [("red/1", "open")]
    assert dead.unreadable == {"blue": "blue does not answer"}
    with pytest.raises(hw.TargetDownError):
        dead.show("blue/2")
    with raises(hw.UsageError, owner="blue"):
        dead.replay(of="blue")
    box.away.clear()
    assert listed(dead, state="all") == [("blue/2", "edited"), ("red/1", "open")]
    assert dead.unreadable == {}


def test_what_was_done_is_a_topic_that_outlasts_its_readers(
    ws: hw.Workspace, dead: DeadLetters, box: Box
) -> None:
    box.put("red", 1)
    dead.edit("red/1", {"amount": "5"}, by="anna", reason="typo")
    dead.drop("red/1", by="ben")
    rows = [row for batch in ws.topic(TOPIC).read("earliest") for row in batch.to_pylist()]
    assert [(row["letter"], row["action"], row["who"], row["_offset"]) for row in rows] == [
        ("red/1", "edit", "anna", 0),
        ("red/1", "drop", "ben", 1),
    ]
    with raises(hw.SchemaError, topic=TOPIC, reason="event-sourced"):
        ws.sql(f"ALTER TOPIC {TOPIC} SET (retention = '1 day')")


def test_another_topic_in_its_place_is_told(ws: hw.Workspace, dead: DeadLetters, box: Box) -> None:
    """One that was made when that was not refused yet."""
    ws.log.create_topic(define_topic(TOPIC, pa.schema([("id", pa.int64())])))
    box.put("red", 1)
    with raises(hw.UsageError, topic=TOPIC):
        dead.drop("red/1")


def test_what_was_done_in_a_topic_of_the_same_name_before_does_not_count(ws: hw.Workspace, box: Box) -> None:
    box.put("red", 1)
    dead = DeadLetters(ws.log, (box,))
    dead.drop("red/1")
    box.there["red"] = [replace(one, incarnation=7) for one in box.there["red"]]
    assert listed(dead) == [("red/1", "open")]
    dead.drop("red/1")
    assert listed(dead) == []
    assert [d.incarnation for d in read_actions(ws.log).by_letter["red/1"]] == [0, 7]
    assert set(SCHEMA.names) >= {"who", "original", "edited"}
