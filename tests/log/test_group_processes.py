"""A group of processes under load: members are killed, frozen and added, and the output is as if nothing happened."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import headwater as hw

PARTITIONS = 4
ROWS = 400
ROUNDS = 25
TIMEOUT_SECONDS = 1.0
SILENCE_SECONDS_MAX = 20
"""A member frozen while it holds the log's lock keeps everyone waiting until the lock's own timeout."""

EXACTLY_ONCE = """
import sys
import headwater as hw

ws = hw.open(sys.argv[1], create=False)
with ws.topic("jobs").group("mailer", member=sys.argv[2], timeout=float(sys.argv[3])) as member:
    print("ready", flush=True)
    for batch in member.read(batch_rows=16, columns=["n", "_partition", "_offset"]):
        done = [{"n": r["n"], "part": r["_partition"], "place": r["_offset"]} for r in batch.to_pylist()]
        try:
            ws.append({"done": done}, commit=member)
        except hw.FencedError:
            pass
"""
AT_LEAST_ONCE = EXACTLY_ONCE.replace(
    'ws.append({"done": done}, commit=member)', 'ws.append({"done": done}); member.commit()'
)


class Members:
    """The processes of a group."""

    def __init__(self, folder: Path, script: str) -> None:
        self._folder = folder
        self._script = script
        self.running: dict[str, subprocess.Popen[str]] = {}

    def add(self, name: str) -> None:
        """Start a member and wait until it has joined."""
        arguments = [sys.executable, "-c", self._script, str(self._folder), name, str(TIMEOUT_SECONDS)]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        process = subprocess.Popen(arguments, env=environ, stdout=subprocess.PIPE, text=True)
        self.running[name] = process
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a member a signal."""
        self.running[name].send_signal(number)

    def end(self) -> None:
        """Kill whoever is left."""
        for process in self.running.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def ws(tmp_path: Path) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", durability="os") as workspace:
        workspace.topic("jobs", "n BIGINT", partitions=PARTITIONS, partition_by="n")
        workspace.topic("done", "n BIGINT, part INT, place BIGINT")
        yield workspace


def until_expelled(ws: hw.Workspace, member: str) -> None:
    """Wait for the others to notice that a member is silent; looks again whenever they have done something."""
    for _ in range(SILENCE_SECONDS_MAX * 10):
        group = ws.log.group("jobs", "mailer")
        assert group is not None
        if member not in group.members:
            return
        ws.log.wait("done", {0: ws.topic("done").partitions()[0].end}, 100)
    pytest.fail(f"{member} is still a member")


def disturbed(ws: hw.Workspace, members: Members) -> dict[int, list[int]]:
    """Feed the group while it is disturbed; which offsets of each partition were done, in order."""
    jobs = ws.topic("jobs")
    members.add("a")
    members.add("b")
    for number in range(ROUNDS):
        jobs.append([{"n": number * ROWS + i} for i in range(ROWS)])
        if number == 5:
            members.send("a", signal.SIGKILL)
        elif number == 8:
            members.add("c")
        elif number == 11:
            members.send("b", signal.SIGSTOP)
            members.add("d")
        elif number == 20:
            until_expelled(ws, "b")
            members.send("b", signal.SIGCONT)
            members.add("e")
    found: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
    order: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    for batch in ws.topic("done").read(follow=True, timeout=SILENCE_SECONDS_MAX):
        for row in batch.to_pylist():
            found[row["part"]].add(row["place"])
            order[row["part"]].append(row["place"])
        if sum(map(len, found.values())) == ROUNDS * ROWS:
            break
    return order


@pytest.mark.slow
def test_output_written_with_the_position_is_written_once_and_in_order(
    ws: hw.Workspace, tmp_path: Path
) -> None:
    members = Members(tmp_path / "w", EXACTLY_ONCE)
    try:
        order = disturbed(ws, members)
    finally:
        members.end()
    assert order == {p: list(range(info.end)) for p, info in ws.topic("jobs").partitions().items()}


@pytest.mark.slow
def test_with_a_commit_afterwards_rows_may_come_twice_and_none_is_skipped(
    ws: hw.Workspace, tmp_path: Path
) -> None:
    members = Members(tmp_path / "w", AT_LEAST_ONCE)
    try:
        order = disturbed(ws, members)
    finally:
        members.end()
    for partition, places in order.items():
        assert sorted(set(places)) == list(range(ws.topic("jobs").partitions()[partition].end))
        first_seen = list(dict.fromkeys(places))
        assert first_seen == sorted(first_seen), "a row was skipped, or came before an earlier one"
