"""A view's graph made ready to run: a change of its sources goes in, a change of the view comes out.

Pure over its state: `step` is given the runs of every arrangement and returns the runs to add. It neither reads nor
writes files, so the same step runs in the driver and, by hash range, in tasks, and can be done again after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import pyarrow as pa

from headwater.errors import EvaluationError
from headwater.operators import (
    aggregate,
    closing,
    join,
    range_join,
    ranking,
    session_aggregate,
    sessions,
    sliding,
    stacking,
    versions,
)
from headwater.operators.delta import Delta, concat, consolidate, take_rows
from headwater.operators.fold import fold
from headwater.operators.functions import Function
from headwater.operators.ordered import Order
from headwater.operators.patterns import step as patterns
from headwater.operators.regroup import regroup
from headwater.operators.runs import Run, arrange, contents
from headwater.operators.stacking import Small
from headwater.operators.standing.meeting import Meeting, MeetSpec
from headwater.queries import graph as g
from headwater.runtime.expressions import Evaluator
from headwater.runtime.groups import compile_groups, kernel_function
from headwater.runtime.linear import compile_condition, compile_map, renamed
from headwater.runtime.native import may_fail, native
from headwater.runtime.patterns import compile_expressions
from headwater.runtime.placement import Parts, Place, Placement
from headwater.runtime.planning.expiring import Expiries, Expiry
from headwater.runtime.planning.handles import Bound
from headwater.runtime.shown_keys import group_columns
from headwater.runtime.spreading import Spread, spread
from headwater.runtime.tasks import (
    AggregateKernel,
    ArrowCondition,
    JoinKernel,
    Kernel,
    RangeJoinKernel,
    RankKernel,
    SessionAggregateKernel,
    SessionsKernel,
    SlideKernel,
)
from headwater.runtime.together import Move, alone
from headwater.runtime.unread import unread
from headwater.state.manifest import encode_schema
from headwater.state.refs import RunRef

Runs = Sequence[Run]


@dataclass(frozen=True, eq=False)
class Slot:
    """One arrangement of an operator: how its runs are sorted, and how they are merged. Each is itself alone."""

    name: str
    discipline: Literal["multiset", "latest", "ordered"]
    key: tuple[int, ...]
    order: tuple[Order, ...]
    schema: pa.Schema
    expires: Expiry | None = None

    @cached_property
    def layout(self) -> str:
        """Its columns, as text: runs of arrangements that have the same can lie in one stream."""
        return encode_schema(self.schema)


class State(Place, Protocol):
    """The arrangements that a step may look into, in memory or as files, and the tick that it is part of."""

    def __call__(self, slot: Slot) -> Runs:
        """The runs of an arrangement, oldest first."""

    def refs(self, slot: Slot) -> Sequence[RunRef]:
        """The same, on disk and durable."""


class Operator:
    """A node that is ready to run. `slots` are its arrangements; `step` gets their runs in that order.

    `kernel` is the same step where it can be divided by key among tasks.
    """

    slots: tuple[Slot, ...] = ()
    kernel: Kernel | None = None
    stackable: aggregate.AggregateSpec | None = None
    """If small steps of it can be made together with those of others: what they do."""

    def initial(self) -> Delta | None:
        """What it puts out before any change reaches it."""
        return None

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        """The change of its output, and a run to add to each slot."""
        raise NotImplementedError

    def shown(self, state: Sequence[Runs]) -> Delta:
        """All that it has put out, if what it keeps tells that."""
        raise NotImplementedError


class Again(Protocol):
    """Who steps in the place of operators that do not know what rows that go take with them; see `recomputing`."""

    def applies(self, node: g.Node, given: Sequence[Delta]) -> bool:
        """Whether it is needed for a change of what a node reads."""

    def step(
        self, node: g.Node, operator: Operator, given: Sequence[Delta], state: Sequence[Runs]
    ) -> tuple[Delta, Sequence[Run]]:
        """The change of the node's output, and a run to add to each slot."""

    def waiting(self, node: g.Node, given: Delta, runs: Runs) -> Delta:
        """A change of rows that wait to be shown, given what waits."""

    def instead(self, change: Run, runs: Runs, key: tuple[int, ...]) -> Run:
        """What changes in the view, given the change that came out, and the runs of what it shows, by a key."""


