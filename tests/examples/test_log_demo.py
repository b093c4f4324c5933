"""The demo runs, small, and its verdict is its exit status."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.tree import ROOT

DEMO = [sys.executable, str(ROOT / "examples" / "log_demo.py"), "--rows", "20000"]


@pytest.mark.slow
def test_a_small_demo_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(DEMO, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20,000 clicks, each exactly once" in done.stdout
    assert "kill -9" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert (tmp_path / "demo" / "headwater.json").exists()


@pytest.mark.slow
def test_ctrl_c_leaves_no_process_behind(tmp_path: Path) -> None:
    """Its processes share its standard error: the end of that is reached when the last of them is gone."""
    command = [*DEMO, "--rows", "2000000"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as demo:
        assert demo.stdout is not None
        assert demo.stderr is not None
        for line in demo.stdout:
            if "producer east" in line:
                break
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        demo.stderr.read()
        assert demo.wait(timeout=60) == 130


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "letter.txt").write_text("dear reader")
    done = subprocess.run(DEMO, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert (tmp_path / "demo" / "letter.txt").read_text() == "dear reader"
