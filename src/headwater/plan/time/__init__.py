"""Event time in plans: which rows are late, when a row is final, when state expires.

`event_time` has a table of functions, one per kind of plan node; each takes the `TimingContext` of the plan and a node, and
returns the node with the policy applied.

Called by engine, lineage, plan.lowering, plan.planner, serving, verify, views; imports catalog, core, log, operators,
plan.match_recognize, plan.relations, plan.rewrite, spark, sql.

In import order, bottom to top:

    late_policy        what a view does with late rows
    state_expiry       when state can expire
    time_expressions   expressions over times in Catalyst
    timed_plan         a plan node with the event times of its columns
    timing_context     `TimingContext`: dispatch by node kind, dropped late rows, expiring state
    late_rows          filters for late rows where rows enter windows
    final_rows         the columns that say when a row is final
    column_times       which columns are event times or windows of them
    on_time_versions   table versions derived from on-time records only
    relation_times     event times of topics and tables where a query reads them
    session_values     session windows as values of the query above them
    session_distincts  DISTINCT aggregates over whole sessions
    frame_times        OVER: late rows and final rows of frames
    join_times         interval joins: late rows and the end of matching
    pattern_times      late rows and final matches of MATCH_RECOGNIZE
    node_times         projections, aggregates and unions
    event_time         event time of a whole plan: the table of functions by node kind
"""
