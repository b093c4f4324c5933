"""MATCH_RECOGNIZE: row patterns matched over ordered partitions, maintained incrementally.

Called by engine, operators.graph, plan, sql; imports core, operators.aggregate, operators.window,
operators.zset.

In import order, bottom to top:

    pattern         a row pattern as a tree
    automaton       a row pattern as an automaton, alternatives by preference
    spec            the specification of a clause: pattern, conditions, measures, output
    matches         matches found: their rows and the variable of each
    partitions      rows sorted by partition and order, with the conditions they meet
    measures        evaluation of measures over matches
    reachability    which states can still complete a match, computed backwards
    matcher         matching when conditions look at single rows
    backtracking    matching when conditions look at earlier rows of the match
    reference       the whole of MATCH_RECOGNIZE over complete rows, without increments
    match_operator  the operator: a delta of rows to a delta of matches
"""
