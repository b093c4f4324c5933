"""DuckDB: SELECTs over views and topics answered without a JVM, where the answer provably equals Spark's.

Queries that are not known to agree with Spark in ANSI mode are declined, and Spark answers them.

Called by connectors, plan, serving, web; imports core.

In import order, bottom to top:

    duckdb_engine     DuckDB itself, in memory and locked down
    typed_sql         pieces of DuckDB SQL with their Spark types
    column_names      name resolution by Spark's rules
    scalar_operators  literals, operators and CASE
    casts             CAST between types on which both agree
    scalar_functions  scalar functions that were tested to agree
    aggregates        aggregates and grouped expressions
    from_clause       FROM and JOIN
    results           HAVING, ORDER BY and LIMIT
    selects           a SELECT, clause by clause
    serve             entry point: parse, key lookup or DuckDB, or the reason why not
    query_worker      the program of a subprocess that answers a query
    query_processes   the pool of query workers: started, queried, killed at the time limit
"""
