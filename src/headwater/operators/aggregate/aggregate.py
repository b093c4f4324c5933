"""Grouped aggregation, maintained incrementally: a delta of rows becomes a delta of groups.

The first columns of the input are the group key, the others are arguments. The output has the key, then for each
function Spark's aggregation buffer (`aggregate_functions` defines its columns). State is *latest*: for each group its
key, its number of rows, and the columns of its accumulators. A delta is first combined by group; then each group's
state is read once: the old output row is retracted and the new one inserted, and groups whose output is unchanged emit
nothing.

Without functions this is DISTINCT. Without a key there is one group, which exists even without rows: `initial` is its
row over empty input, to be emitted once, and `step` replaces it from then on.

Sketches (`sketches`) are stored like selected values: as cells of columns that are not numbers.

Minima and maxima over input that can be retracted also have an ordered multiset of their values
(`AggregateSpec.arrangements`), which is read only where a value was retracted.

Custom functions, whose code is the user's, come after all others in the state and in the output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headwater.core.errors import ArithmeticOverflowError, HeadwaterError
from headwater.core.parallel import side_by_side
from headwater.operators.aggregate import aggregate_functions as functions
from headwater.operators.aggregate.accumulators import Accumulator, Count, GroupedRows, Lanes
from headwater.operators.aggregate.aggregate_functions import AggregateFunction
from headwater.operators.aggregate.custom_aggregates import CustomAggregate
from headwater.operators.aggregate.min_max import Extreme
from headwater.operators.aggregate.sketches import Sketched
from headwater.operators.zset import numpy_columns as lanes
from headwater.operators.zset.collation import ColumnOrder
from headwater.operators.zset.delta import Delta, concat_rows, take_rows
from headwater.operators.zset.exact_sums import Bools, Ints
from headwater.operators.zset.grouping import KeyGroups, group
from headwater.operators.zset.lookup import LookupResult, find
from headwater.operators.zset.ordered_runs import Limit, arrange_ordered, first_rows
from headwater.operators.zset.runs import Probes, Run, contents_latest, key_hashes

PIECE_ROWS = 1 << 18
"""Number of rows per piece: a larger change of few groups is combined in pieces of this size, in parallel. The result
does not depend on the number of cores."""
_ROWS = Count((), None)
_Picks = list[list[pa.Array]]
"""Columns of each extreme (the selected values and their orderings) and of each sketch."""


@dataclass(frozen=True)
class Arrangement:
    """The ordered multiset that retractable minima and maxima read.

    It has the group key and then `columns` of the input, for the rows where `filter` holds and the first of these
    columns is not NULL. Rows are ordered by the columns after the key: ascending with NULL first, or, if `descending`,
    descending with NULL last.
    """

    schema: pa.Schema
    width: int
    columns: tuple[int, ...]
    filter: int | None
    descending: bool

    @property
    def key(self) -> range:
        """Indices of the group key columns."""
        return range(self.width)

    @property
    def order(self) -> tuple[ColumnOrder, ...]:
        """Order of the rows within a key."""
        places = range(self.width, self.width + len(self.columns))
        return tuple(ColumnOrder(i, self.descending, nulls_first=not self.descending) for i in places)


@dataclass(frozen=True)
class AggregateSpec:
    """The definition of an aggregation: an input schema, the number of leading key columns, and the functions."""

    schema: pa.Schema
    width: int
    functions: tuple[AggregateFunction, ...]
    customs: tuple[CustomAggregate, ...] = ()
    names: tuple[str, ...] | None = None
    """Names of the output's columns; None generates names."""

    @cached_property
    def accumulators(self) -> tuple[Accumulator, ...]:
        """Accumulators stored for each group, the number of rows first; each once, however many functions use it."""
        needed: dict[Accumulator, None] = {_ROWS: None}
        for function in self.functions:
            for accumulator in functions.accumulators(function, self.schema):
                needed[accumulator] = None
        return tuple(needed)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Indices of the accumulators that count the rows of each accumulator."""
        return tuple(self.accumulators.index(accumulator.count) for accumulator in self.accumulators)

    @cached_property
    def dtypes(self) -> tuple[tuple[type[np.generic], ...], ...]:
        """NumPy types of each accumulator's columns."""
        return tuple(
            tuple(lanes.numpy_type(kind) for kind in accumulator.kinds) for accumulator in self.accumulators
        )

    @cached_property
    def finishers(self) -> tuple[tuple[AggregateFunction, pa.DataType | None, int, int], ...]:
        """Each function with the type of its first argument and the indices of its inputs.

        The indices are twice that of the extreme or sketch in `held`, or those of the function's count and last
        accumulator, which is the count again for `count`.
        """
        found: list[tuple[AggregateFunction, pa.DataType | None, int, int]] = []
        for function in self.functions:
            kind = self.schema.field(function.args[0]).type if function.args else None
            if not function.adds_up:
                place = self.held.index(_value_state(function))
                found.append((function, kind, place, place))
                continue
            needed = functions.accumulators(function, self.schema)
            count, kept = (self.accumulators.index(each) for each in (needed[0], needed[-1]))
            found.append((function, kind, count, kept))
        return tuple(found)

    @cached_property
    def held(self) -> tuple[Extreme | Sketched, ...]:
        """Non-numeric state of each group: the extremes and the sketches."""
        return tuple(
            dict.fromkeys(_value_state(function) for function in self.functions if not function.adds_up)
        )

    @property
    def extremes(self) -> tuple[Extreme, ...]:
        """Extremes, the values selected for each group."""
        return tuple(each for each in self.held if isinstance(each, Extreme))

    @cached_property
    def arrangements(self) -> tuple[Arrangement, ...]:
        """Ordered multisets that `step` needs, in the order in which it takes and returns their runs."""
        needed = [self.arrangement(extreme) for extreme in self.extremes if extreme.retractable]
        return tuple(dict.fromkeys(needed))

    @cached_property
    def shape(self) -> str:
        """Key of everything but the column names; aggregations of equal shape can be executed in one step."""
        types = ", ".join(map(str, self.schema.types))
        return f"{self.width} of ({types}): {self.functions}"

    @property
    def combinable(self) -> bool:
        """Whether deltas may be combined before they are applied: there is no retractable extreme and no custom function."""
        return not self.arrangements and not self.customs

    def arrangement(self, extreme: Extreme) -> Arrangement:
        """Return the ordered multiset of an extreme."""
        columns = tuple(reversed(extreme.columns))
        descending = extreme.greatest and extreme.ordering is not None
        schema = pa.schema([self.schema.field(i) for i in (*range(self.width), *columns)])
        return Arrangement(schema, self.width, columns, extreme.filter, descending)

    @cached_property
    def output(self) -> pa.Schema:
        """Schema of the output: the key, then the buffer columns of each function."""
        fields = [self.schema.field(i) for i in range(self.width)]
        for number, function in enumerate(self.functions):
            kinds = functions.fields(function, self.schema)
            fields += [pa.field(f"{function.kind}_{number}_{i}", kind) for i, kind in enumerate(kinds)]
        fields += [pa.field(f"custom_{i}", custom.result) for i, custom in enumerate(self.customs)]
        if self.names is not None:
            fields = [field.with_name(name) for field, name in zip(fields, self.names, strict=True)]
        return pa.schema(fields)

    @cached_property
    def state(self) -> pa.Schema:
        """Schema of the state: the key, then the columns of accumulators, of extremes and sketches, and of custom states."""
        kinds = [kind for accumulator in self.accumulators for kind in accumulator.kinds]
        kinds += [kind for each in self.held for kind in each.kinds(self.schema)]
        kinds += [custom.state for custom in self.customs]
        fields = [self.schema.field(i) for i in range(self.width)]
        return pa.schema([*fields, *(pa.field(f"lane_{i}", kind) for i, kind in enumerate(kinds))])


