"""Groups and cursors when processes freeze, and when they die at every single call that changes the disk.

The same under load, with members killed, frozen and added: tests/log/test_group_processes.py.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.log.embedded import EmbeddedLog
from headwater.testing import FaultyStorage
from headwater.testing.faults import StorageCall
from headwater.workspace import Workspace
from tests.crash.script import SETTINGS

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 1.0
MEMBER = """
import json, os, signal, sys
import headwater as hw
from headwater.log.append_rows import append_rows
from headwater.log.protocol import CursorMove

ws = hw.open(sys.argv[1], create=False)
member = ws.topic("jobs").group("g", member="sleeper", timeout=float(sys.argv[2]))
batch = next(iter(member.read(batch_rows=5)))
os.kill(os.getpid(), signal.SIGSTOP)
said = []
late = CursorMove("jobs", "g", {0: 5}, member="sleeper")
attempts = [
    member.commit,
    lambda: ws.log.move_cursor(late),
    lambda: append_rows(ws.log, {"done": [{"n": -1}]}, moves=(late,)),
]
for attempt in attempts:
    try:
        attempt()
        said.append("accepted")
    except hw.FencedError:
        said.append("fenced")
print(json.dumps(said), flush=True)
"""


def test_a_frozen_member_is_replaced_in_time_and_its_late_commits_are_fenced(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.topic("jobs", "n BIGINT")
        ws.topic("done", "n BIGINT")
        ws.topic("jobs").append([{"n": n} for n in range(10)])
        command = [sys.executable, "-c", MEMBER, str(tmp_path / "w"), str(TIMEOUT_SECONDS)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as sleeper:
            _, status = os.waitpid(sleeper.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            began = time.monotonic()
            with ws.topic("jobs").group("g", member="heir", timeout=TIMEOUT_SECONDS) as heir:
                rows = [n for b in heir.read(timeout=8 * TIMEOUT_SECONDS) for n in _committed(heir, b)][:10]
                took = time.monotonic() - began - 8 * TIMEOUT_SECONDS
                sleeper.send_signal(signal.SIGCONT)
                assert sleeper.stdout is not None
                said = json.loads(sleeper.stdout.readline())
            sleeper.wait(30)
        assert rows == list(range(10)), "the heir reads what the sleeper had not committed"
        assert took < 4 * TIMEOUT_SECONDS
        assert said == ["fenced", "fenced", "fenced"]
        assert ws.topic("done").partitions()[0].end == 0, "output of a fenced member was written"


def _committed(member: object, batch: object) -> list[int]:
    member.commit()  # type: ignore[attr-defined]
    return batch.column("n").to_pylist()  # type: ignore[attr-defined,no-any-return]


def workspace(storage: FaultyStorage) -> Workspace:
    clock = ManualClock()
    return Workspace(
        EmbeddedLog.open(storage.root, settings=SETTINGS, clock=clock, storage=storage), clock, storage.root
    )


def transform(ws: Workspace) -> None:
    """Read, transform, append, with the position in the same commit."""
    cursor = ws.topic("jobs").cursor("c")
    for batch in cursor.read(batch_rows=3):
        ws.append({"done": [{"n": 10 * n} for n in batch.column("n").to_pylist()]}, commit=cursor)


def output(ws: Workspace) -> list[int]:
    return [n for b in ws.topic("done").read() for n in b.column("n").to_pylist()]


@pytest.mark.parametrize("power", [None, 1, 2], ids=["killed", "power lost", "power lost, other seed"])
def test_a_loop_stopped_at_every_call_leaves_the_output_of_an_undisturbed_one(
    tmp_path: Path, power: int | None
) -> None:
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=memory if memory.is_dir() else tmp_path))
    storage = FaultyStorage(folder / "ws")
    ws = workspace(storage)
    ws.topic("jobs", "n BIGINT")
    ws.topic("done", "n BIGINT")
    ws.topic("jobs").append([{"n": n} for n in range(15)])
    expected = [10 * n for n in range(15)]

    def look(call: StorageCall) -> None:
        seed = None if power is None else 1_000 * power + call.number
        resumed = workspace(storage.image(folder / "image", lose_power=seed))
        transform(resumed)
        assert output(resumed) == expected, f"stopped before {call}"
        resumed.close()
        shutil.rmtree(folder / "image")

    storage.on_call = look
    transform(ws)
    assert output(ws) == expected
    ws.close()
    shutil.rmtree(folder)
