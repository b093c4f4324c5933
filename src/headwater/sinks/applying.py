"""Keeping one target in step with its view: what is new is taken, netted and applied, and then again.

A sink pulls: it has a stand, which its target keeps, and no queue. While the target is slow or away ticks pass, and what they
changed is applied as one net change afterwards. Where the stand does not say what is to come next (there is none, or it is of
another history, older than the ticks that are kept, in the future, or of a change that was not finished) what the
target holds is compared with the view, and the difference applied. `Applier.step` does the next piece of work; the
thread around it is in `running`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pyarrow as pa
import xxhash

from headwater.clock import Clock
from headwater.errors import TickNotKeptError
from headwater.operators.delta import Delta, concat, concat_rows, consolidate
from headwater.sinks.checksums import Tally, tally
from headwater.sinks.circuit import Circuit
from headwater.sinks.feed import Advance, Feed, Pending, Point
from headwater.sinks.netting import Netted, net, net_level, without
from headwater.sinks.rendering import shown
from headwater.sinks.status import Lag, Letters, OnError, State, Status
from headwater.sinks.target import (
    WEIGHT,
    RowsRefusedError,
    Shape,
    SinkError,
    Stand,
    StandMovedError,
    Target,
)
from headwater.sinks.withheld import ROWS_MAX, Choose, Tried, Withheld, row_pairs

__all__ = ["STAND_TICKS", "Applier", "Lag", "Letters", "OnError", "State", "Status", "refuse_occupied"]

STAND_TICKS = 16
"""So many ticks that change nothing pass before the target is told of them: well before they are not kept any more."""


class Applier:
    """One sink's work, a piece at a time. For any thread; each piece of work is done by one of them.

    `letters` takes rows that were refused, if they are to be diverted: it is called after they were left out, and is
    called again with the same letters if it is not known whether it came to its end. `told` is called with every new
    status.
    """

    def __init__(
        self,
        shape: Shape,
        target: Target,
        feed: Feed,
        clock: Clock,
        *,
        on_error: OnError = "stop",
        letters: Callable[[Letters], None] | None = None,
        told: Callable[[Status], None] | None = None,
    ) -> None:
        self.shape = shape
        self._target = target
        self._feed = feed
        self._clock = clock
        self._on_error = on_error
        self._letters = letters
        self._told = told
        self._busy = threading.RLock()
        self._news = threading.Condition()
        self._status = Status(shape.sink)
        self._form = _form(shape, target)
        self._prepared = False
        self._known = False
        self._since = clock.now_us()
        self._stand: Stand | None = None
        self._reached = 0

    # --- what is asked of it ---------------------------------------------------------------------------------------

    def status(self) -> Status:
        """How it is doing."""
        circuit = self._circuit()
        return self._status if circuit is None else replace(self._status, circuit=circuit.state)

    def resume(self) -> None:
        """Let the next attempt through, also if the target is left alone for now."""
        circuit = self._circuit()
        if circuit is not None:
            circuit.reset()

    def _circuit(self) -> Circuit | None:
        found: Circuit | None = getattr(self._target, "circuit", None)
        return found

    def lag(self) -> Lag:
        """How far the target is behind, as far as this process knows."""
        status = self._status
        history = self.history(self._stand) if self._stand is not None else None
        if status.tick is None or history is None:
            point = self._feed.latest()
            # where it stands is not known: it is behind at least since it is kept in step here
            pending = Pending(point.tick, None, self._since) if point is not None else Pending(0, 0, None)
        else:
            pending = self._feed.pending(status.tick, history)
        seconds = 0.0 if pending.since is None else (self._clock.now_us() - pending.since) / 1e6
        return Lag(pending.ticks, pending.rows, max(seconds, 0.0))

    def reached(self, tick: int, timeout_ms: float) -> bool:
        """Wait until the target has everything up to a tick, or the sink is stopped, or the time is over; whether it has."""

        def done() -> bool:
            return self._at(tick) or self._status.state in ("stopped", "closed")

        with self._news:
            self._news.wait_for(done, timeout_ms / 1_000)
        return self._at(tick)

    def history(self, stand: Stand) -> str | None:
        """Which history of the view a stand is of; None if it is of rows in another form, or of another place."""
        history, _, form = stand.history.rpartition("#")
        return history if form == self._form else None

    def note(self, state: State, reason: str | None = None, *, attempts: int = 0) -> None:
        """Say how it is doing."""
        self._note(replace(self._status, state=state, reason=reason, attempts=attempts))

    # --- what it does ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what is next; whether there was something. Its errors are the target's and the view's: after any of them the
        target is asked where it stands before more is done."""
        with self._working():
            try:
                return self._step()
            except StandMovedError:
                self._known = False
            return self._step()

    def look(self) -> Status:
        """Ask the target where it stands, and do nothing to it; how the sink is doing then."""
        with self._working():
            self._prepare()
            self._known = False
            self._learn()
            stand = self._stand
            tick = (
                stand.tick if stand is not None and stand.whole and self.history(stand) is not None else None
            )
            self._note(replace(self._status, tick=tick))
        return self._status

    def level(self) -> int:
        """Compare what the target holds with the view, whatever its stand says, and apply the difference; how many rows
        that were."""
        with self._working():
            self._known = False
            point = self._point_after_stand()
            return 0 if point is None else self._level(point)

    def mark(self) -> Stand | None:
        """Have the target told of the tick that it has got to, also where nothing has changed since; its stand then."""
        with self._working():
            self._learn()
            stand = self._stand
            if stand is None or stand.tick == self._reached:
                return stand
            after = replace(stand, tick=self._reached)
            self._target.apply(net([], self.shape, self._target).change, stand, after)
            self._stand = after
            return after

    def withheld(self) -> Withheld:
        """The rows that the target has refused, as it stands now."""
        with self._working():
            self._prepare()
            self._known = False
            self._learn()
            return Withheld.none(self.shape.schema) if self._stand is None else self._withheld(self._stand)

    def refused(self) -> Withheld:
        """The same as it was when the target was last heard of: nobody is asked, and nothing waited for."""
        stand = self._stand
        return Withheld.none(self.shape.schema) if stand is None else self._withheld(stand)

    def retry(self, choose: Choose | None = None) -> int:
        """Try the rows again that the target has refused, or those of them that are chosen; how many it took."""
        with self._working():
            self._prepare()
            try:
                return self._retry(choose)
            except StandMovedError:
                self._known = False
            return self._retry(choose)

    @contextmanager
    def paused(self) -> Iterator[Target]:
        """The target, while nothing is done to it from here."""
        with self._working():
            self._prepare()
            yield self._target

    def forget(self) -> None:
        """Ask the target anew where it stands, before anything else is done."""
        with self._busy:
            self._known = False

    def close(self) -> None:
        """Let go of the target."""
        with self._busy:
            self._target.close()
            self.note("closed")

    # --- one step --------------------------------------------------------------------------------------------------

    def _retry(self, choose: Choose | None) -> int:
        self._learn()
        point = None if self._stand is None else self._point()
        if point is None:
            return 0
        if not self._goes_on(point):  # what is written next would say that all is there
            self._level(point)
        stand = self._stand
        assert stand is not None
        withheld = self._withheld(stand)
        every = np.arange(len(withheld))
        chosen = Tried(every, withheld.rows) if choose is None else choose(withheld)
        if not len(chosen.places):
            return 0
        tried = withheld.take(chosen.places)
        rest = withheld.take(np.setdiff1d(every, chosen.places))
        netted = net([(stand.tick, Delta(chosen.rows, tried.weights))], self.shape, self._target)
        whole = Tally(stand.checksum, stand.rows) + withheld.tally(self._target)
        after = replace(stand, tick=self._reached)
        self._apply(netted, stand, after, whole, rest, again=(tried, chosen.rows))
        return len(withheld) - self._status.withheld

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._busy:
            try:
                yield
            except BaseException:
                self._known = self._prepared = False
                raise

    def _prepare(self) -> None:
        if not self._prepared:
            self._target.prepare(self.shape)
            self._prepared = True

    def _point(self) -> Point | None:
        point = self._feed.latest()
        if point is None:
            self.note("waiting", f"view {self.shape.view!r} is part of no tick yet")
            return None
        if not point.schema.equals(self.shape.schema):
            raise SinkError(
                f"view {self.shape.view!r} has other columns than sink {self.shape.sink!r} was made for",
                detail=f"it has {_columns(point.schema)}; the sink expects {_columns(self.shape.schema)}",
                hint="DROP SINK and CREATE it anew, with another table or prefix",
                sink=self.shape.sink,
            )
        self._prepare()
        return point

    def _learn(self) -> None:
        """Where the target stands, if that is not known from the last step."""
        if self._known:
            return
        self._stand = stand = self._target.stand()
        self._reached = stand.tick if stand is not None else 0
        withheld = Withheld.none(self.shape.schema) if stand is None else self._withheld(stand)
        if stand is not None:
            self._tell_of(withheld, stand)
        self._note(replace(self._status, withheld=len(withheld)))
        self._known = True

    def _point_after_stand(self) -> Point | None:
        """The newest tick of the view, with the stand known. If the target had to be asked, the tick is looked up again after its answer: who else
        keeps it in step may have gone on meanwhile, and a stand ahead of an older look would pass for one of the future."""
        point = self._point()
        if point is None or self._known:
            return point
        self._learn()
        return self._point()

    def _step(self) -> bool:
        point = self._point_after_stand()
        if point is None:
            return False
        stand = self._stand
        if stand is None or not self._goes_on(point):
            self._level(point)
            return True
        try:
            advance = self._feed.changes(self._reached, point.history)
        except TickNotKeptError:
            self._level(point)
            return True
        return self._advance(stand, advance)

    def _goes_on(self, point: Point) -> bool:
        """Whether the stand says what is to come next."""
        stand = self._stand
        is_of_view = stand is not None and stand.whole and self.history(stand) == point.history
        return is_of_view and self._reached <= point.tick

    def _advance(self, stand: Stand, advance: Advance) -> bool:
        if advance.reached == self._reached:
            if self._status.state != "following" or self._status.tick != self._reached:
                self._follow(0)
            return False
        netted = net(advance.ticks, self.shape, self._target)
        if not len(netted) and advance.reached - stand.tick < STAND_TICKS:
            self._reached = advance.reached
            self._follow(0)
            return True
        withheld = self._withheld(stand)
        whole = Tally(stand.checksum, stand.rows) + withheld.tally(self._target) + netted.difference
        after = replace(stand, tick=advance.reached)
        self._apply(netted, stand, after, whole, withheld.after(netted.change, self._target))
        return True

    def _level(self, point: Point) -> int:
        self.note("levelling", "what the target holds is compared with the view")
        stand = self._stand
        view = consolidate(self._feed.contents(point.tick))
        held = self._target.held(view.rows)
        whole = tally(held, view.weights)
        withheld = Withheld.none(self.shape.schema)
        if stand is not None:
            withheld = self._withheld(stand).still_in(view)
        if len(withheld):
            left_out = Delta(withheld.rows, -withheld.weights)
            view = consolidate(concat([view, left_out], self.shape.schema))
            held = self._target.held(view.rows)
        there = list(self._target.contents())
        empty = held.schema.append(WEIGHT) if self.shape.mode == "changelog" else held.schema
        rows = concat_rows(there, there[0].schema if there else empty)
        netted = net_level(view, held, rows, point.tick, self.shape, self._target)
        after = Stand(point.tick, f"{point.history}#{self._form}", 0)
        self._apply(netted, stand, after, whole, withheld)
        self._note(replace(self._status, levelled=self._status.levelled + 1))
        return len(netted)

    def _apply(
        self,
        netted: Netted,
        before: Stand | None,
        after: Stand,
        whole: Tally,
        withheld: Withheld,
        again: tuple[Withheld, pa.RecordBatch] | None = None,
    ) -> None:
        """Apply a change; `whole` is the tally of all rows of the view, `withheld` those that are left out so far. What is
        refused is told of, unless the change is of rows that were refused before and are tried `again`: these, and what is
        given in their place."""
        serial = self._clock.now_us()
        while True:
            rest = whole - withheld.tally(self._target)
            after = replace(
                after, checksum=rest.checksum, rows=rest.rows, withheld=withheld.encode(), whole=True
            )
            change = netted.change
            if again is not None:
                change = replace(change, letters=_letters_of(netted.rows, *again))
            try:
                self._target.apply(change, before, after)
                break
            except RowsRefusedError as error:
                if again is None:
                    withheld = self._divert(error, netted, withheld, serial)
                else:
                    withheld = withheld.and_again(*again, netted.rows, netted.change, error.refused)
                refused = np.array([one.index for one in error.refused], dtype=np.int64)
                netted = without(netted, refused, self._target)
        self._stand, self._reached = after, after.tick
        if again is None and serial in withheld.letters:
            self._tell_of(withheld, after)
        self._known = True
        self._follow(len(netted), withheld=len(withheld))

    def _divert(self, error: RowsRefusedError, netted: Netted, withheld: Withheld, serial: int) -> Withheld:
        first = error.refused[0]
        if self._on_error == "stop" or self._letters is None:
            raise SinkError(
                f"the target of sink {self.shape.sink!r} refuses a row of view {self.shape.view!r}: {first.reason}",
                detail=f"the row is {shown(netted.rows.slice(first.index), 1)}",
                hint="mend it where it comes from, or let the target take it; on_error = 'divert' leaves such rows out and "
                "puts them on a topic",
                sink=self.shape.sink,
            ) from error
        withheld = withheld.and_refused(netted.rows, netted.change, error.refused, serial)
        if len(withheld) > ROWS_MAX:
            raise SinkError(
                f"the target of sink {self.shape.sink!r} refuses more than {ROWS_MAX:,} rows: {first.reason}",
                hint="so many rows are not diverted: compare the columns of the view with what the target takes",
                sink=self.shape.sink,
            ) from error
        return withheld

    # --- what it tells ---------------------------------------------------------------------------------------------

    def _withheld(self, stand: Stand) -> Withheld:
        return Withheld.decode(stand.withheld, self.shape.schema)

    def _tell_of(self, withheld: Withheld, stand: Stand) -> None:
        """Tell of the rows that were refused last: once more if that is so already, which is for the receiver to see."""
        if not len(withheld) or self._letters is None:
            return
        serial = int(withheld.letters.max())
        last = withheld.take(np.flatnonzero(withheld.letters == serial))
        self._letters(Letters(self.shape.sink, serial, stand.tick, last.rows, last.reasons))

    def _follow(self, rows: int, *, withheld: int | None = None) -> None:
        status = self._status
        self._note(
            replace(
                status,
                state="following",
                reason=None,
                attempts=0,
                tick=self._reached,
                withheld=status.withheld if withheld is None else withheld,
                applied_rows=status.applied_rows + rows,
                applied_changes=status.applied_changes + bool(rows),
            )
        )

    def _note(self, status: Status) -> None:
        if status != self._status:
            with self._news:
                self._status = status
                self._news.notify_all()
            if self._told is not None:
                self._told(status)

    def _at(self, tick: int) -> bool:
        return self._status.tick is not None and self._status.tick >= tick


