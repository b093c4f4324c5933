"""Read, transform, append, killed (-9) at every step in turn: what each way of committing promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import headwater as hw

ROWS = 12
SCRIPT = """
import os, signal, sys
import headwater as hw

folder, way, die_at = sys.argv[1], sys.argv[2], int(sys.argv[3])
steps = 0

def step():
    global steps
    steps += 1
    if steps == die_at:
        os.kill(os.getpid(), signal.SIGKILL)

with hw.open(folder, create=False) as ws:
    cursor = ws.topic("orders").cursor("biller")
    for batch in cursor.read(batch_rows=4, commit=way if way in ("before", "after") else None):
        step()
        bills = [{"n": 10 * n} for n in batch.column("n").to_pylist()]
        if way == "together":
            ws.append({"bills": bills}, commit=cursor)
        else:
            ws.append({"bills": bills})
        step()
        if way == "by hand":
            cursor.commit()
            step()
"""


def bills_after_crashes(folder: Path, way: str) -> list[int]:
    """What was written in the end if the program dies at its first step, then at its second, and so on."""
    with hw.open(folder, durability="os") as ws:
        ws.sql("CREATE TOPIC orders (n BIGINT); CREATE TOPIC bills (n BIGINT)")
        ws.append({"orders": [{"n": n} for n in range(ROWS)]})
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for die_at in range(1, 50):
        command = [sys.executable, "-c", SCRIPT, str(folder), way, str(die_at)]
        if subprocess.run(command, env=environ, timeout=60, check=False).returncode == 0:
            break
    else:
        pytest.fail("it never came through")
    with hw.open(folder, create=False) as ws:
        return [n for batch in ws.topic("bills").read() for n in batch.column("n").to_pylist()]


EXPECTED = [10 * n for n in range(ROWS)]


def test_committed_with_the_output_each_is_written_once(tmp_path: Path) -> None:
    assert bills_after_crashes(tmp_path / "w", "together") == EXPECTED


@pytest.mark.parametrize("way", ["by hand", pytest.param("after", marks=pytest.mark.long)])
def test_committed_afterwards_each_is_written_at_least_once(tmp_path: Path, way: str) -> None:
    bills = bills_after_crashes(tmp_path / "w", way)
    assert sorted(set(bills)) == EXPECTED
    assert len(bills) > len(EXPECTED), "a crash between output and commit brings rows again"


def test_committed_before_each_is_written_at_most_once(tmp_path: Path) -> None:
    bills = bills_after_crashes(tmp_path / "w", "before")
    assert len(bills) == len(set(bills))
    assert set(bills) < set(EXPECTED), "a crash between commit and output loses rows"
