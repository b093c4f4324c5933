"""Followers in other processes have a commit at once, and cost next to nothing while there is none."""

import json
import subprocess
import sys
import time
from pathlib import Path

import headwater as hw

ROOT = Path(__file__).parents[2]
FOLLOWER = """
import sys, time
import headwater as hw

ws = hw.open(sys.argv[1], create=False)
reader = ws.topic("ticks").read("latest", follow=True, timeout=30)
print("ready", flush=True)
for batch in reader:
    print(time.monotonic(), flush=True)
"""
IDLERS = """
import json, resource, sys, threading, time
import headwater as hw

ws = hw.open(sys.argv[1], create=False)
def follow():
    for batch in ws.topic("ticks").read("latest", follow=True, timeout=30):
        pass
for _ in range(int(sys.argv[2])):
    threading.Thread(target=follow, daemon=True).start()
time.sleep(1)
before = resource.getrusage(resource.RUSAGE_SELF)
time.sleep(2)
after = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime), flush=True)
"""


def start(script: str, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", script, *words]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_follower_in_another_process_has_a_commit_at_once(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ticks = ws.topic("ticks", "n BIGINT", partitions=2)
        with start(FOLLOWER, str(tmp_path / "w")) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "ready\n"
            waits = []
            for n in range(20):
                ticks.append([{"n": n}])
                committed = time.monotonic()
                waits.append(float(follower.stdout.readline()) - committed)
            follower.kill()
    assert sorted(waits)[10] < 1.0, f"the median follower waited {sorted(waits)[10]:.3f} s"


def test_a_hundred_idle_followers_are_nearly_free(tmp_path: Path) -> None:
    with hw.open(tmp_path / "w", durability="os") as ws:
        ws.topic("ticks", "n BIGINT", partitions=2).append([{"n": 1}])
        idlers = [start(IDLERS, str(tmp_path / "w"), "50") for _ in range(2)]
        seconds = 0.0
        for each in idlers:
            with each:
                assert each.stdout is not None
                seconds += json.loads(each.stdout.readline())
                each.kill()
    assert seconds / 2 < 0.3, f"a hundred idle followers take {seconds / 2:.0%} of a core"
