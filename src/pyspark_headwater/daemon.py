"""Spark's Python daemon with Headwater's kernels imported: `spark.python.daemon.module` of users' own sessions names it."""

from headwater.engine.dataflow.python_worker import main

if __name__ == "__main__":
    main()
