"""Tables: changelogs as tables, row versions, folds and recomputed groups.

Called by engine, operators.window, serving; imports core, operators.zset.

In import order, bottom to top:

    fold            a user-defined fold: each row advances the state of its key
    regroup         any function of whole groups, recomputed for the groups that a delta touches
    table_versions  validity intervals of all versions of a table's rows
    upsert          upserts and tombstones of a changelog as a delta of a table
"""
