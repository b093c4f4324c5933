"""Lineage: the log records from which a row of a view can be computed again.

Called by cli, views; imports catalog, core, engine, log, operators, plan, serving, spark, sql, state, verify.

In import order, bottom to top:

    input_slices    which part of each input can affect some rows, by the values of plain columns
    replay_graph    runs a graph over some rows and keeps the output of every operator
    source_records  records of a topic at a tick, with their offsets
    search          a sufficient set of records: traced, replayed, extended
    why             `ws.view(v).why(key)`
"""