@dataclass(frozen=True, eq=False)
class AggregateStep:
    """The result of a delta: the change of the output, and a run for the state and for each arrangement."""

    output: Delta
    state: Run
    ordered: tuple[Run, ...]


@dataclass(frozen=True, eq=False)
class Applied:
    """The result for the groups that a delta changes.

    `owners` has the group of each output row, `places` the group of each row of `state`, None if each group has exactly one.
    """

    output: Delta
    owners: Ints
    state: Run
    places: Ints | None


@dataclass(frozen=True, eq=False)
class GroupState:
    """The state of some groups, in the order of the spec: numeric columns, columns of extremes and sketches, custom states."""

    lanes: list[Lanes]
    picks: _Picks
    customs: list[pa.Array]

    def columns(self) -> list[pa.Array]:
        numbers = [pa.array(lane) for some in self.lanes for lane in some]
        return [*numbers, *(column for some in self.picks for column in some), *self.customs]

    def then(self, other: GroupState) -> GroupState:
        """Append the groups of another state."""
        return GroupState(
            [
                list(map(np.concatenate, zip(a, b, strict=True)))
                for a, b in zip(self.lanes, other.lanes, strict=True)
            ],
            [
                list(map(pa.concat_arrays, zip(a, b, strict=True)))
                for a, b in zip(self.picks, other.picks, strict=True)
            ],
            [pa.concat_arrays(both) for both in zip(self.customs, other.customs, strict=True)],
        )


