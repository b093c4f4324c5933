"""Z-sets: deltas of weighted rows, and arrangements as immutable runs sorted by key hash.

Called by most packages above it; imports core.

In import order, bottom to top:

    exact_sums            sums with exact retraction: integers and decimals; compensated sums for floats
    interpolation_search  interpolation search for hashes in a long run
    radix_sort            stable sort of rows by hash
    delta                 the delta: rows with integer weights, and arithmetic on deltas
    collation             Spark's order of values and rows, extended to a total order
    numpy_columns         Arrow columns as numpy arrays and back
    runs                  runs: creating, probing and merging them; state is a list of runs
    grouping              rows grouped by key, so that a step reads state once per group
    lookup                lookup of keys in the runs of a map
    ordered_runs          runs ordered within each key, so that the first rows of a group can be read without the rest
    ranges                ranges of a key's rows in ordered runs, found by bisection
"""
