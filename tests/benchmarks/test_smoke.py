"""The benchmarks run, tiny, and every subject has something to say. What it says is never tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.__main__ import SUBJECTS
from benchmarks.harness import Row
from tests.repo.tree import ROOT

LONG = (
    "patterns",
    "views",
    "pacing",
    "windows",
    "skew",
    "sketches",
    "ticks",
    "backlog",
    "cluster",
    "writers",
    "statsd",
    "serving",
    "overload",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "subject", [pytest.param(s, marks=pytest.mark.long) if s in LONG else s for s in SUBJECTS]
)
def test_a_subject_prints_rows(subject: str, tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", subject, "--quick", "--folder", tmp_path, "--out", out],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert any(line.startswith(f"{subject} | ") for line in done.stdout.splitlines()), done.stdout
    stored = json.loads(out.read_text())
    page = report.page(stored["machine"], stored["subjects"])
    assert stored["subjects"][subject]["title"] in page
    assert "| cores |" in page


def test_a_goal_is_judged_by_the_median() -> None:
    def verdict(unit: str, best: float, median: float) -> str:
        return Row("s", "g", "n", unit, best, median, 3, goal=10.0).verdict  # type: ignore[arg-type]

    assert verdict("ms", 8, 9) == "met"
    assert verdict("ms", 8, 11) == "met by the best run"
    assert verdict("records/s", 9, 8) == "missed"
    assert verdict("records/s", 12, 11) == "met"


def test_an_unknown_subject_is_wrong_usage() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "gliding"], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "appending" in done.stderr
