"""Verification of a target against its view: by checksum and, if that differs, row by row. Differences can be repaired.

The checksum of the target's contents is compared with the checksum in its checkpoint, which is maintained from changes
alone, and with the rows of the view at the same tick. So drift is detected whatever caused it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from headwater.core.errors import TickNotKeptError
from headwater.core.positions import Token
from headwater.log.protocol import Finding
from headwater.operators.zset.delta import Delta, concat, concat_rows, consolidate, take_rows
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.checksums import Tally, tally, tally_all
from headwater.sinks.base.net_changes import key_identities
from headwater.sinks.base.rejected_rows import RejectedSinkRows
from headwater.sinks.base.target import WEIGHT, Freezing, SinkCheckpoint, Target, TargetShape
from headwater.sinks.base.text_values import shown
from headwater.sinks.base.view_feed import SinkFeed

_TRIES = 5
_SHOWN = 3


@dataclass(frozen=True, eq=False)
class Differences:
    """Stored rows that differ: `missing` are only in the view, `extra` only in the target; of keys whose rows differ,
    `expected` are the rows of the view and `found` those of the target, one for one."""

    missing: pa.RecordBatch
    extra: pa.RecordBatch
    expected: pa.RecordBatch
    found: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.missing.num_rows + self.extra.num_rows + self.found.num_rows)

    def summary(self) -> str:
        """Return a description in words, with examples of each kind."""
        parts = []
        if self.missing.num_rows:
            parts.append(f"{self.missing.num_rows} rows missing, such as {shown(self.missing, _SHOWN)}")
        if self.extra.num_rows:
            parts.append(f"{self.extra.num_rows} rows too many, such as {shown(self.extra, _SHOWN)}")
        if self.found.num_rows:
            parts.append(
                f"{self.found.num_rows} rows differ, such as {shown(self.found, 1)} in place of "
                f"{shown(self.expected, 1)}"
            )
        return "; ".join(parts)


@dataclass(frozen=True)
class SinkCheck:
    """The result of the check of one sink. `ok` is None if nothing was applied yet, or the comparison was not possible;
    `tick` is the tick that was compared. `rows` is the number of rows in the target, `withheld` of those only in the view
    because the target rejected them. `differences` is None if rows were not compared, because the checksums are equal or the
    tick is no longer retained."""

    sink: str
    view: str
    ok: bool | None
    tick: int | None
    rows: int
    withheld: int = 0
    detail: str | None = None
    differences: Differences | None = field(default=None, compare=False)
    repaired: bool = False

    @property
    def finding(self) -> Finding:
        """The difference as a finding of verification."""
        text = f"sink {self.sink!r} differs from view {self.view!r}: {self.detail}"
        return Finding(f"sink {self.sink}", None, None, None, text)


def check(applier: Applier, feed: SinkFeed, *, repair: bool = False, cheap: bool = False) -> SinkCheck:
    """Compare a target with its view at the tick of its checkpoint; with `repair`, reconcile them if they differ. The sink
    does nothing else meanwhile. `cheap` trusts the checksum that is maintained from the changes of the view, and reads the
    view only if the target has another checksum."""
    shape = applier.shape
    with applier.paused() as target:
        for _ in range(_TRIES):
            with frozen(target):
                checkpoint = target.checkpoint()
                found = _check(applier, target, feed, checkpoint, cheap)
                if target.checkpoint() == checkpoint:
                    break
        else:
            text = "another process advanced the sink during every attempt to compare it"
            return SinkCheck(shape.sink, shape.view, None, None, found.rows, detail=text)
        if not repair or found.ok is not False:
            return found
        applier.reconcile()
        after = _check(applier, target, feed, target.checkpoint(), cheap)
        return SinkCheck(
            shape.sink,
            shape.view,
            after.ok,
            after.tick,
            after.rows,
            after.withheld,
            found.detail,
            found.differences,
            repaired=after.ok is True,
        )


def frozen(target: Target) -> AbstractContextManager[None]:
    """Return a context in which checkpoint and contents are of one point in time, if the target supports that."""
    return target.frozen() if isinstance(target, Freezing) else nullcontext()


def _check(
    applier: Applier, target: Target, feed: SinkFeed, checkpoint: SinkCheckpoint | None, cheap: bool
) -> SinkCheck:
    shape = applier.shape
    weight = WEIGHT.name if shape.mode == "changelog" else None
    if checkpoint is None:
        there = tally_all(target.contents(), weight).rows
        known = "the target has rows but no checkpoint" if there else "nothing was applied yet"
        return SinkCheck(shape.sink, shape.view, False if there else None, None, there, detail=known)
    rejected = RejectedSinkRows.decode(checkpoint.rejected, shape.schema)
    found = tally_all(target.contents(), weight)
    same = checkpoint.whole and found == Tally(checkpoint.checksum, checkpoint.rows)
    view = None if cheap and same else _view(feed, checkpoint.token, applier.history(checkpoint))
    if view is not None and same:
        expected = tally(target.stored_form(view.rows), view.weights) - rejected.tally(target)
        same = expected == found
    if same:
        return SinkCheck(shape.sink, shape.view, True, checkpoint.tick, found.rows, len(rejected))
    if view is None:
        text = f"the target has {found.rows} rows, and {checkpoint.rows} rows with the checksum {checkpoint.checksum} are expected"
        return SinkCheck(shape.sink, shape.view, False, checkpoint.tick, found.rows, len(rejected), text)
    rows = _differences(shape, target, view, rejected)
    text = rows.summary() or "the rows are correct, but the stored checksum is not"
    return SinkCheck(shape.sink, shape.view, False, checkpoint.tick, found.rows, len(rejected), text, rows)


def _view(feed: SinkFeed, tick: Token, history: str | None) -> Delta | None:
    """Return the view at the tick of a checkpoint, if the tick is of the view's history and retained."""
    point = feed.at(tick.number)
    if point is None or point.history != history or tick.differs(point.id):
        return None
    try:
        return feed.contents(tick.number)
    except TickNotKeptError:
        return None


