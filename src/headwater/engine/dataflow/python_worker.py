"""Spark's own Python daemon, started with the operators imported: `spark.python.daemon.module` names this module.

Spark's daemon collects garbage after every task of a reused worker, and thereby scans all imported modules: 25 to 40 ms
of CPU time each. Objects that exist before the first fork are frozen here, which reduces that to 2 ms. Workers are
forks of the daemon, so they need not import the modules either.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401 - every worker imports it first
from pyspark import daemon

import headwater.engine.dataflow.keyed_operators
import headwater.engine.dataflow.spark_tasks  # noqa: F401 - our tasks need it


def main() -> None:
    """Freeze the imported objects, and run Spark's daemon."""
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
