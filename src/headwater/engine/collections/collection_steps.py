"""Steps of collections: the stages of a table or a view in order, and what comes of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headwater.core.errors import EvaluationError
from headwater.engine.collections.collections import Collection, TableCollection, ViewCollection
from headwater.engine.collections.row_ledger import Ledger
from headwater.engine.dataflow.dataflow import DataflowStep
from headwater.engine.dataflow.driver_executor import DriverExecutor
from headwater.engine.dataflow.executor import (
    BoundStage,
    Rows,
    RowsInMemory,
    RunParts,
    StageResult,
    StageRows,
    run_one,
)
from headwater.engine.dataflow.operator_interface import ArrangementSpec, StepState
from headwater.engine.row_errors.diverted_rows import AdmittedRows, no_single_row
from headwater.engine.row_errors.late_rows import Late
from headwater.operators.zset.delta import Delta, consolidate
from headwater.operators.zset.runs import Run, arrange


@dataclass(frozen=True)
class CollectionOutcome:
    """The outcome of a step of a collection: the change of its contents, and the runs to add to its arrangements."""

    change: Delta
    runs: Mapping[ArrangementSpec, Run | RunParts]
    derived: Mapping[ArrangementSpec, Delta] = field(default_factory=dict)
    """Changes of the derived relations of a view, by arrangement."""
    counted: Ledger = field(default_factory=dict)
    """Counts of the rows of topics that the step has read and not used."""


class TableStep:
    """A step of a table over records of its topic: a single stage."""

    def __init__(self, unit: TableCollection, records: StageRows, state: StepState) -> None:
        self.unit = unit
        self._stage = BoundStage(unit.stages[0], [records], state)
        self._result: StageResult | None = None

    def next_stage(self) -> BoundStage | None:
        """See `StagedStep`."""
        return self._stage if self._result is None else None

    def take(self, result: StageResult) -> None:
        """See `StagedStep`."""
        self._result = result

    def recover(self, error: EvaluationError) -> None:
        """See `StagedStep`."""
        raise error

    def result(self) -> CollectionOutcome:
        """Return the outcome of the step, once all stages have run."""
        assert self._result is not None
        return CollectionOutcome(loaded(self._result.output), self._result.runs)


class ViewStep:
    """A step of a view over a change of its sources: that of its dataflow, without the rows that the view excludes."""

    def __init__(
        self,
        unit: ViewCollection,
        changes: Mapping[str, StageRows],
        state: StepState,
        *,
        first: bool,
        watermarks: Mapping[str, int] | None = None,
    ) -> None:
        self.unit = unit
        self.state = state
        self._first = first
        self._watermarks = watermarks or {}
        self._given: Mapping[str, StageRows] = unit.by_source(changes)
        self._admitted = self._given
        self._diverted: AdmittedRows | None = None
        self._late: Late | None = None
        self._made: StageResult | None = None
        """The change of the contents, and the runs of all stages; None until the last stage has run."""
        self._dataflow_step = self._begun()

    def next_stage(self) -> BoundStage | None:
        """See `StagedStep`."""
        if (stage := self._dataflow_step.next_stage()) is not None:
            return stage
        if self._made is None:
            return BoundStage(self.unit.contents_stage, [self._dataflow_step.output], self.state)
        self._find_late()
        return None

    def take(self, result: StageResult) -> None:
        """See `StagedStep`."""
        if not self._dataflow_step.is_over:
            self._dataflow_step.take(result)
        else:
            self._made = StageResult(result.output, {**self._dataflow_step.runs, **result.runs})

    def _find_late(self) -> None:
        if self.unit.lateness is not None:
            self._late = self.unit.lateness.found(self.admitted())

    def recover(self, error: EvaluationError) -> None:
        """Restart the step without the rows that fail, if the view diverts such rows."""
        if self.unit.admission is None:
            raise error
        if self._diverted is not None:
            raise no_single_row(error) from error
        self._diverted = self.unit.admission.sorted_out(all_loaded(self._given))
        if not len(self._diverted.errors):
            raise no_single_row(error) from error
        self._admitted = in_memory(self._diverted.admitted)
        self._made = None
        self._dataflow_step = self._begun()

    def admitted(self) -> Mapping[str, Delta]:
        """Return the change of each source without the rows that are diverted."""
        return all_loaded(self._admitted)

    def result(self) -> CollectionOutcome:
        """Return the outcome of the step, once all stages have run."""
        unit, given = self.unit, self._given
        counted = {t: {"read": given[n].weight()} for t, n in unit.counted.items() if n in given}
        derived: dict[ArrangementSpec, Delta] = {}
        if self._diverted is not None:
            derived[unit.errors.contents] = consolidate(self._diverted.errors)
            for topic, failed in self._diverted.failed.items():
                counted[topic]["failed"] = failed
        if self._late is not None:
            what = "diverted" if unit.late is not None else "dropped"
            for topic, left_out in self._late.counted.items():
                if topic not in unit.sources:  # a keyed topic's table has every record, late or not
                    counted[topic][what] = left_out
            if unit.late is not None:
                derived[unit.late.contents] = self._late.rows
        made = self._made
        assert made is not None
        runs = dict(made.runs)
        runs |= {slot: arrange(change, slot.key) for slot, change in derived.items() if len(change)}
        return CollectionOutcome(loaded(made.output), runs, derived, counted)

    def _begun(self) -> DataflowStep:
        """Return a step of the view's dataflow over the admitted rows."""
        pipeline, first, watermarks = self.unit.pipeline, self._first, self._watermarks
        return DataflowStep(pipeline, self._admitted, self.state, first=first, watermarks=watermarks)


CollectionStep = TableStep | ViewStep


def in_memory(changes: Mapping[str, Rows]) -> dict[str, StageRows]:
    """Return changes in the memory of this process as inputs of stages."""
    return {name: RowsInMemory(rows) for name, rows in changes.items()}


def loaded(rows: StageRows) -> Delta:
    """Load a change, wherever it is stored."""
    change = rows.load()
    assert isinstance(change, Delta)
    return change


def all_loaded(changes: Mapping[str, StageRows]) -> dict[str, Delta]:
    return {name: loaded(rows) for name, rows in changes.items()}


def begin_step(
    collection: Collection,
    changes: Mapping[str, StageRows],
    state: StepState,
    *,
    first: bool,
    watermarks: Mapping[str, int] | None = None,
) -> CollectionStep:
    """Return a step of a collection over a change of what it reads, for an executor to run.

    `watermarks` are those of the topics that a view waits for, after that change.
    """
    if isinstance(collection, ViewCollection):
        return ViewStep(collection, changes, state, first=first, watermarks=watermarks)
    return TableStep(collection, changes[collection.topic], state)


def step_in_driver(
    collection: Collection,
    changes: Mapping[str, Rows],
    state: StepState,
    *,
    first: bool,
    watermarks: Mapping[str, int] | None = None,
) -> CollectionOutcome:
    """Run a step of a collection over a change in memory, in this process; see `begin_step`."""
    step = begin_step(collection, in_memory(changes), state, first=first, watermarks=watermarks)
    return run_one(DriverExecutor(), step, lambda ended: ended.result())
