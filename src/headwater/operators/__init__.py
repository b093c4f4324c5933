"""Operators: incremental view maintenance; pure Arrow kernels from state and a delta to a delta.

A kernel gets the delta of its input and the runs of its arrangements, and returns the delta of its output and
the runs to add. Kernels know neither Spark nor the disk.

Called by most packages above it; imports core.

In import order, bottom to top:

    zset/             deltas as Z-sets, and state as sorted runs
    aggregate/        GROUP BY: aggregate functions and sketches
    join/             equi-joins and range joins
    percolator/       stored queries matched with documents (percolator)
    table/            changelogs as tables, row versions, folds, whole groups recomputed
    window/           session windows, sliding frames, ranking, emit on close
    match_recognize/  MATCH_RECOGNIZE
    graph             the operator graph of a view (the IR that `plan` makes and `engine` runs)
    graph_text        the stored text of a graph, which plan fingerprints are made of
"""
