"""The seats of the examples: held, confirmed or free again, and never two people's."""

from __future__ import annotations

from datetime import timedelta

import pytest

import headwater as hw
from examples.events import seats
from examples.events.seats import Cancel, Confirm, Expire, Hold, booking
from headwater.core.clock import ManualClock, from_us
from tests.raising import raises


def test_a_hold_is_confirmed_in_time(ws: hw.Workspace, clock: ManualClock) -> None:
    bookings = ws.store(booking)
    until = from_us(clock.now_us()) + timedelta(minutes=10)
    bookings.execute("a", Hold("Hamlet", "7B", until))
    bookings.execute("a", Confirm())
    clock.advance("1 day")
    with pytest.raises(hw.ClaimTakenError):
        bookings.execute("b", Hold("Hamlet", "7B", until + timedelta(days=2)))
    bookings.execute("b", Hold("Hamlet", "8B", until + timedelta(days=2)))
    bookings.execute("a", Cancel())
    bookings.execute("c", Hold("Hamlet", "7B", until + timedelta(days=2)))
    assert bookings.load("c").state.stage == "held"


def test_a_hold_that_ran_out_is_free_for_the_next_and_too_late_for_the_first(
    ws: hw.Workspace, clock: ManualClock
) -> None:
    bookings = ws.store(booking)
    now = from_us(clock.now_us())
    bookings.execute("a", Hold("Hamlet", "7B", now + timedelta(minutes=10)))
    bookings.execute("a", Expire(now))  # it has not run out yet: nothing happens
    assert bookings.load("a").version == 1
    clock.advance("11 minutes")
    bookings.execute("b", Hold("Hamlet", "7B", now + timedelta(minutes=30)))
    with raises(hw.ClaimTakenError, kind="seat", name="Hamlet, 7B", holder="booking/b"):
        bookings.execute("a", Confirm())
    bookings.execute("a", Expire(now + timedelta(minutes=11)))
    assert bookings.load("a").state.stage == "over"
    bookings.execute("b", Confirm())  # what a let go was no longer a's
    with raises(hw.CommandRefusedError, command="Confirm", stage="over"):
        bookings.execute("a", Confirm())


def test_a_hold_that_ran_out_is_confirmed_if_nobody_came(ws: hw.Workspace, clock: ManualClock) -> None:
    bookings = ws.store(booking)
    bookings.execute("a", Hold("Hamlet", "7B", from_us(clock.now_us()) + timedelta(minutes=10)))
    clock.advance("11 minutes")
    bookings.execute("a", Confirm())
    assert bookings.load("a").state.stage == "confirmed"


def test_the_story_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    seats.main()
    assert capsys.readouterr().out.count("seat 'Hamlet, 7B' is taken") == 2
