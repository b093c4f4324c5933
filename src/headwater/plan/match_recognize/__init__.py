"""MATCH_RECOGNIZE in plans: the clause as a plan node, its expressions and aggregates.

Called by plan.lowering, plan.planner, plan.time, serving; imports operators, plan.relations, plan.rewrite, spark, sql.

In import order, bottom to top:

    pattern_aggregates   aggregates over matched rows, folded by Spark
    pattern_scope        variables, columns and classifications that expressions name
    pattern_inputs       the distinct inputs that expressions read from a match
    pattern_navigation   PREV, NEXT, FIRST and LAST
    pattern_calls        calls of aggregates
    pattern_expressions  DEFINE and MEASURES: row navigation as columns, the rest as Spark expressions
    clause               the clause in a parsed plan
"""
