"""Whether retention has something to remove is judged by the rule that it removes by: a base is made for nothing else."""

import dataclasses

import headwater as hw
from headwater.engine.collections import retention_holds


def test_records_are_due_when_those_after_their_segment_hold_the_retained_bytes() -> None:
    with hw.open("memory:") as ws:
        topic = ws.topic("t", "n BIGINT")
        for n in range(2):
            topic.append([{"n": n} for _ in range(100)])
        half = ws.log.partitions("t")[0].oldest_bytes
        assert ws.log.partitions("t")[0].size_bytes == 2 * half
        for kept, removed in ((half + 1, 0), (half, 100)):
            old = ws.log.topic("t")
            ws.log.alter_topic(old, dataclasses.replace(old, retention_bytes=kept))
            assert retention_holds._is_removing(ws.log, ws.log.topic("t"), ws.log.clock) is bool(removed)
            assert ws.log.maintain(force=True).rows_removed == removed
