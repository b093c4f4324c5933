"""Keeping one target in step with its view: what is new is taken, netted and applied, and then again.

A sink pulls: it has a stand, which its target keeps, and no queue. While the target is slow or away ticks pass, and what they
changed is applied as one net change afterwards. Where the stand does not say what is to come next (there is none, or it is of
another history, of a tick that is another one now, older than the ticks that are kept, in the future, or of a change that was not finished) what the
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

from headwater.core.clock import Clock
from headwater.core.errors import TickNotKeptError
from headwater.core.positions import Token
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate
from headwater.sinks.base.checksums import Tally, tally
from headwater.sinks.base.circuit_breaker import Guarded
from headwater.sinks.base.diversion import Diversion
from headwater.sinks.base.net_changes import Netted, net, net_level, without
from headwater.sinks.base.rejected_rows import Choose, Tried, Withheld, row_pairs
from headwater.sinks.base.sink_report import SinkReport
from headwater.sinks.base.sink_status import Letters, OnError, SinkLag, State, Status
from headwater.sinks.base.target import (
    WEIGHT,
    CheckpointConflictError,
    RowsRefusedError,
    SinkCheckpoint,
    SinkError,
    Target,
    TargetShape,
)
from headwater.sinks.base.target_position import TargetPosition, columns_text
from headwater.sinks.base.view_feed import PendingTicks, Point, SinkFeed, TickChanges

__all__ = ["STAND_TICKS", "Applier", "Letters", "OnError", "SinkLag", "State", "Status", "refuse_occupied"]

STAND_TICKS = 16
"""So many ticks that change nothing pass before the target is told of them: well before they are not kept any more."""


class Applier:
    """One sink's work, a piece at a time. For any thread; each piece of work is done by one of them.

    `on_error` and `letters` say what becomes of rows that the target refuses (`Diversion`).
    """

    def __init__(
        self,
        shape: TargetShape,
        target: Target,
        feed: SinkFeed,
        clock: Clock,
        *,
        on_error: OnError = "stop",
        letters: Callable[[Letters], None] | None = None,
    ) -> None:
        self.shape = shape
        self.report = SinkReport(shape.sink)
        """How it is doing, for those who listen."""
        self._target = target
        self._feed = feed
        self._clock = clock
        self._busy = threading.RLock()
        self._diversion = Diversion(shape, on_error, letters)
        self._position = TargetPosition(shape, target, feed)
        self._since = clock.now_us()

    # --- what is asked of it ---------------------------------------------------------------------------------------

    def status(self) -> Status:
        """How it is doing."""
        status = self.report.status
        if not isinstance(self._target, Guarded):
            return status
        return replace(status, circuit=self._target.circuit.state)

    def resume(self) -> None:
        """Let the next attempt through, also if the target is left alone for now."""
        if isinstance(self._target, Guarded):
            self._target.circuit.reset()

    def lag(self) -> SinkLag:
        """How far the target is behind, as far as this process knows."""
        status, stand = self.report.status, self._position.stand
        history = self.history(stand) if stand is not None else None
        if status.tick is None or history is None:
            point = self._feed.latest()
            # where it stands is not known: it is behind at least since it is kept in step here
            pending = (
                PendingTicks(point.tick, None, self._since) if point is not None else PendingTicks(0, 0, None)
            )
        else:
            pending = self._feed.pending(status.tick, history)
        seconds = 0.0 if pending.since is None else (self._clock.now_us() - pending.since) / 1e6
        return SinkLag(pending.ticks, pending.rows, max(seconds, 0.0))

    def history(self, stand: SinkCheckpoint) -> str | None:
        """Which history of the view a stand is of; None if it is of rows in another form, or of another place."""
        return self._position.history(stand)

    # --- what it does ----------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what is next; whether there was something. Its errors are the target's and the view's: after any of them the
        target is asked where it stands before more is done."""
        with self._working():
            try:
                return self._step()
            except CheckpointConflictError:
                self._position.doubt()
            return self._step()

    def look(self) -> Status:
        """Ask the target where it stands, and do nothing to it; how the sink is doing then."""
        with self._working():
            stand = self._ask()
            tick = (
                stand.tick if stand is not None and stand.whole and self.history(stand) is not None else None
            )
            self.report.put(replace(self.report.status, tick=tick))
        return self.report.status

    def level(self) -> int:
        """Compare what the target holds with the view, whatever its stand says, and apply the difference; how many rows
        that were."""
        with self._working():
            self._position.doubt()
            point = self._point_after_stand()
            return 0 if point is None else self._level(point)

    def mark(self) -> SinkCheckpoint | None:
        """Have the target told of the tick that it has got to, also where nothing has changed since; its stand then."""
        with self._working():
            stand, reached = self._learn(), self._position.reached
            if stand is None or stand.tick == reached.number:
                return stand
            after = _at(stand, reached)
            self._target.apply(net([], self.shape, self._target).change, stand, after)
            self._position.stand = after
            return after

    def withheld(self) -> Withheld:
        """The rows that the target has refused, as it stands now."""
        with self._working():
            return self._diversion.withheld(self._ask())

    def refused(self) -> Withheld:
        """The same as it was when the target was last heard of: nobody is asked, and nothing waited for."""
        return self._diversion.withheld(self._position.stand)

    def retry(self, choose: Choose | None = None) -> int:
        """Try the rows again that the target has refused, or those of them that are chosen; how many it took."""
        with self._working():
            self._position.prepare()
            try:
                return self._retry(choose)
            except CheckpointConflictError:
                self._position.doubt()
            return self._retry(choose)

    @contextmanager
    def paused(self) -> Iterator[Target]:
        """The target, while nothing is done to it from here."""
        with self._working():
            self._position.prepare()
            yield self._target

    def forget(self) -> None:
        """Ask the target anew where it stands, before anything else is done."""
        with self._busy:
            self._position.doubt()

    def close(self) -> None:
        """Let go of the target."""
        with self._busy:
            self._target.close()
            self.report.note("closed")

    # --- one step --------------------------------------------------------------------------------------------------

    def _retry(self, choose: Choose | None) -> int:
        point = None if self._learn() is None else self._point()
        if point is None:
            return 0
        if not self._position.goes_on(point):  # what is written next would say that all is there
            self._level(point)
        stand = self._position.stand
        assert stand is not None
        withheld = self._diversion.withheld(stand)
        every = np.arange(len(withheld))
        chosen = Tried(every, withheld.rows) if choose is None else choose(withheld)
        if not len(chosen.places):
            return 0
        tried = withheld.take(chosen.places)
        rest = withheld.take(np.setdiff1d(every, chosen.places))
        netted = net([(stand.tick, Delta(chosen.rows, tried.weights))], self.shape, self._target)
        whole = Tally(stand.checksum, stand.rows) + withheld.tally(self._target)
        after = _at(stand, self._position.reached)
        self._apply(netted, stand, after, whole, rest, again=(tried, chosen.rows))
        return len(withheld) - self.report.status.withheld

    @contextmanager
    def _working(self) -> Iterator[None]:
        with self._busy:
            try:
                yield
            except BaseException:
                self._position.lose()
                raise

    def _point(self) -> Point | None:
        point = self._feed.latest()
        if point is None:
            self.report.note("waiting", f"view {self.shape.view!r} is part of no tick yet")
            return None
        if not point.schema.equals(self.shape.schema):
            raise SinkError(
                f"view {self.shape.view!r} has other columns than sink {self.shape.sink!r} was made for",
                detail=f"it has {columns_text(point.schema)}; the sink expects {columns_text(self.shape.schema)}",
                hint="DROP SINK and CREATE it anew, with another table or prefix",
                sink=self.shape.sink,
            )
        self._position.prepare()
        return point

    def _ask(self) -> SinkCheckpoint | None:
        """Ask the target where it stands, whatever is known."""
        self._position.prepare()
        self._position.doubt()
        return self._learn()

    def _learn(self) -> SinkCheckpoint | None:
        """Where the target stands; it is asked if that is not known from the last step."""
        position = self._position
        if position.is_known:
            return position.stand
        position.ask()
        withheld = self._diversion.withheld(position.stand)
        if position.stand is not None:
            self._diversion.tell_of(withheld, position.stand)
        self.report.put(replace(self.report.status, withheld=len(withheld)))
        position.is_known = True
        return position.stand

    def _point_after_stand(self) -> Point | None:
        """The newest tick of the view, with the stand known. If the target had to be asked, the tick is looked up again after its answer: who else
        keeps it in step may have gone on meanwhile, and a stand ahead of an older look would pass for one of the future."""
        point = self._point()
        if point is None or self._position.is_known:
            return point
        self._learn()
        return self._point()

    def _step(self) -> bool:
        point = self._point_after_stand()
        if point is None:
            return False
        stand = self._position.stand
        if stand is None or not self._position.goes_on(point):
            self._level(point)
            return True
        try:
            advance = self._feed.changes(self._position.reached, point.history)
        except TickNotKeptError:
            self._level(point)
            return True
        return self._advance(stand, advance)

    def _advance(self, stand: SinkCheckpoint, advance: TickChanges) -> bool:
        reached = Token(advance.reached, advance.id)
        if reached.number == self._position.reached.number:
            status = self.report.status
            if status.state != "following" or status.tick != reached.number:
                self.report.followed(reached.number, 0)
            return False
        netted = net(advance.ticks, self.shape, self._target)
        if not len(netted) and advance.reached - stand.tick < STAND_TICKS:
            self._position.reached = reached
            self.report.followed(reached.number, 0)
            return True
        withheld = self._diversion.withheld(stand)
        whole = Tally(stand.checksum, stand.rows) + withheld.tally(self._target) + netted.difference
        after = _at(stand, reached)
        self._apply(netted, stand, after, whole, withheld.after(netted.change, self._target))
        return True

    def _level(self, point: Point) -> int:
        self.report.note("levelling", "what the target holds is compared with the view")
        stand = self._position.stand
        view = consolidate(self._feed.contents(point.tick))
        held = self._target.held(view.rows)
        whole = tally(held, view.weights)
        withheld = Withheld.none(self.shape.schema)
        if stand is not None:
            withheld = self._diversion.withheld(stand).still_in(view)
        if len(withheld):
            left_out = Delta(withheld.rows, -withheld.weights)
            view = consolidate(concat([view, left_out], self.shape.schema))
            held = self._target.held(view.rows)
        there = list(self._target.contents())
        empty = held.schema.append(WEIGHT) if self.shape.mode == "changelog" else held.schema
        rows = concat_rows(there, there[0].schema if there else empty)
        netted = net_level(view, held, rows, point.tick, self.shape, self._target)
        self._apply(netted, stand, self._position.stand_at(point), whole, withheld)
        status = self.report.status
        self.report.put(replace(status, levelled=status.levelled + 1))
        return len(netted)

    def _apply(
        self,
        netted: Netted,
        before: SinkCheckpoint | None,
        after: SinkCheckpoint,
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
                    withheld = self._diversion.divert(error, netted, withheld, serial)
                else:
                    withheld = withheld.and_again(*again, netted.rows, netted.change, error.refused)
                refused = np.array([one.index for one in error.refused], dtype=np.int64)
                netted = without(netted, refused, self._target)
        self._position.move(after)
        if again is None and serial in withheld.letters:
            self._diversion.tell_of(withheld, after)
        self._position.is_known = True
        self.report.followed(after.tick, len(netted), withheld=len(withheld))


def refuse_occupied(shape: TargetShape, target: Target) -> None:
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


def _at(stand: SinkCheckpoint, tick: Token) -> SinkCheckpoint:
    """The stand at a later tick."""
    return replace(stand, tick=tick.number, id=tick.id)


def _letters_of(rows: pa.RecordBatch, tried: Withheld, given: pa.RecordBatch) -> tuple[int, ...]:
    """The letter that told of each row: the first one, of several that are alike."""
    known: dict[tuple[int, int], int] = {}
    for pair, letter in zip(row_pairs(given), tried.letters.tolist(), strict=True):
        known[pair] = min(letter, known.get(pair, letter))
    return tuple(known[pair] for pair in row_pairs(rows))
