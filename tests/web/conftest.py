"""A workspace in a folder: how the log's backends differ is not the server's matter."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock


@pytest.fixture
def ws(tmp_path: Path, clock: ManualClock) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "workspace", clock=clock) as workspace:
        yield workspace
