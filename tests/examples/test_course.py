"""The course of the examples: a reaction that is added later, to what has been or to what comes."""

from __future__ import annotations

import pytest

import headwater as hw
from examples.events import course as example
from examples.events.course import CancelEnrolment, Enrol, a_year, course, waiting_list
from tests.raising import raises


def test_from_the_beginning_it_reacts_to_past_cancellations(ws: hw.Workspace) -> None:
    courses = ws.store(course)
    a_year(courses)
    assert waiting_list(ws, courses, "beginning").run().issued == 1
    assert courses.load("latin").state.enrolled == ("bob", "cyd")
    moved = courses.events("latin")[-1]
    assert (moved.reason, moved.causation_id) == ("ada has cancelled", "course/latin/6")


def test_from_now_on_it_reacts_to_what_comes(ws: hw.Workspace) -> None:
    courses = ws.store(course)
    a_year(courses)
    reaction = waiting_list(ws, courses, "now")
    assert reaction.run().issued == 0
    assert courses.load("latin").state.enrolled == ("bob",)
    courses.execute("latin", CancelEnrolment("bob"))
    assert reaction.run().issued == 1
    assert courses.load("latin").state.enrolled == ("cyd",)


def test_nobody_is_on_the_list_twice(ws: hw.Workspace) -> None:
    courses = ws.store(course)
    a_year(courses)
    for student in ("bob", "cyd"):
        with raises(hw.CommandRefusedError, student=student):
            courses.execute("latin", Enrol(student))


def test_the_story_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    assert "beginning Reacted(handled=1, issued=1, refused=0, repeated=0)" in capsys.readouterr().out
