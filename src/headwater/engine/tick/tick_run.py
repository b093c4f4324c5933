"""One run of a tick: every collection is planned and advanced to a cut, and the manifest is committed.

Results are invisible until the manifest is committed, and they are a function of the log and of the previous manifest,
so a run can be abandoned at any point and repeated.
"""

from __future__ import annotations

from collections.abc import Mapping

from headwater.engine.collections.collections import side_by_side
from headwater.engine.collections.workload import Workload
from headwater.engine.metrics import phases
from headwater.engine.tick.advancing import TickAdvance
from headwater.engine.tick.committing import TickCommit
from headwater.engine.tick.planning import TickPlan
from headwater.engine.tick.tick_state import TickEnvironment, TickState, TickTarget
from headwater.state.manifest import Manifest


class TickRun:
    """One run of a tick, in three phases: planning and advancing level by level, then committing."""

    def __init__(
        self,
        environment: TickEnvironment,
        workload: Workload,
        before: Manifest | None,
        damaged: Mapping[str, str],
        target: TickTarget,
    ) -> None:
        self.state = TickState(environment, workload, before, damaged, target)
        self.advance = TickAdvance(self.state, TickPlan(self.state))
        self.commit = TickCommit(self.state)

    def run(self) -> None:
        """Advance every collection, level by level, sources first; the results become visible with the commit."""
        state, advance, executor = self.state, self.advance, self.state.environment.executor
        for units in side_by_side(list(state.units)):
            state.derive()
            with state.environment.phases(phases.COMPUTE):
                steps = advance.steps(units)
                executor.run(steps, advance.finished, lambda step, error: advance.failed(step.unit, error))
                advance.switch(units)
        state.derive()
        self.finish()
        state.arrangements.settle()
        for name, broken in state.broken.items():
            then = state.state_before(name)
            if not broken.waits and (then is None or then.status != "stopped"):
                state.newly_stopped[name] = broken.reason

    def finish(self) -> None:
        """Do the work that remains once all collections have been advanced."""
