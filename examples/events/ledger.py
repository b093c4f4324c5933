"""A ledger whose closed periods stay closed: a mistake is mended by an entry in the period that is open.

    python examples/events/ledger.py

An entry is never changed. What was wrong in March is undone by a compensating entry in April, which names the entry that it
undoes; the report of March is the same for ever, and April shows the correction.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated

import headwater as hw
from headwater.events import Aggregate, Refused

Money = Annotated[Decimal, "DECIMAL(14,2)"]


@dataclass(frozen=True)
class Posted:
    entry: str
    period: str
    amount: Money
    corrects: str | None = None


@dataclass(frozen=True)
class PeriodClosed:
    period: str


@dataclass(frozen=True)
class Post:
    entry: str
    period: str
    amount: Decimal


@dataclass(frozen=True)
class Correct:
    """Undo an entry, and post what it should have been, in a period that is open."""

    wrong: str
    entry: str
    period: str
    amount: Decimal


@dataclass(frozen=True)
class ClosePeriod:
    period: str


@dataclass(frozen=True)
class Ledger:
    entries: Mapping[str, Decimal] = field(default_factory=dict)
    undone: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()


Command = Post | Correct | ClosePeriod
Event = Posted | PeriodClosed


def decide(ledger: Ledger, command: Command) -> Iterator[Event]:
    if command.period in ledger.closed:
        raise Refused(
            f"period {command.period} is closed", hint="post it to an open period", period=command.period
        )
    match command:
        case Post(entry, period, amount):
            _new(ledger, entry)
            yield Posted(entry, period, amount)
        case Correct(wrong, entry, period, amount):
            _new(ledger, entry)
            if wrong not in ledger.entries or wrong in ledger.undone:
                raise Refused(f"entry {wrong} does not exist, or was already corrected", entry=wrong)
            yield Posted(f"undo {wrong}", period, -ledger.entries[wrong], corrects=wrong)
            yield Posted(entry, period, amount)
        case ClosePeriod(period):
            yield PeriodClosed(period)


def _new(ledger: Ledger, entry: str) -> None:
    if entry in ledger.entries:
        raise Refused(f"entry {entry} already exists", entry=entry)


def fold(ledger: Ledger, event: Event) -> Ledger:
    match event:
        case Posted(entry, _, amount, corrects):
            undone = ledger.undone | ({corrects} if corrects is not None else set())
            return replace(ledger, entries={**ledger.entries, entry: amount}, undone=undone)
        case PeriodClosed(period):
            return replace(ledger, closed=ledger.closed | {period})


ledger = Aggregate("ledger", decide, fold)

PERIODS = """
    CREATE MATERIALIZED VIEW IF NOT EXISTS periods AS
    SELECT aggregate_id AS ledger, period, sum(amount) AS total, count(*) AS entries, count(corrects) AS corrections
    FROM ledger WHERE event = 'Posted' GROUP BY aggregate_id, period
"""


def two_periods(ws: hw.Workspace) -> None:
    """March is closed with a mistake in it, which April mends."""
    books = ws.store(ledger)
    books.execute("shop", Post("rent", "2026-03", Decimal("900.00")))
    books.execute("shop", Post("power", "2026-03", Decimal("810.00")), reason="digits swapped")
    books.execute("shop", ClosePeriod("2026-03"))
    books.execute("shop", Correct("power", "power, corrected", "2026-04", Decimal("180.00")), actor="auditor")


def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder, hw.open(folder) as ws:
        two_periods(ws)
        try:
            ws.store(ledger).execute("shop", Post("late", "2026-03", Decimal("1.00")))
        except hw.CommandRefusedError as error:
            print(error)
        print(ws.store(ledger).history("shop"))
        ws.sql(PERIODS)
        ws.run()
        print(ws.query("SELECT * FROM periods ORDER BY period").to_pylist())


if __name__ == "__main__":
    main()
