"""Operators: incremental view maintenance; pure Arrow kernels that turn state and an input delta into an output delta.

A kernel receives the delta of its input and the runs of its arrangements, and returns the delta of its output
and the runs to add. Kernels use neither Spark nor the disk.

Called by most packages above it; imports core.

In import order, bottom to top:

    zset/             Z-sets: deltas of weighted rows, and state as sorted runs
    aggregate/        GROUP BY: aggregate functions and sketches
    join/             equi-joins and range joins
    percolator/       stored queries matched against documents (percolator)
    table/            changelogs as tables, row versions, folds, whole groups recomputed
    window/           session windows, sliding frames, ranking, emit on close
    match_recognize/  MATCH_RECOGNIZE
    graph             the operator graph of a view (the IR that `plan` produces and `engine` runs)
    graph_text        the stored text of a graph, from which plan fingerprints are computed
"""
