"""Rewrites: parsed and analysed plans changed so that a view is deterministic and Spark can plan it.

Called by engine, serving, verify, modules of plan; imports core, log, operators, plan.relations, spark, sql, udf.

In import order, bottom to top:

    approximate_answers      approximate aggregates: sketch, exact answer or bounds
    commit_order             order by commit where times are equal
    cumulate_window          functions that Spark lacks: `cumulate_window`, `corrected_time`
    exact_moments            variances and covariances, for plans that Spark runs
    metadata_column_windows  window functions over metadata columns
    ordered_lists            lists in a declared order
    relation_names           names of relations resolved to topics and views
    ties                     `min_by`, `max_by` and `mode` with ties
    udf_registration         user-defined functions registered with a Spark session
    unrepeatable             functions that are not repeatable, and what to use instead
    unused_orders            warnings about ORDER BY without LIMIT
    determinism              nondeterminism rejected or fixed before planning
    exact_sum_rewrite        sums independent of row order, for plans that Spark runs
    system_versions          FOR SYSTEM_TIME, FOR SYSTEM_VERSION and `<topic>.versions`
    whole_rows               `array_agg(t.*)` as a list of structs
"""
