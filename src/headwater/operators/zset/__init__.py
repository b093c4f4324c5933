"""Z-sets: deltas of weighted rows, and arrangements as immutable runs sorted by key hash.

Called by most packages above it; imports core.

In import order, bottom to top:

    exact_sums            sums that can be retracted: exact integers and decimals, compensated floats
    interpolation_search  search of hashes in a long run by interpolation
    radix_sort            stable sort of rows by hash
    delta                 a delta: rows with integer weights, and arithmetic on them
    collation             Spark's order of values and rows, made total
    numpy_columns         Arrow columns as numpy arrays and back
    runs                  a run: made, probed and merged; state is a list of runs
    grouping              rows grouped by key, so that state is touched once per group
    lookup                lookup of keys in the runs of a map
    ordered_runs          runs ordered within each key, so that the first rows of a group are read alone
    ranges                ranges of a key's rows in ordered runs, found by bisection
"""