@dataclass(frozen=True)
class Outcome:
    """What a step of a view gave: the change of its rows, and the runs to add, by slot."""

    change: Delta
    runs: Mapping[Slot, Run | Parts]


class Pipeline:
    """All operators of a view, inputs first. An operator that two others read runs once."""

    def __init__(
        self,
        root: g.Node,
        evaluator: Evaluator,
        placement: Placement | None = None,
        expiries: Expiries | None = None,
    ) -> None:
        self.evaluator = evaluator
        self._placement = placement
        self._expiries = expiries or {}
        self.schema = root.schema
        self.root = root
        self._nodes: list[g.Node] = []
        self._place: dict[int, int] = {}
        self._operators: list[Operator] = []
        self._inputs: list[list[int]] = []
        self._ignored = unread(root)
        self._add(root, evaluator)
        self._spreads = self._spread(evaluator)
        self._passed_over = frozenset(below for _, below in self._spreads.values())
        self._nothing = [Delta.empty(node.schema) for node in self._nodes]
        self.group = group_columns(root)
        """The columns of the group's key, where the view shows it."""
        self.slots = tuple(slot for operator in self._operators for slot in operator.slots)

    def _add(self, node: g.Node, evaluator: Evaluator) -> int:
        if id(node) in self._place:
            return self._place[id(node)]
        inputs = [self._add(child, evaluator) for child in node.inputs]
        place = len(self._nodes)
        self._place[id(node)] = place
        self._nodes.append(node)
        self._inputs.append(inputs)
        operator = _operator(node, str(place), evaluator, self._ignored)
        if (known := self._expiries.get(id(node))) is not None:
            when = (*known, *[known[-1]] * len(operator.slots))
            operator.slots = tuple(replace(s, expires=e) for s, e in zip(operator.slots, when, strict=False))
        self._operators.append(operator)
        return place

    def _spread(self, evaluator: Evaluator) -> dict[int, tuple[Spread, int]]:
        """By their places, aggregates that are computed together with the Map that they read; that is then passed over."""
        found: dict[int, tuple[Spread, int]] = {}
        read = [below for inputs in self._inputs for below in inputs]
        for place, operator in enumerate(self._operators):
            below = self._inputs[place][0] if isinstance(operator, _Aggregate) else -1
            if isinstance(operator, _Aggregate) and read.count(below) == 1:
                made = spread(operator.node, operator.spec, evaluator)
                if made is not None:
                    found[place] = made, below
                    self._inputs[place] = self._inputs[below]
        return found

    @property
    def nodes(self) -> Sequence[tuple[g.Node, Operator]]:
        """Every node with its operator, inputs first."""
        return list(zip(self._nodes, self._operators, strict=True))

    def step(
        self,
        changes: Mapping[str, Delta],
        state: State,
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
    ) -> Outcome:
        """Apply a change of the sources. `first`: there is no state yet, so constants and empty aggregates come in;
        `watermarks`: those of topics, where the graph waits for some.

        The change is consolidated.
        """
        outcome = alone(self._move(changes, state, first, watermarks or {}))
        return Outcome(consolidate(outcome.change), outcome.runs)

    def move_arranged(
        self,
        changes: Mapping[str, Delta],
        state: State,
        key: tuple[int, ...],
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
        again: Again | None = None,
    ) -> Move[tuple[Run, Mapping[Slot, Run | Parts]]]:
        """The same, beside other views, with the change as a run by these columns, which must be the `group` where there is
        one. `again`: rows may go that are never taken back but by a deletion."""
        outcome = yield from self._move(changes, state, first, watermarks or {}, again)
        change = outcome.change
        if self.group is not None and change.hashes is not None:
            change = aggregate.netted(change)
            assert change.hashes is not None
            return Run(change.hashes, change.rows, change.weights), outcome.runs
        return arrange(change, key), outcome.runs

    def _move(
        self,
        changes: Mapping[str, Delta],
        state: State,
        first: bool,
        watermarks: Mapping[str, int],
        again: Again | None = None,
    ) -> Move[Outcome]:
        made: list[Delta] = []
        runs: dict[Slot, Run | Parts] = {}
        for place, node in enumerate(self._nodes):
            if isinstance(node, g.Source):
                given_rows = changes.get(node.name)
                is_moved = given_rows is not None and len(given_rows)
                made.append(source_change(node, given_rows) if is_moved else self._nothing[place])
                continue
            if place in self._passed_over:
                made.append(self._nothing[place])
                continue
            operator = self._operators[place]
            given = [made[i] for i in self._inputs[place]]
            output = self._nothing[place]
            if isinstance(operator, _Close):
                if again is not None:
                    given = [again.waiting(node, given[0], state(operator.slots[0]))]
                output, run = operator.step_at(given[0], state(operator.slots[0]), watermarks)
                runs.update((s, run) for s in operator.slots if len(run))
            elif again is not None and again.applies(node, given):
                if place in self._spreads:
                    given = [self._operators[self._spreads[place][1]].step(given, ())[0]]
                held = [state(slot) for slot in operator.slots]
                output, made_anew = again.step(node, operator, given, held)
                runs.update((s, r) for s, r in zip(operator.slots, made_anew, strict=True) if len(r))
            elif any(len(d) for d in given):
                step = self._step_spread if place in self._spreads else self._step
                output, added = yield from step(operator, given, state)
                runs.update((s, r) for s, r in zip(operator.slots, added, strict=True) if len(r))
            if first and (initial := operator.initial()) is not None:
                output = concat([initial, output], node.schema)
            made.append(
                output.renamed(renamed(output.rows, node.schema)) if len(output) else self._nothing[place]
            )
        return Outcome(made[-1], runs)

    def _step_spread(
        self, operator: Operator, inputs: Sequence[Delta], state: State
    ) -> Move[tuple[Delta, Sequence[Run | Parts]]]:
        """An aggregate's step together with that of the Map below it."""
        fused, below = self._spreads[self._operators.index(operator)]
        done = fused.step(inputs[0], state(operator.slots[0]))
        if done is not None:
            return done.output, (done.state,)
        rows, _ = self._operators[below].step(inputs, ())
        return (yield from self._step(operator, [rows], state))

    def _step(
        self, operator: Operator, inputs: Sequence[Delta], state: State
    ) -> Move[tuple[Delta, Sequence[Run | Parts]]]:
        """One operator's step, by tasks, with others or here."""
        kernel = operator.kernel
        if self._placement is not None and kernel is not None and self._placement.wants(kernel, inputs):
            refs = [state.refs(slot) for slot in operator.slots]
            if (placed := self._placement.step(kernel, inputs, refs, state)) is not None:
                return placed
        runs = [state(slot) for slot in operator.slots]
        if operator.stackable is not None and len(inputs[0]) <= stacking.ROWS_MAX:
            done = yield Small(operator.stackable, runs[0], inputs[0])
            if done is not None:
                return done.output, (done.state,)
        return operator.step(inputs, runs)


