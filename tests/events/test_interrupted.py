"""Ctrl-C in the main thread is the main thread's: whoever shares its commits is neither interrupted nor held up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.repo.tree import ROOT

SECONDS = 30 if os.environ.get("HEADWATER_LONG") == "1" else 2


def test_threads_go_on_while_the_main_thread_is_interrupted_again_and_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.events.interrupting", str(tmp_path / "ws"), str(SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["interrupted"] >= 5
    assert found["own"] >= 1
    assert (found["met"], found["stuck"], found["there"], found["own_there"]) == ([], 0, True, True)
