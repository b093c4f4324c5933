"""Every kind of statement has something that runs it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import headwater as hw
from headwater import execution
from headwater.sql import statements as s


def test_every_statement_is_run_by_the_workspace_or_by_the_supervisor(tmp_path: Path) -> None:
    outside = set(get_args(s.ConnectorStatement))
    with hw.open(tmp_path / "ws") as ws:
        handled = set(ws._outside._handlers)
    assert handled == outside
    assert set(execution._HANDLERS) == set(get_args(s.Statement)) - outside
