"""User-defined functions: their declarations in the log, their code in this process, and every call of that code.

Called by engine, plan, serving, views; imports catalog, core, log, operators, sql.

In import order, bottom to top:

    bloom            Bloom filters as an aggregate and a function
    udf_calls        the boundary to users' code: checks of arguments, results and tracebacks
    udf_definitions  a declared function: kind, types, version
    udf_registry     the functions of a workspace: declared in its log, code in this process
    udf_states       the code of user-defined aggregates; also loaded by Spark workers
    folds            user-defined folds over a topic's records, in log order
    udf_aggregates   user-defined aggregates, with retraction
"""
