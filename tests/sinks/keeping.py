"""A keeper of stands in memory, and how those who are handed changes can be held to the contract."""

import random
from contextlib import suppress
from typing import Any

import pyarrow as pa

from headwater.core.positions import Token
from headwater.operators.zset.delta import Delta, concat, consolidate
from headwater.sinks.base.applier import Applier, OnError
from headwater.sinks.base.at_least_once import one_tick_at_a_time
from headwater.sinks.base.target import SinkError, TargetDownError
from headwater.testing.faults import Crash
from headwater.testing.sinks import SinkContract
from headwater.testing.sinks.sink_contract import row

Row = dict[str, Any]


class Kept:
    """One text, in memory."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.tick: Token | None = None

    def read(self) -> str | None:
        """See `StandKeeper`."""
        return self.text

    def write(self, text: str) -> None:
        """See `StandKeeper`."""
        self.text = text

    def last_delivered(self) -> Token | None:
        """See `StandKeeper`."""
        return self.tick

    def hand(self, tick: Token) -> None:
        """See `StandKeeper`."""
        self.tick = tick


class Receiver:
    """What somebody makes of changes who remembers the keys he has seen: a table."""

    def __init__(self, key: tuple[str, ...]) -> None:
        self.key = key
        self.rows: dict[tuple[Any, ...], Row] = {}
        self.seen: list[str] = []

    def take(self, key: str, deletes: list[Row], upserts: list[Row], *, first_of_snapshot: bool) -> None:
        """Do a change, unless it was done."""
        if key in self.seen and not first_of_snapshot:
            return
        self.seen.append(key)
        if first_of_snapshot:
            self.rows.clear()
        for gone in deletes:
            self.rows.pop(tuple(gone[name] for name in self.key), None)
        for come in upserts:
            self.rows[tuple(come[name] for name in self.key)] = come


class AtLeastOnceContract(SinkContract):
    """The stories of the contract that hold without a position in the target: what the receiver has is what counts, and it
    cannot be read back."""

    many = 300
    receiver: Receiver

    def start(self, *, on_error: OnError = "stop") -> Applier:
        whole, self.feed = self.feed, one_tick_at_a_time(self.feed)  # type: ignore[assignment]
        try:
            return super().start(on_error=on_error)
        finally:
            self.feed = whole

    def assert_holds(self, rows: list[Row] | None = None) -> None:
        there = pa.Table.from_pylist(list(self.receiver.rows.values()), schema=self.schema)
        batches = there.combine_chunks().to_batches() or self.schema.empty_table().to_batches()
        expected = self.held(self.feed.rows() if rows is None else rows)
        found = concat([Delta.of(batch) for batch in batches], self.schema)
        rest = consolidate(concat([expected, found.negated()], self.schema))
        assert not len(rest), list(zip(rest.rows.to_pylist(), rest.weights.tolist(), strict=True))

    def test_whatever_happens_in_between_the_end_is_the_view(self) -> None:
        dice = random.Random(7)
        applier = self.start()
        rows: dict[int, Row] = {}
        for _ in range(25):
            for _ in range(dice.randrange(4)):
                at = dice.randrange(6)
                if at in rows and dice.random() < 0.4:
                    del rows[at]
                else:
                    rows[at] = row(at, dice.choice("abc"), dice.randrange(3) / 2)
            self.feed.tick(list(rows.values()))
            event = dice.randrange(5)
            if event < 2:
                self.target.break_at("before" if event else "after", Crash())
                try:
                    applier.step()
                except Crash:
                    applier = self.start()
                self.target.be_steady()
            elif event == 2:
                with self.break_within(), suppress(TargetDownError):
                    applier.step()
            elif event == 3:
                self.feed.forget(self.feed.now - 1)
        self.catch_up(applier)
        self.assert_holds()

    def test_rows_that_are_refused_are_diverted_and_others_go_on(self) -> None:
        bad, worse = self.refused_row(5), self.refused_row(6)
        good = [row(i) for i in range(20)]
        self.feed.tick([*good, bad])
        applier = self.run(on_error="divert")
        self.assert_holds(good)
        self.feed.tick([*good[1:], bad, worse, row(30)])
        self.catch_up(applier)
        self.assert_holds([*good[1:], row(30)])
        assert [one.rows.to_pylist() for one in self.letters.values()] == [[bad], [worse]]
        assert all(reason for letters in self.letters.values() for reason in letters.reasons)

    def test_a_row_that_is_refused_stops_the_sink_before_it(self) -> None:
        self.feed.tick([row(1), self.refused_row(5), row(2)])
        applier = self.start()
        with self.failing(SinkError) as found:
            applier.step()
        assert found[0].facts["reason"] == "rejected-row"
        assert self.target.checkpoint() is None
        self.feed.tick([row(1), row(2)])
        self.catch_up(applier)
        self.assert_holds()

    # Without contents to read there is nothing to compare, and ticks are not taken together.
    test_a_target_put_back_from_a_backup_goes_on_from_there = None
    test_a_backup_from_before_the_ticks_that_are_kept_is_brought_level = None
    test_several_ticks_are_taken_as_one_net_change = None
    test_a_target_as_it_should_be_is_found_so = None
    test_what_was_changed_behind_our_back_is_found_and_repaired = None