def source_change(node: g.Source, change: Delta | None) -> Delta:
    """A change of a topic or view, by the columns that a source reads of it."""
    if change is None or not len(change):
        return Delta.empty(node.schema)
    if (
        not node.hidden
        and node.columns == tuple(range(len(node.schema)))
        and change.rows.schema.equals(node.schema)
    ):
        return change
    hidden = (change.rows.schema.names.index(name) for name in node.hidden)
    try:
        return change.with_rows(renamed(change.rows.select([*node.columns, *hidden]), node.schema))
    except pa.ArrowInvalid as error:  # a column was widened since the view was planned
        raise EvaluationError(
            f"a value of {node.name} does not fit the type that its column had: {error}",
            hint="the view is being built anew with the wider type",
        ) from error


def _operator(node: g.Node, name: str, evaluator: Evaluator, ignored: frozenset[int]) -> Operator:
    match node:
        case g.Source():
            return Operator()
        case g.Constant():
            return _Constant(node)
        case g.Map():
            is_of_ranks = isinstance(node.input, g.Rank) and id(node.input) in ignored
            return _Map(node, evaluator, ranks_unread=is_of_ranks)
        case g.Union():
            return _Union(node)
        case g.Aggregate():
            return _Aggregate(node, name)
        case g.Join():
            return _join(node, name, evaluator, ends_unread=id(node) in ignored)
        case g.Rank():
            return _Rank(node, name, exact=id(node) not in ignored)
        case g.Regroup(evaluate=g.RowPattern()):
            return _RowPattern(node.evaluate, name, evaluator)
        case g.Regroup():
            return _Regroup(node, name, evaluator)
        case g.Slide():
            return _Slide(node, name, evaluator)
        case g.Sessions():
            return _Sessions(node, name)
        case g.SessionAggregate():
            return _SessionAggregate(node, name)
        case g.Versions():
            return _Versions(node, name)
        case g.Fold():
            return _Fold(node, name)
        case g.Meet():
            return _Meet(node, name)
        case g.Close():
            return _Close(node, name)


