"""Conversion of view changes to target changes: one delete or one upsert per key, or records to add.

Deleted and inserted rows are matched by their key in the stored form. A key that is only deleted is deleted in the target; a
key that is inserted is upserted, whether or not it existed; if both rows are equal, nothing is written. All of this is
computed on numpy and Arrow columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headwater.core.hashing import Hashes, Indices, Mask, identities
from headwater.operators.zset.delta import (
    Delta,
    concat,
    concat_rows,
    consolidate,
    empty_rows,
    groups_of,
    row_hashes,
    take_rows,
)
from headwater.sinks.base.checksums import Tally, tally
from headwater.sinks.base.target import TICK, WEIGHT, SinkError, Target, TargetChange, TargetShape
from headwater.sinks.base.text_values import shown

Ticks = Sequence[tuple[int, Delta]]
"""Changes of a view, by tick, in tick order."""


@dataclass(frozen=True, eq=False)
class Netted:
    """A change for a target. `rows` are the rows of the view from which its upserts (or records) are made, one for one;
    `difference` is what the change adds to the checksum and the number of rows."""

    change: TargetChange
    rows: pa.RecordBatch
    difference: Tally

    def __len__(self) -> int:
        return len(self.change)


def net(ticks: Ticks, shape: TargetShape, target: Target) -> Netted:
    """Return the changes of one or several ticks as one change. SinkError if a key is not unique, or if rows are retracted
    in mode 'append'."""
    if shape.mode == "upsert":
        change = consolidate(concat([delta for _, delta in ticks], shape.schema))
        coming, going = change.filter(change.weights > 0), change.filter(change.weights < 0)
        stored = target.stored_form(coming.rows)
        if (coming.weights > 1).any():
            raise not_unique(shape, stored, target.key, coming.weights > 1)
        return net_rows(coming.rows, stored, target.stored_form(going.rows), shape, target.key)
    if shape.mode == "append":
        filled = [consolidate(delta) for _, delta in ticks]
        if any((delta.weights < 0).any() for delta in filled):
            raise _retracts(shape)
        rows = concat_rows([_expanded(delta) for delta in filled], shape.schema)
        stored = target.stored_form(rows)
        return Netted(TargetChange.of_records(stored), rows, tally(stored))
    return _records(ticks, shape, target)


def net_difference(
    view: Delta, stored: pa.RecordBatch, there: pa.RecordBatch, tick: int, shape: TargetShape, target: Target
) -> Netted:
    """Return the change that makes a target with the rows `existing` (with `_weight` in mode 'changelog') equal to a view. The
    view is consolidated, and `stored_form` is its stored form. SinkError if the change would violate the key or the mode."""
    if shape.mode == "upsert":
        if (view.weights > 1).any():
            raise not_unique(shape, stored, target.key, view.weights > 1)
        return net_rows(view.rows, stored, there, shape, target.key)
    weights = np.ones(there.num_rows, dtype=np.int64)
    if shape.mode == "changelog":
        weights = there.column(WEIGHT.name).to_numpy().astype(np.int64)
        there = there.drop_columns([WEIGHT.name])
    both = concat_rows([stored, there], stored.schema)
    sums = np.concatenate([view.weights, -weights])
    missing = consolidate(Delta(both, sums))
    if shape.mode == "append" and (missing.weights < 0).any():
        raise SinkError(
            f"the append-only target of sink {shape.sink!r} has {-int(missing.weights[missing.weights < 0].sum())} rows that view "
            f"{shape.view!r} does not have",
            hint="delete them in the target, or drop the sink and create it again with another name",
            sink=shape.sink,
            view=shape.view,
            reason="extra-rows",
        )
    if shape.mode == "append":
        added = _expanded(missing)
        return Netted(TargetChange.of_records(added), added, tally(added))
    records = as_records(missing, tick)
    return Netted(TargetChange.of_records(records), missing.rows, tally(missing.rows, missing.weights))


def net_rows(
    rows: pa.RecordBatch,
    coming: pa.RecordBatch,
    going: pa.RecordBatch,
    shape: TargetShape,
    key: Sequence[str],
) -> Netted:
    """Return the change for inserted rows, with `coming` as their stored form, and deleted stored rows. SinkError if a key
    is inserted twice."""
    count = coming.num_rows
    both = concat_rows([coming, going], coming.schema)
    groups = groups_of(*key_identities(both, key))
    if groups is None:
        upserted, deleted = np.arange(count), np.arange(count, both.num_rows)
    else:
        group = np.empty(both.num_rows, dtype=np.int64)
        sizes = np.diff(np.append(groups.starts, both.num_rows))
        group[groups.order] = np.repeat(np.arange(len(groups.starts)), sizes)
        arrivals = np.bincount(group[:count], minlength=len(sizes))
        if (arrivals > 1).any():
            raise not_unique(shape, coming, key, arrivals[group[:count]] > 1)
        same = _same_rows(both, group, sizes, count)
        upserted = np.flatnonzero(~same[group[:count]])
        gone = np.flatnonzero(arrivals[group[count:]] == 0) + count
        _, firsts = np.unique(group[gone], return_index=True)
        deleted = gone[firsts]
    deletes = take_rows(both.select(list(key)), deleted)
    difference = tally(coming) - tally(going)
    if len(upserted) != count:
        rows, coming = take_rows(rows, upserted), take_rows(coming, upserted)
    return Netted(TargetChange.of_keys(deletes, coming), rows, difference)


def key_identities(stored: pa.RecordBatch, key: Sequence[str]) -> tuple[Hashes, Hashes]:
    """Return 128-bit hashes of the keys of stored rows."""
    return identities([stored.column(name) for name in key], stored.num_rows, exact=True)


def as_records(change: Delta, tick: int) -> pa.RecordBatch:
    """Return stored rows, with their weights and a tick, as records of a changelog."""
    columns = [*change.rows.columns, pa.array(change.weights), pa.repeat(pa.scalar(tick), len(change))]
    return pa.RecordBatch.from_arrays(columns, schema=change.rows.schema.append(WEIGHT).append(TICK))


def not_unique(shape: TargetShape, stored: pa.RecordBatch, key: Sequence[str], wrong: Mask) -> SinkError:
    """Return the error for several rows with one key."""
    example = shown(take_rows(stored.select(list(key)), np.flatnonzero(wrong)[:1]), 1)
    return SinkError(
        f"view {shape.view!r} has several rows with the key {example}, and sink {shape.sink!r} stores one row per key",
        hint="name a key that is unique in the view, such as the columns of its GROUP BY",
        sink=shape.sink,
        view=shape.view,
        key=example,
    )


def without(netted: Netted, refused: Indices, target: Target) -> Netted:
    """Return a change without the upserts or records at these indices; the keys of removed upserts are deleted."""
    kept = np.setdiff1d(np.arange(netted.rows.num_rows), refused)
    rows = take_rows(netted.rows, kept)
    change = netted.change
    if target.key:
        keys = take_rows(change.upserts.select(list(target.key)), refused)
        deletes = concat_rows([change.deletes, keys], keys.schema)
        less = TargetChange.of_keys(deletes, take_rows(change.upserts, kept))
    else:
        less = TargetChange.of_records(take_rows(change.records, kept))
    return Netted(less, rows, netted.difference)


def _records(ticks: Ticks, shape: TargetShape, target: Target) -> Netted:
    rows, records, total = [], [], Tally()
    for tick, delta in ticks:
        delta = consolidate(delta)
        stored = delta.with_rows(target.stored_form(delta.rows))
        rows.append(delta.rows)
        records.append(as_records(stored, tick))
        total += tally(stored.rows, stored.weights)
    if not records:
        stored = target.stored_form(empty_rows(shape.schema))
        records.append(as_records(Delta.empty(stored.schema), 0))
    added = concat_rows(records, records[0].schema)
    return Netted(TargetChange.of_records(added), concat_rows(rows, shape.schema), total)


def _expanded(delta: Delta) -> pa.RecordBatch:
    return take_rows(delta.rows, np.repeat(np.arange(len(delta)), delta.weights))


def _same_rows(both: pa.RecordBatch, group: Indices, sizes: Indices, count: int) -> Mask:
    """Return, for each group of rows with one key, whether it is one inserted and one deleted row, and both are equal."""
    same = np.zeros(len(sizes), dtype=np.bool_)
    comes = np.full(len(sizes), -1, dtype=np.int64)
    goes = comes.copy()
    comes[group[:count]] = np.arange(count)
    goes[group[count:]] = np.arange(count, both.num_rows)
    pairs = np.flatnonzero((sizes == 2) & (comes >= 0) & (goes >= 0))
    if len(pairs):
        high, low = row_hashes(both)
        mine, theirs = comes[pairs], goes[pairs]
        same[pairs] = (high[mine] == high[theirs]) & (low[mine] == low[theirs])
    return same


def _retracts(shape: TargetShape) -> SinkError:
    return SinkError(
        f"view {shape.view!r} retracted rows, and sink {shape.sink!r} is append-only",
        hint="declare a key, or mode = 'changelog', which adds the columns _weight and _tick",
        sink=shape.sink,
        view=shape.view,
        reason="retraction",
    )