def refuse_occupied(shape: Shape, target: Target) -> None:
    """For a sink that is made just now: SinkError if its target holds rows that no sink of this name has put there. To
    bring it level would remove them."""
    if target.stand() is not None:
        return
    if any(batch.num_rows for batch in target.contents()):
        raise SinkError(
            f"the target of sink {shape.sink!r} has rows in it already, and they would be replaced by those of view "
            f"{shape.view!r}",
            hint="name another place, or say adopt = true if they may be replaced",
            sink=shape.sink,
        )


def _letters_of(rows: pa.RecordBatch, tried: Withheld, given: pa.RecordBatch) -> tuple[int, ...]:
    """The letter that told of each row: the first one, of several that are alike."""
    known: dict[tuple[int, int], int] = {}
    for pair, letter in zip(row_pairs(given), tried.letters.tolist(), strict=True):
        known[pair] = min(letter, known.get(pair, letter))
    return tuple(known[pair] for pair in row_pairs(rows))


def _form(shape: Shape, target: Target) -> str:
    """Eight digits for what a position stands for beside the tick: a sink that is made anew under its old name, with another
    key or table, does not go on from where the old one was."""
    place = getattr(target, "place", "")
    text = f"{place}\n{shape.mode}\n{shape.key}\n{_columns(shape.schema)}"
    return xxhash.xxh3_64_hexdigest(text)[:8]


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