@dataclass(frozen=True, eq=False)
class Contribution:
    """The contribution of a delta to each of its groups: the groups, and their state over the delta alone.

    `rows` is the delta itself, which custom functions need; None if it was combined.
    """

    groups: KeyGroups
    state: GroupState
    rows: GroupedRows | None


def initial(spec: AggregateSpec) -> Delta:
    """Return the output over empty input: one row if there is no key, else none."""
    if spec.width:
        return Delta.empty(spec.output)
    nothing = _read(spec, LookupResult(1, spec.state, ()))
    always = np.ones(1, dtype=np.bool_)
    row = pa.RecordBatch.from_arrays(_finish(spec, nothing, None, always), schema=spec.output)
    return Delta(row, np.ones(1, dtype=np.int64))


def shown(spec: AggregateSpec, state: Sequence[Run]) -> Delta:
    """Return the output for all groups of a state."""
    held = contents_latest(state, spec.state, range(spec.width))
    if not len(held):
        return initial(spec)
    columns = held.rows.columns
    first = len(columns) - len(spec.customs)
    there = np.ones(len(held), dtype=np.bool_)
    kept = _group_state(spec, columns[spec.width : first], columns[first:])
    keys = columns[: spec.width]
    rows = pa.RecordBatch.from_arrays([*keys, *_finish(spec, kept, None, there)], schema=spec.output)
    return Delta(rows, held.weights, distinct=True)


def step(
    spec: AggregateSpec,
    state: Sequence[Run],
    arranged: Sequence[Sequence[Run]],
    delta: Delta,
    *,
    first: bool = False,
) -> AggregateStep:
    """Apply a delta; `arranged` has the runs of each of `spec.arrangements`.

    `first`: `initial` was not emitted, so that nothing is retracted and no function is evaluated over empty input.

    Raises ArithmeticOverflowError, naming the group, if a sum does not fit its type.
    """
    if not len(delta):
        nothing = tuple(_no_run(arrangement.schema) for arrangement in spec.arrangements)
        return AggregateStep(Delta.empty(spec.output), _no_run(spec.state), nothing)
    if len(delta) > PIECE_ROWS and spec.combinable and _few_groups(spec, delta):
        pieces = [delta.slice(start, PIECE_ROWS) for start in range(0, len(delta), PIECE_ROWS)]
        combined = side_by_side(lambda piece: combine(spec, piece), pieces, size=delta.rows.nbytes)
        return step_combined(spec, state, concat_rows(combined, spec.state))
    batch = GroupedRows(delta.rows, delta.weights, group(delta.rows, len(delta), range(spec.width)))
    fresh = collect(spec, batch)
    runs = tuple(_arrange(arrangement, delta) for arrangement in spec.arrangements)
    after = {
        arrangement: (*old, new)
        for arrangement, old, new in zip(spec.arrangements, arranged, runs, strict=True)
    }
    found = look_up(spec, state, batch.groups)
    change = Contribution(batch.groups, fresh, batch)
    done = apply(spec, found, change, lambda picks: _pick_again(spec, after, batch, picks), first=first)
    return AggregateStep(done.output, done.state, runs)


def _few_groups(spec: AggregateSpec, delta: Delta) -> bool:
    """Whether most rows share their group with many others, judged by a sample."""
    sample = np.linspace(0, len(delta) - 1, 1_024).astype(np.int64)
    keys = take_rows(delta.rows.select(range(spec.width)), sample)
    return not spec.width or len(np.unique(key_hashes(keys, range(spec.width)))) < len(sample) // 2


def netted(change: Delta) -> Delta:
    """Consolidate a change that `step` returned and that was then mapped row by row; the rows must still include the key.

    Only the old and the new row of a group can have become equal, and these are adjacent.
    """
    if change.distinct or change.hashes is None:
        return change
    hashes, weights, count = change.hashes, change.weights, len(change)
    same = (hashes[1:] == hashes[:-1]) & (weights[1:] + weights[:-1] == 0)
    for column in change.rows.columns:
        if not same.any():
            return Delta(change.rows, weights, distinct=True, hashes=hashes)
        same &= lanes.same(column.slice(1), column.slice(0, count - 1))
    kept = np.ones(count, dtype=np.bool_)
    kept[1:] &= ~same
    kept[:-1] &= ~same
    places = np.flatnonzero(kept)
    return Delta(take_rows(change.rows, places), weights[places], distinct=True, hashes=hashes[places])


