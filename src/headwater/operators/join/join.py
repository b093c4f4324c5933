"""Equi-joins, maintained incrementally: deltas of two sides become a delta of the joined rows.

With L and R the two sides before a step and dL and dR their deltas, the matching pairs change by

    d(L x R) = dL x R + L x dR + dL x dR        (weights multiply)

and where a row's *status*, whether it has a match, is part of the result (all kinds but `inner`), by

    d(status of L) = dL at its new status + L at the change of its status

where only rows of L that match a row of dR can change. The state of each side is a multiset by key, with all its rows.
A step costs what it touches: an inserted or retracted row reads the rows of the other side that have its key. If the
status of the other side's rows is part of the output, matches on the row's own side are counted too, to detect a first
or last match: without a condition this reads only the key columns of the rows with the same key. So in an inner join,
and on the left side of a left, semi or anti join, a row never reads other rows of its own side.

A NULL in a key matches nothing. Without key columns every row has the same key and is compared with all rows of the
other side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from headwater.core.hashing import spread
from headwater.operators.join.pairs import (
    Condition,
    Pairs,
    Side,
    judged,
    pair_deltas,
    pair_found,
    paired,
    tally,
)
from headwater.operators.zset.delta import Delta, concat, consolidate, take_rows
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.operators.zset.numpy_columns import nulls
from headwater.operators.zset.runs import Matches, Run

Kind = Literal["inner", "left", "right", "full", "semi", "anti", "existence"]


@dataclass(frozen=True)
class JoinSpec:
    """A kind of join and the columns of either side that must be equal, pairwise.

    The output has the left columns, then the right ones, NULL where a row has no match (`left`, `right`, `full`);
    `semi` and `anti` have the left columns only; `existence` appends a boolean to these: whether there is a match.
    """

    kind: Kind
    left_key: tuple[int, ...]
    right_key: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.left_key) != len(self.right_key):
            raise ValueError(
                f"the left key has {len(self.left_key)} columns, and the right key {len(self.right_key)}"
            )

    @property
    def shows_pairs(self) -> bool:
        """Whether matching pairs are part of the output."""
        return self.kind in ("inner", "left", "right", "full")

    @property
    def shows_left(self) -> bool:
        """Whether the status of left rows is part of the output."""
        return self.kind not in ("inner", "right")

    @property
    def shows_right(self) -> bool:
        """Whether the status of right rows is part of the output."""
        return self.kind in ("right", "full")

    def output(self, left: pa.Schema, right: pa.Schema) -> pa.Schema:
        """Return the schema of the output, given those of the inputs."""
        if self.kind in ("semi", "anti"):
            return left
        if self.kind == "existence":
            return pa.schema([*left, pa.field("exists", pa.bool_(), nullable=False)])
        fields = [field.with_nullable(True) if self.shows_right else field for field in left]
        padded = self.kind in ("left", "full")
        return pa.schema([*fields, *(field.with_nullable(True) if padded else field for field in right)])


@dataclass(frozen=True, eq=False)
class Statuses:
    """The output rows that depend on whether a row of one side has a match; side 0 is the left side."""

    kind: Kind
    schema: pa.Schema
    sides: tuple[pa.Schema, pa.Schema]

    def status(self, side: int, rows: pa.RecordBatch, matched: Bools, weights: Ints) -> Delta:
        """Return the output for rows of one side, given whether they have a match."""
        kind = self.kind
        if kind == "existence":
            columns = [*rows.columns, pa.array(matched)]
            return Delta(pa.RecordBatch.from_arrays(columns, schema=self.schema), weights)
        shown = Delta(rows, weights).filter(matched if kind == "semi" else ~matched)
        if kind in ("semi", "anti"):
            return shown
        padding = [nulls(len(shown), field.type) for field in self.sides[1 - side]]
        mine = shown.rows.columns
        columns = [*padding, *mine] if side else [*mine, *padding]
        return shown.with_rows(pa.RecordBatch.from_arrays(columns, schema=self.schema))

    def flips(self, side: int, rows: pa.RecordBatch, weights: Ints, before: Ints, after: Ints) -> list[Delta]:
        """Return the output change for unchanged rows, given how many matches they had before and have after the step."""
        places = np.flatnonzero((before > 0) != (after > 0))
        if not len(places):
            return []
        rows, weights, now = take_rows(rows, places), weights[places], after[places] > 0
        return [self.status(side, rows, ~now, -weights), self.status(side, rows, now, weights)]


@dataclass(frozen=True, eq=False)
class JoinStep:
    """The result of two deltas: the consolidated change of the output, and a run for the state of each side."""

    output: Delta
    left: Run
    right: Run


def step(
    spec: JoinSpec,
    left: Sequence[Run],
    right: Sequence[Run],
    d_left: Delta,
    d_right: Delta,
    condition: Condition | None = None,
) -> JoinStep:
    """Apply the deltas of both sides.

    `condition` is called at most twice, with all candidate pairs at once, and never without pairs.
    """
    sides = (Side.of(d_left, left, spec.left_key), Side.of(d_right, right, spec.right_key))
    schemas = (d_left.rows.schema, d_right.rows.schema)
    join = _Join(spec, sides, Statuses(spec.kind, spec.output(*schemas), schemas), condition)
    parts, distinct = _by_pairs(join) if spec.shows_pairs or condition is not None else _by_counts(join)
    output = concat(parts, join.statuses.schema)
    known = Delta(output.rows, output.weights, distinct) if distinct else consolidate(output)
    return JoinStep(known, sides[0].delta, sides[1].delta)


@dataclass(frozen=True, eq=False)
class _Join:
    """A step of a join; side 0 is the left side."""

    spec: JoinSpec
    sides: tuple[Side, Side]
    statuses: Statuses
    condition: Condition | None


def _by_pairs(join: _Join) -> tuple[list[Delta], bool]:
    """Compute the parts of the output from every pair that is inserted or retracted; also whether their rows are distinct."""
    left, right = join.sides
    theirs = right.probe(right.state, left.keys, left.hashes)
    ours = left.probe(left.state, right.keys, right.hashes)
    come_left, come_right, come_both = judged(
        join.condition,
        [pair_found(join.sides, 0, theirs), pair_found(join.sides, 1, ours), pair_deltas(join.sides)],
    )
    parts = []
    if join.spec.shows_pairs:
        parts = [
            pairs.delta(join.statuses.schema) for pairs in (come_left, come_right, come_both) if len(pairs)
        ]
    touched = []
    for side, shown, mine, others in (
        (0, join.spec.shows_left, come_left, come_right),
        (1, join.spec.shows_right, come_right, come_left),
    ):
        if shown:
            run = join.sides[side].delta
            matched = mine.matches(side) + come_both.matches(side) > 0
            if len(run):
                parts.append(join.statuses.status(side, run.rows, matched, run.weights))
            touched.append(_Touched.of(side, others, ours if side == 0 else theirs))
    parts += _status_changes(join, [some for some in touched if len(some.places)])
    return parts, _distinct(join, ours, theirs)


def _by_counts(join: _Join) -> tuple[list[Delta], bool]:
    """Compute the parts of the output when it shows only the status of left rows, without a condition: count matches by
    key."""
    left, right = join.sides
    parts = []
    if len(left.delta):
        matches = np.zeros(len(left.delta), dtype=np.int64)
        members, places = left.members(np.arange(len(left.hashes)))
        matches[members] = right.count((*right.state, right.delta), left.keys, left.hashes)[places]
        parts.append(join.statuses.status(0, left.delta.rows, matches > 0, left.delta.weights))
    if len(right.hashes):
        members, places = right.members(np.arange(len(right.hashes)))
        gained = tally(places, right.delta.weights[members], len(right.hashes))
        before = right.count(right.state, right.keys, right.hashes)
        flipped = np.flatnonzero((before > 0) != (before + gained > 0))
        found = left.probe(left.state, take_rows(right.keys, flipped), right.hashes[flipped])
        before, after = before[flipped][found.probe], (before + gained)[flipped][found.probe]
        parts += join.statuses.flips(0, found.rows, found.weights, before, after)
    return parts, not len(right.delta)


@dataclass(frozen=True, eq=False)
class _Touched:
    """Rows in the state of one side that gain or lose matches by the other side's delta.

    `found` are the rows found by the keys of that delta, `places` the indices of the touched rows among them, and
    `gained` the change in their number of matches.
    """

    side: int
    found: Matches
    places: Ints
    gained: Ints

    @staticmethod
    def of(side: int, pairs: Pairs, found: Matches) -> _Touched:
        gained = pairs.matches(side)
        places = np.flatnonzero(gained)
        return _Touched(side, found, places, gained[places])


def _status_changes(join: _Join, touched: list[_Touched]) -> list[Delta]:
    """Return the output changes for unchanged rows whose status changes."""
    befores: list[Ints] = []
    candidates: list[Pairs] = []
    for some in touched:
        other = join.sides[1 - some.side]
        # The distinct keys of the other side's delta that found the touched rows.
        keys, which = np.unique(some.found.probe[some.places], return_inverse=True)
        wanted, hashes = take_rows(other.keys, keys), other.hashes[keys]
        if join.condition is None:
            befores.append(other.count(other.state, wanted, hashes)[which])
        else:
            candidates.append(_pair_touched(some, which, other.probe(other.state, wanted, hashes)))
    if join.condition is not None:
        matching = judged(join.condition, candidates)
        befores = [pairs.matches(some.side) for some, pairs in zip(touched, matching, strict=True)]
    parts = []
    for some, before in zip(touched, befores, strict=True):
        rows, weights = take_rows(some.found.rows, some.places), some.found.weights[some.places]
        parts += join.statuses.flips(some.side, rows, weights, before, before + some.gained)
    return parts


def _pair_touched(touched: _Touched, which: Ints, found: Matches) -> Pairs:
    """Pair every touched row with every row found by its key; `which` is the index of the row's key."""
    order = np.argsort(found.probe, kind="stable")
    ascending = found.probe[order]
    starts = np.searchsorted(ascending, which)
    sizes = np.searchsorted(ascending, which, side="right") - starts
    rows, weights = take_rows(touched.found.rows, touched.places), touched.found.weights[touched.places]
    mine = np.repeat(np.arange(len(which)), sizes)
    theirs = order[spread(starts, sizes)]
    return paired(touched.side, (rows, weights, mine), (found.rows, found.weights, theirs))


def _distinct(join: _Join, ours: Matches, theirs: Matches) -> bool:
    """Whether no output row can occur twice: there is only one delta, and none of its rows pairs with the same row twice."""
    left, right = join.sides
    if len(left.delta) and len(right.delta):
        return False
    if len(left.delta):
        found, runs, shown = theirs, right.state, not join.spec.shows_right
    else:
        found, runs, shown = ours, left.state, join.spec.kind in ("inner", "right")
    if not shown:
        return False
    if not join.spec.shows_pairs or len(runs) < 2 or not len(found.probe):
        return True
    return int(np.bincount(found.probe).max()) == 1
