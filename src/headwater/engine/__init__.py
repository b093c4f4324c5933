"""Engine: runs ticks, which advance every view to one cut through the log and commit one manifest.

A tick is a function of the log and of the manifest before it, so it can be dropped at any point and run
again.

Called by cli, connectors, deletion, execution, lineage, metrics, serving, verify, views, web, workspace;
imports catalog, core, log, operators, plan, privacy, spark, sql, state, udf.

In import order, bottom to top:

    dataflow/     the graph of a view made executable
    metrics/      timings and totals of ticks
    merging/      merging of runs
    row_errors/   rejected rows and late rows of views
    collections/  what a tick advances: views and tables, and their arrangements
    input/        records of the log that a tick reads
    deletion/     deletions carried into views: retraction or rebuild
    tick/         the tick: planned, run and committed
"""
