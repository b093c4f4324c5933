"""A course with a waiting list, whose reaction is added later to cancellations that are already there.

    python examples/events/course.py

For a year nobody moved up when somebody cancelled. Then a reaction is added. With `since="beginning"` it also reacts to the
cancellations of that year: the places that are still free are offered. With `since="now"` only to those that come.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import headwater as hw
from headwater.events import Aggregate, Reaction, Recorded, Refused, Send, Store


@dataclass(frozen=True)
class CourseOpened:
    places: int


@dataclass(frozen=True)
class Enrolled:
    student: str


@dataclass(frozen=True)
class WaitingListJoined:
    student: str


@dataclass(frozen=True)
class EnrolmentCancelled:
    student: str


@dataclass(frozen=True)
class MovedUp:
    student: str


@dataclass(frozen=True)
class OpenCourse:
    places: int


@dataclass(frozen=True)
class Enrol:
    student: str


@dataclass(frozen=True)
class CancelEnrolment:
    student: str


@dataclass(frozen=True)
class OfferPlace:
    """A place may be free: whoever waits longest gets it."""


@dataclass(frozen=True)
class Course:
    places: int = 0
    enrolled: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


Command = OpenCourse | Enrol | CancelEnrolment | OfferPlace
Event = CourseOpened | Enrolled | WaitingListJoined | EnrolmentCancelled | MovedUp


def decide(course: Course, command: Command) -> Iterator[Event]:
    match command:
        case OpenCourse(places):
            yield CourseOpened(places)
        case Enrol(student):
            if student in (*course.enrolled, *course.waiting):
                raise Refused(f"{student} is already enrolled or waiting", student=student)
            full = len(course.enrolled) >= course.places
            yield WaitingListJoined(student) if full else Enrolled(student)
        case CancelEnrolment(student):
            if student not in course.enrolled:
                raise Refused(f"{student} is not enrolled", student=student)
            yield EnrolmentCancelled(student)
        case OfferPlace():
            if course.waiting and len(course.enrolled) < course.places:
                yield MovedUp(course.waiting[0])


def fold(course: Course, event: Event) -> Course:
    match event:
        case CourseOpened(places):
            return replace(course, places=places)
        case Enrolled(student):
            return replace(course, enrolled=(*course.enrolled, student))
        case WaitingListJoined(student):
            return replace(course, waiting=(*course.waiting, student))
        case EnrolmentCancelled(student):
            return replace(course, enrolled=tuple(one for one in course.enrolled if one != student))
        case MovedUp(student):
            waiting = tuple(one for one in course.waiting if one != student)
            return replace(course, enrolled=(*course.enrolled, student), waiting=waiting)


course = Aggregate("course", decide, fold)


def waiting_list(
    ws: hw.Workspace, courses: Store[Course, Command, Event], since: Literal["beginning", "now"]
) -> Reaction:
    """The reaction: when somebody cancels, the place is offered to those who wait."""

    @ws.reaction("waiting list", courses, since=since)
    def offer(event: EnrolmentCancelled, recorded: Recorded[EnrolmentCancelled]) -> Send[Command]:
        return courses.send(recorded.aggregate_id, OfferPlace(), reason=f"{event.student} has cancelled")

    return offer


def a_year(courses: Store[Course, Command, Event]) -> None:
    """What happened before anybody thought of a waiting list that moves."""
    courses.execute("latin", OpenCourse(2))
    for student in ("ada", "bob", "cyd", "dan"):
        courses.execute("latin", Enrol(student))
    courses.execute("latin", CancelEnrolment("ada"))


def main() -> None:
    """Tell the story, both ways."""
    choices: tuple[Literal["beginning", "now"], ...] = ("beginning", "now")
    for since in choices:
        with tempfile.TemporaryDirectory() as folder, hw.open(folder) as ws:
            courses = ws.store(course)
            a_year(courses)
            reaction = waiting_list(ws, courses, since)
            print(since, reaction.run(), courses.load("latin").state)
            courses.execute("latin", CancelEnrolment("bob"))
            print(since, reaction.run(), courses.load("latin").state)


if __name__ == "__main__":
    main()
