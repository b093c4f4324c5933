"""Dataflow: the operator graph of a view made executable; a delta of its sources in, a delta of the view out.

Spark expressions are compiled once and evaluated in the driver's JVM over Arrow batches, without a Spark job.

Called by lineage, serving, views, modules of engine; imports core, log, operators, plan, spark, state.

In import order, bottom to top:

    arrow_expressions      expressions that Arrow evaluates exactly as Spark does
    jvm_expressions        Spark expressions evaluated in the driver's JVM
    portable_stages        stages in a form that tasks on other machines can run
    spark_tasks            the work of a Spark task: one step over a range of keys
    stage_tasks            the work of the Spark tasks of a whole stage: scans of the log, and steps
    linear                 filters, projections and other row-wise steps
    operator_interface     `Operator`: arrangements of an operator and its step over a change
    executor               `Executor`, the interface that decides where stages run, and the parts of a stage
    keyed_operators        operators whose steps can be divided by key, the same in driver and tasks
    placement              where a step runs: in the driver, or by key range in Spark tasks
    cluster_check          a job that checks what executors need
    python_worker          the Python daemon of Spark workers, with operators imported
    row_matches            MATCH_RECOGNIZE: its kernels with Spark's expressions
    window_preaggregation  rows of overlapping windows combined before they are expanded
    spark_groups           functions of whole groups, computed by Spark
    driver_executor        stages run in this process, small steps of several views as one
    facets/                properties of operators: types of keys, state bounds, origins, demands
    operators/             one file per kind of operator: how it runs, and its properties
    pruning                unused columns and ranks, removed from a graph
    output_keys            which output columns show a group or partition key
    dataflow_stages        a graph divided into stages
    dataflow               a graph as operators with their arrangements, and one step of all of them
"""
