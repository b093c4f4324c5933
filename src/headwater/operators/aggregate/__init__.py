"""Aggregation: GROUP BY maintained incrementally, with retractable accumulators and mergeable sketches.

Called by engine, operators.match_recognize, operators.window, plan, udf, verify; imports core,
operators.zset.

In import order, bottom to top:

    accumulators         accumulators of a group, added and retracted by weight
    distinct_count       approximate distinct count: HyperLogLog++ in Spark's registers
    custom_aggregates    the interface of user-defined aggregate functions
    sketches             the interface of sketches, and their error bounds
    aggregate_functions  each aggregate function: accumulators and output columns
    frequent_items       approximate most frequent values: Misra-Gries counters
    quantiles            approximate quantiles: Greenwald-Khanna summaries
    min_max              MIN, MAX, MIN_BY and MAX_BY: selection of the row with the extreme value
    aggregate            the grouped aggregation operator
    stacking             small steps of several aggregations of one shape, executed as one
"""
