"""Planning: the SELECT of a view to an operator graph, by way of Spark's optimized plan.

Spark parses, resolves and optimizes; its plan is rewritten where a view must be deterministic, given
event-time rules, and lowered to the operators of `operators.graph`. What has no incremental form is refused
here.

Called by connectors, engine, lineage, serving, verify, views; imports catalog, core, log, operators, spark,
sql, udf.

In import order, bottom to top:

    relations/        names and handles of relations in a plan, metadata columns
    rewrite/          rewrites of parsed and analysed plans
    match_recognize/  MATCH_RECOGNIZE in a plan
    percolator/       graphs of stored queries, without Spark
    time/             event time in a plan: late rows, watermarks, state expiry
    lowering/         plan nodes to operators
    planner           `Planner`: the steps of planning in order
"""