def _passes_all(node: g.Map, *, ranks_unread: bool) -> bool:
    """Whether it passes on every column, so that rows which differ still do; ranks that nobody reads do not differ."""
    origins: list[int | None] = list(range(len(node.input.schema)))
    for step in node.steps:
        if isinstance(step, g.Project):
            origins = [None if e.column is None else origins[e.column] for e in step.expressions]
        elif not isinstance(step, g.Filter):
            return False
    return set(range(len(node.input.schema) - ranks_unread)) <= set(origins)


class _Constant(Operator):
    def __init__(self, node: g.Constant) -> None:
        self._rows = node.rows

    def initial(self) -> Delta:
        return Delta.of(self._rows)


class _Map(Operator):
    def __init__(self, node: g.Map, evaluator: Evaluator, *, ranks_unread: bool = False) -> None:
        self._run = compile_map(node, evaluator)
        self._keeps_rows = all(isinstance(step, g.Project) for step in node.steps)
        self._passes_all = _passes_all(node, ranks_unread=ranks_unread)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        (given,) = inputs
        output = self._run(given)
        known = output.distinct or (given.distinct and self._passes_all)
        hashes = given.hashes if self._keeps_rows else output.hashes
        return Delta(output.rows, output.weights, known, hashes), ()


class _Union(Operator):
    def __init__(self, node: g.Union) -> None:
        self._schema = node.schema

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        same = [d.renamed(renamed(d.rows, self._schema)) for d in inputs if len(d)]
        return concat(same, self._schema), ()


class _Aggregate(Operator):
    def __init__(self, node: g.Aggregate, name: str) -> None:
        functions = tuple(kernel_function(f, append_only=not f.ordered) for f in node.functions)
        customs = tuple(c.handle for c in node.customs)
        self.node = node
        self.spec = aggregate.AggregateSpec(
            node.input.schema, node.keys, functions, customs, tuple(node.schema.names)
        )
        self._step = AggregateKernel(self.spec)
        self.kernel = None if customs else self._step  # the code of users is in this process alone
        self.stackable = self.spec if stacking.stackable(self.spec) else None
        key = tuple(range(node.keys))
        self.slots = (
            Slot(f"{name}.groups", "latest", key, (), self.spec.state),
            *(
                Slot(f"{name}.values{i}", "ordered", key, tuple(a.order), a.schema)
                for i, a in enumerate(self.spec.arrangements)
            ),
        )

    def initial(self) -> Delta | None:
        return aggregate.initial(self.spec) if not self.spec.width else None

    def shown(self, state: Sequence[Runs]) -> Delta:
        return aggregate.shown(self.spec, state[0])

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self._step(inputs, state)


def _join(node: g.Join, name: str, evaluator: Evaluator, *, ends_unread: bool) -> Operator:
    if node.range is None:
        return _Join(node, name, evaluator)
    return _RangeJoin(node, node.range, name, evaluator, ends_unread=ends_unread)


