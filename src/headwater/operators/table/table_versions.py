"""The versions of a table's rows, maintained incrementally: changelog records become validity intervals.

A record of a key, an upsert or a tombstone, *begins* at a time of its own. Ordered by (begin, offset), a version is
valid from its begin until the next record of its key begins, or without end:

    valid_to(r) = begin of the first record after r, of its key, in that order

Tombstones end versions and are not versions themselves. Of two records that begin at the same time, the earlier one is
a version that was never valid: it is output with an empty interval. A record may arrive after others and begin before
them; it is then inserted between them, so that it changes at most one other version: the one before it ends where it
begins.

State is the records themselves, in one arrangement of the *ordered* discipline (see `ordered_runs`), by key, then by
begin and offset. Once no more records beginning before some time can arrive, only the newest record before that time
matters for each key, because the next record ends it, and only if it is no tombstone: `standing` selects these records.
Otherwise nothing is removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.core.hashing import Hashes, Indices, Mask, equal_rows, identities
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta, concat_rows, take_rows
from headwater.operators.zset.numpy_columns import array, booleans, integers
from headwater.operators.zset.ordered_runs import arrange_ordered, merge_ordered
from headwater.operators.zset.ranges import first_from, last_upto
from headwater.operators.zset.runs import Matches, Probes, Run

TOMBSTONE = "delete"
_NEVER = np.iinfo(np.int64).max
"""End of versions that have no end."""


@dataclass(frozen=True)
class VersionSpec:
    """The columns of records that identify a version."""

    key: tuple[int, ...]
    begin: int
    """Column of the begin: a timestamp, never NULL."""
    offset: int
    """Column of the offset: a 64-bit integer that increases from each record of a key to the next."""
    op: int
    """Column of the operation: a text; `delete` is a tombstone."""

    @property
    def order(self) -> tuple[ColumnOrder, ...]:
        """Order of records within a key."""
        return tuple(
            ColumnOrder(column, descending=False, nulls_first=True) for column in (self.begin, self.offset)
        )

    def output(self, records: pa.Schema) -> pa.Schema:
        """Return the columns of versions: those of records, and the end of validity."""
        return records.append(pa.field("_valid_to", records.field(self.begin).type))


def step(spec: VersionSpec, runs: Sequence[Run], records: pa.RecordBatch) -> tuple[Delta, Run]:
    """Return the consolidated change that new records make to the versions, and the run that they add to the state.

    Records of one key come in the order of their offsets, which are higher than all in `runs`.
    """
    run = arrange_ordered(Delta.of(records), spec.key, spec.order)
    rows, count = run.rows, len(run)
    if not count:
        return Delta.empty(spec.output(records.schema)), run
    begins = integers(rows.column(spec.begin))
    probes = Probes(spec.key, rows.select(list(spec.key)), run.hashes)
    # An existing record that begins at the same time as a new one has the lower offset, so it comes before the new one.
    found = last_upto(runs, spec.begin, probes, begins, schema=rows.schema)
    before = _last_each(found, spec)
    later = np.minimum(begins, _NEVER - 1) + 1
    after = first_from(runs, spec.begin, probes, later, schema=rows.schema)
    ends = np.full(count, _NEVER)
    ends[after.probe] = integers(after.rows.column(spec.begin))
    rows = concat_rows([rows, before.rows], rows.schema)
    ends = np.concatenate([ends, ends[before.probe]])  # no record was between the two
    order, following = _followed(spec, rows)
    rows, is_new, ends = take_rows(rows, order), order < count, ends[order]
    added = _spans(spec, rows, np.minimum(ends, following))
    old = np.flatnonzero(~is_new)
    gone = _spans(spec, take_rows(rows, old), ends[old])
    made = [Delta.of(gone).negated(), Delta.of(added)]
    kept = [delta.filter(~_tombstones(spec, delta.rows)) for delta in made]
    weights = np.concatenate([delta.weights for delta in kept])
    versions = concat_rows([delta.rows for delta in kept], spec.output(records.schema))
    return Delta(versions, weights, distinct=True), run


def contents(spec: VersionSpec, runs: Sequence[Run], schema: pa.Schema) -> Delta:
    """Return all versions of the records in some runs, which have the columns of `schema`."""
    filled = [run for run in runs if len(run)]
    if not filled:
        return Delta.empty(spec.output(schema))
    run = merge_ordered(filled, spec.key, spec.order)
    rows, begins = run.rows, integers(run.rows.column(spec.begin))
    same = _same_key(spec, run)
    if same is None:
        order, ends = _followed(spec, rows)
        rows = take_rows(rows, order)
    else:
        ends = np.full(len(run), _NEVER)
        ends[:-1][same] = begins[1:][same]
    versions = _spans(spec, rows, ends)
    return Delta.of(versions).filter(~_tombstones(spec, versions))


def standing(run: Run, key: tuple[int, ...], old: Mask, op: int) -> Mask:
    """Return a mask of the `old` records of a run, the first of each key, that a later record can still end.

    These are the newest old record of each key, if it is no tombstone. Where keys that share a hash are mixed, the mask
    may include more.
    """
    newest = old.copy()
    near = np.flatnonzero(old[1:] & (run.hashes[1:] == run.hashes[:-1]))
    keys = run.rows.select(list(key))
    same = equal_rows(take_rows(keys, near).columns, take_rows(keys, near + 1).columns, len(near))
    newest[near[same]] = False
    if same.all():
        newest &= ~booleans(pc.equal(run.rows.column(op), TOMBSTONE))
    return newest


def _last_each(found: Matches, spec: VersionSpec) -> Matches:
    """Return the row with the highest offset among those that each probe found."""
    order = np.lexsort((integers(found.rows.column(spec.offset)), found.probe))
    probes = found.probe[order]
    last = np.ones(len(order), dtype=np.bool_)
    last[:-1] = probes[1:] != probes[:-1]
    order = order[last]
    return Matches(found.probe[order], take_rows(found.rows, order), found.weights[order])


def _followed(spec: VersionSpec, rows: pa.RecordBatch) -> tuple[Indices, Indices]:
    """Return the indices of distinct records by key, begin and offset, and the begin of the next record of each key."""
    begins, offsets = integers(rows.column(spec.begin)), integers(rows.column(spec.offset))
    high, low = identities([rows.column(i) for i in spec.key], rows.num_rows, exact=False)
    order = np.lexsort((offsets, begins, low, high))
    same = _steady(high, order) & _steady(low, order)
    fresh = np.ones(len(order), dtype=np.bool_)
    fresh[1:] = ~(same & _steady(offsets, order))  # the same key and offset is the same record
    order = order[fresh]
    ends = np.full(len(order), _NEVER)
    same = _steady(high, order) & _steady(low, order)
    ends[:-1][same] = begins[order[1:]][same]
    return order, ends


def _steady(lane: Hashes | Indices, order: Indices) -> Mask:
    """Return a mask of the values that are followed by an equal value in the given order."""
    values = lane[order]
    same: Mask = values[1:] == values[:-1]
    return same


def _same_key(spec: VersionSpec, run: Run) -> Mask | None:
    """Return a mask of the records followed by one of their key; None if keys that share a hash are mixed in the run."""
    near: Mask = run.hashes[1:] == run.hashes[:-1]
    places = np.flatnonzero(near)
    keys = run.rows.select(list(spec.key))
    mine, theirs = take_rows(keys, places), take_rows(keys, places + 1)
    return near if equal_rows(mine.columns, theirs.columns, len(places)).all() else None


def _spans(spec: VersionSpec, rows: pa.RecordBatch, ends: Indices) -> pa.RecordBatch:
    """Append the end of validity to records."""
    schema = spec.output(rows.schema)
    closed = array(ends, schema.field(-1).type, ends != _NEVER)
    return pa.RecordBatch.from_arrays([*rows.columns, closed], schema=schema)


def _tombstones(spec: VersionSpec, rows: pa.RecordBatch) -> Mask:
    return booleans(pc.equal(rows.column(spec.op), TOMBSTONE))
