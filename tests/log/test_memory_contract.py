"""The in-memory log keeps the contract that it is the specification of."""

from pathlib import Path

from headwater.core.clock import ManualClock
from headwater.log.memory import MemoryLog
from headwater.log.protocol import Log
from headwater.testing.contract import LogContract


class TestMemoryLog(LogContract):
    def make_log(self, tmp_path: Path, clock: ManualClock) -> Log:
        return MemoryLog(clock=clock)
