"""Planning: the SELECT of a view to an operator graph, by way of Spark's optimized plan.

Spark parses, resolves and optimizes the query. Its plan is rewritten where Spark's semantics are not deterministic,
extended by event-time rules, and lowered to the operators of `operators.graph`. Queries without an incremental form are
rejected here.

Called by connectors, engine, lineage, serving, verify, views; imports catalog, core, log, operators, spark, sql, udf.

In import order, bottom to top:

    relations/        names and handles of relations in a plan, metadata columns
    rewrite/          rewrites of parsed and analysed plans
    match_recognize/  MATCH_RECOGNIZE in a plan
    percolator/       graphs of stored queries, without Spark
    time/             event time in a plan: late rows, watermarks, state expiry
    lowering/         plan nodes to operators
    planner           `Planner`: the steps of planning in order
"""
