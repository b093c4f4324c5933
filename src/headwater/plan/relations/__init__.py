"""Relations: the objects that plan nodes refer to: topics, views, metadata columns and Catalyst handles.

Called by connectors, engine, lineage, serving, verify, views, modules of plan; imports catalog, core, log, operators,
spark, sql.

In import order, bottom to top:

    metadata_columns  metadata columns of a topic (`_offset`, `_appended_at`, ...), not part of `*`
    time_bounds       time bounds in conditions: how far apart two event times can be
    relations         Catalyst objects that a graph carries from planning to evaluation
"""
