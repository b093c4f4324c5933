"""Deletion: forgotten subjects and excised records removed from views, by retraction or rebuild.

Called by connectors, deletion, engine.tick, views; imports catalog, core, engine.collections,
engine.dataflow, engine.input, engine.merging, log, operators, plan, state.

In import order, bottom to top:

    private_dataflow        which columns depend on private values
    rebuild_after_delete    views rebuilt, and older ticks and runs removed
    source_scan             a view's sources read again, in chunks
    recompute_groups        groups recomputed from the log where state cannot be retracted
    retract                 retraction of deleted rows, at the cost of what was deleted
    retraction_steps        steps of a view that retract deleted rows
    rewritten_arrangements  arrangements rewritten as a whole, without what was deleted
"""
