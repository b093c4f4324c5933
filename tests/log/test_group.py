"""Groups within one process, step by step: who reads what, how partitions change hands, and who is fenced."""

import threading
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.log.group import GroupMember
from headwater.log.topic import Topic
from tests.raising import raises

TIMEOUT = 10.0


@pytest.fixture
def jobs(ws: hw.Workspace) -> Topic:
    topic = ws.topic("jobs", "n BIGINT", partitions=4, partition_by="n")
    topic.append([{"n": n} for n in range(40)])
    return topic


def join(topic: Topic, member: str) -> GroupMember:
    return topic.group("mailer", member=member, timeout=TIMEOUT)


def drain(member: GroupMember, **options: Any) -> dict[int, list[int]]:
    """What a member is given, by partition."""
    found: dict[int, list[int]] = {}
    for batch in member.read(follow=False, **options):
        found.setdefault(partition_of(batch), []).extend(batch.column("_offset").to_pylist())
    return found


def partition_of(batch: pa.RecordBatch) -> int:
    return int(batch.column("_partition")[0].as_py())


def step(*members: GroupMember) -> None:
    """Let everyone know what has changed: the first beats again after the others have released."""
    for member in (*members, *members):
        member.beat()


def everything(topic: Topic) -> dict[int, list[int]]:
    return {p: list(range(info.end)) for p, info in topic.partitions().items()}


def test_one_member_has_everything(jobs: Topic) -> None:
    with join(jobs, "a") as a:
        assert a.partitions == [0, 1, 2, 3]
        assert drain(a) == everything(jobs)
        a.commit()
        assert a.lag().rows == 0
        assert drain(a) == {}


def test_members_share_and_those_beyond_the_partitions_stand_by(jobs: Topic) -> None:
    members = [join(jobs, name) for name in "abcde"]
    step(*members)
    shares = [m.partitions for m in members]
    assert sorted(p for share in shares for p in share) == [0, 1, 2, 3]
    assert sorted(map(len, shares)) == [0, 1, 1, 1, 1]
    (idle,) = [m for m in members if not m.partitions]
    assert list(idle.read(follow=False)) == []
    members[0].leave()
    step(*members[1:])
    assert len(idle.partitions) == 1


def test_a_clean_partition_is_handed_over_at_the_next_step(jobs: Topic) -> None:
    a = join(jobs, "a")
    b = join(jobs, "b")
    assert b.partitions == []
    step(a, b)
    assert len(a.partitions) == len(b.partitions) == 2
    assert drain(a, commit="after").keys() == set(a.partitions)
    assert drain(b, commit="after").keys() == set(b.partitions)
    assert a.lag().rows == 0


def test_a_partition_with_uncommitted_rows_is_handed_over_when_they_are_committed(jobs: Topic) -> None:
    a = join(jobs, "a")
    first = drain(a)
    b = join(jobs, "b")
    step(a, b)
    assert b.partitions == []
    assert len(a.partitions) == 2, "what is wanted by another is not read any more"
    a.commit()
    step(b)
    assert len(b.partitions) == 2
    jobs.append([{"n": n} for n in range(40, 80)])
    second = {**drain(a), **drain(b)}
    assert {p: first[p] + second.get(p, []) for p in first} == everything(jobs)


def test_one_that_never_commits_gives_up_after_the_timeout(jobs: Topic, clock: ManualClock) -> None:
    a = join(jobs, "a")
    drain(a)
    b = join(jobs, "b")
    for _ in range(4):
        step(a, b)
        clock.advance("4 seconds")
    step(a, b)
    assert len(b.partitions) == 2
    with raises(hw.FencedError, group="mailer", member="a"):
        a.commit()
    a.commit()
    assert drain(b).keys() == set(b.partitions), "their rows come again to the new owner"


def test_a_hung_member_loses_its_partitions_and_its_late_commit_is_fenced(
    jobs: Topic, clock: ManualClock
) -> None:
    a, b = join(jobs, "a"), join(jobs, "b")
    step(a, b)
    drain(a)
    drain(b)
    b.commit()
    clock.advance("8 seconds")
    b.beat()
    clock.advance("8 seconds")
    b.beat()
    assert b.partitions == [0, 1, 2, 3]
    with raises(hw.FencedError, member="a") as caught:
        a.commit()
    assert caught.value.partitions
    a.commit()  # it has forgotten them
    drain(b)
    b.commit()
    assert b.lag().rows == 0
    step(a, b)
    step(a, b)
    assert len(a.partitions) == 2, "and is welcome again"


def test_beating_keeps_slow_work_alive(jobs: Topic, clock: ManualClock) -> None:
    a, b = join(jobs, "a"), join(jobs, "b")
    step(a, b)
    drain(a)
    for _ in range(5):
        clock.advance("8 seconds")
        a.beat()
        b.beat()
    a.commit()


