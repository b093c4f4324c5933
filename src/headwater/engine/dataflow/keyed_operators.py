"""Operators that process each key independently: the same object runs a step in the driver and, by key range, in Spark tasks.

Such an operator is pickled without its arrangement specs, and its module does not import Spark: a task needs neither.
An operator with a part that only the driver can evaluate, such as a Spark expression or a user's function, cannot be
divided (`keys` is None).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa

from headwater.engine.dataflow.operator_interface import ArrangementSpec, Operator, Runs
from headwater.operators.aggregate import aggregate, stacking
from headwater.operators.join import join, range_join
from headwater.operators.join.pairs import Condition
from headwater.operators.window import ranking, session_aggregate, sessions, sliding_aggregate
from headwater.operators.zset.delta import Delta
from headwater.operators.zset.exact_sums import Bools
from headwater.operators.zset.numpy_columns import booleans
from headwater.operators.zset.runs import Run


class KeyedOperator(Operator):
    """Base class of keyed operators: how they are pickled for tasks."""

    rows_min: ClassVar[int]
    """Minimum number of rows for which Spark tasks of a cluster are worth their cost: about 0.15 s for the job, and 0.1
    s for each million rows that are transferred."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("slots", "stackable")}


@dataclass(frozen=True)
class ArrowCondition:
    """A condition that Arrow evaluates exactly as Spark does, so that no JVM is needed."""

    evaluate: Callable[[pa.RecordBatch, int], pa.Array]

    def __call__(self, rows: pa.RecordBatch) -> Bools:
        return booleans(self.evaluate(rows, rows.num_rows))


class AggregateOperator(KeyedOperator):
    """Groups with the buffers of their aggregate functions, and the values of each retractable minimum or maximum."""

    rows_min = 500_000
    """A million rows take 0.2 s for 100,000 groups, 0.5 s for five million."""

    def __init__(self, spec: aggregate.AggregateSpec, name: str) -> None:
        self.spec = spec
        key = tuple(range(spec.width))
        self.keys = None if spec.customs else (key,)  # user-defined aggregates exist in this process only
        self.stackable = spec if stacking.stackable(spec) else None
        self.slots = (
            ArrangementSpec(f"{name}.groups", "latest", key, (), spec.state),
            *(
                ArrangementSpec(f"{name}.values{i}", "ordered", key, tuple(a.order), a.schema)
                for i, a in enumerate(spec.arrangements)
            ),
        )

    def initial(self) -> Delta | None:
        return aggregate.initial(self.spec) if not self.spec.width else None

    def shown(self, state: Sequence[Runs]) -> Delta:
        return aggregate.shown(self.spec, state[0])

    def begin(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        done = aggregate.step(self.spec, state[0], state[1:], inputs[0], first=True)
        return done.output, (done.state, *done.ordered)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        done = aggregate.step(self.spec, state[0], state[1:], inputs[0])
        return done.output, (done.state, *done.ordered)


Spec = TypeVar("Spec", join.JoinSpec, range_join.RangeJoinSpec)


class PairOperator(KeyedOperator, Generic[Spec]):
    """Joins the rows of two sides, each stored in an arrangement; `condition` is the part of ON that is not equality of
    keys."""

    def __init__(
        self,
        spec: Spec,
        condition: Condition | None,
        sides: tuple[ArrangementSpec, ArrangementSpec],
        *,
        divisible: bool,
    ) -> None:
        self.spec: Spec = spec
        self.condition = condition
        self.keys = (spec.left_key, spec.right_key) if divisible else None
        self.slots = sides


class JoinOperator(PairOperator[join.JoinSpec]):
    """Joins rows whose keys are equal."""

    rows_min = 500_000
    """A million rows take 0.4 s against a table of a million rows."""

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        done = join.step(self.spec, state[0], state[1], inputs[0], inputs[1], self.condition)
        return done.output, (done.left, done.right)


class RangeJoinOperator(PairOperator[range_join.RangeJoinSpec]):
    """Joins rows whose keys are equal if a value of one row lies in a range of the other."""

    rows_min = 200_000

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        done = range_join.step(self.spec, state[0], state[1], inputs[0], inputs[1], self.condition)
        return done.output, (done.left, done.right)


class RankOperator(KeyedOperator):
    """The first rows of each group, in the given order."""

    rows_min = 200_000
    """A million rows take 1 to 2 s for 100,000 groups."""

    def __init__(self, spec: ranking.RankSpec, rows: pa.Schema, name: str) -> None:
        self.spec = spec
        self.keys = (spec.key,)
        self.slots = (ArrangementSpec(f"{name}.rows", "ordered", tuple(spec.key), tuple(spec.order), rows),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, run = ranking.step(self.spec, state[0], inputs[0])
        return output, (run,)


class SlideOperator(KeyedOperator):
    """Rows with functions over nearby rows; `evaluate` computes the functions that only Spark implements."""

    rows_min = 200_000
    """A million rows take 2 s for 100,000 keys."""

    def __init__(
        self,
        spec: sliding_aggregate.SlideSpec,
        output: pa.Schema,
        evaluate: Callable[[pa.RecordBatch], pa.RecordBatch] | None,
        name: str,
    ) -> None:
        self.spec = spec
        self._output = output
        self._evaluate = evaluate
        self.keys = (spec.key,) if evaluate is None else None
        self.slots = (ArrangementSpec(f"{name}.rows", "ordered", spec.key, spec.order, spec.schema),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, run = sliding_aggregate.step(self.spec, state[0], inputs[0], self._output, self._evaluate)
        return output, (run,)


class SessionsOperator(KeyedOperator):
    """Rows with their sessions. The arrangements are the rows, then the sessions."""

    rows_min = 200_000
    """A million rows take 2 s for 100,000 keys."""

    def __init__(self, spec: sessions.SessionSpec, name: str) -> None:
        self.spec = spec
        self.keys = (spec.key,)
        rows, held = sessions.by_start(spec.rows_start), sessions.by_start(spec.sessions_start)
        self.slots = (
            ArrangementSpec(f"{name}.rows", "ordered", spec.rows_key, rows, spec.rows),
            ArrangementSpec(f"{name}.sessions", "ordered", spec.sessions_key, held, spec.sessions),
        )

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        done = sessions.step(self.spec, state[0], state[1], inputs[0])
        return done.output, (done.rows, done.sessions)


class SessionAggregateOperator(KeyedOperator):
    """Sessions with aggregate functions over their rows."""

    rows_min = 500_000
    """A million rows take 0.2 to 0.5 s for 100,000 keys."""

    def __init__(self, spec: session_aggregate.SessionAggregateSpec, name: str) -> None:
        self.spec = spec
        self.keys = (spec.key,)
        key, order = tuple(range(len(spec.key))), sessions.by_start(spec.start)
        self.slots = (ArrangementSpec(f"{name}.sessions", "ordered", key, order, spec.state),)

    def step(self, inputs: Sequence[Delta], state: Sequence[Runs]) -> tuple[Delta, Sequence[Run]]:
        output, run = session_aggregate.step(self.spec, state[0], inputs[0])
        return output, (run,)

    def shown(self, state: Sequence[Runs]) -> Delta:
        return session_aggregate.shown(self.spec, state[0])