def combine(spec: AggregateSpec, delta: Delta) -> pa.RecordBatch:
    """Combine a delta by group, in the columns of `spec.state`; requires `spec.combinable`.

    Rows combined from parts of a delta may be concatenated in any order; `step_combined` applies them.
    """
    if not spec.combinable:
        raise ValueError("partial sums support no functions that need every value to retract one")
    if not len(delta):
        return Delta.empty(spec.state).rows
    batch = GroupedRows(delta.rows, delta.weights, group(delta.rows, len(delta), range(spec.width)))
    columns = [*batch.groups.keys.columns, *collect(spec, batch).columns()]
    return pa.RecordBatch.from_arrays(columns, schema=spec.state)


def step_combined(spec: AggregateSpec, state: Sequence[Run], combined: pa.RecordBatch) -> AggregateStep:
    """Apply a delta that was combined with `combine`, in any number of parts; equivalent to `step`."""
    if not combined.num_rows:
        return step(spec, state, (), Delta.empty(spec.schema))
    groups = group(combined, combined.num_rows, range(spec.width))
    order = np.arange(combined.num_rows) if groups.order is None else groups.order
    fresh = _merged(spec, combined.columns[spec.width :], order, groups.starts, groups.sizes)
    change = Contribution(groups, fresh, None)
    done = apply(spec, look_up(spec, state, groups), change, as_they_are)
    return AggregateStep(done.output, done.state, ())


# Functions over the state columns after the key, for combinable specs of operators whose groups are not defined by a key.


def collected(spec: AggregateSpec, batch: GroupedRows) -> list[pa.Array]:
    """Return the state columns that a delta contributes to each of its groups."""
    return collect(spec, batch).columns()


def merged(
    spec: AggregateSpec, kept: Sequence[pa.Array], order: Ints, starts: Ints, sizes: Ints
) -> list[pa.Array]:
    """Merge the state columns of several groups, for each segment of groups in the given order."""
    return _merged(spec, kept, order, starts, sizes).columns()


def finished(spec: AggregateSpec, kept: Sequence[pa.Array], keys: pa.RecordBatch) -> list[pa.Array]:
    """Return the buffer columns of all functions over groups that have rows.

    Raises ArithmeticOverflowError, naming the group by its key, if a sum does not fit its type.
    """
    there = np.ones(len(kept[0]), dtype=np.bool_)
    return _finish(spec, _group_state(spec, kept, []), keys, there)


def _group_state(spec: AggregateSpec, kept: Sequence[pa.Array], customs: list[pa.Array]) -> GroupState:
    """Split the state columns after the key into numbers, extremes and sketches, and custom states."""
    columns = iter(kept)
    numbers = [[_number(next(columns)) for _ in dtypes] for dtypes in spec.dtypes]
    picks = [[next(columns) for _ in each.kinds(spec.schema)] for each in spec.held]
    return GroupState(numbers, picks, customs)


def _merged(
    spec: AggregateSpec, kept: Sequence[pa.Array], order: Ints, starts: Ints, sizes: Ints
) -> GroupState:
    column = 0
    sums: list[Lanes] = []
    for accumulator, dtypes in zip(spec.accumulators, spec.dtypes, strict=True):
        parts = kept[column : column + len(dtypes)]
        column += len(dtypes)
        sums.append(accumulator.merge([_number(part)[order] for part in parts], starts))
    picks: _Picks = []
    for each in spec.held:
        parts = kept[column : column + len(each.kinds(spec.schema))]
        column += len(parts)
        picks.append(each.pick(parts, order, starts, sizes))
    return GroupState(sums, picks, [])


def collect(spec: AggregateSpec, batch: GroupedRows) -> GroupState:
    """Aggregate a delta by group, without the stored state."""
    sums = [accumulator.collect(batch) for accumulator in spec.accumulators]
    return GroupState(sums, [each.collect(batch) for each in spec.held], [])


def look_up(spec: AggregateSpec, state: Sequence[Run], groups: KeyGroups) -> LookupResult:
    """Look up the stored state of each group."""
    return find(state, range(spec.width), groups.keys, groups.hashes, spec.state)