def test_what_was_made_of_lost_rows_cannot_be_written(
    ws: hw.Workspace, jobs: Topic, clock: ManualClock
) -> None:
    out = ws.topic("out", "n BIGINT")
    a, b = join(jobs, "a"), join(jobs, "b")
    step(a, b)
    made = [row for batch in a.read(follow=False) for row in batch.select(["n"]).to_pylist()]
    clock.advance("8 seconds")
    b.beat()
    clock.advance("8 seconds")
    b.beat()  # takes everything
    with pytest.raises(hw.FencedError):
        ws.append({"out": made}, commit=a)
    assert list(out.read()) == []
    for member in (a, b, a, b):
        member.beat()
        for batch in member.read(follow=False):
            ws.append({"out": batch.select(["n"])}, commit=member)
    assert sorted(n for batch in out.read() for n in batch.column("n").to_pylist()) == list(range(40))


def test_a_member_that_comes_back_to_its_old_partition_does_not_write_twice(
    ws: hw.Workspace, jobs: Topic, clock: ManualClock
) -> None:
    """Rows handed out before the member hung were done by another; holding the partition again is no licence."""
    out = ws.topic("out", "n BIGINT")
    a, b = join(jobs, "a"), join(jobs, "b")
    step(a, b)
    mine = a.partitions
    made = [row for batch in a.read(follow=False) for row in batch.select(["n"]).to_pylist()]
    clock.advance("8 seconds")
    b.beat()
    clock.advance("8 seconds")
    for batch in b.read(follow=False):
        ws.append({"out": batch.select(["n"])}, commit=b)
    b.leave()
    a.beat()
    assert set(mine) <= set(a.partitions)
    with pytest.raises(hw.FencedError):
        ws.append({"out": made}, commit=a)
    for batch in a.read(follow=False):
        ws.append({"out": batch.select(["n"])}, commit=a)
    assert sorted(n for batch in out.read() for n in batch.column("n").to_pylist()) == list(range(40))


def test_following_picks_up_new_rows(jobs: Topic) -> None:
    with join(jobs, "a") as a:
        reading = a.read(commit="after", timeout=0.2)
        assert sum(next(reading).num_rows for _ in range(4)) == 40
        writer = threading.Timer(0.05, lambda: jobs.append([{"n": 1}]))
        writer.start()
        assert next(reading).num_rows == 1
        writer.join()


def test_leaving_hands_on_at_once_and_uncommitted_rows_come_again(jobs: Topic) -> None:
    with join(jobs, "a") as a:
        drain(a)
    with join(jobs, "b") as b:
        assert drain(b) == everything(jobs)
    with raises(hw.UsageError, member="a", reason="left"):
        a.beat()


@pytest.mark.parametrize("timeout", [0, "0 seconds", -1.0])
def test_a_timeout_is_longer_than_nothing(jobs: Topic, timeout: Any) -> None:
    with raises(hw.UsageError, argument="timeout", value=timeout):
        jobs.group("mailer", timeout=timeout)


SCRIPT = ["a+", "read", "b+", "read", "c+", "hang", "read", "a-", "read", "d+", "read", "b-", "read", "read"]
"""Comings, goings and hangs."""


def test_through_all_of_it_no_row_is_skipped_and_order_is_kept(jobs: Topic, clock: ManualClock) -> None:
    members: dict[str, GroupMember] = {}
    done: dict[int, list[int]] = {p: [] for p in range(4)}
    n = 40
    for event in SCRIPT:
        jobs.append([{"n": n + i} for i in range(8)])
        n += 8
        if event.endswith("+"):
            members[event[0]] = join(jobs, event[0])
        elif event.endswith("-"):
            members.pop(event[0]).leave()
        elif event == "hang":
            clock.advance("11 seconds")
        for member in members.values():
            for batch in member.read(follow=False, batch_rows=3):
                fresh = batch.column("_offset").to_pylist()
                partition = partition_of(batch)
                try:
                    member.commit()
                except hw.FencedError:
                    continue
                assert fresh[0] <= (done[partition][-1] + 1 if done[partition] else 0), "a row was skipped"
                done[partition] += [o for o in fresh if o not in done[partition]]
    for member in members.values():
        member.beat()
    for member in members.values():
        for batch in member.read(follow=False, commit="after"):
            done[partition_of(batch)] += [
                o for o in batch.column("_offset").to_pylist() if o not in done[partition_of(batch)]
            ]
    assert done == everything(jobs)


def test_a_member_that_has_left_neither_reads_nor_commits(jobs: Topic) -> None:
    member = join(jobs, "a")
    member.leave()
    for call in (member.read, member.commit, member.pending_move):
        with raises(hw.UsageError, member="a", reason="left"):
            call()