def _differences(shape: TargetShape, target: Target, view: Delta, rejected: RejectedSinkRows) -> Differences:
    stored = Delta(target.stored_form(view.rows), view.weights)
    less = Delta(target.stored_form(rejected.rows), -rejected.weights)
    parts = [stored, less]
    for batch in target.contents():
        weights = np.ones(batch.num_rows, dtype=np.int64)
        if shape.mode == "changelog":
            weights = batch.column(WEIGHT.name).to_numpy()
            batch = batch.drop_columns([WEIGHT.name])
        parts.append(Delta(batch, -weights))
    rest = consolidate(concat(parts, stored.rows.schema))
    missing, extra = rest.filter(rest.weights > 0).rows, rest.filter(rest.weights < 0).rows
    nothing = missing.slice(0, 0)
    if not target.key or not missing.num_rows or not extra.num_rows:
        return Differences(missing, extra, nothing, nothing)
    both = concat_rows([missing, extra], missing.schema)
    high, low = key_identities(both, target.key)
    count = missing.num_rows
    place = {
        pair: at for at, pair in enumerate(zip(high[:count].tolist(), low[:count].tolist(), strict=True))
    }
    theirs = zip(high[count:].tolist(), low[count:].tolist(), strict=True)
    pairs = [(place.pop(pair), at) for at, pair in enumerate(theirs) if pair in place]
    mine, yours = (
        np.array([a for a, _ in pairs], dtype=np.int64),
        np.array([b for _, b in pairs], dtype=np.int64),
    )
    return Differences(
        take_rows(missing, np.setdiff1d(np.arange(count), mine)),
        take_rows(extra, np.setdiff1d(np.arange(extra.num_rows), yours)),
        take_rows(missing, mine),
        take_rows(extra, yours),
    )