def as_they_are(picks: _Picks) -> _Picks:
    """Return the picks unchanged, for aggregations where no selected value can have been retracted."""
    return picks


def apply(
    spec: AggregateSpec,
    found: LookupResult,
    change: Contribution,
    repick: Callable[[_Picks], _Picks],
    *,
    first: bool = False,
) -> Applied:
    """Return the change of the output and the run of the state, given the stored state of each group and a delta's
    contribution.

    `first`: without a key, no row of the one group was emitted yet.
    """
    groups, fresh, known = change.groups, change.state, found.known
    old: GroupState | None = None
    new = fresh
    if found.parts:
        old = _read(spec, found)
        sums = [a.add(*both) for a, *both in zip(spec.accumulators, old.lanes, fresh.lanes, strict=True)]
        picks = [e.better(*both) for e, *both in zip(spec.held, old.picks, fresh.picks, strict=True)]
        new = GroupState(sums, picks, [])
    elif not spec.width and not first:
        old = _read(spec, found)
    settled = [
        accumulator.settled(kept, new.lanes[count][0])
        for accumulator, kept, count in zip(spec.accumulators, new.lanes, spec.counts, strict=True)
    ]
    there = settled[0][0] != 0
    new = GroupState(settled, repick(new.picks), _customs(spec, old, change.rows, there))
    output, owners = _changes(spec, groups, old, new, known, there)

    columns = [*groups.keys.columns, *new.columns()]
    run = Run(groups.hashes, pa.RecordBatch.from_arrays(columns, schema=spec.state), there.astype(np.int64))
    if there.all() or (known | there).all():
        return Applied(output, owners, run, None)
    places = np.flatnonzero(known | there)
    run = Run(run.hashes[places], take_rows(run.rows, places), run.weights[places])
    return Applied(output, owners, run, places)


def _read(spec: AggregateSpec, found: LookupResult) -> GroupState:
    """Return the stored state of each group: zeros and NULLs for groups without state."""
    column = spec.width
    numbers: list[Lanes] = []
    for dtypes in spec.dtypes:
        numbers.append([found.lane(column + i, dtype) for i, dtype in enumerate(dtypes)])
        column += len(dtypes)
    picks: _Picks = []
    for each in spec.held:
        kinds = each.kinds(spec.schema)
        picks.append([found.column(column + i) for i in range(len(kinds))])
        column += len(kinds)
    customs = []
    for place, custom in enumerate(spec.customs, start=column):
        states = custom.zeros(found.count)
        if found.parts:
            places = np.arange(found.count) + np.where(found.known, 0, found.count)
            states = pa.concat_arrays([found.column(place), states]).take(pa.array(places))
        customs.append(states)
    return GroupState(numbers, picks, customs)


def _customs(
    spec: AggregateSpec, old: GroupState | None, batch: GroupedRows | None, there: Bools
) -> list[pa.Array]:
    """Return the states of custom functions after a delta."""
    if not spec.customs:
        return []
    assert batch is not None
    before = [c.zeros(len(there)) for c in spec.customs] if old is None else old.customs
    return [c.applied(states, batch, there) for c, states in zip(spec.customs, before, strict=True)]


def _finish(
    spec: AggregateSpec, kept: GroupState, keys: pa.RecordBatch | None, there: Bools
) -> list[pa.Array]:
    """Return the buffer columns of all functions over groups; the groups may be a multiple of `keys`.

    `keys` serves to name a group that overflows; None if no group can.
    """

    def overflow(function: AggregateFunction, fits: Bools) -> None:
        if keys is not None and not fits.all():
            groups = max(1, keys.num_rows)  # a batch without columns has no row count
            raise _overflow(spec, function, keys, int(np.argmin(fits)) % groups)

    columns: list[pa.Array] = []
    for function, kind, first, second in spec.finishers:
        if function.sketch is not None:
            columns.append(function.sketch.finish(kept.picks[first]))
        elif function.extreme:
            columns.append(kept.picks[first][0])
        else:
            columns += functions.finish(function, kind, kept.lanes[first][0], kept.lanes[second], overflow)
    columns += [c.finished(states, there) for c, states in zip(spec.customs, kept.customs, strict=True)]
    return columns