class _RangeJoin(Operator):
    def __init__(
        self, node: g.Join, reach: g.Range, name: str, evaluator: Evaluator, *, ends_unread: bool
    ) -> None:
        spec = range_join.RangeJoinSpec(
            node.kind,
            node.left_key,
            node.right_key,
            reach.point,
            reach.low,
            reach.high,
            reach.width,
            reach.ends if ends_unread else (),
        )
        self._spec = spec
        self._condition = None if node.condition is None else compile_condition(node.condition, evaluator)
        if (condition := _arrow_condition(node.condition)) is not None:
            self.kernel = RangeJoinKernel(spec, condition)
        self.slots = (
            Slot(f"{name}.left", "ordered", spec.left_key, spec.left_order, node.left.schema),
            Slot(f"{name}.right", "ordered", spec.right_key, spec.right_order, node.right.schema),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        left, right = state
        done = range_join.step(self._spec, left, right, inputs[0], inputs[1], self._condition)
        return done.output, (done.left, done.right)


class _Join(Operator):
    def __init__(self, node: g.Join, name: str, evaluator: Evaluator) -> None:
        self._spec = join.JoinSpec(node.kind, node.left_key, node.right_key)
        self._node = node
        self._condition = None if node.condition is None else compile_condition(node.condition, evaluator)
        if not node.at_most_one:
            self.kernel = _join_kernel(self._spec, node.condition)
        self.slots = (
            Slot(f"{name}.left", "multiset", node.left_key, (), node.left.schema),
            Slot(f"{name}.right", "multiset", node.right_key, (), node.right.schema),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        left, right = state
        done = join.step(self._spec, left, right, inputs[0], inputs[1], self._condition)
        if self._node.at_most_one and len(done.right):
            rows = contents([*right, done.right], self._node.right.schema)
            if int(np.sum(rows.weights)) > 1:
                raise EvaluationError(
                    "an expression failed: a subquery used as an expression returned more than one row",
                    hint="aggregate it, or limit it to one row",
                )
        return done.output, (done.left, done.right)


def _join_kernel(spec: join.JoinSpec, condition: g.Expression | None) -> JoinKernel | None:
    """The join for tasks, which have no JVM: None if its condition is, or may become, Spark's to evaluate."""
    if condition is None:
        return JoinKernel(spec)
    made = _arrow_condition(condition)
    return None if made is None else JoinKernel(spec, made)


def _arrow_condition(condition: g.Expression | None) -> ArrowCondition | None:
    """A condition that can be asked without a JVM, if it can."""
    bound = None if condition is None else condition.handle
    if condition is None or not isinstance(bound, Bound) or may_fail(bound.expression):
        return None
    made = native(bound.expression, bound.attributes, condition.type)
    return None if made is None else ArrowCondition(made)


class _Rank(Operator):
    def __init__(self, node: g.Rank, name: str, *, exact: bool) -> None:
        order = tuple(Order(o.column, o.descending, o.nulls_first) for o in node.order)
        self._spec = ranking.RankSpec(
            node.key, order, node.function, node.limit, node.offset, numbered=node.shows_rank, exact=exact
        )
        self.kernel: Kernel = RankKernel(self._spec)
        self.slots = (Slot(f"{name}.rows", "ordered", node.key, order, node.input.schema),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self.kernel(inputs, state)


class _Slide(Operator):
    def __init__(self, node: g.Slide, name: str, evaluator: Evaluator) -> None:
        framed = tuple(
            sliding.Framed(Function(f.function.kind, f.function.args, f.function.filter), f.low, f.high)  # type: ignore[arg-type]
            for f in node.framed
        )
        self._spec = sliding.SlideSpec(
            node.input.schema, node.key, node.time, node.preceding, node.following, framed
        )
        self._output = node.schema
        self._evaluate = None
        if node.evaluate is None:
            self.kernel = SlideKernel(self._spec, node.schema)
        else:
            groups = g.Regroup(node.input, node.key, node.text, node.evaluate, node.schema)
            self._evaluate = compile_groups(groups, evaluator)
        self.slots = (Slot(f"{name}.rows", "ordered", node.key, self._spec.order, node.input.schema),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, run = sliding.step(self._spec, state[0], inputs[0], self._output, self._evaluate)
        return output, (run,)


class _Sessions(Operator):
    def __init__(self, node: g.Sessions, name: str) -> None:
        spec = sessions.SessionSpec(node.input.schema, node.key, node.column)
        self.kernel: Kernel = SessionsKernel(spec)
        rows, held = sessions.by_start(spec.rows_start), sessions.by_start(spec.sessions_start)
        self.slots = (
            Slot(f"{name}.rows", "ordered", spec.rows_key, rows, spec.rows),
            Slot(f"{name}.sessions", "ordered", spec.sessions_key, held, spec.sessions),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self.kernel(inputs, state)


class _SessionAggregate(Operator):
    def __init__(self, node: g.SessionAggregate, name: str) -> None:
        functions = tuple(kernel_function(f, append_only=True) for f in node.functions)
        whole = aggregate.AggregateSpec(node.input.schema, node.keys, functions)
        spec = session_aggregate.SessionAggregateSpec(whole, node.column)
        self._spec = spec
        self.kernel: Kernel = SessionAggregateKernel(spec)
        key, order = tuple(range(len(spec.key))), sessions.by_start(spec.start)
        self.slots = (Slot(f"{name}.sessions", "ordered", key, order, spec.state),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        return self.kernel(inputs, state)

    def shown(self, state: Sequence[Runs]) -> Delta:
        return session_aggregate.shown(self._spec, state[0])


class _Versions(Operator):
    def __init__(self, node: g.Versions, name: str) -> None:
        self._spec = versions.VersionSpec(node.key, node.begin, node.offset, node.op)
        self._schema = node.schema
        self.slots = (Slot(f"{name}.records", "ordered", node.key, self._spec.order, node.input.schema),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        change, run = versions.step(self._spec, state[0], inputs[0].rows)
        return change.renamed(renamed(change.rows, self._schema)), (run,)


class _Fold(Operator):
    def __init__(self, node: g.Fold, name: str) -> None:
        self._node = node
        self.slots = (Slot(f"{name}.states", "latest", tuple(range(len(node.key))), (), node.schema),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        (given,) = inputs
        if (given.weights < 0).any():
            raise EvaluationError(f"records were taken back under fold {self._node.name!r}")
        rows = take_rows(given.rows, np.repeat(np.arange(len(given)), given.weights))
        output, run = fold(state[0], self._node.key, rows, self._node.handle, self._node.schema)
        return output, (run,)


class _Meet(Operator):
    def __init__(self, node: g.Meet, name: str) -> None:
        spec: MeetSpec = node.handle
        self._meeting = Meeting(spec)
        self.slots = (
            Slot(f"{name}.queries", "multiset", (0,), (), node.queries.schema),
            Slot(f"{name}.documents", "ordered", (), spec.order, spec.documents),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        change, queries, documents = self._meeting.step(state[0], state[1], inputs[0], inputs[1])
        return change, (queries, documents)


class _Close(Operator):
    """Unlike all others it moves with the watermarks too."""

    def __init__(self, node: g.Close, name: str) -> None:
        self._node = node
        width = len(node.input.schema)
        key, order = closing.waiting_key(width), closing.waiting_order(width)
        self.slots = (Slot(f"{name}.waiting", "ordered", key, order, node.input.schema),)

    def step_at(self, given: Delta, waiting: Runs, watermarks: Mapping[str, int]) -> tuple[Delta, Run]:
        """The change of what is final at these watermarks, and a run for what waits."""
        levels = closing.levels(self._node.domains, watermarks)
        return closing.close(waiting, given, levels, self._node.schema)


class _RowPattern(Operator):
    def __init__(self, pattern: g.RowPattern, name: str, evaluator: Evaluator) -> None:
        self._spec = spec = pattern.spec
        self._evaluate = compile_expressions(pattern, evaluator)
        rows, cuts = patterns.rows_order(spec), patterns.cuts_order(spec)
        self.slots = (
            Slot(f"{name}.rows", "ordered", spec.partition, rows, spec.schema),
            Slot(f"{name}.cuts", "ordered", patterns.cuts_key(spec), cuts, patterns.cuts_schema(spec)),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        given = inputs[0].renamed(renamed(inputs[0].rows, self._spec.schema))
        done = patterns.step(self._spec, state[0], state[1], given, self._evaluate)
        return done.output, (done.rows, done.cuts)


class _Regroup(Operator):
    def __init__(self, node: g.Regroup, name: str, evaluator: Evaluator) -> None:
        self._node = node
        self._evaluate = compile_groups(node, evaluator)
        self.slots = (Slot(f"{name}.rows", "multiset", node.key, (), node.input.schema),)

    def initial(self) -> Delta | None:
        if not self._node.whole:
            return None
        return Delta.of(self._evaluate(Delta.empty(self._node.input.schema).rows))

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, run = regroup(state[0], self._node.key, inputs[0], self._evaluate, self._node.schema)
        if self._node.whole:
            # the one group is there without rows too, and then has the result over none
            held = sum(int(np.sum(r.weights)) for r in state[0])
            empty = self.initial()
            assert empty is not None
            parts = [output]
            if held == 0:
                parts.append(empty.negated())
            if held + int(np.sum(run.weights)) == 0:
                parts.append(empty)
            output = consolidate(concat(parts, self._node.schema))
        return output, (run,)
