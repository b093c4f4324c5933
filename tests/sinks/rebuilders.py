"""A process that builds a target anew again and again until it is killed.

As a program: `python -m tests.sinks.rebuilders KIND PLACE` says each version that it has put in force.
"""

import os
import sys
from pathlib import Path

from headwater.core.clock import ManualClock
from headwater.sinks.base.sink_rebuild import Rebuilding
from headwater.sinks.base.target import Target
from tests.sinks.followers import SHAPE, feed_at

TICK = 5


def make(kind: str, place: str) -> Target:
    """The target in force."""
    if kind == "postgres":
        from headwater.sinks.postgres.target import PostgresTarget

        return PostgresTarget(place, "killed")
    if kind == "redis":
        from headwater.sinks.redis.target import RedisTarget

        return RedisTarget(place)
    if kind == "search":
        from headwater.sinks.search.target import SearchTarget

        return SearchTarget(Path(place) / "index")
    if kind == "lake":
        from headwater.sinks.iceberg.target import LakeTarget

        return LakeTarget(Path(place) / "warehouse", "t", snapshots=5)
    from headwater.sinks.parquet.target import ParquetTarget

    return ParquetTarget(Path(place) / "files")


def rebuilding(target: Target) -> Rebuilding:
    """What builds it anew, from a view that stands still."""
    return Rebuilding(SHAPE, target, feed_at(TICK), ManualClock())


if __name__ == "__main__":
    target = make(sys.argv[1], sys.argv[2])
    versions = rebuilding(target)
    while True:
        if versions.old() is not None:
            versions.drop_old()
        versions.build()
        os.write(1, b"built\n")
        versions.back()
        os.write(1, b"back\n")
