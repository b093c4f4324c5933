"""Merging: keeps the number of runs per arrangement small, by merges inside a tick and in the background.

Called by engine.collections, engine.deletion, engine.tick, serving; imports core, engine.dataflow, operators,
state.

In import order, bottom to top:

    run_compaction    new runs merged with older ones of similar size
    background_merge  merges of large runs by a thread, used by a later tick
"""