def _overflow(
    spec: AggregateSpec, function: AggregateFunction, keys: pa.RecordBatch, place: int
) -> HeadwaterError:
    name = f"{function.kind}({spec.schema.field(function.args[0]).name})"
    key = {field.name: keys.column(i)[place].as_py() for i, field in enumerate(keys.schema)}
    where = ", ".join(f"{column} = {value!r}" for column, value in key.items())
    return ArithmeticOverflowError(
        f"{name} does not fit its type",
        detail=f"the group is {where}" if key else "the aggregate is over all rows",
        hint="cast the argument to a wider type, such as DECIMAL(38, 0) or DOUBLE",
        function=name,
        key=key,
    )


def _changes(
    spec: AggregateSpec,
    groups: KeyGroups,
    old: GroupState | None,
    new: GroupState,
    before: Bools,
    after: Bools,
) -> tuple[Delta, Ints]:
    """Retract the old row and insert the new row of each group that exists `before` or `after`, unless they are equal.

    Rows come in the order of the groups, the old row of a group just before its new one. Returns the group of each row too.
    """
    count = len(groups)
    if not spec.width:
        before = after = np.ones(count, dtype=np.bool_)
    if old is None:
        columns = [*groups.keys.columns, *_finish(spec, new, groups.keys, after)]
        places = np.flatnonzero(after)
        owners, weights = places, np.ones(len(places), dtype=np.int64)
    else:
        # Both are finished at once: index i is the old row of a group, index count + i the new one.
        values = _finish(spec, old.then(new), groups.keys, np.concatenate((before, after)))
        differ = np.zeros(count, dtype=np.bool_)
        for column in values:
            differ |= ~lanes.same(column.slice(0, count), column.slice(count))
        differ |= before != after
        moves = np.stack((before & differ, after & differ), axis=1)
        owners, is_new = np.nonzero(moves)
        places, weights = owners + count * is_new, 2 * is_new - 1
        columns = [pa.concat_arrays((column, column)) for column in groups.keys.columns] + values
    rows = pa.RecordBatch.from_arrays(columns, schema=spec.output)
    if len(places) < rows.num_rows or old is not None:
        rows = take_rows(rows, places)
    return Delta(rows, weights, distinct=True, hashes=groups.hashes[owners]), owners


def _arrange(arrangement: Arrangement, delta: Delta) -> Run:
    """Return the change that a delta makes to an ordered multiset."""
    mask = ~delta.rows.column(arrangement.columns[0]).is_null().to_numpy(zero_copy_only=False)
    if arrangement.filter is not None:
        mask &= lanes.booleans(delta.rows.column(arrangement.filter))
    rows = delta.rows.select([*arrangement.key, *arrangement.columns])
    return arrange_ordered(Delta(rows, delta.weights).filter(mask), arrangement.key, arrangement.order)


def _pick_again(
    spec: AggregateSpec, after: Mapping[Arrangement, Sequence[Run]], batch: GroupedRows, picks: _Picks
) -> _Picks:
    """Return the picks, re-reading from the ordered multisets those of groups from which a value was retracted."""
    made = list(picks)
    groups = batch.groups
    for place, (extreme, columns) in enumerate(zip(spec.held, picks, strict=True)):
        if isinstance(extreme, Sketched):
            continue
        weights = batch.weights((extreme.decisive,), extreme.filter)
        if not extreme.retractable or weights is None:
            continue
        lost = np.flatnonzero(np.minimum.reduceat(weights, groups.starts) < 0)
        if not len(lost):
            continue
        arrangement = spec.arrangement(extreme)
        found = first_rows(
            after[arrangement],
            arrangement.order,
            Probes(arrangement.key, take_rows(groups.keys, lost), groups.hashes[lost]),
            Limit(1, "values"),
            from_end=extreme.greatest and not arrangement.order[0].descending,
            schema=arrangement.schema,
        )
        again = extreme.pick_by(list(reversed(found.rows.columns[spec.width :])), found.probe, len(lost))
        places = np.arange(len(groups))
        places[lost] = len(groups) + np.arange(len(lost))
        made[place] = [
            pa.concat_arrays(both).take(pa.array(places)) for both in zip(columns, again, strict=True)
        ]
    return made


def _value_state(function: AggregateFunction) -> Extreme | Sketched:
    if function.sketch is None:
        return Extreme.of(function)
    return Sketched(function.sketch, function.args[0], function.filter)


def _number(column: pa.Array) -> npt.NDArray[Any]:
    lane: npt.NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return lane


def _no_run(schema: pa.Schema) -> Run:
    nothing = Delta.empty(schema)
    return Run(np.zeros(0, dtype=np.uint64), nothing.rows, nothing.weights)
