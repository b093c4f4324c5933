"""Grouped aggregation, kept up to date: a delta of rows becomes a delta of groups.

The input's first columns are the group key, the others are arguments. The output has the key, then for each function
Spark's aggregation buffer (`functions.py` says which columns those are). State is *latest*: for each group its key, its
number of rows, and the lanes of its accumulators. A delta is combined by group first, then each group's state is touched
once: the old output row goes, the new one comes, and nothing is said of groups whose output stays as it was.

With no function this is DISTINCT. With no key there is one group, which is there even without rows: `initial` is its
row over empty input, to be emitted once, and `step` replaces it from then on.

Minima and maxima whose input can be taken back have, beside that, an ordered multiset of their values
(`AggregateSpec.arrangements`), which is read only where a value was taken back.

Custom functions, whose code is the caller's, come after all others in the state and in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.errors import ArithmeticOverflowError, HeadwaterError
from headwater.operators import functions, lanes
from headwater.operators.accumulators import Accumulator, Batch, Count, Lanes
from headwater.operators.collation import Order
from headwater.operators.custom import Custom
from headwater.operators.delta import Delta, take_rows
from headwater.operators.extremes import Extreme, take
from headwater.operators.functions import Function
from headwater.operators.grouping import Groups, group
from headwater.operators.ordered import arrange_ordered, first_rows
from headwater.operators.runs import Run, lookup
from headwater.operators.sums import Bools, Ints

_ROWS = Count((), None)
_Picks = dict[Extreme, list[pa.Array]]


@dataclass(frozen=True)
class Arrangement:
    """The ordered multiset that retractable minima and maxima read.

    It holds the group key and then `columns` of the input, of the rows where `filter` holds and the first of these
    columns is not NULL; the order is that of the columns after the key, the first one descending if so said.
    """

    schema: pa.Schema
    width: int
    columns: tuple[int, ...]
    filter: int | None
    descending: bool

    @property
    def key(self) -> range:
        """The places of the group key."""
        return range(self.width)

    @property
    def order(self) -> tuple[Order, ...]:
        """The order within a key."""
        places = range(self.width, self.width + len(self.columns))
        return tuple(Order(i, self.descending and i == self.width, nulls_first=True) for i in places)


@dataclass(frozen=True)
class AggregateSpec:
    """What is aggregated: an input schema, how many of its first columns are the key, and the functions."""

    schema: pa.Schema
    width: int
    functions: tuple[Function, ...]
    customs: tuple[Custom, ...] = ()

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """What is kept for each group, the number of rows first; each once, however many functions need it."""
        needed: dict[Accumulator, None] = {_ROWS: None}
        for function in self.functions:
            for accumulator in functions.accumulators(function, self.schema):
                needed[accumulator] = None
        return tuple(needed)

    @cached_property
    def extremes(self) -> tuple[Extreme, ...]:
        """The values that are picked for each group."""
        return tuple(dict.fromkeys(Extreme.of(function) for function in self.functions if function.extreme))

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """The ordered multisets that `step` needs, in the order in which it takes and gives their runs."""
        needed = [self.arrangement(extreme) for extreme in self.extremes if extreme.retractable]
        return tuple(dict.fromkeys(needed))

    @property
    def combinable(self) -> bool:
        """Whether deltas may be combined before they are applied: no value that is picked can be taken back."""
        return not self.arrangements and not self.customs

    def arrangement(self, extreme: Extreme) -> Arrangement:
        """The ordered multiset of one value that is picked."""
        columns = tuple(reversed(extreme.columns))
        descending = extreme.greatest and extreme.ordering is not None
        schema = pa.schema([self.schema.field(i) for i in (*range(self.width), *columns)])
        return Arrangement(schema, self.width, columns, extreme.filter, descending)

    @cached_property
    def output(self) -> pa.Schema:
        """The key, then the buffer columns of each function."""
        fields = [self.schema.field(i) for i in range(self.width)]
        for number, function in enumerate(self.functions):
            kinds = functions.fields(function, self.schema)
            fields += [pa.field(f"{function.kind}_{number}_{i}", kind) for i, kind in enumerate(kinds)]
        fields += [pa.field(f"custom_{i}", custom.result) for i, custom in enumerate(self.customs)]
        return pa.schema(fields)

    @cached_property
    def state(self) -> pa.Schema:
        """The key, then the lanes of the accumulators, then the values that are picked, then custom states."""
        kinds = [kind for accumulator in self.accumulators for kind in accumulator.kinds]
        kinds += [self.schema.field(i).type for extreme in self.extremes for i in extreme.columns]
        kinds += [custom.state for custom in self.customs]
        fields = [self.schema.field(i) for i in range(self.width)]
        return pa.schema([*fields, *(pa.field(f"lane_{i}", kind) for i, kind in enumerate(kinds))])


@dataclass(frozen=True, eq=False)
class Step:
    """What comes of a delta: the change of the output, and a run for the state and for each arrangement."""

    output: Delta
    state: Run
    ordered: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class _Kept:
    """What is known of each of some groups: lanes of numbers, values that were picked, custom states."""

    lanes: dict[Accumulator, Lanes]
    picks: _Picks
    customs: list[pa.Array]

    def columns(self) -> list[pa.Array]:
        numbers = [pa.array(lane) for some in self.lanes.values() for lane in some]
        return [*numbers, *(column for some in self.picks.values() for column in some), *self.customs]


def initial(spec: AggregateSpec) -> Delta:
    """The output over empty input: one row if there is no key, else none."""
    if spec.width:
        return Delta.empty(spec.output)
    nothing = _read(spec, np.full(1, -1, dtype=np.int64), None)
    always = np.ones(1, dtype=np.bool_)
    return Delta.of(pa.RecordBatch.from_arrays(_finish(spec, nothing, None, always), schema=spec.output))


def step(spec: AggregateSpec, state: Sequence[Run], arranged: Sequence[Sequence[Run]], delta: Delta) -> Step:
    """Apply a delta; `arranged` has the runs of each of `spec.arrangements`.

    Raises ArithmeticOverflowError, naming the group, if a sum does not fit its type.
    """
    if not len(delta):
        nothing = tuple(_no_run(arrangement.schema) for arrangement in spec.arrangements)
        return Step(Delta.empty(spec.output), _no_run(spec.state), nothing)
    batch = Batch(delta.rows, delta.weights, group(delta.rows, len(delta), range(spec.width)))
    fresh = _collect(spec, batch)
    runs = tuple(_arrange(arrangement, delta) for arrangement in spec.arrangements)
    after = {
        arrangement: (*old, new)
        for arrangement, old, new in zip(spec.arrangements, arranged, runs, strict=True)
    }
    output, kept = _apply(
        spec, state, batch.groups, fresh, lambda picks: _pick_again(spec, after, batch, picks), batch
    )
    return Step(output, kept, runs)


def combine(spec: AggregateSpec, delta: Delta) -> pa.RecordBatch:
    """A delta combined by group, in the columns of `spec.state`; needs `spec.combinable`.

    Rows combined from parts of a delta may be put together in any order: `step_combined` applies them.
    """
    if not spec.combinable:
        raise ValueError("values that can be taken back must be seen one by one")
    if not len(delta):
        return Delta.empty(spec.state).rows
    batch = Batch(delta.rows, delta.weights, group(delta.rows, len(delta), range(spec.width)))
    columns = [*batch.groups.keys.columns, *_collect(spec, batch).columns()]
    return pa.RecordBatch.from_arrays(columns, schema=spec.state)


def step_combined(spec: AggregateSpec, state: Sequence[Run], combined: pa.RecordBatch) -> Step:
    """The same as `step`, for a delta that was combined, in as many parts as there were."""
    if not combined.num_rows:
        return step(spec, state, (), Delta.empty(spec.schema))
    groups = group(combined, combined.num_rows, range(spec.width))
    order = np.arange(combined.num_rows) if groups.order is None else groups.order
    column = spec.width
    sums: dict[Accumulator, Lanes] = {}
    for accumulator in spec.accumulators:
        parts = combined.columns[column : column + len(accumulator.kinds)]
        column += len(accumulator.kinds)
        sums[accumulator] = accumulator.merge([_number(part)[order] for part in parts], groups.starts)
    picks: _Picks = {}
    for extreme in spec.extremes:
        parts = combined.columns[column : column + len(extreme.columns)]
        column += len(extreme.columns)
        picks[extreme] = extreme.pick(parts, order, groups.starts, groups.sizes)
    output, kept = _apply(spec, state, groups, _Kept(sums, picks, []), lambda picks: picks, None)
    return Step(output, kept, ())


def _collect(spec: AggregateSpec, batch: Batch) -> _Kept:
    sums = {accumulator: accumulator.collect(batch) for accumulator in spec.accumulators}
    return _Kept(sums, {extreme: extreme.collect(batch) for extreme in spec.extremes}, [])


def _apply(
    spec: AggregateSpec,
    state: Sequence[Run],
    groups: Groups,
    fresh: _Kept,
    repick: Callable[[_Picks], _Picks],
    batch: Batch | None,
) -> tuple[Delta, Run]:
    """The change of the output and the run of the state, given what a delta brings to each of its groups.

    `batch` is the delta itself, which custom functions need.
    """
    found, rows = lookup(state, range(spec.width), groups.keys, groups.hashes, schema=spec.state)
    known = found >= 0
    old: _Kept | None = None
    new = fresh
    if known.any():
        old = _read(spec, found, rows)
        sums = {name: name.add(old.lanes[name], fresh.lanes[name]) for name in spec.accumulators}
        picks = {name: name.better(old.picks[name], fresh.picks[name]) for name in spec.extremes}
        new = _Kept(sums, picks, [])
    elif not spec.width:
        old = _read(spec, found, None)
    settled = {name: name.settled(new.lanes[name], new.lanes[name.count][0]) for name in spec.accumulators}
    there = settled[_ROWS][0] != 0
    new = _Kept(settled, repick(new.picks), _customs(spec, old, batch, there))

    always = np.ones(len(there), dtype=np.bool_)
    values = _finish(spec, new, groups.keys, there if spec.width else always)
    previous = None if old is None else _finish(spec, old, None, known if spec.width else always)
    if spec.width:
        output = _changes(spec, groups.keys, previous, values, known, there)
    else:
        output = _changes(spec, groups.keys, previous, values, always, always)

    columns = [*groups.keys.columns, *new.columns()]
    run = Run(groups.hashes, pa.RecordBatch.from_arrays(columns, schema=spec.state), there.astype(np.int64))
    if not (known | there).all():
        places = np.flatnonzero(known | there)
        run = Run(run.hashes[places], take_rows(run.rows, places), run.weights[places])
    return output, run


def _read(spec: AggregateSpec, found: Ints, rows: pa.RecordBatch | None) -> _Kept:
    """What the state has of each group: `found` are places in `rows`, negative where there is nothing."""
    missing = found < 0
    any_missing = bool(missing.any())
    places = np.where(missing, 0, found) if any_missing else found
    column = spec.width
    numbers: dict[Accumulator, Lanes] = {}
    for accumulator in spec.accumulators:
        some: Lanes = []
        for kind in accumulator.kinds:
            if rows is None:
                lane = np.zeros(len(found), dtype=kind.to_pandas_dtype())
            else:
                lane = _number(rows.column(column))[places]
                if any_missing:
                    lane[missing] = 0
            some.append(lane)
            column += 1
        numbers[accumulator] = some
    picks: _Picks = {}
    for extreme in spec.extremes:
        picks[extreme] = []
        for i in extreme.columns:
            if rows is None:
                picks[extreme].append(lanes.nulls(len(found), spec.schema.field(i).type))
            else:
                picks[extreme].append(take(rows.column(column), found))
            column += 1
    customs = []
    for custom in spec.customs:
        states = custom.zeros(len(found))
        if rows is not None:
            both = pa.concat_arrays([rows.column(column), states])
            states = both.take(pa.array(np.where(missing, rows.num_rows, found)))
        customs.append(states)
        column += 1
    return _Kept(numbers, picks, customs)


def _customs(spec: AggregateSpec, old: _Kept | None, batch: Batch | None, there: Bools) -> list[pa.Array]:
    """The states of custom functions after a delta."""
    if not spec.customs:
        return []
    assert batch is not None
    before = [c.zeros(len(there)) for c in spec.customs] if old is None else old.customs
    return [c.applied(states, batch, there) for c, states in zip(spec.customs, before, strict=True)]


def _finish(spec: AggregateSpec, kept: _Kept, keys: pa.RecordBatch | None, there: Bools) -> list[pa.Array]:
    """The buffer columns of all functions; `keys` are to name a group that overflows, None if none can."""

    def overflow(function: Function, fits: Bools) -> None:
        if keys is not None and not fits.all():
            raise _overflow(spec, function, keys, int(np.argmin(fits)))

    columns: list[pa.Array] = []
    for function in spec.functions:
        if function.extreme:
            columns.append(kept.picks[Extreme.of(function)][0])
        else:
            columns += functions.finish(function, spec.schema, kept.lanes, overflow)
    columns += [c.finished(states, there) for c, states in zip(spec.customs, kept.customs, strict=True)]
    return columns


def _overflow(spec: AggregateSpec, function: Function, keys: pa.RecordBatch, place: int) -> HeadwaterError:
    name = f"{function.kind}({spec.schema.field(function.args[0]).name})"
    key = {field.name: keys.column(i)[place].as_py() for i, field in enumerate(keys.schema)}
    where = ", ".join(f"{column} = {value!r}" for column, value in key.items())
    return ArithmeticOverflowError(
        f"{name} does not fit its type",
        detail=f"the group is {where}" if key else "it is over all rows",
        hint="cast the argument to a wider type, such as DECIMAL(38, 0) or DOUBLE",
        function=name,
        key=key,
    )


def _changes(
    spec: AggregateSpec,
    keys: pa.RecordBatch,
    old: list[pa.Array] | None,
    new: list[pa.Array],
    before: Bools,
    after: Bools,
) -> Delta:
    """Old rows go and new ones come, where a group was there `before` and is there `after`, unless they are the same."""
    if old is None:
        going = np.zeros(0, dtype=np.int64)
        coming = np.flatnonzero(after)
    else:
        equal = np.ones(len(after), dtype=np.bool_)
        for mine, theirs in zip(old, new, strict=True):
            equal &= lanes.same(mine, theirs)
        equal &= before & after
        going = np.flatnonzero(before & ~equal)
        coming = np.flatnonzero(after & ~equal)
    places = pa.array(np.concatenate((going, coming)))
    columns = [column.take(places) for column in keys.columns]
    gone, come = pa.array(going), pa.array(coming)
    for i, column in enumerate(new):
        part = column.take(come)
        columns.append(
            pa.concat_arrays([old[i].take(gone), part]) if old is not None and len(going) else part
        )
    weights = np.ones(len(places), dtype=np.int64)
    weights[: len(going)] = -1
    return Delta(pa.RecordBatch.from_arrays(columns, schema=spec.output), weights)


def _arrange(arrangement: Arrangement, delta: Delta) -> Run:
    """What a delta changes in an ordered multiset."""
    mask = ~delta.rows.column(arrangement.columns[0]).is_null().to_numpy(zero_copy_only=False)
    if arrangement.filter is not None:
        mask &= lanes.booleans(delta.rows.column(arrangement.filter))
    rows = delta.rows.select([*arrangement.key, *arrangement.columns])
    return arrange_ordered(Delta(rows, delta.weights).filter(mask), arrangement.key, arrangement.order)


def _pick_again(
    spec: AggregateSpec, after: Mapping[Arrangement, Sequence[Run]], batch: Batch, picks: _Picks
) -> _Picks:
    """The picks, with those of groups from which something was taken back read anew from the ordered multisets."""
    made = dict(picks)
    groups = batch.groups
    for extreme, columns in picks.items():
        weights = batch.weights((extreme.decisive,), extreme.filter)
        if not extreme.retractable or weights is None:
            continue
        lost = np.flatnonzero(np.minimum.reduceat(weights, groups.starts) < 0)
        if not len(lost):
            continue
        arrangement = spec.arrangement(extreme)
        found = first_rows(
            after[arrangement],
            arrangement.key,
            arrangement.order,
            take_rows(groups.keys, lost),
            groups.hashes[lost],
            limit=1,
            from_end=extreme.greatest and not arrangement.order[0].descending,
            counting="values",
            schema=arrangement.schema,
        )
        again = extreme.pick_by(list(reversed(found.rows.columns[spec.width :])), found.probe, len(lost))
        places = np.arange(len(groups))
        places[lost] = len(groups) + np.arange(len(lost))
        made[extreme] = [
            pa.concat_arrays(both).take(pa.array(places)) for both in zip(columns, again, strict=True)
        ]
    return made


def _number(column: pa.Array) -> npt.NDArray[Any]:
    lane: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return lane


def _no_run(schema: pa.Schema) -> Run:
    nothing = Delta.empty(schema)
    return Run(np.zeros(0, dtype=np.uint64), nothing.rows, nothing.weights)
