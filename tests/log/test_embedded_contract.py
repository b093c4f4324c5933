"""The embedded log keeps the contract, with segments of ordinary size and with tiny ones."""

from pathlib import Path

from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.log.embedded import EmbeddedLog
from headwater.log.protocol import Log
from headwater.testing.contract import LogContract


class TestEmbeddedLog(LogContract):
    settings = LogSettings()

    def make_log(self, tmp_path: Path, clock: ManualClock) -> Log:
        return EmbeddedLog.open(tmp_path / "log", settings=self.settings, clock=clock)

    def reopen(self, log: Log) -> Log:
        log.close()
        return self.make_log(self.folder, self.clock)


class TestEmbeddedLogOfTinySegments(TestEmbeddedLog):
    settings = LogSettings(segment_bytes_max=2_000, checkpoint_bytes=4_000, inline_bytes_max=500)
