"""Dead letters: rejected rows of every kind of owner, listed, edited, dropped and replayed.

Called by cli, connectors.supervisor, workspace; imports catalog, connectors.dead_letter_store,
connectors.manage, core, engine, log, operators, queues, serving, sinks, sources, views.

In import order, bottom to top:

    dead_letters  `ws.dead()`
    dead_queues   dead letters of queues
    dead_sinks    dead letters of sinks
    dead_sources  dead letters of file sources
    dead_views    dead letters of views
"""
