"""SQL: Headwater's dialect parsed into statements, and SELECTs answered by DuckDB.

The dialect is Spark SQL with additional statements. Nothing here executes a statement: `execution` does.

Called by most packages above it; imports catalog, core, operators.

In import order, bottom to top:

    duckdb/                  SELECTs on DuckDB, where the answer equals Spark's
    lexer                    tokens by Spark's lexical rules (sqlglot), and errors that point at one
    match_recognize_pattern  the parser of PATTERN
    clauses                  clauses that several statements share: names, types, options
    match_recognize_places   where a query contains MATCH_RECOGNIZE
    system_time              FOR SYSTEM_TIME AS OF with a column
    connector_statements     statements about sources, sinks and alerts as plain values
    foreign/                 hints for syntax of other engines
    ordered_aggregates       `array_agg(x ORDER BY y)`
    standing_statements      statements about standing (stored) queries
    statements               all statements as plain values, each with its syntax
    alert_statements         statements about alerts, and the built-in alerts
    match_recognize_clause   the parser of MATCH_RECOGNIZE
    parser                   statement text to `statements`, by recursive descent
    topic_arguments          definitions of topics from the arguments of `ws.topic`
"""
