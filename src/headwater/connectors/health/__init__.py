"""Health: the state of every component with its reason, and counts of rejected rows.

Called by cli, connectors.supervisor, metrics, web; imports catalog, connectors.dead_letter_store,
connectors.manage, core, engine, log, queues, sinks, sources, state, views.

In import order, bottom to top:

    rejected_counts  counts of rejected rows of sources, views, sinks and queues
    upstream         components that are starved because one before them stopped
    health           health of every component, from log, state and faults
"""
