"""Stored queries: the operator graph of a percolator view, made without Spark.

Called by plan.planner, views; imports core, log, operators, plan.relations, plan.rewrite, sql.

In import order, bottom to top:

    sql_predicates    SQL conditions as stored queries, checked by sqlglot
    stored_query      a stored query as a record: parsed and validated
    percolator_graph  the graph of a view of matches
"""
