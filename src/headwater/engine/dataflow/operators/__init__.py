"""Operators: one file per kind of operator, with all properties of the kind.

A file has the class that runs (or `keyed_operators` has it, for Spark tasks), and an `OperatorKind`: how
the operator is built from its graph node, explained, traced, expired, pruned and retracted. `registry` has one
line per kind; code that walks graphs calls `kind_of(node)` instead of matching on types of nodes.

Called by modules of engine.dataflow, engine.collections, engine.deletion, lineage, views; imports core,
engine.dataflow, operators, plan, spark.

In import order, bottom to top:

    operator_kind      `OperatorKind`: the properties of a kind of operator, with defaults
    linear_nodes       sources, constants, maps and unions
    aggregate          groups with aggregate functions
    sessions           rows with their sessions
    session_aggregate  sessions with aggregate functions, of rows that are never retracted
    rank               the first rows of each group
    join               pairs of rows, by equal keys or by a range
    slide              rows with functions over the rows near them in time
    regroup            any function of a whole group, computed by Spark
    match_recognize    MATCH_RECOGNIZE
    versions           versions of the rows of a table
    fold               the state of a user's fold for each key
    percolator         documents matched with stored queries
    close              rows emitted once they are final
    registry           `kind_of`: the kind of a graph node
"""
