"""A process that keeps a server's table or names in step with a scripted view until it is killed.

As a program: `python -m tests.sinks.followers KIND URL TICK` begins with the view at that tick, and says each tick that was
applied.
"""

import itertools
import os
import sys

import numpy as np
import pyarrow as pa

from headwater.core.clock import ManualClock
from headwater.operators.zset.delta import Delta
from headwater.sinks.base.applier import Applier
from headwater.sinks.base.target import Target, TargetShape
from headwater.sinks.postgres.target import PostgresTarget
from headwater.sinks.redis import target as redis_sink
from headwater.sinks.redis.target import RedisTarget
from headwater.testing.sinks import ScriptedFeed

SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("n", pa.int64())])
SHAPE = TargetShape("killed", "v", SCHEMA, ("id",))
KEYS = 3_000


def contents_at(tick: int) -> Delta:
    """The view at a tick: most rows change from one to the next, and some come and go."""
    ids = np.arange(KEYS)
    ids = ids[(ids * 7 + tick * 13) % 11 != 0]
    n = np.where((ids + tick) % 3 == 0, tick, ids)
    words = pa.array(n).cast(pa.string())
    return Delta.of(pa.RecordBatch.from_arrays([pa.array(ids), words, pa.array(n)], schema=SCHEMA))


def make(kind: str, url: str) -> Target:
    """The target: a table, or hashes in one step or in several."""
    if kind == "postgres":
        return PostgresTarget(url, "killed")
    if kind == "redis in parts":
        redis_sink.ROWS_AT_ONCE, redis_sink.ROWS_OF_A_PART = 500, 250
    return RedisTarget(url)


def feed_at(tick: int) -> ScriptedFeed:
    """The view from a tick on; what was before is not kept."""
    feed = ScriptedFeed(SCHEMA, ManualClock())
    if tick > 1:
        feed.now = tick - 2
        feed.commit(contents_at(tick - 1))
    feed.commit(contents_at(tick))
    return feed


if __name__ == "__main__":
    kind, url, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
    feed = feed_at(first)
    applier = Applier(SHAPE, make(kind, url), feed, ManualClock())
    for tick in itertools.count(first):
        while applier.step():
            pass
        os.write(1, f"{tick}\n".encode())
        feed.commit(contents_at(tick + 1))
        feed.forget(tick)
