"""User-defined functions: declarations in the log, their code in this process, and every call of it.

Called by engine, plan, serving, views; imports catalog, core, log, operators, sql.

In import order, bottom to top:

    bloom            Bloom filters as an aggregate and a function
    udf_calls        the boundary to users' code: arguments, results and tracebacks checked
    udf_definitions  a declared function: kind, types, version
    udf_registry     the functions of a workspace: declared in its log, code in this process
    udf_states       the code of user-defined aggregates; also loaded by Spark workers
    folds            user-defined folds over a topic's records in order
    udf_aggregates   user-defined aggregates, with retraction
"""
