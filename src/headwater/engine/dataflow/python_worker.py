"""Spark's own Python daemon, begun with the operators imported: `spark.python.daemon.module` names it.

Spark's daemon collects garbage after every task of a worker that it keeps, and looks at all that was ever imported
thereby: 25 to 40 ms of processor time each. What is there before the first fork is set aside here, so that it takes 2.
Workers are copies of the daemon, so they need not import them either.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401 - what every worker imports first
from pyspark import daemon

import headwater.engine.dataflow.keyed_operators
import headwater.engine.dataflow.spark_tasks  # noqa: F401 - and what ours need


def main() -> None:
    """Set aside what is imported, and be Spark's daemon."""
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
