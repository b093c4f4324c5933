"""Seats of a show: held for some minutes, then confirmed, or free again; never two people's.

    python examples/events/seats.py

Every booking is an aggregate of its own, and a seat is a name that one booking at most has. Holding claims it until a time;
confirming claims it for good. A hold that ran out needs nobody to notice: the next who wants the seat gets it, and the
first is refused if he confirms too late.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import headwater as hw
from headwater.core.clock import ManualClock, from_us
from headwater.events import Aggregate, Claim, Refused, Release


@dataclass(frozen=True)
class SeatHeld:
    show: str
    seat: str
    until: datetime


@dataclass(frozen=True)
class SeatConfirmed:
    show: str
    seat: str


@dataclass(frozen=True)
class BookingCancelled:
    pass


@dataclass(frozen=True)
class HoldExpired:
    pass


@dataclass(frozen=True)
class Hold:
    show: str
    seat: str
    until: datetime


@dataclass(frozen=True)
class Confirm:
    pass


@dataclass(frozen=True)
class Cancel:
    pass


@dataclass(frozen=True)
class Expire:
    """Sent by whoever sweeps up after those who never came back."""

    now: datetime


@dataclass(frozen=True)
class Booking:
    stage: Literal["new", "held", "confirmed", "over"] = "new"
    show: str = ""
    seat: str = ""
    until: datetime | None = None


Command = Hold | Confirm | Cancel | Expire
Event = SeatHeld | SeatConfirmed | BookingCancelled | HoldExpired
SEAT = "seat"


def decide(booking: Booking, command: Command) -> Iterator[Event | Claim | Release]:
    place = f"{booking.show}, {booking.seat}"
    match command:
        case Hold(show, seat, until) if booking.stage == "new":
            yield SeatHeld(show, seat, until)
            yield Claim(SEAT, f"{show}, {seat}", until)
        case Confirm() if booking.stage == "held":
            yield SeatConfirmed(booking.show, booking.seat)
            yield Claim(SEAT, place)
        case Cancel() if booking.stage in ("held", "confirmed"):
            yield BookingCancelled()
            yield Release(SEAT, place)
        case Expire(now) if booking.stage == "held":
            if booking.until is not None and now >= booking.until:
                yield HoldExpired()
                yield Release(SEAT, place)
        case _:
            name = type(command).__name__
            raise Refused(
                f"{name} is not possible in stage {booking.stage!r}", command=name, stage=booking.stage
            )


def fold(booking: Booking, event: Event) -> Booking:
    match event:
        case SeatHeld(show, seat, until):
            return Booking("held", show, seat, until)
        case SeatConfirmed():
            return replace(booking, stage="confirmed", until=None)
        case BookingCancelled() | HoldExpired():
            return replace(booking, stage="over")


booking = Aggregate("booking", decide, fold)


def main() -> None:
    """Tell the story."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as folder, hw.open(folder, clock=clock) as ws:
        bookings = ws.store(booking)
        until = from_us(clock.now_us()) + timedelta(minutes=10)
        bookings.execute("ada's", Hold("Hamlet", "7B", until))
        try:
            bookings.execute("bob's", Hold("Hamlet", "7B", until))
        except hw.ClaimTakenError as error:
            print(error)
        clock.advance("15 minutes")
        bookings.execute("bob's", Hold("Hamlet", "7B", until + timedelta(minutes=15)))
        bookings.execute("bob's", Confirm())
        try:
            bookings.execute("ada's", Confirm())
        except hw.ClaimTakenError as error:
            print(error)
        print(bookings.load("bob's").state)


if __name__ == "__main__":
    main()
