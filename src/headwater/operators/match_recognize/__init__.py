"""MATCH_RECOGNIZE: row patterns matched over ordered partitions, maintained incrementally.

Called by engine, operators.graph, plan, sql; imports core, operators.aggregate, operators.window,
operators.zset.

In import order, bottom to top:

    pattern         a row pattern as a tree
    automaton       a row pattern as an automaton, alternatives by preference
    spec            the specification of a clause: pattern, conditions, measures, output
    matches         the matches found: their rows and the variable of each row
    partitions      rows sorted by partition and order, with the conditions they satisfy
    measures        evaluation of measures over matches
    reachability    states from which a match can still complete, computed backwards
    matcher         matching when conditions depend on single rows
    backtracking    matching when conditions depend on earlier rows of the match
    reference       MATCH_RECOGNIZE over complete partitions, without increments
    match_operator  the operator: a delta of rows to a delta of matches
"""
