"""Foreign SQL: syntax of Flink, RisingWave, Materialize and others, rejected with the equivalent syntax as a hint.

Called by plan, sql.parser; imports core, sql.lexer, sql.system_time.

In import order, bottom to top:

    foreign_forms       tools of the finders: tokens, call arguments, intervals, edits
    foreign_statements  statements
    foreign_joins       ASOF and temporal joins
    foreign_rows        other clauses and functions: DISTINCT ON, UNNEST, percentiles, ...
    foreign_windows     windowing table functions and group windows
    foreign_spellings   the list of all finders, run on a rejected statement
"""
