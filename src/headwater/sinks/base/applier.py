"""The applier keeps one target in step with its view: it reads new ticks, nets their changes, applies them, and repeats.

A sink pulls. Its only state is the checkpoint, which the target stores; there is no queue. While the target is slow or
unavailable, ticks pass, and their changes are later applied as one net change. If the checkpoint does not determine what
comes next, the applier reconciles: it compares the contents of the target with the view and applies the difference. This is
the case if there is no checkpoint, or if it belongs to another history of the view, to a tick whose number is now another
tick's, to a tick older than the retained ones, to a tick in the future, or to a change that was not completed.
`Applier.step` does one step; the thread that calls it is in `sink_runner`.
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
from headwater.sinks.base.net_changes import Netted, net, net_difference, without
from headwater.sinks.base.rejected_rows import Choose, RejectedSinkRows, Tried, row_pairs
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

__all__ = [
    "CHECKPOINT_TICKS",
    "Applier",
    "Letters",
    "OnError",
    "SinkLag",
    "State",
    "Status",
    "refuse_occupied",
]

CHECKPOINT_TICKS = 16
"""Number of ticks without changes after which the checkpoint is advanced in the target anyway: well before those ticks
expire."""


class Applier:
    """The work of one sink, one step at a time. Thread-safe: a lock serializes the steps.

    `on_error` and `letters` decide what happens to rows that the target rejects (`Diversion`).
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
        """Status of the sink, published to listeners."""
        self._target = target
        self._feed = feed
        self._clock = clock
        self._busy = threading.RLock()
        self._diversion = Diversion(shape, on_error, letters)
        self._position = TargetPosition(shape, target, feed)
        self._since = clock.now_us()

    # --- requests --------------------------------------------------------------------------------------------------

    def status(self) -> Status:
        """Return the status of the sink, with the state of its circuit breaker."""
        status = self.report.status
        if not isinstance(self._target, Guarded):
            return status
        return replace(status, circuit=self._target.circuit.state)

    def resume(self) -> None:
        """Let the next attempt through, even if the circuit breaker of the target is open."""
        if isinstance(self._target, Guarded):
            self._target.circuit.reset()

    def lag(self) -> SinkLag:
        """Return how far the target is behind the view, as far as this process knows."""
        status, checkpoint = self.report.status, self._position.checkpoint
        history = self.history(checkpoint) if checkpoint is not None else None
        if status.tick is None or history is None:
            point = self._feed.latest()
            # the checkpoint is unknown: the lag is at least the time since this applier was created
            pending = (
                PendingTicks(point.tick, None, self._since) if point is not None else PendingTicks(0, 0, None)
            )
        else:
            pending = self._feed.pending(status.tick, history)
        seconds = 0.0 if pending.since is None else (self._clock.now_us() - pending.since) / 1e6
        return SinkLag(pending.ticks, pending.rows, max(seconds, 0.0))

    def history(self, checkpoint: SinkCheckpoint) -> str | None:
        """Return the history of the view that a checkpoint belongs to; None if the checkpoint was written with another mode,
        key, column list or location."""
        return self._position.history(checkpoint)

    # --- work ------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do the next step and return whether there was one. Errors come from the target or the view; after any error the
        checkpoint is read from the target again before more is done. A checkpoint conflict is retried once."""
        with self._working():
            try:
                return self._step()
            except CheckpointConflictError:
                self._position.doubt()
            return self._step()

    def probe(self) -> Status:
        """Read the checkpoint from the target, write nothing, and return the status of the sink."""
        with self._working():
            checkpoint = self._ask()
            tick = (
                checkpoint.tick
                if checkpoint is not None and checkpoint.whole and self.history(checkpoint) is not None
                else None
            )
            self.report.put(replace(self.report.status, tick=tick))
        return self.report.status

    def reconcile(self) -> int:
        """Compare the contents of the target with the view, whatever the checkpoint says, apply the difference, and return
        its number of rows."""
        with self._working():
            self._position.doubt()
            point = self._point_after_checkpoint()
            return 0 if point is None else self._reconcile(point)

    def mark(self) -> SinkCheckpoint | None:
        """Advance the checkpoint in the target to the tick reached, even if nothing changed since, and return it; None if
        the target has no checkpoint."""
        with self._working():
            checkpoint, reached = self._learn(), self._position.reached
            if checkpoint is None or checkpoint.tick == reached.number:
                return checkpoint
            after = _at(checkpoint, reached)
            self._target.apply(net([], self.shape, self._target).change, checkpoint, after)
            self._position.checkpoint = after
            return after

    def rejected(self) -> RejectedSinkRows:
        """Return the rejected rows according to the checkpoint in the target now."""
        with self._working():
            return self._diversion.recorded(self._ask())

    def refused(self) -> RejectedSinkRows:
        """Return the rejected rows according to the checkpoint read last, without a request to the target and without
        waiting for a step in progress."""
        return self._diversion.recorded(self._position.checkpoint)

    def retry(self, choose: Choose | None = None) -> int:
        """Retry the rejected rows, or those that `choose` picks, and return how many of them the target accepted."""
        with self._working():
            self._position.prepare()
            try:
                return self._retry(choose)
            except CheckpointConflictError:
                self._position.doubt()
            return self._retry(choose)

    @contextmanager
    def paused(self) -> Iterator[Target]:
        """Yield the target, while this applier does nothing with it."""
        with self._working():
            self._position.prepare()
            yield self._target

    def forget(self) -> None:
        """Read the checkpoint from the target again before the next step."""
        with self._busy:
            self._position.doubt()

    def close(self) -> None:
        """Close the target."""
        with self._busy:
            self._target.close()
            self.report.note("closed")

    # --- one step --------------------------------------------------------------------------------------------------

    def _retry(self, choose: Choose | None) -> int:
        point = None if self._learn() is None else self._point()
        if point is None:
            return 0
        # reconcile first: the checkpoint written below claims that the target has everything up to its tick
        if not self._position.goes_on(point):
            self._reconcile(point)
        checkpoint = self._position.checkpoint
        assert checkpoint is not None
        rejected = self._diversion.recorded(checkpoint)
        every = np.arange(len(rejected))
        chosen = Tried(every, rejected.rows) if choose is None else choose(rejected)
        if not len(chosen.places):
            return 0
        tried = rejected.take(chosen.places)
        rest = rejected.take(np.setdiff1d(every, chosen.places))
        netted = net([(checkpoint.tick, Delta(chosen.rows, tried.weights))], self.shape, self._target)
        whole = Tally(checkpoint.checksum, checkpoint.rows) + rejected.tally(self._target)
        after = _at(checkpoint, self._position.reached)
        self._apply(netted, checkpoint, after, whole, rest, again=(tried, chosen.rows))
        return len(rejected) - self.report.status.withheld

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
            self.report.note("waiting", f"view {self.shape.view!r} is not part of any tick yet")
            return None
        if not point.schema.equals(self.shape.schema):
            raise SinkError(
                f"the columns of view {self.shape.view!r} have changed since sink {self.shape.sink!r} was created",
                detail=f"the view has {columns_text(point.schema)}; the sink expects {columns_text(self.shape.schema)}",
                hint="DROP SINK and CREATE SINK again, with another table or prefix",
                sink=self.shape.sink,
                view=self.shape.view,
                reason="view-columns",
            )
        self._position.prepare()
        return point

    def _ask(self) -> SinkCheckpoint | None:
        """Read the checkpoint from the target, even if it is cached, and return it."""
        self._position.prepare()
        self._position.doubt()
        return self._learn()

    def _learn(self) -> SinkCheckpoint | None:
        """Return the checkpoint. It is read from the target unless it is known from the last step; the rows rejected last
        are then reported again."""
        position = self._position
        if position.is_known:
            return position.checkpoint
        position.ask()
        rejected = self._diversion.recorded(position.checkpoint)
        if position.checkpoint is not None:
            self._diversion.report_rejected(rejected, position.checkpoint)
        self.report.put(replace(self.report.status, withheld=len(rejected)))
        position.is_known = True
        return position.checkpoint

    def _point_after_checkpoint(self) -> Point | None:
        """Return the newest tick of the view, with the checkpoint known. If the checkpoint had to be read from the target,
        the newest tick is looked up again afterwards: another process that runs this sink may have advanced meanwhile, and
        its checkpoint would seem to be in the future of the tick found before."""
        point = self._point()
        if point is None or self._position.is_known:
            return point
        self._learn()
        return self._point()

    def _step(self) -> bool:
        point = self._point_after_checkpoint()
        if point is None:
            return False
        checkpoint = self._position.checkpoint
        if checkpoint is None or not self._position.goes_on(point):
            self._reconcile(point)
            return True
        try:
            advance = self._feed.changes(self._position.reached, point.history)
        except TickNotKeptError:
            self._reconcile(point)
            return True
        return self._advance(checkpoint, advance)

    def _advance(self, checkpoint: SinkCheckpoint, advance: TickChanges) -> bool:
        reached = Token(advance.reached, advance.id)
        if reached.number == self._position.reached.number:
            status = self.report.status
            if status.state != "following" or status.tick != reached.number:
                self.report.advanced(reached.number, 0)
            return False
        netted = net(advance.ticks, self.shape, self._target)
        if not len(netted) and advance.reached - checkpoint.tick < CHECKPOINT_TICKS:
            self._position.reached = reached
            self.report.advanced(reached.number, 0)
            return True
        rejected = self._diversion.recorded(checkpoint)
        whole = Tally(checkpoint.checksum, checkpoint.rows) + rejected.tally(self._target) + netted.difference
        after = _at(checkpoint, reached)
        self._apply(netted, checkpoint, after, whole, rejected.after(netted.change, self._target))
        return True

    def _reconcile(self, point: Point) -> int:
        self.report.note("levelling", "the contents of the target are compared with the view")
        checkpoint = self._position.checkpoint
        view = consolidate(self._feed.contents(point.tick))
        stored = self._target.stored_form(view.rows)
        whole = tally(stored, view.weights)
        rejected = RejectedSinkRows.none(self.shape.schema)
        if checkpoint is not None:
            rejected = self._diversion.recorded(checkpoint).still_in(view)
        if len(rejected):
            left_out = Delta(rejected.rows, -rejected.weights)
            view = consolidate(concat([view, left_out], self.shape.schema))
            stored = self._target.stored_form(view.rows)
        there = list(self._target.contents())
        empty = stored.schema.append(WEIGHT) if self.shape.mode == "changelog" else stored.schema
        rows = concat_rows(there, there[0].schema if there else empty)
        netted = net_difference(view, stored, rows, point.tick, self.shape, self._target)
        self._apply(netted, checkpoint, self._position.checkpoint_at(point), whole, rejected)
        status = self.report.status
        self.report.put(replace(status, levelled=status.levelled + 1))
        return len(netted)

    def _apply(
        self,
        netted: Netted,
        before: SinkCheckpoint | None,
        after: SinkCheckpoint,
        whole: Tally,
        rejected: RejectedSinkRows,
        again: tuple[RejectedSinkRows, pa.RecordBatch] | None = None,
    ) -> None:
        """Apply a change. `whole` is the tally of all rows of the view, `rejected` the rejected rows so far. Rows that the
        target rejects now are reported as dead letters, unless the change retries rejected rows: then `again` has these rows
        and the rows written in their place."""
        serial = self._clock.now_us()
        while True:
            rest = whole - rejected.tally(self._target)
            after = replace(
                after, checksum=rest.checksum, rows=rest.rows, rejected=rejected.encode(), whole=True
            )
            change = netted.change
            if again is not None:
                change = replace(change, letters=_letters_of(netted.rows, *again))
            try:
                self._target.apply(change, before, after)
                break
            except RowsRefusedError as error:
                if again is None:
                    rejected = self._diversion.divert(error, netted, rejected, serial)
                else:
                    rejected = rejected.and_again(*again, netted.rows, netted.change, error.refused)
                refused = np.array([one.index for one in error.refused], dtype=np.int64)
                netted = without(netted, refused, self._target)
        self._position.move(after)
        if again is None and serial in rejected.letters:
            self._diversion.report_rejected(rejected, after)
        self._position.is_known = True
        self.report.advanced(after.tick, len(netted), rejected=len(rejected))


def refuse_occupied(shape: TargetShape, target: Target) -> None:
    """Raise SinkError if the target of a sink that is being created holds rows that no sink of this name has written:
    reconciling would remove them."""
    if target.checkpoint() is not None:
        return
    if any(batch.num_rows for batch in target.contents()):
        raise SinkError(
            f"the target of sink {shape.sink!r} already contains rows, which the rows of view {shape.view!r} would replace",
            hint="name another target, or set adopt = true to replace them",
            sink=shape.sink,
            reason="target-not-empty",
        )


def _at(checkpoint: SinkCheckpoint, tick: Token) -> SinkCheckpoint:
    """Return the checkpoint moved to a later tick."""
    return replace(checkpoint, tick=tick.number, id=tick.id)


def _letters_of(rows: pa.RecordBatch, tried: RejectedSinkRows, given: pa.RecordBatch) -> tuple[int, ...]:
    """Return the dead-letter serial of each retried row; equal rows share the lowest serial."""
    known: dict[tuple[int, int], int] = {}
    for pair, letter in zip(row_pairs(given), tried.letters.tolist(), strict=True):
        known[pair] = min(letter, known.get(pair, letter))
    return tuple(known[pair] for pair in row_pairs(rows))
