"""The arrangements of a tick that applies deletions: those with deleted values are rewritten as a whole."""

from __future__ import annotations

from typing import Any

from headwater.engine.collections.arrangements import Added, Arrangements, arrangement_id
from headwater.engine.collections.collections import Collection
from headwater.engine.dataflow.executor import RunParts
from headwater.engine.dataflow.operator_interface import ArrangementSpec
from headwater.engine.merging.run_compaction import merged_run
from headwater.engine.metrics import phases
from headwater.operators.zset.runs import Run


class RewrittenArrangements(Arrangements):
    """Arrangements of a tick in which those of some collections have a single run each, written by the tick."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rewritten: set[str] = set()
        """Identities of the collections whose arrangements are rewritten."""

    def add(self, unit: Collection, slot: ArrangementSpec, run: Run | RunParts) -> Added:
        if unit.identity in self.rewritten:
            runs = self.opened(run.refs) if isinstance(run, RunParts) else [run]
            return self._whole(unit, slot, [*self.runs(unit, slot), *runs])
        return super().add(unit, slot, run)

    def rewrite(self, unit: Collection, slot: ArrangementSpec) -> Added:
        """Rewrite an arrangement unless this tick has; the returned run has all of its rows."""
        refs = self.refs.get(arrangement_id(unit, slot), ())
        if len(refs) == 1 and refs[0].file in self.writer.files:
            return Added(refs[0])
        return self._whole(unit, slot, self.runs(unit, slot))

    def _whole(self, unit: Collection, slot: ArrangementSpec, runs: list[Run]) -> Added:
        with self.phases(phases.MERGE):
            whole = merged_run(slot, runs, bottom=True) if runs else None
        if whole is not None and len(whole):
            return self.replace(unit, slot, whole)
        self.clear_slot(unit, slot)
        return Added()
