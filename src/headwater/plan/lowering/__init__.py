"""Lowering: nodes of Spark's optimized plan to operators, one function per kind of node.

`lowering` has the table of functions; each takes the `LoweringContext` of the plan and a node, and returns the operator.

Called by plan.planner; imports operators, plan.match_recognize, plan.relations, plan.rewrite, plan.time, spark, udf.

In import order, bottom to top:

    approximate_columns  which output columns are sketch answers
    lowering_context     `LoweringContext`: dispatch by node kind, expressions by column
    linear_steps         columns computed, selected and dropped above an operator, keys as columns
    sketch_nodes         approximate aggregate functions
    aggregate_functions  aggregate functions, and their results from their buffers
    distinct_aggregates  aggregates over distinct values
    sessions             session windows
    udf_calls            calls of user-defined functions
    udf_aggregates       user-defined aggregates
    aggregates           aggregate nodes
    sliding_frames       OVER with a sliding frame
    version_scans        row versions that a view derives from records itself
    windows              window functions, limits and top-k
    scans                sources, constants, projections and filters
    range_joins          joins with a range condition
    joins                join nodes
    pattern_nodes        MATCH_RECOGNIZE nodes
    lowering             `lowering_of`: the table of functions by node kind
"""
