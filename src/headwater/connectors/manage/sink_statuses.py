"""The statuses of sinks, from this process or from the status board of the process that runs them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from headwater.connectors.dead_letter_store.sink_letters import count_dropped, incarnation_of
from headwater.connectors.manage.sink_declarations import FAULT, SinkDeclarations
from headwater.connectors.manage.sink_runners import SinkRunners
from headwater.connectors.manage.status_board import StatusBoard
from headwater.core.errors import HeadwaterError
from headwater.log.protocol import Log
from headwater.sinks.base.applier import SinkLag, Status
from headwater.sinks.base.rejected_rows import RejectedSinkRows
from headwater.sinks.base.target import SinkCheckpoint
from headwater.sinks.registry import is_readable, keeper_of
from headwater.views.dead_letter_actions import read_actions


@dataclass(frozen=True)
class SinkStatus:
    """The status of a sink, as far as this process knows, and its lag. `dropped` is the number of its rejected rows whose
    dead letters were dropped."""

    status: Status
    lag: SinkLag
    dropped: int = 0

    @staticmethod
    def from_facts(facts: Mapping[str, Any]) -> SinkStatus:
        """Return the status in the facts of a running sink."""
        return SinkStatus(Status(**facts["status"]), SinkLag(**facts["lag"]), facts.get("dropped", 0))


class SinkStatuses:
    """The statuses of all sinks of a workspace."""

    def __init__(
        self, declared: SinkDeclarations, runners: SinkRunners, log: Log, board: StatusBoard
    ) -> None:
        self._declared = declared
        self._runners = runners
        self._log = log
        self._board = board

    def get(self, name: str) -> SinkStatus:
        """Return the status of a sink, with the number of its dropped letters."""
        return self._with_dropped(name, self._status(name), lambda: self.rejected(name))

    def may_have_dropped(self, status: SinkStatus) -> bool:
        """Whether the rejected rows of a sink must be read from its target to count the dropped ones."""
        return status.status.withheld > 0 and bool(read_actions(self._log).by_letter)

    def _status(self, name: str) -> SinkStatus:
        """Return the status of a sink: of its runner here; else from the process that runs it; else by reading the target's
        checkpoint."""
        known = self._runners.runner_of(name)
        if known is None or not known.running:
            published = self._board.read()
            if published is not None and name in published.sinks:
                return SinkStatus.from_facts(published.sinks[name])
        try:
            runner, _ = self._runners.get(name)
        except HeadwaterError as error:
            # this process lacks a prerequisite, such as a user's function
            return SinkStatus(Status(name, "stopped", error.message), SinkLag(0, None, 0.0))
        applier = runner.applier
        if not runner.running:
            try:
                applier.probe()
            except HeadwaterError as error:
                applier.report.note("retrying" if error.retryable else "stopped", error.message)
        status, reason = applier.status(), None if runner.running else self.stopped(name)
        if reason is not None:
            status = replace(status, state="stopped", reason=reason)
        return SinkStatus(status, applier.lag())

    def stopped(self, name: str) -> str | None:
        """Return the error that stopped a sink when it last ran, in any process; None if it is not stopped."""
        found = (
            fault.reason for fault in self._log.faults.current() if (fault.kind, fault.name) == (FAULT, name)
        )
        return next(found, None)

    def running(self) -> dict[str, dict[str, Any]]:
        """Return the statuses of the sinks that run here, for the status board."""
        found = {}
        for name, runner in self._runners.running().items():
            applier = runner.applier
            status = SinkStatus(applier.status(), applier.lag())
            found[name] = asdict(self._with_dropped(name, status, applier.refused))
        return found

    def _with_dropped(
        self, name: str, status: SinkStatus, rejected: Callable[[], RejectedSinkRows]
    ) -> SinkStatus:
        """Return a status with the number of dropped rows among the rejected ones, as far as it can be determined."""
        with suppress(HeadwaterError):
            if self.may_have_dropped(status):
                actions, incarnation = read_actions(self._log), incarnation_of(self._log, name)
                return replace(status, dropped=count_dropped(name, rejected(), actions, incarnation))
        return status

    def facts(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the properties of each running sink, here or in another process."""
        here = self.running()
        published = None if here else self._board.read()
        return here if published is None else published.sinks

    def rejected(self, name: str) -> RejectedSinkRows:
        """Return the rows that a sink's target rejected."""
        made = self._declared.get(name)
        if is_readable(made):
            return self._runners.get(name)[0].applier.rejected()
        text = keeper_of(made, self._log).read()
        checkpoint = None if text is None else SinkCheckpoint.parse(text)
        return RejectedSinkRows.decode(
            b"" if checkpoint is None else checkpoint.rejected, self._declared.shape_of(made).schema
        )

    def runs_elsewhere(self, name: str) -> bool:
        """Whether another process runs a sink."""
        known = self._runners.runner_of(name)
        if known is not None and known.running:
            return False
        published = self._board.read()
        return published is not None and name in published.sinks
